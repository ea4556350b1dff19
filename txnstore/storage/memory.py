"""An object store in the memory of one process, for tests, examples and ``memory://`` URLs."""

from __future__ import annotations

import bisect
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from txnstore.errors import ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ObjectInfo, check_key, check_prefix, check_range
from txnstore.threads import ForkLock


def system_clock_ms() -> int:
    """The wall clock of this machine in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class MemoryStore:
    """An :class:`~txnstore.storage.base.ObjectStore` whose objects exist as long as its process.

    ``MemoryStore()`` creates an independent store. ``MemoryStore.named(name)`` returns the store of
    ``memory://name``, which the whole process shares and which can be pickled. Use in another process, including a
    forked child, raises :class:`~txnstore.errors.StorageRefusedError`: it would write to a private copy.

    Args:
        name: The name in ``memory://name``; None for an independent store.
        clock: The store's clock, in milliseconds since the epoch.
    """

    #: Stores in memory need no probe; see :func:`txnstore.storage.probe.probe_once`.
    identity: ClassVar[str | None] = "memory"

    _lock_of_names = ForkLock()
    _by_name: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str | None = None, *, clock: Callable[[], int] = system_clock_ms) -> None:
        self.name = name
        self._clock = clock
        self.pid = os.getpid()
        #: Guards all fields below; a thread that holds it takes no other lock.
        self._lock = ForkLock()
        #: The bytes and the modification time in ms of each object.
        self._objects: dict[str, tuple[bytes, int]] = {}
        #: The keys of the objects, sorted, so that a listing can start with a bisection.
        self._keys: list[str] = []
        #: False while the keys may differ from the objects, as after an interrupt: then they are sorted again.
        self._is_sorted = True

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the store of ``memory://name`` in this process; the first call creates it."""
        with cls._lock_of_names.own:
            store = cls._by_name.get(name)
            if store is None or store.pid != os.getpid():
                store = cls._by_name[name] = cls(name)
            return store

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop the store of ``memory://name``; the next :meth:`named` creates an empty one."""
        with cls._lock_of_names.own:
            cls._by_name.pop(name, None)

    @property
    def url(self) -> str:
        return f"memory://{self.name or ''}"

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        check_key(key)
        first_byte, limit = check_range(key, start, end)
        with self._lock.own:
            return self._find_content(key)[0][first_byte:limit]

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock.own:
            self._insert(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._lock.own:
            self._check_process()
            if key in self._objects:
                return False
            self._insert(key, data)
            return True

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        with self._lock.own:
            self._check_process()
            self._repair_order()
            first_index = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, start_after))
            keys = itertools.takewhile(
                lambda key: key.startswith(prefix), itertools.islice(self._keys, first_index, None)
            )
            return [self._info_of(key) for key in itertools.islice(keys, limit)]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        with self._lock.own:
            self._check_process()
            self._repair_order()
            self._is_sorted = False
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]
            self._is_sorted = True

    def stat(self, key: str) -> ObjectInfo:
        check_key(key)
        with self._lock.own:
            self._find_content(key)
            return self._info_of(key)

    def now_ms(self) -> int:
        return self._clock()

    def close(self) -> None:
        """Do nothing: the objects stay in memory."""

    def __repr__(self) -> str:
        return f"MemoryStore({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str, int], MemoryStore], tuple[str, int]]:
        if self.name is None:
            raise StorageRefusedError("A MemoryStore without a name cannot be pickled: open memory://name instead.")
        return (_unpickle, (self.name, self.pid))

    def _find_content(self, key: str) -> tuple[bytes, int]:
        self._check_process()
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(f"No object {key!r} in {self.url}.") from None

    def _insert(self, key: str, data: bytes) -> None:
        """Store an object, so that an interrupt between any two steps leaves it whole or absent."""
        self._check_process()
        self._repair_order()
        content = (bytes(data), self._clock())
        if key in self._objects:
            self._objects[key] = content
            return
        self._is_sorted = False
        self._objects[key] = content  # One step: from here on the object exists, whatever interrupts the next lines.
        bisect.insort(self._keys, key)
        self._is_sorted = True

    def _repair_order(self) -> None:
        """Sort the keys again after an interrupt between the changes of objects and keys."""
        if not self._is_sorted:
            self._keys = sorted(self._objects)
            self._is_sorted = True

    def _info_of(self, key: str) -> ObjectInfo:
        data, modified_ms = self._objects[key]
        return ObjectInfo(key, len(data), modified_ms)

    def _check_process(self) -> None:
        if os.getpid() != self.pid:
            raise StorageRefusedError(
                f"{self.url} lives in the memory of process {self.pid} and cannot be used in process {os.getpid()}. "
                "Use a local folder or an object store to share data between processes."
            )


def _unpickle(name: str, pid: int) -> MemoryStore:
    """Return the named store of this process; one of another process cannot be reached."""
    if os.getpid() != pid:
        raise StorageRefusedError(
            f"memory://{name} lives in the memory of process {pid} and cannot be used in process {os.getpid()}. "
            "Use a local folder or an object store to share data between processes."
        )
    return MemoryStore.named(name)
