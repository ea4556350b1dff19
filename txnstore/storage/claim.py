"""Resolves the outcome of a conditional create, including an unknown one.

    put_if_absent        next step
    created              the object holds our bytes
    exists or unknown    read the object: our bytes or those of another writer
    object not found     repeat put_if_absent with the same bytes

Repeating with the same bytes is safe: an earlier create that still arrives can only write these bytes. An error alone
never decides the outcome. The bytes of each claim must be unique; entries contain a unique id for this purpose.
See docs/design/0002-commit.md.
"""

from __future__ import annotations

from collections.abc import Callable

from txnstore.errors import ObjectNotFoundError, StorageError, UnknownOutcomeError
from txnstore.storage.base import ObjectStore

#: How often a claim calls put_if_absent before it raises UnknownOutcomeError.
_ATTEMPTS = 8


class Claim:
    """An attempt to create ``key`` with ``data``; :meth:`settle` may be repeated after an unknown outcome."""

    __slots__ = ("data", "doubtful", "key", "unknown_outcomes")

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data
        #: Whether an earlier put_if_absent may have created the object, or may still create it.
        self.doubtful = False
        self.unknown_outcomes = 0

    def settle(self, objects: ObjectStore, pause: Callable[[int], None]) -> bytes:
        """Create the object, or find out which writer created it.

        Args:
            objects: The object store.
            pause: Waits before the n-th repetition; called with n, from 1.

        Returns:
            The bytes of the object: ``self.data`` if this claim won, else those of the writer that won.

        Raises:
            UnknownOutcomeError: The outcome is still unknown after all attempts. Calling again is safe.
            StorageError: The storage refused the first attempt; the object was not created.
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
        msg = f"{self.key} on {objects.url}: the storage did not confirm whether the object was created"
        raise UnknownOutcomeError(msg) from cause

    def _read(self, objects: ObjectStore) -> bytes | None:
        try:
            return objects.get(self.key)
        except ObjectNotFoundError:
            return None
        except StorageError:
            return None  # The next attempt resolves it.
