"""Whether a store is maintained, as its topics need it."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.admin.upkeep import COMMAND, describe_neglect
from txnstore.chain.maintained import read_maintained
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.connection import Connection
from txnstore.core.view import View
from txnstore.errors import CorruptionError, StorageError
from txnstore.phrases import counted, duration


def maintenance_findings(connection: Connection, view: View) -> Iterator[Finding]:
    """Report settings of topics that no process applies; nothing for a store that was never maintained, and need not.

    A GET, and the storage's clock if the store was maintained.
    """
    try:
        done = read_maintained(connection.objects, connection.keys)
        now = connection.objects.now_ms() if done else connection.runtime.clock()
    except StorageError as error:
        yield Finding("maintenance", "recent", Severity.NOTE, f"whether the store is maintained is unknown: {error}")
        return
    neglected: list[str] = []
    for topic in view.sorted_topics():
        try:
            text = describe_neglect(topic, done, now)
        except CorruptionError:
            continue  # The check of compactions reports it.
        if text:
            neglected.append(text)
    if neglected:
        others = f"; so it is with {counted(len(neglected) - 1, 'other topic')}" if len(neglected) > 1 else ""
        yield Finding("maintenance", "recent", Severity.WARN, f"{neglected[0]}{others}", COMMAND)
    elif done:
        message = f"the store was maintained {duration(now - max(done.values()))} ago"
        yield Finding("maintenance", "recent", Severity.OK, message)
