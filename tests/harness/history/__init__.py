"""Histories of the requests and observations of clients, with a checker modelled on Jepsen's Kafka workload.

Record each operation with a :class:`Recorder`, write and read them as JSON lines, and :func:`check` them: the result is
a list of anomalies, which is empty for an exactly-once store. ``docs/internals/testing.md`` has the list of anomalies.
"""

from __future__ import annotations

from tests.harness.history.checker import check, find
from tests.harness.history.format import (
    Assign,
    Bounds,
    Decision,
    Event,
    History,
    Offsets,
    Operation,
    Poll,
    Send,
    Snapshot,
    Type,
    history_of,
)
from tests.harness.history.index import Anomaly
from tests.harness.history.lines import Recorder, from_line, read_history, to_file, to_line, write_history
from tests.harness.history.outcomes import indeterminate, outcome_of_call, outcome_of_txn

__all__ = [
    "Anomaly",
    "Assign",
    "Bounds",
    "Decision",
    "Event",
    "History",
    "Offsets",
    "Operation",
    "Poll",
    "Recorder",
    "Send",
    "Snapshot",
    "Type",
    "check",
    "find",
    "from_line",
    "history_of",
    "indeterminate",
    "outcome_of_call",
    "outcome_of_txn",
    "read_history",
    "to_file",
    "to_line",
    "write_history",
]
