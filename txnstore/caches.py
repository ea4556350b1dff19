"""Values in memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from txnstore.threads import ForkLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Keeps the values that were used last, up to ``bound`` bytes in total. Thread-safe, also after a fork."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        #: Guards changes of the two fields below; lookups take no lock. A thread that holds it takes no other lock.
        self._lock = ForkLock()
        #: Each with its size; the one that was used longest ago first.
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        #: The sizes in total; too large after an interrupt, never too small.
        self.size = 0

    def has_room(self, size: int) -> bool:
        """Whether a value of this size can be kept, and none is dropped for it."""
        return self.size + size <= self._bound

    def find(self, key: K) -> V | None:
        """Return the value; None if it is not kept."""
        kept = self._values.get(key)
        if kept is None:
            return None
        with suppress(KeyError):  # Another thread may drop it now.
            self._values.move_to_end(key)
        return kept[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keep a value in place of the one with this key; drop others if they are too large together."""
        with self._lock.own:
            self.size += size
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self.size -= before
            while self._values and self.size > self._bound:
                _, (_, dropped) = self._values.popitem(last=False)
                self.size = self.size - dropped if self._values else 0

    def forget(self) -> None:
        """Drop all values."""
        with self._lock.own:
            self._values.clear()
            self.size = 0
