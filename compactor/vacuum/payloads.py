"""Find the entries with inlined segments that readers need. See docs/internals/design/segments.md.

An entry goes as a whole, with the history of its chain. Where the history cannot end behind it, for lack of later
checkpoints, its line stays, and the bytes before it go. All vacuums write the same bytes, however late a request
arrives.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry, line_of, payload_damage, payload_of
from txnstore.connection import Connection
from txnstore.core.log.released import entry_of
from txnstore.core.maintenance import ForgetEntries
from txnstore.core.model import EntrySpan, sorted_items
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ObjectInfo, ObjectStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpanOfEntries:
    """A span of entries that batches were removed from, long ago.

    Attributes:
        staying: The keys of the entries in it that no reader needs, and that the history of the chain cannot end
            behind.
        is_free: Whether no batch names an entry in it. A compaction moves the remaining batches of a released entry, so
            the state keeps the span while there are some.
    """

    chain: int
    span: EntrySpan
    staying: tuple[str, ...]
    is_free: bool


@dataclass(frozen=True, slots=True)
class OldPayloads:
    """Entries with inlined segments.

    Attributes:
        live: For each chain the numbers of those that batches name, ascending.
        young: For each chain the spans that readers may need: a batch named an entry in it when the grace period began.
        old: The other spans.
    """

    live: list[list[int]]
    young: list[list[EntrySpan]]
    old: list[SpanOfEntries]

    def in_use(self, chain: int, sequence: int) -> bool:
        """Whether readers may need the inlined segments of an entry, if it has any."""
        if any(span.first <= sequence <= span.last for span in self.young[chain]):
            return True
        return self.has_live(chain, sequence, sequence)

    def has_live(self, chain: int, first: int, last: int) -> bool:
        """Whether batches name one of the entries from ``first`` to ``last``."""
        live = self.live[chain]
        index = bisect_left(live, first)
        return index < len(live) and live[index] <= last


def old_payloads(names: Keys, view: View, ends: Sequence[int], limit_of: Callable[[State], int]) -> OldPayloads:
    """The entries with inlined segments that readers do not need any more.

    Args:
        view: The newest view.
        ends: For each chain the last entry behind which its history can end, when it is old enough.
        limit_of: Returns the time at which the grace period began, in the times of a chain.
    """
    payloads = OldPayloads([sorted(live_entries(state)) for state in view.states], [[] for _ in view.states], [])
    for state in view.states:
        if not state.released_entries:
            continue
        chain, limit, end = state.chain, limit_of(state), ends[state.chain]
        old_spans = [span for span in state.released_entries if span.at <= limit]
        # All of them first: an entry of an old span may have been released again since.
        payloads.young[chain] += [span for span in state.released_entries if span.at > limit]
        for span in old_spans:
            numbers = range(max(span.first, end + 1), span.last + 1)
            staying = tuple(names.entry(chain, number) for number in numbers if not payloads.in_use(chain, number))
            is_free = not payloads.has_live(chain, span.first, span.last)
            payloads.old.append(SpanOfEntries(chain, span, staying, is_free))
    return payloads


def live_entries(state: State) -> set[int]:
    """The numbers of the entries whose inlined segments batches name."""
    return {
        entry_of(batch.segment.object)
        for _, partition in sorted_items(state.partitions)  # In the order of the rows of index files.
        for batch in partition.batches
        if batch.segment.inlined
    }


def delete_payloads(
    connection: Connection, spans: Sequence[SpanOfEntries], *, dry_run: bool
) -> Iterator[list[ObjectInfo]]:
    """Delete the payloads of entries that the history cannot end behind, and forget the spans.

    The history can only end behind an entry that two checkpoints cover, so they are at most as many as a chain writes
    between three of them, and none in a chain that is written all the time.

    Args:
        spans: The spans of old payloads.
        dry_run: Delete nothing.

    Yields:
        For each payload the key of its entry and ``#``, and its size.
    """
    for item in spans:
        sizes = [*connection.pool.map(partial(_delete_payload, connection, dry_run=dry_run), item.staying)]
        if not dry_run and item.is_free and None not in sizes:
            connection.submit(ForgetEntries(item.chain, (item.span,)))
        yield [ObjectInfo(f"{key}#", size, 0) for key, size in zip(item.staying, sizes, strict=True) if size]


def _delete_payload(connection: Connection, key: str, *, dry_run: bool) -> int | None:
    """Replace an entry by its line; returns the size of its payload, or None if the entry is damaged."""
    try:
        return remove_payload(connection.objects, key, dry_run=dry_run)
    except (CorruptionError, ObjectNotFoundError) as error:
        _LOG.warning("payload kept: %s", error, extra={"key": key, "error": str(error)})
        return None


def remove_payload(objects: ObjectStore, key: str, *, dry_run: bool = False) -> int:
    """Replace an entry by its line; return the size of its payload.

    Raises:
        ObjectNotFoundError: It does not exist.
        CorruptionError: It is damaged.
        StorageRefusedError: The storage refuses to overwrite it.
    """
    data = objects.get(key)
    damage = payload_damage(decode_entry(key, data), data)
    if damage is not None:
        raise CorruptionError(f"{key}: {damage}")
    payload = payload_of(data)
    if payload and not dry_run:
        try:
            objects.put(key, line_of(data))
        except StorageRefusedError as error:
            msg = f"{error} The records in {key} stay: vacuums and erasures must be allowed to overwrite entries."
            raise StorageRefusedError(msg) from error.__cause__
    return len(payload)
