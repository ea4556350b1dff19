"""Object storage: the ``ObjectStore`` protocol, its backends, and wrappers that count and retry.

``base`` defines the protocol; ``registry.open_store(url)`` opens a backend. Only this package uses fsspec.
"""

from __future__ import annotations

from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.counting import CountingStore, StoreCounts
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store

__all__ = ["CountingStore", "ObjectInfo", "ObjectStore", "StoreCounts", "open_store", "redact"]
