"""The batches of a partition as a persistent list of runs, some of which are decoded only when needed.

Ranges of offsets are half-open: from ``base_offset`` up to, not including, ``limit``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

_CHUNK = 256


class Ranged(Protocol):
    """A range of offsets ``[base_offset, limit)``."""

    @property
    def base_offset(self) -> int: ...

    @property
    def limit(self) -> int: ...


T = TypeVar("T", bound=Ranged)
T_co = TypeVar("T_co", bound=Ranged, covariant=True)


class Run(Protocol[T_co]):
    """Consecutive batches of a list, at least one; its offsets are known without decoding it."""

    @property
    def base_offset(self) -> int:
        """The first offset of the first batch."""

    @property
    def limit(self) -> int:
        """The limit of the last batch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...

    def __iter__(self) -> Iterator[T_co]: ...

    def __reversed__(self) -> Iterator[T_co]: ...


class Chunk(tuple[T, ...]):
    """A run in memory."""

    __slots__ = ()

    @property
    def base_offset(self) -> int:
        """The first offset of the first batch."""
        return self[0].base_offset

    @property
    def limit(self) -> int:
        """The limit of the last batch."""
        return self[-1].limit

    def __reversed__(self) -> Iterator[T]:
        return iter(self[::-1])


def _first_offset(run: Run[Any]) -> int:
    return run.base_offset


def _base_offset_of(batch: Ranged) -> int:
    return batch.base_offset


class BatchList(Generic[T]):
    """An immutable sequence of batches, ordered by offset, without overlaps; versions of it share runs."""

    __slots__ = ("_runs", "_tail")

    def __init__(self, batches: Iterable[T] = ()) -> None:
        self._runs: tuple[Run[T], ...]
        self._tail: tuple[T, ...]
        self._take_runs(_chunks_of(tuple(batches)))

    def _take_runs(self, runs: tuple[Run[T], ...]) -> None:
        """Take these runs; a last one in memory that is not full is the tail, to which batches are appended."""
        if runs and isinstance(runs[-1], Chunk) and len(runs[-1]) < _CHUNK:
            self._runs, self._tail = runs[:-1], tuple(runs[-1])
        else:
            self._runs, self._tail = runs, ()

    @classmethod
    def _from_runs(cls, runs: tuple[Run[T], ...]) -> BatchList[T]:
        result: BatchList[T] = object.__new__(cls)
        result._take_runs(runs)
        return result

    def _all_batches(self) -> tuple[Run[T], ...]:
        return (*self._runs, Chunk(self._tail)) if self._tail else self._runs

    def append(self, batch: T) -> BatchList[T]:
        """Return a list with ``batch`` added at the end; its offsets must be above all others."""
        result: BatchList[T] = object.__new__(BatchList)
        tail = (*self._tail, batch)
        if len(tail) == _CHUNK:
            result._runs, result._tail = (*self._runs, Chunk(tail)), ()
        else:
            result._runs, result._tail = self._runs, tail
        return result

    def extended(self, runs: Sequence[Run[T]]) -> BatchList[T]:
        """Return a list that also has the batches of these runs, none of which is among the others."""
        own_runs = self._all_batches()
        if own_runs and runs and runs[0].base_offset < own_runs[-1].limit:
            return self.replace((), chain.from_iterable(runs))
        return BatchList._from_runs((*own_runs, *runs))

    def replace(self, removed_batches: Iterable[T], added_batches: Iterable[T]) -> BatchList[T]:
        """Return a list without the ``removed_batches`` batches and with the ``added_batches`` ones, in offset order.

        The runs before and after them are shared.
        """
        removed_offsets = {batch.base_offset for batch in removed_batches}
        new_batches = sorted(added_batches, key=_base_offset_of)
        if not removed_offsets and not new_batches:
            return self
        runs = self._all_batches()
        first_offset = min([*removed_offsets, *(batch.base_offset for batch in new_batches[:1])])
        last_offset = max([*removed_offsets, *(batch.base_offset for batch in new_batches[-1:])])
        begin = max(0, bisect_right(runs, first_offset, key=_first_offset) - 1)
        end = max(begin, bisect_right(runs, last_offset, key=_first_offset))
        while begin > 0 and isinstance(runs[begin - 1], Chunk) and len(runs[begin - 1]) < _CHUNK:
            begin -= 1  # What is left of earlier changes becomes one run.
        remaining_batches = [
            batch for run in runs[begin:end] for batch in run if batch.base_offset not in removed_offsets
        ]
        batches = sorted([*remaining_batches, *new_batches], key=_base_offset_of)
        return BatchList._from_runs((*runs[:begin], *_chunks_of(batches), *runs[end:]))

    def starting_at(self, offset: int) -> BatchList[T]:
        """Return a list without the batches that end at or before ``offset``."""
        runs = self._all_batches()
        cut = max(0, bisect_right(runs, offset, key=_first_offset) - 1)
        if not runs or (cut == 0 and runs[0].base_offset >= offset):
            return self
        return BatchList._from_runs(
            (*_chunks_of([batch for batch in runs[cut] if batch.limit > offset]), *runs[cut + 1 :])
        )

    def overlapping(self, start: int, limit: int) -> Iterator[T]:
        """Yield the batches that cover at least one of the offsets ``[start, limit)``, in order."""
        if start >= limit:
            return
        runs = self._all_batches()
        first_run = max(0, bisect_right(runs, start, key=_first_offset) - 1)
        for run in runs[first_run : bisect_left(runs, limit, key=_first_offset)]:
            first_index = max(0, bisect_right(run, start, key=_base_offset_of) - 1) if run is runs[first_run] else 0
            for batch in islice(run, first_index, None):
                if batch.base_offset >= limit:
                    return
                if batch.limit > start:
                    yield batch

    def in_memory_from(self, offset: int) -> bool:
        """Whether all batches from an offset on are in memory: reading others costs requests."""
        runs = self._all_batches()
        first_run = max(0, bisect_right(runs, offset, key=_first_offset) - 1)
        return all(isinstance(run, Chunk) for run in runs[first_run:])

    def changes(self, later_list: BatchList[T]) -> tuple[list[T], list[T]]:
        """Return the batches that a later version of this list has removed, and those that it has added.

        The cost depends on the runs that the two do not share.
        """
        runs, later_runs = self._all_batches(), later_list._all_batches()
        count = min(len(runs), len(later_runs))
        head = next((index for index in range(count) if runs[index] is not later_runs[index]), count)
        count -= head
        tail = next((index for index in range(count) if runs[-1 - index] is not later_runs[-1 - index]), count)
        before = _by_offset(runs[head : len(runs) - tail])
        after = _by_offset(later_runs[head : len(later_runs) - tail])
        return [*_batches_missing_in(before, after)], [*_batches_missing_in(after, before)]

    def __iter__(self) -> Iterator[T]:
        for run in self._runs:
            yield from run
        yield from self._tail

    def __reversed__(self) -> Iterator[T]:
        yield from reversed(self._tail)
        for run in reversed(self._runs):
            yield from reversed(run)

    def __len__(self) -> int:
        return sum(map(len, self._runs)) + len(self._tail)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchList) and self.changes(other) == ([], [])

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"BatchList({list(self)!r})"


def _chunks_of(batches: Sequence[T]) -> tuple[Chunk[T], ...]:
    return tuple(Chunk(batches[start : start + _CHUNK]) for start in range(0, len(batches), _CHUNK))


def _by_offset(runs: Iterable[Run[T]]) -> dict[int, T]:
    return {batch.base_offset: batch for run in runs for batch in run}


def _batches_missing_in(batches: dict[int, T], other: dict[int, T]) -> Iterator[T]:
    """Return the batches that ``other`` does not have, in order."""
    return (batch for offset, batch in batches.items() if other.get(offset) != batch)
