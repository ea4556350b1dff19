"""DIF-11 for what removes records: cleans by key, retention, deletions by offset; between transactions of all outcomes.

Three topics: one that is compacted, one that is compacted and deleted from, one with retention only. A broker rolls its
active segment before each clean, because it never cleans that one: a record with a key of its own is written to each
partition.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.compat.broker import RunningBroker
from tests.helpers.random_histories import IDS, KAFKA, MORE, SETTINGS, TIMEOUTS, Histories, running
from tests.protocol.harness.test_differential import Applications

__all__ = ["running"]

HOUR_MS = 3_600_000
#: By topic: its partitions and its policy.
TOPICS = {"t": (2, "compact"), "u": (1, "compact,delete"), "d": (1, "delete")}
#: A batch is a segment of a broker. No clean is due by itself, and a tombstone goes with the second one.
CONFIG = {"segment.bytes": "130", "min.cleanable.dirty.ratio": "1.0", "delete.retention.ms": "0"}
KEYS = "abcde"


class Cleaning(Applications):
    """Producers that write few keys, and everything that removes their records."""

    weights: ClassVar[dict[str, int]] = {
        **dict.fromkeys(Applications.weights, 0),
        "init": 1,
        "send": 14,
        "end": 8,
        "plain": 5,
        "clean": 6,
        "retain": 1,
        "delete_some": 1,
        "compact": 1,
        # A broker that is killed forgets the log starts of the last minute.
        "restart": 0 if KAFKA else 1,
    }
    flushes: ClassVar[bool] = True

    @initialize()
    def create_topic(self) -> None:
        for name, (partitions, policy) in TOPICS.items():
            self.do("create_topic", topic=name, partitions=partitions, config={**CONFIG, "cleanup.policy": policy})
        for identity in (*IDS, None):
            self.do("init", producer=self.new_producer(), id=identity, timeout_ms=TIMEOUTS[-1])

    def record(self) -> dict[str, Any]:
        value = {} if self.rng.random() < 0.25 else {"value": f"v{len(self.ops)}"}
        return {"key": self.rng.choice(KEYS), **value}

    def plain(self) -> None:
        """Records of no producer; those of the topic with retention are of different ages."""
        tp = self.partition()
        record = self.record()
        age = {"age_ms": self.rng.choice([0, 5, 9]) * HOUR_MS} if tp == "d-0" else {}
        self.append(tp, [record["key"], record.get("value")], **age)

    def append(self, tp: str, record: list[str | None], **more: int) -> None:
        who = {"producer_id": -1, "epoch": -1, "sequence": -1}
        self.do("raw_append", **who, partition=tp, records=[record], **more)

    def clean(self) -> None:
        topic = self.rng.choice("ttu")
        if KAFKA or self.rng.random() < 0.7:
            for number in range(TOPICS[topic][0]):
                self.append(f"{topic}-{number}", [f"r{len(self.ops)}", ""])
        self.do("clean", topic=topic)

    def retain(self) -> None:
        """Kafka's retention deletes undecided records, too (D1)."""
        if not KAFKA or not self.log("d-0").open_transactions():
            self.do("retain", topic="d", ms=self.rng.choice([8, 4, 1]) * HOUR_MS)

    def delete_some(self) -> None:
        """Up to the LSO; Kafka deletes more (D1)."""
        tp = self.rng.choice(["u-0", "d-0", "t-0"])
        log = self.log(tp)
        limit = log.last_stable_offset if KAFKA else log.end
        self.do("delete_records", partition=tp, offset=self.rng.randint(0, limit))

    def compact(self) -> None:
        """A merge, which no reader of committed data notices."""
        self.do("compact", topic=self.rng.choice("tud"))


@pytest.mark.slow
@pytest.mark.timeout(0 if MORE else 900)
def test_dif_11_random_cleans_are_the_same_everywhere(
    running: RunningBroker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIF-11, DIF-13: CMP-17 and RET-04 after each clean, retention and deletion."""
    monkeypatch.setattr(Histories, "running", running)
    run_state_machine_as_test(Cleaning, settings=settings(SETTINGS, max_examples=MORE or 8))
