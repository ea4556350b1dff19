"""Processes that maintain the store and share the partitions by leases, and what must be left of these at the end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.world import Process, World
from tests.helpers.rounds import compact_rounds
from txnstore.compactor.compact.lease import DURATION_MS
from txnstore.errors import TxnStoreError
from txnstore.store import Store

#: What the vacuums and publishers of other actors do not do.
_KINDS = ("recover", "retain", "compact", "expire", "checkpoint")


class Sharer(Actor):
    """Maintains round after round: plans, leases, compacts, releases its lease; or dies with it."""

    def live(self, process: Process) -> None:
        max_bytes = self.rng.choice((None, 1, 2_000))
        every = dict.fromkeys(_KINDS, self.rng.choice((1, 60)))
        try:
            for round_ in process.store.maintain(_KINDS, every=every, max_bytes=max_bytes):
                for result in round_.errors:
                    if type(result.error) is TxnStoreError:
                        continue  # Transactions that a recovery could not end, which the next one ends.
                    if isinstance(result.error, TxnStoreError):
                        self.check_expected(process, f"maintain {result.kind}", result.error, ())
                    elif result.error is not None:
                        raise result.error
                self.breathe()
                if not self.next_operation():
                    break
        except TxnStoreError as raised:
            self.check_expected(process, "maintain", raised, ())
            return
        if self.rng.random() < 0.5:
            process.storage.crash()


def shared(world: World, store: Store) -> Iterator[str]:
    """Leases of compactors that died hold nothing back for longer than they last."""
    if not any(name.startswith("share:") for name in world.settings.actors):
        return
    world.scheduler.now += DURATION_MS + 1
    (latest,) = compact_rounds(store, rounds=1)
    if latest.held or latest.error is not None:
        yield f"held-without-end: {latest.held} of {latest.due} partitions, error {latest.error}"
