"""Looks at a store, its storage and its debt, and says what to do. Nothing is written, and no segment is read."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.compactor.doctor_debt import chain_findings, group_findings, segment_findings, transaction_findings
from txnstore.compactor.doctor_storage import storage_findings
from txnstore.compactor.findings import DoctorReport, Finding, Severity, counted
from txnstore.compactor.foreign import foreign_chains
from txnstore.compactor.vacuum import vacuum
from txnstore.connection import Connection
from txnstore.errors import ReadOnlyError, StorageError, StoreNotFoundError, TxnStoreError

#: So many objects of garbage, and more than objects in use, give a warning.
_MUCH_GARBAGE = 1_000


def doctor(connection: Connection, *, probe: bool = False) -> DoctorReport:
    """Look at a store, its storage and what it has to do; each finding has the command to run.

    - storage: whether objects can be read and listed, and with ``probe`` created once and deleted; the clock; on S3 the
      versioning and the lifecycle rules of the bucket. What may not be looked at is a finding, not an error.
    - chains: the hints, and the newest checkpoints, which are read: their damage and their distance.
    - segments: what a compaction would do; aborted data.
    - transactions: open, expired and incomplete ones, and the records that wait for them.
    - groups: members past their session, and members that wait.
    - garbage: what a vacuum would delete now.

    It costs the lists of a vacuum, about five requests for each chain, and those that read its newest checkpoint.

    Args:
        connection: The connection to the store. It need not be loaded: a store that cannot be opened is a finding.
        probe: Check by writes below ``_probe/`` that the storage creates a name once, and deletes.

    Raises:
        StoreNotFoundError: There is no store at this URL.
        ReadOnlyError: ``probe``, and the store was opened read-only.
    """
    if probe and connection.read_only:
        msg = f"the store {connection.url} was opened read_only, so its storage cannot be probed"
        raise ReadOnlyError(msg)
    return DoctorReport((*storage_findings(connection, probe=probe), *_of_the_store(connection)))


def _of_the_store(connection: Connection) -> Iterator[Finding]:
    try:
        view = connection.view()
    except StoreNotFoundError:
        raise
    except TxnStoreError as error:
        command = "" if isinstance(error, StorageError) else "txnstore recover"
        yield Finding("chains", "opens", Severity.BAD, f"the store cannot be read: {error}", command)
        return
    yield from chain_findings(connection, view)
    yield from segment_findings(connection, view)
    yield from transaction_findings(connection, view)
    yield from group_findings(connection, view)
    yield from _garbage(connection)


def _garbage(connection: Connection) -> Iterator[Finding]:
    """What a vacuum would delete, by its dry run."""
    try:
        plan = vacuum(connection, dry_run=True)
        foreign = foreign_chains(connection.objects, connection.keys)
    except StorageError as error:
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
    for prefix in foreign:
        message = f"{prefix} belongs to another store, which was at this URL before; a vacuum deletes it a day later"
        yield Finding("garbage", "foreign", Severity.NOTE, message, "txnstore vacuum")
