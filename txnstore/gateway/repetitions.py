"""Batches that were refused, and that their clients repeat before those that they sent behind them.

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
_SECONDS = 30.0
#: With more refused batches, those are removed whose clients have not repeated them in time.
_MANY = 1_000

#: A producer id, an epoch and a partition: the batches of these have consecutive sequences.
ProducerPartition = tuple[int, int, TopicPartition]


class _Refused(NamedTuple):
    """A refused batch; ``error`` is a copy, since a raised error holds the frames of its request, with all records."""

    sequence: int
    error: Exception
    until: float


class Repetitions:
    """What clients have to repeat.

    Args:
        clock: The time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The first refused batch of each producer in each partition.
        self._refused: dict[ProducerPartition, _Refused] = {}

    def expect(self, sender: ProducerPartition, sequence: int, error: Exception) -> None:
        """The batch with this first sequence was refused, and its client repeats it."""
        now = self._clock()
        if len(self._refused) > _MANY:
            self._refused = {each: refused for each, refused in self._refused.items() if now < refused.until}
        before = self._refused.get(sender)
        if before is None or now >= before.until or not _is_behind(sequence, before.sequence):
            self._refused[sender] = _Refused(sequence, copy(error), now + _SECONDS)

    def check(self, sender: ProducerPartition, sequence: int) -> None:
        """Check that a batch is not behind one that its client has to repeat first.

        Raises:
            Exception: It is: the error of that one.
        """
        refused = self._refused.get(sender)
        if refused is None:
            return
        if self._clock() < refused.until and _is_behind(sequence, refused.sequence):
            raise copy(refused.error)
        del self._refused[sender]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another one; after the greatest comes 0."""
    return 0 < (sequence - other) % (MAX_SEQUENCE + 1) <= MAX_SEQUENCE // 2
