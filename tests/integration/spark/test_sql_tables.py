"""Each form of SQL and of DataFrames that names a topic as a table: it works, or is refused with what to write instead.

docs/spark.md has the table of the forms. No form that reports success leaves a table that cannot be read, except CREATE
TABLE with columns, about which Spark asks no Python data source; its first use is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, load
from txnstore.spark.versions import RELEASE
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
#: What each refusal of a write offers.
ADVICE = r'df\.write\.format\("txnstore"\).*INSERT INTO a view: CREATE TEMPORARY VIEW.*WITH \(path'


@pytest.fixture
def store(spark: SparkSession, local_store_url: str) -> Iterator[Store]:
    """The topics ``orders``, with three rows, and ``copy``. Tables and views of a test are dropped."""
    with txnstore.create(local_store_url) as created:
        for name in ("orders", "copy"):
            created.create_topic(name, partitions=2, schema=SCHEMA, key="id")
        with created.producer() as producer:
            producer.send_table("orders", [{"id": number, "name": f"n{number}"} for number in range(3)])
        yield created
    for table in spark.catalog.listTables():
        drop = spark.catalog.dropTempView if table.isTemporary else lambda name: spark.sql(f"drop table {name}")
        drop(table.name)


def options(store: Store, topic: str = "orders", **more: str) -> str:
    given = {"path": store.url, "topic": topic, **more}
    return "(" + ", ".join(f"{name} = '{value}'" for name, value in given.items()) + ")"


def rows(store: Store, topic: str) -> list[tuple[int, str | None]]:
    table = store.scan(topic, columns=["id", "name"]).to_table()
    return sorted((row["id"], row["name"]) for row in table.to_pylist())


def refusal(statement: Callable[[], object]) -> str:
    """The message of a refused statement: the line of the error, and none of a traceback."""
    with pytest.raises(Exception, match=r"txnstore\.errors\.") as raised:
        statement()
    message = str(raised.value)
    assert "Traceback" not in message
    assert "source.py" not in message
    assert len(message.strip().splitlines()) <= 4
    return message


def tables(spark: SparkSession) -> list[str]:
    return sorted(table.name for table in spark.catalog.listTables() if not table.isTemporary)


def test_create_table_without_columns_is_refused_with_the_view_that_works(spark: SparkSession, store: Store) -> None:
    """All of the statement's own options are in the view of the message, which then reads and takes rows."""
    statements: list[Callable[[], object]] = [
        lambda: spark.sql(f"create table t using txnstore options {options(store)}"),
        lambda: spark.sql(f"create table t using txnstore options (topic 'orders') location '{store.url}' comment 'c'"),
        lambda: spark.catalog.createTable("t", source="txnstore", path=store.url, topic="orders"),
    ]
    for statement in statements:
        message = refusal(statement)
        assert "cannot be a table of Spark's catalog" in message
        assert tables(spark) == []
        view = re.search(r"CREATE TEMPORARY VIEW name USING txnstore OPTIONS \(.*?\)", message)
        assert view is not None
        spark.sql(view[0])
        assert sorted(map(tuple, spark.sql("select * from name").collect())) == rows(store, "orders")
        spark.catalog.dropTempView("name")


def test_a_table_with_declared_columns_is_refused_when_it_is_used(spark: SparkSession, store: Store) -> None:
    """Spark creates it without a question to the source; options in the statement serve it."""
    spark.sql(f"create table t (id bigint, name string) using txnstore options {options(store)}")
    assert "this read has no options" in refusal(lambda: spark.sql("select * from t").collect())
    for insert in (
        "insert into t values (1, 'x')",
        "insert into t select id, name from range(1), (select 'x' as name)",
    ):
        assert re.search("this write has no options.*" + ADVICE, refusal(partial(spark.sql, insert)))
    frame = spark.sql("select 4L as id, 'df' as name")
    assert re.search(ADVICE, refusal(lambda: frame.write.insertInto("t")))
    assert re.search(ADVICE, refusal(lambda: frame.writeTo("t").append()))
    with_options = f"with {options(store, 'copy')}"
    spark.sql(f"insert into t {with_options} values (1, 'sql')")
    frame.writeTo("t").options(path=store.url, topic="copy").append()
    frame.write.format("txnstore").options(path=store.url, topic="copy").mode("append").saveAsTable("t")
    assert rows(store, "copy") == [(1, "sql"), (4, "df"), (4, "df")]
    assert spark.sql(f"select * from t {with_options}").count() == 3
    assert [row.col_name for row in spark.sql("describe t").collect()][:2] == ["id", "name"]
    spark.sql("drop table t")  # Of a table with a path, Spark deletes no files.
    assert rows(store, "orders") == [(0, "n0"), (1, "n1"), (2, "n2")]


def test_columns_that_the_topic_does_not_have_are_named(spark: SparkSession, store: Store) -> None:
    spark.sql("create table t (id bigint, other string) using txnstore")
    spark.sql("create table u (id string, name string) using txnstore")
    given = f"with {options(store)}"
    assert "topic 'orders' has no column 'other'" in refusal(lambda: spark.sql(f"select * from t {given}").collect())
    assert "topic 'orders' has no column 'other'" in refusal(
        lambda: spark.sql(f"insert into t {given} values (1, 'x')")
    )
    assert "column 'id' is of type bigint" in refusal(lambda: spark.sql(f"select * from u {given}").collect())


def test_a_write_that_creates_a_table_writes_nothing(spark: SparkSession, store: Store) -> None:
    """CTAS and ``saveAsTable``: refused, the rows are not appended, and the table is not left behind."""
    frame = spark.sql("select 5L as id, 'new' as name")
    given = {"path": store.url, "topic": "copy"}
    for text in (
        "create table t using txnstore as select 5L as id",
        f"create table t using txnstore options {options(store)} as select * from range(3)",
    ):
        assert re.search(ADVICE, refusal(partial(spark.sql, text)))
    writes: list[Callable[[], object]] = [
        lambda: frame.write.format("txnstore").options(**given).saveAsTable("t"),
        lambda: frame.write.format("txnstore").options(**given).mode("append").saveAsTable("t"),
        lambda: frame.writeTo("t").using("txnstore").options(**given).create(),
    ]
    for write in writes:
        assert re.search("the new table could not be read, and nothing was written.*" + ADVICE, refusal(write))
        assert tables(spark) == []
    for overwrite in (
        lambda: frame.write.format("txnstore").options(**given).mode("overwrite").saveAsTable("t"),
        lambda: frame.writeTo("t").using("txnstore").options(**given).createOrReplace(),
    ):
        assert "a log can only be appended to" in refusal(overwrite)
    assert rows(store, "copy") == []


def test_a_view_reads_and_takes_rows(spark: SparkSession, store: Store) -> None:
    """``systemColumns 'ignore'`` leaves the topic's own columns, so that rows fit by position."""
    spark.sql(f"create temporary view o using txnstore options {options(store)}")
    spark.sql(f"create temporary view c using txnstore options {options(store, 'copy', systemColumns='ignore')}")
    assert spark.table("o").columns == ["_topic", "_partition", "_offset", "_timestamp", "id", "name"]
    assert spark.table("c").columns == ["id", "name"]
    spark.sql("insert into c values (10, 'position')")
    spark.sql("insert into c (name, id) values ('list', 11)")
    spark.sql("insert into c by name select name, id + 20 as id from o where _offset = 0 and id = 0")
    spark.sql("insert into c select id, name from o where id = 1")
    spark.sql("select 13L as id, 'df' as name").write.insertInto("c")
    assert rows(store, "copy") == [(1, "n1"), (10, "position"), (11, "list"), (13, "df"), (20, "n0")]
    for text in ("insert overwrite c values (1, 'x')", "insert into c replace where id = 1 values (1, 'x')"):
        with pytest.raises(Exception, match=r"a log can only be appended to|does not support"):
            spark.sql(text)
    assert 'option("systemColumns", "ignore")' in refusal(lambda: spark.sql("insert into o select * from o"))


@pytest.mark.parametrize(
    "text",
    [
        "execute immediate \"insert into c values (1, 'x')\"",
        pytest.param(
            "begin insert into c values (1, 'x'); end",
            marks=[] if RELEASE >= (4, 1) else pytest.mark.xfail(reason="Spark 4.0 has no scripts", strict=True),
        ),
    ],
)
def test_a_write_inside_of_another_statement_is_none_that_creates_a_table(
    spark: SparkSession, store: Store, text: str
) -> None:
    spark.sql(f"create temporary view c using txnstore options {options(store, 'copy', systemColumns='ignore')}")
    spark.sql(text)
    assert rows(store, "copy") == [(1, "x")]


def test_a_frame_of_one_topic_is_written_to_another(spark: SparkSession, store: Store) -> None:
    """What a reader added is refused by name, or ignored: ``_topic`` still names the topic where no option does."""
    frame = load(spark, store.url, "orders")
    sequence = connection_of(store).view().sequence
    message = refusal(lambda: append(frame, store.url, "copy"))
    assert "column '_offset' is given by the store" in message
    assert 'option("systemColumns", "ignore"), which ignores _partition, _offset, _timestamp' in message
    assert "systemColumns must be 'include' or 'ignore'" in refusal(
        lambda: append(frame, store.url, "copy", systemColumns="drop")
    )
    assert connection_of(store).view().sequence == sequence
    append(frame, store.url, "copy", systemColumns="ignore")
    assert rows(store, "copy") == rows(store, "orders")
    routed = frame.selectExpr("'copy' as _topic", "99 as _partition", "_offset", "_timestamp", "id + 10 as id", "name")
    append(routed, store.url, systemColumns="ignore")
    assert len(rows(store, "copy")) == 6
    append(frame, store.url, "new", systemColumns="ignore", createTopic="true")
    assert store.topic("new").schema == SCHEMA


def test_a_refused_column_creates_no_topic(spark: SparkSession, store: Store) -> None:
    message = refusal(lambda: append(load(spark, store.url, "orders"), store.url, "new", createTopic="true"))
    assert "column '_offset' is given by the store" in message
    assert "new" not in [topic.name for topic in store.topics()]


def test_what_spark_itself_refuses(spark: SparkSession, store: Store) -> None:
    """None of these is silent. Spark's own note of a table is all that ALTER and DROP change: not the topic."""
    spark.sql("create table t (id bigint, name string) using txnstore")
    for statement in (
        "truncate table t",
        "delete from t",
        "update t set name = 'x'",
        "select * from txnstore.`file:///elsewhere`",
    ):
        with pytest.raises(Exception, match=r"not support|UNSUPPORTED|Unsupported"):
            spark.sql(statement)
    spark.sql("alter table t add columns (more int)")
    spark.sql("drop table t")
    assert rows(store, "orders") == [(0, "n0"), (1, "n1"), (2, "n2")]


def test_an_error_in_a_task_is_its_line(spark: SparkSession, store: Store) -> None:
    def wrong(frame: DataFrame) -> None:
        append(frame, store.url, "orders")

    message = refusal(lambda: wrong(spark.sql("select 1L as id, 'x' as name, 7 as _partition")))
    assert "txnstore.errors.UnknownTopicOrPartitionError: topic 'orders' has 2 partitions" in message
    assert refusal(lambda: load(spark, store.url, "none")).count("there is no topic 'none'") == 1
