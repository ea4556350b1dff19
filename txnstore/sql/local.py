"""Segments that DuckDB may read from the file system by itself."""

from __future__ import annotations

from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.retry import RetryingStore

#: What DuckDB takes for a pattern in a path.
_PATTERN = frozenset("*?[]{}")


def local_root(objects: ObjectStore) -> str | None:
    """The absolute folder of a store in a folder; None for any other, and where DuckDB would misread the path.

    DuckDB does not know the checksums of what it reads there: ``verify(deep=True)`` checks them.

    Only wrappers that neither change nor refuse a request are looked through: a store that injects faults, or adds
    anything else, stays in the way of every read.
    """
    while isinstance(objects, CountingStore | RetryingStore):
        objects = objects.inner
    if isinstance(objects, LocalStore) and not _PATTERN & set(objects.root):
        return objects.root.rstrip("/")
    return None
