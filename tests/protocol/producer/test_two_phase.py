"""Transactions that an external coordinator decides: prepare, crash, take over, complete (KIP-939)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.chains import groups_of, ids_of, partitions_of, process, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.producers import forget_end
from tests.helpers.shell import GatedStore
from txnstore import PreparedTxn
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.commands import AbortTxn
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    TxnStoreError,
)
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, no_faults, on

PARTITIONS = 6
T0 = TopicPartition("t", 0)


@pytest.fixture(params=[1, 3], ids=["one-chain", "three-chains"])
def bucket(request: pytest.FixtureRequest, clock: ManualClock) -> MemoryStore:
    objects = MemoryStore(clock=clock)
    process(objects, clock, chains=request.param).create_topic("t", partitions=PARTITIONS)
    return objects


def name_of(store: Store) -> str:
    return ids_of(store, len(connection_of(store).chains) - 1)


def prepared(store: Store) -> tuple[Producer, PreparedTxn]:
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.send_offsets({T0: 5}, groups_of(store, 0))
    return producer, producer.prepare_transaction()


def clean(store: Store) -> bool:
    return check_view(connection_of(store).view()) == [] and store.verify(deep=True).ok


def test_tpc_03_transaction_refuses_records_during_prepare(clock: ManualClock) -> None:
    """TPC-03: what prepare_transaction does not write must not be taken in while it writes."""
    gated = GatedStore(MemoryStore(clock=clock))
    store = process(gated, clock, chains=1)
    store.create_topic("t", partitions=1)
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"early")
    gate = gated.hold("put", "topics/")
    with ThreadPoolExecutor(1) as pool:
        preparing = pool.submit(producer.prepare_transaction)
        gate.wait_for()
        for call in (lambda: producer.send("t", b"late"), lambda: producer.send_offsets({T0: 6}, "g")):
            with pytest.raises(InvalidTxnStateError, match="being prepared"):
                call()
        gate.open()
        name = preparing.result(timeout=240)
    another = process(gated, clock).producer("id", keep_prepared=True)
    assert another.complete_transaction(name)
    assert value_counts(process(gated, clock)) == {b"early": 1}


def test_tpc_03_prepared_transaction_refuses_records(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-03: all of it is written; only its end may follow."""
    store = process(bucket, clock)
    producer, name = prepared(store)
    assert str(name) == f"{producer.producer_id}:{producer.epoch}"
    assert value_counts(process(bucket, clock), isolation="read_uncommitted") == {b"value": PARTITIONS}
    assert value_counts(process(bucket, clock)) == {}
    for call in (
        lambda: producer.send("t", b"late"),
        lambda: producer.send_offsets({T0: 6}, "g"),
        producer.begin_transaction,
    ):
        with pytest.raises(InvalidTxnStateError):
            call()
    producer.commit_transaction()
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}
    with producer.transaction() as txn:
        write_everywhere(txn, b"next")
    assert clean(process(bucket, clock))


def test_repeated_prepare_returns_the_same_name(bucket: MemoryStore, clock: ManualClock) -> None:
    """An interrupt in the last lines of the call keeps its answer from the caller, who repeats it: no request."""
    store = process(bucket, clock)
    producer, name = prepared(store)
    counts = connection_of(store).counts
    counts.reset()
    assert producer.prepare_transaction() == name
    assert counts.snapshot().requests == 0
    successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
    assert successor.prepare_transaction() == name
    assert successor.complete_transaction(name)
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}


@pytest.mark.parametrize("what", ["fenced", "kept", "aborted"])
@pytest.mark.parametrize("end", ["commit", "abort", "complete"])
def test_after_a_repeated_prepare_the_end_of_the_transaction_says_what_others_did(
    bucket: MemoryStore, clock: ManualClock, what: str, end: str
) -> None:
    """As in Kafka, a prepared producer asks nobody: that it was fenced, or its transaction aborted, tells the end."""
    producer, name = prepared(process(bucket, clock))
    other = process(bucket, clock)
    if what == "aborted":
        assert other.abort_transaction(name_of(other))
    else:
        other.producer(name_of(other), keep_prepared=what == "kept")
    assert producer.prepare_transaction() == name
    calls: dict[str, Callable[[], object]] = {
        "commit": producer.commit_transaction,
        "abort": producer.abort_transaction,
        "complete": lambda: producer.complete_transaction(name),
    }
    if what != "aborted":
        with pytest.raises(ProducerFencedError):
            calls[end]()
        with pytest.raises(ProducerFencedError):
            producer.prepare_transaction()
    elif end == "abort":
        producer.abort_transaction()
    else:
        with pytest.raises(InvalidProducerEpochError):
            calls[end]()
        with pytest.raises(InvalidTxnStateError):
            producer.prepare_transaction()
        producer.abort_transaction()
    assert value_counts(process(bucket, clock)) == {}


def test_tpc_04_unprepared_transaction_cannot_be_completed(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-04: Kafka's ``completeTransaction`` refuses one that is open and not prepared; it stays open."""
    producer = process(bucket, clock).producer("id")
    producer.begin_transaction()
    producer.send("t", b"value")
    with pytest.raises(InvalidTxnStateError, match="not prepared"):
        producer.complete_transaction("0:0")
    producer.commit_transaction()
    assert value_counts(process(bucket, clock)) == {b"value": 1}


def test_tpc_02_a_prepared_transaction_never_times_out(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-02, TMO-13: no recovery aborts it; an administrator may."""
    store = process(bucket, clock)
    producer, _ = prepared(store)
    clock.advance(30 * 86_400_000)
    other = process(bucket, clock)
    assert other.recover().aborted == ()
    other.consumer(["t"]).poll()
    assert connection_of(other).view().transactions[name_of(store)].state is TxnState.ONGOING
    connection_of(other).submit(AbortTxn(name_of(store)))
    with pytest.raises(InvalidProducerEpochError):
        producer.commit_transaction()
    assert value_counts(process(bucket, clock)) == {}
    assert clean(process(bucket, clock))


def test_tpc_04_keep_prepared_needs_transactional_id(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-04: an idempotent producer has no predecessor, so the request is a mistake."""
    with pytest.raises(InvalidConfigError, match="keep_prepared needs a transactional_id"):
        process(bucket, clock).producer(keep_prepared=True)


@pytest.mark.parametrize("decided", [True, False])
def test_tpc_04_new_instance_completes_transaction_as_decided(
    bucket: MemoryStore, clock: ManualClock, *, decided: bool
) -> None:
    """TPC-04, TPC-05: the external coordinator has recorded it, or not; the old instance is fenced either way."""
    store = process(bucket, clock)
    zombie, name = prepared(store)
    recorded = str(name) if decided else "7:7"
    clock.advance(86_400_000)
    successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
    assert (successor.producer_id, successor.epoch) == (zombie.producer_id, zombie.epoch + 1)
    for call in (zombie.commit_transaction, lambda: zombie.complete_transaction(name)):
        with pytest.raises(ProducerFencedError):
            call()
    assert value_counts(process(bucket, clock)) == {}
    assert successor.complete_transaction(recorded) is decided
    group = committed(connection_of(process(bucket, clock)).view(), groups_of(store, 0), T0)
    assert value_counts(process(bucket, clock)) == ({b"value": PARTITIONS} if decided else {})
    assert (group is not None and group.offset == 5) is decided
    with successor.transaction() as txn:
        write_everywhere(txn, b"next")
    assert value_counts(process(bucket, clock))[b"next"] == PARTITIONS
    assert clean(process(bucket, clock))


def test_tpc_04_prepared_transaction_survives_several_takeovers(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-04: its name stays the one that was recorded."""
    store = process(bucket, clock)
    _, name = prepared(store)
    for _ in range(3):
        successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
        assert check_view(connection_of(process(bucket, clock)).view()) == []
    assert successor.complete_transaction(PreparedTxn.parse(str(name)))
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}
    assert clean(process(bucket, clock))


def test_tpc_05_a_batch_of_the_old_epoch_is_refused_in_every_chain(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-05: the zombie wakes before its flush, and what it registers must not get into the kept transaction."""
    store = process(bucket, clock)
    producer, name = prepared(store)
    successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
    forget_end(producer)
    write_everywhere(producer, b"zombie")
    with pytest.raises(TxnStoreError):
        producer.flush()
    assert successor.complete_transaction(name)
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}
    assert clean(process(bucket, clock))


def test_init_without_keep_prepared_aborts_prepared_transaction(bucket: MemoryStore, clock: ManualClock) -> None:
    store = process(bucket, clock)
    prepared(store)
    with process(bucket, clock).producer(name_of(store)) as successor:
        assert successor.complete_transaction("0:0") is False
        with successor.transaction() as txn:
            write_everywhere(txn, b"next")
    assert value_counts(process(bucket, clock)) == {b"next": PARTITIONS}
    assert clean(process(bucket, clock))


def test_keep_prepared_aborts_unprepared_transaction(bucket: MemoryStore, clock: ManualClock) -> None:
    """A predecessor that died before its prepare has decided nothing: its transaction is aborted as ever."""
    store = process(bucket, clock)
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
    assert successor.complete_transaction(PreparedTxn(producer.producer_id, producer.epoch)) is False
    assert value_counts(process(bucket, clock), isolation="read_uncommitted") == {b"value": PARTITIONS}
    assert value_counts(process(bucket, clock)) == {}
    assert clean(process(bucket, clock))


def test_empty_transaction_can_be_prepared(bucket: MemoryStore, clock: ManualClock) -> None:
    store = process(bucket, clock)
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    name = producer.prepare_transaction()
    assert producer.complete_transaction(name)
    assert clean(process(bucket, clock))


def test_takeover_survives_crash_at_any_request(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-04: the next instance can still complete it."""
    store = process(bucket, clock)
    _, name = prepared(store)
    for skip in range(4):
        faults = FaultStore(bucket, no_faults)
        other = process(faults, clock)
        faults.plan = on(Fault.CRASH_AFTER, "put_if_absent", skip=skip)
        try:
            other.producer(name_of(store), keep_prepared=True)
        except SimulatedCrash:
            continue
    successor = process(bucket, clock).producer(name_of(store), keep_prepared=True)
    assert successor.complete_transaction(name)
    assert value_counts(process(bucket, clock)) == {b"value": PARTITIONS}
    assert clean(process(bucket, clock))


@pytest.mark.parametrize("text", ["", "1", "1:", "a:b", "1:2:3", "-1:2", None, 7])
def test_invalid_name_of_prepared_transaction_is_refused(text: object) -> None:
    with pytest.raises(InvalidConfigError, match="<producer id>:<epoch>"):
        PreparedTxn.parse(text)  # type: ignore[arg-type]


def test_producer_fenced_during_prepare_raises_fatal_error(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-03, API-09: a newer instance came between the last batch and the prepare; it does not continue as if nothing
    had been.
    """
    store = process(bucket, clock)
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    process(bucket, clock).producer(name_of(store))
    with pytest.raises(ProducerFencedError):
        producer.prepare_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction, producer.prepare_transaction):
        with pytest.raises(ProducerFencedError):
            call()
    producer.close()
    assert value_counts(process(bucket, clock)) == {}
    assert clean(process(bucket, clock))


def test_producer_can_begin_again_after_abort_before_prepare(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-03, KIP-588: the prepare is refused, the abort agrees with the one that was, and the producer continues."""
    store = process(bucket, clock)
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    assert process(bucket, clock).abort_transaction(name_of(store))
    with pytest.raises(InvalidProducerEpochError):
        producer.prepare_transaction()
    producer.abort_transaction()
    with producer.transaction() as txn:
        write_everywhere(txn, b"next")
    assert value_counts(process(bucket, clock)) == {b"next": PARTITIONS}
    assert clean(process(bucket, clock))


@pytest.mark.parametrize("keeps", [False, True], ids=["two_phase_commit", "keep_prepared"])
def test_tpc_02_an_id_with_two_phase_commit_has_no_timeout(
    bucket: MemoryStore, clock: ManualClock, *, keeps: bool
) -> None:
    """TPC-02: also before the prepare, registered or not, as with Kafka's ``transaction.two.phase.commit.enable``."""
    store = process(bucket, clock)
    options: dict[str, Any] = {"keep_prepared": True} if keeps else {"two_phase_commit": True}
    producer = store.producer(name_of(store), **options)
    producer.begin_transaction()
    producer.send("t", b"buffered", partition=0)
    clock.advance(30 * 86_400_000)
    producer.flush()
    clock.advance(30 * 86_400_000)
    other = process(bucket, clock)
    assert other.recover().aborted == ()
    other.consumer(["t"]).poll()
    assert other.find_hanging() == []
    described = other.transaction(name_of(store))
    assert (described.state, described.timeout_ms) == (TxnState.ONGOING, 2**31 - 1)
    assert other.fence_producers([name_of(store)])
    assert other.transaction(name_of(store)).timeout_ms == 2**31 - 1
    assert clean(process(bucket, clock))


def test_timeout_is_back_without_two_phase_commit(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-02: the setting is one of the instance, as in Kafka."""
    store = process(bucket, clock)
    store.producer(name_of(store), two_phase_commit=True)
    producer = store.producer(name_of(store))
    producer.begin_transaction()
    producer.send("t", b"value", partition=0)
    producer.flush()
    clock.advance(60_001)
    assert process(bucket, clock).recover().aborted == (name_of(store),)


def test_two_phase_commit_needs_transactional_id(bucket: MemoryStore, clock: ManualClock) -> None:
    """TPC-02."""
    with pytest.raises(InvalidConfigError, match="two_phase_commit needs a transactional_id"):
        process(bucket, clock).producer(two_phase_commit=True)


@pytest.mark.parametrize("what", ["records", "offsets"])
@pytest.mark.parametrize("home", range(3))
def test_long_transaction_over_chains_continues_after_days(clock: ManualClock, home: int, what: str) -> None:
    """ADD-07, TPC-02: an answer of the coordinator expires after 12 hours, and its chain may be idle for longer."""
    store = process(MemoryStore(clock=clock), clock, chains=3)
    store.create_topic("t", partitions=PARTITIONS)
    producer = store.producer(ids_of(store, home), two_phase_commit=True)
    [away, *_] = partitions_of(store, (home + 1) % 3)
    producer.begin_transaction()
    for number in range(3):
        if what == "records":
            producer.send("t", b"value", partition=away)
        else:
            producer.send_offsets({T0: number}, groups_of(store, (home + 1) % 3))
        producer.flush()
        clock.advance(30 * 3_600_000)
    producer.send("t", b"last", partition=away)
    producer.commit_transaction()
    assert value_counts(store) == ({b"last": 1, b"value": 3} if what == "records" else {b"last": 1})
    assert clean(store)
