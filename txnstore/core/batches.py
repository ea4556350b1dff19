"""A persistent list of batches in offset order.

A partition's list of batches grows with every append and is shared by every snapshot that was ever taken, so it is a
tuple of full, immutable chunks and a short open tail: an append copies the tail only, and finding an offset is a
binary search over the chunks, then inside one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

_CHUNK = 256


class Ranged(Protocol):
    """Something that covers the offsets ``[base_offset, limit)``."""

    @property
    def base_offset(self) -> int: ...

    @property
    def limit(self) -> int: ...


T = TypeVar("T", bound=Ranged)


class BatchList(Generic[T]):
    """An immutable sequence of batches, ordered by offset, without overlaps."""

    __slots__ = ("_chunks", "_tail")

    def __init__(self, batches: Iterable[T] = ()) -> None:
        items = tuple(batches)
        full = len(items) - len(items) % _CHUNK
        self._chunks: tuple[tuple[T, ...], ...] = tuple(items[at : at + _CHUNK] for at in range(0, full, _CHUNK))
        self._tail: tuple[T, ...] = items[full:]

    def append(self, batch: T) -> BatchList[T]:
        """A list that also holds ``batch``, which must lie behind all others."""
        result: BatchList[T] = BatchList()
        tail = (*self._tail, batch)
        if len(tail) == _CHUNK:
            result._chunks, result._tail = (*self._chunks, tail), ()
        else:
            result._chunks, result._tail = self._chunks, tail
        return result

    def replace(self, removed: Iterable[T], added: Iterable[T]) -> BatchList[T]:
        """A list without the ``removed`` batches and with the ``added`` ones, in offset order."""
        gone = {batch.base_offset for batch in removed}
        kept = [batch for batch in self if batch.base_offset not in gone]
        return BatchList(sorted([*kept, *added], key=lambda batch: batch.base_offset))

    def overlapping(self, start: int, limit: int) -> Iterator[T]:
        """The batches that cover at least one of the offsets ``[start, limit)``, in order."""
        if start >= limit:
            return
        runs = (*self._chunks, self._tail)
        first = max(0, bisect_right(runs, start, key=lambda run: run[0].base_offset if run else limit) - 1)
        for run in runs[first:]:
            at = max(0, bisect_right(run, start, key=lambda batch: batch.base_offset) - 1)
            for batch in run[at:]:
                if batch.base_offset >= limit:
                    return
                if batch.limit > start:
                    yield batch

    def changes(self, later: BatchList[T]) -> tuple[list[T], list[T]]:
        """What a later version of this list has lost, and what it has got. Costs the chunks that are not shared."""
        shared = 0
        for mine, theirs in zip(self._chunks, later._chunks, strict=False):
            if mine is not theirs:
                break
            shared += 1
        before, after = self._after(shared), later._after(shared)
        return [*_missing(before, after)], [*_missing(after, before)]

    def _after(self, chunks: int) -> dict[int, T]:
        runs = (*self._chunks[chunks:], self._tail)
        return {batch.base_offset: batch for run in runs for batch in run}

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk
        yield from self._tail

    def __reversed__(self) -> Iterator[T]:
        yield from reversed(self._tail)
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)

    def __len__(self) -> int:
        return len(self._chunks) * _CHUNK + len(self._tail)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchList) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"BatchList({list(self)!r})"


def _missing(batches: dict[int, T], other: dict[int, T]) -> Iterator[T]:
    """Those of ``batches`` that ``other`` does not have, in order."""
    return (batch for offset, batch in batches.items() if other.get(offset) != batch)
