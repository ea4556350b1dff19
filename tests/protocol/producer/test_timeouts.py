"""Transactions past their timeout, in stores of one chain and of several: aborts, and errors of the producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import keys
from tests.helpers.chains import groups_of, ids_of, process, sound_store, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.shell import GatedStore, in_threads
from txnstore.core.groups.offsets import committed
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerFencedError,
    TxnStoreError,
)
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

PARTITIONS = 6
TIMEOUT_MS = 60_000
T0 = TopicPartition("t", 0)


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    yield from sound_store(clock, request.param, PARTITIONS)


def name_of(store: Store) -> str:
    """A transactional id of the last chain."""
    return ids_of(store, len(connection_of(store).chains) - 1)


def opened(store: Store) -> Producer:
    """A producer with an open transaction over all partitions, with a group's offset."""
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.send_offsets({T0: 5}, groups_of(store, 0))
    producer.flush()
    return producer


def offset(store: Store) -> int | None:
    position = committed(connection_of(store).view(), groups_of(store, 0), T0)
    return position.offset if position is not None else None


def test_tmo_01_transaction_is_open_at_its_timeout_and_aborted_after_it(store: Store, clock: ManualClock) -> None:
    """TMO-01: strictly later than the timeout, and without its producer."""
    opened(store)
    clock.advance(TIMEOUT_MS)
    assert store.recover().aborted == ()
    assert store.transaction(name_of(store)).state is TxnState.ONGOING
    clock.advance(1)
    assert store.recover().aborted == (name_of(store),)
    assert store.transaction(name_of(store)).state is TxnState.COMPLETE_ABORT


def test_tmo_01_time_of_the_chain_is_ahead_of_the_process(store: Store, clock: ManualClock) -> None:
    """TMO-01: by the age of its entry; a process whose clock is slow aborts it, too."""
    opened(store)
    clock.advance(TIMEOUT_MS + 1)
    slow = process(connection_of(store).counts.inner, lambda: clock() - 3_600_000)
    assert slow.recover().aborted == (name_of(store),)


def _send(producer: Producer) -> None:
    producer.send("t", b"zombie", partition=0)
    producer.flush()


def _offsets(producer: Producer) -> None:
    producer.send_offsets({T0: 9}, "g")
    producer.flush()


@pytest.mark.parametrize("call", [_send, _offsets, Producer.commit_transaction], ids=["send", "offsets", "commit"])
def test_tmo_02_producer_paused_past_its_timeout_aborts_and_continues(
    store: Store, clock: ManualClock, call: Callable[[Producer], None]
) -> None:
    """TMO-02, BUG-08, TMO-10: one bump of the epoch, in one entry with the abort; whatever it does next is refused.

    ``testFencingOnTransactionExpiration``: read_uncommitted has what it wrote before, read_committed nothing. No newer
    instance has taken over, so the producer continues with the bumped epoch after an abort (KIP-588).
    """
    producer = opened(store)
    clock.advance(TIMEOUT_MS + 1)
    store.recover()
    assert store.transaction(name_of(store)).epoch == producer.epoch + 1
    with pytest.raises(InvalidProducerEpochError, match="aborted by another process"):
        call(producer)
    assert (value_counts(store), offset(store)) == ({}, None)
    assert value_counts(store, isolation="read_uncommitted") == {b"value": PARTITIONS}
    for number in range(PARTITIONS):
        ends = store.offsets("t", number)
        assert ends.last_stable == ends.high_watermark
    assert store.transaction(name_of(store)).epoch == producer.epoch + 1
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert store.transaction(name_of(store)).epoch == producer.epoch
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert value_counts(store) == {b"next": 1}


@pytest.mark.parametrize("when", ["before the call", "before the abort"])
def test_fen_01_producer_past_its_timeout_is_fenced_by_newer_instance(
    store: Store, clock: ManualClock, when: str
) -> None:
    """FEN-01, KIP-588: a new instance takes the id after the abort of the timeout: the producer stays fenced."""
    producer = opened(store)
    clock.advance(TIMEOUT_MS + 1)
    store.recover()
    if when == "before the call":
        successor = store.producer(name_of(store))
        with pytest.raises(ProducerFencedError):
            _send(producer)
    else:
        with pytest.raises(InvalidProducerEpochError):
            _send(producer)
        successor = store.producer(name_of(store))
    with pytest.raises(ProducerFencedError):
        producer.abort_transaction()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    with successor.transaction() as txn:
        txn.send("t", b"successor", partition=0)
    assert value_counts(store) == {b"successor": 1}


def test_tmo_02_abort_after_recovery_succeeds(store: Store, clock: ManualClock) -> None:
    """TV2-03, BUG-20: the producer continues with the next epoch, unless there is a newer instance."""
    producer = opened(store)
    clock.advance(TIMEOUT_MS + 1)
    store.recover()
    producer.abort_transaction()
    assert store.transaction(name_of(store)).epoch == producer.epoch
    assert value_counts(store) == {}
    late = opened(store)
    store.producer(name_of(store)).close()
    with pytest.raises(ProducerFencedError):
        late.abort_transaction()


def race(store: Store, clock: ManualClock, *, commit_first: bool) -> tuple[TxnStoreError | None, tuple[str, ...]]:
    """A commit and a recovery race: the first to reach the storage waits there until the other is done.

    Returns the error of the commit, and the transactions that the recovery aborted.
    """
    gated = GatedStore(connection_of(store).counts.inner)
    producer = opened(process(gated if commit_first else connection_of(store).counts.inner, clock))
    sweeper = process(connection_of(store).counts.inner if commit_first else gated, clock)
    clock.advance(TIMEOUT_MS + 1)

    def commit() -> TxnStoreError | None:
        try:
            producer.commit_transaction()
        except TxnStoreError as error:
            return error
        return None

    def sweep() -> tuple[str, ...]:
        return sweeper.recover().aborted

    gate = gated.hold("put_if_absent", keys.entries(len(connection_of(store).chains) - 1), times=1)
    with ThreadPoolExecutor(1) as pool:
        if commit_first:
            waiting = pool.submit(commit)
            gate.wait_for()
            aborted = sweep()
            gate.open()
            return waiting.result(240), aborted
        swept = pool.submit(sweep)
        gate.wait_for()
        error = commit()
        gate.open()
        return error, swept.result(240)


def test_tmo_04_commit_raises_after_a_recovery_has_aborted(store: Store, clock: ManualClock) -> None:
    """TMO-04: the commit had not reached the chain; it is refused, and none of its records is visible."""
    error, aborted = race(store, clock, commit_first=True)
    assert type(error) is InvalidProducerEpochError
    assert aborted == (name_of(store),)
    assert (value_counts(store), offset(store)) == ({}, None)


def test_tmo_04_recovery_after_commit_changes_nothing(store: Store, clock: ManualClock) -> None:
    """TMO-04: the sweep had decided by an older state; the chain does not let it, and all is seen."""
    error, _ = race(store, clock, commit_first=False)
    assert error is None
    assert (value_counts(store), offset(store)) == ({b"value": PARTITIONS}, 5)
    assert store.transaction(name_of(store)).state is TxnState.COMPLETE_COMMIT


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("wait_ms", [0, TIMEOUT_MS + 1])
def test_tmo_05_decided_transaction_is_completed_at_any_time(
    store: Store, clock: ManualClock, outcome: Outcome, wait_ms: int
) -> None:
    """TMO-05: before its timeout and after it, as it was decided."""
    dying = process(connection_of(store).counts.inner, clock, background=DeferredExecutor)
    producer = opened(dying)
    connection_of(dying).submit(EndTxn(ProducerIdentity(producer.producer_id, producer.epoch, name_of(store)), outcome))
    clock.advance(wait_ms)
    report = store.recover()
    assert (report.finished, report.aborted) == ((name_of(store),) if len(connection_of(store).chains) > 1 else (), ())
    assert store.transaction(name_of(store)).state.name == f"COMPLETE_{outcome.value}"
    committing = outcome is Outcome.COMMIT
    assert (value_counts(store), offset(store)) == (({b"value": PARTITIONS}, 5) if committing else ({}, None))


def test_tmo_06_concurrent_recoveries_abort_once(store: Store, clock: ManualClock) -> None:
    """TMO-03, TMO-06: one bump, one marker in each partition."""
    producer = opened(store)
    clock.advance(TIMEOUT_MS + 1)
    sweepers = [process(connection_of(store).counts.inner, clock) for _ in range(8)]
    reports = in_threads(8, lambda number: sweepers[number].recover().failed)
    assert reports == [()] * 8
    assert store.transaction(name_of(store)).epoch == producer.epoch + 1
    assert [store.offsets("t", number).high_watermark for number in range(PARTITIONS)] == [2] * PARTITIONS


def test_tmo_09_close_aborts_the_open_transaction(store: Store) -> None:
    """TMO-09: readers do not wait for its timeout."""
    opened(store).close()
    assert store.transaction(name_of(store)).state is TxnState.COMPLETE_ABORT


def _buffered_records(producer: Producer) -> None:
    producer.send("t", b"late", partition=0)


def _buffered_offsets(producer: Producer) -> None:
    producer.send_offsets({T0: 5}, "g")


@pytest.mark.parametrize("send", [_buffered_records, _buffered_offsets], ids=["records", "offsets"])
@pytest.mark.parametrize("call", [Producer.flush, Producer.commit_transaction, Producer.prepare_transaction])
def test_timeout_runs_from_the_first_record_or_offsets(
    store: Store, clock: ManualClock, send: Callable[[Producer], None], call: Callable[[Producer], Any]
) -> None:
    """TMO-01: what waits in the buffer counts: Kafka's producer adds its partition with the first ``send``."""
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    send(producer)
    clock.advance(TIMEOUT_MS + 1)
    send(producer)
    counts = connection_of(store).counts
    counts.reset()
    with pytest.raises(InvalidProducerEpochError, match="longer ago than its timeout of 60 s"):
        call(producer)
    assert not [key for kind, key in counts.log if kind == "put_if_absent"]
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert value_counts(store) == {b"next": 1}


def test_timeout_does_not_run_before_the_first_record(store: Store, clock: ManualClock) -> None:
    """TMO-01: as in Kafka, a transaction that was only begun has no timeout; and one that is timely commits."""
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    clock.advance(TIMEOUT_MS + 1)
    producer.send("t", b"a", partition=0)
    clock.advance(TIMEOUT_MS)
    producer.commit_transaction()
    plain = store.producer(linger=None)
    plain.send("t", b"b", partition=0)
    clock.advance(TIMEOUT_MS + 1)
    plain.flush()
    assert value_counts(store) == {b"a": 1, b"b": 1}


def test_timeout_runs_from_the_first_record_of_its_own_transaction(store: Store, clock: ManualClock) -> None:
    """TMO-01: the records of an earlier one do not count."""
    producer = store.producer(name_of(store))
    for number in range(2):
        producer.begin_transaction()
        producer.send("t", b"%d" % number, partition=0)
        producer.commit_transaction()
        clock.advance(TIMEOUT_MS + 1)
    assert value_counts(store) == {b"0": 1, b"1": 1}


def test_registered_transaction_is_timed_by_its_entry(store: Store, clock: ManualClock) -> None:
    """TMO-01: once the chain has it, a reader or a successor aborts it; until then its owner may continue."""
    producer = opened(store)
    clock.advance(TIMEOUT_MS + 1)
    producer.send("t", b"late", partition=0)
    producer.commit_transaction()
    assert value_counts(store)[b"late"] == 1


@pytest.mark.parametrize("seconds", [60.0, 3600.0])
def test_init_11_store_has_its_own_largest_timeout(clock: ManualClock, seconds: float) -> None:
    """INIT-11: ``transaction.max.timeout.ms``, for every process that opens the store."""
    bucket = MemoryStore(clock=clock)
    create_on(bucket, transaction_max_timeout=seconds, runtime=Runtime(clock=clock)).close()
    with open_on(bucket, runtime=Runtime(clock=clock)) as store:
        with pytest.raises(InvalidTxnTimeoutError, match=f"1 to {seconds * 1000:.0f} ms.*transaction.max.timeout.ms"):
            store.producer("id", seconds + 0.001)
        store.producer("id", seconds)
        assert store.transaction("id").timeout_ms == seconds * 1000
        assert store.fence_producers(["id", "other"])["id"].epoch == 1
        assert (store.transaction("id").timeout_ms, store.transaction("other").timeout_ms) == (seconds * 1000, 60_000)


def test_fencing_fits_a_store_with_short_timeouts(clock: ManualClock) -> None:
    """An administrator names no timeout: the default is too long for this store."""
    with create_on(MemoryStore(clock=clock), transaction_max_timeout=5, runtime=Runtime(clock=clock)) as store:
        with pytest.raises(InvalidTxnTimeoutError):
            store.producer("id")
        store.fence_producers(["id"])
        assert store.transaction("id").timeout_ms == 5_000


def test_largest_timeout_is_fixed(clock: ManualClock) -> None:
    bucket = MemoryStore(clock=clock)
    create_on(bucket, transaction_max_timeout=900, runtime=Runtime(clock=clock)).close()
    assert b'"transaction_max_timeout_ms":900000' in bucket.get("store.json")
    create_on(bucket, exist_ok=True, runtime=Runtime(clock=clock)).close()
    with pytest.raises(InvalidConfigError, match="of 900000, not of 60000"):
        create_on(bucket, transaction_max_timeout=60, exist_ok=True, runtime=Runtime(clock=clock))


@pytest.mark.parametrize("value", [0, -1, 2_147_483.647, float("inf"), "1h", True])
def test_largest_timeout_is_checked(clock: ManualClock, value: Any) -> None:
    bucket = MemoryStore(clock=clock)
    with pytest.raises(InvalidConfigError, match="transaction_max_timeout"):
        create_on(bucket, transaction_max_timeout=value, runtime=Runtime(clock=clock))
    assert not list(bucket.list(""))
