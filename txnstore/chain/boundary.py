"""The boundaries of a chain: up to where its history may be deleted, so that free names of entries are not misread.

A name without an object is the end of a chain, and the process that creates the object has committed. Neither holds for
the name of an entry that was deleted: a writer that has slept would commit into the past. So a vacuum announces before
it deletes. It creates the next *boundary*, a numbered object that is never changed, and deletes entries up to it only
when the boundary is :data:`WAIT_MS` old. A process that does not find the next boundary knows for :data:`LEASE_MS`,
which is half of that, that no entry after the last one is deleted.

A boundary may be lost. So a process that asks again after that time also lists the boundaries, and the entries that
exist: a gap between them shows what no boundary shows. See docs/internals/design/history.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from txnstore.chain.codec import Int64, Stored, decode
from txnstore.chain.context import ChainContext
from txnstore.chain.keys import Keys, boundary_number, entry_sequence
from txnstore.core.model import value_class
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore, read_if_there

#: How long a vacuum waits after it has created a boundary, by the storage's clock, before it deletes entries.
WAIT_MS = 24 * 60 * 60 * 1000
#: How long after a request for the next boundary a process trusts the names of entries; then it asks again.
LEASE_MS = WAIT_MS // 2


class OvertakenError(Exception):
    """The entries after the known state may have been deleted: the chain must be read from a newer checkpoint."""


@value_class(kw_only=True)
class BoundaryDocument(Stored):
    """A boundary: entries up to ``sequence`` may be deleted; a checkpoint has the state after it.

    ``timestamp``: the time of entry ``sequence``. ``modified_ms``: when its checkpoint was written, by the clock of the
    storage; all entries up to it are older.
    """

    sequence: Int64
    timestamp: Int64
    modified_ms: Int64


#: What holds without a boundary.
NO_BOUNDARY = BoundaryDocument(sequence=0, timestamp=-1, modified_ms=-1)


def read_boundary(objects: ObjectStore, keys: Keys, chain: int, number: int) -> BoundaryDocument:
    """Read a boundary of a chain; :data:`NO_BOUNDARY` for number 0.

    Raises:
        CorruptionError: It is missing or damaged.
    """
    if number == 0:
        return NO_BOUNDARY
    key = keys.boundary(chain, number)
    try:
        return decode(BoundaryDocument, key, objects.get(key))
    except ObjectNotFoundError as error:
        msg = f"{key} is missing"
        raise CorruptionError(msg) from error


class _BoundaryLease(NamedTuple):
    """The last boundary that exists, and when a request has shown that its successor does not.

    Attributes:
        number: Its number; 0: no boundary exists.
        document: The boundary; with a later ``sequence`` if a gap shows that more entries were deleted.
        clock: The wall clock before that request, in ms.
        uptime: The same by the clock that runs on while the machine is suspended.
    """

    number: int
    document: BoundaryDocument
    clock: int
    uptime: int


class Boundaries:
    """The boundaries of one chain, as this process knows them. Thread-safe: a lease is replaced in one step.

    Args:
        chain: The number of the chain.
    """

    def __init__(self, context: ChainContext, chain: int) -> None:
        self._objects, self._keys, self._chain = context.objects, context.keys, chain
        self._runtime, self._pool = context.runtime, context.pool
        # No lock: each field is assigned in one step. Two threads that renew a lease concurrently only make the same
        # requests twice; the lease of either is valid.
        #: The newest lease; None before the first request.
        self._lease: _BoundaryLease | None = None
        #: Whether the entries at the head were listed since the lease was last renewed; see `_check_for_gap`. True at
        #: first: a process that has just opened the store has read the entries after a checkpoint.
        self._gaps_checked = True
        #: The number of the boundary that the hint names; 0 without one. Its number must not be used again.
        self._hinted = 0
        #: Waits for the requests that :meth:`start` has begun, and returns their lease; None if there are none.
        self._pending_lease: Callable[[], _BoundaryLease] | None = None

    def start(self, number: int) -> None:
        """Begin to read the boundary ``number``, which a hint names, and to ask for the next one."""
        self._hinted = number
        # Before the requests, because the lease counts from then; its document follows.
        lease = self._lease_from_now(number, NO_BOUNDARY)
        document = self._pool.submit(self._read_document, number)
        following = self._pool.submit(self._get_bytes, number + 1)

        def finish() -> _BoundaryLease:
            try:
                return self._renew(lease._replace(document=document.result()), following.result())
            except CorruptionError:  # The hint is wrong, or the boundary is lost: see which ones there are.
                return self._request_next(self._newest_after(0))

        self._pending_lease = finish

    def check(self, sequence: int) -> None:
        """Check that neither entry ``sequence`` nor a later one was deleted until now.

        Makes three requests if this process has not asked for :data:`LEASE_MS`.

        Raises:
            OvertakenError: They may have been.
            StorageError: The storage failed.
        """
        lease = self._current_lease()
        if not self._gaps_checked:
            lease = self._check_for_gap(lease, sequence)
        last = lease.document.sequence
        if last >= sequence:
            msg = f"entries up to {last} may be deleted"
            raise OvertakenError(msg)

    def _check_for_gap(self, lease: _BoundaryLease, sequence: int) -> _BoundaryLease:
        """Look for a gap before an entry: entries before a gap were deleted, whatever the boundaries show.

        One list. It needs no boundary, so it finds that the last ones are lost, or that one was created again. A list
        is no snapshot: of two entries that are created meanwhile it may have the later one only, so where it has a gap,
        one HEAD makes sure of it.
        """
        start = self._keys.entry(self._chain, sequence - 1)
        items = self._objects.list(self._keys.entries(self._chain), start, limit=2)
        numbers = [number for info in items if (number := entry_sequence(info.key)) is not None]
        gaps = [after - 1 for before, after in pairwise([sequence - 1, *numbers]) if after > before + 1]
        missing = next((number for number in reversed(gaps) if not self._has_entry(number)), 0)
        if missing > lease.document.sequence:
            lease = lease._replace(document=replace(lease.document, sequence=missing))
            self._lease = lease
        self._gaps_checked = True
        return lease

    def last(self) -> BoundaryDocument:
        """Return the last boundary, or :data:`NO_BOUNDARY`; see :meth:`check`."""
        return self._current_lease().document

    def number_at(self, sequence: int) -> int | None:
        """Return the boundary number for a hint; None if ``sequence`` is before the last boundary. Makes no request.

        It is that of the last known boundary, or of a later one that the hint of before names: that one is lost, and
        its number must not be used again.
        """
        lease = self._lease
        if lease is None:
            return self._hinted
        return max(lease.number, self._hinted) if lease.document.sequence <= sequence else None

    def timestamp_before(self, modified_ms: int) -> int:
        """Return the greatest known time of entries written before ``modified_ms`` of the storage's clock; -1: unknown.

        One GET for each halving of the number of boundaries, and none if the last one is old enough.
        """
        lease = self._current_lease()
        if lease.document.modified_ms <= modified_ms:
            return lease.document.timestamp
        older = (
            bisect_right(range(lease.number), modified_ms, key=lambda number: self._read_document(number).modified_ms)
            - 1
        )
        return self._read_document(older).timestamp

    def _current_lease(self) -> _BoundaryLease:
        """Return a lease that has not expired; requests the next boundary if the known lease has."""
        lease, begun = self._lease, self._pending_lease
        if begun is not None:
            self._pending_lease, lease = None, begun()
        while lease is None or self._has_expired(lease):
            lease = self._request_next(lease)
        return lease

    def _request_next(self, ended: _BoundaryLease | None) -> _BoundaryLease:
        """Request the boundary after that of an expired lease; if there is none, list all later ones."""
        self._gaps_checked = False
        lease = self._lease_from_now(*ended[:2]) if ended is not None else self._lease_from_now(0, NO_BOUNDARY)
        following = self._get_bytes(lease.number + 1)
        return self._renew(lease, following) if following is not None else self._renew(*self._list_newest(lease))

    def _has_expired(self, lease: _BoundaryLease) -> bool:
        """Whether a lease has expired by the clock that advanced further, as either may have stood still."""
        elapsed = max(abs(self._runtime.clock() - lease.clock), self._runtime.uptime() - lease.uptime)
        return elapsed >= LEASE_MS

    def _renew(self, lease: _BoundaryLease, following: bytes | None) -> _BoundaryLease:
        """Renew the lease, first moving it to the next boundary if ``following`` has its bytes."""
        while following is not None:
            key = self._keys.boundary(self._chain, lease.number + 1)
            lease = self._lease_from_now(lease.number + 1, decode(BoundaryDocument, key, following))
            following = self._get_bytes(lease.number + 1)
            if following is not None:
                lease, following = self._list_newest(lease)
        self._lease = lease
        return lease

    def _list_newest(self, lease: _BoundaryLease) -> tuple[_BoundaryLease, bytes | None]:
        """Return the newest listed boundary with the bytes after it; the known one if the list has no later one."""
        newest = self._newest_after(lease.number)
        return (newest, self._get_bytes(newest.number + 1)) if newest is not None else (lease, None)

    def _newest_after(self, after: int) -> _BoundaryLease | None:
        """Return the newest listed boundary after ``after``, if there is one; the caller requests the one after it."""
        start = self._keys.boundary(self._chain, after)
        lease = self._lease_from_now(0, NO_BOUNDARY)
        listed = self._objects.list(self._keys.boundaries(self._chain), start)
        numbers = [number for info in listed if (number := boundary_number(info.key)) is not None]
        return lease._replace(number=numbers[-1], document=self._read_document(numbers[-1])) if numbers else None

    def _lease_from_now(self, number: int, document: BoundaryDocument) -> _BoundaryLease:
        """Make a lease from now on; it is valid only if the next boundary turns out not to exist."""
        return _BoundaryLease(number, document, self._runtime.clock(), self._runtime.uptime())

    def _read_document(self, number: int) -> BoundaryDocument:
        return read_boundary(self._objects, self._keys, self._chain, number)

    def _has_entry(self, sequence: int) -> bool:
        try:
            self._objects.stat(self._keys.entry(self._chain, sequence))
        except ObjectNotFoundError:
            return False
        return True

    def _get_bytes(self, number: int) -> bytes | None:
        return read_if_there(self._objects, self._keys.boundary(self._chain, number))
