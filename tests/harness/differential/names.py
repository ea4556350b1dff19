"""Maps producer ids to small numbers, so that those of two stores can be compared (DIF-09)."""

from __future__ import annotations

#: The number of a producer id that was never granted.
UNKNOWN = 1_000_000


class ProducerIds:
    """Numbers for producer ids, from 0 in the order in which they appear."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, producer_id: int) -> int:
        """The number of a real producer id; -1 stands for none."""
        return producer_id if producer_id < 0 else self._numbers.setdefault(producer_id, len(self._numbers))

    def real(self, number: int) -> int:
        """The producer id behind a number; for one that has not appeared, an id that was never granted."""
        if number < 0:
            return number
        ids = [producer_id for producer_id, its_number in self._numbers.items() if its_number == number]
        return ids[0] if ids else UNKNOWN + number
