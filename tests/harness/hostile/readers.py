"""Everything that reads a store, and what it must not do."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tests.helpers.cli import captured
from txnstore.errors import CorruptionError, TxnStoreError
from txnstore.spark import types
from txnstore.spark.options import Location, ReadOptions
from txnstore.spark.reads.planning import projection_schema
from txnstore.spark.reads.reader import TxnStoreReader
from txnstore.spark.stores import open_reader
from txnstore.sql.types import quote
from txnstore.sql.views import view_names
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.store import open as open_store

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_OBJECT = re.compile(r"(topics/|chains/|store\.json|entries/|checkpoints/|latest|the chain)")
COMMANDS = (
    ("topic", "list"), ("txn", "list"), ("txn", "find-hanging"), ("group", "list"), ("info",), ("log",), ("metrics",),
    ("verify", "--deep"),
)  # fmt: skip

Note = Callable[[str, str], None]


class Watched(MemoryStore):
    """Objects in memory that remember the keys that were asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name, clock=lambda: 1_700_000_000_000)
        self.wrong: set[str] = set()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read, and remember a key that no store has."""
        self._watch(key)
        return super().get(key, start, end)

    def _watch(self, key: str) -> None:
        in_layout = key == "store.json" or key.startswith(("topics/", "chains/", "leases/", "_probe"))
        if not in_layout or ".." in key.split("/") or _CONTROL.search(key):
            self.wrong.add(key)

    def delete(self, keys: Any) -> None:
        """Delete, and remember keys that no store has."""
        for key in keys:
            self._watch(key)
        super().delete(keys)


@contextmanager
def watched(name: str, objects: dict[str, bytes]) -> Iterator[Watched]:
    """A store at ``memory://name`` with these objects."""
    store = Watched(name)
    MemoryStore.forget(name)
    MemoryStore._by_name[name] = store
    try:
        for key, data in objects.items():
            store.put(key, data)
        yield store
    finally:
        MemoryStore.forget(name)


def guarded(step: str, call: Callable[[], Any], note: Note) -> Any:
    """The result of a call; None after an error of txnstore. Notes any other error, and damage that names no object."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except TxnStoreError as error:
        if isinstance(error, CorruptionError) and not _OBJECT.search(str(error)):
            note(step, f"no object is named: {error!r}"[:300])
    except duckdb.Error as error:  # A relation is evaluated outside of the store's methods.
        if not _OBJECT.search(str(error)):
            note(step, f"no object is named: {error!r}"[:300])
    except Exception as error:  # noqa: BLE001 - reported
        note(step, f"{error!r}"[:300])
    return None


def read_all(store: Store, topic: str, note: Note) -> dict[str, list[Any]]:
    """The rows of a topic as each reader shows them, sorted; without readers that raised."""
    readers = {"scan": _scan, "sql": _sql, "consume": _consume, "spark": _spark}
    rows_by_reader = {
        name: guarded(f"{name} {topic[:40]!r}", partial(read, store, topic), note) for name, read in readers.items()
    }
    return {name: rows for name, rows in rows_by_reader.items() if rows is not None}


def _scan(store: Store, topic: str) -> list[Any]:
    table = store.scan(topic).to_table()
    return _sorted(table)


def _sql(store: Store, topic: str) -> list[Any]:
    view = view_names(store.snapshot().view)[topic]
    return _sorted(store.sql(f"SELECT * FROM {quote(view)}").to_arrow_table())


def _spark(store: Store, topic: str) -> list[Any]:
    """The plan of a Spark read and its tasks, without Spark's own processes."""
    options = ReadOptions(Location(store.url), (topic,))
    with open_reader(options.location) as connection:
        fields = types.spark_schema(projection_schema(connection.view(refresh=False), options))
    assert types.ddl(fields)
    reader = TxnStoreReader(options, from_arrow_schema(fields))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return _sorted(pa.Table.from_batches(batches)) if batches else []


def _sorted(table: pa.Table) -> list[Any]:
    """The places of the rows."""
    return sorted(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))


def _consume(store: Store, topic: str) -> list[Any]:
    with store.consumer([topic]) as consumer:
        return sorted((it.partition, it.offset) for _ in range(3) for it in consumer.poll())


def command(url: str, arguments: tuple[str, ...], note: Note) -> None:
    """Run a command, on a terminal and as JSON; it must not fail by accident, nor move the cursor of the terminal."""
    for terminal in (True, False):
        name = " ".join(arguments) + ("" if terminal else " --json")
        options = () if terminal else ("--json",)
        call = lambda: captured("--debug", "--store", url, *options, *arguments, terminal=terminal)  # noqa: B023, E731
        done = guarded(name, call, note)
        if terminal and done is not None and (wrong := _CONTROL.search(done.out)):
            note(name, f"a control character on the terminal: {done.out[max(0, wrong.start() - 40) :][:80]!r}")


def use(bucket: Watched, note: Note) -> None:
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
        guarded("compact", store.compact, note)
        guarded("vacuum", store.vacuum, note)
        for topic in topics:
            guarded(f"scan {topic.name[:40]!r} after compaction", partial(_scan, store, topic.name), note)
    for key in sorted(bucket.wrong):
        note("keys", f"a request for {key[:100]!r}")
