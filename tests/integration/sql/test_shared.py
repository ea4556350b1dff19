"""The database that a store keeps for ``store.sql``: what is planned, what a relation shows, when it is released."""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.sqlstore import abort, fill
from txnstore.errors import CorruptionError
from txnstore.sql import planning, read_table, shared
from txnstore.sql.planning import TopicPlan
from txnstore.sql.shared import shared_database
from txnstore.sql.statements import names_in
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create, create_on, open_on
from txnstore.store import open as open_store

COUNT = "SELECT count(*) FROM orders"

#: The databases that were begun, and the topics that were planned.
WORK = Counter[str]()


@pytest.fixture
def store(memory_store_url: str, chains: int) -> Iterator[Store]:
    with create(memory_store_url, chains) as made:
        for name in ("orders", "payments", "a.b-c", "orders_2"):
            made.create_topic(name, partitions=2)
            fill(made, name, transactions=1)
        yield made


def number(store: Store, query: str = COUNT, **options: Any) -> int:
    """The one value of a query."""
    return int(store.sql(query, **options).fetchall()[0][0])


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count in :data:`WORK` what shared databases do."""
    begin, plan = shared._Database.__init__, planning.plan_topic

    def counting_begin(database: Any, *args: Any) -> None:
        WORK["begun"] += 1
        begin(database, *args)

    def counting_plan(*args: Any) -> TopicPlan:
        WORK["planned"] += 1
        return plan(*args)

    WORK.clear()
    monkeypatch.setattr(shared._Database, "__init__", counting_begin)
    monkeypatch.setattr(shared, "plan_topic", counting_plan)
    yield
    WORK.clear()


def work(store: Store) -> tuple[int, int, int]:
    """The databases begun, the topics planned, and the views in the newest database."""
    database = shared_database(connection_of(store))._database
    return WORK["begun"], WORK["planned"], 0 if database is None else len(database._schemas)


def test_a_query_plans_the_topics_that_it_names(store: Store) -> None:
    assert number(store, "SELECT 1") == 1
    assert work(store) == (1, 0, 0)
    assert number(store) == 8
    assert work(store) == (1, 1, 1)
    assert number(store, "SELECT count(*) FROM txn.topics") == 4
    assert work(store) == (1, 1, 1)


def test_only_a_topic_that_has_changed_is_planned_again(store: Store) -> None:
    both = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM payments)"
    store.recover()  # Markers that the background still writes would change the topics between two queries.
    assert [number(store, both) for _ in range(3)] == [16, 16, 16]
    assert work(store) == (1, 2, 2)
    fill(store, "orders", transactions=1, first=1)
    store.recover()
    assert [number(store, both) for _ in range(3)] == [24, 24, 24]
    assert work(store) == (1, 3, 3)
    fill(store, "orders_2", transactions=1, first=1)
    store.recover()
    assert number(store, both) == 24
    assert work(store) == (1, 3, 3)
    assert number(store, both, isolation="read_uncommitted") == 24
    assert work(store) == (1, 5, 3)  # All records are committed, so both isolation levels see the same segments.


def test_a_change_that_a_reader_does_not_see_creates_no_view(store: Store) -> None:
    assert number(store) == 8
    with store.producer("open") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0)
        producer.flush()
        assert number(store) == 8
        assert work(store) == (1, 2, 1)
        assert number(store, isolation="read_uncommitted") == 9
        assert work(store) == (1, 3, 2)
        producer.abort_transaction()


def test_a_relation_keeps_its_snapshot(store: Store) -> None:
    """Appends, a new schema, a compaction and a deletion between the calls, and between evaluations of one relation."""
    store.create_topic("typed", schema=pa.schema([("n", pa.int32())]))
    with store.producer() as producer:
        producer.send_table("typed", [{"n": 1}]).result()
    before = [store.sql(COUNT), store.sql("FROM typed SELECT n"), store.sql("SELECT sequence FROM txn.snapshot")]
    topics = store.sql("SELECT count(*) FROM txn.topics")
    expected = [relation.fetchall() for relation in before]
    fill(store, "orders", transactions=2, first=1)
    store.alter_topic("typed", schema=pa.schema([("m", pa.string()), ("n", pa.int64())]))
    after = [store.sql(COUNT), store.sql("SELECT m, n FROM typed")]
    assert [relation.fetchall() for relation in after] == [[(24,)], [(None, 1)]]
    store.compact()
    assert number(store) == 24
    store.delete_topic("orders")
    with pytest.raises(duckdb.CatalogException):
        store.sql(COUNT)
    assert [relation.fetchall() for relation in before] == expected
    assert [relation.fetchall() for relation in before] == expected
    assert before[0].filter("true").fetchall() == [(8,)]
    assert after[0].fetchall() == [(24,)]
    assert topics.fetchall() == [(5,)]
    assert store.sql("SELECT count(*) FROM txn.topics").fetchall() == [(4,)]


def test_a_topic_of_the_same_name_is_another_topic(store: Store) -> None:
    first = store.sql(COUNT)
    store.delete_topic("orders")
    store.create_topic("orders")
    assert (number(store), first.fetchall()) == (0, [(8,)])


def test_an_explicit_snapshot_is_shown(store: Store) -> None:
    old = store.snapshot()
    fill(store, "orders", transactions=1, first=1)
    assert [number(store), number(store, snapshot=old), number(store), number(store, snapshot=old)] == [16, 8, 16, 8]
    assert work(store)[2] == 2
    sequence = "SELECT sequence FROM txn.snapshot"
    assert number(store, sequence, snapshot=old) == old.sequence < number(store, sequence)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name FROM (SHOW TABLES)",
        "SHOW TABLES",
        "DESC",
        "/* all */ desc; -- of them",
        "WITH x AS (/* all */ DESC) SELECT name FROM x",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'",
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal",
        "SELECT viewname FROM pg_catalog.pg_views WHERE schemaname = 'main'",
        "SELECT name FROM sqlite_master WHERE type = 'view'",
        "FROM query('SHOW ' || 'TABLES') SELECT name",
    ],
)
def test_a_listing_contains_all_topics(store: Store, query: str) -> None:
    number(store)
    names = {value for row in store.sql(query).fetchall() for value in row if isinstance(value, str)}
    assert {"orders", "payments", "a.b-c", "orders_2"} <= names
    assert not any(name.startswith("txn view") for name in names)


def test_a_query_that_is_serialized_lists_all_topics(store: Store) -> None:
    with duckdb.connect() as plain:
        query = "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal"
        [(text,)] = plain.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    text = text.replace("duckdb_views", "' || 'duckdb' || '_views")
    shown = store.sql(f"FROM json_execute_serialized_sql('{text}')").fetchall()
    assert {name for (name,) in shown} == {"orders", "payments", "a.b-c", "orders_2"}


@pytest.mark.parametrize(
    "query",
    [
        'SELECT count(*) FROM "a.b-c"',
        "SELECT count(*) FROM 'a.b-c'",
        "SELECT count(*) FROM ORDERS",
        'SELECT count(*) FROM "Orders"',
        "SELECT count(*) FROM/**/orders--, payments",
        "SELECT count(*) FROM orders WHERE '\"' <> '''' OR \"key\" IS NULL",
        "WITH x AS (SELECT * FROM orders), payments AS (SELECT 1) SELECT count(*) FROM x, payments",
        "SELECT count(*) FROM orders o WHERE o._offset IN (SELECT _offset FROM payments)",
        "SELECT count(*) FROM orders SEMI JOIN orders_2 USING (_partition, _offset)",
        "SELECT 7; SELECT count(*) FROM orders",
        "FROM (SELECT count(*) FROM orders LIMIT 1)",
        "SELECT count(*) FROM main.orders",
        "SELECT count(*) FROM memory.main.orders",
        "SELECT count(*) FROM query('FROM ord' || 'ers')",
        "SELECT count(*) FROM query_table('orders')",
        "CREATE VIEW v AS FROM orders; SELECT count(*) FROM v",
        "CREATE MACRO m() AS TABLE FROM orders; SELECT count(*) FROM m()",
        "SELECT any_value(key) IS NULL, count(*) FROM orders ORDER BY 1 DESC LIMIT 8",
    ],
)
def test_a_topic_is_found_however_a_query_names_it(store: Store, query: str) -> None:
    number(store, "SELECT count(*) FROM payments")
    assert store.sql(query).fetchall()[0][-1] == 8


def test_names_are_found_between_any_quotation_marks() -> None:
    assert {"orders", "a.b-c", "select"} <= names_in('SELECT \'"\', x FROM Orders, "a.B-c"')
    assert "orders" not in names_in("SELECT * FROM orders_2, my$orders")


def test_no_call_sees_what_another_one_created_or_set(store: Store) -> None:
    assert store.sql("CREATE TABLE mine AS FROM orders; SELECT count(*) FROM mine").fetchall() == [(8,)]
    with pytest.raises(duckdb.CatalogException):
        store.sql("SELECT * FROM mine")
    store.sql("SET TimeZone = 'America/New_York'; SELECT 1")
    store.sql("SET VARIABLE x = 3; DROP VIEW orders; SELECT 1")
    assert number(store) == 8
    assert store.sql("SELECT getvariable('x'), current_setting('TimeZone')").fetchall() == [(None, "UTC")]
    assert store.sql("SELECT make_timestamptz(0)::VARCHAR").fetchall() == [("1970-01-01 00:00:00+00",)]
    relation = store.sql("SELECT 1 AS x")
    relation.create("mine")
    counted = relation.query("x", "SELECT count(*) FROM mine")
    assert counted is not None
    assert counted.fetchall() == [(1,)]
    store.sql("SELECT 1 AS x").create("mine")
    with pytest.raises(duckdb.CatalogException):
        store.sql("SELECT * FROM mine")


@pytest.mark.parametrize("read_only", [False, True])
def test_no_call_changes_a_setting_of_the_next_ones(tmp_path: Path, read_only: bool) -> None:
    with create(tmp_path / "store") as made:
        made.create_topic("orders")
    with open_store(tmp_path / "store", read_only=read_only) as store:
        relation = store.sql("SELECT make_timestamptz(0)::VARCHAR AS x FROM (SELECT count(*) FROM orders)")
        with pytest.raises(duckdb.Error, match="locked"):
            relation.query("x", "SET GLOBAL TimeZone = 'America/New_York'")
        assert store.sql("SELECT make_timestamptz(0)::VARCHAR").fetchall() == [("1970-01-01 00:00:00+00",)]
        assert relation.fetchall() == [("1970-01-01 00:00:00+00",)]


def test_a_read_only_store_profiles_no_query(tmp_path: Path) -> None:
    """`enable_profiling` is a setting, whichever way it is called; elsewhere it is one of the call alone."""
    profiled = "SELECT * FROM enable_profiling(format = 'no_output'); SELECT 1"
    with create(tmp_path / "store") as store:
        assert store.sql(profiled).fetchall() == [(1,)]
        database = shared_database(connection_of(store))._database
        assert database is not None
        assert not database._names_by_query, "it ran in a database of its own"
    with open_store(tmp_path / "store", read_only=True) as store, pytest.raises(duckdb.Error, match="locked"):
        store.sql(profiled)


def test_no_call_guesses_where_another_one_has_its_tables_and_views(store: Store) -> None:
    """Not by counting: what `relation.create` made, and the topics as an earlier call has seen them."""
    for name in ("mine", "mine_too"):
        relation = store.sql("SELECT count(*) AS x FROM orders")
        relation.create(name)
        fill(store, "orders", transactions=1, first=1)
    database = shared_database(connection_of(store))._database
    assert database is not None
    found = database.main.sql("SELECT table_schema, table_name FROM information_schema.tables").fetchall()
    assert {name for _, name in found} == {"mine", "mine_too", "orders"}
    for number in range(len(found)):
        for kind, name in (("call", "mine"), ("call", "mine_too"), ("view", "orders")):
            with pytest.raises(duckdb.CatalogException):
                store.sql(f'SELECT * FROM "txn {kind} {number}".{name}')


def test_the_kept_database_answers_as_a_connection_does(store: Store) -> None:
    """Random appends, aborts and compactions; several topics in one query, at both isolation levels."""
    chance = random.Random(8)
    topics = ("orders", "payments", '"a.b-c"', "orders_2")
    counts = ", ".join(f"(SELECT (count(*), sum(_offset), max(value)) FROM {topic})" for topic in topics)
    queries = [f"SELECT {counts}", "FROM txn.snapshot SELECT * EXCLUDE (session)", "FROM txn.partitions ORDER BY ALL"]
    earlier: list[tuple[Any, Any]] = []
    for step in range(1, 16):
        topic = chance.choice(topics).strip('"')
        if chance.random() < 0.7:
            fill(store, topic, transactions=chance.randrange(1, 4))
        else:
            abort(store, topic)
        if step % 5 == 0:
            store.compact(topic)
        snapshot = store.snapshot()
        for isolation in ("read_committed", "read_uncommitted"):
            with store.duckdb(isolation, snapshot) as con:
                for query in queries:
                    expected = con.sql(query).to_arrow_table()
                    relation = store.sql(query, isolation, snapshot)
                    earlier.append((relation, expected))
        relation, expected = chance.choice(earlier)
        assert relation.to_arrow_table().equals(expected)
    assert all(relation.to_arrow_table().equals(expected) for relation, expected in earlier)
    assert work(store)[0] == 1


def test_threads_query_while_records_are_committed(store: Store) -> None:
    """Each call shows whole transactions, in both topics."""
    query = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM payments), (SELECT sequence FROM txn.snapshot)"

    def ask(_: int) -> list[tuple[int, int]]:
        counts = []
        for _ in range(8):
            ((orders, payments, _),) = store.sql(query).fetchall()
            counts.append((orders, payments))
        return counts

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, number) for number in range(4)]
        with store.producer("both") as producer:
            for _ in range(8):
                with producer.transaction():
                    for topic in ("orders", "payments"):
                        producer.send(topic, b"1", partition=0)
                        producer.send(topic, b"2", partition=1)
        for future in futures:
            counts = future.result()
            assert counts == sorted(counts)
            assert all(orders == payments and orders % 2 == 0 for orders, payments in counts)
    assert number(store) == 24
    assert work(store)[0] == 1


def test_a_database_that_is_mostly_outdated_is_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "OUTDATED_CHARACTERS", 0)
    relations = []
    for step in range(1, 7):
        relations.append(store.sql(COUNT))
        fill(store, "orders", transactions=1, first=step)
    assert 1 < work(store)[0] < 6
    assert [relation.fetchall() for relation in relations] == [[(8 * step,)] for step in range(1, 7)]
    monkeypatch.setattr(shared, "STATES", 0)
    began = work(store)[0]
    assert [number(store, "SELECT count(*) FROM txn.topics") for _ in range(3)] == [4, 4, 4]
    assert began < work(store)[0]
    monkeypatch.setattr(shared, "CALLS", 0)
    began = work(store)[0]
    assert [number(store, "SELECT 7") for _ in range(3)] == [7, 7, 7]
    assert work(store)[0] == began + 3


def test_close_releases_the_database_and_relations_stay_valid(store: Store) -> None:
    relation = store.sql(COUNT)
    database = weakref.ref(shared_database(connection_of(store)))
    files = weakref.ref(shared_database(connection_of(store))._database.files)  # type: ignore[union-attr]
    store.close()
    assert database() is None
    assert relation.fetchall() == [(8,)]
    del relation
    gc.collect()
    assert files() is None
    assert number(store) == 8
    assert work(store) == (2, 2, 1)


def test_a_store_that_nothing_refers_to_is_released(tmp_path: Path) -> None:
    made = create(tmp_path / "store")
    made.create_topic("orders")
    assert number(made) == 0
    relation = made.sql("SELECT count(*) FROM txn.entries")
    reference = weakref.ref(made)
    del made
    gc.collect()
    assert reference() is None
    assert relation.fetchall() == [(1,)]


def test_a_copy_of_a_store_has_a_database_of_its_own(tmp_path: Path) -> None:
    with create(tmp_path / "store") as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        assert number(store) == 8
        with pickle.loads(pickle.dumps(store)) as copy:  # noqa: S301 - our own
            assert number(copy) == 8
            assert shared_database(connection_of(copy)) is not shared_database(connection_of(store))
        with open_store(tmp_path / "store", read_only=True) as reader:
            assert number(reader) == 8
            assert connection_of(store).objects.list("", limit=1000) == connection_of(reader).objects.list(
                "", limit=1000
            )


def test_both_sides_of_a_fork_query(tmp_path: Path) -> None:
    """A child inherits no threads of DuckDB: it must neither use nor release the database of its parent."""
    gc.collect()  # Databases that earlier tests left: to release one in the child ends it with signal 11.
    with create(tmp_path / "store") as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        assert number(store) == 8
        code = 1
        child = os.fork()
        if child == 0:
            try:
                gc.collect()
                assert number(store) == 8
                assert work(store) == (2, 2, 1)
                store.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert number(store) == 8
        assert work(store)[0] == 2


@pytest.mark.usefixtures("own_objects")
def test_a_segment_that_vanishes_is_named_and_other_topics_are_read(tmp_path: Path) -> None:
    with create_on(LocalStore(tmp_path)) as store:
        for name in ("orders", "payments"):
            store.create_topic(name)
            fill(store, name, transactions=1)
        assert number(store) == 8
        key = store.scan("orders").plan()[0].batch.segment.key
        connection_of(store).objects.delete([key])
        with pytest.raises(CorruptionError, match=key):
            read_table(connection_of(store), "SELECT max(value) FROM orders")
        assert number(store, "SELECT count(*) FROM payments") == 8
    with open_on(LocalStore(tmp_path)) as store, pytest.raises(CorruptionError, match=key):
        store.sql("SELECT max(value) FROM orders")


def test_a_call_enters_few_files() -> None:
    """A reader of the code follows a query of a topic that has not changed through this many files."""
    root = str(Path(shared.__file__).parents[1])
    files: set[str] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            files.add(frame.f_code.co_filename)

    with create("memory://files-entered") as one:
        one.create_topic("orders")
        assert number(one) == 0
        sys.setprofile(enter)
        try:
            number(one)
        finally:
            sys.setprofile(None)
    MemoryStore.forget("files-entered")
    assert len(files) <= 21
