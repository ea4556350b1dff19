"""The storage protocol: all that txnstore asks of an object store.

Keys are relative to the store's root, ``/``-separated, without a leading slash. Every backend passes the
contract suite in ``txnstore.testing``; nothing outside this package touches fsspec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a stat tells of an object. Times are the *store's*, in milliseconds since the epoch."""

    key: str
    size: int
    modified_ms: int


@runtime_checkable
class ObjectStore(Protocol):
    """An object store with an atomic create.

    Errors: :class:`~txnstore.errors.ObjectNotFoundError` for a missing key,
    :class:`~txnstore.errors.UnknownOutcomeError` where a write may have happened,
    :class:`~txnstore.errors.StorageError` for everything that definitely did not happen. No other class leaves a
    backend. Methods are safe to call from many threads.
    """

    @property
    def url(self) -> str:
        """The root, without credentials: fit for messages."""
        ...

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` of an object; the whole object by default. One request; retried when it fails."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object under a name that nobody else uses. Retried: repeating it is harmless."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object if no object has this name: one attempt, one request.

        True: created by this call. False: the name is taken (maybe by an earlier attempt of ours).
        :class:`~txnstore.errors.UnknownOutcomeError`: it may have happened, and may *still* happen later.
        """
        ...

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        """The objects whose key starts with ``prefix``, in lexicographic order, from after ``start_after``."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a missing one is no error."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size and modification time of one object."""
        ...

    def now_ms(self) -> int:
        """The store's own clock, with which ``modified_ms`` can be compared (never this machine's)."""
        ...

    def close(self) -> None:
        """Release connections. The store may be used again afterwards and reconnects."""
        ...
