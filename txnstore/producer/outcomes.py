"""What became of batches: failed ones are remembered until somebody heard of them, callbacks called under no lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.batches import Batch, Upload
from txnstore.producer.transaction_manager import TransactionManager


class Outcomes:
    """The batches that have settled and whose callbacks were not called, and ``failed``, those nobody has heard of."""

    def __init__(self, manager: TransactionManager, accumulator: RecordAccumulator) -> None:
        self._manager = manager
        self._accumulator = accumulator
        self._told: deque[Batch] = deque()
        self.failed: list[tuple[Batch, Exception]] = []

    def fail_and_forget(self, uploads: Sequence[Upload], error: Exception) -> None:
        """The batches of these uploads have failed, and leave the accumulator."""
        self.fail(uploads, error)
        for upload in uploads:  # One that was abandoned before it began has released nothing itself.
            self._accumulator.released(upload)
        self._accumulator.forget(uploads)

    def fail(self, uploads: Sequence[Upload], error: Exception) -> None:
        """The batches of these uploads have failed, unless their outcome is known already."""
        for upload in uploads:
            if not upload.batch.settled:
                upload.batch.fail(error)
                self.failed.append((upload.batch, error))
        self.settled([upload.batch for upload in uploads])

    def settled(self, batches: Sequence[Batch]) -> None:
        """The outcome of these batches is known; :meth:`tell` calls their callbacks."""
        self._told += batches

    def heard(self) -> None:
        """The caller hears of what failed: the next call need not report it.

        Called while it has the sender's turn: what fails after that is for the one who has the turn then.
        """
        self.failed.clear()

    def tell(self) -> None:
        """Call the done callbacks of settled batches, when no lock is held; all of them are settled by then."""
        while not self._manager.forked:
            try:
                batch = self._told.popleft()
            except IndexError:
                return
            try:
                batch.call_back()
            except BaseException:
                self._told.appendleft(batch)
                raise
