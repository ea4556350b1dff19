"""What cleans, retention and deletions leave behind in Kafka at other times than in txnstore: when, not what.

Each method is a rule of the whitelist. A rule allows a difference only as far as it explains it: a record that Kafka
has longer must be one that its rule keeps, and everything else in the partition must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.differential.difference import Difference
from tests.harness.traces import Op

Log = Mapping[str, Any]
Row = list[Any]
RECORDS = ("committed", "uncommitted")


class Upkeep:
    """Follows one comparison, by partition. ``from_broker``: the expectations are those of Kafka.

    ``merges``: small commits are merged in the background, so a compaction may have run at any time (0033).
    """

    def __init__(self, *, from_broker: bool, merges: bool = False) -> None:
        self._from_broker = from_broker
        #: Whether a clean or a compaction may have run, and whether anything may have removed records.
        self._compacted = merges
        self._removed = merges
        #: The last record at the time of the last clean: Kafka has it in its active segment.
        self._active: dict[str, Row] = {}
        #: The end of what Kafka's last clean read, and the tombstones that a clean left out.
        self._cleaned: dict[str, int] = {}
        self._late: dict[str, set[int]] = {}
        #: Where Kafka has deleted records of an open transaction (D1).
        self._undecided: set[str] = set()
        self._expected: dict[str, Log] = {}
        self._actual: dict[str, Log] = {}

    def step(self, op: Op, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> None:
        """Follow an operation and what two stores show after it."""
        self._compacted = self._compacted or op["op"] in {"clean", "compact"}
        self._removed = self._removed or op["op"] in {"clean", "compact", "delete_records", "retain"}
        if "state" not in expected:
            return
        self._expected, self._actual = (
            observed.get("state", {}).get("partitions", {}) for observed in (expected, actual)
        )
        for name, log in self._expected.items() if self._from_broker else ():
            ours = self._actual.get(name)
            if op["op"] == "clean" and log["uncommitted"]:
                self._clean(name, log)
            if ours is None or log["log_start"] <= ours["log_start"]:
                self._undecided.discard(name)
            elif op["op"] == "retain" and ours["log_start"] == ours["lso"] and ours["lso"] < ours["hw"]:
                self._undecided.add(name)

    def _clean(self, name: str, log: Log) -> None:
        """Kafka leaves the last batch alone, and does nothing if there is nothing new before it and the LSO."""
        limit = min(log["lso"], log["hw"] - 1)
        first = limit if limit > self._cleaned.get(name, 0) else 0
        late = {row[0] for row in log["uncommitted"] if row[2] is None and row[0] >= first}
        self._late[name] = self._late.get(name, set()) | late
        self._cleaned[name], self._active[name] = limit, log["uncommitted"][-1]

    # The records ------------------------------------------------------------------------------------------------------

    def dropped(self, difference: Difference) -> bool:
        """Only aborted records below the LSO, or entries of the index, are missing, and nothing was added."""
        if not self._removed or difference.path[-1] not in {"aborted", "uncommitted"}:
            return False
        missing = [row for row in difference.expected if row not in difference.actual]
        if [row for row in difference.expected if row not in missing] != difference.actual:
            return False
        if difference.path[-1] == "aborted":
            start = self._actual[difference.path[-2]]["log_start"]
            return self._compacted or all(marker < start for _, _, marker, _ in missing)
        log = self._expected[difference.path[-2]]
        return self._compacted and all(row[0] < log["lso"] and row not in log["committed"] for row in missing)

    def markers(self, difference: Difference) -> bool:
        """Kafka has some of the markers only."""
        if not (self._from_broker and self._removed and difference.path[-1] == "markers"):
            return False
        rest = iter(difference.actual)
        return all(item in rest for item in difference.expected)

    def tombstones(self, difference: Difference) -> bool:
        """Kafka has more tombstones: those that a clean of it left out, and nothing of their keys before them."""
        surplus = self._surplus(difference)
        return bool(surplus) and all(self._is_late(row, difference) for row in surplus)

    def active_segment(self, difference: Difference) -> bool:
        """Kafka has more records: those that its active segment superseded at the time of the last clean."""
        surplus = self._surplus(difference)
        if not surplus or difference.path[-2] not in self._active:
            return False
        offset, key, _ = self._active[difference.path[-2]]
        return all((row[1] == key and row[0] < offset) or self._is_late(row, difference) for row in surplus)

    def _is_late(self, row: Row, difference: Difference) -> bool:
        before = any(other[1] == row[1] and other[0] < row[0] for other in difference.actual)
        return row[0] in self._late.get(difference.path[-2], ()) and not before

    def _surplus(self, difference: Difference) -> list[Row]:
        """The rows that only Kafka has, if there are no others."""
        if not (self._from_broker and self._compacted and difference.path[-1] in RECORDS):
            return []
        surplus = [row for row in difference.expected if row not in difference.actual]
        return surplus if [row for row in difference.expected if row not in surplus] == difference.actual else []

    # The log start ----------------------------------------------------------------------------------------------------

    def gap(self, difference: Difference) -> bool:
        """No record is between the two log starts."""
        logs = self._logs(difference)
        if logs is None or difference.path[-1] != "log_start":
            return False
        low, high = sorted(log["log_start"] for log in logs)
        return not any(low <= row[0] < high for log in logs for row in log["uncommitted"])

    def marker(self, difference: Difference) -> bool:
        """Kafka's log begins with a marker, which is younger than the records around it."""
        logs = self._logs(difference)
        if logs is None or logs[0]["log_start"] >= logs[1]["log_start"]:
            return False
        return _same_above(difference, logs) and any(row[0] == logs[0]["log_start"] for row in logs[0]["markers"])

    def undecided(self, difference: Difference) -> bool:
        """Kafka has deleted records of an open transaction; here they were kept at that time."""
        logs = self._logs(difference)
        if logs is None or difference.path[-2] not in self._undecided:
            return False
        of_lso = difference.path[-1] == "lso" and logs[0]["lso"] == logs[0]["log_start"]
        return of_lso or _same_above(difference, logs)

    def joined(self, difference: Difference) -> bool:
        """Kafka's retention has deleted more: a clean here has joined the oldest records with younger ones."""
        logs = self._logs(difference)
        later = logs is not None and self._compacted and logs[0]["log_start"] > logs[1]["log_start"]
        return logs is not None and later and _same_above(difference, logs)

    def _logs(self, difference: Difference) -> tuple[Log, Log] | None:
        """The logs in Kafka and here, for a difference in a partition after records were removed."""
        if not (self._from_broker and self._removed) or difference.path[:2] != ("state", "partitions"):
            return None
        name = difference.path[2]
        return (
            (self._expected[name], self._actual[name]) if len(difference.path) == 4 and name in self._actual else None
        )


def _same_above(difference: Difference, logs: tuple[Log, Log]) -> bool:
    """Whether a difference is one of log starts, or of records below the higher one."""
    high = max(log["log_start"] for log in logs)
    if difference.path[-1] in RECORDS:
        return [row for row in difference.expected if row[0] >= high] == [
            row for row in difference.actual if row[0] >= high
        ]
    return difference.path[-1] == "log_start"
