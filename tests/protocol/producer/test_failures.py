"""What a producer does when records fail: in the background, in time limits, in transactions, by interrupts."""

from __future__ import annotations

import datetime as dt
import gc
import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.producers import linger_loop, sender_of
from tests.helpers.producing import Bench
from tests.helpers.shell import GatedStore, new_store, runtime, values
from txnstore import threads
from txnstore.errors import (
    InvalidConfigError,
    InvalidTxnStateError,
    RecordTooLargeError,
    SchemaMismatchError,
    StorageError,
    StorageRefusedError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer, linger
from txnstore.producer.futures import RecordFuture
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import Fault, on
from txnstore.testing.faults import FaultStore

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")

# In the background ----------------------------------------------------------------------------------------------------


def test_an_upload_that_fails_for_a_while_is_tried_again() -> None:
    """Until ``delivery_timeout`` (Kafka: 120 s): no record is lost because the storage failed for a moment."""
    bench = Bench()
    with bench.store.producer(linger=None) as producer:
        future = producer.send("t", b"a", partition=0)
        with bench.plan(on(Fault.ERROR_BEFORE, "put", key_contains="topics/", times=5)):
            producer.flush()
        assert future.result().offset == 0
    assert values(bench.store) == [b"a"]


def test_pauses_between_uploads_are_short_at_first() -> None:
    pauses: list[float] = []
    faults = FaultStore(MemoryStore())
    store = create_on(faults, runtime=replace(runtime(), sleep=pauses.append))
    store.create_topic("t")
    with store.producer(linger=None) as producer:
        producer.send("t", b"a")
        faults.plan = on(Fault.ERROR_BEFORE, "put", key_contains="topics/", times=12)
        producer.flush()
    bounds = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2, 2, 2, 2, 2]
    assert all(pause <= bound for pause, bound in zip(pauses, bounds, strict=True))


def test_an_upload_is_given_up_after_the_delivery_timeout() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=None, delivery_timeout=0.5)
    future = producer.send("t", b"a", partition=0)
    away = on(Fault.ERROR_BEFORE, "put", key_contains="topics/", times=None)
    with bench.plan(away), pytest.raises(StorageError, match=r"t-0 could not be uploaded within 0\.5 s"):
        producer.flush()
    assert isinstance(future.exception(), StorageError)
    producer.close()


def failed_in_the_background(bench: Bench) -> tuple[Producer, RecordFuture]:
    """The storage refuses the segment that the linger thread uploads; the test does not read the future."""
    producer = bench.store.producer(linger=0.001)
    done = threading.Event()
    with bench.away("topics/"):
        future = producer.send("t", b"a", partition=0)
        future.add_done_callback(lambda _: done.set())
        assert done.wait(240)
    return producer, future


@pytest.mark.parametrize("call", ["send", "flush", "close"])
def test_a_batch_that_failed_in_the_background_is_reported_by_the_next_call(call: str) -> None:
    """Once: then the producer continues."""
    bench = Bench()
    producer, future = failed_in_the_background(bench)
    calls = {"send": lambda: producer.send("t", b"b", partition=0), "flush": producer.flush, "close": producer.close}
    with pytest.raises(StorageRefusedError):
        calls[call]()
    assert isinstance(future.exception(), StorageRefusedError)
    if call != "close":
        producer.send("t", b"c", partition=0)
        producer.flush()
        assert values(bench.store) == [b"c"]
    producer.close()


def test_a_wait_for_one_record_does_not_swallow_the_error_of_another() -> None:
    bench = Bench()
    bench.store.create_topic("gone")
    producer = bench.store.producer(linger=None)
    kept, lost = producer.send("t", b"kept", partition=0), producer.send("gone", b"lost")
    bench.store.delete_topic("gone")
    assert kept.result().offset == 0
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.flush()
    assert isinstance(lost.exception(), UnknownTopicOrPartitionError)
    producer.close()


# Time limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 10**30], ids=str)
def test_a_time_limit_may_be_longer_than_threads_can_wait(timeout: float) -> None:
    with new_store() as store, store.producer(linger=None) as producer:
        assert producer.send("t", b"a", partition=0).result(timeout).offset == 0
        assert producer.send("t", b"b", partition=0).exception(timeout) is None
        with pytest.raises(InvalidConfigError, match="timeout must be a number of seconds, not nan"):
            producer.send("t", b"c", partition=0).result(math.nan)


@pytest.mark.parametrize("by", ["another flush", "the wait itself"])
def test_a_wait_ends_when_its_time_is_up_though_the_storage_hangs(by: str) -> None:
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    producer = store.producer(linger=None)
    future = producer.send("t", b"a", partition=0)
    gate = gated.hold("put_if_absent")
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(producer.flush) if by == "another flush" else None
        if flushing is not None:
            gate.wait_for()
        with pytest.raises(TimeoutError, match=r"t-0 within 0\.01 s"):
            future.result(timeout=0.01)
        with pytest.raises(TimeoutError):
            future.exception(timeout=0)
        assert not future.done()
        gate.open()
        assert future.result(240).offset == 0
        if flushing is not None:
            flushing.result(240)
    producer.close()


def test_future_does_not_raise_an_interrupt_of_another_thread() -> None:
    """It is not an error of the record."""
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    future = producer.send("t", b"a", partition=0)
    real = bench.inner.put

    def interrupted(key: str, data: bytes) -> None:
        bench.inner.put = real  # type: ignore[method-assign]
        raise KeyboardInterrupt

    bench.inner.put = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert not isinstance(future.exception(), KeyboardInterrupt)
    assert future.result().offset == 0  # The upload was begun again.
    producer.commit_transaction()
    assert values(bench.store) == [b"a"]


def test_callbacks_run_under_no_lock() -> None:
    """Another thread may use the producer while a callback waits for it."""
    bench = Bench()
    producer = bench.store.producer(linger=None)
    later: list[int] = []

    def call(_: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            later.append(pool.submit(lambda: producer.send("t", b"b", partition=0).result().offset).result(240))

    producer.send("t", b"a", partition=0).add_done_callback(call)
    producer.flush()
    assert later == [1]
    producer.close()


# Refused records ------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[type[TxnStoreError], dict[str, Any]]] = {
    "too large": (RecordTooLargeError, {"topic": "t", "value": b"x" * 2_000_000}),
    "unknown topic": (UnknownTopicOrPartitionError, {"topic": "nobody", "value": b"x"}),
    "no such partition": (UnknownTopicOrPartitionError, {"topic": "t", "value": b"x", "partition": 99}),
    "no bytes": (SchemaMismatchError, {"topic": "t", "value": "text"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_record_makes_the_transaction_abortable(why: str) -> None:
    """Code that swallows the error must not commit a part: as in Kafka's ``doSend``, it has to be aborted."""
    bench = Bench()
    kind, record = REFUSED[why]
    producer = bench.store.producer("id")
    producer.begin_transaction()
    before = producer.send("t", b"before", partition=0)
    with pytest.raises(kind) as refused:
        producer.send(**record)
    with pytest.raises(InvalidTxnStateError, match="abort it") as raised:
        producer.commit_transaction()
    assert raised.value.__cause__ is refused.value
    assert before.exception() is refused.value
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == [b"next"]


def test_a_refused_record_of_an_idempotent_producer_harms_nothing() -> None:
    bench = Bench()
    with bench.store.producer(linger=None) as producer:
        producer.send("t", b"a", partition=0)
        with pytest.raises(RecordTooLargeError):
            producer.send("t", b"x" * 2_000_000)
        producer.flush()
    assert values(bench.store) == [b"a"]


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("us", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("price", pa.float64()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("flag", pa.bool_()),
        pa.field("amount", pa.decimal128(10, 2)),
    ]
)
NOW = dt.datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=dt.UTC)
WEST = NOW.astimezone(dt.timezone(dt.timedelta(hours=-8)))
ROWS: list[dict[str, Any]] = [
    {"id": 1},
    {"id": 2, "name": "plain", "at": NOW, "us": NOW, "price": 1.5, "raw": b"r", "day": NOW.date(), "flag": True},
    {"id": 3, "name": "ü", "at": WEST, "us": WEST, "local": NOW.replace(tzinfo=None), "price": float("nan")},
    {"id": 4, "price": 7, "amount": Decimal("1.25"), "raw": bytearray(b"x")},
    {"id": 5, "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), "raw": "text"},
    {"id": 6.0, "at": 1_700_000_000_000},
    {"id": 7, "at": NOW.astimezone(dt.timezone(dt.timedelta(hours=2)))},
]
WRONG: list[object] = [
    {"id": 2**31},
    {"id": -(2**31) - 1},
    {"id": None},
    {},
    {"id": 1, "other": 2},
    {"id": True},
    {"id": 1, "name": b"bytes"},
    {"id": 1, "name": "\ud800"},
    {"id": 1, "price": "1.5"},
    {"id": 1, "at": 10**17},
    {"id": 1, "flag": 1},
    [1],
    {"id": 1, "at": NOW.replace(tzinfo=None)},
    {"id": 1, "us": NOW.replace(tzinfo=None)},
]


def test_rows_that_are_sent_one_by_one_are_stored_as_a_table_of_them_is() -> None:
    """Plain values take the fast way, the others that of tables; both mean the same."""
    store = new_store(MemoryStore())
    for name in ("one", "all"):
        store.create_topic(name, schema=SCHEMA, timestamp="at", key="name")
    with store.producer(linger=None) as producer:
        for row in ROWS:
            producer.send("one", row)
        for row in ROWS:  # A table of one row each: together, Arrow would refuse the mixture.
            producer.send_table("all", [row])
    one, everything = (store.scan(name).to_table().drop_columns(["_topic"]) for name in ("one", "all"))
    assert one.num_rows == len(ROWS)
    assert repr(one.to_pylist()) == repr(everything.to_pylist())


@pytest.mark.parametrize("row", WRONG, ids=repr)
def test_a_wrong_row_fails_alone(row: Any) -> None:
    """At its send; the rows of its batch are written."""
    store = new_store(MemoryStore())
    store.create_topic("typed", schema=SCHEMA, timestamp="at")
    with store.producer(linger=None) as producer:
        producer.send("typed", {"id": 1})
        with pytest.raises(SchemaMismatchError):
            producer.send("typed", row)
        producer.send("typed", {"id": 2})
    assert store.scan("typed").to_table()["id"].to_pylist() == [1, 2]


# Threads that end -----------------------------------------------------------------------------------------------------


def test_unreferenced_producer_flushes_lingering_records_and_ends_its_thread() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=0.001)
    loop, done = linger_loop(producer), threading.Event()
    producer.send("t", b"a", partition=0).add_done_callback(lambda _: done.set())
    sender = weakref.ref(sender_of(producer))
    del producer
    assert done.wait(240)
    while not loop.wait(0.01):
        gc.collect()
    assert sender() is None
    assert values(bench.store) == [b"a"]


def test_an_interrupt_while_the_linger_thread_starts_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts with the producer, before a record waits for it; a producer whose start fails is never there."""
    bench = Bench()

    def interrupted(run: Callable[[], object], name: str) -> None:
        threads.start(run, name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(linger, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.store.producer(linger=0.001)
        waiting = bench.store.producer(linger=None)
        future = waiting.send("t", b"a", partition=0)
        with pytest.raises(KeyboardInterrupt):
            future.result(240)
    assert future.result(240).offset == 0
    waiting.close()
    assert values(bench.store) == [b"a"]


def test_times_before_1970_are_stored_alike_by_rows_and_tables() -> None:
    moments = [
        dt.datetime(1960, 1, 1, 0, 0, 0, 123_456, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        dt.datetime(1960, 1, 1, 0, 0, 0, 123_000, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, 0, 0, 0, 999, tzinfo=dt.UTC),
    ]
    schema = pa.schema([pa.field("at", pa.timestamp("ms", tz="UTC"))])
    store = new_store()
    for name in ("rows", "table"):
        store.create_topic(name, schema=schema)
    with store.producer(linger=None) as producer:
        for moment in moments:
            producer.send("rows", {"at": moment})
        producer.send_table("table", pa.table({"at": pa.array(moments, pa.timestamp("us", tz="UTC"))}))
    assert store.scan("rows").to_table()["at"].equals(store.scan("table").to_table()["at"])


def test_waiters_that_give_up_are_forgotten() -> None:
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    producer = store.producer(linger=None)
    gate = gated.hold("put", "topics/")
    future = producer.send("t", b"a", partition=0)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            future.result(timeout=0.001)
    assert future._batch.waiters == []
    gate.open()
    assert future.result(240).offset == 0
    producer.close()


def test_a_pool_without_threads_loses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot start must not refuse a record that is already in the buffer."""
    bench = Bench()
    producer = bench.store.producer(batch_bytes=1, linger=None)

    def refused(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store._connection.pool, "submit", refused)
        futures = [producer.send("t", b"%d" % number, partition=0) for number in range(3)]
        producer.flush()
    assert [future.result().offset for future in futures] == [0, 1, 2]
    producer.close()


def test_linger_thread_survives_callback_that_exits() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=0.001)
    called = threading.Event()

    def leave(_: Any) -> None:
        called.set()
        raise SystemExit

    producer.send("t", b"a", partition=0).add_done_callback(leave)
    assert called.wait(240)
    done = threading.Event()
    producer.send("t", b"b", partition=0).add_done_callback(lambda _: done.set())
    assert done.wait(240)
    producer.close()
    assert values(bench.store) == [b"a", b"b"]


def test_error_that_future_raised_is_not_raised_again() -> None:
    """A loop of ``send(...).result()`` loses no attempt after the one that failed."""
    bench = Bench()
    producer, future = failed_in_the_background(bench)
    with pytest.raises(StorageRefusedError):
        future.result(240)
    assert producer.send("t", b"b", partition=0).result(240).offset == 0
    producer.close()
    assert values(bench.store) == [b"b"]
