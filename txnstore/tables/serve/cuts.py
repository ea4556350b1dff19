"""Finds the cuts that are served, and publishes a newer one if the newest is too old."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.location import Location
from txnstore.connection import Connection
from txnstore.tables.published import Published
from txnstore.tables.serve.routes import Newest

_LOG = logging.getLogger(__name__)

#: The ms after which the known cut is forgotten: a server that was idle for days must not begin at a deleted one.
_REFRESH_MS = 3_600_000


class Freshness:
    """Publishes the tables on request, unless a publication began a short time ago. Thread-safe; one at a time.

    Args:
        sync: Publishes what has changed.
        clock: Returns the time in milliseconds since some time in the past.
        fresh_ms: How long after the start of a publication no other one is needed.
    """

    def __init__(self, sync: Callable[[], object], clock: Callable[[], int], fresh_ms: int) -> None:
        self._sync, self._clock, self._fresh_ms = sync, clock, fresh_ms
        #: Held during a publication; guards the two fields below.
        self._lock = threading.Lock()
        #: The start of the last publication, whatever its outcome; None before the first one.
        self._started_at: int | None = None
        #: The kind of the error that it ended with; None without one.
        self._error: str | None = None

    def ensure(self) -> str | None:
        """Publish if the last publication began too long ago; a call during a publication waits for it.

        Returns:
            The kind of the error for which the newest cut may be too old; None if it is not.
        """
        called_at = self._clock()
        with self._lock:
            if self._started_at is None or self._started_at <= called_at - self._fresh_ms:
                self._started_at, self._error = self._clock(), None
                try:
                    self._sync()
                except Exception as error:  # noqa: BLE001 - An older cut is a better answer than any error.
                    _LOG.warning("the tables could not be published", extra={"error": error})
                    self._error = type(error).__name__
            return self._error


class StoredCuts:
    """The cuts of a store (:class:`txnstore.tables.serve.routes.Cuts`). Thread-safe.

    The newest one costs a GET, or a few if there is a newer one than before; each other one a GET; metadata a GET.

    Args:
        location: The location of the store's objects.
        freshness: Publishes a newer cut; None: others do that.
    """

    def __init__(self, connection: Connection, location: Location, freshness: Freshness | None = None) -> None:
        self._published = Published(connection.objects, connection.store_id, connection.pool, location)
        self._freshness, self._uptime = freshness, connection.runtime.uptime
        #: Guards the fields below, and no request.
        self._lock = threading.Lock()
        #: The newest known cut; None before the first look, or if there is none.
        self._known_cut: CutDocument | None = None
        #: The time of the last uncached look, in ms of the uptime: all tables may have been deleted
        #: and published again since then.
        self._refreshed_at = 0

    def newest(self, *, uncached: bool = False) -> Newest:
        """Return the newest cut, published first if it is too old; ``uncached``: forget the one read last."""
        error_kind = self._freshness.ensure() if self._freshness is not None else None
        now = self._uptime()
        with self._lock:
            uncached = uncached or now - self._refreshed_at >= _REFRESH_MS
            known_cut = None if uncached else self._known_cut
        cut = self._published.newest(known_cut)
        with self._lock:
            if uncached:
                self._refreshed_at = now
            if uncached or cut is None or self._known_cut is None or cut.number > self._known_cut.number:
                self._known_cut = cut
        return Newest(cut, error_kind)

    def numbered(self, number: int) -> CutDocument | None:
        return self._published.cut(number)

    def metadata(self, table: PublishedTable) -> bytes | None:
        return self._published.find_metadata(table)
