"""Looks at a store, its storage and its debt, and says what to do. Nothing is written, and no segment is read."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.compactor.doctor.authorization import authorization_findings
from txnstore.compactor.doctor.backlog import (
    chain_findings,
    group_findings,
    lacks_recent_checkpoint,
    segment_findings,
    transaction_findings,
)
from txnstore.compactor.doctor.findings import DoctorReport, Finding, Severity
from txnstore.compactor.doctor.maintenance import maintenance_findings
from txnstore.compactor.doctor.sharing import sharing_findings
from txnstore.compactor.doctor.storage import storage_findings
from txnstore.compactor.doctor.tables import table_findings
from txnstore.compactor.foreign import foreign_stores
from txnstore.compactor.repair.identity import recover_command
from txnstore.compactor.vacuum.soundness import describe_foreign, find_damage
from txnstore.compactor.vacuum.vacuum import vacuum
from txnstore.connection import Connection
from txnstore.errors import (
    CorruptionError,
    StorageError,
    StoreNotFoundError,
    TxnStoreError,
    UnsoundStoreError,
)
from txnstore.phrases import counted
from txnstore.validation import check_writable

#: So many objects of garbage, and more than objects in use, give a warning.
_MUCH_GARBAGE = 1_000


def doctor(connection: Connection, *, probe: bool = False) -> DoctorReport:
    """Look at a store, its storage and what it has to do; each finding has the command to run.

    - storage: whether objects can be read and listed, and with ``probe`` created once and deleted; the clock; on S3 the
      versioning and the lifecycle rules of the bucket. What may not be looked at is a finding, not an error.
    - identity: whether there are chains of other stores.
    - chains: the hints, and the checkpoints of the history, which are read: their damage and their distance; damaged
      boundaries, missing entries, and missing or truncated objects with records in use.
    - sharing, unless it is switched off: which processes of this machine commit for others, and whether they can meet.
    - authorization, if the store has rules: chains that do not follow from the last change; who may change the rules,
      and write checkpoints; rules without effect.
    - maintenance: settings of topics that were not applied for an hour, because no process has maintained the store.
    - segments: what a compaction would do; aborted data.
    - transactions: open, expired and incomplete ones, and the records that wait for them.
    - groups: members past their session, and members that wait.
    - tables, if topics have them: how far they are behind, versions that engines have written, copies of rows.
    - garbage: what a vacuum would delete now.

    It costs the lists of a vacuum, about five requests for each chain, and those that read the checkpoints of its
    history.

    Args:
        connection: The connection to the store. It need not be loaded: a store that cannot be opened is a finding.
        probe: Check by writes below ``_probe/`` that the storage creates a name once, and deletes.

    Raises:
        StoreNotFoundError: There is no store at this URL.
        ReadOnlyError: ``probe``, and the store was opened read-only.
    """
    if probe:
        check_writable(connection.read_only, connection.url, "its storage cannot be probed")
    storage = tuple(storage_findings(connection, probe=probe))
    if any(item.name == "read" and item.severity is Severity.BAD for item in storage):
        return DoctorReport(storage)  # The store does not open for the reason that is named there.
    return DoctorReport((*storage, *_store_findings(connection)))


def _store_findings(connection: Connection) -> Iterator[Finding]:
    """Yield the findings of a store that can be read; of garbage only if it is sound."""
    try:
        view = connection.view()
    except StoreNotFoundError:
        raise
    except TxnStoreError as error:
        command = recover_command(connection) if isinstance(error, CorruptionError) else ""
        yield Finding("chains", "opens", Severity.BAD, f"the store cannot be read: {error}", command)
        return
    soundness = [*_identity_findings(connection), *_soundness_findings(connection)]
    yield from soundness
    chains = [*chain_findings(connection, view)]
    yield from chains
    yield from sharing_findings(connection)
    yield from authorization_findings(connection, view, lacks_checkpoint=lacks_recent_checkpoint(chains))
    yield from maintenance_findings(connection, view)
    yield from segment_findings(connection, view)
    yield from transaction_findings(connection, view)
    yield from group_findings(connection, view)
    yield from table_findings(connection, view)
    if not any(item.severity is Severity.BAD for item in soundness):
        yield from _garbage_findings(connection)


def _identity_findings(connection: Connection) -> Iterator[Finding]:
    """Report chains of other stores below the root."""
    try:
        others = foreign_stores(connection.objects, connection.keys)
    except StorageError as error:
        yield Finding("identity", "foreign", Severity.NOTE, f"whether there are other stores is unknown: {error}")
        return
    for store_id, other in sorted(others.items()):
        message = describe_foreign(connection.keys, store_id, other)
        yield Finding("identity", "foreign", Severity.BAD, message, "txnstore recover --dry-run")
    if not others:
        message = f"the store is {connection.keys.store_id}, and there are chains of no other one"
        yield Finding("identity", "foreign", Severity.OK, message)


def _soundness_findings(connection: Connection) -> Iterator[Finding]:
    """Report damage for which a vacuum deletes nothing."""
    try:
        damage = find_damage(connection)
    except StorageError as error:
        yield Finding("chains", "sound", Severity.NOTE, f"whether the chains are sound is unknown: {error}")
        return
    for item in damage:
        yield Finding("chains", "sound", Severity.BAD, f"{item}; no vacuum deletes anything", "txnstore recover")
    if not damage:
        message = "the boundaries and checkpoints can be read; no entry of the history, and nothing in use, is missing"
        yield Finding("chains", "sound", Severity.OK, message)


def _garbage_findings(connection: Connection) -> Iterator[Finding]:
    """Report what a vacuum would delete, by its dry run."""
    try:
        plan = vacuum(connection, dry_run=True, force=True)  # Its soundness was looked at before.
    except (StorageError, UnsoundStoreError, CorruptionError) as error:
        yield Finding("garbage", "vacuum", Severity.NOTE, f"what a vacuum would delete is unknown: {error}")
        return
    young = f"{counted(plan.kept_young, 'unreferenced object')} younger than its grace period"
    if plan.objects:
        more = plan.objects > plan.referenced
        message = f"a vacuum would delete {counted(plan.objects, 'object')} of {plan.bytes:,} bytes; {young}"
        severity = Severity.WARN if more and plan.objects >= _MUCH_GARBAGE else Severity.NOTE
        yield Finding("garbage", "vacuum", severity, message, "txnstore vacuum")
    else:
        yield Finding("garbage", "vacuum", Severity.OK, f"a vacuum would delete nothing; {young}")
