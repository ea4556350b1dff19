"""Leases of compactors: which partitions each of them works on, so that no other one does the same work.

A lease is a small object that names the partitions. Compactors create leases with ascending numbers, each after a look
at all others, so of two that want the same partition one reads the lease of the other. Its holder renews it; one that
was not renewed for its duration, by the clock of the storage, has expired. It is advice: the revision of a partition
makes a replacement safe, and where a lease is lost or ends early, work is done twice.
See docs/internals/design/compaction.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Self

from txnstore.chain.codec import Stored, decode, encode
from txnstore.chain.keys import Keys, lease_number
from txnstore.chain.rules import Limits
from txnstore.core.model import TopicPartition, value_class
from txnstore.errors import (
    CorruptionError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    UnsupportedFormatError,
)
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim, ObjectStore

_LOG = logging.getLogger(__name__)

#: How long a lease lasts after it was created or renewed, in ms. A compactor that dies holds its partitions no longer.
DURATION_MS = 180_000
#: No lease of any release lasts longer, in ms.
_MAX_DURATION_MS = 3_600_000
#: It is renewed so often in its duration, so that one renewal may fail.
_RENEWALS = 3
#: Half of the names. No compactor gets as far as this number, so an object that has it, or a larger one, is no lease.
_NUMBER_LIMIT = 10**20 // 2
#: A compactor that loses the race for a lease so often in a row does not try again.
_ATTEMPTS = 20


@value_class(kw_only=True)
class LeaseDocument(Stored):
    """The lease of one compactor; ``duration_ms``: it expires so long after the object was written."""

    owner: str
    duration_ms: Annotated[int, Limits(ge=1, le=_MAX_DURATION_MS)]
    partitions: list[TopicPartition]


class CompactionLease:
    """The lease of one compaction; the end of the block releases it.

    Args:
        runtime: Names the owner, and times the renewals.
    """

    def __init__(self, objects: ObjectStore, keys: Keys, runtime: Runtime) -> None:
        self._objects, self._keys, self._runtime = objects, keys, runtime
        self._owner = runtime.new_id()
        self._timer = runtime.timer(self._renew)
        #: The key of the lease and its bytes; None without one. The timer's thread reads it.
        self._lease: tuple[str, bytes] | None = None

    def take(
        self, choose: Callable[[frozenset[TopicPartition]], Collection[TopicPartition]]
    ) -> frozenset[TopicPartition]:
        """Take a lease on partitions; returns them.

        Costs a LIST and a PUT, and if there are leases of others, a GET for each, and a request for the clock of the
        storage. Without a choice it costs no PUT.

        Args:
            choose: Chooses partitions, given those that others have leases on. Called again if another compactor takes
                a lease meanwhile.

        Raises:
            StorageError: The storage failed, or refuses to create the lease.
        """
        key = ""
        for attempt in range(1, _ATTEMPTS + 1):
            number, held_partitions = self._current_leases()
            chosen_partitions = frozenset(choose(held_partitions))
            if not chosen_partitions:
                return chosen_partitions
            document = LeaseDocument(owner=self._owner, duration_ms=DURATION_MS, partitions=sorted(chosen_partitions))
            key, data = self._keys.lease(number + 1), encode(document)
            if Claim(key, data).resolve(self._objects, self._runtime.backoff) == data:
                self._lease = key, data
                self._timer.set(DURATION_MS / _RENEWALS / 1000)
                return chosen_partitions
            self._runtime.backoff(attempt)
        msg = (
            f"no lease could be created in {_ATTEMPTS} attempts: each time an object had the next number, at last "
            f"{key}. If no other compactor works now, what is below {self._keys.leases} is of no use: delete it"
        )
        raise StorageRefusedError(msg)

    def others(self) -> frozenset[TopicPartition]:
        """The partitions that compactors have leases on now. Costs a LIST, and a GET for each lease."""
        return self._current_leases()[1]

    def _current_leases(self) -> tuple[int, frozenset[TopicPartition]]:
        """The largest number of a lease, and the partitions of those that are not over. Deletes the others."""
        objects_by_key = {
            info.key: info
            for info in self._objects.list(self._keys.leases)
            if 0 < (lease_number(info.key) or 0) < _NUMBER_LIMIT
        }
        if not objects_by_key:
            return 0, frozenset()
        now_ms = self._objects.now_ms()
        expired_keys = []
        held_partitions = set[TopicPartition]()
        for lease, key in self._read_leases(objects_by_key):
            # One from the future was written before the clock of the storage was set back: its age is unknown.
            if abs(now_ms - objects_by_key[key].modified_ms) > lease.duration_ms:
                expired_keys.append(key)
            else:
                held_partitions.update(lease.partitions)
        self._delete(expired_keys)
        return max(lease_number(key) or 0 for key in objects_by_key), frozenset(held_partitions)

    def _read_leases(self, keys: Collection[str]) -> Iterator[tuple[LeaseDocument, str]]:
        """The leases that can be read, with their keys; others hold nothing, and a vacuum deletes them."""
        for key in keys:
            try:
                yield decode(LeaseDocument, key, self._objects.get(key)), key
            except ObjectNotFoundError:
                continue
            except (CorruptionError, UnsupportedFormatError) as error:
                _LOG.warning("lease ignored: %s", error, extra={"key": key, "error": str(error)})

    def _renew(self) -> None:
        """Write the lease again, and set the timer for the next time, whether it succeeded or not."""
        lease = self._lease
        if lease is None:
            return
        try:
            self._objects.put(*lease)
        except StorageError as error:
            _LOG.info("lease not renewed: another compactor may do the same work", extra={"error": str(error)})
        self._timer.set(DURATION_MS / _RENEWALS / 1000)

    def _delete(self, keys: list[str]) -> None:
        """Delete leases. One that stays ends by itself."""
        if not keys:
            return
        try:
            self._objects.delete(keys)
        except StorageError as error:
            _LOG.info("lease not deleted: it ends by itself", extra={"key": keys[0], "error": str(error)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.stop()
        lease, self._lease = self._lease, None
        self._delete([lease[0]] if lease is not None else [])
