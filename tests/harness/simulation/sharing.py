"""Compactors that share the partitions by leases, and what must be left of these at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.world import Process, World
from txnstore.compactor.compact.lease import DURATION_MS
from txnstore.errors import TxnStoreError
from txnstore.store import Store


class Sharer(Actor):
    """Compacts round after round: plans, leases, compacts, releases its lease; or dies with it."""

    def live(self, process: Process) -> None:
        max_bytes = self.rng.choice((None, 1, 2_000))
        with closing(process.store.compact_rounds(interval=self.rng.choice((1, 60)), max_bytes=max_bytes)) as rounds:
            while self.next_operation():
                try:
                    error = next(rounds).error
                except TxnStoreError as raised:
                    self.check_expected(process, "compact_rounds", raised, ())
                    return
                if isinstance(error, TxnStoreError):
                    self.check_expected(process, "a round", error, ())
                self.breathe()
            if self.rng.random() < 0.5:
                process.storage.crash()


def shared(world: World, store: Store) -> Iterator[str]:
    """Leases of compactors that died hold nothing back for longer than they last."""
    if not any(name.startswith("share:") for name in world.settings.actors):
        return
    world.scheduler.now += DURATION_MS + 1
    with closing(store.compact_rounds(rounds=1)) as rounds:
        latest = next(rounds)
    if latest.held or latest.error is not None:
        yield f"held-without-end: {latest.held} of {latest.due} partitions, error {latest.error}"
