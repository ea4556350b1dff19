"""Several processes on one store: what each promise means when they meet, sleep, die or come too late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.shell import (
    GatedStore,
    another_process,
    backend,
    entries,
    in_threads,
    new_store,
    runtime,
    sound,
    values,
)
from txnstore.core.log.events import MarkerWritten
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
)
from txnstore.producer import Producer
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, on
from txnstore.testing.faults import crash_at


def begun(store: Store, name: str, value: bytes, partition: int = 0) -> Producer:
    """A producer with an open transaction that has a record in the log."""
    producer = store.producer(name)
    producer.begin_transaction()
    producer.send("t", value, partition=partition)
    producer.flush()
    return producer


def test_coord_03_state_of_id_is_stored_before_answer() -> None:
    """COORD-03: after each call a process that shares nothing finds the whole record."""
    store = new_store()
    tp = TopicPartition("t", 0)

    def record() -> tuple[TxnState, int, frozenset[TopicPartition], frozenset[str], bool]:
        txn = connection_of(another_process(store)).view().transactions["id"]
        assert txn == connection_of(store).view().transactions["id"]
        assert (txn.producer_id, txn.timeout_ms) == (producer.producer_id, 7_000)
        return txn.state, txn.epoch, txn.partitions, txn.groups, txn.started_at is not None

    producer = store.producer("id", transaction_timeout=7.0)
    assert record() == (TxnState.EMPTY, 0, frozenset(), frozenset(), False)
    producer.begin_transaction()
    producer.send("t", b"a", partition=0)
    producer.flush()
    assert record() == (TxnState.ONGOING, 0, frozenset({tp}), frozenset(), True)
    producer.send_offsets({tp: 1}, "group")
    producer.flush()
    assert record() == (TxnState.ONGOING, 0, frozenset({tp}), frozenset({"group"}), True)
    producer.commit_transaction()
    assert record() == (TxnState.COMPLETE_COMMIT, 1, frozenset(), frozenset(), False)
    producer.begin_transaction()
    producer.send("t", b"b", partition=0)
    producer.flush()
    producer.abort_transaction()
    assert record() == (TxnState.COMPLETE_ABORT, 2, frozenset(), frozenset(), False)


def test_coord_04_commit_delayed_past_newer_init_changes_nothing() -> None:
    """COORD-04, STM-04, OBJ-09: after the conflict all checks run again on the new state."""
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    old = begun(store, "id", b"old")
    gate = gated.hold("put_if_absent", times=1)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(old.commit_transaction)
        gate.wait_for()
        with another_process(store, gated.inner) as other:
            with other.producer("id") as new, new.transaction() as txn:
                txn.send("t", b"new", partition=0)
            begun(other, "id", b"open")
            before = entries(gated.inner)
        gate.open()
        with pytest.raises(ProducerFencedError):
            committing.result(240)
    assert entries(gated.inner) == before
    assert values(store) == [b"new"]
    sound(store)


def test_stm_04_concurrent_inits_are_serialized() -> None:
    """STM-04, INIT-14, TST-09: exactly the acknowledged commits have happened; no epoch is granted twice."""
    store = new_store()

    def work(number: int) -> tuple[int, bytes]:
        with another_process(store) as mine:
            producer = mine.producer("id")
            epoch = producer.epoch
            producer.begin_transaction()
            producer.send("t", b"%d" % number, partition=number % 3)
            producer.commit_transaction()
            return epoch, b"%d" % number

    answers = in_threads(8, work)
    done = [answer for answer in answers if isinstance(answer, tuple)]
    assert done
    assert all(isinstance(answer, tuple | ProducerFencedError) for answer in answers)
    assert len({epoch for epoch, _ in done}) == len(done)
    assert sorted(values(store)) == sorted(value for _, value in done)
    sound(store)


def test_api_16_partial_transaction_is_never_committed() -> None:
    """API-16, BUG-11, END-10: 50 of 100 records are in the log when an upload fails; no new epoch hides the loss."""
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    for number in range(50):
        producer.send("t", b"%d" % number, partition=0)
    producer.flush()
    epoch = producer.epoch
    for number in range(50, 100):
        producer.send("t", b"%d" % number, partition=0)
    with bench.away("topics/"), pytest.raises(StorageRefusedError):
        producer.flush()
    for call in (lambda: producer.send("t", b"more", partition=0), producer.commit_transaction):
        with pytest.raises(InvalidTxnStateError, match="abort it"):
            call()
    assert producer.epoch == epoch
    producer.abort_transaction()
    assert values(bench.store) == []
    with producer.transaction() as txn:
        txn.send("t", b"again", partition=0)
    assert values(bench.store) == [b"again"]


def test_fen_04_zombie_is_fenced_after_any_pause() -> None:
    """FEN-04, FEN-05: no clock and no lease decides; its successor may be closed meanwhile."""
    clock = ManualClock()
    store = new_store(clock=clock)
    zombie = begun(store, "id", b"zombie")
    with another_process(store) as other, other.producer("id") as new, new.transaction() as txn:
        txn.send("t", b"new", partition=1)
    clock.advance(3 * 86_400_000)
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    assert values(store) == [b"new"]


def test_tmo_02_expired_transaction_is_fenced_and_aborted() -> None:
    """TMO-02, BUG-08, TST-02 ``testFencingOnTransactionExpiration``; CFG-03: without a sleep."""
    clock = ManualClock()
    store = new_store(clock=clock)
    producer = begun(store, "id", b"late")
    epoch = producer.epoch
    clock.advance(60_000)
    assert store.recover().aborted == ()
    clock.advance(1_000)
    assert store.recover().aborted == ("id",)
    state = sound(store)
    assert state.transactions["id"].epoch > epoch
    offsets = store.offsets("t", 0)
    assert offsets.last_stable == offsets.high_watermark
    producer.send("t", b"later", partition=0)
    with pytest.raises(InvalidProducerEpochError):
        producer.flush()
    assert values(store, isolation="read_uncommitted") == [b"late"]
    assert values(store) == []


@pytest.mark.parametrize("first", ["commit", "sweep"])
def test_tmo_04_either_commit_or_timeout_wins(first: str) -> None:
    """TMO-04: one stands in front of its entry while the other one goes through."""
    clock = ManualClock()
    gated = GatedStore(MemoryStore(clock=clock))
    store = new_store(gated, clock=clock)
    producer = begun(store, "id", b"x")
    sweeper = another_process(store, gated.inner)
    clock.advance(61_000)
    if first == "commit":
        producer.commit_transaction()
        assert sweeper.recover().aborted == ()
        assert values(store) == [b"x"]
        return
    gate = gated.hold("put_if_absent", times=1)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(producer.commit_transaction)
        gate.wait_for()
        with new_view(gated.inner, clock) as other:
            assert other.recover().aborted == ("id",)
        gate.open()
        with pytest.raises(InvalidProducerEpochError):
            committing.result(240)
    assert values(store) == []


def new_view(objects: ObjectStore, clock: ManualClock) -> Store:
    """A process that has the same clock."""
    return open_on(CountingStore(objects, log=True), runtime=runtime(clock))


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("what", ["compact", "recover", "verify"])
def test_rec_04_transaction_survives_crash_of_other_process(what: str, n: int) -> None:
    """REC-04: a compactor, a recoverer or a reader that dies at its n-th request takes nothing with it."""
    store = new_store()
    producer = begun(store, "id", b"a")
    faults = FaultStore(backend(store))
    other = another_process(store, faults)
    faults.plan = crash_at(len(faults.requests) + n)
    try:
        getattr(other, what)()
    except SimulatedCrash:
        assert faults.crashed
    producer.send("t", b"b", partition=0)
    producer.commit_transaction()
    assert values(store) == [b"a", b"b"]
    sound(store)


def test_err_04_transient_storage_errors_are_retried() -> None:
    """ERR-04, COORD-05: refusals for now are repeated; one that lasts is raised as it is, and a later call works."""
    bench = Bench()
    producer = begun(bench.store, "id", b"a")
    with bench.plan(on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="entries", times=3)):
        producer.commit_transaction()
    assert values(bench.store) == [b"a"]
    producer.begin_transaction()
    producer.send("t", b"b", partition=0)
    lasting = on(Fault.UNAVAILABLE_503, key_contains="entries", times=None)
    with bench.plan(lasting), pytest.raises(StorageError) as raised:
        producer.commit_transaction()
    assert raised.value.retriable
    producer.commit_transaction()
    assert values(bench.store) == [b"a", b"b"]


def test_obj_07_no_object_is_ever_written_twice() -> None:
    """OBJ-07: but for the hint to the newest checkpoint, every byte stays what it was; names are used once."""
    store = new_store()
    objects = backend(store)

    def content() -> dict[str, bytes]:
        return {
            item.key: objects.get(item.key) for item in objects.list("") if not item.key.startswith("chains/latest/")
        }

    for step in range(3):
        before = content()
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"%d" % step, partition=0)
        store.compact()
        store.checkpoint()
        after = content()
        assert {key: after[key] for key in before} == before
    key = next(key for key in content() if key.endswith("1.json"))
    assert not objects.put_if_absent(key, b"other")
    assert content()[key] != b"other"


def test_ctl_01_a_marker_tells_outcome_producer_and_epoch() -> None:
    """CTL-01: as it is in the bucket; its epoch is the one after that of its transaction."""
    store = new_store()
    producer = begun(store, "id", b"a")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("t", b"b", partition=0)
    producer.flush()
    producer.abort_transaction()
    markers = [event for entry in entries(backend(store)) for event in entry.events if isinstance(event, MarkerWritten)]
    fields = [(event.outcome, event.producer_id, event.epoch, event.offset) for event in markers]
    assert fields == [(Outcome.COMMIT, producer.producer_id, 1, 1), (Outcome.ABORT, producer.producer_id, 2, 3)]


def test_ctl_04_a_key_like_a_markers_is_a_key() -> None:
    """CTL-04: Kafka's marker keys are (0, 0) and (0, 1) as 16-bit numbers; records may have them."""
    store = new_store()
    keys = [b"\0\0\0\0", b"\0\0\0\1"]
    for _ in range(2):
        with store.producer("id") as producer, producer.transaction() as txn:
            for key in keys:
                txn.send("t", b"value", key=key, partition=0)
    store.compact()
    table = another_process(store).scan("t").to_table()
    assert table["key"].to_pylist() == keys * 2
    assert table["_offset"].to_pylist() == [0, 1, 3, 4]


def test_tst_03_many_markers() -> None:
    """TST-03 ``testMultipleMarkersOneLeader``, END-05: 20 partitions, 10,000 records aborted, then 1,000 committed."""
    store = new_store(partitions=10)
    store.create_topic("u", partitions=10)
    producer = store.producer("id")
    for count, end in ((10_000, producer.abort_transaction), (1_000, producer.commit_transaction)):
        producer.begin_transaction()
        for number in range(20):
            rows = [{"value": b"%d" % row} for row in range(count // 20)]
            producer.send_table("tu"[number % 2], rows, partition=number // 2)
        producer.flush()
        end()
    counts = {
        isolation: sum(store.scan(name, isolation).to_table().num_rows for name in "tu")
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert counts == {"read_committed": 1_000, "read_uncommitted": 11_000}
    sound(store)
