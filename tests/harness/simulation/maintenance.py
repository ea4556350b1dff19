"""Actors for maintenance: compaction, vacuum, checkpoints, recovery."""

from __future__ import annotations

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.world import Process
from txnstore.errors import TxnStoreError

#: Seconds. Longer than any request of a reader that is only slow, shorter than a pause.
GRACE = 600.0


class Tidy(Actor):
    """Compacts, vacuums, saves checkpoints."""

    def live(self, process: Process) -> None:
        store = process.store
        while self.next_operation():
            what = self.rng.choice((store.compact, lambda: store.vacuum(GRACE), store.checkpoint))
            try:
                what()
            except TxnStoreError as error:
                self.check_expected(process, "maintenance", error, ())
            self.breathe()


class Recoverer(Actor):
    """Aborts expired transactions and completes decided ones."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                process.store.recover()
            except TxnStoreError as error:
                self.check_expected(process, "recover", error, ())
            self.breathe()
