"""Retries requests that failed for a transient reason, where repeating them is safe."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from txnstore.errors import CorruptionError, DamagedObjectError, StorageError
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore, make_durable

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class RetryingStore(ForwardingStore):
    """An :class:`~txnstore.storage.base.ObjectStore` that retries every operation except ``put_if_absent``.

    It retries errors whose class is ``retriable``, with exponential backoff and full jitter: the wait before attempt
    *k* + 1 is drawn from [0, min(cap_s, base_s · 2^(k-1))] seconds. It passes ``put_if_absent`` on once: only
    :class:`~txnstore.storage.base.Claim` can resolve an unknown outcome. A read whose answers are all damaged raises
    :class:`~txnstore.errors.CorruptionError`: then it is the object, most likely.

    Args:
        inner: The store that the calls are forwarded to.
        attempts: The maximum number of attempts per call.
        base_s: The upper bound of the first wait, in seconds.
        cap_s: The upper bound of every wait, in seconds.
        sleep: Pauses for a number of seconds.
        rng: The source of randomness for the waits.
    """

    #: :func:`~txnstore.storage.base.unwrapped` looks through it.
    transparent = True

    def __init__(
        self,
        inner: ObjectStore,
        *,
        attempts: int = 5,
        base_s: float = 0.05,
        cap_s: float = 2.0,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(inner)
        self.attempts = attempts
        #: The number of repetitions so far.
        self.retries = 0
        self._base_s = base_s
        self._cap_s = cap_s
        self._sleep = sleep
        self._rng = rng if rng is not None else random.Random()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._with_retries("get", key, lambda: self.inner.get(key, start, end))

    def put(self, key: str, data: bytes) -> None:
        self._with_retries("put", key, lambda: self.inner.put(key, data))

    def sync(self, keys: Sequence[str]) -> None:
        """Flush objects, if the inner store can (:func:`~txnstore.storage.base.make_durable`)."""
        self._with_retries("sync", keys[0] if keys else "", lambda: make_durable(self.inner, keys))

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._with_retries("list", prefix, lambda: self.inner.list(prefix, start_after, limit))

    def delete(self, keys: Sequence[str]) -> None:
        self._with_retries("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    def stat(self, key: str) -> ObjectInfo:
        return self._with_retries("stat", key, lambda: self.inner.stat(key))

    def now_ms(self) -> int:
        return self._with_retries("now_ms", "", self.inner.now_ms)

    def _with_retries(self, operation: str, key: str, call: Callable[[], T]) -> T:
        """Repeat a call after transient errors, with growing pauses."""
        for attempt in range(1, self.attempts):
            try:
                return call()
            except StorageError as error:
                if not error.retriable:
                    raise
                wait_s = self._rng.uniform(0.0, min(self._cap_s, self._base_s * 2.0 ** (attempt - 1)))
                self.retries += 1
                _LOG.debug(
                    "storage request failed, retrying",
                    extra={
                        "operation": operation, "key": key, "attempt": attempt,
                        "ms": round(wait_s * 1000), "error": str(error),
                    },
                )  # fmt: skip
                self._sleep(wait_s)
        try:
            return call()
        except DamagedObjectError as error:
            msg = f"{key} on {self.url} is damaged, or the connection damages every answer: {error}"
            raise CorruptionError(msg) from error
