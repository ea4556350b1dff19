"""Makes a store of a backup: of a copy of it, or of the backup itself. See docs/internals/design/backup.md."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.chain.backups import BackupDocument, BackupObjects, is_later
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import CopyDocument, encode
from txnstore.compactor.backup.backup import BackupProgress, Copy, check_copy, complete_backup
from txnstore.compactor.backup.copying import Copier
from txnstore.compactor.backup.target import prepare
from txnstore.compactor.compact.lease import CompactionLease
from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.errors import BackupError, TxnStoreError
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim, ObjectInfo, ObjectStore, read_if_there
from txnstore.storage.probe import probe_once
from txnstore.storage.redact import redact
from txnstore.tables.tables import Tables

_LOG = logging.getLogger(__name__)

#: What a restore leases. No topic has such a name.
_RESTORE_LEASE = TopicPartition(":restore", 0)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """A store that was made of a backup.

    Attributes:
        store_id: Its id: that of the original, or a new one.
        heads: The last entry of each chain.
        timestamp: The time of the newest of them, in ms.
        copied: The number of objects that were copied.
        bytes: Their size.
        tables: Why its tables could not be published; empty if they were, or there are none.
        verified: Whether all of it was read and compared with its hashes.
    """

    store_id: str
    heads: tuple[int, ...]
    timestamp: int
    copied: int = 0
    bytes: int = 0
    tables: str = ""
    verified: bool = False


def restore(
    source: Connection,
    target: ObjectStore,
    *,
    new_identity: bool = False,
    verify: bool = False,
    progress: Callable[[BackupProgress], object] | None = None,
) -> RestoreReport:
    """Make a store in an empty place of the newest complete cut of a backup, or of another store as it is now.

    Args:
        source: The connection to the backup.
        target: The objects of the store.
        new_identity: Give the store an id of its own, with which it is used beside the original; else it has that of
            the original, in whose place it is used.
        verify: Read all of the copy, and compare it with its hashes, before it becomes a store.
        progress: Called now and then.

    Raises:
        BackupError: The target is not empty, the source has no complete cut, or another restore to this place runs, or
            was killed less than three minutes ago.
        CorruptionError: The backup is damaged; there is no store yet.
        StorageError: A storage failed, or is full. Calling again continues.
    """
    document = prepare(source, target)
    if document.number:
        msg = (
            f"nothing was copied: there is a backup at {redact(target.url)}. `txnstore restore` without another backup "
            "makes a store of it; else give an empty folder or prefix"
        )
        raise BackupError(msg)
    with _alone(target, source.keys, source.runtime):
        copier, copy = Copier(source.objects, target, source.pool), Copy(source, target, progress)
        cut = copy.copy_cut(document, copier)
        source.close()  # Its state needs as much memory as that of the copy, which is opened now.
        check_copy(cut, target, source.runtime, verify=verify)
        report = _make_store(cut, target, source.runtime, source.principal, new_identity=new_identity)
    return replace(report, copied=copier.objects, bytes=copier.bytes, verified=verify)


def restore_in_place(
    target: ObjectStore, runtime: Runtime, principal: str, *, new_identity: bool = False, verify: bool = False
) -> RestoreReport:
    """Make a store of a backup itself, at its newest complete cut. No process may copy to it meanwhile, or later.

    The arguments and errors are those of :func:`restore`.
    """
    _check_no_store(target)
    cut = complete_backup(target)
    probe_once(target, runtime.new_id)
    with _alone(target, keys.Keys(cut.document.store_id), runtime):
        check_copy(cut, target, runtime, verify=verify)
        report = _make_store(cut, target, runtime, principal, new_identity=new_identity)
    return replace(report, verified=verify)


@contextmanager
def _alone(target: ObjectStore, names: keys.Keys, runtime: Runtime) -> Iterator[None]:
    """Hold the place of a restore: another one would overwrite or delete entries that the store has got since.

    Raises:
        BackupError: Another restore holds it.
    """
    with CompactionLease(target, names, runtime) as lease:
        if not lease.take(lambda held: {_RESTORE_LEASE} - held):
            msg = (
                f"nothing was copied: another restore to {redact(target.url)} is running, or was killed less than "
                "three minutes ago. Wait until it has ended, or for so long"
            )
            raise BackupError(msg)
        _check_no_store(target)  # Another restore may have made one just now.
        yield


def _make_store(
    cut: BackupDocument, target: ObjectStore, runtime: Runtime, principal: str, *, new_identity: bool
) -> RestoreReport:
    """Write ``store.json``, after all that is later than the cut was deleted; then publish the tables."""
    _check_no_store(target)
    document, names = cut.document, keys.Keys(cut.document.store_id)
    for page in _later_objects(cut, target, names):
        target.delete([item.key for item in page])
    data = cut.store.encode()
    if new_identity:
        data = encode(CopyDocument(**{**asdict(document), "identity": runtime.new_store_id()}))
    if Claim(keys.STORE, data).resolve(target, runtime.backoff) != data:
        raise BackupError(f"another process has made a store at {redact(target.url)} meanwhile")
    _write_hints(cut, target, runtime)
    target.delete([item.key for item in target.list(keys.BACKUPS)])
    with Connection(target, runtime=runtime, principal=principal) as restored:
        _LOG.info("restored", extra={"url": redact(target.url), "store_id": restored.store_id})
        return RestoreReport(restored.store_id, tuple(cut.heads), cut.timestamp, tables=_publish_tables(restored))


def _check_no_store(target: ObjectStore) -> None:
    """Refuse a place that is a store by now."""
    if read_if_there(target, keys.STORE) is not None:  # It may be in use, and have entries after the cut.
        msg = (
            f"nothing was changed: there is a store at {redact(target.url)} already. If a restore was interrupted "
            "after it had made it, only its tables may have to be published: `txnstore table sync`"
        )
        raise BackupError(msg)


def _later_objects(cut: BackupDocument, target: ObjectStore, names: keys.Keys) -> Iterator[list[ObjectInfo]]:
    """Yield what was copied for a later cut, which is not complete."""
    for chain, head in enumerate(cut.heads):
        yield [*target.list(names.entries(chain), names.entry(chain, head))]
        for folder in (names.checkpoints(chain), names.boundaries(chain)):
            yield [item for item in target.list(folder) if is_later(item.key, cut)]


def _write_hints(cut: BackupDocument, target: ObjectStore, runtime: Runtime) -> None:
    """Write the hints of all chains that have a checkpoint."""
    with Connection(BackupObjects(target, cut, follow=False), read_only=True, runtime=runtime) as copy:
        for state in copy.view(refresh=False).states:
            saved = checkpoint.newest(copy.objects, copy.pool, copy.keys, state.chain, until=state.sequence)
            if saved is not None:
                target.put(*checkpoint.hint_to(copy.keys, saved.state, cut.boundaries[state.chain], state))


def _publish_tables(restored: Connection) -> str:
    """Publish the tables, of which a backup has nothing; return why that failed, or an empty text."""
    if not any(publishes_table(topic.config) for topic in restored.view(refresh=False).topics.values()):
        return ""
    try:
        Tables(restored).sync()
    except TxnStoreError as error:
        return f"the tables could not be published: {error}"
    return ""
