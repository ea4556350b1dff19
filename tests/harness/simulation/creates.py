"""Creates that are interrupted, and the rule that an undecided name gets no other bytes of the same process."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.harness.simulation.scheduler import Scheduler
from txnstore.chain.keys import boundary_number, cut_number, is_of_committers, lease_number
from txnstore.errors import UnknownOutcomeError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a create is under way. Its process continues, and repeats the call, or it ends."""


class Creates:
    """Watches the creates of a process, and interrupts some of them.

    The request of an interrupted create was not sent, or is on its way, or has had its effect. Only the main thread of
    a process is interrupted, as in Python.

    Args:
        scheduler: The virtual clock, and the current task.
        rng: The randomness of the process.
        share: The share of creates that are interrupted.
        anomalies: Gets what contradicts the rule.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, share: float, anomalies: list[str]) -> None:
        self.share = share
        self._scheduler = scheduler
        self._rng = rng
        self._anomalies = anomalies
        self._undecided: dict[str, bytes] = {}

    def create(self, process: str, key: str, data: bytes, request: Callable[[], bool]) -> bool:
        """Make the request, which may be refused, unless an earlier one with other bytes may still take effect.

        That is no harm for a boundary: each one that a vacuum may offer is right. Nor for a lease, which is advice: one
        of a compaction that has failed expires by itself. Nor for a cut of tables: each that may follow is right. Nor
        for the announcement of a committer: who calls an address in vain deletes it.
        """
        if is_of_committers(key) or any(
            number(key) is not None for number in (boundary_number, lease_number, cut_number)
        ):
            return request()
        if self._undecided.get(key, data) != data:
            self._anomalies.append(f"other-bytes: {process} offers other bytes for {key}, which it has not settled")
        try:
            created = request()
        except (UnknownOutcomeError, Interrupted):
            self._undecided[key] = data
            raise
        self._undecided.pop(key, None)
        return created

    def settle(self, key: str) -> None:
        """An object with this name was read. That settles it: a create that is on its way will be refused.

        A process whose store was deleted, and has a hole, cannot fold what it found, and offers the name again.
        """
        self._undecided.pop(key, None)

    def interrupt(self, call: Callable[[], object], later: Callable[[int, Callable[[], object]], object]) -> bool:
        """Whether the caller is interrupted now; ``call`` has had its effect then, or will have it, or never has it.

        ``later`` makes a call after so many ms.
        """
        task = self._scheduler.current
        if not self.share or task is None or task.name.endswith("+") or self._rng.random() >= self.share:
            return False
        delay = self._rng.choice((None, 0, 50, 5_000))
        if delay == 0:
            call()
        elif delay is not None:
            later(delay, call)
        return True
