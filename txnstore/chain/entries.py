"""Reads single entries of chains, for a history rather than a state."""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.chain.codec import Entry
from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore


def newest(heads: Sequence[int], count: int, firsts: Sequence[int] = ()) -> list[range]:
    """The ranges of the newest entries of each chain, ``count`` in total.

    Each chain gets an equal share; a chain with fewer entries leaves the rest of its share to the others.

    Args:
        heads: The sequence number of the head of each chain.
        count: The total number of entries.
        firsts: The last entry of each chain that may be deleted; by default 0.
    """
    before = firsts or [0] * len(heads)
    lengths = [0] * len(heads)
    left = count
    # Short chains first, so that the remaining share is divided among the longer ones.
    for done, chain in enumerate(sorted(range(len(heads)), key=lambda number: heads[number] - before[number])):
        lengths[chain] = min(max(0, heads[chain] - before[chain]), left // (len(heads) - done))
        left -= lengths[chain]
    return [range(head - length + 1, head + 1) for head, length in zip(heads, lengths, strict=True)]


def read_entry(objects: ObjectStore, keys: Keys, chain: int, sequence: int) -> tuple[Entry, int] | None:
    """An entry and its size in bytes; None if it does not exist.

    Raises:
        CorruptionError: The object does not hold this entry.
    """
    try:
        data = objects.get(keys.entry(chain, sequence))
    except ObjectNotFoundError:
        return None
    return entry_in(data, keys, chain, sequence), len(data)


def entry_in(data: bytes, keys: Keys, chain: int, sequence: int) -> Entry:
    """The entry ``sequence`` in the bytes of its object.

    Raises:
        CorruptionError: They are damaged, or those of another entry.
        UnsupportedFormatError: A newer txnstore wrote them.
    """
    key = keys.entry(chain, sequence)
    entry = decode_entry(key, data)
    if entry.sequence != sequence:
        msg = f"{key} contains entry {entry.sequence}; expected {sequence}"
        raise CorruptionError(msg)
    return entry
