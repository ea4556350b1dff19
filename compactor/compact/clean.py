"""Executes a clean: keeps the newest committed record of each key of a partition, and removes old tombstones.

The sources are read twice: their keys, to find the newest record of each key, and then whole, to copy the records that
stay. See docs/internals/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.compactor.compact.clean_plan import CleanPlan
from txnstore.compactor.compact.copying import Copying
from txnstore.compactor.compact.newest import NewestByKey, Offsets
from txnstore.core.log.model import Batch
from txnstore.core.log.sums import ConservedSums
from txnstore.read.rows import Columns
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, tombstones


@dataclass(slots=True)
class Cleaned:
    """What a clean did.

    Attributes:
        added: The batches that replace the sources.
        superseded: The records that were dropped because their key has a newer one.
        tombstones: The tombstones that were dropped because their delete horizon has passed.
        keyless: The records that were dropped because they have no key (CMP-19).
        stamped: The tombstones that got their delete horizon.
        sums: The sums of what it read, removed and wrote; None if nothing was changed, or nothing was read.
    """

    added: list[Batch] = field(default_factory=list)
    superseded: int = 0
    tombstones: int = 0
    keyless: int = 0
    stamped: int = 0
    sums: ConservedSums | None = None

    @property
    def changed(self) -> bool:
        """Whether the new segments differ from the sources."""
        return bool(self.superseded or self.tombstones or self.keyless or self.stamped or self.added)


class Clean:
    """One clean of one partition.

    Args:
        copying: Copies what stays of the sources of the plan.
        plan: What to clean.
        now: The time in ms by the clock of the storage.
    """

    def __init__(self, copying: Copying, plan: CleanPlan, now: int) -> None:
        self._copying, self._plan, self._now = copying, plan, now
        self._topic, self._memory = copying.topic, copying.memory
        self._writer: TopicWriter = topic_writer(copying.topic)
        self._done = Cleaned()
        # A tombstone above the LSO is still to be seen by readers, and to remove records below the LSO.
        self._tombstone_column = self._writer.tombstone_column if not plan.past_hw else None

    def run(self) -> Cleaned:
        """Read the sources, and upload the records that stay.

        Returns:
            What was done. Without any change nothing is uploaded: the sources stay, and only the checkpoint moves.

        Raises:
            CorruptionError: A source is missing, or differs from its description in the chain.
            InvalidConfigError: The memory is too small.
            NoSpaceError: There is no space left to spill.
        """
        with NewestByKey(self._memory.keys, threads=1 if self._memory.few_threads else None) as newest:
            records = self._read_keys(newest)
            distinct_keys = newest.count()
            self._done.keyless, self._done.superseded = records - newest.records, newest.records - distinct_keys
            if self._done.changed or self._has_removable_tombstones():
                survivors = _Survivors(newest.offsets())
                self._done.added = self._copying.copy(partial(self._staying, survivors))
                if self._done.changed and self._plan.sources:
                    self._done.sums = self._copying.sums
        return self._done

    def _read_keys(self, newest: NewestByKey) -> int:
        """Read the keys of all sources; returns the number of records."""
        column, records = self._writer.key_column, 0
        assert column is not None, "only topics with a key are cleaned"
        columns = Columns(self._topic, [OFFSET_FIELD.name, column])
        for table in self._copying.tables(self._plan.sources, columns):
            newest.add(key_bytes(table.column(column), column), table.column(OFFSET_FIELD.name))
            records += table.num_rows
            del table  # Else it is in memory while the next one is decoded.
        return records

    def _has_removable_tombstones(self) -> bool:
        """Whether a tombstone can be removed, or has no delete horizon yet. Reads the dirty part only if it must.

        A horizon that has passed ends also where the topic has no tombstones any more: each forced clean would find it.
        """
        if self._plan.past_hw:
            return False
        if self._plan.has_expired_tombstones(self._now):
            return True
        column = self._tombstone_column
        if column is None:
            return False
        dirty = tuple(
            source
            for source in self._plan.sources
            if source.limit > self._plan.dirty_from and source.batch.delete_horizon is None
        )
        columns = Columns(self._topic, [OFFSET_FIELD.name, column])
        return any(pc.any(tombstones(table, column)).as_py() for table in self._copying.tables(dirty, columns))

    def _staying(self, survivors: _Survivors, table: pa.Table) -> pa.Table:
        """The rows that stay of a table of the sources."""
        offsets = table.column(OFFSET_FIELD.name).to_numpy()
        return self._without_old_tombstones(table.filter(pa.array(survivors.mask(offsets))))

    def _without_old_tombstones(self, table: pa.Table) -> pa.Table:
        """The rows without tombstones whose horizon has passed; those without a horizon get it (CMP-08, KIP-534).

        A row that is no tombstone has none: it was one by another ``tombstone.column``.
        """
        if self._tombstone_column is None:
            return table
        is_tombstone, horizon = tombstones(table, self._tombstone_column), table.column(HORIZON_FIELD.name)
        if horizon.null_count == len(horizon) and not pc.any(is_tombstone).as_py():
            return table
        is_expired = pc.and_(is_tombstone, pc.fill_null(pc.less_equal(horizon, self._now), fill_value=False))
        is_new = pc.and_(is_tombstone, horizon.is_null())
        new_horizon = pa.scalar(self._now + self._writer.config.delete_retention_ms, HORIZON_FIELD.type)
        self._done.tombstones += pc.sum(is_expired).as_py() or 0
        self._done.stamped += pc.sum(is_new).as_py() or 0
        horizons = pc.if_else(is_tombstone, pc.fill_null(horizon, new_horizon), None)
        with_horizons = table.set_column(table.num_columns - 1, HORIZON_FIELD, horizons)
        return with_horizons.filter(pc.invert(is_expired))


class _Survivors:
    """The offsets of the records that stay, taken in the order of the log."""

    def __init__(self, offsets: Iterator[Offsets]) -> None:
        self._offsets = offsets
        self._next_offsets: Offsets = np.empty(0, np.int64)

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Which of these offsets stay; they follow those of the last call."""
        last_offset = offsets[-1]
        arrays = [self._next_offsets]
        while not len(arrays[-1]) or arrays[-1][-1] < last_offset:
            next_array = next(self._offsets, None)
            if next_array is None:
                break
            arrays.append(next_array)
        staying = np.concatenate(arrays)
        end = int(np.searchsorted(staying, last_offset, side="right"))
        self._next_offsets = staying[end:]
        return np.isin(offsets, staying[:end], assume_unique=True)
