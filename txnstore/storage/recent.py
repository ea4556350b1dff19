"""The objects of a store, with the beginnings of some of them in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar

from txnstore.caches import ByteCache
from txnstore.storage.base import ForwardingStore, ObjectStore
from txnstore.threads import ForkLock, Task

T = TypeVar("T")

#: The number of bytes that are kept; beyond it, the oldest beginnings are dropped.
_KEPT_BYTES = 16 << 20
#: The number of bytes that are kept for a caller that reads many parts of objects: of their beginnings, of what it has
#: opened, and of what it has decoded of that, each.
_READ_CACHE_BYTES = 64 << 20
#: A request costs more than the transfer of this many bytes at the beginning of an object.
_BEGINNING_BYTES = 64 << 10


#: The first bytes of objects, by key.
Beginnings: TypeAlias = ByteCache[str, bytes]


def _find_beginning(beginnings: Beginnings, key: str, end: int) -> bytes | None:
    """Return the beginning of an object, if it has the bytes before ``end``."""
    beginning = beginnings.find(key)
    return beginning if beginning is not None and end <= len(beginning) else None


class ReadCache:
    """The parts of objects that one caller keeps because it reads several parts of them. Thread-safe.

    Args:
        partitions: The number of partitions of each topic that it reads, which may have rows in the same objects; None:
            any.

    Attributes:
        is_full: Whether something could not be kept.
        beginnings: The beginnings of entries.
        decoded: Rows that were decoded of what is kept.
    """

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.partitions = partitions
        self.is_full = False
        self.beginnings: Beginnings = ByteCache(_READ_CACHE_BYTES)
        self.decoded: ByteCache[Hashable, Any] = ByteCache(_READ_CACHE_BYTES)
        #: Guards the fields below, and no request.
        self._lock = ForkLock()
        #: What was made, or is being made, by name, in the process with this number.
        self._tasks: dict[Hashable, Task[Any]] = {}
        self._process = os.getpid()
        #: The sizes of it in total; too large after an interrupt, never too small.
        self._bytes = 0

    def once(self, name: Hashable, size: int, make: Callable[[], T]) -> T | None:
        """Return what ``make`` returns, called once for this name; None if there is no room for ``size`` bytes.

        Another thread that asks for the same meanwhile waits for it. If ``make`` raises, each caller calls it.
        """
        with self._lock.own:
            if self._process != os.getpid():  # The threads that were making something are in the parent.
                self._tasks, self._bytes, self._process = {}, 0, os.getpid()
            task: Task[T] | None = self._tasks.get(name)
            if task is None:
                if self._bytes + size > _READ_CACHE_BYTES:
                    self.is_full = True
                    return None
                self._bytes += size
                task = self._tasks[name] = Task(make)
        runs_here = task.run()
        error = task.exception()
        if error is None:
            return task.result()
        with self._lock.own:
            if self._tasks.get(name) is task:
                del self._tasks[name]
                self._bytes -= size
        if runs_here:
            raise error
        return make()


class RecentObjects(ForwardingStore):
    """Forwards all requests, but answers a read of a part of an object whose beginning is kept. Thread-safe.

    What is kept are the inlined segments of the entries that this process has read or written last, so that a reader
    that follows a chain gets them without a request.

    Args:
        inner: The objects of the store.
    """

    #: :func:`~txnstore.storage.base.unwrapped` looks through it.
    transparent = True

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        #: Those of entries, which were checked.
        self._recent_beginnings: Beginnings = ByteCache(_KEPT_BYTES)
        #: What one caller keeps; None: it reads nothing ahead.
        self.read_cache: ReadCache | None = None

    def with_read_cache(self, partitions: Mapping[str, int] | None = None) -> RecentObjects:
        """Return the same objects with a read cache for one caller, which drops it after its reads.

        The first read of a part of an entry fetches and keeps its beginning, which has the next ones. It was not
        checked, so no other reader gets it. A segment of several batches is opened once
        (:func:`~txnstore.read.reader.open_slice`). Both end when the memory for that is full.
        """
        objects = RecentObjects(self.inner)
        objects._recent_beginnings, objects.read_cache = self._recent_beginnings, ReadCache(partitions)
        return objects

    def keep(self, key: str, beginning: bytes) -> None:
        """Keep the first bytes of an object, which do not change as long as it has them."""
        if beginning:
            self._recent_beginnings.keep(key, beginning, len(beginning))

    def forget(self) -> None:
        """Drop kept bytes: a verification compares what is stored now."""
        self._recent_beginnings.forget()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if start is None or end is None:
            return self.inner.get(key, start, end)
        beginning = _find_beginning(self._recent_beginnings, key, end)
        if beginning is None and self.read_cache is not None:
            beginnings = self.read_cache.beginnings
            length = max(end, _BEGINNING_BYTES)
            beginning = _find_beginning(beginnings, key, end)
            if beginning is None and (start == 0 or end <= _BEGINNING_BYTES) and beginnings.has_room(length):
                beginning = self.inner.get(key, 0, length)
                beginnings.keep(key, beginning, len(beginning))
        return self.inner.get(key, start, end) if beginning is None else beginning[start:end]

    def __repr__(self) -> str:
        return repr(self.inner)

    def __reduce__(self) -> tuple[type[RecentObjects], tuple[ObjectStore]]:
        return RecentObjects, (self.inner,)


def keep(objects: ObjectStore, key: str, beginning: bytes) -> None:
    """Keep the first bytes of an object, if ``objects`` keep any."""
    if isinstance(objects, RecentObjects):
        objects.keep(key, beginning)


def forget(objects: ObjectStore) -> None:
    """Drop kept bytes, so that each read asks the storage."""
    if isinstance(objects, RecentObjects):
        objects.forget()


def with_read_cache(objects: ObjectStore) -> ObjectStore:
    """The same objects with a read cache (:meth:`RecentObjects.with_read_cache`), if they may have one and lack it."""
    if isinstance(objects, RecentObjects) and objects.read_cache is None:
        return objects.with_read_cache()
    return objects


def read_cache_of(objects: ObjectStore) -> ReadCache | None:
    """Return the read cache of the caller for whom these objects were made; None without one."""
    return objects.read_cache if isinstance(objects, RecentObjects) else None
