"""Reads published tables: the newest cut, and the files of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from txnstore.catalog.iceberg.cut import CutDocument, LatestCutDocument, PublishedTable
from txnstore.catalog.iceberg.files import DataFile, TableFiles
from txnstore.catalog.iceberg.groups import Group, files_of
from txnstore.catalog.iceberg.location import Location
from txnstore.catalog.iceberg.manifest import Manifest, decode_manifest, decode_manifest_list
from txnstore.catalog.iceberg.metadata import TableMetadata, TableSnapshot, decode_metadata
from txnstore.chain import keys
from txnstore.chain.codec import content_hash, decode
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, UnsupportedFormatError
from txnstore.storage.base import ObjectStore, read_if_there

#: The hint is written for one of so many cuts; as many cuts after the hinted one are read at a time.
HINT_EVERY = 16
_REBUILD = "The next `txnstore table sync` rebuilds the table"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as one version of its metadata describes it.

    Attributes:
        key: The key of the metadata.
        groups: The manifests of the current snapshot.
    """

    key: str
    metadata: TableMetadata
    groups: tuple[Group, ...]
    files: TableFiles

    def copies(self, location: Location) -> list[DataFile]:
        """The data files that are copies of rows, not segments."""
        tables_location = location.of(keys.TABLES)
        return [file for file in self.files.data.values() if file.path.startswith(tables_location)]


class Published:
    """Reads what publishers have written to a store; nothing is cached.

    Args:
        pool: Runs concurrent requests.
        location: The location of the store's objects.
    """

    def __init__(self, objects: ObjectStore, store_id: str, pool: Executor, location: Location) -> None:
        self._objects, self._store_id, self._pool, self._location = objects, store_id, pool, location

    def newest(self, known_cut: CutDocument | None = None) -> CutDocument | None:
        """Return the newest cut; None if there is none.

        One GET if ``known_cut`` is the newest one. Else one for the hint, and some for the cuts after it; without a
        valid hint, a LIST.

        Raises:
            CorruptionError: A cut is damaged or missing, or it is one of another store.
        """
        if known_cut is not None:
            next_cut = self.cut(known_cut.number + 1)
            return known_cut if next_cut is None else self._last_after(next_cut)
        number = self._hinted_number()
        cut = self.cut(number) if number else None
        if cut is None:
            numbers = [keys.cut_number(info.key) for info in self._objects.list(keys.CUTS)]
            number = max((number for number in numbers if number is not None), default=0)
            if not number:
                return None
            cut = self.cut(number)
            if cut is None:
                msg = f"{keys.cut(number)} is listed, and cannot be read"
                raise CorruptionError(msg)
        return self._last_after(cut)

    def _hinted_number(self) -> int:
        """The number of the cut in the hint; 0 without a readable hint."""
        data = read_if_there(self._objects, keys.LATEST_CUT)
        if data is None:
            return 0
        try:
            hint = decode(LatestCutDocument, keys.LATEST_CUT, data)
        except (CorruptionError, UnsupportedFormatError):
            return 0
        return hint.number if hint.store_id == self._store_id else 0

    def _last_after(self, cut: CutDocument) -> CutDocument:
        """Return the newest cut from a known one on, reading several numbers ahead at a time."""
        while True:
            numbers = range(cut.number + 1, cut.number + 1 + HINT_EVERY)
            later_cuts = [cut for cut in self._pool.map(self.cut, numbers) if cut is not None]
            if not later_cuts:
                return cut
            cut = later_cuts[-1]

    def cut(self, number: int) -> CutDocument | None:
        """Return the cut with a number; None if there is none.

        Raises:
            CorruptionError: It is damaged, or one of another store.
        """
        key = keys.cut(number)
        data = read_if_there(self._objects, key)
        if data is None:
            return None
        cut = decode(CutDocument, key, data)
        if cut.store_id != self._store_id:
            msg = (
                f"{key} is of another store, {cut.store_id}: the tables below {keys.TABLES} are what is left of it. "
                f"Delete all objects below {keys.TABLES}; then the tables of this store can be published"
            )
            raise CorruptionError(msg)
        if cut.number != number:
            msg = f"{key} says that it is the cut {cut.number}"
            raise CorruptionError(msg)
        return cut

    def table_state(self, table: PublishedTable) -> TableState:
        """Read the metadata and files of a table of a cut.

        Costs a GET for its metadata, one for the manifest list and one for each manifest.

        Raises:
            CorruptionError: One of them is damaged or missing.
        """
        metadata = decode_metadata(table.metadata, self.metadata(table))
        current = metadata.current
        if current is None:
            return TableState(table.metadata, metadata, (), TableFiles({}, {}))
        groups = self.groups(current)
        files = files_of(groups)
        counts = {"total-data-files": len(files.data), "total-delete-files": len(files.deletes)}
        for name, count in counts.items():
            recorded_count = current.summary.get(name)
            if recorded_count != str(count):
                msg = f"{current.manifest_list} is altered: it has {count} files, not {recorded_count}. {_REBUILD}"
                raise CorruptionError(msg)
        return TableState(table.metadata, metadata, groups, files)

    def all_locations(self, table: PublishedTable) -> set[str]:
        """The locations of all manifest lists, manifests and files of a table's retained snapshots.

        Raises:
            CorruptionError: One of the lists or manifests is damaged or missing.
        """
        snapshots = decode_metadata(table.metadata, self.metadata(table)).snapshots
        lists = self._pool.map(self._read_manifests, snapshots)
        manifests = {manifest.path: manifest for listed in lists for manifest in listed}
        all_locations = {snapshot.manifest_list for snapshot in snapshots} | manifests.keys()
        for group in self._pool.map(self._read_group, manifests.values()):
            all_locations.update(entry.file.path for entry in group.entries if entry.live)
        return all_locations

    def metadata(self, table: PublishedTable) -> bytes:
        """Read the metadata of a table of a cut.

        Raises:
            CorruptionError: It is damaged or missing.
        """
        data = self.find_metadata(table)
        if data is None:
            raise missing_error(table.metadata)
        return data

    def find_metadata(self, table: PublishedTable) -> bytes | None:
        """Read the metadata of a table of a cut; None if it does not exist, as after a vacuum of the cut.

        Raises:
            CorruptionError: It is damaged.
        """
        data = read_if_there(self._objects, table.metadata)
        if data is not None and content_hash(data) != table.sha256:
            msg = f"{table.metadata} is altered: the cut names other bytes. {_REBUILD}"
            raise CorruptionError(msg)
        return data

    def groups(self, snapshot: TableSnapshot) -> tuple[Group, ...]:
        """Read the manifests of a snapshot."""
        return tuple(self._pool.map(self._read_group, self._read_manifests(snapshot)))

    def _read_manifests(self, snapshot: TableSnapshot) -> list[Manifest]:
        """Read the list of a snapshot's manifests."""
        with _adding_remedy():
            key = self._location.key(snapshot.manifest_list)
            return decode_manifest_list(key, self._read_manifest(key))

    def _read_group(self, manifest: Manifest) -> Group:
        """Read a manifest with its entries."""
        with _adding_remedy():
            key = self._location.key(manifest.path)
            return Group(manifest, tuple(decode_manifest(key, self._read_manifest(key))))

    def _read_manifest(self, key: str) -> bytes:
        """The bytes of a manifest or a manifest list.

        Raises:
            CorruptionError: They are missing, or others than its name says.
        """
        data = read_required(self._objects, key)
        if not key.endswith(_hash_suffix(data)):
            msg = f"{key} is altered: its name is that of other bytes. {_REBUILD}"
            raise CorruptionError(msg)
        return data


def manifest_name(unique: str, data: bytes) -> str:
    """The name of a manifest or a manifest list: unique, and with a hash of its bytes, since Avro has no checksum."""
    return f"{unique}{_hash_suffix(data)}"


def _hash_suffix(data: bytes) -> str:
    return f"-{content_hash(data)[:16]}.avro"


def published_of(connection: Connection) -> Published:
    """Return a reader of the published tables of a store, wherever it is."""
    root = Location(connection.objects.url.rstrip("/"))
    return Published(connection.objects, connection.store_id, connection.pool, root)


@contextmanager
def _adding_remedy() -> Iterator[None]:
    """Add the fix to errors of damaged bytes in the block."""
    try:
        yield
    except CorruptionError as error:
        text = str(error)
        raise CorruptionError(text if _REBUILD in text else f"{text}. {_REBUILD}") from error


def read_required(objects: ObjectStore, key: str) -> bytes:
    """Read an object that a table needs.

    Raises:
        CorruptionError: It does not exist.
    """
    data = read_if_there(objects, key)
    if data is None:
        raise missing_error(key)
    return data


def missing_error(key: str) -> CorruptionError:
    """The error for a missing object of a table."""
    return CorruptionError(f"{key} is missing, and the newest cut of the tables needs it. {_REBUILD}")
