"""Reads the boundaries of a chain, and finds those that are lost. See docs/internals/design/history.md."""

from __future__ import annotations

from collections.abc import Mapping

from txnstore.chain import keys
from txnstore.chain.boundary import BoundaryDocument, read_boundary
from txnstore.chain.keys import Keys
from txnstore.errors import CorruptionError
from txnstore.storage.base import ObjectStore

#: A hint that names a boundary of a number so much greater than that of the last one is wrong: a chain gets one a day.
_MOST_LOST = 1_000


def read_boundaries(
    objects: ObjectStore, names: Keys, chain: int, hinted: int = 0
) -> dict[int, BoundaryDocument | None]:
    """The last two boundaries of a chain, and those that are missing or damaged, as None.

    ``hinted``: a number that a hint names, so that this boundary must exist, unless the hint is wrong.
    """
    listed_numbers = {
        number for info in objects.list(names.boundaries(chain)) if (number := keys.boundary_number(info.key))
    }
    last_number = max(listed_numbers, default=0)
    last_number = max(last_number, hinted) if hinted <= last_number + _MOST_LOST else last_number
    boundaries: dict[int, BoundaryDocument | None] = {}
    for number in range(1, last_number + 1):
        if number in listed_numbers and number < last_number - 1:
            continue
        try:
            boundaries[number] = read_boundary(objects, names, chain, number)
        except CorruptionError:
            boundaries[number] = None
    second_last, last_boundary = boundaries.get(last_number - 1), boundaries.get(last_number)
    if second_last is not None and last_boundary is not None and last_boundary.sequence < second_last.sequence:
        boundaries[last_number] = None  # An older one in its place.
    return boundaries


def boundaries_without_checkpoint(boundaries: Mapping[int, BoundaryDocument | None], newest: int) -> list[int]:
    """The numbers of boundaries that cannot be those of the chain: no checkpoint is as new as their entry.

    ``newest``: the number of the newest checkpoint; 0: there is none, so that nothing tells.
    """
    return [
        number
        for number, boundary in boundaries.items()
        if newest and boundary is not None and boundary.sequence > newest
    ]
