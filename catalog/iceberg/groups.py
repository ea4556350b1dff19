"""The manifests of a snapshot, and of the snapshot after it.

As in Iceberg's merge append, a snapshot adds a manifest with its new files, rewrites manifests of which it removes
files, and keeps the others. Small manifests are joined when there are many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.catalog.iceberg.manifest import Manifest, ManifestEntry, Status

#: The number of small manifests that are joined, and the live files from which a manifest is not small.
_MAX_SMALL, _SMALL_FILES = 32, 2_000


@dataclass(frozen=True, slots=True)
class Group:
    """The entries of a manifest.

    Attributes:
        manifest: The manifest; None: it is not written yet.
        entries: Its entries, of data files or of delete files; at least one.
    """

    manifest: Manifest | None
    entries: tuple[ManifestEntry, ...]

    @property
    def deletes(self) -> bool:
        """Whether the entries are of delete files."""
        return isinstance(self.entries[0].file, DeleteFile)

    @property
    def live(self) -> int:
        """The number of files that are part of the table."""
        return sum(entry.live for entry in self.entries)


def files_of(groups: Iterable[Group]) -> TableFiles:
    """The live data files by path, and the live delete files by the data file that they apply to."""
    data: dict[str, DataFile] = {}
    deletes: dict[str, DeleteFile] = {}
    for group in groups:
        for entry in group.entries:
            if not entry.live:
                continue
            if isinstance(entry.file, DeleteFile):
                deletes[entry.file.data_path] = entry.file
            else:
                data[entry.file.path] = entry.file
    return TableFiles(data, deletes)


def next_groups(
    groups: Iterable[Group],
    added_files: Sequence[DataFile | DeleteFile],
    removed_paths: Collection[str],
    snapshot_id: int,
    sequence: int,
) -> list[Group]:
    """Return the manifests of the next snapshot.

    Args:
        groups: The manifests of the current snapshot.
        added_files: The files that the next snapshot adds.
        removed_paths: The locations of the files that it removes.
        snapshot_id: The id of the next snapshot.
        sequence: The sequence number of the next snapshot.
    """
    remaining = [_without_files(group, removed_paths, snapshot_id) for group in groups if group.live]
    result = [
        *_join_small([group for group in remaining if not group.deletes]),
        *(group for group in remaining if group.deletes),
    ]
    for kind in (DataFile, DeleteFile):
        entries = [
            ManifestEntry(Status.ADDED, snapshot_id, sequence, file) for file in added_files if isinstance(file, kind)
        ]
        if entries:
            result.append(Group(None, tuple(entries)))
    return result


def _without_files(group: Group, removed_paths: Collection[str], snapshot_id: int) -> Group:
    """Mark removed files of a manifest as deleted; an unchanged manifest is returned as it is."""
    if not any(entry.live and entry.file.path in removed_paths for entry in group.entries):
        return group
    entries = tuple(
        replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)
        if entry.file.path in removed_paths
        else replace(entry, status=Status.EXISTING)
        for entry in group.entries
        if entry.live
    )
    return Group(None, entries)


def _join_small(groups: list[Group]) -> list[Group]:
    """Join the small manifests of data files if there are many."""
    small_groups = [group for group in groups if group.live < _SMALL_FILES]
    if len(small_groups) < _MAX_SMALL:
        return groups
    entries: list[ManifestEntry] = []
    for group in small_groups:
        for entry in group.entries:
            if group.manifest is None:  # Of this snapshot: only here are its deleted entries recorded.
                entries.append(entry)
            elif entry.live:
                entries.append(replace(entry, status=Status.EXISTING))
    return [*(group for group in groups if group.live >= _SMALL_FILES), Group(None, tuple(entries))]
