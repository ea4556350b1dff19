"""The storage protocol: the operations that txnstore requires of an object store.

Keys are relative to the store's root, ``/``-separated, without a leading slash. Every backend passes the
contract suite in :mod:`txnstore.testing.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object, from a listing or a stat.

    Attributes:
        key: The key, relative to the store's root.
        size: The size in bytes.
        modified_ms: The modification time by the *store's* clock, in milliseconds since the epoch.
    """

    key: str
    size: int
    modified_ms: int


@runtime_checkable
class ObjectStore(Protocol):
    """An object store with an atomic create. All methods are thread-safe.

    Backends raise these errors only:

    - :class:`~txnstore.errors.ObjectNotFoundError`: the key does not exist.
    - :class:`~txnstore.errors.UnknownOutcomeError`: a write may or may not have happened.
    - :class:`~txnstore.errors.StorageError`: the request certainly had no effect.
    - :class:`~txnstore.errors.UnsafeStorageError`: the storage cannot create a name atomically.
    """

    @property
    def url(self) -> str:
        """The root URL without credentials, for use in messages."""
        ...

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read the bytes ``[start, end)`` of an object; by default the whole object. One request.

        Args:
            key: The key of the object.
            start: The first byte; None means 0. A start at or beyond the end of the object gives no bytes.
            end: The byte after the last one; None, or a value beyond the object, means the end of the object.

        Raises:
            ObjectNotFoundError: The object does not exist, even if the range is empty.
            StorageError: The read failed; it is safe to repeat.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one.

        Callers use keys that no other writer uses, so repeating the call is safe.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object if the key does not exist (``If-None-Match: *``). One attempt, one request.

        Returns:
            True if this call created the object; False if the key exists, possibly from an earlier attempt of the
            same caller.

        Raises:
            UnknownOutcomeError: The object may have been created, or the request may *still* take effect later.
            StorageError: The object was not created by this call and will not be.
        """
        ...

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        """List the objects whose key starts with ``prefix``, in lexicographic order of their keys.

        Args:
            prefix: The start of the keys; empty for all objects.
            start_after: Return only keys greater than this one.
            limit: The maximum number of objects; None for all.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a key that does not exist is ignored."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Return the size and modification time of an object."""
        ...

    def now_ms(self) -> int:
        """Return the time of the store's clock in milliseconds since the epoch.

        It is comparable with ``modified_ms``; the local clock is not.
        """
        ...

    def close(self) -> None:
        """Release connections. A later call reconnects."""
        ...
