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
from itertools import pairwise
from typing import NamedTuple

from txnstore.chain.codec import Int64, Stored, decode
from txnstore.chain.context import ChainContext
from txnstore.chain.keys import Keys, boundary_number, entry_sequence
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore

#: How long a vacuum waits after it has created a boundary, by the storage's clock, before it deletes entries.
WAIT_MS = 24 * 60 * 60 * 1000
#: How long after a request for the next boundary a process trusts the names of entries; then it asks again.
LEASE_MS = WAIT_MS // 2


class OvertakenError(Exception):
    """The entries after the known state may have been deleted: the chain must be read from a newer checkpoint."""


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
    """A boundary of a chain; :data:`NO_BOUNDARY` for number 0.

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
        #: Whether the entries at the head were listed since the lease was last renewed; see `_look_behind`. True at the
        #: start: a process that has just opened the store has read the entries after a checkpoint.
        self._looked_behind = True
        #: The number of the boundary that the hint names; 0 without one. Its number must not be used again.
        self._hinted = 0
        #: Waits for the requests that :meth:`start` has begun, and returns their lease; None if there are none.
        self._begun: Callable[[], _BoundaryLease] | None = None

    def start(self, number: int) -> None:
        """Begin to read the boundary ``number``, which a hint names, and to ask for the next one."""
        self._hinted = number
        # Before the requests, because the lease counts from then; its document follows.
        lease = self._at(number, NO_BOUNDARY)
        document = self._pool.submit(self._read, number)
        following = self._pool.submit(self._get, number + 1)

        def finish() -> _BoundaryLease:
            try:
                return self._renew(lease._replace(document=document.result()), following.result())
            except CorruptionError:  # The hint is wrong, or the boundary is lost: see which ones there are.
                return self._ask(self._newest(0))

        self._begun = finish

    def check(self, sequence: int) -> None:
        """Make sure that neither entry ``sequence`` nor a later one was deleted until now.

        Makes three requests if this process has not asked for :data:`LEASE_MS`.

        Raises:
            OvertakenError: They may have been.
            StorageError: The storage failed.
        """
        lease = self._valid()
        if not self._looked_behind:
            lease = self._look_behind(lease, sequence)
        last = lease.document.sequence
        if last >= sequence:
            msg = f"entries up to {last} may be deleted"
            raise OvertakenError(msg)

    def _look_behind(self, lease: _BoundaryLease, sequence: int) -> _BoundaryLease:
        """Look for a gap at an entry: where one is, the entries before it were deleted, whatever the boundaries show.

        One list. It needs no boundary, so it finds that the last ones are lost, or that one was created again. A list
        is no snapshot: of two entries that are created meanwhile it may have the later one only, so where it has a gap,
        one HEAD makes sure of it.
        """
        start = self._keys.entry(self._chain, sequence - 1)
        listed = self._objects.list(self._keys.entries(self._chain), start, limit=2)
        numbers = [number for item in listed if (number := entry_sequence(item.key)) is not None]
        gaps = [after - 1 for before, after in pairwise([sequence - 1, *numbers]) if after > before + 1]
        missing = next((number for number in reversed(gaps) if not self._has_entry(number)), 0)
        if missing > lease.document.sequence:
            lease = lease._replace(document=lease.document.model_copy(update={"sequence": missing}))
            self._lease = lease
        self._looked_behind = True
        return lease

    def last(self) -> BoundaryDocument:
        """The last boundary, or :data:`NO_BOUNDARY`; see :meth:`check`."""
        return self._valid().document

    def number_at(self, sequence: int) -> int | None:
        """The number for a hint; None if entry ``sequence`` is before the last known boundary. Makes no request.

        It is that of the last known boundary, or of a later one that the hint of before names: that one is lost, and
        its number must not be used again.
        """
        lease = self._lease
        if lease is None:
            return self._hinted
        return max(lease.number, self._hinted) if lease.document.sequence <= sequence else None

    def timestamp_before(self, modified_ms: int) -> int:
        """The greatest known time of entries that were written before a time of the storage's clock; -1: none is known.

        One GET for each halving of the number of boundaries, and none if the last one is old enough.
        """
        lease = self._valid()
        if lease.document.modified_ms <= modified_ms:
            return lease.document.timestamp
        older = bisect_right(range(lease.number), modified_ms, key=lambda number: self._read(number).modified_ms) - 1
        return self._read(older).timestamp

    def _valid(self) -> _BoundaryLease:
        """A lease that has not ended; asks for the next boundary if the known one has."""
        lease, begun = self._lease, self._begun
        if begun is not None:
            self._begun, lease = None, begun()
        while lease is None or self._is_over(lease):
            lease = self._ask(lease)
        return lease

    def _ask(self, ended: _BoundaryLease | None) -> _BoundaryLease:
        """Request the boundary after that of a lease which has ended, and if it does not exist, list all later ones."""
        self._looked_behind = False
        lease = self._at(*ended[:2]) if ended is not None else self._at(0, NO_BOUNDARY)
        following = self._get(lease.number + 1)
        return self._renew(lease, following) if following is not None else self._renew(*self._after(lease))

    def _is_over(self, lease: _BoundaryLease) -> bool:
        """By the clock that has advanced further: each of them may have stood still."""
        passed = max(abs(self._runtime.clock() - lease.clock), self._runtime.uptime() - lease.uptime)
        return passed >= LEASE_MS

    def _renew(self, lease: _BoundaryLease, following: bytes | None) -> _BoundaryLease:
        """The lease after its boundary's successor was asked for, which may be there."""
        while following is not None:
            key = self._keys.boundary(self._chain, lease.number + 1)
            lease = self._at(lease.number + 1, decode(BoundaryDocument, key, following))
            following = self._get(lease.number + 1)
            if following is not None:
                lease, following = self._after(lease)
        self._lease = lease
        return lease

    def _after(self, lease: _BoundaryLease) -> tuple[_BoundaryLease, bytes | None]:
        """The newest boundary in a list, and its successor; the known one if there is none after it."""
        newest = self._newest(lease.number)
        return (newest, self._get(newest.number + 1)) if newest is not None else (lease, None)

    def _newest(self, after: int) -> _BoundaryLease | None:
        """The newest boundary in a list, if there is one after this number; its successor must be asked for."""
        start = self._keys.boundary(self._chain, after)
        lease = self._at(0, NO_BOUNDARY)
        listed = self._objects.list(self._keys.boundaries(self._chain), start)
        numbers = [number for item in listed if (number := boundary_number(item.key)) is not None]
        return lease._replace(number=numbers[-1], document=self._read(numbers[-1])) if numbers else None

    def _at(self, number: int, document: BoundaryDocument) -> _BoundaryLease:
        """A lease from now on, which is valid only if the successor of this boundary turns out not to exist."""
        return _BoundaryLease(number, document, self._runtime.clock(), self._runtime.uptime())

    def _read(self, number: int) -> BoundaryDocument:
        return read_boundary(self._objects, self._keys, self._chain, number)

    def _has_entry(self, sequence: int) -> bool:
        try:
            self._objects.stat(self._keys.entry(self._chain, sequence))
        except ObjectNotFoundError:
            return False
        return True

    def _get(self, number: int) -> bytes | None:
        try:
            return self._objects.get(self._keys.boundary(self._chain, number))
        except ObjectNotFoundError:
            return None
