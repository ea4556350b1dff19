"""A backup: the objects of a store, and for each cut that is complete a document; the newest one is what it shows.

A cut counts when its document was created, as an entry does; what was copied for a later one is not visible. There is
no ``store.json``, so that no process takes a backup for a store and writes to it.
See docs/internals/design/backup.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from txnstore.chain import keys
from txnstore.chain.codec import Int64, Stored, StoreDocument, decode
from txnstore.chain.identity import document_of
from txnstore.chain.rules import Limits
from txnstore.core.model import value_class
from txnstore.errors import BackupError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore
from txnstore.storage.redact import redact

#: The number of documents that are kept, for readers that follow a backup.
_KEPT = 1_000
#: One in so many looks for a later cut lists them.
_LIST_EVERY = 256


@value_class(kw_only=True)
class BackupDocument(Stored):
    """A cut of a store that a backup has in full.

    Attributes:
        number: The number in its name; 0: a copy was begun here, and has no cut yet.
        backup_id: A UUID, new for each attempt to create the document.
        store: The text of ``store.json``.
        heads: The last entry of each chain.
        hashes: The hash of the line of each of them; empty for entry 0.
        boundaries: The number of the last boundary of each chain; 0 without one.
        timestamp: The time of the newest of these entries, in ms.
        taken_at: When the cut was taken, by the clock of the process that made the backup, in ms.
    """

    number: Annotated[int, Limits(ge=0)]
    backup_id: str
    store: str
    heads: list[Int64]
    hashes: list[str]
    boundaries: list[Int64]
    timestamp: Int64
    taken_at: Int64

    @property
    def document(self) -> StoreDocument:
        """The document of the store."""
        return document_of(self.store.encode(), keys.backup(self.number))


def begun(store: bytes, backup_id: str, taken_at: int) -> BackupDocument:
    """Make the document of a copy that has no cut yet."""
    return BackupDocument(
        number=0, backup_id=backup_id, store=store.decode(), heads=[], hashes=[], boundaries=[], timestamp=0,
        taken_at=taken_at,
    )  # fmt: skip


def newest_backup(objects: ObjectStore) -> BackupDocument | None:
    """Read the newest document of the backup that is here; None if there is none. One list; else two, and a GET.

    A backup has no hints: with one, a store was restored in this place, and has lost its ``store.json`` since.

    Raises:
        CorruptionError: It is damaged.
    """
    numbers = [number for info in objects.list(keys.BACKUPS) if (number := keys.backup_number(info.key)) is not None]
    return _read(objects, max(numbers)) if numbers and not objects.list(keys.HINTS, limit=1) else None


def _read(objects: ObjectStore, number: int) -> BackupDocument:
    key = keys.backup(number)
    return decode(BackupDocument, key, objects.get(key))


def delete_old(objects: ObjectStore, newest: BackupDocument) -> None:
    """Delete documents of cuts long before the newest one."""
    first = newest.number - _KEPT
    if first > 0:
        objects.delete([info.key for info in objects.list(keys.BACKUPS) if (keys.backup_number(info.key) or 0) < first])


def unfinished(objects: ObjectStore, document: BackupDocument) -> BackupError:
    """Return the error for a copy that has no complete cut yet."""
    store_id = document.document.store_id
    msg = (
        f"the copy of the store {store_id} at {redact(objects.url)} is not complete: the backup or the restore that "
        "makes it is running, or was interrupted. Run it again: it continues"
    )
    return BackupError(msg)


def backup_here(objects: ObjectStore) -> BackupError | None:
    """Return the error for a command that is for a store, where there is a backup; None if there is none. A list."""
    document = newest_backup(objects)
    if document is None:
        return None
    if not document.number:
        return unfinished(objects, document)
    msg = (
        f"there is a backup of the store {document.document.store_id} at {redact(objects.url)}. It can be read; "
        "`txnstore restore` makes a store of it, or a copy that is one"
    )
    return BackupError(msg)


class BackupObjects(ForwardingStore):
    """A backup as the store that it is a copy of, up to its newest complete cut. Writes are refused.

    A look at the head of a chain finds a cut that was completed meanwhile, so that a reader follows the backup.

    Args:
        inner: The objects of the backup.
        document: Its newest document.
        follow: Whether later cuts are looked for.
    """

    def __init__(self, inner: ObjectStore, document: BackupDocument, *, follow: bool = True) -> None:
        super().__init__(inner)
        #: The cut that is visible. Replaced in one step; it never becomes an earlier one.
        self._cut = document
        self._follows = follow
        #: How often later cuts were looked for. Counted without a lock: a lost update delays a list.
        self._looks = 0

    @property
    def cut(self) -> BackupDocument:
        """The document of the cut that is visible."""
        return self._cut

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object of the cut, or a range of it."""
        if key == keys.STORE:
            return self._cut.store.encode()[start:end]
        if self._follows and _is_next(key, self._cut):
            self._look_for_later()
        self._check_visible(key)
        return self.inner.get(key, start, end)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        """List the objects of the cut, in the order of their keys."""
        found: list[ObjectInfo] = []
        while limit is None or len(found) < limit:
            page = self.inner.list(prefix, start_after, limit)
            found += [info for info in page if not is_later(info.key, self._cut)]
            if limit is None or len(page) < limit:
                break
            start_after = page[-1].key
        if keys.STORE.startswith(prefix) and start_after < keys.STORE:
            found = sorted([*found, self.stat(keys.STORE)], key=lambda info: info.key)
        return found[:limit]

    def stat(self, key: str) -> ObjectInfo:
        """Return the size and the modification time of an object of the cut."""
        if key == keys.STORE:
            return ObjectInfo(key, len(self._cut.store.encode()), self._cut.taken_at)
        self._check_visible(key)
        return self.inner.stat(key)

    def put(self, key: str, data: bytes) -> None:
        """Refused."""
        raise self._refusal()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Refused."""
        raise self._refusal()

    def delete(self, names: Sequence[str]) -> None:
        """Refused."""
        raise self._refusal()

    def _look_for_later(self) -> None:
        """Follow the documents of the backup to the last one; raise ``BackupError`` if there is none any more."""
        self._looks += 1
        if self._looks % _LIST_EVERY == 0:  # The document after the known one may be deleted by now.
            newest = newest_backup(self.inner)
            if newest is None:
                msg = f"{redact(self.url)} is no backup any more: it was made a store, or deleted. Open it again"
                raise BackupError(msg)
            self._cut = max(self._cut, newest, key=lambda document: document.number)
        with suppress(ObjectNotFoundError):
            while True:
                self._cut = _read(self.inner, self._cut.number + 1)

    def _check_visible(self, key: str) -> None:
        if is_later(key, self._cut):
            raise ObjectNotFoundError(f"{key} is not in the newest complete cut of the backup at {self.url}")

    def _refusal(self) -> StorageRefusedError:
        return StorageRefusedError(
            f"{redact(self.url)} is a backup, which can only be read. `txnstore restore` makes a store of it, or a "
            "copy that is one."
        )


def _is_next(key: str, cut: BackupDocument) -> bool:
    """Whether the object would be the entry after the last one of its chain in the cut."""
    chain, sequence = keys.chain_number(key), keys.entry_sequence(key)
    return chain is not None and sequence is not None and sequence == cut.heads[chain] + 1


def is_later(key: str, cut: BackupDocument) -> bool:
    """Whether an object of a chain is later than the cut; each is, if there is no cut yet."""
    chain = keys.chain_number(key)
    if chain is None or not cut.number:
        return chain is not None
    boundary = keys.boundary_number(key)
    if boundary is not None:
        return boundary > cut.boundaries[chain]
    covered_range = keys.index_range(key)
    sequence = covered_range[1] if covered_range is not None else keys.entry_sequence(key)
    sequence = keys.checkpoint_sequence(key) if sequence is None else sequence
    return sequence is not None and sequence > cut.heads[chain]


def open_backup(objects: ObjectStore) -> BackupObjects | None:
    """Return the backup that is here as the store that it is a copy of; None if there is none. A list, and a GET.

    Raises:
        BackupError: It has no complete cut yet.
        CorruptionError: Its newest document is damaged.
    """
    document = newest_backup(objects)
    if document is None:
        return None
    if not document.number:
        raise unfinished(objects, document)
    return BackupObjects(objects, document)
