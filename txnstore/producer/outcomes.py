"""Outcomes of batches: keeps failures until a call reports them, and calls the done callbacks without a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from txnstore.errors import TransactionAbortedError
from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.batches import Batch, Upload
from txnstore.producer.transaction_manager import TransactionManager


class Outcomes:
    """Settled batches whose callbacks have not been called, and failures that no call has reported.

    Attributes:
        failed: The failed batches that no call of the application has reported yet, with their errors.
    """

    def __init__(self, manager: TransactionManager, accumulator: RecordAccumulator) -> None:
        self._manager = manager
        self._accumulator = accumulator
        self._told: deque[Batch] = deque()
        self.failed: list[tuple[Batch, Exception]] = []

    def fail_and_forget(self, uploads: Sequence[Upload], error: Exception) -> None:
        """Fail the batches of these uploads and remove them from the accumulator."""
        self.fail(uploads, error)
        for upload in uploads:  # An upload that was abandoned before it began has not left the buffer.
            self._accumulator.released(upload)
        self._accumulator.forget(uploads)

    def fail(self, uploads: Sequence[Upload], error: Exception) -> None:
        """Fail the batches of these uploads that are not settled."""
        for upload in uploads:
            if not upload.batch.settled:
                upload.batch.fail(error)
                self.failed.append((upload.batch, error))
        self.settled([upload.batch for upload in uploads])

    def settled(self, batches: Sequence[Batch]) -> None:
        """Queue the callbacks of settled batches for :meth:`tell`."""
        self._told += batches

    def heard(self) -> None:
        """Forget the failures that the current call reports. The caller holds the sender's turn.

        A failure after that is reported by the next call.
        """
        self.failed.clear()

    def tell(self) -> None:
        """Call the done callbacks of settled batches. The caller must hold no lock."""
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


def failure_of(error: BaseException) -> Exception:
    """The error of records that ``error`` keeps from being written; an interrupt is replaced by an exception."""
    if isinstance(error, Exception):
        return error
    return TransactionAbortedError("the call that sent this record was interrupted before the record was written")
