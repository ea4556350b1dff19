"""The place that a copy is written to: whether it is one of this store, and what is complete in it."""

from __future__ import annotations

import os

from txnstore.chain import keys
from txnstore.chain.backups import BackupDocument, begun, newest_backup
from txnstore.chain.codec import encode
from txnstore.chain.identity import document_of
from txnstore.chain.payload import entry_hash
from txnstore.chain.traces import describe_traces, stores
from txnstore.compactor.backup.cut import Cut
from txnstore.connection import Connection
from txnstore.errors import BackupError, ObjectNotFoundError
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim, ObjectStore, make_durable, read_if_there
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.probe import probe_once
from txnstore.storage.redact import redact


def identity_of(connection: Connection) -> bytes:
    """Return ``store.json`` of an open store, unless another store was created, or put, in its place since then."""
    data = connection.objects.get(keys.STORE)
    connection.chains.identity.check(document_of(data, connection.objects.url).store_id)
    return data


def prepare(connection: Connection, target: ObjectStore) -> BackupDocument:
    """Check that a copy of the store may be written to the target, and return its newest document.

    An empty target gets one that says that a copy was begun.

    Raises:
        BackupError: It is a store, has a copy of another one or objects of others, or one is inside of the other.
        UnsafeStorageError: It lets a name be created twice.
    """
    url = redact(target.url)
    check_apart(connection.objects, target)
    if read_if_there(target, keys.STORE) is not None:
        msg = (
            f"nothing was copied: there is a store at {url}, which processes may write to, and no backup. Give an "
            "empty folder or prefix"
        )
        raise BackupError(msg)
    names, runtime = connection.keys, connection.runtime
    if others := stores(target, skipped=names.store_id):
        msg = f"nothing was copied: {url} has chains of the store {others[0]}. Give an empty folder or prefix"
        raise BackupError(msg)
    document = newest_backup(target)
    if document is None:
        if traces := describe_traces(target):
            msg = f"nothing was copied: {url} is no backup, and not empty: {traces}. Give an empty folder or prefix"
            raise BackupError(msg)
        probe_once(target, runtime.new_id, store_id=names.store_id, now=runtime.clock())
        first = begun(identity_of(connection), runtime.new_id(), runtime.clock())
        create(target, first, runtime)
        return newest_backup(target) or first
    if document.document.known_as != connection.store_id:
        msg = (
            f"nothing was copied: {url} has a backup of the store {document.document.known_as}, and this one is "
            f"{connection.store_id}. Give an empty folder or prefix"
        )
        raise BackupError(msg)
    probe_once(target, runtime.new_id, store_id=names.store_id, now=runtime.clock())
    make_durable(target, [keys.backup(document.number)])  # It may be complete by a backup that was killed.
    return document


def create(target: ObjectStore, document: BackupDocument, runtime: Runtime) -> bool:
    """Create a document; return False if another process has created that number before."""
    data = encode(document)
    return Claim(keys.backup(document.number), data).resolve(target, runtime.backoff) == data


def check_continues(cut: Cut, document: BackupDocument, target: ObjectStore) -> None:
    """Check that a cut continues the history of the newest complete one in the target.

    The hashes of entries form a chain, so one entry of each chain shows that all before it are the same.

    Raises:
        BackupError: It does not, or the entries that would show it are deleted.
    """
    objects, names = cut.connection.objects, cut.connection.keys
    for chain, head, digest in zip(cut.chains, document.heads, document.hashes, strict=False):
        number, key = chain.state.chain, names.entry(chain.state.chain, head)
        if not head:
            continue
        if chain.state.sequence < head:
            reason = f"it has {key}, and the store ends with entry {chain.state.sequence}"
        elif chain.state.sequence == head:
            reason = "" if chain.state.entry_hash == digest else f"it has another {key} than the store"
        else:
            try:
                reason = "" if entry_hash(objects.get(key)) == digest else f"it has another {key} than the store"
            except ObjectNotFoundError:
                msg = (
                    f"nothing was copied: a vacuum has deleted {key}, the last one of chain {number} in the backup at "
                    f"{redact(target.url)}, so nothing shows that the store continues it. Give an empty folder or "
                    "prefix, and make backups more often than a vacuum deletes history (7 days, and one)"
                )
                raise BackupError(msg) from None
        if reason:
            msg = (
                f"nothing was copied: the backup at {redact(target.url)} is of another history of the store: {reason}. "
                "One of them was restored to an earlier state. Give an empty folder or prefix"
            )
            raise BackupError(msg)


def delete_strays(cut: Cut, document: BackupDocument, target: ObjectStore) -> None:
    """Delete checkpoints of another history, which an interrupted copy of it left after the newest complete cut.

    The copy overwrites all else of the chains that is there; these have names that the store does not have.
    """
    objects, names = cut.connection.objects, cut.connection.keys
    for number, state in enumerate(cut.view.states):
        folder = names.checkpoints(number)
        after = names.checkpoint_state(number, document.heads[number]) if document.number else ""
        there = {item.key for item in target.list(folder, after) if keys.checkpoint_sequence(item.key)}
        for key in sorted(there.difference(item.key for item in objects.list(folder, after) if there)):
            sequence = keys.checkpoint_sequence(key) or 0
            line = read_if_there(objects, names.entry(number, sequence)) if sequence <= state.sequence else None
            if line is not None and entry_hash(line).encode() not in target.get(key):
                target.delete([key])


def check_apart(source: ObjectStore, target: ObjectStore) -> None:
    """Refuse a target that is the source, in it, or around it.

    Raises:
        BackupError: It is.
    """
    ours, theirs = _place(source), _place(target)
    if ours is None or theirs is None:
        return
    if f"{ours}/".startswith(f"{theirs}/") or f"{theirs}/".startswith(f"{ours}/"):
        msg = (
            f"nothing was copied: {redact(source.url)} and {redact(target.url)} are one place, or one is inside of the "
            "other, and would be deleted with it. Give another folder or prefix"
        )
        raise BackupError(msg)


def _place(objects: ObjectStore) -> str | None:
    """Return the path of a folder without links, or the URL of a prefix with its server; None in memory."""
    layer = objects
    while (inner := getattr(layer, "inner", None)) is not None:
        layer = inner
    if isinstance(layer, MemoryStore):
        return None
    if isinstance(layer, LocalStore):
        return os.path.realpath(layer.root)
    server = getattr(layer, "endpoint", None)
    return f"{server} {layer.url}"
