"""Segments of which some batches went one way and some another: every reader sees exactly the records that are left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.compaction import DAY_MS, batches, new_store, reopen, rows, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.sharing import segments, send, stored
from txnstore.chain.payload import decode_entry, payload_of
from txnstore.core.log.commands import Append
from txnstore.core.log.events import BatchesAppended
from txnstore.core.log.model import Batch, NewBatch, Segment
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import ProducerError, StorageError, UnknownTopicOrPartitionError
from txnstore.producer import Producer
from txnstore.read.rows import Columns, RowPlan
from txnstore.scan import Scan
from txnstore.spark.reads.native import _FILES
from txnstore.spark.reads.planning import group_by_task
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock

PARTITIONS = 6
#: A record as every reader shows it: partition, offset, time in ms, value.
Row = tuple[int, int, int, bytes]

at_once = pytest.mark.parametrize("inlined", [False, True], ids=["objects", "inlined"])


def shared_store(clock: ManualClock, objects: ObjectStore, chains: int, *, inlined: bool) -> Store:
    store = new_store(clock, objects, chains)
    config = {} if inlined else {"inline.bytes": 0}
    store.create_topic("p", partitions=PARTITIONS, config=config)
    store.create_topic("q", partitions=PARTITIONS, config=config)
    return store


def send_at(producer: Producer, text: str, numbers: Iterable[int] = range(PARTITIONS), topic: str = "p") -> None:
    """A record of its own time for each of these partitions, and two for the odd ones."""
    for number in numbers:
        for each in range(1 + number % 2):
            value = b"%s %d.%d" % (text.encode(), number, each)
            producer.send(topic, value, partition=number, timestamp=1_000 * number + each)


def expected(text: str, numbers: Iterable[int] = range(PARTITIONS), first_offset: int = 0) -> list[Row]:
    return [
        (number, first_offset + each, 1_000 * number + each, b"%s %d.%d" % (text.encode(), number, each))
        for number in numbers
        for each in range(1 + number % 2)
    ]


def one_after_the_other(first: str, second: str) -> list[Row]:
    return [row for n in range(PARTITIONS) for row in expected(first, [n]) + expected(second, [n], 1 + n % 2)]


def milliseconds(moment: datetime) -> int:
    return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def shown(row: dict[str, Any]) -> Row:
    return row["_partition"], row["_offset"], milliseconds(row["_timestamp"]), row["value"]


def seen(store: Store, topic: str = "p") -> list[Row]:
    """The records of a topic, after scans, SQL, consumers and the plan of Spark have agreed about them."""
    scanned = sorted(map(shown, rows(store, topic)))
    query = f"select _partition, _offset, epoch_ms(_timestamp), value from {topic} order by _partition, _offset"
    assert store.sql(query).fetchall() == scanned
    for number in range(PARTITIONS):
        alone = store.scan(topic, partitions=[number]).to_table().to_pylist()
        assert [shown(row) for row in alone] == [row for row in scanned if row[0] == number]
    consumer = store.consumer([topic])
    polled = [consumer.poll(timeout=0) for _ in range(3)]
    assert sorted((r.partition, r.offset, r.timestamp, r.value) for some in polled for r in some) == scanned
    assert spark_sees(store, topic) == [(partition, offset) for partition, offset, *_ in scanned]
    return scanned


def spark_sees(store: Store, topic: str) -> list[tuple[int, int]]:
    """The offsets that tasks of Spark are given, in groups as in files; no shared segment is given as a file."""
    scan = Scan(connection_of(store), topic)
    slices = scan.plan()
    grouped = [part for group in group_by_task([(scan.topic, slices)], 3, 2) for part in group.slices]
    assert sorted(grouped, key=lambda part: (part.tp, part.start)) == slices
    files, rest = RowPlan(Columns(scan.topic), tuple(slices)).split(_FILES)
    assert all(part.batch.shared for part in rest.slices)
    for segment in (file.segment for group in files.groups() for file in group.files):
        alone = [part.batch.alone for part in slices if part.batch.segment.key == segment.key]
        assert alone == [True], "a file is a batch"
    if any(part.origin is None for part in slices):
        return [(row["_partition"], row["_offset"]) for row in rows(store, topic)]
    return [(part.tp.partition, offset) for part in slices for offset in range(part.start, part.limit)]


def all_batches(store: Store, topic: str = "p") -> list[Batch]:
    return [batch for number in range(PARTITIONS) for batch in batches(store, TopicPartition(topic, number))]


def payloads_of(store: Store) -> dict[str, bytes]:
    """The payloads of all entries, by key."""
    objects, names = connection_of(store).objects, connection_of(store).keys
    listed = [item.key for chain in connection_of(store).chains for item in objects.list(names.entries(chain.number))]
    payloads = {key: payload_of(objects.get(key)) for key in listed}
    return {key: payload for key, payload in payloads.items() if payload}


# What is left of a segment --------------------------------------------------------------------------------------------


@pytest.mark.slow
@at_once
def test_a_segment_whose_batches_go_different_ways(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """Compacted, deleted by retention, cut by the log start, left alone: and then all of it leaves the storage."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    with store.producer(linger=None) as producer:
        send_at(producer, "a")
    first = {segment.object for segment in segments(store, "p", PARTITIONS)}
    assert len(first) == len({chain_of_partition(TopicPartition("p", n), chains) for n in range(PARTITIONS)})
    assert {segment.inlined for segment in segments(store, "p", PARTITIONS)} == {inlined}
    assert seen(store) == expected("a")

    store.alter_topic("p", config={"segment.own.bytes": 1})  # What follows lies beside it.
    with store.producer(linger=None) as producer:
        send_at(producer, "b", [0, 1])
    rest = expected("a") + expected("b", [0], 1) + expected("b", [1], 2)
    assert seen(store) == sorted(rest)
    store.compact()  # Merges partitions 0 and 1; the others have one batch each.
    assert {batch.segment.object for batch in all_batches(store)} & first
    assert seen(store) == sorted(rest)

    store.delete_records({TopicPartition("p", 2): 1, TopicPartition("p", 3): 1})  # All of one, half of the other.
    rest = [row for row in rest if row[:2] not in {(2, 0), (3, 0)}]
    clock.advance(DAY_MS + 1)
    store.vacuum()
    assert seen(reopen(store, clock)) == sorted(rest)
    assert inlined or first <= set(stored(objects)) | {key for key in first if key not in used(store)}

    store.compact()  # Moves what was left beside deleted records, but not what the log start cuts.
    left = [batch for batch in all_batches(store) if batch.segment.object in first]
    assert [(batch.base_offset, batch.limit) for batch in left] == [(0, 2)]
    assert seen(store) == sorted(rest)
    store.delete_records({TopicPartition("p", 3): 2})
    rest = [row for row in rest if row[0] != 3]
    clock.advance(DAY_MS + 1)
    report = store.vacuum()
    assert seen(reopen(store, clock)) == sorted(rest)
    assert not first & set(payloads_of(store))
    assert not first & set(stored(objects))
    assert report.objects > 0
    assert store.verify(deep=True).violations == ()


def used(store: Store) -> set[str]:
    """The objects that batches name."""
    return {batch.segment.object for batch in all_batches(store)}


@at_once
def test_a_deleted_topic_leaves_the_records_beside_it(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """Its segment is in the same entries, or an object of the same flush."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    with store.producer(linger=None) as producer:
        send_at(producer, "a")
        send_at(producer, "gone", topic="q")
    assert not {segment.key for segment in segments(store, "p", PARTITIONS)} & {
        segment.key for segment in segments(store, "q", PARTITIONS)
    }
    replaced = {segment.object for segment in segments(store, "q", PARTITIONS)}
    store.delete_topic("q")
    store.compact()  # A live segment does not keep deleted records beside it.
    assert seen(store) == expected("a")
    clock.advance(DAY_MS + 1)
    store.vacuum()
    assert not replaced & {*payloads_of(store), *stored(objects)}
    assert seen(reopen(store, clock)) == expected("a")
    assert store.verify(deep=True).violations == ()


@at_once
def test_an_aborted_transaction_is_not_seen(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """Its segments, of a flush, are objects; a compaction drops them unread, and a vacuum deletes them."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    with store.producer(linger=None) as plain:
        send_at(plain, "a")
    with store.producer("id", linger=None) as producer:
        producer.begin_transaction()
        send_at(producer, "aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            send_at(producer, "b", [1, 2])
    after = sorted(expected("a") + expected("b", [1], 5) + expected("b", [2], 3))
    assert seen(store) == after
    assert len(values(store, "p", "read_uncommitted")) == len(after) + len(expected("aborted"))
    store.compact()
    clock.advance(DAY_MS + 1)
    store.vacuum()
    assert seen(reopen(store, clock)) == after
    assert store.verify(deep=True).violations == ()


def test_a_span_whose_payloads_cannot_all_be_deleted_is_remembered(
    clock: ManualClock, objects: MemoryStore, chains: int
) -> None:
    """A vacuum keeps what is damaged; after a repair the next one deletes it."""
    store = shared_store(clock, objects, chains, inlined=True)
    with store.producer(linger=None) as producer:
        send_at(producer, "a")
    (key, *_), count = payloads_of(store), len(payloads_of(store))
    sound = objects.get(key)
    objects.put(key, sound.replace(b"a ", b"b ", 1))
    store.delete_topic("p")
    clock.advance(DAY_MS + 1)
    assert store.vacuum(force=True).objects == count - 1
    objects.put(key, sound)
    assert store.vacuum().objects == 1
    assert payloads_of(store) == {}
    assert all(state.released_entries == () for state in connection_of(store).view().states)
    assert store.verify(deep=True).violations == ()


# Refused and repeated -------------------------------------------------------------------------------------------------


@at_once
def test_a_refused_batch_leaves_its_rows_behind(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """SEQ-15: the others are appended one by one, as ranges of the same segment."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    other = reopen(store, clock)
    with store.producer(linger=None) as producer:
        send_at(producer, "known", [0], "q")
        send_at(producer, "known", [0])
        producer.flush()
        send_at(producer, "a", range(1, PARTITIONS))
        refused = producer.send("q", b"refused", partition=0)
        other.delete_topic("q")
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.flush()
        assert isinstance(refused.exception(), UnknownTopicOrPartitionError)
    assert seen(store) == expected("known", [0]) + expected("a", range(1, PARTITIONS))
    assert store.verify(deep=True).violations == ()


class Unclear:
    """While ``active``, entries are written or not, their answers are lost, and they cannot be read.

    Args:
        chain: Those of this chain only.
        written: Whether they are written.
    """

    def __init__(self, chain: int | None = None, *, written: bool = True) -> None:
        self.active = False
        self._place = "/entries/" if chain is None else f"/{chain:04d}/entries/"
        self._fault = Fault.LOST_RESPONSE if written else Fault.ERROR_BEFORE

    def __call__(self, n: int, operation: str, key: str) -> Fault | None:
        if not self.active or self._place not in key or operation not in {"get", "put_if_absent"}:
            return None
        return self._fault if operation == "put_if_absent" else Fault.ERROR_BEFORE


@at_once
@pytest.mark.parametrize("refused", [False, True])
def test_a_repetition_after_an_unknown_outcome_appends_nothing_twice(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool, refused: bool
) -> None:
    """SEQ-03, SEQ-15, SEQ-18: its batches are in the log; if one is refused meanwhile, each is looked for alone."""
    shared_store(clock, objects, chains, inlined=inlined)
    unclear = Unclear()
    store = open_on(FaultStore(objects, unclear, sleep=clock.sleep), runtime=runtime(clock))
    other = open_on(objects, runtime=runtime(clock))
    producer = store.producer(linger=None)
    send_at(producer, "known")
    send_at(producer, "known", topic="q")
    producer.flush()
    send_at(producer, "a")
    last = producer.send("q", b"last", partition=0)
    unclear.active = True
    with pytest.raises(StorageError):
        producer.flush()
    unclear.active = False
    if refused:
        other.delete_topic("q")
    with suppress(UnknownTopicOrPartitionError):
        producer.flush()
    assert (last.exception() is None) != refused
    producer.close()
    again = open_on(objects, runtime=runtime(clock))
    assert seen(again) == one_after_the_other("known", "a")
    assert again.verify(deep=True).violations == ()


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("chain", range(3))
@at_once
def test_a_chain_that_fails_alone_gets_the_same_rows_again(
    clock: ManualClock, objects: MemoryStore, chain: int, *, inlined: bool, written: bool
) -> None:
    """One of three chains gives no answer: the batches of the others are duplicates in the repetition."""
    shared_store(clock, objects, 3, inlined=inlined)
    unclear = Unclear(chain, written=written)
    store = open_on(FaultStore(objects, unclear, sleep=clock.sleep), runtime=runtime(clock))
    producer = store.producer(linger=None)
    send_at(producer, "known")
    producer.flush()
    send_at(producer, "a")
    unclear.active = True
    for _ in range(2):
        with pytest.raises(StorageError):
            producer.flush()
    unclear.active = False
    producer.close()
    again = open_on(objects, runtime=runtime(clock))
    assert seen(again) == one_after_the_other("known", "a")
    assert again.verify(deep=True).violations == ()


# Times and sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@at_once
def test_the_time_of_an_append_is_that_of_its_entry_forever(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """Whatever the topic says later, and wherever a compaction writes the records."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    store.alter_topic("p", config={"message.timestamp.type": "LogAppendTime"})
    ahead = reopen(store, ManualClock(clock() + 5_000))
    with ahead.producer(linger=None) as producer:
        send_at(producer, "ahead", topic="q")  # The chains are ahead of the clock of the next producer.
    with store.producer(linger=None) as producer:
        send_at(producer, "a")
    times = {batch.appended_at for batch in all_batches(store)}
    assert min(times) > clock()
    assert all((b.min_timestamp, b.max_timestamp) == (b.appended_at, b.appended_at) for b in all_batches(store))
    before = seen(store)
    assert {row[2] for row in before} == times
    store.alter_topic("p", config={"message.timestamp.type": "CreateTime"})
    assert seen(reopen(store, clock)) == before
    with store.producer(linger=None) as producer:
        send_at(producer, "b")
    after = seen(store)
    assert [row for row in after if row[3].startswith(b"a")] == before
    assert [row[2] for row in after if row[3].startswith(b"b")] == [row[2] for row in expected("b")]
    store.alter_topic("p", config={"message.timestamp.type": "LogAppendTime"})
    assert seen(reopen(store, clock)) == after
    store.compact()
    assert seen(store) == after
    assert store.verify(deep=True).violations == ()


@at_once
def test_the_sizes_of_the_batches_of_a_segment_add_up(
    clock: ManualClock, objects: MemoryStore, chains: int, *, inlined: bool
) -> None:
    """Less than a byte of each is lost: what retention, compaction and reports count is what is stored."""
    store = shared_store(clock, objects, chains, inlined=inlined)
    with store.producer(linger=None) as producer:
        send_at(producer, "a")
    sizes: dict[str, int] = {}
    for batch in all_batches(store):
        sizes[batch.segment.key] = sizes.get(batch.segment.key, 0) + batch.size
    for key, segment in {batch.segment.key: batch.segment for batch in all_batches(store)}.items():
        assert segment.size - PARTITIONS < sizes[key] <= segment.size
    stored_bytes = (
        sum(map(len, payloads_of(store).values())) if inlined else sum(i.size for i in objects.list("topics/"))
    )
    assert stored_bytes - PARTITIONS < sum(sizes.values()) <= stored_bytes


def test_bytes_of_a_segment_are_stored_once(clock: ManualClock, objects: MemoryStore, chains: int) -> None:
    """In the payload of an entry, however many batches of it are named; and in each entry that names it."""
    store = shared_store(clock, objects, chains, inlined=True)
    with store.producer(linger=None) as producer:
        send(producer, "a", partitions=PARTITIONS)
        send(producer, "q", "q", partitions=PARTITIONS)
    for key, payload in payloads_of(store).items():
        entry = decode_entry(key, objects.get(key))
        named = [event.segment for event in entry.events if isinstance(event, BatchesAppended)]
        assert (
            len({segment.key for segment in named})
            == len(named)
            == len({event.topic for event in entry.events if isinstance(event, BatchesAppended)})
        )
        assert sum(segment.size for segment in named) == len(payload)
    assert len(payloads_of(store)) == chains


def test_batches_beyond_the_window_are_in_entries_of_their_own(clock: ManualClock, objects: MemoryStore) -> None:
    """Several batches of a partition in one flush, more than a retry is recognised by: none gets lost."""
    store = shared_store(clock, objects, 1, inlined=True)
    with store.producer(linger=None, batch_bytes=100) as producer:
        futures = [producer.send("p", b"%d" % n + b"." * 80, partition=n % 2) for n in range(16)]
    assert [future.result().offset for future in futures] == [n // 2 for n in range(16)]
    assert [value.rstrip(b".") for value in values(store, "p")] == [
        b"%d" % n for n in [*range(0, 16, 2), *range(1, 16, 2)]
    ]
    assert store.verify(deep=True).violations == ()


def test_batches_before_and_after_a_change_of_the_schema_share_no_segment(
    clock: ManualClock, objects: MemoryStore, chains: int
) -> None:
    """In one flush: a segment has the rows of one version of its topic."""
    store = new_store(clock, objects, chains)
    before = pa.schema([("n", pa.int64())])
    store.create_topic("s", schema=before, partitions=PARTITIONS)
    with store.producer(linger=None) as producer:
        for number in range(0, PARTITIONS, 2):
            producer.send("s", {"n": number}, partition=number)
        store.alter_topic("s", schema=pa.schema([*before, ("text", pa.string())]))
        for number in range(1, PARTITIONS, 2):
            producer.send("s", {"n": number, "text": "new"}, partition=number)
    expected_rows = [(number, "new" if number % 2 else None) for number in range(PARTITIONS)]
    assert [(row["n"], row["text"]) for row in rows(store, "s")] == expected_rows
    assert store.sql("select n, text from s order by n, _offset").fetchall() == expected_rows
    assert store.verify(deep=True).violations == ()


@pytest.mark.parametrize(("first_row", "records"), [(-1, 1), (0, 3), (1, 2), (2, 1), (0, 0)])
def test_rows_that_a_segment_does_not_have_are_refused(
    clock: ManualClock, objects: MemoryStore, chains: int, first_row: int, records: int
) -> None:
    store = shared_store(clock, objects, chains, inlined=False)
    segment = Segment("topics/p/0/00000000-0000-7000-8000-000000000000.parquet", "parquet", 1, "", 2)
    batch = NewBatch("p", 0, segment, 0, 0, first_row=first_row, rows=records)
    with pytest.raises(ProducerError, match=r"without records|of a segment of 2 rows"):
        connection_of(store).submit(Append(ProducerIdentity(), (batch,)))
    assert values(store, "p") == []
