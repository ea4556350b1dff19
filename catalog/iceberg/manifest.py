"""Manifests and manifest lists of Iceberg v2: Avro files.

A manifest lists files, each with its status in a snapshot; a manifest list has the manifests of a snapshot.
Source: the Iceberg table specification, "Manifests" and "Manifest Lists".
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from txnstore.catalog.iceberg.columns import (
    OFFSET_FIELD,
    PARTITION_FIELD,
    PARTITION_ID,
    TIMESTAMP_FIELD,
    TableColumns,
)
from txnstore.catalog.iceberg.files import DataFile, DeleteFile
from txnstore.errors import CorruptionError, InvalidConfigError

#: The id of the partition field of all tables: the identity of ``_partition_id``.
PARTITION_SPEC_FIELD = 1000
#: Iceberg's reserved id of the column ``file_path`` of position deletes.
_FILE_PATH_FIELD = 2147483546


class Status(IntEnum):
    """The status of a file in the snapshot that wrote its manifest."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file in a manifest.

    Attributes:
        status: The status in the snapshot of the manifest.
        snapshot_id: The snapshot that added the file; for a deleted file, the one that deleted it.
        sequence: The data sequence number: position deletes apply to files of their number or a smaller one.
    """

    status: Status
    snapshot_id: int
    sequence: int
    file: DataFile | DeleteFile

    @property
    def live(self) -> bool:
        """Whether the file is part of the table."""
        return self.status is not Status.DELETED


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest in a manifest list.

    Attributes:
        path: The absolute location.
        size: The size in bytes.
        deletes: Whether it lists delete files, not data files.
        sequence: The sequence number of the snapshot that wrote it.
        least_sequence: The smallest data sequence number of its live files; ``sequence`` if it has none.
        snapshot_id: The snapshot that wrote it.
        files: The number of its files by status.
        rows: The number of their rows by status.
        partitions: The smallest and the largest partition of its files.
    """

    path: str
    size: int
    deletes: bool
    sequence: int
    least_sequence: int
    snapshot_id: int
    files: tuple[int, int, int]
    rows: tuple[int, int, int]
    partitions: tuple[int, int]


def describe_manifest(
    path: str, size: int, sequence: int, snapshot_id: int, entries: Sequence[ManifestEntry]
) -> Manifest:
    """Describe a manifest with these entries, at least one, for a manifest list."""
    partitions = [entry.file.partition for entry in entries]

    def count(status: Status) -> int:
        return sum(entry.status is status for entry in entries)

    def rows(status: Status) -> int:
        return sum(entry.file.rows for entry in entries if entry.status is status)

    return Manifest(
        path,
        size,
        isinstance(entries[0].file, DeleteFile),
        sequence,
        min((entry.sequence for entry in entries if entry.live), default=sequence),
        snapshot_id,
        (count(Status.EXISTING), count(Status.ADDED), count(Status.DELETED)),
        (rows(Status.EXISTING), rows(Status.ADDED), rows(Status.DELETED)),
        (min(partitions), max(partitions)),
    )


# Writing --------------------------------------------------------------------------------------------------------------


def encode_manifest(
    entries: Sequence[ManifestEntry], columns: TableColumns, schema_id: int, sync_marker: bytes
) -> bytes:
    """Encode a manifest with entries, at least one, all of data files or all of delete files.

    Args:
        columns: The columns of the table.
        schema_id: The number of the schema.
        sync_marker: 16 bytes that differ from file to file.
    """
    metadata = {
        "schema": json.dumps(schema_document(columns, schema_id)),
        "schema-id": str(schema_id),
        "partition-spec": json.dumps(partition_fields()),
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "deletes" if isinstance(entries[0].file, DeleteFile) else "data",
    }
    return _write_avro(_entry_schema(), [_entry_record(entry) for entry in entries], metadata, sync_marker)


def encode_manifest_list(
    manifests: Iterable[Manifest], snapshot_id: int, parent: int | None, sequence: int, sync_marker: bytes
) -> bytes:
    """Encode the manifest list of a snapshot.

    Args:
        parent: The id of the snapshot before it; None: it is the first one.
        sequence: Its sequence number.
        sync_marker: 16 bytes that differ from file to file.
    """
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(sequence),
        "format-version": "2",
    }
    return _write_avro(_list_schema(), [_list_record(manifest) for manifest in manifests], metadata, sync_marker)


def schema_document(columns: TableColumns, schema_id: int) -> dict[str, Any]:
    """A schema as in Iceberg's JSON."""
    return {"type": "struct", "schema-id": schema_id, "fields": list(columns.fields)}


def partition_fields() -> list[dict[str, Any]]:
    """The fields of the partition spec of all tables."""
    return [
        {
            "name": PARTITION_ID,
            "transform": "identity",
            "source-id": PARTITION_FIELD,
            "field-id": PARTITION_SPEC_FIELD,
        }
    ]


def _entry_record(entry: ManifestEntry) -> dict[str, Any]:
    """Return an entry as a record of a manifest, for a data file or a file of deletes."""
    file = entry.file
    record = {
        "content": 0,
        "file_path": file.path,
        "file_format": "PARQUET",
        "partition": {PARTITION_ID: file.partition},
        "record_count": file.rows,
        "file_size_in_bytes": file.size,
        "referenced_data_file": None,
    }
    if isinstance(file, DeleteFile):
        path_bound = [{"key": _FILE_PATH_FIELD, "value": file.data_path.encode()}]
        record |= {
            "content": 1,
            "lower_bounds": path_bound,
            "upper_bounds": path_bound,
            "referenced_data_file": file.data_path,
        }
    else:
        record |= {
            "lower_bounds": _encode_bounds(file.first, file.oldest * 1000),
            "upper_bounds": _encode_bounds(file.last, file.newest * 1000),
        }
    return {
        "status": int(entry.status),
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.sequence,
        "data_file": record,
    }


def _encode_bounds(offset: int, microseconds: int) -> list[dict[str, Any]]:
    values = ((OFFSET_FIELD, offset), (TIMESTAMP_FIELD, microseconds))
    return [{"key": field_id, "value": struct.pack("<q", value)} for field_id, value in values]


def _list_record(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as a record of a manifest list."""
    lowest_partition, highest_partition = (struct.pack("<i", partition) for partition in manifest.partitions)
    existing_files, added_files, deleted_files = manifest.files
    existing_rows, added_rows, deleted_rows = manifest.rows
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.size,
        "partition_spec_id": 0,
        "content": int(manifest.deletes),
        "sequence_number": manifest.sequence,
        "min_sequence_number": manifest.least_sequence,
        "added_snapshot_id": manifest.snapshot_id,
        "added_files_count": added_files,
        "existing_files_count": existing_files,
        "deleted_files_count": deleted_files,
        "added_rows_count": added_rows,
        "existing_rows_count": existing_rows,
        "deleted_rows_count": deleted_rows,
        "partitions": [
            {
                "contains_null": False,
                "contains_nan": False,
                "lower_bound": lowest_partition,
                "upper_bound": highest_partition,
            }
        ],
    }


def _write_avro(schema: Any, records: list[dict[str, Any]], metadata: dict[str, str], sync_marker: bytes) -> bytes:
    sink = io.BytesIO()
    avro().writer(sink, schema, records, codec="deflate", metadata=metadata, sync_marker=sync_marker)
    return sink.getvalue()


# Reading --------------------------------------------------------------------------------------------------------------


def decode_manifest(key: str, data: bytes) -> list[ManifestEntry]:
    """Decode the entries of a manifest that this module has written.

    Raises:
        CorruptionError: The bytes are damaged; the message names ``key``.
    """
    return [_decode_record(key, _decode_entry, record) for record in _read_avro(key, data)]


def decode_manifest_list(key: str, data: bytes) -> list[Manifest]:
    """Decode the manifests of a manifest list that this module has written.

    Raises:
        CorruptionError: The bytes are damaged; the message names ``key``.
    """
    return [_decode_record(key, _decode_manifest_record, record) for record in _read_avro(key, data)]


def _read_avro(key: str, data: bytes) -> list[Any]:
    library = avro()  # Outside of the try: a missing library is no damage.
    try:
        return list(library.reader(io.BytesIO(data)))
    except Exception as error:
        # The library raises many kinds of errors for damaged bytes.
        raise _damage_error(key, error) from error


def _decode_record(key: str, make: Any, record: Any) -> Any:
    try:
        return make(record)
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise _damage_error(key, error) from error


def _damage_error(key: str, error: Exception) -> CorruptionError:
    return CorruptionError(f"{key} is no manifest that txnstore has written: {type(error).__name__}: {error}")


def _decode_entry(record: Any) -> ManifestEntry:
    """Convert the Avro record of a file; its bounds are those of offset and time."""
    file_record = record["data_file"]
    path = file_record["file_path"]
    partition = file_record["partition"][PARTITION_ID]
    rows, size = file_record["record_count"], file_record["file_size_in_bytes"]
    file: DataFile | DeleteFile
    if file_record["content"]:
        file = DeleteFile(path, partition, file_record["referenced_data_file"], rows, size)
    else:
        first_offset, oldest_us = _decode_bounds(file_record["lower_bounds"])
        last_offset, newest_us = _decode_bounds(file_record["upper_bounds"])
        file = DataFile(path, partition, first_offset, last_offset, rows, size, oldest_us // 1000, newest_us // 1000)
    return ManifestEntry(Status(record["status"]), record["snapshot_id"], record["sequence_number"], file)


def _decode_bounds(bounds: Any) -> tuple[int, int]:
    values = {bound["key"]: struct.unpack("<q", bound["value"])[0] for bound in bounds}
    return values[OFFSET_FIELD], values[TIMESTAMP_FIELD]


def _decode_manifest_record(record: Any) -> Manifest:
    """Convert the Avro record of a manifest list; the bounds are those of the partition."""
    (summary,) = record["partitions"]
    names = ("existing", "added", "deleted")
    return Manifest(
        record["manifest_path"],
        record["manifest_length"],
        bool(record["content"]),
        record["sequence_number"],
        record["min_sequence_number"],
        record["added_snapshot_id"],
        tuple(record[f"{name}_files_count"] for name in names),
        tuple(record[f"{name}_rows_count"] for name in names),
        tuple(struct.unpack("<i", summary[name])[0] for name in ("lower_bound", "upper_bound")),
    )


# The schemas of the files ---------------------------------------------------------------------------------------------


def avro() -> Any:
    """Import and return ``fastavro``.

    Raises:
        InvalidConfigError: It is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        msg = "tables need fastavro, which is not installed: install txnstore with its extra tables"
        raise InvalidConfigError(msg) from error
    return fastavro


def _required_field(name: str, number: int, data_type: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "field-id": number}


def _optional_field(name: str, number: int, data_type: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", data_type], "default": None, "field-id": number}


def _record_schema(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _bytes_by_id(key: int, value: int) -> dict[str, Any]:
    """The schema of a map from field ids to bytes: an array of pairs, since keys of Avro's maps are text."""
    pair = _record_schema(
        f"k{key}_v{value}", _required_field("key", key, "int"), _required_field("value", value, "bytes")
    )
    return {"type": "array", "items": pair, "logicalType": "map"}


@cache
def _entry_schema() -> Any:
    """Return the Avro schema of a manifest: the fields of the Iceberg specification that txnstore writes."""
    partition = _record_schema("r102", _optional_field(PARTITION_ID, PARTITION_SPEC_FIELD, "int"))
    file = _record_schema(
        "r2",
        _required_field("content", 134, "int"),
        _required_field("file_path", 100, "string"),
        _required_field("file_format", 101, "string"),
        _required_field("partition", 102, partition),
        _required_field("record_count", 103, "long"),
        _required_field("file_size_in_bytes", 104, "long"),
        _optional_field("lower_bounds", 125, _bytes_by_id(126, 127)),
        _optional_field("upper_bounds", 128, _bytes_by_id(129, 130)),
        _optional_field("referenced_data_file", 143, "string"),
    )
    return avro().parse_schema(
        _record_schema(
            "manifest_entry",
            _required_field("status", 0, "int"),
            _optional_field("snapshot_id", 1, "long"),
            _optional_field("sequence_number", 3, "long"),
            _optional_field("file_sequence_number", 4, "long"),
            _required_field("data_file", 2, file),
        )
    )


@cache
def _list_schema() -> Any:
    """Return the Avro schema of a manifest list, with the field ids of the Iceberg specification."""
    summary = _record_schema(
        "r508",
        _required_field("contains_null", 509, "boolean"),
        _optional_field("contains_nan", 518, "boolean"),
        _optional_field("lower_bound", 510, "bytes"),
        _optional_field("upper_bound", 511, "bytes"),
    )
    return avro().parse_schema(
        _record_schema(
            "manifest_file",
            _required_field("manifest_path", 500, "string"),
            _required_field("manifest_length", 501, "long"),
            _required_field("partition_spec_id", 502, "int"),
            _required_field("content", 517, "int"),
            _required_field("sequence_number", 515, "long"),
            _required_field("min_sequence_number", 516, "long"),
            _required_field("added_snapshot_id", 503, "long"),
            _required_field("added_files_count", 504, "int"),
            _required_field("existing_files_count", 505, "int"),
            _required_field("deleted_files_count", 506, "int"),
            _required_field("added_rows_count", 512, "long"),
            _required_field("existing_rows_count", 513, "long"),
            _required_field("deleted_rows_count", 514, "long"),
            _optional_field("partitions", 507, {"type": "array", "items": summary, "element-id": 508}),
        )
    )
