"""What cleans, retention and deletions leave behind in Kafka at other times than in txnstore: when, not what.

Each method is a rule of the whitelist. A rule allows a difference only as far as it explains it: a record that Kafka
has longer must be one that its rule keeps, and everything else in the partition must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.differential.difference import Difference
from tests.harness.differential.trace import Op

Log = Mapping[str, Any]
Row = list[Any]
RECORDS = ("committed", "uncommitted")


class Upkeep:
    """Follows one comparison, by partition. ``from_broker``: the expectations are those of Kafka."""

    def __init__(self, *, from_broker: bool) -> None:
        self._from_broker = from_broker
        #: Whether a clean or a compaction has run, and whether anything has removed records.
        self._compacted = False
        self._removed = False
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
        self._expected, self._actual = (told.get("state", {}).get("partitions", {}) for told in (expected, actual))
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

    def dropped(self, found: Difference) -> bool:
        """Only aborted records below the LSO, or entries of the index, are missing, and nothing was added."""
        if not self._removed or found.path[-1] not in {"aborted", "uncommitted"}:
            return False
        missing = [row for row in found.expected if row not in found.actual]
        if [row for row in found.expected if row not in missing] != found.actual:
            return False
        if found.path[-1] == "aborted":
            start = self._actual[found.path[-2]]["log_start"]
            return self._compacted or all(marker < start for _, _, marker, _ in missing)
        log = self._expected[found.path[-2]]
        return self._compacted and all(row[0] < log["lso"] and row not in log["committed"] for row in missing)

    def markers(self, found: Difference) -> bool:
        """Kafka has some of the markers only."""
        if not (self._from_broker and self._removed and found.path[-1] == "markers"):
            return False
        rest = iter(found.actual)
        return all(item in rest for item in found.expected)

    def tombstones(self, found: Difference) -> bool:
        """Kafka has more tombstones: those that a clean of it left out, and nothing of their keys before them."""
        surplus = self._surplus(found)
        return bool(surplus) and all(self._is_late(row, found) for row in surplus)

    def active_segment(self, found: Difference) -> bool:
        """Kafka has more records: those that its active segment superseded at the time of the last clean."""
        surplus = self._surplus(found)
        if not surplus or found.path[-2] not in self._active:
            return False
        offset, key, _ = self._active[found.path[-2]]
        return all((row[1] == key and row[0] < offset) or self._is_late(row, found) for row in surplus)

    def _is_late(self, row: Row, found: Difference) -> bool:
        before = any(other[1] == row[1] and other[0] < row[0] for other in found.actual)
        return row[0] in self._late.get(found.path[-2], ()) and not before

    def _surplus(self, found: Difference) -> list[Row]:
        """The rows that only Kafka has, if there are no others."""
        if not (self._from_broker and self._compacted and found.path[-1] in RECORDS):
            return []
        surplus = [row for row in found.expected if row not in found.actual]
        return surplus if [row for row in found.expected if row not in surplus] == found.actual else []

    # The log start ----------------------------------------------------------------------------------------------------

    def gap(self, found: Difference) -> bool:
        """No record is between the two log starts."""
        logs = self._logs(found)
        if logs is None or found.path[-1] != "log_start":
            return False
        low, high = sorted(log["log_start"] for log in logs)
        return not any(low <= row[0] < high for log in logs for row in log["uncommitted"])

    def marker(self, found: Difference) -> bool:
        """Kafka's log begins with a marker, which is younger than the records around it."""
        logs = self._logs(found)
        if logs is None or logs[0]["log_start"] >= logs[1]["log_start"]:
            return False
        return _same_above(found, logs) and any(row[0] == logs[0]["log_start"] for row in logs[0]["markers"])

    def undecided(self, found: Difference) -> bool:
        """Kafka has deleted records of an open transaction; here they were kept at that time."""
        logs = self._logs(found)
        if logs is None or found.path[-2] not in self._undecided:
            return False
        of_lso = found.path[-1] == "lso" and logs[0]["lso"] == logs[0]["log_start"]
        return of_lso or _same_above(found, logs)

    def joined(self, found: Difference) -> bool:
        """Kafka's retention has deleted more: a clean here has joined the oldest records with younger ones."""
        logs = self._logs(found)
        later = logs is not None and self._compacted and logs[0]["log_start"] > logs[1]["log_start"]
        return logs is not None and later and _same_above(found, logs)

    def _logs(self, found: Difference) -> tuple[Log, Log] | None:
        """The logs in Kafka and here, for a difference in a partition after records were removed."""
        if not (self._from_broker and self._removed) or found.path[:2] != ("state", "partitions"):
            return None
        name = found.path[2]
        return (self._expected[name], self._actual[name]) if len(found.path) == 4 and name in self._actual else None


def _same_above(found: Difference, logs: tuple[Log, Log]) -> bool:
    """Whether a difference is one of log starts, or of records below the higher one."""
    high = max(log["log_start"] for log in logs)
    if found.path[-1] in RECORDS:
        return [row for row in found.expected if row[0] >= high] == [row for row in found.actual if row[0] >= high]
    return found.path[-1] == "log_start"
