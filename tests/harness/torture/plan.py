"""The configuration of every process of a run, and the names that the processes share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import txnstore
from tests.harness.history import Bounds, Poll, Snapshot
from tests.harness.history.format import Records, Value
from txnstore.core.model import TopicPartition
from txnstore.snapshot import Snapshot as StoreSnapshot

INPUT, OUTPUT, GROUP = "in", "out", "copy"
STOP = "stop"
#: Seconds; short, so that a pause is soon longer.
TRANSACTION_TIMEOUT = 2.0
VACUUM_GRACE = 30.0
#: Milliseconds for which a process trusts its look at the boundary of a chain; a vacuum waits for twice as long. Its
#: history is VACUUM_GRACE, so entries are deleted soon after, and a process that sleeps for longer finds that.
LEASE_MS = 5_000
#: Milliseconds for which the output keeps its records: compactors delete older ones.
RETENTION_MS = 10_000
#: Seconds after which an idle transactional id expires: a producer that is paused for longer meets that.
ID_EXPIRATION = 5.0


@dataclass(frozen=True)
class Task:
    """One process: its role and its name. It ends when the folder contains a file ``stop``.

    ``number`` of ``count`` of its role determines its partitions. ``drain``: end at the end of the input. ``groups``: a
    job consumes with the first one, and a consumer observes all. ``pause``: the most seconds between two transactions.
    """

    role: str
    name: str
    number: int
    count: int
    url: str
    folder: str
    seed: int
    drain: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    groups: list[str] = field(default_factory=lambda: [GROUP])
    pause: float = 0.0

    @property
    def transactional_id(self) -> str:
        """The name of the task, which all its successive processes share."""
        return f"{self.role}-{self.number}"

    @property
    def history(self) -> Path:
        """The path of its history."""
        return Path(self.folder) / f"{self.name}.jsonl"

    @property
    def over(self) -> bool:
        """Whether the end was requested."""
        return not self.drain and (Path(self.folder) / STOP).exists()

    def to_json(self) -> str:
        """The task as an argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task of an argument."""
        return cls(**json.loads(text))

    def open(self) -> txnstore.Store:
        """The store."""
        return txnstore.open(self.url, self.options or None)


def polled(records: list[txnstore.Record]) -> Poll:
    """Records of a poll in the form of the history."""
    by_partition: dict[str, list[tuple[int, Value]]] = {}
    for record in records:
        assert isinstance(record.value, bytes)
        key = str(TopicPartition(record.topic, record.partition))
        by_partition.setdefault(key, []).append((record.offset, record.value.decode()))
    return Poll({key: tuple(items) for key, items in by_partition.items()})


def observe(store: txnstore.Store, *, records: bool, groups: Sequence[str] = (GROUP,)) -> Snapshot:
    """All ends and positions of the store in one snapshot, with all committed records on request."""
    snapshot = store.snapshot()
    view = snapshot.view
    bounds = {
        str(tp): Bounds(log.log_start, log.last_stable_offset, log.high_watermark)
        for topic in (INPUT, OUTPUT)
        for tp, log in view.partitions_of(topic)
    }
    stored = {name: view.groups[name] for name in groups if name in view.groups}
    offsets: dict[str, dict[str, int]] = {name: {} for name in groups}
    for name, group in stored.items():
        offsets[name] = {str(tp): item.value.offset for tp, item in group.offsets.items()}
    return Snapshot(
        bounds,
        _records(store, snapshot) if records else {},
        offsets,
        tuple(name for name, group in stored.items() if any(group.pending.values())),
    )


def _records(store: txnstore.Store, snapshot: StoreSnapshot) -> dict[str, Records]:
    by_partition: dict[str, list[tuple[int, Value]]] = {}
    for topic in (INPUT, OUTPUT):
        for tp, _ in snapshot.view.partitions_of(topic):
            by_partition[str(tp)] = []
        table = store.scan(topic, columns=["_partition", "_offset", "value"], snapshot=snapshot).to_table()
        for partition, offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
            by_partition[f"{topic}-{partition}"].append((offset, value.decode()))
    return {key: tuple(items) for key, items in by_partition.items()}
