"""Deletes objects, many in one request."""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.storage.base import ObjectInfo, ObjectStore

#: The maximum number of keys per request.
_REQUEST = 1_000


def delete(objects: ObjectStore, items: Sequence[ObjectInfo]) -> None:
    """Delete objects, in the order in which they are given, as far as they exist."""
    for start in range(0, len(items), _REQUEST):
        objects.delete([item.key for item in items[start : start + _REQUEST]])
