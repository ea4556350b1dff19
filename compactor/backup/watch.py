"""Keeps a backup a few seconds behind a store: round after round, each copies what was committed since the last one."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass

from txnstore.compactor.backup.backup import BackupReport, Copy
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, StorageError, TxnStoreError
from txnstore.storage.base import ObjectStore
from txnstore.validation import check_integer, check_seconds

_LOG = logging.getLogger(__name__)

_MAX_INTERVAL = 86_400


@dataclass(frozen=True, slots=True)
class BackupRound:
    """A round of :meth:`txnstore.Store.backup_rounds`.

    Attributes:
        number: The number of the round, from 1.
        report: The cut that is complete in the backup; None if the round failed.
        behind: The age of the newest complete cut of this process when the round ended, in seconds; None without one.
        took: The duration in seconds.
        error: Why the round failed; None if it did not. The next one tries again.
    """

    number: int
    report: BackupReport | None
    behind: float | None
    took: float
    error: TxnStoreError | None = None


def watch(
    connection: Connection, target: ObjectStore, *, interval: float = 5.0, rounds: int | None = None
) -> Generator[BackupRound, None, None]:
    """Copy what was committed since the last round; yields each round when it ends, then pauses.

    The first round, and one in each hour, compares the listings of both places, as :func:`txnstore.compactor.backup`
    does; the others read the new entries only. A storage that fails, or damage, ends a round, and the next one tries
    again.

    Args:
        connection: The connection to the store, of which nothing is written.
        target: Where the backup is, or an empty place.
        interval: The pause between two rounds, in seconds: at most a day.
        rounds: The number of rounds; None: until the caller stops.

    Raises:
        InvalidConfigError: An argument is not valid.
        BackupError: The target is no backup of this store, or is none any more.
        AuthorizationError: The principal may not read a topic.
    """
    check_seconds("interval", interval, above=0, most=_MAX_INTERVAL)
    if rounds is not None:
        check_integer("rounds", rounds, 1)
    return _run_rounds(Copy(connection, target), interval, rounds)


def _run_rounds(copy: Copy, interval: float, rounds: int | None) -> Generator[BackupRound, None, None]:
    """Yield each round, also one that failed, with its error; sleep between two."""
    runtime, number = copy.connection.runtime, 0
    taken_at: int | None = None
    while rounds is None or number < rounds:
        number += 1
        began, report, error = runtime.monotonic(), None, None
        try:
            report = copy.run_later()
            taken_at = runtime.monotonic() - round(report.behind * 1000)
        except (StorageError, CorruptionError) as problem:
            _LOG.warning("round of backup failed", extra={"error": str(problem)})
            error = problem
        now = runtime.monotonic()
        behind = (now - taken_at) / 1000 if taken_at is not None else None
        yield BackupRound(number, report, behind, (now - began) / 1000, error)
        if rounds is None or number < rounds:
            runtime.sleep(interval)
