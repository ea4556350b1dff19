"""A process that closes a store writes a checkpoint, if it has written much since the last one (PST-02)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.interleaving import Interleaved
from tests.helpers.later import append_entry
from tests.helpers.shell import GatedStore, another_process, backend, new_store, runtime, sound
from tests.helpers.shop import ALICE, ALICES, Shop
from tests.helpers.tables import EngineObjects
from txnstore import connection, threads
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.index import FAN
from txnstore.chain.codec import LatestDocument, decode
from txnstore.chain.identity import CONFIRM_MS
from txnstore.errors import UnknownOutcomeError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on
from txnstore.testing.faults import SimulatedCrash

#: Identity, hint, state and index file of the checkpoint, next boundary; and the names ahead of the newest entry.
OPEN, AHEAD = 5, 8


def head(store: Store) -> int:
    return connection_of(store).chain.state.sequence


def written(store: Store, sequence: int) -> Store:
    """The store, after commits of its process up to this entry."""
    while head(store) < sequence:
        store.create_topic(f"t{head(store)}")
    return store


def saved(objects: ObjectStore, chain: int = 0) -> list[int]:
    """The entries with a checkpoint."""
    sequences = (keys.checkpoint_sequence(item.key) for item in objects.list(keys.checkpoints(chain)))
    return [sequence for sequence in sequences if sequence is not None]


def hinted(objects: ObjectStore) -> int:
    """The entry that the hint names; 0 without a hint."""
    if not objects.list(keys.latest(0)):
        return 0
    return decode(LatestDocument, keys.latest(0), objects.get(keys.latest(0))).sequence


def closing(store: Store) -> Sequence[tuple[str, str]]:
    """The requests of a close: each with its operation and key."""
    counting = connection_of(store).counts
    counting.reset()
    store.close()
    return list(counting.log)


# What it costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [8, 9, 15, 16, 54, 63])
def test_a_writer_that_closes_makes_the_next_open_cheap(sequence: int) -> None:
    """The budget: a GET and three PUTs, for an open that reads at most seven entries after its checkpoint."""
    store = written(new_store(), sequence)
    objects, state = backend(store), connection_of(store).chain.state
    last = sequence - sequence % FAN
    assert closing(store) == [
        ("get", keys.latest(0)),
        ("put", keys.index_file(0, 0, last)),
        ("put_if_absent", keys.checkpoint_state(0, last)),
        ("put", keys.latest(0)),
    ]
    reader = another_process(store, objects)
    assert connection_of(reader).chain.state == state
    counts = connection_of(reader).counts.snapshot()
    assert (counts.get, counts.list, counts.puts) == (OPEN + sequence - last + AHEAD, 1, 0)
    assert closing(reader) == []


@pytest.mark.parametrize("sequence", [1, 7])
def test_a_writer_of_few_entries_makes_no_request_when_it_closes(sequence: int) -> None:
    assert closing(written(new_store(), sequence)) == []


def test_a_later_process_writes_what_was_added_since() -> None:
    """It makes no request for the index files that it does not write again."""
    store = written(new_store(), 70)
    assert saved(backend(store)) == [64]
    assert closing(store) == [], "fewer than eight entries since the last checkpoint"
    other = another_process(store)
    assert closing(written(other, 80))[1:3] == [
        ("put", keys.index_file(0, 64, 80)),
        ("put_if_absent", keys.checkpoint_state(0, 80)),
    ]
    assert sound(other) == connection_of(other).view()


def test_entries_of_many_short_processes_count_together() -> None:
    """Each writes one entry: the one that closes after the eighth, and after the sixteenth, writes a checkpoint."""
    store = new_store()
    objects = backend(store)
    store.close()
    for sequence in range(2, 21):
        process = another_process(store, objects)
        assert len(closing(written(process, sequence))) == (4 if sequence % FAN == 0 else 0)
    assert saved(objects) == [8, 16]


def test_only_a_process_that_has_written_since_the_last_checkpoint_writes_one() -> None:
    """A reader that has seen the entries of others writes none; nor does a writer after a checkpoint by hand."""
    store = written(new_store(), 20)
    reader = another_process(store)
    assert closing(reader) == []
    store.checkpoint()
    assert closing(store) == []
    again = another_process(store)
    with another_process(store) as other:
        written(other, 30)
    connection_of(again).view()
    assert closing(again) == []


def test_a_large_state_has_a_last_checkpoint_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint costs more than the entries that an open reads instead."""
    monkeypatch.setattr(checkpoint, "MANY_NAMES", 30)
    store = new_store()
    objects = backend(store)
    for sequence, expected in ((8, [8]), (16, [8]), (24, [8, 24]), (48, [8, 24]), (56, [8, 24, 56])):
        written(another_process(store, objects), sequence).close()
        assert saved(objects) == expected
    state = connection_of(another_process(store, objects)).chain.state
    assert checkpoint.interval(state, FAN) == 4 * FAN


def test_each_chain_has_its_own_last_checkpoint() -> None:
    store = new_store(chains=3)
    with store.producer() as producer:
        for number in range(40):
            producer.send("t", b"x", partition=number % 3)
            producer.flush()
    heads = [chain.state.sequence for chain in connection_of(store).chains]
    store.close()
    expected = [[length - length % FAN] if length >= FAN else [] for length in heads]
    assert [saved(backend(store), chain) for chain in range(3)] == expected
    assert sum(map(len, expected)) >= 2


# Beside others --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("due", [("put", keys.index_file(0, 0, 16)), ("put_if_absent", keys.checkpoint_state(0, 16))])
def test_of_two_that_close_at_the_same_time_one_creates_the_checkpoint(due: tuple[str, str]) -> None:
    """Both have read the hint before either has written: the create of the state decides, and its creator hints."""
    objects = EngineObjects(ManualClock())
    first = written(new_store(objects), 17)
    second = another_process(first)
    second.create_topic("of-the-second")
    beside = Interleaved(objects, lambda *request: request == due, second.close)
    third = another_process(first, beside)
    third.create_topic("of-the-third")
    assert closing(third)[-1] == ("put_if_absent", keys.checkpoint_state(0, 16))
    assert beside.struck
    assert (saved(objects), hinted(objects)) == ([16], 16)
    assert head(another_process(first)) == 19


def test_one_that_closes_after_another_one_reads_that_it_has_nothing_to_do() -> None:
    store = written(new_store(), 12)
    other = another_process(store)
    other.create_topic("other")
    store.close()
    assert closing(other) == [("get", keys.latest(0))]


def test_an_older_checkpoint_does_not_replace_the_hint_of_a_newer_one() -> None:
    store = written(new_store(), 12)
    written(another_process(store), 31).close()
    assert hinted(backend(store)) == 24
    assert closing(store) == [("get", keys.latest(0))]


def test_a_principal_that_may_not_maintain_writes_none() -> None:
    """Readers believe checkpoints; one of the principals that close after it may write one."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES)
        alice = shop.as_(ALICE)
        with alice.producer("a") as producer:
            for _ in range(20):
                with producer.transaction():
                    producer.send("out", b"x", partition=0)
        end = head(alice)
        alice.close()
        assert saved(shop.objects) == []
        shop.admin.create_topic("last")
        shop.admin.close()
        assert saved(shop.objects) == [(end + 1) - (end + 1) % FAN]


def test_a_release_that_lacks_a_feature_writes_no_last_checkpoint() -> None:
    """It would lack what the later release has stored."""
    store = written(new_store(), 12)
    append_entry(backend(store), (), write=["later"])
    connection_of(store).view()
    assert closing(store) == []


def test_nothing_of_a_deleted_store_is_written_beside_the_new_one(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    old = written(create_on(CountingStore(objects, log=True), runtime=runtime(clock)), 12)
    objects.delete([item.key for item in objects.list("")])
    create_on(objects, runtime=Runtime(clock, clock.sleep)).close()
    before = {item.key: objects.get(item.key) for item in objects.list("")}
    clock.advance(CONFIRM_MS + 1)
    assert closing(old) == [("get", keys.STORE)]
    assert {item.key: objects.get(item.key) for item in objects.list("")} == before


# Failures -------------------------------------------------------------------------------------------------------------

#: The requests of a close, by operation and a part of their keys.
REQUESTS = [("get", "latest"), ("put", ".index"), ("put_if_absent", "state.json"), ("put", "latest")]


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.UNAVAILABLE_503, Fault.EXISTS_412])
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_close_does_not_fail_with_its_checkpoint(request_: tuple[str, str], fault: Fault) -> None:
    objects = MemoryStore()
    faults = FaultStore(objects, no_faults)
    store = written(new_store(faults), 20)
    state = connection_of(store).chain.state
    faults.plan = on(fault, request_[0], key_contains=request_[1], times=None)
    store.close()
    assert connection_of(another_process(store, objects)).chain.state == state
    faults.plan = no_faults
    written(store, 29).close()
    assert hinted(objects) == 24
    assert head(another_process(store, objects)) == 29


@pytest.mark.parametrize("part", [".index", "state.json", "latest"])
def test_a_close_repeats_a_checkpoint_that_has_failed_since_the_last_one(part: str) -> None:
    """That of every 64 entries. A commit does not repeat it: it would try again and again while the storage fails."""
    faults = FaultStore(MemoryStore(), no_faults)
    store = written(new_store(faults), 63)
    faults.plan = on(Fault.ERROR_BEFORE, "put", key_contains=part, times=None)
    written(store, 66)
    faults.plan = no_faults
    assert (hinted(backend(store)), store.metrics().checkpoint_failures) == (0, 1)
    written(store, 70)
    assert hinted(backend(store)) == 0
    store.close()
    assert (saved(backend(store)), hinted(backend(store))) == ([64], 64)
    assert closing(store) == []


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("request_", REQUESTS[1:])
def test_a_process_may_die_between_the_requests_of_its_close(request_: tuple[str, str], fault: Fault) -> None:
    objects = MemoryStore()
    faults = FaultStore(objects, no_faults)
    store = written(new_store(faults), 20)
    state = connection_of(store).chain.state
    faults.plan = on(fault, request_[0], key_contains=request_[1])
    with pytest.raises(SimulatedCrash):
        store.close()
    for _ in range(2):
        other = another_process(store, objects)
        assert connection_of(other).chain.state == state
        assert other.verify().violations == ()
    written(other, 29).close()
    assert hinted(objects) == 24


def test_a_process_with_an_entry_of_unknown_outcome_writes_no_last_checkpoint() -> None:
    """The storage does not answer: a close does not wait for it."""
    faults = FaultStore(MemoryStore(), no_faults)
    store = written(new_store(faults), 12)
    faults.plan = on(Fault.ERROR_BEFORE, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.create_topic("lost")
    assert closing(store) == []


@pytest.mark.parametrize(("key", "pause_ms"), [("latest", 0), ("store.json", CONFIRM_MS + 1)])
def test_a_close_leaves_a_storage_that_does_not_answer(
    key: str, pause_ms: int, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does the exit of the process wait for it, which waits for all workers that are left."""
    monkeypatch.setattr(connection, "_LAST_CHECKPOINTS_MS", 0)
    bucket = MemoryStore()
    new_store(bucket).close()
    gated = GatedStore(bucket)
    store = written(open_on(gated, runtime=Runtime(clock, lambda _: None)), 12)
    clock.advance(pause_ms)
    gate = gated.hold("get", key)
    before = set(threads._pools)
    with caplog.at_level(logging.INFO, logger="txnstore.connection"):
        store.close()
    assert [record.message for record in caplog.records] == ["closed without its last checkpoint"]
    assert saved(bucket) == []
    gate.wait_for()
    assert not set(threads._pools) - before
    gate.open()


class _Full(Executor):
    """An executor without room for another thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def test_a_missing_thread_leaves_the_close_alone() -> None:
    objects = MemoryStore()
    store = written(create_on(objects, runtime=replace(runtime(), background=_Full)), 12)
    store.close()
    assert saved(objects) == []
    assert head(open_on(objects)) == 12


def test_a_closed_store_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    store = written(create_on(MemoryStore()), 12)
    checkpoint_key = connection_of(store).keys.checkpoint_state(0, 8)
    store.close()
    assert backend(store).get(checkpoint_key)
    assert not set(threading.enumerate()) - before


def test_a_store_that_is_used_again_after_a_close_closes_again() -> None:
    store = written(new_store(), 12)
    store.close()
    assert closing(store) == []
    written(store, 15)
    assert closing(store) == []
    written(store, 16)
    assert len(closing(store)) == 4
    assert saved(backend(store)) == [8, 16]
