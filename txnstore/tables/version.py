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
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.tables.plan import Bounds, PartitionPlan, Step, Tail, WrittenFiles, plan_partition, plan_steps
from txnstore.tables.published import TableState, manifest_name
from txnstore.tables.writing import FileWriter

#: The retention of snapshots after their replacement, in ms, and the most snapshots of a table.
HISTORY_MS, HISTORY_SNAPSHOTS = 12 * 3_600_000, 1_000
#: The first id of snapshots before the last one of a publication, which has at most so many of them.
_FIRST_EARLIER_ID, _MAX_STEPS = 1 << 62, 4


@dataclass(frozen=True, slots=True)
class Version:
    """A new version of a table, whose objects are written.

    Attributes:
        table: The entry of the table in the cut.
        data: The bytes of its metadata.
        state: The state of the table; None if it is dropped.
        operations: The kinds of its new snapshots, in order.
    """

    table: PublishedTable
    data: bytes = field(repr=False)
    state: TableState | None
    operations: tuple[str, ...] = ()


def plan_table(view: View, topic: CatalogTopic, state: TableState | None, location: Location) -> list[PartitionPlan]:
    """Plan the file changes that bring each partition of a table to the committed records of ``view``.

    Args:
        state: The state of the table; None: it has nothing of this topic.
        location: The location of the store's objects.
    """
    files_by_partition: dict[int, list[DataFile]] = {}
    for file in state.files.data.values() if state is not None else ():
        files_by_partition.setdefault(file.partition, []).append(file)
    current = state.metadata.current if state is not None else None
    old_bounds = _bounds_at(current) if current is not None else {}
    return [
        plan_partition(
            tp.partition,
            files_by_partition.get(tp.partition, ()),
            visible_slices(tp, log, Isolation.READ_COMMITTED),
            bounds_of_log(log),
            old_bounds.get(tp.partition, Bounds()),
            location.of,
        )
        for tp, log in view.partitions_of(topic.name)
    ]


def bounds_of_log(log: Partition) -> Bounds:
    """The bounds of a partition."""
    return Bounds(log.log_start, log.clean_until)


class TableWork:
    """The work of one publication for one table.

    Args:
        view: The view to publish.
        state: The state of the table; None: it has nothing of this topic.
        table: The entry of the table in the newest cut.
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
    def has_changes(self) -> bool:
        """Whether the table must change; it may turn out that rows to copy do not exist."""
        return self._is_new or any(plan.has_changes for plan in self.plans)

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
        """The approximate bytes of segments to copy."""
        return sum(map(_estimate_bytes, self.tails))

    def write(self, number: int, now: int, *, forced: bool) -> Version | None:
        """Write the next version, except its copies under the names that engines look for.

        Args:
            now: The time in ms.
            forced: Whether to write a version even without a change.

        Returns:
            The version; None if nothing changes, because the rows to copy do not exist.
        """
        written = self._write_files()
        steps = plan_steps(self._files, self.plans, written)
        if not (steps or forced or self._is_new):
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
        # Clocks differ, and times must not decrease.
        published_at = now if metadata.current is None else max(now, metadata.current.published)
        snapshots, groups = self._write_snapshots(metadata, steps, published_at)
        metadata = metadata.with_snapshots(snapshots).with_history(now - HISTORY_MS, HISTORY_SNAPSHOTS)
        key, data = encode_metadata(self._connection, self.topic.name, number, metadata)
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
        return Version(table, data, state, tuple(step.operation for step in steps))

    def _write_files(self) -> WrittenFiles:
        """Write copies of the rows that no segment has as the table needs them, and the files of deletes."""
        tails = self.tails
        trims = [trim for plan in self.plans for trim in plan.trims]
        if not tails and not trims:
            return WrittenFiles({}, {})
        writer = FileWriter(self._connection, self._location, self.topic, len({tail.partition for tail in tails}))
        return WrittenFiles(
            {tail: writer.write_tail(tail) for tail in tails},
            {trim.file.path: writer.write_deletes(trim) for trim in trims},
        )

    def _write_snapshots(
        self, metadata: TableMetadata, steps: Sequence[Step], now: int
    ) -> tuple[tuple[TableSnapshot, ...], tuple[Group, ...]]:
        """Write the manifests and manifest lists of a snapshot for each step.

        Returns:
            The snapshots, and the manifests of the last one.
        """
        snapshots: list[TableSnapshot] = []
        groups = [*self._groups]
        files = self._files
        parent_id = metadata.current.snapshot_id if metadata.current is not None else None
        for index, step in enumerate(steps):
            snapshot_id = self._snapshot_id(index, len(steps))
            sequence = metadata.sequence + index + 1
            added_files: list[DataFile | DeleteFile] = [*step.added, *step.added_deletes]
            groups = next_groups(groups, added_files, step.removed, snapshot_id, sequence)
            groups = self._write_manifests(groups, metadata, snapshot_id, sequence)
            manifests = [group.manifest for group in groups if group.manifest is not None]
            data = encode_manifest_list(manifests, snapshot_id, parent_id, sequence, self._new_sync_marker())
            path = self._put(data)
            new_files = files_of(groups)
            summary = self._summary(step, files, new_files, now)
            snapshots.append(
                TableSnapshot(snapshot_id, parent_id, sequence, self._view.timestamp, path, metadata.schema_id, summary)
            )
            parent_id, files = snapshot_id, new_files
        return tuple(snapshots), tuple(groups)

    def _snapshot_id(self, index: int, count: int) -> int:
        """The id of one of ``count`` snapshots: the sequence number of the view for the last, which readers see."""
        if index == count - 1:
            return self._view.sequence
        return _FIRST_EARLIER_ID + _MAX_STEPS * self._view.sequence + index

    def _write_manifests(
        self, groups: Iterable[Group], metadata: TableMetadata, snapshot_id: int, sequence: int
    ) -> list[Group]:
        """Write the manifests of new groups; return all groups with theirs."""
        written_groups: list[Group] = []
        for group in groups:
            if group.manifest is None:
                data = encode_manifest(group.entries, self._columns, metadata.schema_id, self._new_sync_marker())
                path = self._put(data)
                group = Group(describe_manifest(path, len(data), sequence, snapshot_id, group.entries), group.entries)
            written_groups.append(group)
        return written_groups

    def _new_sync_marker(self) -> bytes:
        """A new sync marker of an Avro file."""
        return bytes.fromhex(self._connection.runtime.new_id().replace("-", ""))

    def _put(self, data: bytes) -> str:
        key = keys.table_metadata(self.topic.name, manifest_name(self._connection.runtime.new_id(), data))
        self._connection.objects.put(key, data)
        return self._location.of(key)

    def _summary(self, step: Step, old_files: TableFiles, new_files: TableFiles, now: int) -> dict[str, str]:
        """Return the summary of a snapshot: the counts of the Iceberg specification, and the position in the chains."""
        removed_files = [old_files.data[path] for path in step.removed if path in old_files.data]
        removed_deletes = [file for file in old_files.deletes.values() if file.path in step.removed]
        counts = {
            "added-data-files": len(step.added),
            "deleted-data-files": len(removed_files),
            "added-records": sum(file.rows for file in step.added),
            "deleted-records": sum(file.rows for file in removed_files),
            "added-position-deletes": sum(file.rows for file in step.added_deletes),
            "removed-position-deletes": sum(file.rows for file in removed_deletes),
            "total-data-files": len(new_files.data),
            "total-records": sum(file.rows for file in new_files.data.values()),
            "total-delete-files": len(new_files.deletes),
            "total-position-deletes": sum(file.rows for file in new_files.deletes.values()),
            "total-equality-deletes": 0,
            "total-files-size": new_files.size,
        }
        return {
            "operation": step.operation,
            **{name: str(count) for name, count in counts.items()},
            HEADS: _join_numbers(state.sequence for state in self._view.states),
            TIMES: _join_numbers(state.timestamp for state in self._view.states),
            PUBLISHED: str(now),
            LOG_STARTS: _join_numbers(bounds.log_start for bounds in self._bounds),
            CLEANED: _join_numbers(bounds.clean_until for bounds in self._bounds),
        }


def _bounds_at(snapshot: TableSnapshot) -> dict[int, Bounds]:
    """The bounds of each partition at a snapshot."""
    bounds_by_partition = zip(snapshot.numbers(LOG_STARTS), snapshot.numbers(CLEANED), strict=True)
    return {number: Bounds(*bounds) for number, bounds in enumerate(bounds_by_partition)}


def _join_numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def encode_metadata(connection: Connection, topic: str, number: int, metadata: TableMetadata) -> tuple[str, bytes]:
    """Return the key and the bytes of a version's metadata."""
    name = f"{number:05d}-{connection.runtime.new_id()}.metadata.json"
    return keys.table_metadata(topic, name), metadata.encode()


def _estimate_bytes(tail: Tail) -> int:
    """The approximate bytes of segments that a tail copies."""
    return sum(
        part.batch.size * (part.limit - part.start) // max(1, part.batch.limit - part.batch.base_offset)
        for part in tail.slices
    )
