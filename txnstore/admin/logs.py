"""Shows the log of one partition with its markers, as Kafka's DumpLogSegments does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txnstore.admin.transactions import HISTORY_ENTRIES, existing_log
from txnstore.chain.tail import missing_entry, read_entry
from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.history import HistoryEntry
from txnstore.core.log.dump import LogLine, Traces, log_lines
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.validation import check_integer

#: The number of entries that are read at the same time.
_WINDOW = 256


@dataclass(frozen=True, slots=True)
class LogDump:
    """A part of the log of a partition, line by line.

    Attributes:
        log_start: The log start.
        last_stable: The last stable offset: ``read_committed`` readers stop there.
        high_watermark: The high watermark: the next offset.
        chain: The chain that leads the partition.
        lines: The batches, markers and unknown offsets, by first offset.
        deleted: The last entry of the chain that a vacuum has deleted, if markers before it are asked for; else 0.
        limited: Whether older entries exist that ``entries`` has left out.
    """

    log_start: int
    last_stable: int
    high_watermark: int
    chain: int
    lines: tuple[LogLine, ...]
    deleted: int = 0
    limited: bool = False


def dump_log(
    connection: Connection,
    topic: str,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    entries: int = HISTORY_ENTRIES,
) -> LogDump:
    """Read the log of a partition with its markers. One GET for each entry that is read."""
    check_integer("entries", entries, 0)
    for name, offset in (("start", start), ("stop", stop)):
        if offset is not None:
            check_integer(name, offset, 0)
    connection.check_rights(read_topics([topic]))
    view, tp = connection.view(), TopicPartition(topic, partition)
    log = existing_log(view, tp)
    chain = chain_of_partition(tp, view.chains)
    first_offset = log.log_start if start is None else max(start, log.log_start)
    head = view.states[chain].sequence
    traces = Traces([tp])
    oldest_sequence = head + 1
    deleted_up_to = connection.chains[chain].boundaries.last().sequence
    for entry in _newest_first(connection, chain, head, deleted_up_to, entries):
        traces.add(entry)
        oldest_sequence = entry.sequence
        if traces.reach(tp, first_offset):
            break
    is_incomplete = not traces.reach(tp, first_offset) and first_offset < log.high_watermark
    lines = log_lines(log, traces.by_partition[tp], view.transactional_ids, view.chains)
    return LogDump(
        log_start=log.log_start,
        last_stable=log.last_stable_offset,
        high_watermark=log.high_watermark,
        chain=chain,
        lines=tuple(
            line for line in lines if line.last_offset >= first_offset and (stop is None or line.base_offset < stop)
        ),
        deleted=deleted_up_to if is_incomplete and oldest_sequence == deleted_up_to + 1 else 0,
        limited=is_incomplete and oldest_sequence > deleted_up_to + 1,
    )


def _newest_first(
    connection: Connection, chain: int, head: int, deleted_up_to: int, max_entries: int
) -> Iterator[HistoryEntry]:
    """Read at most ``max_entries`` entries of a chain, the newest one first."""
    objects, keys = connection.objects, connection.keys
    stop_before = max(deleted_up_to, head - max_entries)
    for end in range(head, stop_before, -_WINDOW):
        sequences = range(end, max(stop_before, end - _WINDOW), -1)
        results = connection.pool.map(lambda sequence: read_entry(objects, keys, chain, sequence), sequences)
        for sequence, entry_and_size in zip(sequences, results, strict=True):
            if entry_and_size is None:
                if sequence <= connection.chains[chain].boundaries.last().sequence:
                    return  # A vacuum has deleted it meanwhile.
                raise missing_entry(keys, chain, sequence, f"entry {head} exists")
            entry = entry_and_size[0]
            yield HistoryEntry(chain, sequence, entry.timestamp, entry.writer_id, entry.events, entry.principals)
