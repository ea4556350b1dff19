"""Histories of the requests and observations of clients, with a checker modelled on Jepsen's Kafka workload.

Record each operation with a :class:`Recorder`, write and read them as JSON lines, and :func:`check` them: the result is
a list of anomalies, which is empty for an exactly-once store:

- ``inconsistent-offsets``, ``duplicate``: two values at one offset, one value at two (JEP-01, JEP-02)
- ``aborted-read``: a reader of committed records returned a failed write, G1a (JEP-03)
- ``lost-write``: readers passed the offset of a committed record, and none returned it (JEP-04)
- ``unseen``: the final read phase did not return a committed record (JEP-05)
- ``poll-skip``, ``nonmonotonic-poll``: a consumer skipped a record, or went back; allowed for subscribers during a
  rebalance (JEP-06, JEP-07); ``int-…``: within one operation (JEP-08)
- ``int-nonmonotonic-send``, ``nonmonotonic-send``: a later send got a lower offset; ``int-send-skip`` is allowed
  (JEP-09, JEP-10)
- ``precommitted-read``: a transaction read its own uncommitted record (JEP-11)
- ``G1c``, ``G1c-process``, ``G1c-realtime``: a cycle of reads (JEP-12); cycles with the order of writes, ``G0`` to
  ``PL-2-cycle``, are allowed (JEP-13)
- ``double-consume``, ``unconsumed``: two committed transactions of a group consumed one input, or none did (JEP-15)
- ``torn-txn``: readers returned a part of a transaction below the LSO (JEP-16)
- ``offsets-data-mismatch``: in one snapshot, a group's position and its job's output differ (JEP-17)
- ``lso-regression``, ``hw-regression``, ``log-start-regression``: an end of a log went back (JEP-18)
- ``stuck-lso``: a transaction is still undecided in the end (JEP-19)
- ``epoch-regression``: a commit or an initialisation without a newer epoch (JEP-20)
- ``zombie-commit``: a commit requested after another process had been initialised succeeded (JEP-21)
- ``wrong-outcome``: the chains record another outcome than the client observed (JEP-22)
- ``compaction-anomaly``: the last record of a key is missing, or a removed record reappeared (JEP-23)
- ``retention-anomaly``: the log start is above the LSO, or a record disappeared (JEP-24)
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
