"""What merges and cleans read: the one check of offsets and numbers, and the entries that are fetched together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from txnstore.compactor.compact import sources
from txnstore.compactor.compact.sources import RowOrder
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice, whole_batch
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError

TP = TopicPartition("t", 0)


def part(base: int, records: int = 10, *, tp: TopicPartition = TP, entry: int = 0, rows: int | None = None) -> Slice:
    """The rows of a partition in an entry, which has ``rows`` of a hundred bytes each."""
    key = f"chains/s/0/entries/{entry:020}.json"
    total = records if rows is None else rows
    segment = Segment(key, "arrow_stream", 100 * total, "00", total, first_byte=0)
    return whole_batch(tp, Batch(base, base + records, records, segment, 0, 0))


def check(parts: Sequence[Slice], *tables: Sequence[int]) -> None:
    """Check the offsets of tables, which are all of these slices."""
    order = RowOrder(TP, parts)
    for offsets in tables:
        order.check_next(np.array(offsets, np.int64))
    order.check_end()


def test_ascending_offsets_of_all_rows_are_in_order() -> None:
    check([part(5, 3), part(10, 2)], [5, 6], [7, 10, 11])
    check([], *[])


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param([[4, 5, 6, 10, 11]], id="before the sources"),
        pytest.param([[5, 6, 7, 10, 12]], id="after the sources"),
        pytest.param([[5, 6, 6, 10, 11]], id="twice in a table"),
        pytest.param([[5, 7, 6, 10, 11]], id="descending"),
        pytest.param([[5, 6, 7], [7, 10]], id="twice in two tables"),
        pytest.param([[5, 6, 10], [7, 11]], id="descending in two tables"),
    ],
)
def test_offsets_out_of_order_are_damage(tables: list[list[int]]) -> None:
    with pytest.raises(CorruptionError, match=r"one of the segments \S+#0 to \S+#0 of t-0 has the offsets .* out of"):
        check([part(5, 3), part(10, 2)], *tables)


def test_a_missing_row_is_damage() -> None:
    with pytest.raises(CorruptionError, match="of t-0 have 4 records; expected 5"):
        check([part(5, 3), part(10, 2)], [5, 6, 7, 10])


def test_one_row_too_many_is_damage() -> None:
    merged = Batch(0, 10, 3, Segment("topics/t/0/a", "parquet", 300, "00", 3, explicit_offsets=True), 0, 0)
    with pytest.raises(CorruptionError, match="of t-0 have 4 records; expected 3"):
        check([whole_batch(TP, merged)], [0, 3, 5, 9])


def test_a_slice_that_the_log_start_cuts_may_have_fewer_rows_than_its_batch() -> None:
    whole = part(5, 5)
    check([Slice(TP, whole.batch, 7, 10)], [7, 8, 9])


def blocks(parts: Sequence[Slice]) -> list[list[int]]:
    return [[source.start for source in block] for block in sources._blocks_of_inlined(parts)]


def test_entries_are_read_together_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [part(10 * number, entry=number) for number in range(6)]
    assert blocks(small) == [[0, 10, 20, 30, 40, 50]]
    assert blocks([]) == []
    monkeypatch.setattr(sources, "_FETCHES", 4)
    assert blocks(small) == [[0, 10, 20, 30], [40, 50]]
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 2_500)
    assert blocks(small) == [[0, 10], [20, 30], [40, 50]]
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 1)
    assert blocks(small[:2]) == [[0], [10]], "one may be larger"


def test_an_entry_is_counted_once_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first partition fetches the entries, whole; of the others only their rows count."""
    monkeypatch.setattr(sources, "_FETCHES", 3)
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 5_000)
    every = [
        part(10 * number, tp=TopicPartition("t", partition), entry=number, rows=20)
        for partition in range(2)
        for number in range(3)
    ]
    assert blocks(every[:3]) == [[0, 10], [20]], "2,000 bytes each"
    assert blocks(every) == [[0, 10], [20, 0, 10, 20]]
