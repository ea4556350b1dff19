"""Connecting to a store from the options of a data source, on the driver and in tasks."""

from __future__ import annotations

import json
import threading

from txnstore.connection import Connection, open_to_read
from txnstore.errors import StorageRefusedError, StoreNotFoundError
from txnstore.spark.options import Location
from txnstore.storage.base import ObjectStore
from txnstore.storage.probe import probe_once
from txnstore.storage.registry import open_store

#: The number of connections that a process caches.
_CACHED = 8
_ADVICE = (
    "A write needs permission to create and delete objects: change the credentials in the options storage.*, or those "
    "of the driver and the executors."
)
_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def open_to_write(location: Location) -> Connection:
    """Open the store and read its chains, for the driver of a write.

    Raises:
        UnsafeStorageError: The storage does not refuse a second create of a name.
        StorageRefusedError: It refuses to write.
        StorageError: It cannot be checked.
    """
    connection = open_reader(location)
    try:
        # No store_id is passed, so an earlier process's probe does not count: missing write permission must show before
        # the tasks start.
        probe_once(connection.objects, connection.runtime.new_id)
    except StorageRefusedError as error:
        connection.close()
        msg = f"{error} {_ADVICE}"
        raise StorageRefusedError(msg) from error.__cause__
    except BaseException:
        connection.close()
        raise
    return connection


def cached_connection(location: Location) -> Connection:
    """Open the store as :func:`open_to_write`, once per process, because Spark reuses the processes of micro-batches.

    Its view is refreshed, with one GET for each chain. A store that was created again at this URL is opened again.
    """
    key = json.dumps([location.url, location.storage_options, location.principal], sort_keys=True, default=repr)
    with _lock:
        connection = _connections.pop(key, None)
        if connection is not None and not _store_exists(connection):
            connection = None
        connection = connection or open_to_write(location)
        _connections[key] = connection
        while len(_connections) > _CACHED:
            _connections.pop(next(iter(_connections))).close()
        return connection


def _store_exists(connection: Connection) -> bool:
    """Whether the store of a cached connection can still be read; refreshes its view, or closes it."""
    try:
        connection.view()
    except (StoreNotFoundError, StorageRefusedError):  # The latter also for credentials that have expired.
        connection.close()
        return False
    return True


def open_reader(location: Location) -> Connection:
    """Open the store for a read, which writes only to end an expired transaction that holds back its records."""
    return open_to_read(open_objects(location), location.principal)


def open_objects(location: Location) -> ObjectStore:
    """Open the objects of the store without a request: tasks get all else that they need."""
    return open_store(location.url, dict(location.storage_options))
