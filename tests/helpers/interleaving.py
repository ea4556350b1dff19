"""Storage through which one process reaches a store, while another one works between two of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.helpers.tables import EngineObjects
from txnstore.storage.base import ObjectInfo


class Interleaved(EngineObjects):
    """The same objects; ``then`` runs once, before the first request that ``due`` holds for.

    Args:
        inner: The objects, which the other process uses directly.
        due: Called before each request, with its kind and key.
        then: What the other process does.
    """

    def __init__(self, inner: EngineObjects, due: Callable[[str, str], bool], then: Callable[[], object]) -> None:
        self.__dict__.update(inner.__dict__)
        self._due, self._then = due, then
        #: Whether ``then`` has run.
        self.struck = False

    def _before(self, kind: str, key: str = "") -> None:
        if not self.struck and self._due(kind, key):
            self.struck = True
            self._then()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._before("get", key)
        return super().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._before("put", key)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._before("put_if_absent", key)
        return super().put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._before("list", prefix)
        return super().list(prefix, start_after, limit)

    def stat(self, key: str) -> ObjectInfo:
        self._before("stat", key)
        return super().stat(key)

    def delete(self, keys: Sequence[str]) -> None:
        self._before("delete", keys[0] if keys else "")
        super().delete(keys)

    def now_ms(self) -> int:
        self._before("now_ms")
        return super().now_ms()


class Nth:
    """Holds for the n-th request from the moment on at which it is armed."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.armed = False

    def __call__(self, _kind: str, _key: str) -> bool:
        self._n -= self.armed
        return self.armed and self._n < 0
