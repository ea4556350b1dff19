"""Object storage: one small protocol, its backends, and the wrappers around them.

``base`` is the contract. ``registry.open_store(url)`` is the door. Nothing outside this package touches fsspec.
"""

from __future__ import annotations

from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.counting import CountingStore, StoreCounts
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store

__all__ = ["CountingStore", "ObjectInfo", "ObjectStore", "StoreCounts", "open_store", "redact"]
