"""How micro-batches are committed: once, in one entry, by the newest run, with the offsets that they read."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.connections import connection_of, stored_topic
from tests.helpers.keys import FixedRuntime
from tests.helpers.shell import ONE_CHAIN
from txnstore import TopicPartition, create
from txnstore.catalog.writing import topic_writer
from txnstore.connection import Connection, open_connection
from txnstore.core.log.model import NewBatch
from txnstore.core.transactions.model import MAX_EPOCH
from txnstore.errors import (
    InvalidConfigError,
    ProducerFencedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer.upload import upload
from txnstore.segment.convert import normalize
from txnstore.spark.options import Location, sink_options
from txnstore.spark.stores import cached_connection
from txnstore.spark.streams.commits import commit_micro_batch, is_committed
from txnstore.spark.streams.microbatch import MicroBatch, identity_of_run, transactional_id
from txnstore.spark.streams.positions import Position
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on

A = TopicPartition("in", 0)

Connect = Callable[[], Connection]


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def connect(objects: MemoryStore, clock: ManualClock) -> Connect:
    """A connection as another process has it."""
    return lambda: open_connection(
        objects, runtime=FixedRuntime(clock, clock.sleep, random.Random(2), background=InlineExecutor)
    )


@pytest.fixture
def store(objects: MemoryStore, clock: ManualClock, chains: int) -> Iterator[Store]:
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    with create_on(objects, chains, runtime=runtime) as created:
        created.create_topic("in")
        created.create_topic("t", partitions=2)
        created.create_topic("u")
        yield created


def uploaded(store: Store, value: str, topic: str = "t", partition: int = 0) -> NewBatch:
    connection = connection_of(store)
    writer = topic_writer(stored_topic(store, topic))
    rows = normalize([{"value": value.encode()}], None)
    return upload(connection.objects, connection.runtime, writer, TopicPartition(topic, partition), rows)


def values(store: Store, topic: str = "t") -> list[bytes]:
    stored: list[bytes] = store.scan(topic, columns=["value"]).to_table()["value"].to_pylist()
    return sorted(stored)


def commit(connection: Connection, number: int, *batches: NewBatch, run: str = "run-1", **options: str) -> bool:
    """Commit a micro-batch of query ``q``; whether there was something to commit."""
    given = sink_options({"path": "p", "topic": "t", **options})
    return commit_micro_batch(connection, given, MicroBatch("q", run, number), batches) is not None


@ONE_CHAIN
def test_a_micro_batch_is_one_entry_for_all_topics_and_partitions(store: Store, connect: Connect) -> None:
    connection = connect()
    before = connection.view().sequence
    for number in range(3):
        places = (("t", 0), ("t", 1), ("u", 0))
        assert commit(connection, number, *(uploaded(store, f"{number}", *place) for place in places))
    assert connection.view().sequence == before + 1 + 3  # The epoch of the run, then an entry for each micro-batch.
    assert values(store) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert values(store, "u") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("run", ["run-1", "run-2"])
@pytest.mark.parametrize("reconnects", [False, True])
def test_a_repeated_micro_batch_does_nothing(store: Store, connect: Connect, run: str, reconnects: bool) -> None:
    """In any process, by any run: a driver that crashed after the commit, and Spark's own retry."""
    connection = connect()
    assert commit(connection, 0, uploaded(store, "a"))
    sequence = connection.view().sequence
    again = connect() if reconnects else connection
    assert not commit(again, 0, uploaded(store, "a"), run=run)
    assert connection.view().sequence == sequence
    assert commit(again, 1, uploaded(store, "b"), run=run)
    assert values(store) == [b"a", b"b"]


@pytest.mark.parametrize("given", [{}, {"transactionalId": "mine"}])
def test_a_checkpoint_that_was_set_back_skips_no_records(store: Store, connect: Connect, given: dict[str, str]) -> None:
    """Spark plans micro-batch 1 again, up to what there is now: another one was committed under this number."""
    for number in range(3):
        commit(connect(), number, uploaded(store, f"{number}"))
    match = r"micro-batch 1 of query q is not written, because micro-batch 2 of it is committed: the checkpoint is old"
    with pytest.raises(ProducerFencedError, match=match):
        commit(connect(), 1, uploaded(store, "1, 2 and 3"), run="run-2", **given)
    if not given:
        with pytest.raises(ProducerFencedError, match=match):  # As a foreachBatch asks.
            is_committed(connect(), sink_options({"path": "p", "topic": "t"}), MicroBatch("q", "run-2", 1))
    assert values(store) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("refreshed", [False, True])
def test_processes_of_one_run_commit_in_turn(store: Store, connect: Connect, others: int, *, refreshed: bool) -> None:
    """Spark has a pool of processes for the commits of all queries; each of them remembers the epoch that it used last.

    After one commit of another process, the old epoch is that of the last transaction: a repetition, by the epoch.
    """
    first, second = connect(), connect()
    assert commit(first, 0, uploaded(store, "0"))
    for number in range(1, others + 1):
        assert commit(second, number, uploaded(store, f"{number}"))
    if refreshed:
        first.view()  # As another query that commits in this process.
    assert commit(first, others + 1, uploaded(store, f"{others + 1}"))
    assert commit(second, others + 2, uploaded(store, f"{others + 2}"))
    assert values(store) == [b"%d" % number for number in range(others + 3)]


@ONE_CHAIN
def test_an_empty_micro_batch_costs_no_entry(store: Store, connect: Connect) -> None:
    connection = connect()
    sequence = connection.view().sequence
    assert not commit(connection, 0)
    assert connection.view().sequence == sequence
    assert commit(connection, 1, uploaded(store, "a"))


@pytest.mark.parametrize("number", [1, 2])
def test_the_older_of_two_drivers_is_fenced(store: Store, connect: Connect, number: int) -> None:
    """Both run the query: the first commit of the newer run fences the older one, which must not continue as if its
    micro-batch, planned from other offsets perhaps, were committed.
    """
    old, new = connect(), connect()
    commit(old, 0, uploaded(store, "a"))
    commit(new, 1, uploaded(store, "b"), run="run-2")
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            commit(old, number, uploaded(store, "zombie"))
        old.view()
    with pytest.raises(ProducerFencedError):  # As a foreachBatch asks, before it computes the micro-batch.
        is_committed(old, sink_options({"path": "p", "topic": "t"}), MicroBatch("q", "run-1", 1))
    commit(new, 2, uploaded(store, "c"), run="run-2")
    assert values(store) == [b"a", b"b", b"c"]


@ONE_CHAIN
def test_a_run_continues_in_another_process_without_a_new_epoch(store: Store, connect: Connect) -> None:
    """Spark stops idle processes after a minute; the next one finds the epoch of its run in the store."""
    for number in range(3):
        connection = connect()
        before = connection.view().sequence
        commit(connection, number, uploaded(store, str(number)))
        assert connection.view().sequence == before + (2 if number == 0 else 1)
    assert values(store) == [b"0", b"1", b"2"]


def test_a_run_that_is_granted_an_epoch_is_followed_by_no_older_one(store: Store, connect: Connect) -> None:
    """Also before the newer run has committed anything: the state of the transaction shows its epoch."""
    commit(connect(), 0, uploaded(store, "a"))
    store.producer("spark-q").close()
    txn = connect().view().transactions["spark-q"]
    with pytest.raises(ProducerFencedError, match="run run-1 of query q is fenced"):
        identity_of_run(txn, MicroBatch("q", "run-1", 1))
    assert identity_of_run(txn, MicroBatch("q", "run-2", 1)) is None
    assert identity_of_run(None, MicroBatch("q", "run-1", 1)) is None


def test_versions_order_micro_batches_before_runs() -> None:
    """A repeated micro-batch is recognized whatever the run: its number alone decides."""
    for first, second in (("a", "b"), ("b", "a")):
        one, two = MicroBatch("q", first, 4), MicroBatch("q", second, 5)
        assert all(mine[1] < theirs[1] for mine, theirs in zip(one.versions(9), two.versions(0), strict=True))
    assert max(version for _, version in MicroBatch("q", "r", 2**31 - 1).versions(MAX_EPOCH)) < 2**63


def test_a_topic_that_was_deleted_meanwhile_is_not_written(store: Store, connect: Connect) -> None:
    batch = uploaded(store, "a")
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted while the micro-batch ran"):
        commit(connect(), 0, batch)


def test_names_of_transactions() -> None:
    assert transactional_id(None, None, "q") == "spark-q"
    assert transactional_id(None, "etl", "q") == "spark-etl"
    assert transactional_id("mine", "etl", "q") == "mine"


def test_a_kept_connection_notices_another_store_at_its_url(local_store_url: str, tmp_path: Path) -> None:
    """Spark uses a process again, also for a store that was created again; a refresh is all that it costs."""
    location = Location(local_store_url)
    with create(local_store_url) as first:
        kept = cached_connection(location)
        assert cached_connection(location) is kept
        assert kept.store_id == connection_of(first).store_id
    shutil.rmtree(tmp_path / "store")
    with create(local_store_url) as second:
        assert cached_connection(location).store_id == connection_of(second).store_id


# Offsets of the source ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    return tmp_path


def plan(
    checkpoint: Path, store: Store, number: int, start: int, end: int, group: str | None = "etl", other: str = ""
) -> None:
    """Spark's log of the offsets of a micro-batch."""
    ids = {"in": stored_topic(store, "in").topic_id}
    position = Position(other or connection_of(store).store_id, ids, {A: start}, {A: end}, group)
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(position.to_json())]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def committed(store: Store) -> int | None:
    group = connection_of(store).view().groups.get("etl")
    return group.offsets[A].value.offset if group and A in group.offsets else None


def test_offsets_of_the_source_are_in_the_same_transaction(store: Store, connect: Connect, checkpoint: Path) -> None:
    connection, options = connect(), {"group": "etl", "checkpointLocation": str(checkpoint)}
    plan(checkpoint, store, 0, 0, 4)
    commit(connection, 0, uploaded(store, "a"), **options)
    assert committed(store) == 4
    plan(checkpoint, store, 1, 4, 9)
    commit(connection, 1, **options)  # Its rows were all filtered out.
    assert committed(store) == 9
    plan(checkpoint, store, 2, 4, 9)  # A micro-batch without new records, such as for a watermark.
    assert not commit(connection, 2, **options)
    assert not commit(connection, 1, uploaded(store, "a"), **options)
    assert values(store) == [b"a"]


def test_a_query_with_a_new_checkpoint_fences_one_with_the_old_one(
    store: Store, connect: Connect, checkpoint: Path
) -> None:
    """Both have the group, whose transactional id is the same; what one has read the other does not repeat."""
    options = {"group": "etl", "checkpointLocation": str(checkpoint)}
    given = sink_options({"path": "p", "topic": "t", **options})
    old, new = connect(), connect()
    plan(checkpoint, store, 0, 0, 4)
    commit(old, 0, uploaded(store, "a"), **options)
    plan(checkpoint, store, 0, 4, 6)  # The new query has read where the group was: 4.
    plan(checkpoint, store, 1, 4, 8)
    commit(old, 1, uploaded(store, "b"), **options)  # The old one was still alive.
    with pytest.raises(ProducerFencedError, match="has read in-0 up to offset 8, but this micro-batch reads it from 4"):
        commit_micro_batch(new, given, MicroBatch("q2", "r", 0), [uploaded(store, "twice")])
    plan(checkpoint, store, 0, 8, 9)
    assert commit_micro_batch(new, given, MicroBatch("q2", "r", 0), [uploaded(store, "c")])
    plan(checkpoint, store, 2, 8, 9)
    with pytest.raises(ProducerFencedError):
        commit(old, 2, uploaded(store, "twice"), **options)
    with pytest.raises(ProducerFencedError, match="run run-1 of query q is fenced"):
        commit(connect(), 2, uploaded(store, "twice"), **options)  # In another process, which knows no epoch.
    assert values(store) == [b"a", b"b", b"c"]


def test_two_queries_that_have_read_the_same_records_commit_them_once(
    store: Store, connect: Connect, checkpoint: Path
) -> None:
    """The group is then at the end of the second one's first micro-batch, as if it had been committed before."""
    options = {"group": "etl", "checkpointLocation": str(checkpoint)}
    given = sink_options({"path": "p", "topic": "t", **options})
    plan(checkpoint, store, 0, 0, 4)
    commit(connect(), 0, uploaded(store, "a"), **options)
    for query in ("q2", "q3"):
        with pytest.raises(ProducerFencedError, match="has read in-0 up to offset 4, but this micro-batch reads it fr"):
            commit_micro_batch(connect(), given, MicroBatch(query, "r", 0), [uploaded(store, "a")])
    assert values(store) == [b"a"]
    plan(checkpoint, store, 0, 4, 4)  # A new query that finds nothing to read, and writes a row of its own.
    assert commit_micro_batch(connect(), given, MicroBatch("q4", "r", 0), [uploaded(store, "b")])
    assert values(store) == [b"a", b"b"]


def test_a_repeated_micro_batch_is_known_under_another_transactional_id(
    store: Store, connect: Connect, checkpoint: Path
) -> None:
    """A query that is started again with a group, or with another transactionalId, keeps its checkpoint."""
    plan(checkpoint, store, 0, 0, 4)
    plan(checkpoint, store, 1, 4, 9)
    commit(connect(), 0, uploaded(store, "a"))
    for options in ({"transactionalId": "mine"}, {"group": "etl", "checkpointLocation": str(checkpoint)}):
        assert not commit(connect(), 0, uploaded(store, "a"), run="run-2", **options)
    assert commit(connect(), 1, uploaded(store, "b"), run="run-2", transactionalId="mine")
    assert values(store) == [b"a", b"b"]


def test_a_committed_micro_batch_that_was_planned_again_is_no_repetition(
    store: Store, connect: Connect, checkpoint: Path
) -> None:
    """A checkpoint that was set back by one micro-batch: the group shows that the offsets are not the same."""
    options = {"group": "etl", "checkpointLocation": str(checkpoint)}
    given = sink_options({"path": "p", "topic": "t", **options})
    plan(checkpoint, store, 0, 0, 4)
    commit(connect(), 0, uploaded(store, "a"), **options)
    plan(checkpoint, store, 0, 0, 9)
    for _ in range(2):
        with pytest.raises(
            ProducerFencedError, match="has read in-0 up to offset 4, but this micro-batch reads it fro"
        ):
            commit(connect(), 0, uploaded(store, "a and b"), run="run-2", **options)
        with pytest.raises(ProducerFencedError, match="Start the query with a new checkpoint"):
            is_committed(connect(), given, MicroBatch("q", "run-2", 0))
    plan(checkpoint, store, 0, 0, 4)
    assert is_committed(connect(), given, MicroBatch("q", "run-2", 0))
    assert values(store) == [b"a"]


def test_source_and_sink_must_have_one_group(store: Store, connect: Connect, checkpoint: Path) -> None:
    options = {"group": "etl", "checkpointLocation": str(checkpoint)}
    for group in (None, "another"):
        plan(checkpoint, store, 0, 0, 4, group)
        with pytest.raises(InvalidConfigError, match="give both the same option group"):
            commit(connect(), 0, uploaded(store, "a"), **options)
    plan(checkpoint, store, 0, 0, 4, other="another store")
    with pytest.raises(InvalidConfigError, match=r"no source of the query reads this store.* leave out "):
        commit(connect(), 0, uploaded(store, "a"), **options)
    assert committed(store) is None
    assert values(store) == []


def test_a_checkpoint_that_cannot_be_read_is_refused(store: Store, connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"offsets of micro-batch 0 cannot be read from file:.*missing"):
        commit(connect(), 0, uploaded(store, "a"), group="etl", checkpointLocation=f"file:{tmp_path}/missing")


def test_versions_of_a_micro_batch_are_those_of_earlier_releases() -> None:
    """They are stored: a query that is restarted with another release must find what it has committed."""
    batch = MicroBatch("q", "run-1", 3)
    assert batch.versions(5) == (
        ("q", 3),
        ("q/run", 3 << 32 | zlib.crc32(b"run-1")),
        ("q/epoch", 3 << 16 | 5),
    )


def test_a_query_is_new_until_it_has_committed_beside_whatever_else(store: Store, connect: Connect) -> None:
    with store.producer("other").transaction() as txn:
        txn.send("t", b"x")
    connection = connect()
    assert MicroBatch("q", "run-1", 0).is_of_new_query(connection.view())
    assert commit(connection, 0, uploaded(store, "a"))
    assert not MicroBatch("q", "run-1", 1).is_of_new_query(connection.view())
    assert MicroBatch("another", "run-1", 0).is_of_new_query(connection.view())


@pytest.mark.parametrize("by", ["commit", "another id", "is_committed"])
def test_a_micro_batch_is_committed_only_if_that_is_durable(clock: ManualClock, by: str) -> None:
    """Spark's checkpoint says that it is written: after a power cut nothing would write its records again."""
    objects = FaultStore(MemoryStore())
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor)
    with create_on(objects, runtime=runtime) as store:
        store.create_topic("t")
        run = connection_of(store)
        commit(run, 0, uploaded(store, "a"))
        batch = uploaded(store, "b")
        objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
        with pytest.raises(UnknownOutcomeError):
            commit(run, 1, batch)
        objects.plan = no_faults
        assert objects.unsynced
        with open_connection(objects, runtime=runtime) as again:
            if by == "is_committed":
                assert is_committed(again, sink_options({"path": "p", "topic": "t"}), MicroBatch("q", "run-2", 1))
            else:
                other = {"transactionalId": "x"} if by == "another id" else {}
                assert not commit(again, 1, batch, run="run-2", **other)
        assert objects.unsynced == []
