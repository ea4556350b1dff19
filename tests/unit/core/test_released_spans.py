"""The spans of entries that batches were removed from: few, and never smaller than what they stand for."""

from __future__ import annotations

import itertools
import random

from txnstore.core.decide import decide
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.released import entry_released_at, is_released, join_span, released_at, with_removed
from txnstore.core.maintenance import ForgetEntries, ObjectsForgotten
from txnstore.core.model import EntrySpan
from txnstore.core.state import State

HOUR_MS = 3_600_000


def inlined(entry: int) -> Segment:
    return Segment(f"chains/store/0000/entries/{entry:020d}.json", "arrow_stream", 1, "", 1, first_byte=0)


def removed(*segments: Segment) -> list[Batch]:
    return [Batch(0, 1, 1, segment, 0, 0) for segment in segments]


def test_spans_of_an_hour_are_joined() -> None:
    """To one with all of their entries, and the time of the last removal."""
    spans = join_span((EntrySpan(5, 9, HOUR_MS),), EntrySpan(3, 7, HOUR_MS + 1))
    assert spans == (EntrySpan(3, 9, HOUR_MS + 1),)
    spans = join_span(spans, EntrySpan(8, 20, 2 * HOUR_MS - 1))
    assert spans == (EntrySpan(3, 20, 2 * HOUR_MS - 1),)
    assert join_span(spans, EntrySpan(1, 1, 2 * HOUR_MS)) == (*spans, EntrySpan(1, 1, 2 * HOUR_MS))


def test_no_removal_is_forgotten_or_seems_older() -> None:
    """Whatever is removed, and whenever; and a day has at most 24 spans, besides the one that it begins with."""
    rng = random.Random(7)
    state, last = State(), dict[int, int]()
    times = itertools.accumulate((rng.choice((1, 1_000, HOUR_MS // 5)) for _ in range(400)), initial=5)
    for now in times:
        entries = [rng.randrange(1_000) for _ in range(rng.randint(1, 4))]
        state = with_removed(
            State(timestamp=now, released_entries=state.released_entries), removed(*map(inlined, entries))
        )
        last |= dict.fromkeys(entries, now)
    for entry, at in last.items():
        since = entry_released_at(state, entry)
        assert since is not None
        assert since >= at
        assert is_released(state, inlined(entry))
    newest = state.timestamp
    assert sum(span.at > newest - 24 * HOUR_MS for span in state.released_entries) <= 25
    assert list(state.released_entries) == sorted(state.released_entries, key=lambda span: span.at)


def test_objects_are_remembered_one_by_one() -> None:
    """With the time of the last removal; an entry is none of them."""
    own, other = (
        Segment("topics/t/0/a.parquet", "parquet", 1, "", 2),
        Segment("topics/t/0/b.parquet", "parquet", 1, "", 2),
    )
    state = with_removed(State(timestamp=5), removed(own, inlined(3)))
    state = with_removed(State(timestamp=8, released=state.released), removed(own))
    assert dict(state.released.items()) == {own.object: 8}
    assert (released_at(state, own), released_at(state, other)) == (8, None)


def test_a_segment_with_one_batch_is_dropped() -> None:
    """No batch may name it any more; unless one in the place of the removed batch does."""
    segment = Segment("topics/t/0/a.parquet", "parquet", 1, "", 1)
    state = with_removed(State(timestamp=5), removed(segment))
    assert (dict(state.dropped.items()), len(state.released)) == ({segment.object: 5}, 0)
    state = with_removed(State(timestamp=5), removed(segment), removed(segment))
    assert (len(state.dropped), len(state.released)) == (0, 0)


def test_a_span_that_has_grown_is_not_forgotten() -> None:
    """A vacuum that has looked at it before knows nothing of its new entries."""
    state = with_removed(State(timestamp=5), removed(inlined(3)))
    (seen,) = state.released_entries
    state = with_removed(State(timestamp=6, released_entries=state.released_entries), removed(inlined(4)))
    assert not decide(state, ForgetEntries(0, (seen,))).events
    (grown,) = state.released_entries
    events = list(decide(state, ForgetEntries(0, (grown,))).events)
    assert events == [ObjectsForgotten(keys=[], entries=[grown])]
