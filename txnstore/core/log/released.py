"""The objects that batches were removed from, and when: a vacuum deletes one when no batch names it any more.

A segment whose only batch is removed is *dropped*: no batch may name it from then on. An object that may have other
batches is *released*, and a vacuum looks for those, and announces it, before it deletes it. Of entries with inlined
segments there may be many, because small commits are merged all the time, so they are released as spans of entries.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.log.model import Batch, Segment
from txnstore.core.model import EntrySpan
from txnstore.core.state import State, replace

#: Spans of the same hour are joined, in ms: a chain that merges all the time has at most 24 of them for a day.
_JOINED_MS = 3_600_000


def entry_of(key: str) -> int:
    """Return the sequence number of the entry with this key, ``…/<20 digits>.json``."""
    return int(key[-25:-5])


def with_removed(state: State, removed_batches: Iterable[Batch], added_batches: Iterable[Batch] = ()) -> State:
    """Return the state in which the objects of removed batches are dropped or released.

    ``added_batches``: the batches in their place, which may name the same segments.
    """
    still_named = {batch.segment.object for batch in added_batches}
    newly_dropped = dict[str, int]()
    newly_released = dict[str, int]()
    sequences = set[int]()
    for batch in removed_batches:
        segment = batch.segment
        if segment.inlined:
            sequences.add(entry_of(segment.object))
        elif segment.is_range or not batch.alone:
            newly_released[segment.object] = state.timestamp
        elif segment.object not in still_named:
            newly_dropped[segment.object] = state.timestamp
    if newly_dropped or newly_released:
        state = replace(
            state, dropped=state.dropped.update(newly_dropped), released=state.released.update(newly_released)
        )
    if sequences:
        span = EntrySpan(min(sequences), max(sequences), state.timestamp)
        state = replace(state, released_entries=join_span(state.released_entries, span))
    return state


def is_released(state: State, segment: Segment) -> bool:
    """Whether a batch was removed from the object of a segment, or from an entry near it."""
    return released_at(state, segment) is not None


def released_at(state: State, segment: Segment) -> int | None:
    """Return the time of the last removal of a batch from the segment's object, or a later one, in ms; or None."""
    if not segment.inlined:
        return state.released.get(segment.object)
    return entry_released_at(state, entry_of(segment.object))


def entry_released_at(state: State, sequence: int) -> int | None:
    """Return the same time for an entry with inlined segments."""
    return max((span.at for span in state.released_entries if span.first <= sequence <= span.last), default=None)


def join_span(spans: tuple[EntrySpan, ...], span: EntrySpan) -> tuple[EntrySpan, ...]:
    """Add a span that is not older: joined with the last one if both are of the same hour."""
    if spans and spans[-1].at // _JOINED_MS == span.at // _JOINED_MS:
        last_span = spans[-1]
        return (*spans[:-1], EntrySpan(min(last_span.first, span.first), max(last_span.last, span.last), span.at))
    return (*spans, span)
