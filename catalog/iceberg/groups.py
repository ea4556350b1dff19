"""The manifests of a snapshot, and those of the snapshot after it.

As in Iceberg's merge append, a snapshot adds a manifest with its new files, keeps the others, and writes those again of
which files were removed. Small ones are joined now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.catalog.iceberg.manifest import Manifest, ManifestEntry, Status

#: So many small manifests, with fewer live files than this, are joined.
_MOST, _SMALL = 32, 2_000


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
        """Whether it has delete files."""
        return isinstance(self.entries[0].file, DeleteFile)

    @property
    def live(self) -> int:
        """The number of files that are part of the table."""
        return sum(entry.live for entry in self.entries)


def files_of(groups: Iterable[Group]) -> TableFiles:
    """The live files of manifests."""
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
    added: Sequence[DataFile | DeleteFile],
    removed: Collection[str],
    snapshot_id: int,
    sequence: int,
) -> list[Group]:
    """The manifests of the next snapshot.

    Args:
        groups: Those of the snapshot before it.
        added: The files that it adds.
        removed: The locations of the files that it removes.
        sequence: Its sequence number.
    """
    result = [remaining for group in groups if group.live for remaining in _without(group, removed, snapshot_id)]
    result = [*_joined([group for group in result if not group.deletes]), *(each for each in result if each.deletes)]
    for kind in (DataFile, DeleteFile):
        entries = [ManifestEntry(Status.ADDED, snapshot_id, sequence, file) for file in added if isinstance(file, kind)]
        if entries:
            result.append(Group(None, tuple(entries)))
    return result


def _without(group: Group, removed: Collection[str], snapshot_id: int) -> list[Group]:
    if not any(entry.live and entry.file.path in removed for entry in group.entries):
        return [group]
    entries = tuple(
        replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)
        if entry.file.path in removed
        else replace(entry, status=Status.EXISTING)
        for entry in group.entries
        if entry.live
    )
    return [Group(None, entries)]


def _joined(groups: list[Group]) -> list[Group]:
    """The manifests of data files, of which small ones are joined if there are many."""
    small = [group for group in groups if group.live < _SMALL]
    if len(small) < _MOST:
        return groups
    entries: list[ManifestEntry] = []
    for group in small:
        for entry in group.entries:
            if group.manifest is None:  # Of this snapshot: what it removes is said here, and nowhere else.
                entries.append(entry)
            elif entry.live:
                entries.append(replace(entry, status=Status.EXISTING))
    return [*(group for group in groups if group.live >= _SMALL), Group(None, tuple(entries))]
