"""The schema ``txn``: how a store came to be what it is, as tables of the connection's snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.shell import ONE_CHAIN
from tests.helpers.sqlstore import abort, fill, rows, values
from txnstore.chain.tail import newest
from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.errors import StorageError
from txnstore.sql import history, inspection, read_table
from txnstore.sql.types import duckdb_type
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create, create_on
from txnstore.testing import Fault, FaultStore
from txnstore.testing.faults import on

TABLES = inspection.SCHEMAS | history.SCHEMAS


@pytest.fixture
def store(memory_store_url: str, chains: int) -> Iterator[Store]:
    with create(memory_store_url, chains) as made:
        yield made


def test_all_tables_are_typed_when_the_store_is_empty(store: Store) -> None:
    with store.duckdb() as con:
        for name, schema in TABLES.items():
            described = rows(con, f"DESCRIBE txn.{name}")
            assert [row["column_name"] for row in described] == schema.names
            expected = [duckdb_type(field.type).replace('"', "") for field in schema]
            assert [row["column_type"].replace('"', "") for row in described] == expected
            assert values(con, f"SELECT count(*) FROM txn.{name}") == [0]


def test_topics_tell_their_settings_and_schema(store: Store) -> None:
    store.create_topic("plain", partitions=2, config={"cleanup.policy": "compact"})
    with store.duckdb() as con:
        (topic,) = rows(con, "SELECT * EXCLUDE (created_at, topic_id) FROM txn.topics")
        assert topic == {
            "topic": "plain", "view": "plain", "partitions": 2, "schema": None, "key_column": None,
            "timestamp_column": None, "config": [("cleanup.policy", "compact")], "version": 0,
        }  # fmt: skip


def test_txn_partitions_shows_the_offsets_of_the_store(store: Store) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders", transactions=2)
    abort(store, "orders")
    with store.duckdb() as con:
        for row in rows(con, "SELECT * FROM txn.partitions"):
            offsets = store.offsets("orders", row["partition"])
            assert (row["log_start"], row["last_stable"], row["high_watermark"]) == (
                offsets.log_start,
                offsets.last_stable,
                offsets.high_watermark,
            )
            assert row["segments"] == 3
        assert values(con, "SELECT sum(records) FROM txn.partitions") == [24]
        assert values(con, "SELECT sum(bytes) FROM txn.partitions") == values(
            con, "SELECT sum(bytes) FROM txn.segments"
        )


@pytest.mark.parametrize("config", [{}, {"inline.bytes": 0}], ids=["inlined", "object"])
def test_txn_segments_shows_what_a_partition_has_of_a_segment(store: Store, config: dict[str, int]) -> None:
    """Not what all partitions have of it together."""
    store.create_topic("orders", partitions=4, config=config)
    with store.producer() as producer:
        for partition in range(4):
            for _ in range(partition + 1):
                producer.send("orders", b"v", partition=partition)
        producer.flush()
    with store.duckdb() as con:
        shown = rows(con, "SELECT partition, records, bytes, batches FROM txn.segments ORDER BY partition")
        assert [(row["records"], row["batches"]) for row in shown] == [(1, 1), (2, 1), (3, 1), (4, 1)]
        for table in ("txn.segments", "txn.partitions"):
            totals = rows(
                con, f"SELECT partition, sum(records) AS n, sum(bytes) AS b FROM {table} GROUP BY 1 ORDER BY 1"
            )
            assert [(row["n"], row["b"]) for row in totals] == [(row["records"], row["bytes"]) for row in shown]


def test_batches_tell_what_became_of_them(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=2, records=3)
    store.compact()
    fill(store, "orders", transactions=1, records=3, first=2)
    abort(store, "orders", records=2)
    with store.producer("open") as producer, store.producer() as plain:
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.flush()
        plain.send("orders", b"plain").result()
        with store.duckdb() as con:
            query = (
                "SELECT status, records, transactional, transactional_id, base_sequence, last_sequence FROM txn.batches"
            )
            assert [tuple(row.values()) for row in rows(con, f"{query} ORDER BY base_offset")] == [
                ("compacted", 6, False, None, None, None),
                ("committed", 3, True, "filler-orders", 0, 2),
                ("aborted", 2, True, "aborter-orders", 0, 1),
                ("open", 1, True, "open", 0, 0),
                ("committed", 1, False, None, 0, 0),
            ]
            (compaction,) = rows(con, "SELECT * FROM txn.compactions")
            assert compaction["topic"] == "orders"
            assert (compaction["removed_batches"], compaction["added_segments"], compaction["records"]) == (2, 1, 6)
            assert values(con, "SELECT key FROM txn.segments WHERE compacted") == values(
                con,
                "SELECT segment FROM txn.batches WHERE status = 'compacted'",
            )
        producer.abort_transaction()


def test_transactions_producers_groups_and_aborted_follow_the_state(store: Store) -> None:
    """KIP-664: what DescribeTransactions and DescribeProducers tell."""
    store.create_topic("orders")
    abort(store, "orders", records=2)
    with store.producer("etl", transaction_timeout=30) as producer:
        with producer.transaction():
            producer.send_offsets({TopicPartition("orders", 0): 1}, group="readers")
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.send_offsets({TopicPartition("orders", 0): 3}, group="readers")
        producer.flush()
        with store.duckdb() as con:
            (txn,) = rows(con, "SELECT * FROM txn.transactions WHERE state = 'ONGOING'")
            assert (txn["transactional_id"], txn["timeout_ms"]) == ("etl", 30_000)
            assert txn["partitions"] == [{"topic": "orders", "partition": 0}]
            assert txn["started_at"] is not None
            assert (txn["prepared"], txn["chain"]) == (
                False,
                chain_of_transactional_id("etl", len(connection_of(store).chains)),
            )
            (aborted,) = rows(con, "SELECT first_offset, last_offset, last_stable_offset FROM txn.aborted")
            assert aborted == {"first_offset": 0, "last_offset": 2, "last_stable_offset": 3}
            producers = rows(con, "SELECT transactional_id, current_txn_start_offset FROM txn.producers ORDER BY 1")
            assert [tuple(row.values()) for row in producers] == [("aborter-orders", None), ("etl", 3)]
            groups = rows(con, "SELECT committed_offset, pending, producer_id FROM txn.groups ORDER BY pending")
            assert groups[0] == {"committed_offset": 1, "pending": False, "producer_id": None}
            # Offsets may wait for the commit itself; if they are in the chain, they are pending.
            assert all(
                row == {"committed_offset": 3, "pending": True, "producer_id": txn["producer_id"]} for row in groups[1:]
            )
        producer.abort_transaction()


def test_what_an_outside_coordinator_decides_is_found(store: Store) -> None:
    """TPC-02: it has no timeout, so operators look for it."""
    store.create_topic("orders")
    with store.producer("etl") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.prepare_transaction()
        with store.duckdb() as con:
            transactions = rows(con, "SELECT transactional_id, state FROM txn.transactions WHERE prepared")
        assert transactions == [{"transactional_id": "etl", "state": "ONGOING"}]
        producer.abort_transaction()


def test_members_follow_the_state(store: Store) -> None:
    """Who reads what: a member waits for what it is to read, and another one has not given back yet."""
    store.create_topic("orders", partitions=2)
    with (
        store.consumer(["orders"], group="g", group_instance_id="one") as first,
        store.consumer(["orders"], group="g", assignor="range") as second,
    ):
        first.poll()
        second.poll()
        with store.duckdb() as con:
            one, two = rows(con, "SELECT * FROM txn.members ORDER BY instance_id NULLS LAST")
            assert (one["group_id"], one["generation"], one["instance_id"]) == ("g", 2, "one")
            assert (two["assignor"], two["session_timeout_ms"]) == ("range", 45_000)
            assert two["seen_at"] >= one["seen_at"]
            numbers = [[tp["partition"] for tp in member["assigned"]] for member in (one, two)]
            assert (numbers[0], numbers[1], len(two["target"])) == ([tp["partition"] for tp in one["target"]], [], 1)


@ONE_CHAIN
def test_entries_are_those_of_the_chain_up_to_the_snapshot(store: Store) -> None:
    store.create_topic("orders")
    with store.duckdb() as con:
        fill(store, "orders", transactions=2)
        assert values(con, "SELECT sequence FROM txn.entries") == [1]
        snapshot = store.refresh(con)
        assert values(con, "SELECT sequence FROM txn.entries ORDER BY 1") == list(range(1, snapshot.sequence + 1))
        assert values(con, "SELECT event_types['TopicCreated'] FROM txn.entries WHERE sequence = 1") == [1]
        assert values(con, "SELECT sum(event_types['BatchesAppended']) FROM txn.entries") == [2]


@ONE_CHAIN
def test_no_more_than_the_newest_entries_are_read(store: Store) -> None:
    for number in range(6):
        store.create_topic(f"t{number}")
    connection = connection_of(store)
    past = history.EntryHistory(connection.objects, connection.keys, lambda: connection.pool, [6], entries=4)
    assert past.table("entries")["sequence"].to_pylist() == [3, 4, 5, 6]


def test_the_newest_entries_are_shared_out_among_the_chains() -> None:
    """A chain that has less than its share leaves the rest to the others."""
    assert newest([6], 4) == [range(3, 7)]
    assert newest([100, 0, 100], 10) == [range(96, 101), range(1, 1), range(96, 101)]
    assert newest([100, 2, 100], 12) == [range(96, 101), range(1, 3), range(96, 101)]
    assert newest([3, 2, 1], 1000) == [range(1, 4), range(1, 3), range(1, 2)]
    assert sum(map(len, newest([50] * 7, 100))) == 100
    assert sum(map(len, newest([50] * 256, 100))) == 100


def test_entries_and_compactions_say_their_chain(memory_store_url: str) -> None:
    """All chains up to the snapshot, whatever was written since."""
    with create(memory_store_url, chains=3) as store:
        store.create_topic("orders", partitions=3)
        fill(store, "orders", transactions=3, records=12)
        store.compact()
        snapshot = store.snapshot()
        heads = [state.sequence for state in snapshot.view.states]
        fill(store, "orders", transactions=1, first=3)
        with store.duckdb(snapshot=snapshot) as con:
            assert values(con, "SELECT heads FROM txn.snapshot") == [heads]
            entries = rows(
                con, "SELECT chain, max(sequence) AS last, count(*) AS n FROM txn.entries GROUP BY 1 ORDER BY 1"
            )
            assert [(row["chain"], row["last"], row["n"]) for row in entries] == [
                (chain, head, head) for chain, head in enumerate(heads)
            ]
            compactions = rows(con, "SELECT chain, topic, partition FROM txn.compactions ORDER BY partition")
            tps = [TopicPartition("orders", partition) for partition in range(3)]
            assert [tuple(row.values()) for row in compactions] == [(chain_of_partition(tp, 3), *tp) for tp in tps]
            later = store.refresh(con)
            assert values(con, "SELECT heads FROM txn.snapshot") == [[state.sequence for state in later.view.states]]
            assert values(con, "SELECT count(*) FROM txn.entries") == [later.sequence]


@pytest.mark.usefixtures("own_objects")
def test_storage_that_is_away_is_an_error_of_ours() -> None:
    objects = FaultStore(MemoryStore())
    with create_on(objects) as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        objects.plan = on(Fault.ERROR_BEFORE, "get", key_contains="topics/", times=None)
        with pytest.raises(StorageError):
            read_table(connection_of(store), "SELECT max(value) FROM orders")
        assert store.sql("SELECT count(*) FROM txn.topics").fetchall() == [(1,)]


def test_the_rules_of_a_snapshot_are_those_of_then(store: Store) -> None:
    """The tables are empty, not missing, where a store never had rules; ``off`` is a row once it had."""
    before = store.snapshot()
    acl = Acl("User:a", "ALLOW", "READ", "TOPIC", "or", "PREFIXED")
    store.acls.enable(["User:b", store.principal], allow_if_no_acl=True)
    store.acls.create([acl, Acl("User:*", "DENY", "ALL", "GROUP", "*")])
    with store.duckdb() as con:
        assert values(con, "SELECT principal FROM txn.acls") == ["User:*", "User:a"]
        assert rows(con, "SELECT * FROM txn.acls WHERE principal = 'User:a'") == [asdict(acl)]
        expected = {"mode": "declared", "super_users": ["User:ANONYMOUS", "User:b"], "allow_if_no_acl": True}
        assert rows(con, "SELECT * FROM txn.authorization") == [expected]
        assert values(con, "SELECT principals FROM txn.entries WHERE event_types['AclCreated'] = 2") == [
            ["User:ANONYMOUS"]
        ]
    with store.duckdb(snapshot=before) as con:
        for name in ("acls", "authorization"):
            assert values(con, f"SELECT count(*) FROM txn.{name}") == [0]
    store.acls.disable()
    with store.duckdb() as con:
        assert values(con, "SELECT mode FROM txn.authorization") == ["off"]
        assert values(con, "SELECT count(*) FROM txn.acls") == [2]
