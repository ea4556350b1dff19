"""The chain's side of groups, in memory: it takes its time and may fail, before or after it has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txnstore.errors import IllegalGenerationError
from txnstore.gateway.groups.model import StoredGeneration


class Chain:
    """Stored generations of groups.

    Attributes:
        history: All that was stored, in order.
        seconds: Returns how long each half of a request takes.
        fail: Called before ("load", "store") and after ("stored") the effect of a request; it may raise.
    """

    def __init__(self) -> None:
        self.history: list[tuple[str, StoredGeneration]] = []
        self.seconds: Callable[[], float] = lambda: 0.0
        self.fail: Callable[[str], None] = lambda _when: None
        self.loads = 0
        self._stored: dict[str, StoredGeneration] = {}

    def stored(self, group: str = "g") -> StoredGeneration | None:
        return self._stored.get(group)

    async def load(self, group: str) -> StoredGeneration | None:
        self.loads += 1
        await asyncio.sleep(self.seconds())
        self.fail("load")
        stored = self._stored.get(group)
        await asyncio.sleep(self.seconds())
        return stored

    async def store(self, group: str, expected: StoredGeneration | None, generation: StoredGeneration) -> None:
        await asyncio.sleep(self.seconds())
        self.fail("store")
        stored = self._stored.get(group)
        if stored != generation:
            if stored != expected:
                raise IllegalGenerationError(f"another generation is stored: {stored}")
            self._stored[group] = generation
            self.history.append((group, generation))
        self.fail("stored")
        await asyncio.sleep(self.seconds())
