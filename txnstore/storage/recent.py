"""The objects of a store, with the beginnings of some of them in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.threads import ForkLock

#: The bytes that are kept; then the first ones are dropped.
_KEPT_BYTES = 16 << 20


class RecentObjects:
    """Forwards all requests, but answers a read of a part of an object whose beginning is kept. Thread-safe.

    What is kept are the inlined segments of the entries that this process has read or written last, so that a reader
    that follows a chain gets them without a request.

    Args:
        inner: The objects of the store.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._lock = ForkLock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    @property
    def url(self) -> str:
        """The root URL of the wrapped store, without credentials."""
        return self.inner.url

    def keep(self, key: str, beginning: bytes) -> None:
        """Keep the first bytes of an object, which never change while it has them."""
        if not beginning:
            return
        with self._lock.own:
            if key not in self._kept:
                self._kept[key] = beginning
                self._size += len(beginning)
            while self._kept and self._size > _KEPT_BYTES:  # An interrupt can leave the sum too large.
                _, oldest = self._kept.popitem(last=False)
                self._size = self._size - len(oldest) if self._kept else 0

    def forget(self) -> None:
        """Drop what is kept: a verification compares what is stored now."""
        with self._lock.own:
            self._kept.clear()
            self._size = 0

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        kept = self._kept.get(key) if start is not None and end is not None else None
        if kept is None or end is None or end > len(kept):
            return self.inner.get(key, start, end)
        return kept[start:end]

    def put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self.inner.list(prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        return self.inner.stat(key)

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def close(self) -> None:
        self.inner.close()

    def __repr__(self) -> str:
        return repr(self.inner)

    def __reduce__(self) -> tuple[type[RecentObjects], tuple[ObjectStore]]:
        return RecentObjects, (self.inner,)


def keep(objects: ObjectStore, key: str, beginning: bytes) -> None:
    """Keep the first bytes of an object, if ``objects`` do that."""
    if isinstance(objects, RecentObjects):
        objects.keep(key, beginning)


def forget(objects: ObjectStore) -> None:
    """Drop what is kept, so that each read asks the storage."""
    if isinstance(objects, RecentObjects):
        objects.forget()
