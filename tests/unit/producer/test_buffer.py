"""A producer's buffer: bounded, uploads included, and what lingers is written without a flush."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from tests.helpers.producers import has_more, held, linger_loop, set_retry_pause, watch_tables
from tests.helpers.producing import Bench
from tests.helpers.shell import T0, GatedStore, new_store, sound, values
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    ReentrantCallError,
    SchemaMismatchError,
    StorageRefusedError,
    TransactionAbortedError,
)
from txnstore.producer.batches import RECORD_OVERHEAD, ProducerBatch
from txnstore.producer.buffer import Buffer
from txnstore.producer.futures import RecordFuture
from txnstore.producer.sender import Sender
from txnstore.storage.memory import MemoryStore

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")

RECORD = b"x" * 100
BATCH, BUFFER = 500, 2_000


@pytest.fixture
def gated() -> GatedStore:
    return GatedStore(MemoryStore())


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "idempotent"])
def test_the_buffer_never_exceeds_its_bound_by_more_than_one_record(*, transactional: bool) -> None:
    bench = Bench()
    producer = bench.store.producer(
        "id" if transactional else None, batch_bytes=BATCH, buffer_bytes=BUFFER, linger=None
    )
    if transactional:
        producer.begin_transaction()
    most = 0
    for number in range(300):
        producer.send("t", RECORD, partition=number % 3)
        most = max(most, held(producer))
    assert BATCH < most <= BUFFER + len(RECORD) + 64
    if transactional:
        producer.commit_transaction()
    producer.close()
    assert len(values(bench.store)) == 300


def test_a_full_buffer_blocks_the_sender_until_an_upload_has_ended(gated: GatedStore) -> None:
    """No upload ends, so the sender stands still with a full buffer; it continues as soon as they end."""
    store = new_store(gated)
    producer = store.producer(batch_bytes=BATCH, buffer_bytes=BUFFER, linger=None)
    gate = gated.hold("put", "topics/")
    sent = threading.Semaphore(0)

    def send() -> list[RecordFuture]:
        futures = []
        for number in range(60):
            futures.append(producer.send("t", RECORD, partition=number % 2))
            sent.release()
        return futures

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        gate.wait_for(3)
        # All that fits has been sent; the next send is held, and so is everything after it.
        fits = -(-BUFFER // (len(RECORD) + RECORD_OVERHEAD))
        for _ in range(fits):
            assert sent.acquire(timeout=240)
        assert held(producer) == fits * (len(RECORD) + RECORD_OVERHEAD)
        assert not sending.done()
        gate.open()
        futures = sending.result(240)
    producer.close()
    assert sorted(future.result().offset for future in futures[::2]) == list(range(30))


def test_a_table_that_is_larger_than_the_buffer_goes_through_in_pieces() -> None:
    bench = Bench()
    rows = 2_000
    table = pa.table({"key": [b"%d" % number for number in range(rows)], "value": [RECORD] * rows})
    producer = bench.store.producer("id", batch_bytes=4_000, buffer_bytes=20_000)
    producer.begin_transaction()
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, held(producer))

    watch_tables(producer, watch)
    future = producer.send_table("t", table)
    producer.commit_transaction()
    assert most <= 1.6 * 20_000
    assert len(future.result()) == rows
    assert len(values(bench.store)) == rows


def test_a_stream_is_taken_batch_by_batch(gated: GatedStore) -> None:
    """A reader that is larger than memory: no batch is asked for before there is room for it."""
    store = new_store(gated)
    schema = pa.schema([("value", pa.binary())])
    ahead = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal ahead
        for _ in range(50):
            ahead = max(ahead, held(producer))
            yield pa.record_batch([pa.array([RECORD] * 10)], schema=schema)

    with store.producer(batch_bytes=2_000, buffer_bytes=6_000, linger=None) as producer:
        metadata = producer.send_table("t", pa.RecordBatchReader.from_batches(schema, batches())).result()
    assert len(metadata) == 500
    assert ahead <= 6_000 + 2_000


def test_a_batch_is_uploaded_when_it_is_full(gated: GatedStore) -> None:
    """Before any flush; the rest of the batch is separate."""
    store = new_store(gated)
    gate = gated.hold("put", "topics/")
    producer = store.producer(batch_bytes=BATCH, linger=None)
    for _ in range(5):
        producer.send("t", RECORD, partition=0)
    gate.wait_for()
    gate.open()
    producer.close()
    assert len(values(store)) == 5


def test_one_record_larger_than_the_buffer_passes() -> None:
    bench = Bench()
    with bench.store.producer(batch_bytes=10, buffer_bytes=10, linger=None) as producer:
        futures = [producer.send("t", b"y" * 5_000, partition=0) for _ in range(3)]
        assert [future.result().offset for future in futures] == [0, 1, 2]


def test_error_while_send_waits_for_buffer_space_leaves_no_partial_record() -> None:
    """API-09: the send that waited raises, its record was never taken in, and the transaction has to be aborted."""
    bench = Bench()
    producer = bench.store.producer("id", batch_bytes=BATCH, buffer_bytes=BUFFER)
    producer.begin_transaction()
    futures = []
    with bench.away("topics/"), pytest.raises(StorageRefusedError):  # noqa: PT012 - one of the sends raises
        for _ in range(100):
            futures.append(producer.send("t", RECORD, partition=0))  # noqa: PERF401 - the loop ends with the error
    assert 0 < len(futures) < 100
    assert all(isinstance(future.exception(), StorageRefusedError) for future in futures)
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.send("t", RECORD)
    producer.abort_transaction()
    assert values(bench.store) == []


def test_send_that_waits_for_buffer_space_raises_when_fenced() -> None:
    bench = Bench()
    producer = bench.store.producer("id", batch_bytes=BATCH, buffer_bytes=BUFFER)
    producer.begin_transaction()
    bench.store.producer("id")
    with pytest.raises(ProducerFencedError):  # noqa: PT012 - one of the sends raises
        for _ in range(100):
            producer.send("t", RECORD, partition=0)
    assert held(producer) == 0


# Linger ---------------------------------------------------------------------------------------------------------------


def test_lingering_record_is_written_without_flush() -> None:
    bench = Bench()
    done = threading.Event()
    with bench.store.producer(linger=0.001) as producer:
        future = producer.send("t", b"x", partition=0)
        future.add_done_callback(lambda _: done.set())
        assert done.wait(240)
        assert future.result().offset == 0
        assert values(bench.store) == [b"x"]


def test_records_that_came_together_are_one_batch() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=3_600)
    for number in range(10):
        producer.send("t", b"%d" % number, partition=0)
    assert values(bench.store) == []
    producer.close()
    assert len(values(bench.store)) == 10
    assert len(sound(bench.store).partitions[T0].batches) == 1


def test_transaction_has_no_linger_by_default() -> None:
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"x")
    assert not linger_loop(producer).running()
    producer.abort_transaction()
    done = threading.Event()
    with bench.store.producer("id", linger=0.001) as producer:
        producer.begin_transaction()
        producer.send("t", b"early", partition=0).add_done_callback(lambda _: done.set())
        assert done.wait(240)
        assert values(bench.store, isolation="read_uncommitted") == [b"early"]
        producer.abort_transaction()
    assert values(bench.store) == []


def test_lingering_record_is_written_after_storage_outage() -> None:
    """Without another send."""
    bench = Bench()
    producer = bench.store.producer(linger=0.001)
    set_retry_pause(producer, 0.001)
    tried, done = threading.Semaphore(0), threading.Event()
    real = bench.inner.put_if_absent

    def away(key: str, data: bytes) -> bool:
        tried.release()
        raise StorageRefusedError("away")

    bench.inner.put_if_absent = away  # type: ignore[method-assign]
    future = producer.send("t", b"x", partition=0)
    future.add_done_callback(lambda _: done.set())
    for _ in range(3):
        assert tried.acquire(timeout=240)
    assert not done.is_set()
    bench.inner.put_if_absent = real  # type: ignore[method-assign]
    assert done.wait(240)
    producer.close()
    assert values(bench.store) == [b"x"]


def test_waiting_for_result_ends_linger() -> None:
    bench = Bench()
    with bench.store.producer(linger=3_600) as producer:
        assert producer.send("t", b"x", partition=0).result(240).offset == 0


def test_close_flushes_lingering_records_and_ends_thread() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=3_600)
    future = producer.send("t", b"x", partition=0)
    producer.close()
    assert future.result().offset == 0
    assert linger_loop(producer).done()


def test_close_of_transactional_producer_aborts_open_transaction() -> None:
    """API-11: the LSO equals the high watermark immediately."""
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"written", partition=0)
    producer.flush()
    waiting = producer.send("t", b"waiting", partition=0)
    producer.close()
    assert isinstance(waiting.exception(), TransactionAbortedError)
    offsets = bench.store.offsets("t", 0)
    assert offsets.last_stable == offsets.high_watermark == 2


def test_batch_abandoned_during_flush_of_another_thread_leaves_buffer(gated: GatedStore) -> None:
    """The refused record abandons a batch whose upload has not begun; the flush then finds it settled."""
    store = new_store(gated)
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", RECORD, partition=0)
    gate = gated.hold("put", "topics/")
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(producer.flush)
        gate.wait_for(1)
        producer.send("t", RECORD, partition=1)
        with pytest.raises(SchemaMismatchError):
            producer.send("t", "text")  # type: ignore[arg-type]
        gate.open()
        assert isinstance(flushing.exception(timeout=240), InvalidTxnStateError)
    producer.abort_transaction()
    assert held(producer) == 0


def test_records_wait_for_a_flush_in_open_batches_too() -> None:
    """The exit of the interpreter flushes until none is left."""
    producer = Bench().store.producer(linger=None)
    waiting = [has_more(producer)]
    producer.send("t", b"x")
    waiting.append(has_more(producer))
    producer.flush()
    waiting.append(has_more(producer))
    assert waiting == [False, True, False]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_whose_seal_was_interrupted_takes_no_records(*, transactional: bool) -> None:
    """Its rows are counted: one more would shift the sequence of the next batch, which the chain would refuse."""

    def attempt(interrupter: Interrupter) -> bool:
        store = new_store(partitions=1)
        producer = store.producer("id" if transactional else None, linger=None)
        if transactional:
            producer.begin_transaction()
        producer.send("t", b"a", partition=0)
        interrupted = interrupter.run(producer.flush)
        producer.send("t", b"b", partition=0)
        Interrupter(places(Buffer.seal), 6).run(producer.flush)  # So two batches are in one command.
        producer.send("t", b"c", partition=0)
        (producer.commit_transaction if transactional else producer.flush)()
        assert values(store) == [b"a", b"b", b"c"]
        return interrupted

    assert len(list(everywhere(places(Buffer.seal), attempt))) > 5


@pytest.mark.slow
def test_an_interrupted_send_leaves_nothing_that_a_flush_cannot_write() -> None:
    """Its batch may have been opened without a row."""
    lengths = set[int]()

    def attempt(interrupter: Interrupter) -> bool:
        store = new_store(partitions=2)
        producer = store.producer(linger=None)
        producer.send("t", b"a", partition=0)
        interrupted = interrupter.run(lambda: producer.send("t", b"b", partition=1))
        producer.flush()
        assert not has_more(producer)
        assert held(producer) == 0
        assert values(store) in ([b"a"], [b"a", b"b"])
        lengths.add(len(values(store)))
        return interrupted

    assert list(
        everywhere(places(Sender.send, Sender._open_batch, Buffer.open_batch, ProducerBatch.add_record), attempt)
    )
    assert lengths == {1, 2}


def test_a_close_by_a_signal_handler_during_a_flush_does_not_wait_for_the_thread() -> None:
    """The thread may wait for that flush, which waits for the handler: the close is refused before it."""
    refused = list[Exception]()

    class Interrupted(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            if sent:
                try:
                    producer.close()
                except ReentrantCallError as error:
                    refused.append(error)
                assert not linger_loop(producer).done()
            return super().put_if_absent(key, data)

    sent = False
    producer = new_store(Interrupted()).producer(linger=60)
    producer.send("t", b"a")
    sent = True
    producer.flush()
    sent = False
    assert len(refused) == 1
    producer.close()
