"""A store that is deleted, or deleted and created again, under a process that has it open: on any storage.

The new store is not harmed, and the old process notices within a few seconds. A local folder is noticed at once, see
``test_vanished_stores.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.documents import hint
from tests.helpers.keys import CHAINS, KEYS, STORE, STORE_ID, latest
from tests.helpers.shell import ONE_CHAIN, runtime
from txnstore.chain.codec import encode
from txnstore.chain.identity import CONFIRM_MS
from txnstore.compactor.foreign import foreign_pages
from txnstore.errors import StorageError, StoreNotFoundError, UnsoundStoreError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def chains(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def old(bucket: MemoryStore, clock: ManualClock, chains: int) -> Store:
    store = create_on(CountingStore(bucket, log=True), chains, runtime=runtime(clock))
    store.create_topic("t", partitions=3)
    return store


def names(store: Store) -> list[str]:
    return [topic.name for topic in store.topics()]


def deleted(bucket: MemoryStore) -> None:
    bucket.delete([item.key for item in bucket.list("")])


def replaced(bucket: MemoryStore, clock: ManualClock, chains: int = 1) -> Store:
    """The store that is created after all objects of the old one were deleted."""
    deleted(bucket)
    return create_on(bucket, chains, runtime=Runtime(clock, clock.sleep))


CALLS: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create_topic("u"),
    "refusal": lambda store: store.create_topic("t"),
    "topics": lambda store: store.topics(),
    "scan": lambda store: store.scan("t").to_table(),
    "sql": lambda store: store.sql("select * from t").fetchall(),
    "consumer": lambda store: store.consumer("t").poll(timeout=0),
    "producer": lambda store: store.producer("id"),
    "send": lambda store: store.producer(linger=None).send("t", b"x").result(),
    "checkpoint": lambda store: store.checkpoint(),
    "vacuum": lambda store: store.vacuum(0),
    "verify": lambda store: store.verify(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_process_notices_that_its_store_was_replaced(
    old: Store, bucket: MemoryStore, clock: ManualClock, chains: int, call: Callable[[Store], object]
) -> None:
    """Whatever it does first; the error names both stores, and nothing is written to the chains."""
    new = replaced(bucket, clock, chains)
    clock.advance(CONFIRM_MS + 1)
    before = [item.key for item in bucket.list("chains/")]
    with pytest.raises(StoreNotFoundError, match=f"the store {STORE_ID} at .* was deleted .* store {new.store_id} was"):
        call(old)
    assert [item.key for item in bucket.list("chains/")] == before


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_process_notices_that_its_store_was_deleted(
    old: Store, bucket: MemoryStore, clock: ManualClock, call: Callable[[Store], object]
) -> None:
    deleted(bucket)
    clock.advance(CONFIRM_MS + 1)
    with pytest.raises(StoreNotFoundError):
        call(old)
    assert list(bucket.list("chains/")) == []


def test_process_that_never_pauses_notices_as_soon(old: Store, bucket: MemoryStore, clock: ManualClock) -> None:
    """Its own commits move its head: that says nothing about the store."""
    new = replaced(bucket, clock)
    for number in range(CONFIRM_MS // 1000):
        clock.advance(1000)
        old.create_topic(f"lost{number}")
    clock.advance(1000)
    with pytest.raises(StoreNotFoundError):
        old.create_topic("refused")
    assert names(new) == []


class Sleeping(MemoryStore):
    """The process that opens the store is suspended after it has read ``store.json``, and that is swapped meanwhile."""

    meanwhile: Callable[[], object] | None = None

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        data = super().get(key, start, end)
        if key == STORE and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return data


def test_process_that_slept_while_it_opened_a_store_looks_again(clock: ManualClock) -> None:
    """It had read the right ``store.json`` then, and its chains still exist."""
    bucket = Sleeping(clock=clock)
    create_on(bucket, runtime=runtime(clock)).close()
    other = MemoryStore(clock=clock)
    create_on(other, runtime=Runtime(clock, clock.sleep)).close()

    def swap() -> None:
        clock.advance(CONFIRM_MS + 1)
        bucket.put(STORE, other.get(STORE))

    bucket.meanwhile = swap
    store = open_on(bucket, runtime=runtime(clock))
    with pytest.raises(StoreNotFoundError):
        store.create_topic("t")


def test_nothing_of_the_old_store_gets_into_the_new_one(
    old: Store, bucket: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """Entries that the old process writes meanwhile have names that the new chains never come to."""
    new = replaced(bucket, clock, chains)
    for number in range(4):
        old.create_topic(f"lost{number}")
    for number in range(8):
        new.create_topic(f"kept{number}")
    assert names(new) == [f"kept{number}" for number in range(8)]
    report = new.verify(deep=True)
    assert (report.ok, report.foreign) == (True, (KEYS.chains,))


@ONE_CHAIN
def test_producer_of_a_replaced_store_has_failed(
    old: Store, bucket: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """The error is fatal: no call of this producer can succeed."""
    producer = old.producer("id")
    replaced(bucket, clock)
    clock.advance(CONFIRM_MS + 1)
    with pytest.raises(StoreNotFoundError) as raised, producer.transaction() as txn:
        txn.send("t", b"1").result()
    assert raised.value.fatal


def test_it_costs_one_request_per_interval(old: Store, clock: ManualClock) -> None:
    """For all chains together, and for a process that only reads, too."""
    counted = connection_of(old).counts
    for work in (old.topics, lambda: old.create_topic(f"t{clock()}")):
        clock.advance(CONFIRM_MS + 1)
        counted.reset()
        for _ in range(10):
            work()
            clock.advance(1000)
        assert [key for _, key in counted.log if key == STORE] == [STORE, STORE]


@ONE_CHAIN
def test_failed_look_leaves_nothing_behind(bucket: MemoryStore, clock: ManualClock, chains: int) -> None:
    """If the storage does not answer, the command is refused, and the next one looks again."""
    faults = FaultStore(bucket)
    store = create_on(faults, runtime=runtime(clock))
    clock.advance(CONFIRM_MS + 1)
    faults.plan = on(Fault.UNAVAILABLE_503, "get", key_contains=STORE)
    with pytest.raises(StorageError):
        store.create_topic("t")
    assert list(bucket.list("chains/")) == []
    store.create_topic("t")
    assert names(store) == ["t"]


# What is left of the old store ----------------------------------------------------------------------------------------


def test_what_is_left_is_deleted_on_request(old: Store, bucket: MemoryStore, clock: ManualClock, chains: int) -> None:
    """Never by a vacuum that was not asked to, however old it is: segments may be needed by it."""
    new = replaced(bucket, clock, chains)
    old.create_topic("lost")
    new.create_topic("kept")
    left, third = [item.key for item in bucket.list(KEYS.chains)], f"chains/f{STORE_ID[1:]}/0000/entries/{1:020d}.json"
    bucket.put(third, b"x")
    clock.advance(400 * DAY_MS)
    with pytest.raises(UnsoundStoreError, match=STORE_ID):
        new.vacuum()
    assert new.vacuum(dry_run=True, foreign=[STORE_ID]).deleted == tuple(left)
    assert new.vacuum(foreign=[STORE_ID]).deleted == tuple(left)
    assert new.verify().foreign == (f"chains/f{STORE_ID[1:]}/",)
    new.vacuum(foreign=[f"f{STORE_ID[1:]}"])
    assert new.verify().foreign == ()
    new.vacuum()
    assert names(new) == ["kept"]


@ONE_CHAIN
def test_vacuum_of_the_old_store_deletes_nothing_of_the_new_one(
    old: Store, bucket: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """It looks after it has listed what it would delete, however short ago it looked before."""
    new = replaced(bucket, clock)
    new.create_topic("t")
    new.producer(linger=None).send("t", b"1").result()
    before = [item.key for item in bucket.list("")]
    clock.advance(1)
    with pytest.raises(StoreNotFoundError):
        old.vacuum(0)
    assert [item.key for item in bucket.list("")] == before


def test_vacuum_looks_again_after_its_lists(clock: ManualClock) -> None:
    """The store is replaced after its first look: what it lists then belongs to the new store."""

    class Replacing(MemoryStore):
        replace: Callable[[], None] | None = None

        def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
            page = super().list(prefix, start_after, limit)
            if prefix == CHAINS and self.replace is not None:
                replace, self.replace = self.replace, None
                replace()
            return page

    def replace() -> None:
        new = replaced(bucket, clock)
        new.create_topic("t", config={"inline.bytes": 0})
        new.producer(linger=None).send("t", b"1").result()
        kept.extend(item.key for item in bucket.list(""))
        clock.advance(1)

    bucket, kept = Replacing(clock=clock), list[str]()
    old = create_on(bucket, runtime=runtime(clock))
    old.create_topic("t")
    bucket.replace = replace
    with pytest.raises(StoreNotFoundError):
        old.vacuum(0, force=True)
    assert kept
    assert [item.key for item in bucket.list("")] == kept


@ONE_CHAIN
def test_hint_of_the_old_store_costs_a_list_at_most(
    old: Store, bucket: MemoryStore, clock: ManualClock, chains: int
) -> None:
    new = replaced(bucket, clock)
    new.create_topic("kept")
    new.checkpoint()
    bucket.put(latest(0), encode(hint(6400, store_id=old.store_id)))
    with open_on(bucket, runtime=runtime(clock)) as again:
        assert names(again) == ["kept"]
        assert again.verify(deep=True).ok
        assert again.checkpoint() == 1


@pytest.mark.parametrize("own", [0, 1, 2_500])
@pytest.mark.parametrize("others", [0, 1, 1_000, 1_500])
def test_chains_of_this_store_are_passed_over(own: int, others: int) -> None:
    """However long they are: other stores are before and after them in the list."""
    bucket = CountingStore(MemoryStore(), log=True)
    first, last = (KEYS.__class__(f"{letter}{STORE_ID[1:]}") for letter in "0f")
    middle = KEYS.__class__(f"7{STORE_ID[1:]}")
    for keys, count in ((first, others), (middle, own), (last, others)):
        for sequence in range(1, count + 1):
            bucket.put(keys.entry(0, sequence), b"")
    bucket.put(latest(0), b"")
    listed_keys = [item.key for page in foreign_pages(bucket, middle) for item in page]
    assert listed_keys == [keys.entry(0, sequence) for keys in (first, last) for sequence in range(1, others + 1)]
    assert bucket.snapshot().list <= 2 + 2 * others // 1_000
