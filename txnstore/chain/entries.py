"""Reading entries of chains that are there already: for a look back, not for a state."""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.chain import keys
from txnstore.chain.codec import Entry, decode
from txnstore.errors import ObjectNotFoundError
from txnstore.storage.base import ObjectStore


def newest(heads: Sequence[int], count: int) -> list[range]:
    """Of each chain a range of entries up to its head, ``count`` together: an equal share, or all that there are."""
    lengths = [0] * len(heads)
    left = count
    # Those that have less than their share come first, and leave the rest to the others.
    for done, chain in enumerate(sorted(range(len(heads)), key=lambda number: heads[number])):
        lengths[chain] = min(heads[chain], left // (len(heads) - done))
        left -= lengths[chain]
    return [range(head - length + 1, head + 1) for head, length in zip(heads, lengths, strict=True)]


def read_entry(objects: ObjectStore, chain: int, sequence: int) -> tuple[Entry, int] | None:
    """An entry and its size in bytes; None if it is gone."""
    key = keys.entry(chain, sequence)
    try:
        data = objects.get(key)
    except ObjectNotFoundError:
        return None
    return decode(Entry, key, data), len(data)
