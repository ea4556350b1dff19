"""Tables in tests: where they are, and what a reader finds in them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.files import DataFile, TableFiles
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.tables.published import Published, TableState
from txnstore.testing import ManualClock

#: A row as a table shows it, and as a scan does: the partition, the offset, and the values of the columns.
Row = tuple[int, int, tuple[Any, ...]]


class EngineObjects(MemoryStore):
    """Objects in memory that say of themselves that engines can read them."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock=clock)
        #: Called before each creation of an object, with its key.
        self.before_create: Callable[[str], None] = lambda _: None

    @property
    def url(self) -> str:
        return "s3://bucket/store"

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.before_create(key)
        return super().put_if_absent(key, data)


def another(store: Store, clock: ManualClock, objects: ObjectStore | None = None) -> Store:
    """The store as another process has it; ``objects``: what that process reaches it through."""
    return open_on(objects if objects is not None else connection_of(store).counts.inner, runtime=runtime(clock))


def published(store: Store) -> Published:
    """What was published of a store."""
    connection = connection_of(store)
    return Published(connection.objects, store.store_id, connection.pool, location_of(connection.objects))


def newest(store: Store) -> CutDocument:
    """The newest cut."""
    cut = published(store).newest()
    assert cut is not None
    return cut


def state_of(store: Store, topic: str) -> TableState:
    """The table of a topic in the newest cut."""
    return published(store).table_state(newest(store).tables[topic])


def table_rows(store: Store, topic: str, table: PublishedTable | None = None) -> list[Row]:
    """The rows that a reader finds in the table of a topic, in a cut or in the newest one."""
    state = published(store).table_state(table if table is not None else newest(store).tables[topic])
    return rows_of(store, topic, state.files)


def rows_of(store: Store, topic: str, files: TableFiles) -> list[Row]:
    """The rows that a reader finds in these files: in order of their offsets in each partition."""
    connection = connection_of(store)
    location, columns = location_of(connection.objects), _columns(store, topic)
    rows: list[Row] = []
    for file in files.data.values():
        deleted = set[int]()
        if file.path in files.deletes:
            positions = _read(connection.objects, location, files.deletes[file.path].path)
            assert set(positions.column("file_path").to_pylist()) == {file.path}
            deleted = set(positions.column("pos").to_pylist())
        rows += [row for at, row in enumerate(_rows(connection.objects, location, file, columns)) if at not in deleted]
    return sorted(rows, key=lambda row: row[:2])


def _columns(store: Store, topic: str) -> list[str]:
    schema = store.topic(topic).schema
    return [*(RECORD_SCHEMA if schema is None else schema).names]


def _rows(objects: ObjectStore, location: Location, file: DataFile, columns: list[str]) -> list[Row]:
    table = _read(objects, location, file.path)
    assert table.num_rows == file.rows
    offsets = table.column("_offset").to_pylist()
    assert file.first <= offsets[0] <= offsets[-1] <= file.last
    values = [table.column(name).to_pylist() if name in table.column_names else [None] * len(table) for name in columns]
    return [(file.partition, *row) for row in zip(offsets, zip(*values, strict=True), strict=True)]


def _read(objects: ObjectStore, location: Location, path: str) -> pa.Table:
    return pq.read_table(io.BytesIO(objects.get(location.key(path))))


def scanned(store: Store, topic: str, cut: CutDocument | None = None) -> list[Row]:
    """The rows that a scan finds, now or at a cut."""
    snapshot = None
    if cut is not None:
        snapshot = store.snapshot(cut.heads[0] if len(cut.heads) == 1 else tuple(cut.heads))
    table = store.scan(topic, snapshot=snapshot).to_table()
    columns = [table.column(name).to_pylist() for name in _columns(store, topic)]
    keys = (table.column("_partition").to_pylist(), table.column("_offset").to_pylist())
    return sorted(zip(*keys, zip(*columns, strict=True), strict=True), key=lambda row: row[:2])
