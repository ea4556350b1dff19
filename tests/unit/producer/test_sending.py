"""What goes in and where it lands: partitions, order, timestamps, sizes, schemas (API-13, API-14, SEQ-13, SEQ-18)."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producers import running_uploads
from tests.helpers.producing import TYPED, Bench, read
from tests.helpers.shell import (
    T0,
    GatedStore,
    another_process,
    entries,
    in_threads,
    new_store,
    rows,
    runtime,
    sound,
    values,
)
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import (
    InvalidConfigError,
    InvalidTopicError,
    InvalidTxnStateError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer
from txnstore.segment.schema import TIMESTAMP
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")


def clock(bench: Bench) -> ManualClock:
    clock_of_store = connection_of(bench.store).runtime.clock
    assert isinstance(clock_of_store, ManualClock)
    return clock_of_store


# Partitions -----------------------------------------------------------------------------------------------------------


def test_a_key_goes_where_kafka_puts_it(bench: Bench, producer: Producer) -> None:
    keys = [b"%d" % number for number in range(50)]
    futures = [producer.send("t", b"x", key=key) for key in keys]
    assert [future.result().partition for future in futures] == [partition_for_key(key, 3) for key in keys]
    assert {row["key"]: row["_partition"] for row in read(bench)} == {key: partition_for_key(key, 3) for key in keys}


def test_the_rows_of_a_table_go_where_records_of_their_keys_go(bench: Bench, producer: Producer) -> None:
    keys = [b"%d" % number for number in range(50)]
    sent = producer.send_table("t", [{"key": key, "value": b"x"} for key in keys]).result()
    assert [metadata.partition for metadata in sent] == [partition_for_key(key, 3) for key in keys]


def test_a_given_partition_is_stronger_than_the_key(producer: Producer) -> None:
    assert {producer.send("t", b"x", key=b"%d" % number, partition=2).result().partition for number in range(9)} == {2}
    table = [{"key": b"%d" % number} for number in range(9)]
    assert {metadata.partition for metadata in producer.send_table("t", table, partition=1).result()} == {1}


def test_keys_and_given_partitions_hold_while_a_sticky_batch_is_open(producer: Producer) -> None:
    """KIP-480: only records with neither a key nor a partition join the sticky batch."""
    keys = [b"%d" % number for number in range(20)]
    first = producer.send("t", b"x")
    keyed = [producer.send("t", b"x", key=key) for key in keys]
    given = [producer.send("t", b"x", partition=number) for number in range(3)]
    both = [producer.send("t", b"x", key=key, partition=2) for key in keys]
    last = producer.send("t", b"x")
    assert [future.result().partition for future in keyed] == [partition_for_key(key, 3) for key in keys]
    assert [future.result().partition for future in given] == [0, 1, 2]
    assert {future.result().partition for future in both} == {2}
    assert first.result().partition == last.result().partition


@pytest.mark.parametrize("end", ["abort_transaction", "commit_transaction", "close"])
@pytest.mark.parametrize("kind", ["record", "table"])
def test_a_transaction_that_another_thread_ends_during_a_send_takes_nothing_more(end: str, kind: str) -> None:
    """``send`` looks at the state twice: before it reads the clock, and when it holds the lock."""
    moved = ManualClock()
    ending: list[Callable[[], object]] = []

    def clock() -> int:
        if ending:
            call = ending.pop()
            assert in_threads(1, lambda _: call()) == [None]
        return moved()

    store = create_on(MemoryStore(), runtime=runtime(clock))
    store.create_topic("t")
    with store.producer("id") as producer:
        producer.begin_transaction()
        producer.send("t", b"before")
        ending.append(getattr(producer, end))
        with pytest.raises(ProducerClosedError if end == "close" else InvalidTxnStateError):
            _ = producer.send("t", b"late") if kind == "record" else producer.send_table("t", [{"value": b"late"}])
        assert ending == []
        if end != "close":
            with producer.transaction() as txn:
                txn.send("t", b"after")
    expected = {"abort_transaction": [b"after"], "commit_transaction": [b"before", b"after"], "close": []}
    assert values(store) == expected[end]


def test_records_without_a_key_stick_to_a_partition_until_the_batch_is_closed(producer: Producer) -> None:
    """KIP-480: one batch, one partition; the next one goes elsewhere."""
    chosen: list[int] = []
    for _ in range(6):
        futures = [producer.send("t", b"x") for _ in range(5)]
        producer.flush()
        partitions = {future.result().partition for future in futures}
        assert len(partitions) == 1
        chosen += partitions
    assert all(one != other for one, other in pairwise(chosen))


def test_the_rows_of_a_table_without_a_key_stick_together(producer: Producer) -> None:
    sent = producer.send_table("t", [{"key": None, "value": b"x"}] * 10).result()
    assert len({metadata.partition for metadata in sent}) == 1


def test_an_empty_key_is_a_key(producer: Producer) -> None:
    partitions = {producer.send("t", b"x", key=b"").result().partition for _ in range(5)}
    assert partitions == {partition_for_key(b"", 3)}


def test_a_typed_topic_is_partitioned_by_its_key_column_as_kafka_serializes_it(bench: Bench) -> None:
    bench.store.create_topic("typed", partitions=5, schema=TYPED, key="id")
    with bench.store.producer(linger=None) as producer:
        one = [producer.send("typed", {"id": number, "name": "x"}).result().partition for number in range(20)]
        many = producer.send_table("typed", [{"id": number, "name": "x"} for number in range(20)]).result()
    expected = [partition_for_key(number.to_bytes(8, "big"), 5) for number in range(20)]
    assert one == expected
    assert [metadata.partition for metadata in many] == expected


@pytest.mark.parametrize("partition", [-1, 3, 2**40, True, 1.0, "0"], ids=repr)
def test_missing_partition_is_refused_immediately(bench: Bench, producer: Producer, partition: Any) -> None:
    for call in (
        lambda: producer.send("t", b"x", partition=partition),
        lambda: producer.send_table("t", [{"value": b"x"}], partition=partition),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="partition"):
            call()
    producer.close()
    assert values(bench.store) == []


def test_a_partition_that_another_process_added_is_found(bench: Bench, producer: Producer) -> None:
    with another_process(bench.store, bench.inner) as other:
        other.alter_topic("t", partitions=8)
    assert producer.send("t", b"one", partition=7).result().partition == 7
    with another_process(bench.store, bench.inner) as other:
        other.alter_topic("t", partitions=10)
    sent = producer.send_table("t", [{"value": b"a"}, {"value": b"b"}], partition=9).result()
    assert [(metadata.partition, metadata.offset) for metadata in sent] == [(9, 0), (9, 1)]
    assert Counter(partition for partition, _, _ in rows(bench.store)) == {7: 1, 9: 2}


# Topics ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [None, 5, b"t", ["t"]], ids=repr)
def test_a_topic_that_is_no_string_is_refused(producer: Producer, topic: Any) -> None:
    for call in (lambda: producer.send(topic, b"x"), lambda: producer.send_table(topic, [])):
        with pytest.raises(InvalidTopicError, match="a topic name is a string"):
            call()


def test_a_topic_that_another_process_created_is_found(bench: Bench, producer: Producer) -> None:
    with another_process(bench.store, bench.inner) as other:
        other.create_topic("new")
    assert producer.send("new", b"x").result().offset == 0


def test_unknown_topic_is_refused_with_existing_names(bench: Bench, producer: Producer) -> None:
    before = entries(bench.inner)
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'nope'; the store has t"):
        producer.send("nope", b"x")
    assert entries(bench.inner) == before


# Order ----------------------------------------------------------------------------------------------------------------


def test_the_metadata_of_a_table_are_in_the_order_of_its_rows(bench: Bench) -> None:
    """Rows spread over partitions and over batches, some of them in batches that were open already."""
    with bench.store.producer(batch_bytes=400, linger=None) as producer:
        producer.send("t", b"before", key=b"1")
        keys = [b"%d" % (number * 7 % 31) for number in range(200)]
        table = [{"key": key, "value": b"%d" % number} for number, key in enumerate(keys)]
        sent = producer.send_table("t", table).result()
    placed = {row["value"]: (row["_partition"], row["_offset"]) for row in read(bench)}
    assert [(metadata.partition, metadata.offset) for metadata in sent] == [
        placed[b"%d" % number] for number in range(200)
    ]
    assert len(placed) == 201


def test_the_future_of_a_table_keeps_little_of_each_row(bench: Bench, producer: Producer) -> None:
    """A reader may be larger than memory, and its future is there until the call returns."""
    count = 20_000
    times = [1_700_000_000_000 + 50 * number + number % 7 for number in range(count)]
    keys = [b"%d" % number for number in range(count)]
    columns = {"key": pa.array(keys), "value": pa.array([b"x"] * count), "timestamp": pa.array(times, TIMESTAMP)}
    future = producer.send_table("t", pa.table(columns))
    producer.flush()
    kept = len(pickle.dumps([(part.row_numbers, part.times) for part in future._parts]))
    assert kept < 2 * count
    sent = future.result()
    assert [metadata.timestamp for metadata in sent] == times
    assert [metadata.partition for metadata in sent] == [partition_for_key(key, 3) for key in keys]


def test_records_and_tables_of_a_partition_keep_the_order_of_their_sends(bench: Bench, producer: Producer) -> None:
    producer.send("t", b"0", partition=0)
    producer.send_table("t", [{"value": b"1"}, {"value": b"2"}], partition=0)
    producer.send("t", b"3", partition=0)
    producer.send_table("t", pa.table({"value": pa.array([b"4"])}), partition=0)
    producer.flush()
    assert values(bench.store) == [b"0", b"1", b"2", b"3", b"4"]


def test_uploads_that_end_in_another_order_are_registered_in_that_of_their_sends() -> None:
    """SEQ-13: five batches are under way, and one of the first comes last."""
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    gate = gated.hold("put", "topics/", times=1)
    with store.producer(batch_bytes=1, linger=None) as producer:
        futures = [producer.send("t", b"%d" % number, partition=0) for number in range(5)]
        gate.wait_for()
        uploads = running_uploads(producer)
        assert len(uploads) == 5
        ended = threading.Semaphore(0)
        for upload in uploads:
            upload.add_done_callback(lambda _: ended.release())
        for _ in range(4):
            assert ended.acquire(timeout=240)
        assert [upload.done() for upload in uploads].count(False) == 1
        gate.open()
        producer.flush()
    assert [future.result().offset for future in futures] == [0, 1, 2, 3, 4]
    assert values(store) == [b"0", b"1", b"2", b"3", b"4"]
    batches = sound(store).partitions[T0].batches
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3, 4]


def test_each_partition_has_sequences_of_its_own(bench: Bench, producer: Producer) -> None:
    """SEQ-01, SEQ-18."""
    for count, partition in ((1, 0), (5, 1), (2, 0), (3, 1)):
        for _ in range(count):
            producer.send("t", b"x", partition=partition)
        producer.flush()
    state = sound(bench.store)
    sequences = {tp.partition: [batch.base_sequence for batch in log.batches] for tp, log in state.partitions_of("t")}
    assert sequences == {0: [0, 1], 1: [0, 5], 2: []}


# Timestamps -----------------------------------------------------------------------------------------------------------


def test_a_record_without_a_timestamp_gets_that_of_its_send(bench: Bench, producer: Producer) -> None:
    """As Kafka's producer does; the metadata tell what a reader finds."""
    clock(bench).set(5_000)
    first = producer.send("t", b"a", partition=0)
    clock(bench).set(6_000)
    second = producer.send("t", b"b", partition=0)
    clock(bench).set(7_000)
    given = producer.send("t", b"c", partition=0, timestamp=42)
    clock(bench).set(8_000)
    timestamps = [future.result().timestamp for future in (first, second, given)]
    assert timestamps == [5_000, 6_000, 42]
    assert [int(row["_timestamp"].timestamp() * 1000) for row in read(bench)] == timestamps


@pytest.mark.parametrize("timestamp", [1.5, "7", -1, True, 2**63, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], ids=repr)
def test_a_wrong_timestamp_fails_its_record_alone(bench: Bench, producer: Producer, timestamp: Any) -> None:
    good = producer.send("t", b"good", partition=0)
    with pytest.raises(SchemaMismatchError, match="timestamp of a record of topic 't'"):
        producer.send("t", b"bad", partition=0, timestamp=timestamp)
    assert good.result().offset == 0
    assert values(bench.store) == [b"good"]


def test_the_rows_of_a_table_tell_their_own_timestamps(bench: Bench, producer: Producer) -> None:
    clock(bench).set(9_000)
    moments = [dt.datetime.fromtimestamp(number, dt.UTC) if number else None for number in (1, 0, 3)]
    future = producer.send_table("t", [{"value": b"x", "timestamp": moment} for moment in moments], partition=0)
    clock(bench).set(10_000)
    timestamps = [metadata.timestamp for metadata in future.result()]
    assert timestamps == [1_000, 9_000, 3_000]
    assert [int(row["_timestamp"].timestamp() * 1000) for row in read(bench)] == timestamps


def test_a_typed_topic_has_the_time_of_its_timestamp_column(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED, timestamp="at")
    clock(bench).set(9_000)
    with bench.store.producer(linger=None) as producer:
        given = producer.send("typed", {"id": 1, "at": dt.datetime.fromtimestamp(5, dt.UTC)})
        absent = producer.send("typed", {"id": 2})
        clock(bench).set(20_000)
        timestamps = [given.result().timestamp, absent.result().timestamp]
    assert timestamps == [5_000, 9_000]
    assert [int(row["_timestamp"].timestamp() * 1000) for row in read(bench, "typed")] == timestamps


def test_under_log_append_time_the_record_has_the_time_of_its_entry(bench: Bench) -> None:
    bench.store.create_topic("log", config={"message.timestamp.type": "LogAppendTime"})
    later = clock(bench)() + 5_000
    with bench.store.producer(linger=None) as producer:
        futures = [producer.send("log", b"x"), producer.send("log", b"x", timestamp=42)]
        table = producer.send_table("log", [{"value": b"x"}])
        clock(bench).set(later)
        timestamps = [future.result().timestamp for future in futures] + [table.result()[0].timestamp]
    assert timestamps == [later, later, later]
    assert [int(row["_timestamp"].timestamp() * 1000) for row in read(bench, "log")] == timestamps


# Headers, keys, values ------------------------------------------------------------------------------------------------


def test_headers_come_back_in_their_order_with_repeated_names(bench: Bench, producer: Producer) -> None:
    producer.send("t", None, partition=0, headers=[("a", b"1"), ("ü", None), ("a", b"2")])
    producer.send("t", None, partition=0, headers={"b": bytearray(b"3")})  # type: ignore[dict-item]
    producer.send("t", None, partition=0)
    producer.flush()
    headers = [[(header["key"], header["value"]) for header in row["headers"] or ()] for row in read(bench)]
    assert headers == [[("a", b"1"), ("ü", None), ("a", b"2")], [("b", b"3")], []]


@pytest.mark.parametrize(
    "headers", [{"a": "text"}, {1: b"x"}, [("a",)], [("a", b"x", b"y")], "abc", 5, {"\ud800": b"x"}], ids=repr
)
def test_a_wrong_header_fails_its_record_alone(bench: Bench, producer: Producer, headers: Any) -> None:
    good = producer.send("t", b"good", partition=0)
    with pytest.raises(SchemaMismatchError, match="header"):
        producer.send("t", b"bad", partition=0, headers=headers)
    assert good.result().offset == 0
    assert values(bench.store) == [b"good"]


@pytest.mark.parametrize("value", ["text", 5, {"a": 1}, ["x"]], ids=repr)
def test_a_value_or_key_that_is_not_bytes_is_refused(producer: Producer, value: Any) -> None:
    with pytest.raises(SchemaMismatchError, match="value of a record of topic 't' must be bytes or None, not"):
        producer.send("t", value)
    with pytest.raises(SchemaMismatchError, match="key of a record of topic 't' must be bytes or None, not"):
        producer.send("t", b"x", key=value)


def test_bytes_that_change_after_the_send_do_not_change_the_record(bench: Bench, producer: Producer) -> None:
    buffer = bytearray(b"before")
    producer.send("t", buffer, partition=0)  # type: ignore[arg-type]
    buffer[:] = b"after!"
    producer.send("t", memoryview(b"view"), partition=0)  # type: ignore[arg-type]
    producer.flush()
    assert values(bench.store) == [b"before", b"view"]


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_a_record_over_max_message_bytes_is_refused_alone(bench: Bench) -> None:
    """Key, value and headers together."""
    bench.store.create_topic("small", config={"max.message.bytes": 100})
    with bench.store.producer(linger=None) as producer:
        fits = producer.send("small", b"v" * 50, key=b"k" * 30, headers={"h": b"x" * 19})
        with pytest.raises(RecordTooLargeError, match=r"a record of 101 bytes is over max.message.bytes \(100\)"):
            producer.send("small", b"v" * 50, key=b"k" * 30, headers={"h": b"x" * 20})
        with pytest.raises(RecordTooLargeError, match="101 bytes"):
            producer.send_table("small", [{"value": b"fits"}, {"value": b"x" * 101}])
        assert fits.result().offset == 0
    assert values(bench.store, "small") == [b"v" * 50]


def test_a_typed_row_that_is_too_large_is_refused(bench: Bench) -> None:
    bench.store.create_topic("typed", schema=TYPED, config={"max.message.bytes": 100})
    with bench.store.producer(linger=None) as producer:
        for call in (
            lambda: producer.send("typed", {"id": 1, "name": "x" * 200}),
            lambda: producer.send_table("typed", [{"id": 1, "name": "x" * 200}]),
        ):
            with pytest.raises(RecordTooLargeError, match=r"topic 'typed'"):
                call()


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": 1.5}, "batch_bytes"),
        ({"buffer_bytes": -1}, "buffer_bytes"),
        ({"buffer_bytes": "64"}, "buffer_bytes"),
        ({"linger": -0.1}, "linger"),
        ({"linger": float("nan")}, "linger"),
        ({"linger": "soon"}, "linger"),
        ({"linger": 1e30}, "linger"),
    ],
    ids=str,
)
def test_bad_setting_is_named_and_grants_no_producer_id(bench: Bench, options: dict[str, Any], says: str) -> None:
    before = entries(bench.inner)
    with pytest.raises(InvalidConfigError, match=says):
        bench.store.producer("id", **options)
    assert entries(bench.inner) == before


def test_an_unknown_option_is_a_type_error(bench: Bench) -> None:
    with pytest.raises(TypeError, match="compression"):
        bench.store.producer(compression="zstd")  # type: ignore[call-arg]


def test_topics_are_read_again_after_change_of_catalog(bench: Bench) -> None:
    """Also the one that is sent to after another one was."""
    with bench.store.producer(linger=None) as producer:
        for name in ("a", "b"):
            bench.store.create_topic(name)
            producer.send(name, b"old")
        producer.flush()
        bench.store.delete_topic("b")
        bench.store.create_topic("b")
        producer.send("a", b"new")
        producer.send("b", b"new")
        producer.flush()
    assert values(bench.store, "b") == [b"new"]


def test_producer_cannot_be_pickled(producer: Producer) -> None:
    with pytest.raises(TypeError, match="a producer cannot be pickled"):
        pickle.dumps(producer)
