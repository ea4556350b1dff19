"""A consumer of an application: its positions, and what a poll returns.

A poll returns everything that can be read, so that it does not depend on the sizes of fetches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.harness.model.broker import Broker, Offsets
from tests.harness.model.group import Claim
from tests.harness.model.log import RefusedError


@dataclass
class Position:
    """The next offset to read of an assigned partition; None until it is needed. ``want``: an end of the log."""

    offset: int | None = None
    want: str | None = None
    paused: bool = False


class Consumer:
    """A consumer with or without a group; ``reset`` is its policy: ``earliest``, ``latest`` or ``none``."""

    def __init__(self, broker: Broker, group: str | None, isolation: str, reset: str, *, auto_commit: bool) -> None:
        self.broker = broker
        self.group = group
        self.isolation = isolation
        self.reset = reset
        self.auto_commit = auto_commit
        self.assigned: dict[str, Position] = {}
        self.topics: list[str] = []
        self.member: Claim = Claim()

    def assign(self, partitions: list[str]) -> None:
        """Read these partitions; those that were assigned before keep their positions."""
        self.assigned = {tp: self.assigned.get(tp, Position()) for tp in partitions}

    def subscribe(self, topics: list[str]) -> None:
        """Read all partitions of the topics, as the only member of the group."""
        self.topics = topics
        self.assign(sorted(tp for tp in self.broker.logs if tp.rpartition("-")[0] in topics))

    def seek(self, partition: str, offset: int) -> None:
        """Continue at an offset."""
        position = self.assigned[partition]
        position.offset, position.want = offset, None

    def seek_to(self, partition: str, end: str) -> None:
        """Continue at the ``earliest`` or ``latest`` offset."""
        position = self.assigned[partition]
        position.offset, position.want = None, end

    def pauses(self, partition: str, *, paused: bool) -> None:
        """Whether polls leave a partition out."""
        self.assigned[partition].paused = paused

    def waits(self) -> bool:
        """Whether it needs a committed offset that an open transaction may still replace (KIP-447)."""
        if self.group is None or self.group not in self.broker.groups:
            return False
        group = self.broker.groups[self.group]
        undetermined = (
            tp for tp, position in self.assigned.items() if position.offset is None and position.want is None
        )
        return any(group.unstable(tp) for tp in undetermined)

    def position(self, partition: str) -> int:
        """The next offset to read."""
        position = self.assigned[partition]
        position.offset, position.want = self._located(partition), None
        return position.offset

    def _located(self, partition: str) -> int:
        position, committed = self.assigned[partition], None
        if position.offset is not None:
            return position.offset
        if position.want is None and self.group is not None and self.group in self.broker.groups:
            committed = self.broker.groups[self.group].committed(partition)
        return self._end(partition, position.want or self.reset) if committed is None else committed

    def strays(self, partition: str) -> bool:
        """Whether its position is outside of the log, so that the next poll applies the policy."""
        try:
            position = self._located(partition)
        except RefusedError:
            return False
        log = self.broker.logs[partition]
        return not log.start <= position <= log.end

    def _in_range(self, partition: str) -> int:
        """The position of a poll, which applies the policy to one outside of the log."""
        assigned, position, log = self.assigned[partition], self.position(partition), self.broker.logs[partition]
        if not log.start <= position <= log.end:
            assigned.offset = position = self._end(partition, self.reset, error="OFFSET_OUT_OF_RANGE")
        return position

    def _end(self, partition: str, which: str, error: str = "NO_OFFSET") -> int:
        if which == "none":
            raise RefusedError(error)
        log = self.broker.logs[partition]
        return log.start if which == "earliest" else log.limit(self.isolation)

    def poll(self) -> dict[str, list[list[Any]]]:
        """All records from the positions on, by partition: the offset, and what a record consists of."""
        for tp in self.assigned:
            self.position(tp)
        polled: dict[str, list[list[Any]]] = {}
        for tp, position in self.assigned.items():
            if position.paused:
                continue
            start, log = self._in_range(tp), self.broker.logs[tp]
            rows = [[offset, *record] for offset, record in log.records(self.isolation) if offset >= start]
            if rows:
                polled[tp] = rows
            position.offset = max(start, log.limit(self.isolation))
        return dict(sorted(polled.items()))

    def commit(self, offsets: dict[str, int] | None = None) -> None:
        """Commit positions, by default those of all partitions that have one."""
        if offsets is None:
            offsets = {tp: position.offset for tp, position in self.assigned.items() if position.offset is not None}
        if offsets and self.group is not None:
            self.broker.commit_offsets(Offsets(self.group, offsets, self.member))

    def offsets_for_times(self, times: dict[str, int]) -> dict[str, list[int] | None]:
        """Offset and time of the first visible record at or after each time."""
        offsets: dict[str, list[int] | None] = {}
        for tp, time in times.items():
            rows = self.broker.logs[tp].records(self.isolation)
            offsets[tp] = next(([offset, record[2]] for offset, record in rows if record[2] >= time), None)
        return offsets

    def close(self) -> None:
        """Commit if that is automatic."""
        if self.auto_commit:
            self.commit()
