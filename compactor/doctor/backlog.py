"""Find what a store has to do: compactions, checkpoints, open transactions, groups. Reads no segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from txnstore.admin.transactions import find_hanging
from txnstore.chain import keys
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import interval
from txnstore.chain.codec import LatestDocument, decode
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.chain.earlier_states import SKEW_MS
from txnstore.compactor.compact.compaction import compact
from txnstore.compactor.compact.report import PartitionCompaction
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.connection import Connection
from txnstore.coordinator.recovery import FINISH_AFTER_MS
from txnstore.core.blocked import blocked_partitions
from txnstore.core.groups.membership import holders
from txnstore.core.groups.model import Group
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.state import State
from txnstore.core.transactions.model import DECIDED, Transaction
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageError, TxnStoreError, UnsupportedFormatError
from txnstore.phrases import counted, duration, some
from txnstore.runtime import instant
from txnstore.storage.base import read_if_there

#: A partition of which a compaction would merge away this many segments gives a warning.
_MANY_SEGMENTS = 100
#: The number of missing checkpoints of a chain that gives a warning: each process that opens the store reads the
#: entries since the last one.
_OVERDUE_INTERVALS = 4


# Segments -------------------------------------------------------------------------------------------------------------


def segment_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report what a compaction would do, by its dry run, and the aborted data below the last stable offsets."""
    errors: list[TxnStoreError] = []
    plan = compact(connection, dry_run=True, expire=False, on_error=errors.append)
    for error in errors:
        yield Finding("segments", "compaction", Severity.BAD, str(error), "txnstore verify")
    removed_segments = max((item.segments_before - item.segments_after for item in plan.partitions), default=0)
    if not (plan.partitions or errors):
        yield Finding("segments", "compaction", Severity.OK, "there is nothing to compact")
    elif plan.partitions:
        severity = Severity.WARN if removed_segments >= _MANY_SEGMENTS else Severity.NOTE
        message = (
            f"a compaction would turn {counted(plan.segments_before, 'segment')} of "
            f"{counted(len(plan.partitions), 'partition')} into {plan.segments_after:,}; "
            f"{_largest_gain(plan.partitions)}"
        )
        yield Finding("segments", "compaction", severity, message, "txnstore compact")
    retained = plan.retained
    if retained.partitions:
        records = f"{counted(retained.records, 'record')} in {counted(len(retained.partitions), 'partition')}"
        message = f"{records}, {retained.bytes:,} bytes, are past the retention of their topics"
        yield Finding("segments", "retention", Severity.NOTE, message, "txnstore retain")
    sizes = [size for tp in view.partitions for size in _aborted_batch_sizes(view, tp)]
    if sizes:
        batches = counted(len(sizes), "aborted batch", "aborted batches")
        message = f"{batches} of {sum(sizes):,} bytes in all, stored and never read"
        yield Finding("segments", "aborted-data", Severity.NOTE, message, "txnstore compact")


def _largest_gain(partitions: tuple[PartitionCompaction, ...]) -> str:
    largest = max(partitions, key=lambda item: item.segments_before - item.segments_after)
    return f"most in {largest.tp}: {largest.segments_before:,} into {largest.segments_after:,}"


def _aborted_batch_sizes(view: View, tp: TopicPartition) -> Iterator[int]:
    """Yield the sizes of the aborted batches of a partition that a compaction may drop."""
    log = view.partitions[tp]
    is_aborted = aborted_batches(log)
    for batch in log.batches.overlapping(log.log_start, log.last_stable_offset):
        if is_aborted(batch):
            yield batch.size


# Chains ---------------------------------------------------------------------------------------------------------------


def chain_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report how far each chain is from its newest checkpoint, at the cost of an open for each chain."""
    numbers = range(view.chains)
    hints = connection.chains.concurrently(
        {number: partial(read_if_there, connection.objects, keys.latest(number)) for number in numbers}
    )
    problems = [
        problem for state in view.states if (problem := _checkpoint_finding(connection, state, hints[state.chain]))
    ]
    yield from problems
    yield from _entry_time_findings(connection, view)
    if not problems:
        size = f"{counted(view.sequence, 'entry', 'entries')} in {counted(view.chains, 'chain')}"
        yield Finding("chains", "checkpoint", Severity.OK, f"{size}; the checkpoints are recent")


def lacks_recent_checkpoint(findings: Iterable[Finding]) -> bool:
    """Whether a chain lacks a recent checkpoint that can be read, by what :func:`chain_findings` has found."""
    return any(item.name in ("hint", "checkpoint") and item.severity is Severity.WARN for item in findings)


def _entry_time_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report chains whose newest entry has a time that the storage's clock has not reached."""
    try:
        now = connection.objects.now_ms()
    except StorageError:
        return  # The check of the clocks reports it.
    for state in view.states:
        ahead = state.timestamp - now
        if ahead >= SKEW_MS:
            message = (
                f"the newest entry of chain {state.chain} has the time {instant(state.timestamp)}, {duration(ahead)} "
                "ahead of the storage: the clock of a writer was wrong. Until then new entries get that time, too, "
                "and earlier snapshots are found by entry, not by time; set the clocks of all writers by NTP"
            )
            yield Finding("chains", "entry-times", Severity.WARN, message)


def _checkpoint_finding(connection: Connection, state: State, hint: bytes | None) -> Finding | None:
    """Report a missing, damaged or old hint or checkpoint of a chain; None if all is well."""
    chain_name, key = f"chain {state.chain}", keys.latest(state.chain)
    if hint is None:
        if state.sequence < CHECKPOINT_EVERY:
            return None
        message = f"{chain_name} has {state.sequence:,} entries, but {key} is missing: every open lists all checkpoints"
        return Finding("chains", "hint", Severity.WARN, message, "txnstore recover")
    try:
        document = decode(LatestDocument, key, hint)
    except (CorruptionError, UnsupportedFormatError) as error:
        return Finding("chains", "hint", Severity.WARN, str(error), "txnstore recover")
    if checkpoint.hint_of_this_store(connection.keys, document) is not document:
        message = f"{key} is a hint of the store {document.store_id}: the next checkpoint writes it again"
        severity = Severity.NOTE if state.sequence < CHECKPOINT_EVERY else Severity.WARN
        return Finding("chains", "hint", severity, message, "txnstore checkpoint")
    saved_sequence = document.sequence
    damage = _checkpoint_damage(connection, state.chain, saved_sequence)
    if damage is not None:
        message = f"{key} names the checkpoint of entry {saved_sequence}, which {damage}"
        return Finding("chains", "hint", Severity.WARN, message, "txnstore recover")
    entries_since = state.sequence - saved_sequence
    if entries_since < _OVERDUE_INTERVALS * interval(state, CHECKPOINT_EVERY):
        return None
    message = (
        f"{chain_name} has {entries_since:,} entries since its newest checkpoint, which every process reads when it "
        "opens"
    )
    return Finding("chains", "checkpoint", Severity.WARN, message, "txnstore checkpoint")


def _checkpoint_damage(connection: Connection, chain: int, sequence: int) -> str | None:
    """Return the damage of a checkpoint as text; None if it can be read."""
    names = connection.keys
    requested = checkpoint.request(connection.objects, connection.pool, names, chain, sequence)
    if requested is None:
        return "does not exist"
    try:
        checkpoint.decode_all(checkpoint.read(names, chain, sequence, requested).state)
    except ObjectNotFoundError as error:
        return f"does not exist, or not all of it: {error}"
    except (CorruptionError, UnsupportedFormatError) as error:
        return f"cannot be read: {error}"
    return None


# Transactions ---------------------------------------------------------------------------------------------------------


def transaction_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report incomplete transactions, and the number of records that wait for them."""
    waiting_records: dict[int, int] = {}
    for part in blocked_partitions(view):
        waiting_records[part.producer_id] = waiting_records.get(part.producer_id, 0) + part.records
    now = connection.runtime.clock()
    findings = []
    for state in view.states:
        for _, txn in sorted_items(state.transactions):
            finding = _transaction_finding(connection, state, txn, waiting_records, now)
            if finding:
                findings.append(finding)
    for item in find_hanging(connection):
        if item.reason != "unknown":
            continue
        place = str(item.tp) if item.tp is not None else f"group {item.group!r}"
        command = f"txnstore txn abort --partition {item.tp} --producer-id {item.producer_id}"
        message = f"{place} has open data of producer id {item.producer_id}, whose transaction no coordinator knows"
        command = command if item.tp is not None else f"txnstore group delete {item.group}"
        findings.append(Finding("transactions", "unknown", Severity.BAD, message, command))
    yield from findings
    if not findings:
        yield Finding("transactions", "open", Severity.OK, "no transaction is open")


def _transaction_finding(
    connection: Connection, state: State, txn: Transaction, waiting_records: Mapping[int, int], now: int
) -> Finding | None:
    """Report a transaction that is prepared, past its timeout, open, or decided and not complete."""
    name, records = repr(txn.transactional_id), waiting_records.get(txn.producer_id, 0)
    held_back = f"; behind it: {counted(records, 'committed record')}" if records else ""
    if txn.state in DECIDED:
        if not connection.chains.ages.is_over(state, txn.updated_at, FINISH_AFTER_MS):
            return None
        message = f"{name} was decided {duration(now - txn.updated_at)} ago ({txn.state.name}), and is not complete"
        return Finding("transactions", "incomplete", Severity.WARN, message, "txnstore recover")
    if txn.started_at is None:
        return None
    age = f"is open since {duration(now - txn.started_at)} in {counted(len(txn.partitions), 'partition')}"
    held_back += f"; a vacuum keeps the history from its entry {txn.first_entry:,} on"
    show_command = f"txnstore txn show {txn.transactional_id}"
    if txn.is_prepared:
        message = f"{name} {age}, prepared for an external coordinator: it has no timeout{held_back}"
        return Finding("transactions", "prepared", Severity.WARN if records else Severity.NOTE, message, show_command)
    if connection.chains.ages.has_expired(state, txn):
        message = f"{name} {age}, past its timeout of {duration(txn.timeout_ms)}{held_back}"
        return Finding("transactions", "expired", Severity.WARN, message, "txnstore recover")
    return Finding("transactions", "open", Severity.NOTE, f"{name} {age}{held_back}", show_command)


# Groups ---------------------------------------------------------------------------------------------------------------


def group_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report members past their session, and members that wait for the partitions of others."""
    findings: list[Finding] = []
    for name, group in sorted(view.groups.items()):
        expired = {member_id for member_id, _ in connection.chains.expired_members(name)}
        findings += _member_findings(name, group, expired)
    yield from findings
    if not findings:
        message = f"{counted(len(view.groups), 'group')}; all members renew their leases, and none waits"
        yield Finding("groups", "members", Severity.OK, message)


def _member_findings(name: str, group: Group, expired: set[str]) -> Iterator[Finding]:
    """Report members of a group past their session, and members without their partitions."""
    command = f"txnstore group show {name}"
    live_members = [member for member_id, member in sorted(group.members.items()) if member_id not in expired]
    expired_members = sorted(expired & set(group.members))
    if expired_members:
        held_partitions = sum(len(group.members[each].held) for each in expired_members)
        message = (
            f"group {name!r}: {counted(len(expired_members), 'member')} past the session timeout "
            f"({some(expired_members)}), with {counted(held_partitions, 'partition')} and "
            f"{counted(len(live_members), 'live member')}"
        )
        yield Finding(
            "groups",
            "expired_members",
            Severity.WARN if live_members and held_partitions else Severity.NOTE,
            message,
            command,
        )
    waiting_members = [member for member in live_members if holders(group, member)]
    if waiting_members:
        holder_ids = sorted({holder.member_id for member in waiting_members for holder in holders(group, member)})
        members = counted(len(waiting_members), "member")
        message = f"group {name!r}: {members} without partitions that {some(holder_ids)} still holds"
        yield Finding("groups", "waiting", Severity.NOTE, message, command)
