"""Writes one new version of a table: its data files, manifests and metadata, under names that nothing else has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from txnstore.catalog.iceberg.columns import table_columns
from txnstore.catalog.iceberg.cut import PublishedTable
from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.catalog.iceberg.groups import Group, files_of, next_groups
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.catalog.iceberg.manifest import describe_manifest, encode_manifest, encode_manifest_list
from txnstore.catalog.iceberg.metadata import (
    CLEANED,
    HEADS,
    LOG_STARTS,
    PUBLISHED,
    TIMES,
    TableMetadata,
    TableSnapshot,
)
from txnstore.chain import keys
from txnstore.chain.codec import content_hash
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import visible
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.tables.plan import Bounds, PartitionPlan, Step, Tail, Written, plan_partition, steps
from txnstore.tables.published import TableState, manifest_name
from txnstore.tables.writing import FileWriter

#: How long a table keeps snapshots after others have replaced them, in ms, and how many snapshots at most.
HISTORY_MS, HISTORY_SNAPSHOTS = 12 * 3_600_000, 1_000
#: The ids of snapshots of a publication before the last one.
_EARLIER_STEPS = 1 << 62


@dataclass(frozen=True, slots=True)
class Version:
    """A new version of a table, whose objects are written.

    Attributes:
        table: What the cut says of it.
        data: The bytes of its metadata.
        state: Its files; None of a table that is dropped.
        operations: The kinds of its new snapshots, in order.
    """

    table: PublishedTable
    data: bytes = field(repr=False)
    state: TableState | None
    operations: tuple[str, ...] = ()


def plan_table(view: View, topic: CatalogTopic, state: TableState | None, location: Location) -> list[PartitionPlan]:
    """What changes in each partition of a topic's table, so that it shows a view.

    Args:
        state: What the table has now; None: nothing of this topic.
        location: Where the objects of the store are.
    """
    shown: dict[int, list[DataFile]] = {}
    for file in state.files.data.values() if state is not None else ():
        shown.setdefault(file.partition, []).append(file)
    current = state.metadata.current if state is not None else None
    before = _bounds_of(current) if current is not None else {}
    return [
        plan_partition(
            tp.partition,
            shown.get(tp.partition, ()),
            visible(tp, log, Isolation.READ_COMMITTED),
            bounds_of_log(log),
            before.get(tp.partition, Bounds()),
            location.of,
        )
        for tp, log in view.partitions_of(topic.name)
    ]


def bounds_of_log(log: Partition) -> Bounds:
    """The bounds of a partition."""
    return Bounds(log.log_start, log.clean_until)


class TableWork:
    """What one publication does for one table.

    Args:
        view: What is published.
        state: What the table has now; None: nothing of this topic.
        table: What the newest cut says of it.
    """

    def __init__(
        self,
        connection: Connection,
        view: View,
        topic: CatalogTopic,
        state: TableState | None,
        table: PublishedTable | None,
    ) -> None:
        self._connection, self._view, self.topic, self._table = connection, view, topic, table
        self._location = location_of(connection.objects)
        self._columns = table_columns(topic)
        self._metadata = state.metadata if state is not None else None
        self._groups = state.groups if state is not None else ()
        self._files = state.files if state is not None else TableFiles({}, {})
        self._bounds = [bounds_of_log(log) for _, log in view.partitions_of(topic.name)]
        self.plans = plan_table(view, topic, state, self._location)

    @property
    def changes(self) -> bool:
        """Whether the table has to change, or does not exist yet; maybe not if only rows are to be copied."""
        return self._is_new or any(plan.changes for plan in self.plans)

    @property
    def _is_new(self) -> bool:
        """Whether the table does not exist yet, or has other columns."""
        return self._metadata is None or self._metadata.columns.fields != self._columns.fields

    @property
    def tails(self) -> list[Tail]:
        """The rows to copy."""
        return [tail for plan in self.plans for tail in plan.tails]

    @property
    def copied_bytes(self) -> int:
        """About how many bytes of segments are copied."""
        return sum(map(_size, self.tails))

    def write(self, number: int, now: int, *, forced: bool) -> Version | None:
        """Write the next version, all but its copies under the names that engines look for.

        Args:
            now: The time in ms.
            forced: Whether to write one without a change, too.

        Returns:
            The version; None if nothing changes: what was to be copied has no rows.
        """
        written = self._write_files()
        changes = steps(self._files, self.plans, written)
        if not (changes or forced or self._is_new):
            return None
        metadata = self._metadata or TableMetadata(
            self.topic.topic_id,
            self._location.of(keys.table(self.topic.name).rstrip("/")),
            self.topic.name,
            (self._columns,),
            updated=now,
        )
        if self._metadata is not None and self._table is not None:
            metadata = metadata.with_columns(self._columns)
            metadata = metadata.after(self._location.of(self._table.metadata), now)
        current = metadata.current
        at = max(now, current.published) if current is not None else now  # Clocks differ; the order stays.
        snapshots, groups = self._snapshots(metadata, changes, at)
        metadata = metadata.with_snapshots(snapshots).with_history(now - HISTORY_MS, HISTORY_SNAPSHOTS)
        key, data = metadata_of(self._connection, self.topic.name, number, metadata)
        self._connection.objects.put(key, data)
        oldest = metadata.snapshots[0] if metadata.snapshots else None
        state = TableState(key, metadata, groups, files_of(groups))
        table = PublishedTable(
            topic_id=self.topic.topic_id,
            number=number,
            metadata=key,
            sha256=content_hash(data),
            snapshot_id=metadata.current.snapshot_id if metadata.current is not None else None,
            oldest=list(oldest.numbers(TIMES)) if oldest is not None else None,
            replaced=metadata.oldest_replaced,
            rows=state.files.rows,
            bytes=state.files.size,
            copied_bytes=sum(file.size for file in state.copies(self._location)),
        )
        return Version(table, data, state, tuple(step.operation for step in changes))

    def _write_files(self) -> Written:
        tails, trims = self.tails, [trim for plan in self.plans for trim in plan.trims]
        if not tails and not trims:
            return Written({}, {})
        writer = FileWriter(self._connection, self._location, self.topic, len({tail.partition for tail in tails}))
        return Written(
            {tail: writer.tail(tail) for tail in tails},
            {trim.file.path: writer.deletes(trim) for trim in trims},
        )

    def _snapshots(
        self, metadata: TableMetadata, changes: Sequence[Step], now: int
    ) -> tuple[tuple[TableSnapshot, ...], tuple[Group, ...]]:
        """Write the manifests of all snapshots, and their lists; returns the snapshots, and the last manifests."""
        snapshots: list[TableSnapshot] = []
        groups, files = [*self._groups], self._files
        parent = metadata.current.snapshot_id if metadata.current is not None else None
        for place, step in enumerate(changes):
            last = place == len(changes) - 1
            number = self._view.sequence if last else _EARLIER_STEPS + 4 * self._view.sequence + place
            sequence = metadata.sequence + place + 1
            added: list[DataFile | DeleteFile] = [*step.added, *step.added_deletes]
            groups = next_groups(groups, added, step.removed, number, sequence)
            groups = self._write_manifests(groups, metadata, number, sequence)
            manifests = [group.manifest for group in groups if group.manifest is not None]
            data = encode_manifest_list(manifests, number, parent, sequence, self._marker())
            path = self._put(data)
            after = files_of(groups)
            summary = self._summary(step, files, after, now)
            snapshots.append(
                TableSnapshot(number, parent, sequence, self._view.timestamp, path, metadata.schema_id, summary)
            )
            parent, files = number, after
        return tuple(snapshots), tuple(groups)

    def _write_manifests(
        self, groups: Iterable[Group], metadata: TableMetadata, snapshot_id: int, sequence: int
    ) -> list[Group]:
        written: list[Group] = []
        for group in groups:
            if group.manifest is None:
                data = encode_manifest(group.entries, self._columns, metadata.schema_id, self._marker())
                path = self._put(data)
                group = Group(describe_manifest(path, len(data), sequence, snapshot_id, group.entries), group.entries)
            written.append(group)
        return written

    def _marker(self) -> bytes:
        return bytes.fromhex(self._connection.runtime.new_id().replace("-", ""))

    def _put(self, data: bytes) -> str:
        key = keys.table_metadata(self.topic.name, manifest_name(self._connection.runtime.new_id(), data))
        self._connection.objects.put(key, data)
        return self._location.of(key)

    def _summary(self, step: Step, before: TableFiles, after: TableFiles, now: int) -> dict[str, str]:
        removed = [before.data[path] for path in step.removed if path in before.data]
        removed_deletes = [each for each in before.deletes.values() if each.path in step.removed]
        counts = {
            "added-data-files": len(step.added),
            "deleted-data-files": len(removed),
            "added-records": sum(file.rows for file in step.added),
            "deleted-records": sum(file.rows for file in removed),
            "added-position-deletes": sum(file.rows for file in step.added_deletes),
            "removed-position-deletes": sum(file.rows for file in removed_deletes),
            "total-data-files": len(after.data),
            "total-records": sum(file.rows for file in after.data.values()),
            "total-delete-files": len(after.deletes),
            "total-position-deletes": sum(file.rows for file in after.deletes.values()),
            "total-equality-deletes": 0,
            "total-files-size": after.size,
        }
        return {
            "operation": step.operation,
            **{name: str(count) for name, count in counts.items()},
            HEADS: _joined(state.sequence for state in self._view.states),
            TIMES: _joined(state.timestamp for state in self._view.states),
            PUBLISHED: str(now),
            LOG_STARTS: _joined(bounds.log_start for bounds in self._bounds),
            CLEANED: _joined(bounds.clean_until for bounds in self._bounds),
        }


def _bounds_of(snapshot: TableSnapshot) -> dict[int, Bounds]:
    """The bounds of each partition at a snapshot."""
    both = zip(snapshot.numbers(LOG_STARTS), snapshot.numbers(CLEANED), strict=True)
    return {number: Bounds(*bounds) for number, bounds in enumerate(both)}


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def metadata_of(connection: Connection, topic: str, number: int, metadata: TableMetadata) -> tuple[str, bytes]:
    """The key and the bytes of the metadata of a version."""
    name = f"{number:05d}-{connection.runtime.new_id()}.metadata.json"
    return keys.table_metadata(topic, name), metadata.encode()


def _size(tail: Tail) -> int:
    """About how many bytes of segments a tail copies."""
    return sum(
        part.batch.size * (part.limit - part.start) // max(1, part.batch.limit - part.batch.base_offset)
        for part in tail.slices
    )
