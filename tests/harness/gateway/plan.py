"""The configuration of every client of a run, and what the clients share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import txnstore
from tests.harness.torture.plan import INPUT, Task, observe

#: Milliseconds. A client gives up a request sooner than most pauses end, and repeats it at the other gateway.
REQUEST_TIMEOUT_MS = 5_000
TRANSACTION_TIMEOUT_MS = 15_000
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 1_000
#: Seconds for which a client repeats a call that its library calls retriable.
PATIENCE = 40.0
#: The exit code of a client after an error that is fatal for it.
ENDED = 3


@dataclass(frozen=True)
class ClientTask(Task):
    """A client of the gateways.

    ``kind``: what it does; its role names the library too. ``library``: ``librdkafka``, ``aiokafka``, ``java``, or
    ``spark``, which uses the store itself. ``bootstrap``: the addresses of the gateways. ``partitions``: of each topic.
    ``jars``: of the clients in Java. ``protocol``: of its groups, ``classic`` or ``consumer`` (KIP-848). ``debug``:
    the contexts of librdkafka that it logs.
    """

    kind: str = ""
    library: str = ""
    bootstrap: str = ""
    partitions: int = 1
    jars: str = ""
    protocol: str = "classic"
    debug: str = ""

    @property
    def over(self) -> bool:
        """Whether the end was requested, or its group has consumed the input."""
        return consumed(Path(self.folder), self.groups[0]).exists() if self.drain else super().over

    @property
    def calls(self) -> Path:
        """The file that names the call that it is in."""
        return Path(self.folder) / f"{self.name}.call"


def unconsumed(store: txnstore.Store, groups: Sequence[str]) -> list[str]:
    """The groups whose offsets are not after all committed records of the input."""
    seen = observe(store, records=True, groups=groups)
    ends = {
        key: records[-1][0] for key, records in seen.records.items() if key.startswith(f"{INPUT}-") and len(records) > 0
    }
    return [group for group in groups if any(offset >= seen.groups[group].get(key, 0) for key, offset in ends.items())]


def consumed(folder: Path, group: str) -> Path:
    """The file that tells the jobs that drain that their group has consumed the input."""
    return folder / f"{group}.consumed"
