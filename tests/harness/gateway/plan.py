"""The configuration of every client of a run, and what the clients share."""

from __future__ import annotations

from dataclasses import dataclass

import txnstore
from tests.harness.torture.plan import INPUT, Task, observe

#: Milliseconds. A client gives up a request sooner than most pauses end, and repeats it at the other gateway.
REQUEST_TIMEOUT_MS = 5_000
TRANSACTION_TIMEOUT_MS = 15_000
SESSION_TIMEOUT_MS = 6_000
#: Seconds for which a client repeats a call that its library calls retriable.
PATIENCE = 40.0
#: The exit code of a client after an error that is fatal for it.
ENDED = 3


@dataclass(frozen=True)
class ClientTask(Task):
    """A client of the gateways.

    ``kind``: what it does; its role names the library too. ``library``: ``librdkafka``, ``aiokafka`` or ``java``.
    ``bootstrap``: the addresses of the gateways. ``partitions``: of each topic. ``jars``: of the clients in Java.
    """

    kind: str = ""
    library: str = ""
    bootstrap: str = ""
    partitions: int = 1
    jars: str = ""


def is_consumed(store: txnstore.Store, group: str) -> bool:
    """Whether a group has committed offsets after all records of the input."""
    seen = observe(store, records=True, groups=(group,))
    offsets = seen.groups[group]
    return all(
        offset < offsets.get(key, 0)
        for key, records in seen.records.items()
        if key.startswith(f"{INPUT}-")
        for offset, _ in records
    )
