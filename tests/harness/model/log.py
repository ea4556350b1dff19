"""One partition: a list of batches and control markers, with the values computed from it.

Each record and each marker takes one offset. Only the log start and the index of aborted transactions are stored
besides the list; an entry of the index contains the LSO at the time of the abort (LSO-06).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Batches that a producer's window remembers (SEQ-03).
WINDOW = 5
#: Sequences wrap after this one (SEQ-05).
MAX_SEQUENCE = 2**31 - 1
NO_PRODUCER = -1

#: A key and a value; and, where a history gives them, a timestamp and headers.
Record = tuple[Any, ...]
DAY_MS = 24 * 60 * 60 * 1000


class RefusedError(Exception):
    """A call that is refused; ``error`` is the name that Kafka's ``Errors`` gives the reason."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class Batch:
    """Records that were appended together; or one control marker with the outcome of a transaction.

    A clean puts None in the place of a record, so that the others keep their offsets (CMP-01).
    """

    base: int
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    sequence: int = NO_PRODUCER
    transactional: bool = False
    records: list[Record | None] = field(default_factory=list)
    marker: str | None = None
    timestamp: int = 0

    @property
    def size(self) -> int:
        """How many offsets it takes."""
        return 1 if self.marker else len(self.records)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (SEQ-19)."""
        return (self.sequence + len(self.records) - 1) % (MAX_SEQUENCE + 1)

    @property
    def end(self) -> int:
        """The offset after its last one."""
        return self.base + self.size

    @property
    def first(self) -> int | None:
        """The offset of the first record that is left; None if there is none."""
        return next((self.base + place for place, record in enumerate(self.records) if record is not None), None)


class Log:
    """A partition log."""

    def __init__(self, config: Mapping[str, str] | None = None) -> None:
        self.config = config if config is not None else {}
        self.policy = self.config.get("cleanup.policy", "delete")
        self.start = 0
        self.batches: list[Batch] = []
        #: The end of the last clean, and the delete horizon of each tombstone that a clean has read.
        self.cleaned = 0
        self.horizons: dict[int, int] = {}
        #: Producer id, first offset, offset of the abort marker, LSO at the time of the abort.
        self.aborted: list[tuple[int, int, int, int]] = []

    @property
    def end(self) -> int:
        """The high watermark: the offset after the last one."""
        return self.batches[-1].end if self.batches else 0

    # Transactions -----------------------------------------------------------------------------------------------------

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each producer id's transaction that has no marker yet."""
        first_offsets: dict[int, int] = {}
        for batch in self.batches:
            if batch.marker:
                first_offsets.pop(batch.producer_id, None)
            elif batch.transactional:
                first_offsets.setdefault(batch.producer_id, batch.base)
        return first_offsets

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the high watermark (LSO-01)."""
        return max(self.start, min(self.open_transactions().values(), default=self.end))

    def outcome(self, batch: Batch) -> str | None:
        """The outcome of a transactional batch, from the next marker of its producer; None while there is none."""
        later = (other for other in self.batches if other.base > batch.base)
        return next((other.marker for other in later if other.marker and other.producer_id == batch.producer_id), None)

    def mark(self, producer_id: int, epoch: int, outcome: str) -> None:
        """Write the control marker of a transaction; it takes an offset, also without data (CTL-02, END-09)."""
        first = self.open_transactions().get(producer_id)
        marker = Batch(self.end, producer_id, epoch, marker=outcome)
        self.batches.append(marker)
        if outcome == "ABORT" and first is not None:
            self.aborted.append((producer_id, first, marker.base, self.last_stable_offset))

    # Appending --------------------------------------------------------------------------------------------------------

    def append(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        records: list[Record],
        *,
        transactional: bool,
        timestamp: int = 0,
    ) -> tuple[Batch, bool]:
        """Append a batch that :meth:`check` accepted; returns it, and whether it is a duplicate."""
        duplicate = self.check(producer_id, epoch, sequence, len(records), transactional=transactional)
        if duplicate is not None:
            return duplicate, True
        batch = Batch(self.end, producer_id, epoch, sequence, transactional, list(records), timestamp=timestamp)
        self.batches.append(batch)
        return batch, False

    def epoch_of(self, producer_id: int) -> int | None:
        """The epoch of the last batch or marker of a producer id in this log; a marker bumps it (SEQ-09)."""
        return next((batch.epoch for batch in reversed(self.batches) if batch.producer_id == producer_id), None)

    def window(self, producer_id: int) -> list[Batch]:
        """The last five batches of the current epoch, by which a retry is recognised (SEQ-03, SEQ-06)."""
        epoch = self.epoch_of(producer_id)
        mine = (batch for batch in self.batches if batch.producer_id == producer_id and not batch.marker)
        return [batch for batch in mine if batch.epoch == epoch][-WINDOW:]

    def check(self, producer_id: int, epoch: int, sequence: int, records: int, *, transactional: bool) -> Batch | None:
        """Refuse a batch, or return the one that it repeats (SEQ-01 to SEQ-09)."""
        if producer_id == NO_PRODUCER:
            return None
        current = self.epoch_of(producer_id)
        if current is None:
            # The state of an idempotent producer may have expired, so any sequence is accepted (SEQ-08).
            expected = 0 if transactional else sequence
        elif epoch < current:
            raise RefusedError("INVALID_PRODUCER_EPOCH")
        elif epoch > current:
            expected = 0
        else:
            window = self.window(producer_id)
            last = (sequence + records - 1) % (MAX_SEQUENCE + 1)
            for batch in window:
                if (batch.sequence, batch.last_sequence) == (sequence, last):
                    return batch
            expected = (window[-1].last_sequence + 1) % (MAX_SEQUENCE + 1) if window else 0
        if sequence != expected:
            raise RefusedError("OUT_OF_ORDER_SEQUENCE_NUMBER")
        return None

    # Reading ----------------------------------------------------------------------------------------------------------

    def limit(self, isolation: str) -> int:
        """The offset at which a reader stops (LSO-11)."""
        return self.last_stable_offset if isolation == "read_committed" else self.end

    def visible(self, isolation: str) -> list[tuple[int, str | None, str | None]]:
        """Offset, key and value of the records that a reader gets, from the log start on."""
        return [(offset, record[0], record[1]) for offset, record in self.records(isolation)]

    def records(self, isolation: str) -> list[tuple[int, Record]]:
        """Offset and record of what a reader gets, from the log start on."""
        return [
            (batch.base + place, record)
            for batch in self.batches
            if not (isolation == "read_committed" and batch.transactional and self.outcome(batch) == "ABORT")
            for place, record in enumerate(batch.records)
            if record is not None and self.start <= batch.base + place < self.limit(isolation)
        ]

    def fetch(self, offset: int, isolation: str) -> list[tuple[int, str | None, str | None]]:
        """The records that a reader gets from an offset on; an offset outside of the log is an error (LSO-12)."""
        if not self.start <= offset <= self.end:
            raise RefusedError("OFFSET_OUT_OF_RANGE")
        return [record for record in self.visible(isolation) if record[0] >= offset]

    def delete_before(self, offset: int) -> None:
        """Move the log start, if it is above the present one; -1 is the end.

        An offset above an undecided record is refused, whereas Kafka deletes it (D1); it has no error for that. An
        entry of the index of aborted transactions goes with its marker (RET-08).
        """
        if "delete" not in self.policy:
            raise RefusedError("POLICY_VIOLATION")
        start = self.end if offset == -1 else offset
        if not 0 <= start <= self.end:
            raise RefusedError("OFFSET_OUT_OF_RANGE")
        if start > self.last_stable_offset:
            raise RefusedError("UndecidedRecordsError")
        self._move_start(start)

    def _move_start(self, start: int) -> None:
        self.start = max(self.start, start)
        self.aborted = [entry for entry in self.aborted if entry[2] >= self.start]

    # Upkeep -----------------------------------------------------------------------------------------------------------

    def clean(self, now: int, lag_ms: int = 0) -> None:
        """Keep the newest committed record of each key, and no aborted one (CMP-02, CMP-05, CMP-06, CMP-08, CMP-19).

        Kafka leaves the active segment alone; here it is cleaned, too.
        """
        young = [item for item in self.batches if item.records and lag_ms and item.timestamp > now - lag_ms]
        limit = min([self.last_stable_offset, *(item.base for item in young if item.base >= self.cleaned)])
        committed = [(at, record) for at, record in self.records("read_committed") if at < limit]
        newest = {record[0]: at for at, record in committed if record[0] is not None}
        horizon = now + int(self.config.get("delete.retention.ms", DAY_MS))
        staying = {
            at for at, record in committed if newest.get(record[0]) == at and self.horizons.get(at, now + 1) > now
        }
        for at, record in committed:
            if at in staying and record[1] is None:
                self.horizons.setdefault(at, horizon)
        for batch in self.batches:
            if batch.records and batch.end <= limit:
                places = range(batch.base, batch.end)
                batch.records = [
                    item if at in staying else None for at, item in zip(places, batch.records, strict=True)
                ]
        self.aborted = [entry for entry in self.aborted if self._has_records(entry)]
        self.cleaned = max(self.cleaned, limit)

    def _has_records(self, entry: tuple[int, int, int, int]) -> bool:
        """Whether something is left of an aborted transaction (CMP-16)."""
        producer_id, first, last, _ = entry
        mine = (batch for batch in self.batches if batch.producer_id == producer_id and first <= batch.base < last)
        return any(batch.first is not None for batch in mine)

    def retain(self, now: int, ms: int, keep: int | None) -> None:
        """Delete the oldest batches that are older than ``ms``, or more than ``keep`` (RET-01, RET-03).

        Kafka deletes segments, and undecided records too (D1). Markers have no age here.
        """
        if "delete" not in self.policy:
            return
        live = [batch for batch in self.batches if batch.first is not None and batch.end > self.start]
        surplus, deleted = len(live) - keep if keep is not None else 0, 0
        for batch in live:
            if batch.base >= self.last_stable_offset or not (0 <= ms < now - batch.timestamp or surplus > deleted):
                break
            deleted += 1
        if deleted:
            following = next((batch.first for batch in live[deleted:] if batch.first is not None), self.end)
            self._move_start(following)
