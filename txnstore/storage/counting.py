"""Counts the requests to an object store, and measures how long they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypeVar

from txnstore.errors import ObjectNotFoundError, StorageError
from txnstore.runtime import Measurements
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore
from txnstore.threads import ForkLock

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """The number of calls by kind, including failed ones, and the bytes transferred.

    ``snapshot() - earlier`` gives the counts between two snapshots.

    Attributes:
        bytes_in: Bytes read from the store.
        bytes_out: Bytes written to the store, including those of failed writes.
        failed: The number of calls that raised a :class:`~txnstore.errors.StorageError`, but for missing objects.
    """

    get: int = 0
    put: int = 0
    put_if_absent: int = 0
    list: int = 0
    delete: int = 0
    stat: int = 0
    now_ms: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    failed: int = 0

    @property
    def requests(self) -> int:
        """The number of calls of all kinds."""
        return self.get + self.put + self.put_if_absent + self.list + self.delete + self.stat + self.now_ms

    @property
    def puts(self) -> int:
        """The number of conditional and unconditional writes: the requests that a provider bills as PUT."""
        return self.put + self.put_if_absent

    def __sub__(self, earlier: StoreCounts) -> StoreCounts:
        return StoreCounts(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(StoreCounts)})


class CountingStore(ForwardingStore):
    """An :class:`~txnstore.storage.base.ObjectStore` that forwards every call and counts it. Thread-safe.

    It counts calls of the protocol. A call is one request on the wire, except for lists and deletes of more than
    1,000 keys, multipart uploads, and retries inside the wrapped store. A pickled copy starts at zero.

    Args:
        inner: The store that the calls are forwarded to.
        log: Whether :attr:`log` records ``(kind, key)`` of each call, in order. A delete records its keys joined by
            a space.
        measurements: Records how long the calls take; None: a new one with the clock of the machine.
    """

    #: :func:`~txnstore.storage.base.unwrapped` looks through it.
    transparent = True

    def __init__(self, inner: ObjectStore, *, log: bool = False, measurements: Measurements | None = None) -> None:
        super().__init__(inner)
        self.measurements = measurements if measurements is not None else Measurements()
        #: Guards the two fields below; a thread that holds it takes no other lock.
        self._lock = ForkLock()
        #: The number of requests of each kind since the last reset.
        self._counts: dict[str, int] = {}
        #: The kind and the key of each request since then, in order; None: they are not logged.
        self._log: list[tuple[str, str]] | None = [] if log else None

    @property
    def log(self) -> Sequence[tuple[str, str]]:
        """``(kind, key)`` of every call since the last reset; empty without ``log=True``."""
        with self._lock.own:
            return list(self._log or ())

    def snapshot(self) -> StoreCounts:
        """The counts so far."""
        with self._lock.own:
            return StoreCounts(**self._counts)

    def reset(self) -> StoreCounts:
        """Set all counts to zero and clear the log; returns the counts before the reset."""
        with self._lock.own:
            counts, self._counts = self._counts, {}
            if self._log is not None:
                self._log = []
            return StoreCounts(**counts)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._count_call("get", key)
        data = self._measure_call("get", self.inner.get, key, start, end)
        self._add_to_count("bytes_in", len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        self._count_call("put", key, len(data))
        self._measure_call("put", self.inner.put, key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._count_call("put_if_absent", key, len(data))
        return self._measure_call("put_if_absent", self.inner.put_if_absent, key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._count_call("list", prefix)
        return self._measure_call("list", self.inner.list, prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self._count_call("delete", " ".join(keys))
        self._measure_call("delete", self.inner.delete, keys)

    def stat(self, key: str) -> ObjectInfo:
        self._count_call("stat", key)
        return self._measure_call("stat", self.inner.stat, key)

    def now_ms(self) -> int:
        self._count_call("now_ms", "")
        return self._measure_call("now_ms", self.inner.now_ms)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "log": self._log is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        CountingStore.__init__(self, state["inner"], log=state["log"])

    def _measure_call(self, kind: str, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Measure a call; an error counts as a failure, except that an object is missing."""
        began_at = self.measurements.clock()
        try:
            return call(*args, **options)
        except ObjectNotFoundError:
            raise
        except StorageError:
            self._add_to_count("failed", 1)
            raise
        finally:
            self.measurements.add(kind, began_at)

    def _count_call(self, kind: str, key: str, bytes_out: int = 0) -> None:
        with self._lock.own:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if bytes_out:
                self._counts["bytes_out"] = self._counts.get("bytes_out", 0) + bytes_out
            if self._log is not None:
                self._log.append((kind, key))

    def _add_to_count(self, name: str, amount: int) -> None:
        with self._lock.own:
            self._counts[name] = self._counts.get(name, 0) + amount
