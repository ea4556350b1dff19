"""Copies a cut of a store to a backup while the store is used. See docs/internals/design/backup.md.

Only the document of a cut makes it visible in the backup, so objects are copied in any order, many at a time, and what
an interrupted backup has copied is there for the next one. Nothing in a backup is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from txnstore.chain import keys
from txnstore.chain.backups import BackupDocument, BackupObjects, delete_old, is_later, newest_backup
from txnstore.compactor.backup.copying import Copier
from txnstore.compactor.backup.cut import Cut, Part, VanishedError, beside, take_cut
from txnstore.compactor.backup.later import MAX_ENTRIES, copy_later
from txnstore.compactor.backup.target import check_continues, create, delete_strays, identity_of, prepare
from txnstore.compactor.verify.verify import verify as verify_store
from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.view import View
from txnstore.errors import BackupError, CorruptionError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore, make_durable, read_if_there
from txnstore.storage.redact import redact

_LOG = logging.getLogger(__name__)

#: The cuts that a backup takes one after the other before it gives up.
_MAX_CUTS = 20
#: The listings of both places are compared again after this time, in ms.
_COMPARE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """How far a backup is.

    Attributes:
        objects: The number of objects that were looked at.
        copied: The number of those that were copied.
        bytes: The size of the copied ones.
    """

    objects: int
    copied: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A complete cut of a store in a backup.

    Attributes:
        cut: Its number in the backup; that of an earlier one, if nothing was committed since.
        heads: The last entry of each chain in it.
        timestamp: The time of the newest of them, in ms.
        objects: The number of its objects.
        copied: The number of those that this backup has copied.
        bytes: Their size.
        behind: The age of the cut, in seconds, when it was complete.
        verified: Whether all of the copy was read and compared with its hashes.
    """

    cut: int
    heads: tuple[int, ...]
    timestamp: int
    objects: int
    copied: int
    bytes: int
    behind: float
    verified: bool = False


def backup(
    connection: Connection,
    target: ObjectStore,
    *,
    verify: bool = False,
    progress: Callable[[BackupProgress], object] | None = None,
) -> BackupReport:
    """Copy the store as it is now to a backup, without what is there already.

    Args:
        connection: The connection to the store, of which nothing is written.
        target: Where the backup is, or an empty place.
        verify: Read all of the copy, and compare it with its hashes (:func:`txnstore.compactor.verify`), before it
            counts.
        progress: Called now and then.

    Raises:
        BackupError: The target is no backup of this store; nothing was copied.
        CorruptionError: An object of the store is missing or damaged, or ``verify`` has found damage in the copy. What
            was complete in the target is as before.
        AuthorizationError: The principal may not read a topic.
        StorageError: A storage failed, or is full. Calling again continues.
    """
    return Copy(connection, target, progress).run(verify=verify)


class Copy:
    """A copy of a store in another place.

    Args:
        connection: The connection to the source.
    """

    def __init__(
        self, connection: Connection, target: ObjectStore, progress: Callable[[BackupProgress], object] | None = None
    ) -> None:
        self.connection, self.target, self._progress = connection, target, progress
        #: The newest cut of this process that is complete in the target, and the number of its objects.
        self._complete: BackupDocument | None = None
        self._objects = 0
        #: When the listings were last compared, in ms of the uptime.
        self._compared_at = 0

    def run(self, *, verify: bool = False) -> BackupReport:
        """Copy the cut of now, and make it count; see :func:`backup`."""
        runtime, compared_at = self.connection.runtime, self.connection.runtime.uptime()
        copier = Copier(self.connection.objects, self.target, self.connection.pool)
        while True:
            newest = prepare(self.connection, self.target)
            began = runtime.monotonic()
            cut = self.copy_cut(newest, copier)
            check_copy(cut, self.target, runtime, verify=verify)
            nothing_new = cut is newest
            if nothing_new or create(self.target, cut, runtime):
                break
            # Another backup to this target has completed a cut meanwhile, which may have what this one lacks.
        delete_old(self.target, cut)
        self._complete, self._compared_at = cut, compared_at
        return self._report(cut, copier, began, verified=verify)

    def run_later(self) -> BackupReport:
        """Copy what was committed since the last run of this process; all that is missing, if that is not known."""
        runtime, newest = self.connection.runtime, self._complete
        if newest is None or runtime.uptime() - self._compared_at > _COMPARE_MS:
            return self.run()
        began, view = runtime.monotonic(), self.connection.view()
        self.connection.chains.make_durable(view)  # As for a whole cut.
        self.connection.check_rights(read_topics(view.topics))
        copier = Copier(self.connection.objects, self.target, self.connection.pool)
        cut = self._document_of(view, newest.boundaries, newest)
        if cut is newest:
            return self._report(cut, copier, began)
        if sum(cut.heads) - sum(newest.heads) > MAX_ENTRIES or not self._target_has(newest):
            return self.run()
        try:
            added = copy_later(self.connection, self.target, copier, newest, view)
        except VanishedError:
            return self.run()
        finally:
            copier.abandon()
        if not create(self.target, cut, runtime):
            return self.run()
        self._complete, self._objects = cut, self._objects + added
        return self._report(cut, copier, began)

    def _target_has(self, document: BackupDocument) -> bool:
        """Whether the target still has what was complete: it may have been made a store, or deleted."""
        has_store = read_if_there(self.target, keys.STORE) is not None
        return not has_store and read_if_there(self.target, keys.backup(document.number)) is not None

    def _report(self, cut: BackupDocument, copier: Copier, began: int, *, verified: bool = False) -> BackupReport:
        behind = (self.connection.runtime.monotonic() - began) / 1000
        extra = {"cut": cut.number, "objects": copier.objects, "bytes": copier.bytes, "url": redact(self.target.url)}
        _LOG.info("backed up", extra=extra)
        return BackupReport(
            cut.number, tuple(cut.heads), cut.timestamp, self._objects, copier.objects, copier.bytes, behind, verified
        )

    def copy_cut(self, document: BackupDocument, copier: Copier) -> BackupDocument:
        """Copy the objects of the newest cut, of a newer one if some are deleted meanwhile; return its document."""
        missing: set[str] = set()
        for _ in range(_MAX_CUTS):
            cut = take_cut(self.connection)
            self.connection.check_rights(read_topics(cut.view.topics))
            check_continues(cut, document, self.target)
            delete_strays(cut, document, self.target)
            try:
                self._copy_parts(cut, document, copier)
            except VanishedError as error:
                lost = missing.intersection(error.missing)
                missing = set(error.missing)
            else:
                return self._document_of(cut.view, [chain.boundary for chain in cut.chains], document)
            if lost:  # The state that was read after it was missed first needs it, too.
                break
            _LOG.info("cut not complete, a vacuum has deleted objects of it", extra={"key": min(missing)})
        msg = f"{min(missing)} is missing, though the store needs it. The backup has its earlier cuts"
        raise CorruptionError(msg)

    def _copy_parts(self, cut: Cut, document: BackupDocument, copier: Copier) -> None:
        self._objects = 0
        found: dict[str, str] = {}
        try:
            for prefix, parts in cut.folders():
                for part, size_there in beside(parts, self.target, prefix):
                    self._objects += 1
                    # What an interrupted copy left of the chains after its last cut may be of another history.
                    if is_missing(part, size_there) or is_later(part.key, document):
                        copier.copy(part)
                    else:
                        found[part.key.rpartition("/")[0]] = part.key
                    if self._progress is not None:
                        self._progress(BackupProgress(self._objects, copier.objects, copier.bytes))
            copier.finish()
            # An earlier copy may have been killed before it had flushed a name. A flush of one flushes its folder.
            make_durable(self.target, [*found.values()])
        finally:
            copier.abandon()

    def _document_of(self, view: View, boundaries: list[int], newest: BackupDocument) -> BackupDocument:
        """Return the document of a cut: ``newest``, that of the target, if nothing was committed since."""
        heads = [state.sequence for state in view.states]
        if newest.number and newest.heads == heads:
            return newest
        runtime = self.connection.runtime
        return BackupDocument(
            number=newest.number + 1,
            backup_id=runtime.new_id(),
            store=identity_of(self.connection).decode(),
            heads=heads,
            hashes=[state.entry_hash for state in view.states],
            boundaries=boundaries,
            timestamp=view.timestamp,
            taken_at=runtime.clock(),
        )


def check_copy(cut: BackupDocument, target: ObjectStore, runtime: Runtime, *, verify: bool) -> None:
    """Open the copy at a cut, and compare their hashes; with ``verify`` also read all of the copy.

    Raises:
        CorruptionError: It does not open, or not at this cut, or is damaged.
    """
    with Connection(BackupObjects(target, cut, follow=False), read_only=True, runtime=runtime) as copy:
        if [state.entry_hash for state in copy.view(refresh=False).states] != cut.hashes:
            raise CorruptionError(f"the copy at {redact(target.url)} is not the cut that was taken")
        violations = verify_store(copy, deep=True).violations if verify else ()
    if violations:
        first, more = violations[0], len(violations) - 1
        msg = (
            f"the copy at {redact(target.url)} is damaged: {first.subject}: {first.message}"
            f"{f', and {more} more' if more else ''}. Delete the object there, and repeat the command: it copies the "
            "object again"
        )
        raise CorruptionError(msg)


def is_missing(part: Part, size_there: int | None) -> bool:
    """Whether an object has to be copied, by the size of what is in the copy under its key.

    An entry that is larger there was shortened in the source since; the copy keeps its records.
    """
    return size_there is None or (size_there < part.size if part.is_entry else size_there != part.size)


def complete_backup(target: ObjectStore) -> BackupDocument:
    """Return the newest complete cut of the backup at a place.

    Raises:
        BackupError: There is none.
    """
    document = newest_backup(target)
    if document is None or not document.number:
        msg = f"there is no backup with a complete cut at {redact(target.url)}"
        raise BackupError(msg)
    return document
