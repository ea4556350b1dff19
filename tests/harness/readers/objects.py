"""Objects through which a process reaches the storage, and before whose n-th request another process works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from txnstore.storage.base import ObjectInfo, ObjectStore


class Hooked:
    """The storage as one process reaches it. Its first layer sees each request.

    Args:
        inner: The storage.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.identity = getattr(inner, "identity", None)
        #: The requests since :meth:`arm`.
        self.requests = 0
        self._at = 0
        self._then: Callable[[], None] | None = None

    def arm(self, at: int, then: Callable[[], None]) -> None:
        """Call ``then`` before the request of this number, counted from 1."""
        self.requests, self._at, self._then = 0, at, then

    def disarm(self) -> int:
        """Call nothing any more; the number of requests since :meth:`arm`."""
        self._then = None
        return self.requests

    def _request(self) -> None:
        self.requests += 1
        if self._then is not None and self.requests >= self._at:
            then, self._then = self._then, None
            then()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._request()
        return self.inner.get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._request()
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._request()
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._request()
        return self.inner.list(prefix, start_after, limit)

    def stat(self, key: str) -> ObjectInfo:
        self._request()
        return self.inner.stat(key)

    def delete(self, keys: Sequence[str]) -> None:
        self._request()
        self.inner.delete(keys)

    def now_ms(self) -> int:
        self._request()
        return self.inner.now_ms()

    def close(self) -> None:
        """The objects stay."""

    def __reduce__(self) -> Any:
        return self.inner.__reduce__()
