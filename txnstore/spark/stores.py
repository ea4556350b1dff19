"""Opens a store from the options of a data source, on the driver and in tasks."""

from __future__ import annotations

from txnstore import store as stores
from txnstore.spark.options import Location
from txnstore.storage.base import ObjectStore
from txnstore.storage.registry import open_store


def open_location(location: Location, *, read_only: bool = False) -> stores.Store:
    """Open the store, which reads its chains; for the driver."""
    return stores.open(location.url, dict(location.storage_options), read_only=read_only)


def open_objects(location: Location) -> ObjectStore:
    """Open the object store only, without a request; for tasks, which do not need the chains."""
    return open_store(location.url, dict(location.storage_options))
