"""Reads existing entries of chains, for a history rather than a state."""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.chain.codec import Entry, decode
from txnstore.chain.keys import Keys
from txnstore.errors import ObjectNotFoundError
from txnstore.storage.base import ObjectStore


def newest(heads: Sequence[int], count: int) -> list[range]:
    """The ranges of the newest entries of each chain, ``count`` in total.

    Each chain gets an equal share; a chain with fewer entries leaves the rest of its share to the others.

    Args:
        heads: The sequence number of the head of each chain.
        count: The total number of entries.
    """
    lengths = [0] * len(heads)
    left = count
    # Short chains first, so that the remaining share is divided among the longer ones.
    for done, chain in enumerate(sorted(range(len(heads)), key=lambda number: heads[number])):
        lengths[chain] = min(heads[chain], left // (len(heads) - done))
        left -= lengths[chain]
    return [range(head - length + 1, head + 1) for head, length in zip(heads, lengths, strict=True)]


def read_entry(objects: ObjectStore, keys: Keys, chain: int, sequence: int) -> tuple[Entry, int] | None:
    """An entry and its size in bytes; None if it does not exist."""
    key = keys.entry(chain, sequence)
    try:
        data = objects.get(key)
    except ObjectNotFoundError:
        return None
    return decode(Entry, key, data), len(data)
