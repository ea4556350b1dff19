"""A stream over a store, without Spark: where it starts, what it plans, what it costs, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.shell import ONE_CHAIN
from txnstore import TopicPartition
from txnstore.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.spark.options import stream_options
from txnstore.spark.streams.positions import Position, parse
from txnstore.spark.streams.stream import PollingSchedule, Stream
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Iterator[Store]:
    """Topic ``t`` with ten records in partition 0, and an empty partition 1."""
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    with create_on(MemoryStore(), chains, runtime=runtime) as created:
        created.create_topic("t", partitions=2)
        append(created, 10)
        yield created


def append(store: Store, count: int, topic: str = "t", partition: int = 0) -> None:
    with store.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition, timestamp=1000 + number)


def stream(store: Store, **options: str) -> Stream:
    topic = {} if options.keys() & {"topicPattern", "topic"} else {"topic": "t"}
    return Stream(connection_of(store), stream_options({"path": "p", **topic, **options}))


def ranges(stream: Stream, start: Position, end: Position) -> list[tuple[str, int, int]]:
    return [(str(part.tp), part.start, part.limit) for group in stream.plan(start, end) for part in group.slices]


def later(clock: ManualClock) -> None:
    """The next look is due."""
    clock.advance(5_000)


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, {A: 0, B: 0}),
        ({"startingOffsets": "latest"}, {A: 10, B: 0}),
        ({"startingOffsets": '{"0": 4}'}, {A: 4, B: 0}),
        ({"startingTimestamp": "1007"}, {A: 7, B: 0}),
        ({"startingTimestamp": "9999"}, {A: 10, B: 0}),
        ({"partitions": "1"}, {B: 0}),
    ],
)
def test_where_a_stream_starts(store: Store, options: dict[str, str], start: dict[TopicPartition, int]) -> None:
    position = stream(store, **options).initial_position()
    assert position.end == position.start == start


def test_a_stream_reads_what_comes_and_only_committed_records(store: Store, clock: ManualClock) -> None:
    """Never past the last stable offset: an open transaction holds its partition back (CON-01)."""
    read = stream(store)
    first = read.position_after(read.initial_position())
    assert ranges(read, read.initial_position(), first) == [("t-0", 0, 10)]
    with store.producer("writer") as producer:
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.flush()
        append(store, 1, partition=1)
        later(clock)
        second = read.position_after(first)
        assert ranges(read, first, second) == [("t-1", 0, 1)]
        producer.commit_transaction()
    later(clock)
    third = read.position_after(second)
    assert ranges(read, second, third) == [("t-0", 10, 11)]
    later(clock)
    assert read.position_after(third) is third


def test_latest_does_not_skip_records_of_an_open_transaction(store: Store, clock: ManualClock) -> None:
    with store.producer("writer") as producer:
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.flush()
        read = stream(store, startingOffsets="latest")
        start = read.initial_position()
        producer.commit_transaction()
    later(clock)
    assert ranges(read, start, read.position_after(start)) == [("t-0", 10, 11)]


def test_the_first_micro_batch_is_repeated_with_its_own_start(store: Store, clock: ManualClock) -> None:
    """Spark asks a restarted query for the start again; ``latest`` is a later offset by then."""
    read = stream(store, startingOffsets="latest")
    append(store, 3)
    later(clock)
    end = read.position_after(read.initial_position())
    append(store, 4)
    restarted = stream(store, startingOffsets="latest")
    assert restarted.initial_position().end[A] == 17
    assert ranges(restarted, restarted.initial_position(), parse(end.to_json())) == [("t-0", 10, 13)]


def test_an_empty_first_micro_batch_is_repeated_empty(store: Store) -> None:
    read = stream(store, startingOffsets="latest")
    end = read.position_after(read.initial_position())
    append(store, 4)
    restarted = stream(store, startingOffsets="latest")
    assert ranges(restarted, restarted.initial_position(), end) == []


def test_new_partitions_and_matching_topics_are_picked_up(store: Store, clock: ManualClock) -> None:
    read = stream(store, topicPattern="t.*", startingOffsets="latest")
    start = read.initial_position()
    store.alter_topic("t", partitions=3)
    store.create_topic("t2")
    store.create_topic("other")
    for topic, partition in (("t", 2), ("t2", 0), ("other", 0)):
        append(store, 2, topic, partition)
    later(clock)
    end = read.position_after(start)
    assert ranges(read, start, end) == [("t-2", 0, 2), ("t2-0", 0, 2)]


def test_a_stream_may_end(store: Store) -> None:
    read = stream(store, endingOffsets='{"0": 4}')
    end = read.position_after(read.initial_position())
    assert end.end == {A: 4, B: 0}
    assert read.position_after(end) is end
    empty = stream(store, endingOffsets='{"0": 0}')
    assert empty.position_after(empty.initial_position()).end == {A: 0, B: 0}


def test_available_now_ends_at_what_there_was(store: Store, clock: ManualClock) -> None:
    read = stream(store)
    read.stop_at_current_end()
    append(store, 5)
    later(clock)
    position, sizes = read.initial_position(), []
    while (following := read.position_after(position, 4)) is not position:
        sizes.append(following.end[A] - position.end[A])
        position = following
    assert sizes == [4, 4, 2]


def test_a_log_that_ends_before_the_checkpoint_is_refused(store: Store) -> None:
    """Such as a store that was restored from an older copy: records may have other offsets now."""
    read = stream(store)
    position = read.position_after(read.initial_position())
    ahead = Position(position.store_id, position.topic_ids, position.end, {**position.end, A: 12})
    for call in (lambda: read.position_after(ahead), lambda: read.plan(position, ahead)):
        with pytest.raises(OffsetOutOfRangeError, match=r"its log ends at 10.*failOnDataLoss"):
            call()


def test_records_that_were_deleted_before_they_were_read_are_a_loss(store: Store, clock: ManualClock) -> None:
    """RET-04: at the next look, and in a micro-batch that a restarted query repeats; not in one that is planned."""
    read, lenient = stream(store), stream(store, failOnDataLoss="false")
    start = read.initial_position()
    end = read.position_after(start, 4)
    store.delete_records({A: 6})
    assert ranges(read, start, end) == [("t-0", 0, 4)]
    later(clock)
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 4 to 5 of t-0 were deleted before they were read"):
        read.position_after(end)
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to 3 of t-0 were deleted before they were read"):
        stream(store).plan(start, end)
    assert ranges(lenient, end, lenient.position_after(end)) == [("t-0", 6, 10)]
    assert stream(store).initial_position().end[A] == 6


def test_a_topic_that_was_created_again_is_not_the_one_that_was_read(store: Store, clock: ManualClock) -> None:
    read, lenient = stream(store), stream(store, failOnDataLoss="false")
    position = read.position_after(read.initial_position())
    store.delete_topic("t")
    later(clock)
    with pytest.raises(OffsetOutOfRangeError, match="does not exist any more"):
        read.position_after(position)
    store.create_topic("t")
    append(store, 20)
    later(clock)
    with pytest.raises(OffsetOutOfRangeError, match="deleted and created again"):
        read.position_after(position)
    following = lenient.position_after(position)
    assert ranges(lenient, position, following) == [("t-0", 0, 20)]


def test_a_stream_does_not_forget_a_partition_that_it_has_read(store: Store) -> None:
    """A query with other partitions and the same checkpoint: with all of them again, it would repeat the records."""
    first = stream(store, partitions="0")
    position = first.position_after(first.initial_position())
    append(store, 3, partition=1)
    with pytest.raises(OffsetOutOfRangeError, match="has read t-0, which the option partitions leaves out"):
        stream(store, partitions="1").position_after(position)
    everything = stream(store)
    assert ranges(everything, position, everything.position_after(position)) == [("t-1", 0, 3)]


def test_a_checkpoint_of_another_store_is_refused(store: Store) -> None:
    foreign = Position("another", {"t": "id"}, {A: 0}, {A: 1})
    read = stream(store)
    for call in (lambda: read.position_after(foreign), lambda: read.plan(read.initial_position(), foreign)):
        with pytest.raises(InvalidConfigError, match=r"store with id another.*checkpointLocation"):
            call()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingOffsets": '{"0": 11}'}, OffsetOutOfRangeError),
        ({"startingOffsets": '{"7": 0}'}, UnknownTopicOrPartitionError),
    ],
)
def test_a_start_outside_the_log_is_refused(store: Store, options: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        stream(store, **options).initial_position()


# Groups ---------------------------------------------------------------------------------------------------------------


def committed(store: Store) -> dict[TopicPartition, int]:
    group = connection_of(store).view().groups.get("etl")
    return {tp: value.value.offset for tp, value in group.offsets.items()} if group else {}


def test_a_group_is_given_the_start_before_it_is_used(store: Store) -> None:
    """A query that loses its checkpoint before its first micro-batch starts where it would have started."""
    stream(store, startingOffsets="latest", group="etl").initial_position()
    assert committed(store) == {A: 10, B: 0}
    append(store, 5)
    assert stream(store, startingOffsets="latest", group="etl").initial_position().end == {A: 10, B: 0}


def test_a_partition_that_is_new_to_a_group_is_read_from_its_start(store: Store) -> None:
    stream(store, group="etl").initial_position()
    store.alter_topic("t", partitions=3)
    append(store, 3, partition=2)
    start = stream(store, startingOffsets="latest", group="etl").initial_position()
    assert start.end[TopicPartition("t", 2)] == 0


def test_a_group_follows_the_query_and_never_goes_back(store: Store) -> None:
    read = stream(store, group="etl")
    first = read.position_after(read.initial_position(), 4)
    second = read.position_after(first)
    for position, offset in ((first, 4), (second, 10), (first, 10)):
        read.commit(position)
        assert committed(store)[A] == offset


def test_a_plan_after_a_commit_is_of_the_same_view_as_its_logs(store: Store) -> None:
    """Queries of a driver share a connection: a commit may show what another one has read of it meanwhile."""
    store.create_topic("u")
    before = stream(store, group="etl")
    start, end = before.initial_position(), before.position_after(before.initial_position())
    again = stream(store, topic="t,u", group="etl")
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    append(store, 20)
    again.initial_position()  # Commits the start in "u", and nothing in "t".
    with pytest.raises(OffsetOutOfRangeError, match="created again"):
        again.plan(start, end)


# Requests -------------------------------------------------------------------------------------------------------------


@ONE_CHAIN
def test_a_commit_of_a_group_is_one_entry_after_one_look(store: Store) -> None:
    read = stream(store, group="etl")
    position = read.position_after(read.initial_position(), 4)
    connection_of(store).counts.reset()
    read.commit(position)
    counts = connection_of(store).counts.snapshot()
    assert (counts.requests, counts.get, counts.put_if_absent) == (2, 1, 1)


def test_a_group_does_not_get_offsets_of_a_deleted_topic(store: Store, clock: ManualClock) -> None:
    """Spark confirms a micro-batch of the old topic when the new one exists: a query that starts at the group would
    pass over its records.
    """
    read = stream(store, group="g")
    end = read.position_after(read.initial_position())
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    append(store, 20)
    later(clock)
    read.commit(end)
    assert stream(store, group="g").initial_position().end == {A: 0, B: 0}


@ONE_CHAIN
def test_an_idle_stream_looks_once_a_second(store: Store, clock: ManualClock) -> None:
    """Spark asks every 10 ms; after the first second that is one GET per second and chain.

    One more every 6 seconds looks whether the store is still the same one.
    """
    read = stream(store)
    position = read.position_after(read.initial_position())

    def gets(seconds: int) -> int:
        before = store.metrics().gets
        for _ in range(seconds * 100):
            clock.advance(10)
            assert read.position_after(position) is position
        return store.metrics().gets - before

    assert gets(2) <= 7
    assert gets(60) == 60 + 10
    before = store.metrics()
    read.limits()
    read.plan(position, position)
    assert (store.metrics().gets, store.metrics().puts) == (before.gets, before.puts)


@ONE_CHAIN
def test_a_backlog_is_read_without_a_look_for_each_micro_batch(store: Store, clock: ManualClock) -> None:
    read = stream(store)
    position, before = read.initial_position(), store.metrics().gets
    for _ in range(10):
        position = read.position_after(position, 1)
    assert position.end[A] == 10
    assert store.metrics().gets - before <= 1


def test_the_pauses_of_an_idle_stream_grow_and_end_with_a_record() -> None:
    polling = PollingSchedule(1_000)
    pauses = []
    for _ in range(7):
        polling.record_look(0, fresh=False)
        pauses.append(polling.pause_ms)
    assert pauses == [50, 100, 200, 400, 800, 1_000, 1_000]
    assert not polling.is_due(999, idle=True)
    polling.record_look(5, fresh=True)
    assert polling.is_due(5, idle=True)
    assert not polling.is_due(1_004, idle=False)


# Spark 4.0 and 4.1, which do not say what the query has read ----------------------------------------------------------


def unasked(stream: Stream, start: Position, end: Position) -> list[tuple[str, int, int]]:
    return [
        (str(part.tp), part.start, part.limit)
        for group in stream.plan_without_start(start, end)
        for part in group.slices
    ]


def test_without_a_start_a_stream_follows_what_it_has_planned(store: Store, clock: ManualClock) -> None:
    read = stream(store)
    first = read.next_without_start()
    assert unasked(read, read.initial_position(), first) == [("t-0", 0, 10)]
    later(clock)
    assert read.next_without_start() == first
    append(store, 2)
    later(clock)
    second = read.next_without_start()
    assert second.start == first.end
    assert unasked(read, first, second) == [("t-0", 10, 12)]
    assert unasked(read, second, second) == []


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}, {"startingOffsets": '{"0": 4}'}])
def test_a_restarted_query_continues_from_the_start_of_its_plan(
    store: Store, clock: ManualClock, options: dict[str, str]
) -> None:
    """The process does not know it when it gives the end; what the options say of the start is of no matter then."""
    before = stream(store)
    committed = before.position_after(before.initial_position())
    append(store, 3)
    again = stream(store, **options)
    end = again.next_without_start()
    assert unasked(again, committed, end) == [("t-0", 10, 13)]
    append(store, 1)
    later(clock)
    following = again.next_without_start()
    assert unasked(again, end, following) == [("t-0", 13, 14)]
    # The plan of a micro-batch that is repeated in a third process reads the same offsets, though there are more.
    assert unasked(stream(store), committed, end) == [("t-0", 10, 13)]


def test_a_restarted_query_without_news_runs_one_empty_micro_batch(store: Store, clock: ManualClock) -> None:
    before = stream(store)
    committed = before.position_after(before.initial_position())
    again = stream(store)
    end = again.next_without_start()
    assert unasked(again, committed, end) == []
    later(clock)
    assert again.next_without_start() == end


def test_the_first_micro_batch_is_repeated_with_its_own_start_also_without_being_asked(
    store: Store, clock: ManualClock
) -> None:
    read = stream(store, startingOffsets="latest")
    start = read.next_without_start()
    assert start.start == start.end
    append(store, 3)
    later(clock)
    end = read.next_without_start()
    append(store, 2)
    again = stream(store, startingOffsets="latest")
    assert unasked(again, again.initial_position(), end) == [("t-0", 10, 13)]


def test_a_start_that_retention_has_deleted_does_not_stop_a_restarted_query(store: Store, clock: ManualClock) -> None:
    """Only a new query needs its starting offsets; Spark asks that one for the initial position, which is refused."""
    before = stream(store)
    committed = before.position_after(before.initial_position())
    append(store, 5)
    store.delete_records({A: 12})
    again = stream(store, startingOffsets='{"0": 3}')
    end = again.next_without_start()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 10 to 11 of t-0 were deleted before they were read"):
        again.plan_without_start(committed, end)
    with pytest.raises(OffsetOutOfRangeError, match="offset 3 of t-0"):
        again.initial_position()


def test_a_topic_that_was_created_again_is_a_loss_of_a_restarted_query(store: Store) -> None:
    before = stream(store)
    committed = before.position_after(before.initial_position())
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    append(store, 20)
    again = stream(store)
    end = again.next_without_start()
    with pytest.raises(OffsetOutOfRangeError, match="topic 't' was deleted and created again"):
        again.plan_without_start(committed, end)
    lenient = stream(store, failOnDataLoss="false")
    assert unasked(lenient, committed, lenient.next_without_start()) == [("t-0", 0, 20)]


def test_a_position_has_only_records_that_are_durable(clock: ManualClock) -> None:
    """A power cut would lose a record that the query has read, and the next one would have its offset."""
    objects = FaultStore(MemoryStore())
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    with create_on(objects, runtime=runtime) as writer, writer.producer() as producer:
        writer.create_topic("t")
        producer.send("t", b"0")
        producer.flush()
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        producer.send("t", b"1")
        with pytest.raises(UnknownOutcomeError):
            producer.flush()
        assert objects.unsynced
        objects.plan = no_faults
        with open_on(objects, runtime=runtime) as reader:
            query = stream(reader)
            assert query.position_after(query.initial_position()).end == {A: 2}
        assert objects.unsynced == []
