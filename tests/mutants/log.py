"""Faults in the log of a partition: what is stable, what is aborted, which rows are whose, what is deleted."""

from __future__ import annotations

from tests.harness.simulation.settings import SHORTENERS
from tests.mutants.mutant import Mutant
from txnstore.core.log import appending, retention, visibility
from txnstore.core.log.batches import BatchList
from txnstore.core.log.events import BatchesAppended
from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import aborted_batches
from txnstore.producer import upload

#: Deletions of records, beside producers, copies and readers.
_ACTORS = ("producer:a/1", "producer:b/1", "copy:c/1", "committed:r/1", "scan:s/1", "tidy:t/1", *SHORTENERS)
_MEMBERS = ("plain:p/1", "member:m/1", "member:n/1")

LOG = (
    Mutant(
        "the LSO is that of committed data only",
        Partition.last_stable_offset,
        "min(self.open_txns.values(), default=self.high_watermark)",
        "max((batch.limit for batch in self.batches if batch.producer_id not in self.open_txns), default=0)",
    ),
    Mutant(
        "the LSO is the start of the newest open transaction",
        Partition.last_stable_offset,
        "min(self.open_txns.values(), default=self.high_watermark)",
        "max(self.open_txns.values(), default=self.high_watermark)",
    ),
    Mutant(
        "a consumer reads past the LSO",
        Partition.read_limit,
        "self.last_stable_offset if $isolation is Isolation.READ_COMMITTED else self.high_watermark",
        "self.high_watermark",
    ),
    Mutant(
        "aborted data is read",
        visibility.iterate_visible_slices,
        "if $is_aborted is None or not $is_aborted($batch)",
        "if True",
    ),
    Mutant(
        "the aborted index is searched without the producer id",
        aborted_batches.__init__,
        "self._first_offsets.setdefault($entry.producer_id, []).append($entry.first_offset)",
        "self._first_offsets.setdefault(0, []).append($entry.first_offset)",
    ),
    Mutant(
        "the aborted index also holds commits",
        appending.marker_written,
        "if $event.outcome is Outcome.ABORT and $first_offset is not None:",
        "if $first_offset is not None:",
    ),
    Mutant(
        "the aborted index loses the transactions of other producers",
        appending.marker_written,
        "$aborted = (*$aborted, AbortedTxn(",
        "$aborted = (*(a for a in $aborted if a.producer_id == event.producer_id), AbortedTxn(",
    ),
    Mutant(
        "the second transaction of a producer starts at the first one",
        appending.marker_written,
        "$open_txns = $partition.open_txns.discard($event.producer_id)",
        "$open_txns = $partition.open_txns",
    ),
    Mutant(
        "a compaction keeps aborted records",
        aborted_batches.__call__,
        "return $at >= 0 and $batch.base_offset <= self._last_offsets[$batch.producer_id][$at]",
        "return False",
    ),
    Mutant(
        "all batches are the first rows of their segment",
        upload.encode_rows,
        "first_row=$first_row",
        "first_row=0",
    ),
    Mutant(
        "a batch is the rows of another partition",
        BatchesAppended.placed_batches,
        "$rows.first_row,",
        "self.batches[0].first_row,",
    ),
    Mutant(
        "records of an open transaction are deleted",
        retention.new_log_start,
        "if $start > $stable:",
        "if False:",
        settings={"actors": (*_ACTORS, *_MEMBERS), "operations": 20, "pace_ms": 200},
    ),
    Mutant(
        "a batch that the log start cuts is removed",
        BatchList.starting_at,
        "if $batch.limit > $offset]",
        "if $batch.base_offset >= $offset]",
        settings={"actors": _ACTORS},
    ),
    Mutant(
        "deleted records of a batch that is cut are read",
        visibility.iterate_visible_slices,
        "max($partition.log_start, $start if $start is not None else $partition.log_start)",
        "$start if $start is not None else 0",
        settings={"actors": _ACTORS},
    ),
)
