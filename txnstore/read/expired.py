"""Tells a segment that a vacuum has deleted, which only old snapshots need, from one that is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txnstore.connection import Connection
from txnstore.errors import CorruptionError, SnapshotExpiredError, StorageError, TxnStoreError
from txnstore.read.ranged import SegmentNotFoundError


@contextmanager
def expirations(connect: Callable[[], Connection]) -> Iterator[None]:
    """Raise :class:`SnapshotExpiredError` for a missing segment that the newest state does not name.

    Args:
        connect: Returns the connection to the store; called only for a missing segment.
    """
    try:
        yield
    except CorruptionError as error:
        if not isinstance(error.__cause__, SegmentNotFoundError):
            raise
        raise judge_missing_segment(connect(), error) from error.__cause__


def judge_missing_segment(connection: Connection, error: TxnStoreError) -> TxnStoreError:
    """The error to raise for a missing segment; other errors are returned unchanged.

    No vacuum deletes a segment that the newest state names. What it does not name, only an old snapshot can need. It
    costs a look at the heads of the chains, so it must not be called by a thread of the pool for requests.
    """
    not_found = error.__cause__
    if not isinstance(not_found, SegmentNotFoundError):
        return error
    try:
        view = connection.view()
        logs = [log for _, log in view.partitions_of(not_found.tp.topic)] if not_found.tp.topic in view.topics else []
    except (StorageError, CorruptionError) as failure:
        return failure  # Whether it is lost is unknown now.
    except TxnStoreError:
        return error
    # The partition is the one in the key, and other partitions may have rows of the segment, too.
    if any(batch.segment.key == not_found.key for log in logs for batch in log.batches):
        return error
    msg = (
        f"segment {not_found.key} of {not_found.tp} was deleted by a vacuum or an erasure: a compaction, a retention, "
        "an erasure or the deletion of the topic has dropped it since this snapshot was taken"
    )
    return SnapshotExpiredError(msg)
