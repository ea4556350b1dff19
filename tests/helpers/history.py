"""A store that is used for days, whose old entries are deleted, and the storage of a process that sleeps meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, HOUR_MS, commit, reopen
from tests.helpers.connections import connection_of
from txnstore.errors import UnknownOutcomeError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

DAYS = 12


class Suspending:
    """The storage as a process sees it that is suspended in one of its requests.

    ``before``: called once, before an entry or a boundary is created or an object of a checkpoint is written.
    ``down``: creates are not confirmed, and have no effect.
    """

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.before: Callable[[], object] | None = None
        self.down = False
        #: Called once, before objects are deleted.
        self.before_delete: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key.startswith("chains/"):
            self._suspend()
        if self.down:
            raise UnknownOutcomeError(f"no answer to the creation of {key}")
        return self.inner.put_if_absent(key, data)

    def put(self, key: str, data: bytes) -> None:
        if "/checkpoints/" in key:
            self._suspend()
        self.inner.put(key, data)

    def delete(self, names: Sequence[str]) -> None:
        if self.before_delete is not None:
            before, self.before_delete = self.before_delete, None
            before()
        self.inner.delete(names)

    def _suspend(self) -> None:
        if self.before is not None:
            before, self.before = self.before, None
            before()


def pass_days(store: Store, clock: ManualClock, days: int = DAYS) -> None:
    """Each day a few commits, checkpoints and a vacuum, all of another process than the given one."""
    other = reopen(store, clock)
    for _ in range(days):
        for _ in range(4):
            commit(other, [b"x"], writer="daily")
            clock.advance(HOUR_MS)
        for chain in connection_of(other).chains:
            chain.checkpoint()
        clock.advance(DAY_MS - 4 * HOUR_MS)
        other.vacuum()


def numbers(objects: MemoryStore, chain: int = 0) -> list[int]:
    """The numbers of the entries that are stored."""
    sequences = (keys.entry_sequence(item.key) for item in objects.list(keys.entries(chain)))
    return [number for number in sequences if number is not None]


def boundaries(objects: MemoryStore, chain: int = 0) -> list[str]:
    """The keys of the boundaries."""
    return [item.key for item in objects.list(keys.boundaries(chain))]
