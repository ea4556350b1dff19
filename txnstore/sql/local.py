"""Finds the local folder of a store, where DuckDB can read segments directly."""

from __future__ import annotations

from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.retry import RetryingStore

#: The characters that make a path a pattern in DuckDB.
_PATTERN = frozenset("*?[]{}")


def local_root(objects: ObjectStore) -> str | None:
    """Return the absolute folder of a local store.

    DuckDB does not check the checksums of files that it reads there; ``verify(deep=True)`` does.

    Args:
        objects: The object store. Wrappers that only count and retry requests are ignored; any other wrapper, such as
            one that injects faults, must see every read.

    Returns:
        The folder; None for any other store, and if DuckDB would read the path as a pattern.
    """
    while isinstance(objects, CountingStore | RetryingStore):
        objects = objects.inner
    if isinstance(objects, LocalStore) and not _PATTERN & set(objects.root):
        return objects.root.rstrip("/")
    return None
