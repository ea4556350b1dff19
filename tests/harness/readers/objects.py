"""Objects through which a process reaches the storage, and before whose n-th request another process works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from txnstore.chain import keys
from txnstore.storage.base import ObjectInfo, ObjectStore

#: The requests between which upkeep makes and carries out its plans: those that fetch a segment, write an object, or
#: write an entry; and all that follow the lease of a compactor, which plans then.
Kind = Literal["segment", "upload", "entry", "leased"]


class Hooked:
    """The storage as one process reaches it. Its first layer sees each request.

    Args:
        inner: The storage.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.identity = getattr(inner, "identity", None)
        self._left = 0
        self._kind: Kind | None = None
        self._leased = False
        self._then: Callable[[], None] | None = None

    def arm(self, at: int, then: Callable[[], None], kind: Kind | None = None) -> None:
        """Call ``then`` before the request of this number, counted from 1; of this kind only, if one is given."""
        self._left, self._then, self._kind, self._leased = at, then, kind, False

    def disarm(self) -> None:
        """Call nothing any more."""
        self._then = None

    def _request(self, kind: Kind | None = None) -> None:
        if self._then is None or self._kind not in {None, kind, "leased" if self._leased else None}:
            return
        self._left -= 1
        if self._left <= 0:
            then, self._then = self._then, None
            then()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._request("segment" if key.startswith(keys.TOPICS) else None)
        return self.inner.get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._request("upload")
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._request("entry" if key.startswith(keys.CHAINS) else None)
        self._leased = self._leased or key.startswith(keys.LEASES)
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
