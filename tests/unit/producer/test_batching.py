"""Batches that fill up, and the futures of those who wait for their offsets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.commands import Appended
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.errors import StorageError, TransactionAbortedError
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.futures import RecordFuture, RecordMetadata, TableFuture, TablePart
from txnstore.producer.linger import Waiter
from txnstore.producer.sender import Sender
from txnstore.producer.transaction import Transaction
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.threads import ForkLock

TP = TopicPartition("t", 1)


class Waiting(Sender):
    """A sender whose flush does ``demand``: immediately, or when a wait with a limit asks."""

    def __init__(self, demand: Callable[[], Exception | None] | None = None) -> None:
        self._demand = demand
        self._lock = ForkLock()
        self._set_txn(Transaction(ProducerIdentity(1, 0)))

    def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
        return self._demand() if self._demand is not None else None

    def _flush_in_background(self, waiter: Waiter) -> None:
        if self._demand is not None:
            waiter.put(self._demand())


def batch(tp: TopicPartition = TP) -> ProducerBatch:
    return ProducerBatch(tp, topic_writer(CatalogTopic("t", "id", 3)))


def wait(pending: ProducerBatch, timeout: float | None = None) -> Appended:
    return Waiting().wait(pending, timeout)


def record(pending: ProducerBatch, row: int = 0, timestamp: int | None = None) -> RecordFuture:
    return RecordFuture(Waiting(), pending, row, timestamp)


def settle(batches: Sequence[ProducerBatch], outcome: Appended | Exception) -> None:
    """As the sender does: callbacks come last, so each finds all batches settled."""
    for one in batches:
        one.settle(outcome)
    for one in batches:
        one.call_back()


def landed(base: int, count: int = 1, tp: TopicPartition = TP) -> Appended:
    return Appended(tp, base, base + count, 5_000)


def table(values: list[bytes]) -> pa.Table:
    rows = [{"key": None, "value": value, "headers": None, "timestamp": None} for value in values]
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


# Filling --------------------------------------------------------------------------------------------------------------


def test_records_and_tables_come_out_in_the_order_in_which_they_came_in() -> None:
    pending = batch()
    assert pending.add_record((b"k", b"0", None, 7), 2) == 0
    assert pending.add_record((None, b"1", [("h", b"v")], 8), 2) == 1
    assert pending.add_table(table([b"2", b"3"])) == 2
    assert pending.add_record((None, b"4", None, None), 1) == 4
    pending.count_rows()
    rows = pending.table(9)
    assert rows.schema == RECORD_SCHEMA
    assert rows["value"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [7, 8, None, None, 9]
    assert rows["headers"].to_pylist()[1] == [{"key": "h", "value": b"v"}]
    assert pending.rows == 5


def test_the_size_counts_every_record_and_grows() -> None:
    pending = batch()
    sizes = []
    for number in range(4):
        pending.add_record((None, b"x" * 100, None, None), 100)
        sizes.append(pending.bytes)
        assert pending.bytes >= 100 * (number + 1)
    assert sizes == sorted(set(sizes))


def test_taking_rows_releases_them() -> None:
    pending = batch()
    pending.add_record((None, b"x", None, None), 1)
    pending.count_rows()
    assert pending.table(1).num_rows == 1
    assert pending.table(1).num_rows == 1  # An upload that failed is tried again.
    pending.release()
    assert (pending._pieces, pending._table, pending.rows) == ([], None, 1)


# Settling -------------------------------------------------------------------------------------------------------------


def test_the_first_outcome_stays() -> None:
    pending = batch()
    pending.settle(landed(4))
    pending.settle(StorageError("too late"))
    pending.settle(landed(9))
    assert wait(pending) == landed(4)


def test_wait_flushes_producer_and_returns_outcome() -> None:
    pending = batch()
    assert not pending.settled

    def demand() -> None:
        pending.settle(landed(3))

    assert Waiting(demand).wait(pending, None).base_offset == 3


@pytest.mark.parametrize("timeout", [None, 240])
def test_wait_raises_error_of_flush(timeout: float | None) -> None:
    pending = batch()
    with pytest.raises(StorageError, match="away"):
        Waiting(lambda: StorageError("away")).wait(pending, timeout)
    assert not pending.settled


def test_settled_batch_ignores_error_of_flush() -> None:
    def demand() -> StorageError:
        pending.settle(landed(1))
        return StorageError("another batch failed")

    pending = batch()
    assert Waiting(demand).wait(pending, None).base_offset == 1


def test_a_wait_ends_with_its_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"t-1 within 0\.01 s"):
        wait(batch(), 0.01)


def test_many_threads_wait_for_one_batch() -> None:
    demands = threading.Semaphore(0)

    class Slow(Waiting):
        def _flush_in_background(self, waiter: Waiter) -> None:
            demands.release()

    pending = batch()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(Slow().wait, pending, 30) for _ in range(8)]
        for _ in range(8):
            assert demands.acquire(timeout=240)
        pending.settle(landed(2))
        assert {future.result().base_offset for future in waiting} == {2}


def test_a_batch_that_settles_when_the_wait_begins_wakes_its_waiter() -> None:
    """It may settle between the last look at it and the wait: the waiter is registered by then."""
    pending = batch()

    class Settles(Waiting):
        def _flush_in_background(self, waiter: Waiter) -> None:
            assert pending.waiters == [waiter]
            pending.settle(landed(2))
            assert waiter.get(timeout=0) is None
            waiter.put(None)

    assert Settles().wait(pending, 30).base_offset == 2


# Callbacks ------------------------------------------------------------------------------------------------------------


def test_a_callback_finds_every_batch_of_its_entry_settled() -> None:
    """So it can ask for the result of another record without waiting for itself."""
    first, second = batch(), batch()
    settled: list[bool] = []
    record(first).add_done_callback(lambda _: settled.append(second.settled))
    settle([first, second], landed(0))
    assert settled == [True]
    third, fourth = batch(), batch()
    record(third).add_done_callback(lambda _: settled.append(fourth.settled))
    settle([third, fourth], StorageError("away"))
    assert settled == [True, True]


def test_callbacks_are_called_once_in_their_order() -> None:
    pending, calls = batch(), list[tuple[int, bool]]()
    future = record(pending)

    def note(number: int) -> Callable[[object], object]:
        return lambda done: calls.append((number, done is future))

    for number in range(3):
        future.add_done_callback(note(number))
    settle([pending], landed(0))
    settle([pending], StorageError("late"))
    assert calls == [(0, True), (1, True), (2, True)]


def test_late_callback_is_called_immediately() -> None:
    pending, calls = batch(), list[object]()
    settle([pending], landed(6))
    record(pending).add_done_callback(lambda done: calls.append(done.result().offset))
    assert calls == [6]


def test_exception_of_callback_is_logged_and_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """API-10."""
    pending, calls = batch(), list[object]()

    def broken(done: object) -> None:
        raise ValueError("in the callback")

    future = record(pending)
    future.add_done_callback(broken)
    future.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR):
        settle([pending], landed(0))
    assert calls == [future]
    assert "a done callback failed" in caplog.text


# Futures --------------------------------------------------------------------------------------------------------------


def test_a_record_gets_the_offset_of_its_row() -> None:
    pending = batch()
    futures = [record(pending, row, timestamp) for row, timestamp in enumerate((None, 77))]
    assert [future.done() for future in futures] == [False, False]
    pending.settle(landed(40, 2))
    assert [future.done() for future in futures] == [True, True]
    assert futures[0].result() == RecordMetadata("t", 1, 40, 5_000)
    assert futures[1].result() == RecordMetadata("t", 1, 41, 77)


def test_record_of_unknown_offset_has_offset_minus_1() -> None:
    """-1, as in Kafka (SEQ-17)."""
    pending = batch()
    pending.settle(Appended(TP, -1, -1, 5_000, duplicate=True))
    assert record(pending, 3).result().offset == -1


def test_failed_future_raises_and_returns_its_error() -> None:
    pending = batch()
    future = record(pending)
    pending.settle(TransactionAbortedError("aborted"))
    assert future.done()
    with pytest.raises(TransactionAbortedError, match="aborted"):
        future.result()
    assert isinstance(future.exception(), TransactionAbortedError)


def test_a_future_behaves_like_one_of_the_standard_library() -> None:
    pending = batch()
    future = record(pending)
    assert (future.running(), future.cancelled(), future.cancel(), future.done()) == (True, False, False, False)
    with pytest.raises(TimeoutError):
        future.exception(0.01)
    pending.settle(landed(0))
    assert (future.running(), future.done(), future.exception()) == (False, True, None)


def part(pending: ProducerBatch, first: int, *rows: int) -> TablePart:
    """Rows of a sent table that went into one batch, from its row ``first`` on."""

    def places(count: int) -> npt.NDArray[np.int64]:
        assert count == len(rows)
        return np.array(rows, np.int64)

    return TablePart(pending, first, len(rows), places)


def test_a_table_gets_its_metadata_in_the_order_of_its_rows() -> None:
    other = TopicPartition("t", 2)
    one, two, three = batch(), batch(other), batch()
    future = TableFuture(Waiting(), [part(one, 5, 0, 3), part(two, 0, 1, 2), part(three, 0, 4)])
    one.settle(landed(10, 7))
    two.settle(landed(90, 2, other))
    assert not future.done()
    three.settle(landed(20))
    assert future.done()
    places = [(metadata.partition, metadata.offset) for metadata in future.result()]
    assert places == [(1, 15), (2, 90), (2, 91), (1, 16), (1, 20)]


def test_rows_of_unknown_offsets_have_offset_minus_1() -> None:
    """As a record: the batch is in the log, but a repeated append no longer finds where."""
    one, two = batch(), batch()
    future = TableFuture(Waiting(), [part(one, 3, 0, 1), part(two, 0, 2)])
    one.settle(landed(-1, 5))
    two.settle(landed(0))
    assert [metadata.offset for metadata in future.result()] == [-1, -1, 0]


def test_a_table_is_done_when_all_of_its_batches_are_and_calls_back_once() -> None:
    one, two = batch(), batch()
    future, calls = TableFuture(Waiting(), [part(one, 0, 0), part(two, 0, 1), part(one, 1, 2)]), list[object]()
    future.add_done_callback(calls.append)
    settle([one], landed(0))
    assert calls == []
    settle([two], landed(1))
    assert calls == [future]


def test_a_table_of_which_one_batch_failed_raises_its_error() -> None:
    one, two = batch(), batch()
    future = TableFuture(Waiting(), [part(one, 0, 0), part(two, 0, 1)])
    one.settle(landed(0))
    two.settle(StorageError("away"))
    assert future.done()
    with pytest.raises(StorageError, match="away"):
        future.result()


def test_a_table_without_rows_is_done() -> None:
    future, calls = TableFuture(Waiting(), []), list[object]()
    future.add_done_callback(calls.append)
    assert future.done()
    assert future.result() == []
    assert calls == [future]
