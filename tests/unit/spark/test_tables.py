"""What a Python data source is asked for a table of Spark's catalog, what it answers, and how its errors look."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator

import pytest
from pyspark.sql.types import LongType, StringType, StructType

import txnstore
from tests.helpers.connections import connection_of
from txnstore.core.log.model import NewBatch, Segment
from txnstore.errors import InvalidConfigError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.spark import tables
from txnstore.spark.failures import line_first
from txnstore.spark.options import read_options, sink_options, write_options
from txnstore.spark.source import TxnStoreSource
from txnstore.spark.versions import HAS_ADMISSION_CONTROL, check_options
from txnstore.spark.writes.writer import check_no_table, find_topics, topics_to_write, with_min_upload_time
from txnstore.store import Store

#: The options that Spark gives at ``CREATE TABLE t USING txnstore OPTIONS (…)``, in 4.0 to 4.3.
CREATED = {
    "provider": "txnstore",
    "owner": "root",
    "location": "file:/data/store",
    "path": "file:/data/store",
    "topic": "orders",
    "option.topic": "orders",
}


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    with txnstore.create(local_store_url) as created:
        created.create_topic("t")
        yield created


def test_a_table_without_columns_is_refused_with_its_own_options() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        TxnStoreSource(CREATED).schema()
    assert str(raised.value).endswith(
        "CREATE TEMPORARY VIEW name USING txnstore OPTIONS "
        "(path 'file:///data/store', topic 'orders', systemColumns 'ignore')"
    )
    with pytest.raises(InvalidConfigError, match=r"OPTIONS \(path 's3://b/s', topic '…', systemColumns 'ignore'\)"):
        tables.check_columns({"provider": "txnstore", "option.path": "s3://b/s", "path": "s3a://b/s"})


def test_a_secret_of_a_refused_table_is_not_shown() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        tables.check_columns({**CREATED, "storage.secret": "hidden", "option.storage.secret": "hidden"})
    assert "hidden" not in str(raised.value)


def test_reads_and_writes_of_a_table_have_no_options() -> None:
    schema = StructType().add("id", LongType())
    with pytest.raises(InvalidConfigError, match=r"this read has no options.*WITH \(path"):
        TxnStoreSource({}).reader(schema)
    with pytest.raises(InvalidConfigError, match=r"this write has no options.*mode\(\"append\"\).*WITH \(path"):
        TxnStoreSource({}).writer(schema, overwrite=False)
    with pytest.raises(InvalidConfigError, match="a log can only be appended to"):
        TxnStoreSource({}).writer(schema, overwrite=True)


class Context:
    """The local properties of a task, by their names in Spark."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(key)


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({"spark.sql.execution.id": "2", "spark.sql.execution.root.id": "1"}, True),
        ({"spark.sql.execution.id": "2", "spark.sql.execution.root.id": "2"}, False),
        ({"spark.sql.execution.id": "2"}, False),
        ({}, False),
        ({"spark.sql.execution.id": "2", "spark.sql.execution.root.id": "1", "sql.streaming.queryId": "q"}, False),
    ],
)
def test_a_write_inside_of_another_query_creates_a_table(properties: dict[str, str], refused: bool) -> None:
    context = Context(**properties)
    if not refused:
        check_no_table(context)  # type: ignore[arg-type]  # What is used of it.
        return
    with pytest.raises(InvalidConfigError, match=r"nothing was written.*createTopic"):
        check_no_table(context)  # type: ignore[arg-type]
    check_no_table(None)


def test_system_columns_are_read_or_left_out(store: Store) -> None:
    def columns(**options: str) -> str:
        return str(TxnStoreSource({"path": store.url, "topic": "t", **options}).schema())

    assert columns().startswith("`_topic` string, `_partition` int")
    assert columns(systemColumns="include") == columns()
    assert columns(systemColumns="IGNORE").startswith("`key` binary, `value` binary")
    assert columns(systemColumns="ignore", columns="_offset,value") == "`_offset` bigint, `value` binary"
    with pytest.raises(InvalidConfigError, match="systemColumns must be 'include' or 'ignore', not 'drop'"):
        read_options({"path": "p", "topic": "t", "systemColumns": "drop"})


def test_rows_are_written_to_the_topic_of_the_options_or_to_those_that_they_name(store: Store) -> None:
    store.create_topic("u")
    view = connection_of(store).view()
    schema = StructType().add("value", StringType())
    assert list(topics_to_write(view, "t", schema)) == ["t"]
    assert sorted(topics_to_write(view, None, schema.add("_topic", StringType()))) == ["t", "u"]


def test_a_segment_is_not_older_than_the_job_that_wrote_it() -> None:
    """A vacuum deletes old uploads; the clock of a worker may be behind."""
    segment = Segment("topics/t/0/a.parquet", "parquet", 1, "00", 1)
    batches = [NewBatch("t", 0, segment, 0, 0, uploaded_at=at) for at in (None, 4, 6)]
    assert [each.uploaded_at for each in with_min_upload_time(batches, 5)] == [5, 5, 6]


@pytest.mark.parametrize("parse", [write_options, sink_options])
def test_what_a_write_ignores(store: Store, parse: object) -> None:
    assert callable(parse)
    connection, given = connection_of(store), {"path": store.url, "topic": "t"}
    schema = StructType().add("_topic", StringType()).add("_partition", LongType())
    schema = schema.add("_offset", LongType()).add("_timestamp", LongType()).add("value", StringType())
    with pytest.raises(
        SchemaMismatchError, match=r"'_offset' is given by the store.*option\(\"systemColumns\", \"ignore\"\)"
    ):
        find_topics(connection, parse(given), schema)
    assert list(find_topics(connection, parse({**given, "systemColumns": "ignore"}), schema)) == ["t"]
    options = parse({**given, "systemColumns": "ignore", "createTopic": "true", "topic": "new"})
    with pytest.raises(SchemaMismatchError, match=r"'_offset_2' is given by the store.*: drop it from the DataFrame$"):
        find_topics(connection, options, StructType().add("_offset_2", LongType()))
    assert [topic.name for topic in store.topics()] == ["t"]


@line_first
class Failing:
    def __init__(self, *, fail: bool = False) -> None:
        if fail:
            raise InvalidConfigError("start")

    def call(self, error: Exception) -> None:
        raise error

    def iterate(self) -> Iterator[int]:
        yield 1
        raise UnknownTopicOrPartitionError("later")


@pytest.mark.parametrize(("main", "hidden"), [("pyspark.daemon", "1"), ("pyspark.worker", "1"), ("job", None)])
def test_only_errors_of_txnstore_in_processes_of_spark_lose_their_traceback(
    monkeypatch: pytest.MonkeyPatch, main: str, hidden: str | None
) -> None:
    module = types.ModuleType("__main__")
    module.__spec__ = types.SimpleNamespace(name=main)  # type: ignore[assignment]  # What is used of it.
    monkeypatch.setitem(sys.modules, "__main__", module)

    def hides() -> str | None:
        return os.environ.pop("SPARK_HIDE_TRACEBACK", None)

    with pytest.raises(ZeroDivisionError):
        Failing().call(ZeroDivisionError())
    assert hides() is None
    with pytest.raises(InvalidConfigError, match="start"):
        Failing(fail=True)
    assert hides() == hidden
    with pytest.raises(SchemaMismatchError, match="call"):
        Failing().call(SchemaMismatchError("call"))
    assert hides() == hidden
    rows = Failing().iterate()
    assert next(rows) == 1
    with pytest.raises(UnknownTopicOrPartitionError, match="later"):
        next(rows)
    assert hides() == hidden


def test_a_driver_without_a_module_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script or a shell, whose main module has no spec."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(InvalidConfigError, match="start"):
        Failing(fail=True)
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_options_that_need_a_newer_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    check_options({"topic": "t"})
    assert HAS_ADMISSION_CONTROL
    check_options({"maxOffsetsPerTrigger": "5"})
    monkeypatch.setattr("txnstore.spark.versions.HAS_ADMISSION_CONTROL", False)
    check_options({"topic": "t"})
    with pytest.raises(InvalidConfigError, match=r"maxOffsetsPerTrigger needs Spark 4\.2 or newer\. This is Spark 4"):
        check_options({"maxoffsetspertrigger": "5"})
