"""Objects in memory that a store uses, with the keys that it should not have asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from txnstore.storage.memory import MemoryStore

#: What neither a key nor a line of a terminal contains.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_FOLDERS = ("topics/", "chains/", "leases/", "committers/", "_probe")


class Bucket(MemoryStore):
    """Objects in memory that remember the keys that no store has, and that were asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.wrong: set[str] = set()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read, and remember a key that no store has."""
        self._watch(key)
        return super().get(key, start, end)

    def _watch(self, key: str) -> None:
        in_layout = key == "store.json" or key.startswith(_FOLDERS)
        if not in_layout or ".." in key.split("/") or CONTROL.search(key):
            self.wrong.add(key)

    def delete(self, keys: Any) -> None:
        """Delete, and remember keys that no store has."""
        for key in keys:
            self._watch(key)
        super().delete(keys)


@contextmanager
def reachable(bucket: Bucket) -> Iterator[Bucket]:
    """Inside the block, this process finds the bucket at its URL."""
    assert bucket.name is not None
    MemoryStore.forget(bucket.name)
    MemoryStore._by_name[bucket.name] = bucket
    try:
        yield bucket
    finally:
        MemoryStore.forget(bucket.name)
