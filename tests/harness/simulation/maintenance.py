"""Actors for maintenance: compaction, vacuum, checkpoints, recovery, deletion of records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.world import TARGET, Process, World
from txnstore.core.model import TopicPartition
from txnstore.errors import OffsetOutOfRangeError, TxnStoreError, UndecidedRecordsError, UnsoundStoreError
from txnstore.store import Store

#: Seconds. Longer than any request of a reader that is only slow, shorter than a pause.
GRACE = 600.0


class Tidy(Actor):
    """Compacts, vacuums, saves checkpoints."""

    def live(self, process: Process) -> None:
        store = process.store
        while self.next_operation():
            operation: Callable[[], object] = self.rng.choice(
                (store.compact, lambda: store.vacuum(GRACE), store.checkpoint)
            )
            if self.rng.random() < 0.3:
                operation = partial(self._clear, store)
            try:
                operation()
            except TxnStoreError as error:
                self.check_expected(process, "maintenance", error, refusals(self.world))
            self.breathe()

    def _clear(self, store: Store) -> None:
        """Compact, and delete what that replaced, and the payloads of entries, when the grace period has passed."""
        store.compact()
        self.world.scheduler.sleep(int(GRACE * 1000) + 1)
        store.vacuum(GRACE)


def refusals(world: World) -> tuple[type[TxnStoreError], ...]:
    """A vacuum refuses a store of which it does not find something, and that happens to it here."""
    return (UnsoundStoreError,) if world.settings.hidden else ()


class Recoverer(Actor):
    """Aborts expired transactions and completes decided ones."""

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                process.store.recover()
            except TxnStoreError as error:
                self.check_expected(process, "recover", error, ())
            self.breathe()


class Shortener(Actor):
    """Deletes the oldest copies, up to offsets that it may not delete up to, and by the retention of their topic.

    No actor reads the copies to send them elsewhere, so none is missing because it was deleted too early.
    """

    def live(self, process: Process) -> None:
        while self.next_operation():
            try:
                if self.rng.random() < 0.2:
                    process.store.retain(TARGET)
                else:
                    self._delete(process)
            except TxnStoreError as error:
                self.check_expected(process, "delete_records", error, (UndecidedRecordsError, OffsetOutOfRangeError))
            self.breathe()

    def _delete(self, process: Process) -> None:
        tp = TopicPartition(TARGET, self.rng.randrange(self.world.settings.partitions))
        ends = process.store.offsets(*tp)
        above = self.rng.choice((ends.last_stable, ends.last_stable, ends.high_watermark + 1))
        offset = self.rng.choice((-1, self.rng.randint(0, above), self.rng.randint(min(ends.log_start, above), above)))
        start = process.store.delete_records({tp: offset})[tp]
        starts = self.world.shortened
        starts[str(tp)] = max(start, starts.get(str(tp), 0))
