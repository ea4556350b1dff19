"""Connecting to a store from the options of a data source, on the driver and in tasks."""

from __future__ import annotations

from txnstore.connection import Connection, open_connection
from txnstore.spark.options import Location
from txnstore.storage.base import ObjectStore
from txnstore.storage.registry import open_store


def open_location(location: Location, *, read_only: bool = False) -> Connection:
    """The store, with its chains read: for the driver."""
    return open_connection(open_objects(location), read_only=read_only)


def open_objects(location: Location) -> ObjectStore:
    """The objects of the store alone, without a request: for tasks, which are given all they need."""
    return open_store(location.url, dict(location.storage_options))
