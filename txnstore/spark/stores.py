"""Connecting to a store from the options of a data source, on the driver and in tasks."""

from __future__ import annotations

from txnstore.connection import Connection, open_connection, open_to_read
from txnstore.spark.options import Location
from txnstore.storage.base import ObjectStore
from txnstore.storage.registry import open_store


def open_location(location: Location) -> Connection:
    """The store, with its chains read: for the driver."""
    return open_connection(open_objects(location))


def open_reader(location: Location) -> Connection:
    """The same for a read, which writes only to end an expired transaction that holds back what it reads."""
    return open_to_read(open_objects(location))


def open_objects(location: Location) -> ObjectStore:
    """The objects of the store alone, without a request: for tasks, which are given all they need."""
    return open_store(location.url, dict(location.storage_options))
