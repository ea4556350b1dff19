"""Everything that reads a store, and what it must not do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tests.harness.corruption.buckets import CONTROL, Bucket
from tests.helpers.cli import captured
from txnstore.errors import CorruptionError, StoreNotFoundError, TxnStoreError
from txnstore.spark import types
from txnstore.spark.options import Location, ReadOptions
from txnstore.spark.reads.planning import projection_schema
from txnstore.spark.reads.reader import TxnStoreReader
from txnstore.spark.stores import open_reader
from txnstore.sql.types import quote
from txnstore.sql.views import view_names
from txnstore.store import Store
from txnstore.store import open as open_store

_OBJECT = re.compile(r"(topics/|chains/|store\.json|entries/|checkpoints/|latest)")
_OBJECT_OR_CHAIN = re.compile(f"{_OBJECT.pattern}|the chain")
COMMANDS = (
    ("topic", "list"), ("txn", "list"), ("txn", "find-hanging"), ("group", "list"), ("info",), ("log",), ("metrics",),
    ("verify", "--deep"),
)  # fmt: skip
_PLACE = ("_partition", "_offset")

#: Takes the step in which something is wrong, and what is wrong.
Note = Callable[[str, str], None]
#: What returns the rows of topics, each topic in the order of partitions and offsets.
Reader = Callable[[Store, Sequence[str]], list[pa.Table]]


# What reads -----------------------------------------------------------------------------------------------------------


def _scan(store: Store, topics: Sequence[str]) -> list[pa.Table]:
    return [_sorted(store.scan(topic).to_table()) for topic in topics]


def _sql(store: Store, topics: Sequence[str]) -> list[pa.Table]:
    views = [view_names(store.snapshot().view)[topic] for topic in topics]
    return [_sorted(store.sql(f"SELECT * FROM {quote(view)}").to_arrow_table()) for view in views]


def _consume(store: Store, topics: Sequence[str]) -> list[pa.Table]:
    with store.consumer([*topics]) as consumer:
        records = [record for _ in range(12) for record in consumer.poll()]
    rows = [(it.topic, it.partition, it.offset, str(it.value).encode("utf-8", "backslashreplace")) for it in records]
    columns = ("_topic", *_PLACE, "value")
    return [
        _sorted(
            pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows if row[0] == topic], _CONSUMED)
        )
        for topic in topics
    ]


_CONSUMED = pa.schema({"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64(), "value": pa.binary()})


def _spark(store: Store, topics: Sequence[str]) -> list[pa.Table]:
    """The plan of a Spark read and its tasks, without Spark's own processes."""
    return [_planned(ReadOptions(Location(store.url), (topic,))) for topic in topics]


def _planned(options: ReadOptions) -> pa.Table:
    with open_reader(options.location) as connection:
        fields = types.spark_schema(projection_schema(connection.view(refresh=False), options))
    assert types.ddl(fields)
    reader = TxnStoreReader(options, from_arrow_schema(fields))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return _sorted(pa.Table.from_batches(batches) if batches else _CONSUMED.empty_table())


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in _PLACE])


READERS: dict[str, Reader] = {"scan": _scan, "sql": _sql, "consume": _consume, "spark": _spark}


def places(table: pa.Table) -> list[tuple[int, int]]:
    """The partitions and offsets of rows."""
    return list(zip(*(table[name].to_pylist() for name in _PLACE), strict=True))


# What is wrong --------------------------------------------------------------------------------------------------------


def guarded(step: str, call: Callable[[], Any], note: Note, *, strict: bool = False) -> Any:
    """The result of a call; None after an error of txnstore.

    Notes any other error. Damage names an object or its chain; in ``strict`` cases, where only an object can be wrong,
    each error names one, unless there is no store.
    """
    pattern = _OBJECT if strict else _OBJECT_OR_CHAIN
    try:
        return call()
    except TxnStoreError as error:
        must_name = not isinstance(error, StoreNotFoundError) if strict else isinstance(error, CorruptionError)
        if must_name and not pattern.search(str(error)):
            note(step, f"no object is named: {error!r}"[:300])
    except duckdb.Error as error:  # A relation is evaluated outside of the store's methods.
        if not pattern.search(str(error)):
            note(step, f"no object is named: {error!r}"[:300])
    except Exception as error:  # noqa: BLE001 - reported
        note(step, f"{error!r}"[:300])
    return None


def read_all(store: Store, topic: str, note: Note) -> dict[str, list[tuple[int, int]]]:
    """The places of the rows of a topic that each reader shows; without readers that raised."""
    tables = {
        name: guarded(f"{name} {topic[:40]!r}", partial(read, store, [topic]), note) for name, read in READERS.items()
    }
    return {name: places(read[0]) for name, read in tables.items() if read is not None}


def command(url: str, arguments: tuple[str, ...], note: Note) -> None:
    """Run a command, on a terminal and as JSON; it must not fail by accident, nor move the cursor of the terminal."""
    for terminal in (True, False):
        name = " ".join(arguments) + ("" if terminal else " --json")
        options = () if terminal else ("--json",)
        call = lambda: captured("--debug", "--store", url, *options, *arguments, terminal=terminal)  # noqa: B023, E731
        done = guarded(name, call, note)
        if terminal and done is not None and (wrong := CONTROL.search(done.out)):
            note(name, f"a control character on the terminal: {done.out[max(0, wrong.start() - 40) :][:80]!r}")


def use(bucket: Bucket, note: Note) -> None:
    """Open the store and read everything in every way."""
    store = guarded("open", lambda: open_store(bucket.url), note)
    for arguments in COMMANDS:
        command(bucket.url, arguments, note)
    if store is None:
        return
    with store:
        topics = guarded("topics", store.topics, note) or []
        report = guarded("verify", lambda: store.verify(deep=True), note)
        answers = {topic.name: read_all(store, topic.name, note) for topic in topics}
        for name, readers in answers.items():
            if len({tuple(rows) for rows in readers.values()}) > 1 and report is not None and report.ok:
                counts = {reader: len(rows) for reader, rows in readers.items()}
                note(f"read {name[:40]!r}", f"the readers do not agree, and verify finds nothing: {counts}")
        guarded("groups", store.groups, note)
        guarded("transactions", store.transactions, note)
        maintain(store, note)
        for topic in topics:
            guarded(f"scan {topic.name[:40]!r} after compaction", partial(_scan, store, [topic.name]), note)
    check_keys(bucket, note)


def maintain(store: Store, note: Note, *, strict: bool = False) -> None:
    """Compact the store, then delete what no reader needs."""
    guarded("compact", store.compact, note, strict=strict)
    guarded("vacuum", store.vacuum, note, strict=strict)


def check_keys(bucket: Bucket, note: Note) -> None:
    """Note the keys outside of the store that were asked for."""
    for key in sorted(bucket.wrong):
        note("keys", f"a request for {key[:100]!r}")
