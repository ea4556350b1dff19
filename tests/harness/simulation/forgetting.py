"""Runs in which the history of a chain is short: old entries are deleted while other processes sleep.

A vacuum waits for less time than a process may be suspended, or than a create may be on its way: so the names of
deleted entries are created again.
"""

from __future__ import annotations

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.maintenance import refusals
from tests.harness.simulation.producers import PlainProducer
from tests.harness.simulation.readers import Scanner
from tests.harness.simulation.world import Process, World
from tests.helpers.connections import connection_of
from txnstore.chain import boundary
from txnstore.errors import TxnStoreError

#: Seconds that segments are kept at least: longer than any request of a reader that is only slow.
GRACE = 600.0
_NAPS_MS = (100, 15_000, 700_000, 1_500_000)
_ROUNDS = 6


class Napper(PlainProducer):
    """Sends records, and sleeps for so long that entries are deleted meanwhile."""

    def breathe(self) -> None:
        self.world.scheduler.sleep(self.rng.choice(_NAPS_MS))


class NappingScanner(Scanner):
    """Reads, and sleeps for as long."""

    def breathe(self) -> None:
        self.world.scheduler.sleep(self.rng.choice(_NAPS_MS))


class Forgetter(Actor):
    """Deletes the history, again and again."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = max(self.left, _ROUNDS)

    def live(self, process: Process) -> None:
        wait_ms = boundary.WAIT_MS
        while self.next_operation():
            for operation in (self._checkpoints, self._vacuum):
                try:
                    operation(process)
                except TxnStoreError as error:
                    self.check_expected(process, "maintenance", error, refusals(self.world))
            self.world.scheduler.sleep(self.rng.choice((wait_ms + 1, int(GRACE * 500), int(GRACE * 1000) + 1)))

    def _checkpoints(self, process: Process) -> None:
        for chain in connection_of(process.store).chains:
            chain.checkpoint()

    def _vacuum(self, process: Process) -> None:
        process.store.vacuum(GRACE, history=0)
