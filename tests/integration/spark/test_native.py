"""Spark's own Parquet reader over a plan of files gives what ``format("txnstore")`` gives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import SparkRuntimeException

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now, numbers, send
from tests.helpers.spark import is_native, load, rows, storage
from txnstore.core.model import TopicPartition
from txnstore.segment import parquet
from txnstore.spark import TxnStoreSource, read, register
from txnstore.spark.reads import native
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())])


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """A store with a typed topic whose times are finer than ``_timestamp``, and null in every fourth row."""
    with txnstore.create(local_store_url) as created:
        files = {"segment.own.bytes": 0}
        created.create_topic("typed", partitions=2, schema=SCHEMA, key="id", timestamp="at", config=files)
        commit(created, 0, 40)
        yield created


def commit(store: Store, first: int, limit: int, *, abort: bool = False) -> None:
    """One transaction of rows with these ids."""
    ids = list(range(first, limit))
    times = [None if number % 4 == 0 else number * 1_000_700 for number in ids]
    table = pa.table([ids, times, [f"n{number}" for number in ids]], schema=SCHEMA)
    with store.producer("writer") as producer:
        producer.begin_transaction()
        producer.send_table("typed", table)
        producer.flush()
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def same(spark: SparkSession, store: Store, **bounds: Any) -> int:
    """Check that both roads give the same rows; returns how many."""
    isolation, start = bounds.get("isolation", "read_committed"), json.dumps(bounds.get("start", {}))
    native = read(spark, store.url, "typed", **bounds)
    other = load(spark, store.url, "typed", isolation=isolation, startingOffsets=start)
    assert is_native(native)
    assert not is_native(other)
    assert native.columns == other.columns
    assert [field.dataType for field in native.schema] == [field.dataType for field in other.schema]
    native_rows = rows(native)
    assert native_rows == rows(other)
    return len(native_rows)


def test_both_roads_agree_whatever_lies_in_the_log(spark: SparkSession, store: Store) -> None:
    """Committed, aborted, open, merged and cut: aborted and open data drops out with its files (CON-02, LSO-11)."""
    commit(store, 40, 60, abort=True)
    commit(store, 60, 70)
    assert same(spark, store) == 50
    assert same(spark, store, isolation="read_uncommitted") == 70
    assert store.compact("typed").segments_before > 0
    commit(store, 70, 80)
    assert same(spark, store) == 60
    end = store.offsets("typed", 1).high_watermark  # The marker has the offset before.
    merged_and_fresh = same(spark, store, start={0: 7, 1: end - 3})
    assert 0 < merged_and_fresh < 30


def test_columns_bounds_and_snapshots(spark: SparkSession, store: Store) -> None:
    """The arguments are those of a scan."""
    snapshot = store.snapshot()
    commit(store, 40, 50)
    options: dict[str, Any] = {"columns": ["name", "_offset"], "partitions": [1], "start": 2, "end": {1: 9}}
    frame = read(spark, store.url, "typed", snapshot=snapshot, **options)
    assert is_native(frame)
    assert frame.columns == ["name", "_offset"]
    expected = store.scan("typed", snapshot=snapshot, **options).to_table().to_pylist()
    assert [row.asDict() for row in frame.orderBy("_offset").collect()] == expected
    assert read(spark, store.url, "typed", snapshot=snapshot).count() == 40
    assert read(spark, store.url, "typed").count() == 50


def test_columns_of_yesterday_and_of_today(spark: SparkSession, store: Store) -> None:
    """Files of an older schema: what they lack is null, what they hold is widened; the key keeps its type."""
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    store.alter_topic("typed", schema=wider)
    with store.producer("writer") as producer, producer.transaction() as txn:
        txn.send_table("typed", pa.table([[100], [5]], names=["id", "more"]))
    assert same(spark, store) == 41


def test_many_files_are_planned_without_a_job(spark: SparkSession, store: Store) -> None:
    """Spark is given the list of the files; it would look for more than 32 paths in a job with one task for each."""
    with store.producer("writer") as producer:
        for number in range(40, 80):
            with producer.transaction() as txn:
                txn.send_table("typed", pa.table([[number]], names=["id"]))
    assert same(spark, store) == 80
    spark.sparkContext.setJobGroup("plan", "plan of many files")
    frame = read(spark, store.url, "typed")
    spark.sparkContext.setJobGroup("other", "")
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("plan")
    assert read(spark, store.url, "typed", columns=["id"]).count() == frame.count() == 80


def test_session_that_ignores_lists_of_files_takes_the_other_road(spark: SparkSession, store: Store) -> None:
    """With this setting Spark would look into the folder of the list, which has no data: not one row would be read."""
    other = spark.newSession()
    other.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
    frame = read(other, store.url, "typed")
    assert not is_native(frame)
    assert frame.count() == 40


def test_frames_of_two_snapshots_are_never_taken_for_each_other(spark: SparkSession, store: Store) -> None:
    """Spark reads a persisted frame where it finds the same plan: that of another snapshot is another plan."""
    before = read(spark, store.url, "typed").persist()
    try:
        assert before.count() == 40
        commit(store, 40, 50)
        assert read(spark, store.url, "typed").count() == 50
        assert before.count() == 40
    finally:
        before.unpersist()


def test_nothing_to_read_is_an_empty_frame(spark: SparkSession, store: Store) -> None:
    store.create_topic("empty", schema=SCHEMA)
    frame = read(spark, store.url, "empty")
    assert frame.columns == ["_topic", "_partition", "_offset", "_timestamp", *SCHEMA.names]
    assert frame.collect() == []


def test_other_segments_take_the_other_road(spark: SparkSession, store: Store) -> None:
    """Arrow files are nothing that Spark reads itself; the rows are the same, of the same snapshot."""
    store.create_topic("arrow", schema=SCHEMA, config={"segment.format": "arrow"})
    with store.producer("writer") as producer, producer.transaction() as txn:
        txn.send_table("arrow", pa.table([[1, 2, 3]], names=["id"]))
    frame = read(spark, store.url, "arrow", columns=["id", "_offset"], start=1)
    assert not is_native(frame)
    with store.producer("writer") as producer, producer.transaction() as txn:
        txn.send_table("arrow", pa.table([[4]], names=["id"]))
    store.delete_records({TopicPartition("arrow", 0): 3})
    assert sorted(map(tuple, frame.collect())) == [(2, 1), (3, 2)]


@pytest.mark.s3
def test_a_store_on_s3(
    spark: SparkSession, s3_bucket_url: str, storage_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials travel as ``storage.*`` options; without hadoop-aws the scan takes the other road, with a warning."""
    with txnstore.create(s3_bucket_url, storage_options=storage_options) as store:
        store.create_topic("events", partitions=2)
        frame = spark.range(0, 20, 1, 2).selectExpr("cast(id % 3 as string) as key", "cast(id as string) as value")
        options = {"topic": "events", **storage(storage_options)}
        frame.write.format("txnstore").options(**options).mode("append").save(s3_bucket_url)
        records = spark.read.format("txnstore").options(**options).load(s3_bucket_url)
        assert sorted(int(row["value"]) for row in records.collect()) == list(range(20))
        scanned = read(spark, s3_bucket_url, "events", columns=["value"], storage_options=storage_options)
        assert "Add hadoop-aws to spark.jars.packages" in caplog.text
        assert sorted(int(row["value"]) for row in scanned.collect()) == list(range(20))
        assert connection_of(store).view().partitions[TopicPartition("events", 0)].high_watermark > 0


def test_a_session_may_know_the_source_by_registration(spark: SparkSession, store: Store) -> None:
    """For sessions that cannot find packages; it is the class that the look-up finds by itself."""
    from pyspark_txnstore import DefaultSource

    assert DefaultSource is TxnStoreSource
    other = spark.newSession()
    register(other)
    assert load(other, store.url, "typed").count() == 40


@pytest.mark.parametrize("name", ["100%25 of it", "a b%", "*[a-b]{c}?", "year=2026"])
def test_folder_with_any_name_is_read_natively(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with txnstore.create(tmp_path / name) as store:
        store.create_topic("typed", schema=SCHEMA, key="id", timestamp="at")
        commit(store, 0, 8)
        assert same(spark, store) == 8


@pytest.mark.parametrize(("name", "native"), [("a b%20ü", True), ("*[a-b]{c}?", False)])
def test_temporary_folder_may_have_any_name(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, native: bool
) -> None:
    """The list of the files is written there."""
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    frame = read(spark, store.url, "typed")
    assert is_native(frame) is native
    assert frame.count() == 40


def test_rows_of_shared_segments_are_read_by_the_driver(spark: SparkSession, store: Store) -> None:
    """Those of small commits, in entries or objects: together with files, alone, cut by offsets, and projected."""
    with store.producer("small") as producer, producer.transaction() as txn:
        txn.send_table("typed", pa.table([[100, 101], [None, 5_000], ["x", None]], schema=SCHEMA))
    assert same(spark, store) == 42
    assert same(spark, store, start={0: 1, 1: 21}) < 42
    assert rows(read(spark, store.url, "typed", columns=["name"], start={0: 40, 1: 40})) == []
    store.create_topic("own", schema=SCHEMA)
    with store.producer() as producer:
        producer.send_table("own", [{"id": 1, "at": None, "name": "n"}]).result()
    assert rows(read(spark, store.url, "own")) == rows(load(spark, store.url, "own"))
    store.alter_topic("typed", config={"inline.bytes": 0, "segment.own.bytes": 10_000})
    commit(store, 200, 240)
    batches = [part.batch for part in store.scan("typed").plan()]
    assert any(batch.shared and not batch.segment.inlined for batch in batches)
    assert same(spark, store) == 82


@pytest.mark.parametrize("why", ["an arrow file", "shared segments that are too large"])
def test_the_driver_reads_nothing_that_it_would_discard(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The objects with the rows that it would read are missing, which only a read of them notices."""
    small = {"inline.bytes": 0, "segment.own.bytes": 10_000, "segment.format": "parquet"}
    store.alter_topic("typed", config=small)
    commit(store, 40, 60)
    shared = {part.batch.segment for part in store.scan("typed").plan() if part.batch.shared}
    for segment in shared:
        Path(store.url.removeprefix("file://"), segment.key).unlink()
    with pytest.raises(txnstore.CorruptionError):
        read(spark, store.url, "typed")
    if why == "an arrow file":
        store.alter_topic("typed", config={**small, "segment.own.bytes": 0, "segment.format": "arrow"})
        commit(store, 60, 70)
    else:
        monkeypatch.setattr(native, "_SHARED_BYTES", sum(segment.size for segment in shared) - 1)
    assert not is_native(read(spark, store.url, "typed"))


@pytest.mark.parametrize(("column", "cut"), [("_partition", False), ("_offset", False), ("_offset", True)])
def test_a_merged_file_without_the_place_of_its_rows_is_damage(
    spark: SparkSession, store: Store, column: str, *, cut: bool
) -> None:
    """Its rows must neither have nulls instead nor be left out."""
    store.create_topic("merged", partitions=2)
    send(store, numbers(2), "merged")
    if cut:
        store.compact("merged")
    else:
        merge_now(store)
    options: dict[str, Any] = {"start": {0: 1}} if cut else {}
    part = store.scan("merged", **options).plan()[0]
    path = Path(store.url.removeprefix("file://"), part.batch.segment.key)
    path.chmod(0o644)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    frame = read(spark, store.url, "merged", columns=[column, "value"], partitions=[0] if cut else None, **options)
    assert is_native(frame)
    with pytest.raises(SparkRuntimeException, match=f"a merged segment has no {column}: .*{path.name}"):
        frame.collect()


def test_row_groups_outside_the_bounds_are_skipped(spark: SparkSession, store: Store) -> None:
    """Of merged files, which store the offsets."""
    commit(store, 40, 60)
    store.compact("typed")
    frame = read(spark, store.url, "typed", partitions=[0], start=7, end=9, columns=["id"])
    assert frame.count() == 2
    plan = frame._jdf.queryExecution().executedPlan().toString()
    for bound in ("GreaterThanOrEqual(_offset,7)", "LessThan(_offset,9)"):
        assert bound in plan


def test_times_without_a_zone_are_read_from_merged_files(spark: SparkSession, store: Store) -> None:
    """Where they are derived from the column they are not: Spark would take those for times in its own zone."""
    schema = pa.schema([("at", pa.timestamp("us"))])
    store.create_topic("local", schema=schema, timestamp="at", config={"inline.bytes": 0, "segment.own.bytes": 0})
    for first in (0, 2):
        with store.producer() as producer:
            producer.send_table("local", pa.table({"at": [first * 1_000_700, None]}, schema=schema)).result()
    assert not is_native(read(spark, store.url, "local"))
    store.compact("local")
    frame = read(spark, store.url, "local")
    assert is_native(frame)
    assert rows(frame) == rows(load(spark, store.url, "local"))


@pytest.mark.usefixtures("own_objects")
def test_column_with_a_comma_is_read_by_both(spark: SparkSession, tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("typed", schema=pa.schema([("a,b", pa.int64()), ("[c", pa.int64())]))
        with store.producer() as producer:
            producer.send_table("typed", [{"a,b": 1, "[c": 2}]).result()
        assert same(spark, store) == 1
        store.alter_topic("typed", config={"segment.format": "arrow"})
        with store.producer() as producer:
            producer.send_table("typed", [{"a,b": 3, "[c": 4}]).result()
        fallen_back = read(spark, store.url, "typed")
        assert not is_native(fallen_back)
        assert sorted(row["a,b"] for row in fallen_back.collect()) == [1, 3]


def test_column_with_the_name_of_sparks_metadata_takes_the_other_road(spark: SparkSession, tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("typed", schema=pa.schema([("_Metadata", pa.int64())]))
        with store.producer() as producer:
            producer.send_table("typed", [{"_Metadata": 7}]).result()
        frame = read(spark, store.url, "typed")
        assert not is_native(frame)
        assert frame.selectExpr("_Metadata", "_offset").collect() == [(7, 0)]


def test_nan_in_a_segment_of_an_older_release_is_found(
    spark: SparkSession, local_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statistics do not count NaN, which Spark takes for larger than all numbers."""
    monkeypatch.setattr(parquet, "_has_statistics", lambda data_type, dictionary: True)
    schema = pa.schema([("x", pa.float64()), ("f", pa.float32())])
    values = [1.0, math.nan, -0.0, None]
    with txnstore.create(local_store_url) as made:
        made.create_topic("t", schema=schema, config={"inline.bytes": 0, "segment.own.bytes": 0})
        with made.producer() as producer:
            producer.send_table("t", pa.table([values, values], schema=schema))
            producer.flush()
        frame = read(spark, made.url, "t")
    assert is_native(frame)
    for column in ("x", "f"):
        for condition, offsets in (("> 5", [1]), ("= double('NaN')", [1]), ("<= 5", [0, 2]), ("is null", [3])):
            found = frame.where(f"{column} {condition}").select("_offset").collect()
            assert sorted(row[0] for row in found) == offsets, (column, condition)
    assert math.copysign(1, frame.where("_offset = 2").select("x").collect()[0][0]) == -1
