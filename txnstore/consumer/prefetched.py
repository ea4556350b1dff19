"""The records that an iteration has taken ahead and not returned yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnstore.consumer.fetcher import PolledRows
from txnstore.consumer.flow import Flow
from txnstore.consumer.subscription import AssignedPartition
from txnstore.core.model import TopicPartition
from txnstore.read.records import Record


@dataclass(slots=True)
class _PrefetchedRecord:
    """A record, its flow, and the position of the flow after the record."""

    part: AssignedPartition
    flow: Flow
    record: Record
    position_after: int

    @property
    def is_next(self) -> bool:
        """Whether the record is still the next one: its partition was not sought, revoked, deleted or paused."""
        return self.part.flow is self.flow and not self.part.paused


class PrefetchedRecords:
    """Returns the records of one poll one by one.

    The position of a partition is always the one after its last returned record, so a commit inside the loop commits
    what the loop has returned.

    Args:
        polled_rows: The rows of the poll. The positions are moved back before them.
        assigned: The partitions of the consumer.
    """

    def __init__(self, polled_rows: Iterable[PolledRows], assigned: Mapping[TopicPartition, AssignedPartition]) -> None:
        items: list[_PrefetchedRecord] = []
        first_offsets: dict[Flow, int] = {}
        last_items: dict[Flow, _PrefetchedRecord] = {}
        for rows in polled_rows:
            part = assigned[rows.tp]
            flow = part.flow
            assert flow is not None  # it has returned rows
            for record in rows.records():
                item = _PrefetchedRecord(part, flow, record, record.offset + 1)
                items.append(item)
                first_offsets.setdefault(flow, record.offset)
                last_items[flow] = item
        # The poll has moved each position behind its rows, and a gap after them: the last row moves it there again.
        for flow, item in last_items.items():
            item.position_after = flow.position
        for flow, offset in first_offsets.items():
            flow.position = offset
        #: The records in their order; those from ``_index`` on were not returned.
        self._items, self._index = items, 0

    def next(self) -> Record | None:
        """Return the next record, or None."""
        while self._index < len(self._items):
            prefetched = self._items[self._index]
            if not prefetched.is_next:
                self._drop_fetched(prefetched)
                self._index += 1
                continue
            flow = prefetched.flow
            record = prefetched.record
            next_index = self._index + 1
            # Position and index are stored after all calls, so that an interrupt cannot advance only one.
            flow.position, self._index = prefetched.position_after, next_index
            return record
        return None

    def put_back(self) -> None:
        """Leave the records that were not returned to the next poll."""
        for prefetched in self._items[self._index :]:
            self._drop_fetched(prefetched)
        self._items, self._index = [], 0

    def _drop_fetched(self, prefetched: _PrefetchedRecord) -> None:
        if prefetched.part.flow is prefetched.flow:
            prefetched.part.stop()
