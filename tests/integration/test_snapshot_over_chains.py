"""Every reader of a store with several chains sees a transaction whole or not at all, however far its end has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import pytest

from tests.harness.executors import DeferredExecutor, InlineExecutor
from tests.helpers.connections import connection_of
from tests.helpers.reading import read_slice
from tests.helpers.sqlstore import values
from txnstore import create
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routes import chains_of
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.core.transactions.commands import Ended, EndTxn, WriteMarkers
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.spark.options import read_options
from txnstore.spark.reads.planning import plan
from txnstore.store import Store, open_on

CHAINS = 3
GROUP = "readers"
EVERYWHERE = [b"x%d" % partition for partition in range(CHAINS)]
BEFORE = [b"a%d" % partition for partition in range(CHAINS)]


@dataclass
class Bench:
    """A store as the process of a writer has it that dies before it writes a marker, and as a reader has it."""

    writer: Store
    reader: Store
    identity: ProducerIdentity

    def end(self, outcome: Outcome) -> Ended:
        """The decision, and the markers of the coordinator's own chain."""
        ended: Ended = connection_of(self.writer).submit(EndTxn(self.identity, outcome))
        return ended


@pytest.fixture
def bench(local_store_url: str) -> Iterator[Bench]:
    """A record in each partition, each in another chain; then an open transaction with another one, and offsets."""
    with create(local_store_url, CHAINS, runtime=Runtime(background=InlineExecutor)) as store:
        store.create_topic("t", partitions=CHAINS)
        with store.producer("before") as producer, producer.transaction():
            for partition, value in enumerate(BEFORE):
                producer.send("t", value, partition=partition)
        writer = open_on(connection_of(store).counts.inner, runtime=Runtime(background=DeferredExecutor))
        producer = writer.producer("everywhere")
        producer.begin_transaction()
        for partition, value in enumerate(EVERYWHERE):
            producer.send("t", value, partition=partition)
        producer.send_offsets({TopicPartition("t", 0): 7}, GROUP)
        producer.flush()
        identity = ProducerIdentity(producer.producer_id, producer.epoch, "everywhere")
        yield Bench(writer, store, identity)
        writer.close()


def test_the_transaction_is_in_every_chain() -> None:
    assert {chain_of_partition(TopicPartition("t", partition), CHAINS) for partition in range(CHAINS)} == set(
        range(CHAINS)
    )


# The readers ----------------------------------------------------------------------------------------------------------


def _scan(store: Store, snapshot: Snapshot) -> list[bytes]:
    column: list[bytes] = store.scan("t", snapshot=snapshot).to_table()["value"].to_pylist()
    return column


def _sql(store: Store, snapshot: Snapshot) -> list[bytes]:
    with store.duckdb(snapshot=snapshot) as con:
        return [bytes(value) for value in values(con, "SELECT value FROM t")]


def _sql_elsewhere(store: Store, snapshot: Snapshot) -> list[bytes]:
    """The views of a DuckDB that does not have txnstore."""
    from txnstore.sql import emit_views

    with duckdb.connect() as con:
        con.execute(emit_views(connection_of(store), snapshot=snapshot))
        return [bytes(value) for value in values(con, "SELECT value FROM t")]


def _spark(store: Store, snapshot: Snapshot) -> list[bytes]:
    """What the tasks of a Spark read are planned to read."""
    groups = plan(connection_of(store), snapshot.view, read_options({"path": store.url, "topic": "t"}))
    return [
        value
        for group in groups
        for part in group.slices
        for value in read_slice(connection_of(store).objects, part, Columns(group.topic)).column("value").to_pylist()
    ]


def _consumer(store: Store, _: Snapshot) -> list[bytes]:
    """Reads the head, which is where the snapshot was taken."""
    consumer = store.consumer(["t"])
    polled_values: list[bytes] = []
    while records := consumer.poll():
        polled_values += [record.value for record in records if isinstance(record.value, bytes)]
    return polled_values


READERS = pytest.mark.parametrize("read", [_scan, _sql, _sql_elsewhere, _spark])
Reader = Callable[[Store, Snapshot], list[bytes]]


# What they see --------------------------------------------------------------------------------------------------------


@READERS
def test_nothing_is_seen_before_the_decision(bench: Bench, read: Reader) -> None:
    """END-06: all of its data is registered in all chains, and it is open."""
    assert sorted(read(bench.reader, bench.reader.snapshot())) == BEFORE


@READERS
@pytest.mark.parametrize("marked", range(CHAINS))
def test_everything_is_seen_from_the_decision_on(bench: Bench, read: Reader, marked: int) -> None:
    """END-06: with no marker in another chain, with one, and with all of them."""
    earlier = bench.reader.snapshot()
    decided = bench.end(Outcome.COMMIT).unfinished
    assert decided is not None
    home = chain_of_transactional_id("everywhere", CHAINS)
    decision = (home, connection_of(bench.writer).chains[home].state.sequence)
    others = sorted(chains_of(decided, CHAINS) - {home})
    for number in others[:marked]:
        connection_of(bench.writer).chains[number].submit(WriteMarkers(decided, decision))
    snapshot = bench.reader.snapshot()
    assert sorted(read(bench.reader, snapshot)) == sorted([*BEFORE, *EVERYWHERE])
    assert sorted(read(bench.reader, earlier)) == BEFORE, "an earlier snapshot stays what it was"
    bench.reader.recover()
    assert sorted(read(bench.reader, snapshot)) == sorted([*BEFORE, *EVERYWHERE])


@READERS
def test_transaction_decided_to_abort_is_invisible(bench: Bench, read: Reader) -> None:
    """END-06, LSO-07: also before the markers are written, and it blocks no reader."""
    bench.end(Outcome.ABORT)
    connection_of(bench.reader).view()
    with bench.reader.producer("after") as producer, producer.transaction():
        producer.send("t", b"z", partition=0)
    assert sorted(read(bench.reader, bench.reader.snapshot())) == sorted([*BEFORE, b"z"])


def test_consumers_see_it_from_the_decision_on(bench: Bench) -> None:
    assert sorted(_consumer(bench.reader, bench.reader.snapshot())) == BEFORE
    bench.end(Outcome.COMMIT)
    assert sorted(_consumer(bench.reader, bench.reader.snapshot())) == sorted([*BEFORE, *EVERYWHERE])


def test_inspection_shows_decided_and_incomplete_transactions(bench: Bench) -> None:
    """The logs and groups look ended everywhere; the transaction says that its markers are not known to be written."""
    with bench.reader.duckdb() as con:
        assert values(con, "SELECT sum(open_transactions) FROM txn.partitions") == [CHAINS]
        assert values(con, "SELECT pending FROM txn.groups") == [True]
        bench.end(Outcome.COMMIT)
        bench.reader.refresh(con)
        assert values(con, "SELECT sum(open_transactions) FROM txn.partitions") == [0]
        assert values(con, "SELECT count(current_txn_start_offset) FROM txn.producers") == [0]
        assert values(con, "SELECT DISTINCT status FROM txn.batches") == ["committed"]
        assert values(con, "SELECT committed_offset FROM txn.groups WHERE NOT pending") == [7]
        state = "SELECT state FROM txn.transactions WHERE transactional_id = 'everywhere'"
        assert values(con, state) == ["PREPARE_COMMIT"]
        assert bench.reader.recover().finished == ("everywhere",)
        bench.reader.refresh(con)
        assert values(con, state) == ["COMPLETE_COMMIT"]
        assert values(con, "SELECT committed_offset FROM txn.groups WHERE NOT pending") == [7]
    assert bench.reader.verify(deep=True).ok
