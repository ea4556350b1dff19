"""The metadata of a table, Iceberg v2: schemas, snapshots, properties.

Source: the Iceberg table specification, "Table Metadata".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from txnstore.catalog.iceberg.columns import TableColumns
from txnstore.catalog.iceberg.manifest import PARTITION_SPEC_FIELD, partition_fields, schema_document
from txnstore.errors import CorruptionError

#: The members of a snapshot's summary that txnstore adds: the last entry of each chain, and the time of each.
HEADS, TIMES = "txnstore.heads", "txnstore.times"
#: For each partition, the offsets below which rows are deleted, and have been cleaned by key.
LOG_STARTS, CLEANED = "txnstore.log-starts", "txnstore.cleaned-until"
#: The time of the publication of the snapshot, in milliseconds since the epoch.
PUBLISHED = "txnstore.published-ms"
#: The most earlier metadata files in the metadata.
_MAX_EARLIER = 20


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A snapshot of a table.

    Attributes:
        parent: The id of the snapshot before it, which may be removed; None: it is the first one.
        sequence: Its sequence number.
        timestamp: The time of the cut that it shows, in milliseconds since the epoch.
        manifest_list: The location of its manifest list.
        schema_id: The number of its schema.
        summary: The ``operation``, counts, and the members of txnstore.
    """

    snapshot_id: int
    parent: int | None
    sequence: int
    timestamp: int
    manifest_list: str
    schema_id: int
    summary: Mapping[str, str]

    def numbers(self, name: str) -> tuple[int, ...]:
        """The numbers in a member of the summary."""
        return tuple(map(int, self.summary[name].split(",")))

    @property
    def published(self) -> int:
        """The time of publication, in milliseconds since the epoch: maybe long after the cut."""
        return int(self.summary[PUBLISHED])


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The metadata of a table.

    Attributes:
        uuid: The id of its topic.
        location: The location of its metadata and its own data files.
        topic: The name of its topic.
        schemas: Its schemas, by number. The last one is the current one.
        snapshots: The retained snapshots, oldest first; the last one is the current one.
        cuts: The time and the id of each retained snapshot that was a current one.
        sequence: The last sequence number.
        updated: The time of the last change, in milliseconds since the epoch.
        earlier: The time and the location of earlier metadata files.
    """

    uuid: str
    location: str
    topic: str
    schemas: tuple[TableColumns, ...]
    snapshots: tuple[TableSnapshot, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    sequence: int = 0
    updated: int = 0
    earlier: tuple[tuple[int, str], ...] = ()

    @property
    def columns(self) -> TableColumns:
        """The current columns."""
        return self.schemas[-1]

    @property
    def schema_id(self) -> int:
        """The number of the current schema."""
        return len(self.schemas) - 1

    @property
    def current(self) -> TableSnapshot | None:
        """The current snapshot; None without one."""
        return self.snapshots[-1] if self.snapshots else None

    def with_columns(self, columns: TableColumns) -> TableMetadata:
        """Return the metadata with these columns as the current ones."""
        return self if columns.fields == self.columns.fields else replace(self, schemas=(*self.schemas, columns))

    def with_snapshots(self, added: tuple[TableSnapshot, ...]) -> TableMetadata:
        """Return the metadata with these snapshots added; the last one becomes the current one."""
        if not added:
            return self
        last_snapshot = added[-1]
        return replace(
            self,
            snapshots=(*self.snapshots, *added),
            cuts=(*self.cuts, (last_snapshot.timestamp, last_snapshot.snapshot_id)),
            sequence=last_snapshot.sequence,
            # The time of a cut may be ahead of its publisher's clock, and Spark refuses older metadata.
            updated=max(self.updated, last_snapshot.timestamp),
        )

    def with_history(self, replaced_since: int, max_snapshots: int) -> TableMetadata:
        """Drop snapshots that were replaced before a time, or exceed ``max_snapshots``; the current one stays.

        The age of a snapshot does not matter: a reader that follows a table stays at the current one until there is a
        newer one.
        """
        retained_snapshots = [older for older, newer in pairwise(self.snapshots) if newer.published >= replaced_since]
        retained_snapshots = [
            *retained_snapshots[max(0, len(retained_snapshots) - max_snapshots + 1) :],
            *self.snapshots[-1:],
        ]
        retained_ids = {snapshot.snapshot_id for snapshot in retained_snapshots}
        cuts = tuple((timestamp, snapshot_id) for timestamp, snapshot_id in self.cuts if snapshot_id in retained_ids)
        return replace(self, snapshots=tuple(retained_snapshots), cuts=cuts)

    @property
    def oldest_replaced(self) -> int | None:
        """The time at which the oldest retained snapshot was replaced, in ms; None: it is the current one."""
        return self.snapshots[1].published if len(self.snapshots) > 1 else None

    def after(self, path: str, now: int) -> TableMetadata:
        """Return the next version of the metadata, written ``now``; ``path`` is the location of this version."""
        return replace(
            self, updated=max(now, self.updated), earlier=(*self.earlier, (self.updated, path))[-_MAX_EARLIER:]
        )

    def encode(self) -> bytes:
        """Encode the metadata as a JSON document."""
        current = self.current
        document: dict[str, Any] = {
            "format-version": 2,
            "table-uuid": self.uuid,
            "location": self.location,
            "last-sequence-number": self.sequence,
            "last-updated-ms": self.updated,
            "last-column-id": self.columns.last_id,
            "current-schema-id": self.schema_id,
            "schemas": [schema_document(columns, schema_id) for schema_id, columns in enumerate(self.schemas)],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": partition_fields()}],
            "last-partition-id": PARTITION_SPEC_FIELD,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {
                "schema.name-mapping.default": self.columns.name_mapping(),
                # Engines that expire snapshots or remove orphan files refuse to do it: the files are the store's.
                "gc.enabled": "false",
                "txnstore.topic": self.topic,
            },
            "snapshots": [_encode_snapshot(snapshot) for snapshot in self.snapshots],
            "snapshot-log": [
                {"timestamp-ms": timestamp, "snapshot-id": snapshot_id} for timestamp, snapshot_id in self.cuts
            ],
            "metadata-log": [{"timestamp-ms": timestamp, "metadata-file": path} for timestamp, path in self.earlier],
        }
        if current is not None:
            document["current-snapshot-id"] = current.snapshot_id
            document["refs"] = {"main": {"snapshot-id": current.snapshot_id, "type": "branch"}}
        return json.dumps(document, separators=(",", ":")).encode()


def decode_metadata(key: str, data: bytes) -> TableMetadata:
    """Decode a document that this module has written.

    Raises:
        CorruptionError: The bytes are damaged; the message names ``key``.
    """
    try:
        document = json.loads(data)
        return TableMetadata(
            uuid=document["table-uuid"],
            location=document["location"],
            topic=document["properties"]["txnstore.topic"],
            schemas=tuple(TableColumns(tuple(schema["fields"])) for schema in document["schemas"]),
            snapshots=tuple(map(_decode_snapshot, document["snapshots"])),
            cuts=tuple((entry["timestamp-ms"], entry["snapshot-id"]) for entry in document["snapshot-log"]),
            sequence=document["last-sequence-number"],
            updated=document["last-updated-ms"],
            earlier=tuple((entry["timestamp-ms"], entry["metadata-file"]) for entry in document["metadata-log"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        msg = f"{key} is no metadata of a table that txnstore has written: {type(error).__name__}: {error}"
        raise CorruptionError(msg) from error


def _encode_snapshot(snapshot: TableSnapshot) -> dict[str, Any]:
    document: dict[str, Any] = {
        "snapshot-id": snapshot.snapshot_id,
        "sequence-number": snapshot.sequence,
        "timestamp-ms": snapshot.timestamp,
        "manifest-list": snapshot.manifest_list,
        "schema-id": snapshot.schema_id,
        "summary": dict(snapshot.summary),
    }
    if snapshot.parent is not None:
        document["parent-snapshot-id"] = snapshot.parent
    return document


def _decode_snapshot(document: Any) -> TableSnapshot:
    """Decode a snapshot. Types are not checked: the cut has the hash of the document, which is compared before."""
    return TableSnapshot(
        snapshot_id=document["snapshot-id"],
        parent=document.get("parent-snapshot-id"),
        sequence=document["sequence-number"],
        timestamp=document["timestamp-ms"],
        manifest_list=document["manifest-list"],
        schema_id=document["schema-id"],
        summary=dict(document["summary"]),
    )
