"""What tests of deletions share: records that are as old as the clock says, and a storage that is interrupted."""

from __future__ import annotations

from collections.abc import Callable

from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock


class HookStore(MemoryStore):
    """A store in memory in which something else happens right before a segment is written, or its clock is read."""

    before_put: Callable[[], object] | None = None
    before_now: Callable[[], object] | None = None

    def now_ms(self) -> int:
        if self.before_now is not None:
            hook, self.before_now = self.before_now, None
            hook()
        return super().now_ms()

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("topics/") and self.before_put is not None:
            hook, self.before_put = self.before_put, None
            hook()
        super().put(key, data)


def send(store: Store, clock: ManualClock, *values: bytes, partition: int = 0) -> None:
    """One batch of records that are as old as the clock says."""
    with store.producer() as producer:
        for value in values:
            producer.send("t", value, partition=partition, timestamp=clock())
