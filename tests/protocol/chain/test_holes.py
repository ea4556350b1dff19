"""A missing entry is never taken for the end of its chain, nor written over (OBJ-13)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.shell import a_chain, names_in_bucket, new_store, runtime, topic
from txnstore.chain.chain import Chain
from txnstore.core.catalog.model import CreateTopic
from txnstore.errors import CorruptionError, UnknownOutcomeError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

PAUSE = 60_000


def filled(commits: int, checkpoint_every: int = 64) -> MemoryStore:
    """A bucket with so many entries, each of which creates a topic."""
    objects = MemoryStore()
    with a_chain(objects, checkpoint_every=checkpoint_every) as chain:
        for number in range(1, commits + 1):
            chain.submit(CreateTopic(topic(f"t{number}")))
    return objects


@pytest.mark.slow
@pytest.mark.parametrize(("first", "checkpoint_every"), [(65, 64), (1, 1_000)], ids=["checkpoint", "no checkpoint"])
def test_missing_entry_is_named_by_open(first: int, checkpoint_every: int) -> None:
    """Wherever it is in a window of requests: at its end, too, where the chain seems to be shorter."""
    objects = filled(100, checkpoint_every)
    for sequence in range(first, 100):
        key = keys.entry(0, sequence)
        data = objects.get(key)
        objects.delete([key])
        with pytest.raises(CorruptionError, match=f"{key} is missing, but later entries exist"), a_chain(objects):
            pass
        objects.put(key, data)


def test_two_missing_entries_are_named_by_open() -> None:
    objects = filled(100)
    for sequence in range(65, 98):
        pair = {keys.entry(0, number): objects.get(keys.entry(0, number)) for number in (sequence, sequence + 1)}
        objects.delete(list(pair))
        with pytest.raises(CorruptionError, match=f"{min(pair)} is missing"), a_chain(objects):
            pass
        for key, data in pair.items():
            objects.put(key, data)


def test_chain_that_lost_its_beginning_is_not_empty() -> None:
    """All of the first 40 entries are deleted, as by a lifecycle rule, with the checkpoints: entry 64 is evidence."""
    objects = filled(100)
    objects.delete([keys.entry(0, number) for number in range(1, 41)])
    objects.delete([keys.latest(0), *[item.key for item in objects.list(keys.checkpoints(0))]])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, 1)} is missing, but entry 64 exists"), a_chain(objects):
        pass


def test_lost_last_entry_cannot_be_seen() -> None:
    """Nothing follows it: the store is as it was before. docs/guarantees.md says so."""
    objects = filled(100)
    objects.delete([keys.entry(0, 100)])
    with a_chain(objects) as chain:
        assert chain.state.sequence == 99


# Open stores ----------------------------------------------------------------------------------------------------------


def _behind(clock: ManualClock) -> tuple[Store, MemoryStore, str]:
    """A store that was opened before three commits of another process, the first of which is deleted."""
    bucket = MemoryStore(clock=clock)
    new_store(bucket, clock=clock).close()
    store = open_on(bucket, runtime=runtime(clock))
    head = connection_of(store).chain.state.sequence
    with open_on(bucket, runtime=runtime(clock)) as other, other.producer() as producer:
        producer.send("t", b"1").result()
        producer.send("t", b"2").result()
    clock.advance(PAUSE)
    key = keys.entry(0, head + 1)
    bucket.delete([key])
    return store, bucket, key


CALLS: dict[str, Callable[[Store], object]] = {
    "scan": lambda store: store.scan("t").to_table(),
    "sql": lambda store: store.sql("select * from t").fetchall(),
    "topics": lambda store: store.topics(),
    "consumer": lambda store: store.consumer("t").poll(timeout=0),
    "producer": lambda store: store.producer("id"),
    "refusal": lambda store: store.create_topic("t"),
    "create": lambda store: store.create_topic("u"),
    "send": lambda store: store.producer(linger=None).send("t", b"x").result(),
    "checkpoint": lambda store: store.checkpoint(),
    "open": lambda store: open_on(connection_of(store).objects, runtime=runtime()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_missing_entry_after_the_known_head_is_named(call: Callable[[Store], object], clock: ManualClock) -> None:
    """A process that has not looked for a while makes sure before it answers, and before it writes."""
    store, bucket, key = _behind(clock)
    before = [item.key for item in bucket.list("chains/")]
    with pytest.raises(CorruptionError, match=f"{key} is missing, but later entries exist"):
        call(store)
    assert [item.key for item in bucket.list("chains/")] == before


def test_missing_entry_at_the_end_of_what_was_read_together_is_named(clock: ManualClock) -> None:
    """A look at the head reads three names: the third one has no object, and only later ones show that it is lost."""
    bucket = MemoryStore(clock=clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        for name in ("a", "b", "c", "d"):
            theirs.submit(CreateTopic(topic(name)))
        bucket.delete([keys.entry(0, 3)])
        clock.advance(60_000)
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 3)} is missing, but later entries exist"):
            ours.refresh()


def test_an_entry_written_over_is_noticed_by_the_next_commit(clock: ManualClock) -> None:
    """What cannot be seen without a request more for each commit: an entry deleted seconds after it was written.

    A process whose next commit takes its name learns of it when it commits again.
    """
    bucket = MemoryStore(clock=clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        for name in ("a", "b"):
            theirs.submit(CreateTopic(topic(name)))
        bucket.delete([keys.entry(0, 1)])
        ours.submit(CreateTopic(topic("mine")))
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 1)} was altered"):
            ours.submit(CreateTopic(topic("next")))
        assert names_in_bucket(bucket) == ["mine", "b"]


class Suspending(MemoryStore):
    """The process is suspended in its next request of a kind, and something happens before that has its effect."""

    meanwhile: dict[str, Callable[[], object]] = {}  # noqa: RUF012 - replaced by the test

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._suspend("get")
        return super().get(key, start, end)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._suspend("put_if_absent")
        return super().put_if_absent(key, data)

    def _suspend(self, operation: str) -> None:
        meanwhile, self.meanwhile = self.meanwhile, {}
        if operation in meanwhile:
            meanwhile[operation]()
        else:
            self.meanwhile = meanwhile


def _lose_one_of_three(clock: ManualClock, bucket: MemoryStore, theirs: Chain) -> None:
    """Another process commits, the first of its entries is lost, and a minute passes."""
    first = keys.entry(0, theirs.state.sequence + 1)
    for name in ("a", "b", "c"):
        theirs.submit(CreateTopic(topic(name)))
    clock.advance(PAUSE)
    bucket.delete([first])


def test_an_entry_of_a_process_that_was_suspended_in_its_commit_is_not_acknowledged(clock: ManualClock) -> None:
    """Its look at the head was recent when it began, but not when its entry got the name of one that was lost."""
    bucket = Suspending(clock=clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        ours.submit(CreateTopic(topic("first")))
        theirs.refresh()
        bucket.meanwhile = {"put_if_absent": lambda: _lose_one_of_three(clock, bucket, theirs)}
        with pytest.raises(UnknownOutcomeError, match=f"{keys.entry(0, 2)} may not be one of the chain") as raised:
            ours.submit(CreateTopic(topic("mine")))
        assert f"{keys.entry(0, 2)} was altered" in str(raised.value)
        assert ours.state.sequence == 1
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 2)} was altered"):
            ours.submit(CreateTopic(topic("next")))


def test_an_entry_of_a_process_that_was_suspended_in_its_commit_is_acknowledged_if_others_follow_it(
    clock: ManualClock,
) -> None:
    bucket = Suspending(clock=clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        bucket.meanwhile = {"put_if_absent": lambda: clock.advance(PAUSE)}
        ours.submit(CreateTopic(topic("first")))
        theirs.submit(CreateTopic(topic("a")))
        bucket.meanwhile = {"put_if_absent": lambda: clock.advance(PAUSE)}
        ours.submit(CreateTopic(topic("second")))
        assert names_in_bucket(bucket) == ["first", "a", "second"]


def test_a_look_that_was_suspended_makes_sure_of_the_head(clock: ManualClock) -> None:
    """It asked for one name only, because the last look was recent; the entry with that name was lost meanwhile."""
    bucket = Suspending(clock=clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        ours.submit(CreateTopic(topic("first")))
        theirs.refresh()
        bucket.meanwhile = {"get": lambda: _lose_one_of_three(clock, bucket, theirs)}
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 2)} is missing, but later entries exist"):
            ours.refresh()


def test_an_open_that_was_suspended_is_no_look_at_the_head(clock: ManualClock) -> None:
    """Its requests were sent a minute ago: the next look makes sure, and each one after it while an entry is lost."""

    class Slow(MemoryStore):
        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            if key == keys.entry(0, 64) and self.is_slow:  # An open waits for it before it folds any entry.
                clock.advance(PAUSE)
            return super().get(key, start, end)

        is_slow = False

    bucket = Slow(clock=clock)
    with a_chain(bucket, clock) as theirs:
        theirs.submit(CreateTopic(topic("first")))
        bucket.is_slow = True
        with a_chain(bucket, clock) as ours:
            for name in ("a", "b", "c"):
                theirs.submit(CreateTopic(topic(name)))
            bucket.delete([keys.entry(0, 2)])
            for _ in range(2):
                with pytest.raises(CorruptionError, match=f"{keys.entry(0, 2)} is missing, but later entries exist"):
                    ours.refresh()


class LongLook(MemoryStore):
    """One GET of an entry takes effect after those of two other names, and after what happens meanwhile."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._slow: tuple[str, Callable[[], object]] | None = None
        self._others = threading.Semaphore(0)

    def pause_before(self, key: str, meanwhile: Callable[[], object]) -> None:
        self._slow, self._others = (key, meanwhile), threading.Semaphore(0)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        slow = self._slow
        if slow is not None and slow[0] == key:
            for _ in range(2):
                assert self._others.acquire(timeout=60)
            self._slow = None
            slow[1]()
        try:
            return super().get(key, start, end)
        finally:
            self._others.release()


@pytest.mark.parametrize("deleted", [False, True])
def test_an_entry_that_is_deleted_in_the_middle_of_a_long_look_is_noticed_by_the_next_look(
    clock: ManualClock, *, deleted: bool
) -> None:
    """The process pauses after it has asked for the later names, which did not exist by then.

    An entry that exists is found by such a look, too. A long look is no reason to trust the head afterwards.
    """
    bucket = LongLook(clock)
    with a_chain(bucket, clock) as ours, a_chain(bucket, clock) as theirs:
        theirs.submit(CreateTopic(topic("a")))
        clock.advance(PAUSE)

        def meanwhile() -> None:
            clock.advance(PAUSE)
            theirs.submit(CreateTopic(topic("b")))
            if deleted:
                bucket.delete([keys.entry(0, 1)])

        bucket.pause_before(keys.entry(0, 1), meanwhile)
        if not deleted:
            assert ours.refresh().sequence >= 1
            return
        assert ours.refresh().sequence == 0
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 1)} is missing, but later entries exist"):
            ours.refresh()
        with pytest.raises(CorruptionError, match=f"{keys.entry(0, 1)} is missing, but later entries exist"):
            ours.submit(CreateTopic(topic("mine")))


def test_certainty_costs_two_requests_after_a_pause_and_none_otherwise(clock: ManualClock) -> None:
    """OBJ-14: a process that polls or commits all the time pays one request, as before."""
    counted = CountingStore(filled(3), log=True)

    def costs(work: Callable[[], object]) -> list[str]:
        counted.reset()
        work()
        return [kind for kind, _ in counted.log]

    with a_chain(counted, clock) as chain:
        assert costs(chain.refresh) == ["get"]
        clock.advance(5_000)
        assert costs(chain.refresh) == ["get"]
        clock.advance(5_001)
        assert costs(chain.refresh) == ["get"] * 3
        assert costs(chain.refresh) == ["get"]
        clock.advance(PAUSE)
        assert costs(lambda: chain.submit(CreateTopic(topic("a")))) == ["get"] * 3 + ["put_if_absent"]
        clock.advance(5_000)
        assert costs(lambda: chain.submit(CreateTopic(topic("b")))) == ["put_if_absent"]
