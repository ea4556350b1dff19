"""Refused batches, which their clients must repeat before the batches that they sent behind them.

The store takes any first sequence of a producer that it does not know. So a batch that arrives behind a refused one,
before its client has the refusal, would be appended first, and the repeated one be out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from txnstore.core.log.model import MAX_SEQUENCE
from txnstore.core.model import TopicPartition

#: Seconds for which a client repeats a batch: Kafka's default of ``request.timeout.ms`` of a producer.
_RETRY_SECONDS = 30.0
#: The number of refused batches from which expired ones are removed.
_CLEANUP_THRESHOLD = 1_000

#: A producer id, an epoch and a partition: the batches of these have consecutive sequences.
ProducerPartition = tuple[int, int, TopicPartition]


class _Refused(NamedTuple):
    """A refused batch; ``error`` is a copy, since a raised error holds the frames of its request, with all records."""

    sequence: int
    error: Exception
    expires_at: float


class Repetitions:
    """The refused batches that clients have to repeat.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The first refused batch of each producer in each partition.
        self._refused_batches: dict[ProducerPartition, _Refused] = {}

    def expect(self, sender: ProducerPartition, sequence: int, error: Exception) -> None:
        """Note that the batch with this first sequence was refused, and that its client repeats it."""
        now = self._clock()
        if len(self._refused_batches) > _CLEANUP_THRESHOLD:
            self._refused_batches = {
                key: refused_batch
                for key, refused_batch in self._refused_batches.items()
                if now < refused_batch.expires_at
            }
        earlier_batch = self._refused_batches.get(sender)
        if earlier_batch is None or now >= earlier_batch.expires_at or not _is_behind(sequence, earlier_batch.sequence):
            self._refused_batches[sender] = _Refused(sequence, copy(error), now + _RETRY_SECONDS)

    def check(self, sender: ProducerPartition, sequence: int) -> None:
        """Check that a batch is not behind one that its client has to repeat first.

        Raises:
            Exception: The error of the batch to repeat, if this one is behind it.
        """
        refused_batch = self._refused_batches.get(sender)
        if refused_batch is None:
            return
        if self._clock() < refused_batch.expires_at and _is_behind(sequence, refused_batch.sequence):
            raise copy(refused_batch.error)
        del self._refused_batches[sender]


def _is_behind(sequence: int, other_sequence: int) -> bool:
    """Whether a sequence comes after another one; 0 follows the greatest."""
    return 0 < (sequence - other_sequence) % (MAX_SEQUENCE + 1) <= MAX_SEQUENCE // 2
