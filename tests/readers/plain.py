"""A reader of Iceberg v2 tables, with nothing but fastavro and pyarrow: slow, plain, by the specification.

It shares no code with what writes the tables. Source: the Iceberg table specification, v2: "Scan Planning", "Column
Columns", "Delete Formats", "Name Mapping Serialization".
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

_EXISTING, _ADDED, _DELETED = 0, 1, 2
_DATA, _POSITION_DELETES = 0, 1
_NO_MAPPING: list[dict[str, Any]] = []
#: The columns of which manifests have bounds.
_OFFSET_FIELD, _TIMESTAMP_FIELD = 2, 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Returns the bytes of the object at a location.
Fetch = Callable[[str], bytes]
#: A row: the values of the table's columns by name.
Row = dict[str, Any]


class TableError(Exception):
    """A table breaks a rule of the specification."""


@dataclass(frozen=True)
class Entry:
    """A file in a manifest.

    Attributes:
        status: 0: existing, 1: added, 2: deleted.
        snapshot_id: The snapshot that added it, or deleted it.
        sequence: Its data sequence number.
        file: The record of the manifest.
    """

    status: int
    snapshot_id: int
    sequence: int
    file: dict[str, Any]

    @property
    def live(self) -> bool:
        return self.status != _DELETED

    @property
    def deletes(self) -> bool:
        return bool(self.file["content"] != _DATA)

    @property
    def partition(self) -> int:
        """The partition of the topic whose rows it has."""
        return int(self.file["partition"]["_partition_id"])

    @property
    def path(self) -> str:
        return str(self.file["file_path"])


class PlainTable:
    """A table by one version of its metadata.

    Args:
        metadata: The location of the metadata.
        fetch: Returns the bytes of the object at a location.
    """

    def __init__(self, metadata: str, fetch: Fetch) -> None:
        self._fetch = fetch
        self.document: dict[str, Any] = json.loads(fetch(metadata))
        if self.document["format-version"] != 2:
            raise TableError(f"{metadata} is of version {self.document['format-version']}")
        self.snapshots: dict[int, dict[str, Any]] = {each["snapshot-id"]: each for each in self.document["snapshots"]}
        if len(self.snapshots) != len(self.document["snapshots"]):
            raise TableError(f"{metadata} has two snapshots of one id")

    @property
    def current(self) -> int | None:
        """The id of the current snapshot; None without one."""
        number = self.document.get("current-snapshot-id")
        return None if number in {None, -1} else int(number)

    def schema(self, snapshot_id: int | None) -> dict[str, Any]:
        """The schema of a snapshot; of None the current one."""
        number = self.document["current-schema-id"]
        if snapshot_id is not None:
            number = self.snapshots[snapshot_id].get("schema-id", number)
        [schema] = [each for each in self.document["schemas"] if each["schema-id"] == number]
        return dict(schema)

    def bytes_of(self, entry: Entry) -> bytes:
        """The content of a file."""
        return self._fetch(entry.path)

    def rows(self, snapshot_id: int | None = None) -> list[Row]:
        """The rows of a snapshot, with the columns of its schema; None: the current snapshot and schema."""
        number = self.current if snapshot_id is None else snapshot_id
        if number is None:
            return []
        live = [entry for entry in self.entries(number) if entry.live]
        deletes = [entry for entry in live if entry.deletes]
        fields = self.schema(snapshot_id)["fields"]
        return [row for entry in live if not entry.deletes for row in self._rows_of(entry, deletes, fields)]

    def appended(self, snapshot_id: int) -> list[Row]:
        """The rows that a snapshot with the operation ``append`` has added.

        Raises:
            TableError: It has also removed or deleted something.
        """
        new = [entry for entry in self.entries(snapshot_id) if entry.status != _EXISTING]
        new = [entry for entry in new if entry.snapshot_id == snapshot_id]
        wrong = [entry.path for entry in new if entry.status == _DELETED or entry.deletes]
        if wrong:
            raise TableError(f"the snapshot {snapshot_id} is an append, and removes or deletes: {wrong}")
        fields = self.schema(snapshot_id)["fields"]
        return [row for entry in new for row in self._rows_of(entry, [], fields)]

    def entries(self, snapshot_id: int) -> list[Entry]:
        """What the manifests of a snapshot list; deleted files too.

        Raises:
            TableError: A count, a size or a bound of a manifest is wrong, or a file is listed twice.
        """
        entries = [
            entry
            for manifest in _records(self._fetch(self.snapshots[snapshot_id]["manifest-list"]))
            for entry in _entries_of(manifest, self._fetch(manifest["manifest_path"]))
        ]
        paths = [entry.path for entry in entries if entry.live]
        if len(set(paths)) != len(paths):
            raise TableError(f"the snapshot {snapshot_id} lists a file twice")
        return entries

    def _rows_of(self, entry: Entry, deletes: list[Entry], fields: list[dict[str, Any]]) -> Iterator[Row]:
        data = self._fetch(entry.path)
        if len(data) != entry.file["file_size_in_bytes"]:
            raise TableError(f"{entry.path} has {len(data)} bytes, not as its manifest says")
        mapping = json.loads(self.document["properties"].get("schema.name-mapping.default", "[]"))
        table = pq.read_table(pa.BufferReader(data))
        if table.num_rows != entry.file["record_count"]:
            raise TableError(f"{entry.path} has {table.num_rows} rows, not as its manifest says")
        deleted = self.positions(entry, deletes)
        if deleted and max(deleted) >= table.num_rows:
            raise TableError(f"a row of {entry.path} is deleted that it does not have")
        identity = {source: entry.file["partition"][name] for source, name in self._identities()}
        ids = _ids(table.schema, mapping)
        if unknown := set(table.column_names) - set(ids):
            raise TableError(f"{entry.path} has columns without field ids, which some engines refuse: {unknown}")
        names = {number: name for name, number in ids.items()}
        for place, row in enumerate(table.to_pylist()):
            _check_bounds(entry, row)
            if place not in deleted:
                yield {each["name"]: _column(each, row, names, mapping, identity) for each in fields}

    def positions(self, entry: Entry, deletes: list[Entry]) -> set[int]:
        """The rows of a data file that are deleted."""
        positions: set[int] = set()
        for delete in deletes:
            if delete.file["content"] != _POSITION_DELETES:
                raise TableError(f"{delete.path} has deletes by equality")
            if delete.sequence < entry.sequence or delete.file["partition"] != entry.file["partition"]:
                continue
            for row in pq.read_table(pa.BufferReader(self._fetch(delete.path))).to_pylist():
                if row["file_path"] == entry.path:
                    positions.add(row["pos"])
        return positions

    def _identities(self) -> list[tuple[int, str]]:
        """The source column and the name of each identity partition field."""
        [spec] = self.document["partition-specs"]
        return [(each["source-id"], each["name"]) for each in spec["fields"] if each["transform"] == "identity"]


def _records(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def _entries_of(manifest: Any, data: bytes) -> list[Entry]:
    """The entries of a manifest, with what they inherit of it."""
    path = manifest["manifest_path"]
    if len(data) != manifest["manifest_length"]:
        raise TableError(f"{path} has another size than the manifest list says")
    entries = [
        Entry(
            each["status"],
            manifest["added_snapshot_id"] if each["snapshot_id"] is None else each["snapshot_id"],
            manifest["sequence_number"] if each["sequence_number"] is None else each["sequence_number"],
            each["data_file"],
        )
        for each in _records(data)
    ]
    for status, name in enumerate(("existing", "added", "deleted")):
        of_status = [entry for entry in entries if entry.status == status]
        counted = len(of_status), sum(entry.file["record_count"] for entry in of_status)
        listed = manifest[f"{name}_files_count"], manifest[f"{name}_rows_count"]
        if counted != listed:
            raise TableError(f"{path} has {counted} {name} files and rows, the manifest list says {listed}")
    live = [entry.sequence for entry in entries if entry.live]
    if live and min(live) < manifest["min_sequence_number"]:
        raise TableError(f"{path} has the sequence number {min(live)}, below its smallest one")
    if any(entry.deletes != bool(manifest["content"]) for entry in entries):
        raise TableError(f"{path} has files of another content than the manifest list says")
    return entries


def _check_bounds(entry: Entry, row: Mapping[str, Any]) -> None:
    """Raise TableError if engines leave this row out when they look for its offset or its time."""
    values = {
        _OFFSET_FIELD: row["_offset"],
        _TIMESTAMP_FIELD: (row["_timestamp"] - _EPOCH) // timedelta(microseconds=1),
    }
    for name, wrong in (("lower_bounds", int.__lt__), ("upper_bounds", int.__gt__)):
        for bound in entry.file[name] or ():
            [value] = struct.unpack("<q", bound["value"])
            if wrong(values[bound["key"]], value):
                raise TableError(f"{entry.path} has a row outside of its {name}: {values}, {value}")


def _ids(schema: Any, mapping: list[dict[str, Any]]) -> dict[str, int]:
    """The field id of each column of a file: its own, or that of its name if the file has no ids."""
    metadata = ((field.name, field.metadata or {}) for field in schema)
    own = {name: int(each[b"PARQUET:field_id"]) for name, each in metadata if b"PARQUET:field_id" in each}
    mapped = [each for each in mapping if "field-id" in each]  # Without one, the table has no such column.
    return own or {name: each["field-id"] for each in mapped for name in each["names"] if name in schema.names}


def _column(
    field: Mapping[str, Any],
    row: Mapping[str, Any],
    names: Mapping[int, str],
    mapping: list[dict[str, Any]],
    identity: Mapping[int, Any],
) -> Any:
    """The value of a column of the table."""
    if field["id"] in names:
        inner = [each for each in mapping if each.get("field-id") == field["id"]]
        return _value(field["type"], row[names[field["id"]]], inner[0].get("fields", _NO_MAPPING) if inner else [])
    return identity.get(field["id"])


def _value(data_type: Any, value: Any, mapping: list[dict[str, Any]]) -> Any:
    """A value of a file as one of a type of the table: the fields of structs by id, through the mapping of names."""
    if value is None or not isinstance(data_type, dict):
        return value
    inner = {each["field-id"]: each for each in mapping}
    if data_type["type"] == "struct":
        return {
            field["name"]: _value(field["type"], value[name], inner[field["id"]].get("fields", _NO_MAPPING))
            for field in data_type["fields"]
            for name in inner[field["id"]]["names"]
            if name in value
        }
    if data_type["type"] == "list":
        below = inner[data_type["element-id"]].get("fields", _NO_MAPPING)
        return [_value(data_type["element"], each, below) for each in value]
    of_keys = inner[data_type["key-id"]].get("fields", _NO_MAPPING)
    of_values = inner[data_type["value-id"]].get("fields", _NO_MAPPING)
    return [
        (_value(data_type["key"], key, of_keys), _value(data_type["value"], each, of_values)) for key, each in value
    ]
