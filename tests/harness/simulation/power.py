"""Losses of power: all processes end, and changes whose sync failed are taken back (:mod:`.durability`).

An answer that an actor got remains valid, so each acknowledged operation must be found afterwards. What a process has
only *read* may be taken back: no reader syncs what it reads, so a record can be seen before it lasts, and its sender
has no answer then. The checks compare such a read with the log as it was before the loss; see :meth:`Power.lasting`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.runtime import EPOCH_MS
from tests.harness.simulation.scheduler import Scheduler
from tests.harness.simulation.settings import Settings
from tests.harness.simulation.storage import POWER_LOST, Bucket, SimulatedStorage, Step

#: Operations by which a client has only read, and their values when they are invoked.
_READS: Mapping[str, Any] = {"poll": [("poll",)], "snapshot": None, "ends": None}
#: Operations, with their outcome, that may have read what was taken back.
_TAKEN_BACK = {*((name, "ok") for name in _READS), ("txn", "info")}


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of power.

    Attributes:
        since: When the first of the entries was created that it has taken back, on the virtual clock.
        archive: What was written before it, these entries included; None if it has taken back no entry.
    """

    since: int
    archive: Mapping[str, bytes] | None


class Power:
    """Loses the power some time after a sync has failed.

    Args:
        scheduler: The virtual clock.
        rng: The randomness of the losses.
        settings: How many losses there are at most.
        buckets: That of the run, and others.
        trace: Gets the losses.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        settings: Settings,
        buckets: Sequence[Bucket],
        trace: list[Step],
    ) -> None:
        self.storages: list[SimulatedStorage] = []
        self.losses: list[Loss] = []
        self._scheduler = scheduler
        self._rng = rng
        self._left = settings.losses
        self._is_near = False
        self._buckets = buckets
        self._trace = trace
        self._eras: dict[str, int] = {}

    def began(self, process: str) -> None:
        """A process begins: it ends with the next loss."""
        self._eras[process] = len(self.losses)

    def sync_failed(self) -> None:
        """Perhaps the power is lost soon: immediately, after the next requests, or after those of other processes."""
        if self._left > 0 and not self._is_near and self._rng.random() < 0.3:
            self._left -= 1
            self._is_near = True
            self._scheduler.later(self._rng.choice((0, 5, 50, 2_000, 20_000, 60_000)), self._lose)

    def _lose(self) -> None:
        self._is_near = False
        self.end_all()
        self._trace.append(Step(self._scheduler.now, "", "", "", "", POWER_LOST))
        archive = dict(self._buckets[0].archive)
        changes, *_ = [bucket.lose_power() for bucket in self._buckets]
        times = [change.at - EPOCH_MS for change in changes.values() if change.is_entry]
        self.losses.append(Loss(min(times, default=self._scheduler.now), archive if times else None))

    def end_all(self) -> None:
        """Kill all processes: a request that any of them makes from now on raises."""
        for storage in self.storages:
            storage.crash()

    def eras(self, history: Iterable[Operation]) -> Iterator[tuple[Mapping[str, bytes] | None, list[Operation]]]:
        """The operations of the processes of each era, with what was written until its end if that differs."""
        operations = sorted(history, key=self._era)  # Stable.
        for era, of_era in groupby(operations, self._era):
            yield self.losses[era].archive if era < len(self.losses) else None, list(of_era)

    def lasting(self, history: Iterable[Operation]) -> list[Operation]:
        """The operations; reads that may have seen what was taken back later have failed.

        A transaction that commits offsets makes all that it has read durable before, so only one of unknown outcome
        may have read what was taken back.
        """
        return [_without_reads(operation) if self._is_taken_back(operation) else operation for operation in history]

    def _is_taken_back(self, operation: Operation) -> bool:
        era = self._era(operation)
        if era == len(self.losses) or (operation.f, operation.type) not in _TAKEN_BACK:
            return False
        loss = self.losses[era]
        return loss.archive is not None and operation.time >= loss.since

    def _era(self, operation: Operation) -> int:
        return self._eras.get(operation.process, len(self.losses))


def _without_reads(read: Operation) -> Operation:
    if read.f == "txn":
        return replace(read, value=[each for each in read.value or () if each[0] != "poll"])
    return replace(read, type="fail", value=_READS[read.f], error="what it has read was taken back")
