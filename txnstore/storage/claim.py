"""Claiming a name: the one place that turns the three outcomes of a conditional create into a certain one.

    created           -> ours
    exists or unknown -> read the name: our bytes? ours. Other bytes? theirs.
    nothing there     -> the same bytes again: an unknown create may still arrive, but only with them

So a name is never given up before it is decided, and an error alone never decides anything. The bytes must be unique,
which an id in them makes sure.
"""

from __future__ import annotations

from collections.abc import Callable

from txnstore.errors import ObjectNotFoundError, StorageError, UnknownOutcomeError
from txnstore.storage.base import ObjectStore

#: How often the same bytes are offered before the caller is told that nobody knows.
_ATTEMPTS = 8


class Claim:
    """The attempt to create ``key`` with ``data``; :meth:`settle` may be called again after an unknown outcome."""

    __slots__ = ("data", "doubtful", "key", "unknown_outcomes")

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data
        #: Whether an offer may have been accepted, or may still be, without our knowing.
        self.doubtful = False
        self.unknown_outcomes = 0

    def settle(self, objects: ObjectStore, pause: Callable[[int], None]) -> bytes:
        """The bytes that the name holds in the end: ours, or those of whoever came first.

        ``pause(n)`` waits before the n-th repetition. Raises :class:`UnknownOutcomeError` if nobody could tell in time,
        and another :class:`StorageError` if the storage refused and certainly nothing has happened.
        """
        cause: StorageError | None = None
        for tries in range(1, _ATTEMPTS + 1):
            try:
                if objects.put_if_absent(self.key, self.data):
                    return self.data
            except UnknownOutcomeError as error:
                self.unknown_outcomes += 1
                cause = error
            except StorageError as error:
                if not self.doubtful:
                    raise
                cause = error
            self.doubtful = True
            found = self._read(objects)
            if found is not None:
                return found
            pause(tries)
        msg = f"{self.key} on {objects.url}: the storage did not tell whether it was created"
        raise UnknownOutcomeError(msg) from cause

    def _read(self, objects: ObjectStore) -> bytes | None:
        try:
            return objects.get(self.key)
        except ObjectNotFoundError:
            return None
        except StorageError:
            return None  # The next offer tells.
