"""Plans of merges, from chains that were never written: runs, sizes, aborted data, the last stable offset."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import pytest

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact import small_commits as planning
from txnstore.compactor.compact.small_commits import TopicMerge, inlined_only, plan_small_commits
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import AbortedTxn, Batch, Partition, Segment
from txnstore.core.model import Map, TopicPartition
from txnstore.core.state import State, first_state, replace

TOPIC = CatalogTopic("t", "id", 4)
KIB, MIB = 1 << 10, 1 << 20
ABORTER = 7
_entries = count(1)


def small(base: int, records: int = 10, size: int = KIB, *, producer: int = 1, at: int = 0, **more: object) -> Batch:
    """An inlined batch."""
    key = f"chains/s/0/entries/{next(_entries):020}.json"
    segment = Segment(key, "arrow_stream", size, "00", records, first_byte=0)
    times = {"min_timestamp": at, "max_timestamp": at, "appended_at": at}
    return Batch(base, base + records, records, segment, **{**times, **more}, producer_id=producer, transactional=True)  # type: ignore[arg-type]


def large(base: int, name: str = "own", size: int = MIB) -> Batch:
    """A batch in an object of its own."""
    return Batch(base, base + 10, 10, Segment(f"topics/t/0/{name}", "parquet", size, "00", 10), 0, 0)


def merged(base: int, name: str, size: int = KIB, *, at: int = 0, rows: int = 20, limit: int | None = None) -> Batch:
    """Half of the rows of a merged segment."""
    segment = Segment(f"topics/t/0/{name}", "parquet", size, "00", rows, explicit_offsets=True)
    return Batch(base, limit or base + 10, 10, segment, at, at, appended_at=at)


def log(*batches: Batch, **more: object) -> Partition:
    """A partition with these batches."""
    end = max((batch.limit for batch in batches), default=0)
    return Partition(high_watermark=end, batches=BatchList(batches), revision=3, **more)  # type: ignore[arg-type]


def plan(
    *logs: Partition, config: TopicConfig | None = None, before: Mapping[TopicPartition, Partition] | None = None
) -> list[TopicMerge]:
    return plan_small_commits(state(*logs), before or Map(), lambda _: config or TopicConfig())


def state(*logs: Partition) -> State:
    partitions: Map[TopicPartition, Partition] = Map(
        [(TopicPartition("t", number), each) for number, each in enumerate(logs)]
    )
    return replace(first_state(0, 1), topics=Map({"t": TOPIC}), partitions=partitions)


def spans(merges: Iterable[TopicMerge]) -> list[list[tuple[int, int, int, int]]]:
    """Partition, first offset, limit and number of sources of each plan of each merge."""
    return [
        [(each.tp.partition, each.base_offset, each.limit, len(each.sources)) for each in merge.plans]
        for merge in merges
    ]


def test_the_small_batches_of_all_partitions_of_a_topic_are_merged() -> None:
    merges = plan(log(small(0), small(10)), log(), log(small(0)))
    assert spans(merges) == [[(0, 0, 20, 2), (2, 0, 10, 1)]]
    assert {each.revision for each in merges[0].plans} == {3}


def test_without_small_batches_nothing_is_planned() -> None:
    assert plan(log(large(0)), log(merged(0, "a")), log()) == []
    assert plan(*(log(merged(0, f"{number}")) for number in range(9))) == []


def test_a_log_that_was_merged_and_is_the_same_is_left_out() -> None:
    first, other = log(small(0)), log(small(0))
    assert spans(plan(first, other, before={TopicPartition("t", 0): first})) == [[(1, 0, 10, 1)]]
    equal = log(*first.batches)
    assert spans(plan(equal, before={TopicPartition("t", 0): first})) == [[(0, 0, 10, 1)]]


def test_nothing_above_the_last_stable_offset_is_merged() -> None:
    partition = log(small(0), small(10), small(20), open_txns=Map({5: 20}))
    assert spans(plan(partition)) == [[(0, 0, 20, 2)]]
    assert plan(log(small(0), open_txns=Map({5: 0}))) == []


def test_a_long_open_transaction_does_not_hide_the_batches_before_it() -> None:
    batches = [small(10 * number) for number in range(200)]
    assert spans(plan(log(*batches, open_txns=Map({5: 20})))) == [[(0, 0, 20, 2)]]


def test_nothing_below_the_start_of_the_log_is_merged() -> None:
    assert spans(plan(log(small(0), small(10), small(20), log_start=10))) == [[(0, 10, 30, 2)]]
    assert spans(plan(log(small(0), small(10), small(20), log_start=11))) == [[(0, 20, 30, 1)]]


def test_an_aborted_batch_is_removed_without_being_read() -> None:
    aborted = (AbortedTxn(ABORTER, 10, 20, 21),)
    merges = plan(log(small(0), small(10, producer=ABORTER), small(21), aborted=aborted))
    (only,) = merges[0].plans
    assert [source.batch.base_offset for source in only.sources] == [0, 21]
    assert [batch.base_offset for batch in only.removed] == [0, 10, 21]


def test_batches_that_are_all_aborted_are_removed() -> None:
    aborted = (AbortedTxn(ABORTER, 0, 10, 11),)
    assert spans(plan(log(small(0, producer=ABORTER), aborted=aborted))) == [[(0, 0, 10, 0)]]


@pytest.mark.parametrize("between", [large(20), merged(20, "a")], ids=["own", "merged"])
def test_no_run_reaches_across_a_batch_of_another_kind(between: Batch) -> None:
    merges = plan(log(small(0), small(10), between, small(30), small(40)))
    assert spans(merges) == [[(0, 0, 20, 2), (0, 30, 50, 2)]]


def test_a_batch_with_tombstones_that_a_clean_has_read_stays() -> None:
    tombstones = small(10, delete_horizon=5)
    assert spans(plan(log(small(0), tombstones, small(20)))) == [[(0, 0, 10, 1), (0, 20, 30, 1)]]


def test_clean_and_dirty_batches_are_not_merged() -> None:
    assert spans(plan(log(small(0), small(10), small(20), clean_until=20))) == [[(0, 0, 20, 2), (0, 20, 30, 1)]]
    assert spans(plan(log(small(0), small(10), clean_until=20))) == [[(0, 0, 20, 2)]]


def test_no_record_outlives_its_retention_with_later_ones() -> None:
    config = TopicConfig(retention_ms=8_000)
    batches = [small(10 * number, at=at) for number, at in enumerate((0, 900, 1_100, 1_900, 500))]
    assert spans(plan(log(*batches), config=config)) == [[(0, 0, 20, 2), (0, 20, 50, 3)]]
    assert spans(plan(log(*batches))) == [[(0, 0, 50, 5)]]


def test_eight_merged_segments_of_a_level_are_merged_with_the_small_batches() -> None:
    parts = [merged(10 * number, f"{number}", at=number) for number in range(8)]
    assert spans(plan(log(*parts[:7], small(70)))) == [[(0, 70, 80, 1)]]
    assert spans(plan(log(*parts, small(80)))) == [[(0, 0, 90, 9)]]


def test_merged_segments_are_left_by_partitions_that_have_not_changed_too() -> None:
    """Else each of them would stay for the rest of its rows."""
    parts = [merged(10 * number, f"{number}", at=number) for number in range(8)]
    idle, busy = log(*parts[:3], merged(30, "other")), log(*parts, small(80))
    merges = plan(idle, busy, before={TopicPartition("t", 0): idle})
    assert spans(merges) == [[(0, 0, 30, 3), (1, 0, 90, 9)]]


def test_a_larger_segment_between_them_stays_and_ends_nothing() -> None:
    """Else a large commit after each seven small ones would keep all of them from being merged, for good."""
    older = [merged(10 * number, f"o{number}", at=number) for number in range(4)]
    between = merged(40, "between", at=4, rows=64)
    newer = [merged(50 + 10 * number, f"n{number}", at=5 + number) for number in range(4)]
    assert spans(plan(log(*older, between, *newer[:3], small(80)))) == [[(0, 80, 90, 1)]]
    assert spans(plan(log(*older, between, *newer, small(90)))) == [[(0, 0, 40, 4), (0, 50, 100, 5)]]


def test_segments_of_the_next_level_are_merged_with_the_smaller_ones_after_them() -> None:
    parts = [merged(10 * number, f"{number}", at=number, rows=64 + number) for number in range(8)]
    assert spans(plan(log(*parts[1:], merged(80, "s", at=8), small(90)))) == [[(0, 90, 100, 1)]]
    assert spans(plan(log(*parts, merged(80, "s", at=8), small(90)))) == [[(0, 0, 100, 10)]]


def test_the_order_of_segments_is_that_of_their_appends_in_all_partitions() -> None:
    """A partition that is seldom written has old segments among its last ones, which end nothing in others."""
    busy = [merged(10 * number, f"{number}", at=100 + number) for number in range(8)]
    seldom = log(merged(0, "old", at=1, rows=64), small(10))
    assert spans(plan(log(*busy, small(80)), seldom)) == [[(0, 0, 90, 9), (1, 10, 20, 1)]]
    large = [merged(10 * number, f"{9 - number}", 15 * MIB, at=100 + number) for number in range(4)]
    seldom = log(merged(0, "old", 15 * MIB, at=1), small(10))
    assert spans(plan(log(*large, small(40)), seldom)) == [[(0, 0, 50, 5), (1, 10, 20, 1)]]


def test_segments_that_are_large_together_are_merged_before_there_are_eight() -> None:
    """Else they would never be: eight of them are more than is merged at a time."""
    parts = [merged(10 * number, f"{number}", 15 * MIB, at=number) for number in range(5)]
    assert spans(plan(log(*parts[:4], small(50)))) == [[(0, 50, 60, 1)]]
    assert spans(plan(log(*parts, small(50)))) == [[(0, 10, 60, 5)]]


def test_of_segments_that_are_large_together_one_with_most_rows_stays() -> None:
    """With equal rows those that it becomes part of may be as small as it is, and would be merged again each time."""
    parts = [merged(10 * number, f"{number}", 15 * MIB, at=number, rows=20) for number in range(8)]
    parts[6] = replace(parts[6], segment=replace(parts[6].segment, rows=10_000))
    assert spans(plan(log(*parts[2:], small(80)))) == [[(0, 30, 60, 3), (0, 70, 90, 2)]]
    assert spans(plan(log(*parts[3:], small(80)))) == [[(0, 80, 90, 1)]]


def test_a_segment_of_the_largest_size_is_not_merged_again() -> None:
    parts = [merged(10 * number, f"{number}", 16 * MIB, at=number) for number in range(9)]
    assert spans(plan(log(*parts, small(90)))) == [[(0, 90, 100, 1)]]


def test_a_backlog_is_merged_by_windows_of_entries_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an entry has for all partitions is in one merge; older segments are in the first one."""
    monkeypatch.setattr(planning, "_MAX_INLINED_BYTES", 3 * (KIB + planning._OVERHEAD))
    parts = [merged(10 * number, f"{number}", at=number) for number in range(8)]
    entries = [small(10 * number) for number in range(7)]
    first = log(*parts, *(replace(each, base_offset=80 + 10 * n, limit=90 + 10 * n) for n, each in enumerate(entries)))
    shared = [replace(each, base_offset=n, limit=n + 1, records=1) for n, each in enumerate(entries[2:6])]
    assert spans(plan(first, log(*shared), log(small(0, size=20 * KIB)))) == [
        [(0, 0, 110, 11), (1, 0, 1, 1)], [(0, 110, 140, 3), (1, 1, 4, 3)], [(0, 140, 150, 1)], [(2, 0, 10, 1)]
    ]  # fmt: skip


def test_segments_of_a_compaction_are_not_merged_with_those_of_other_partitions() -> None:
    """Each is what the compaction wants; the next one would write all of them again."""
    own = [merged(0, f"own{number}", 300 * KIB, at=number, rows=10) for number in range(12)]
    assert spans(plan(*(log(each) for each in own), log(small(0)))) == [[(12, 0, 10, 1)]]
    assert spans(plan(*(log(each, small(10)) for each in own))) == [[(number, 10, 20, 1) for number in range(12)]]


def test_segments_of_one_partition_alone_are_merged_with_each_other() -> None:
    """A topic of which one partition is written."""
    own = [merged(10 * number, f"{number}", at=number, rows=10) for number in range(8)]
    other = log(merged(0, "other", at=9, rows=10))
    assert spans(plan(log(*own[:7], small(70)), other)) == [[(0, 70, 80, 1)]]
    assert spans(plan(log(*own, small(80)), other)) == [[(0, 0, 90, 9)]]
    mixed = [replace(each, segment=replace(each.segment, rows=20)) if n % 2 else each for n, each in enumerate(own)]
    assert spans(plan(log(*mixed, small(80)), other)) == [[(0, 0, 90, 9)]]


def test_segments_of_one_partition_alone_are_not_merged_across_periods() -> None:
    """They would stay as many batches, and a compaction would move them again when the first of them is deleted."""
    config = TopicConfig(retention_ms=8_000)
    own = [merged(10 * number, f"{number}", at=1_000 * number, rows=10) for number in range(8)]
    assert spans(plan(log(*own, small(80, at=7_000)), config=config)) == [[(0, 80, 90, 1)]]


def test_a_damaged_segment_is_left_where_it_is() -> None:
    parts = [merged(10 * number, f"{number}", at=number) for number in range(9)]
    damaged = {parts[3].segment.object}
    (first,) = plan_small_commits(state(log(*parts, small(90))), Map(), lambda _: TopicConfig(), damaged)
    assert spans([first]) == [[(0, 0, 30, 3), (0, 40, 100, 6)]]
    assert spans([TopicMerge(TOPIC, tuple(inlined_only(first.plans)))]) == [[(0, 90, 100, 1)]]


def test_the_small_commits_alone_of_a_plan_with_aborted_ones() -> None:
    aborted = (AbortedTxn(ABORTER, 80, 90, 91),)
    parts = [merged(10 * number, f"{number}", at=number) for number in range(8)]
    (only,) = plan(log(*parts, small(80, producer=ABORTER), small(91), aborted=aborted))
    (rest,) = inlined_only(only.plans)
    assert [batch.base_offset for batch in rest.removed] == [80, 91]
    assert [source.batch.base_offset for source in rest.sources] == [91]


# What is written in the long run --------------------------------------------------------------------------------------


class Written:
    """A topic that is merged after each of many commits.

    Args:
        size: The size of each merged segment; None: as large as what it was merged from.
    """

    def __init__(self, partitions: int, size: int | None = None) -> None:
        self.logs = [log() for _ in range(partitions)]
        self.size = size
        self.committed = self.written = self.committed_rows = self.written_rows = 0

    def commit(self, size: int, partitions: Sequence[int]) -> None:
        """Commit, and merge."""
        rows = 10 * len(partitions)
        self.committed, self.committed_rows = self.committed + size, self.committed_rows + rows
        at = next(_entries)
        segment = replace(small(0, rows, size).segment, object=f"chains/s/0/entries/{at:020}.json")
        for place, number in enumerate(partitions):
            base = self.logs[number].high_watermark
            batch = Batch(base, base + 10, 10, segment, 0, 0, 10 * place, appended_at=at)
            self.logs[number] = log(*self.logs[number].batches, batch)
        for merge in plan(*self.logs):
            self._apply(merge)

    def _apply(self, merge: TopicMerge) -> None:
        size, rows = (sum(values) for values in zip(*((p.source_bytes, p.records) for p in merge.plans), strict=True))
        size = size if self.size is None else self.size
        segment = Segment(f"topics/t/0/{next(_entries)}", "parquet", size, "00", rows, explicit_offsets=True)
        self.written, self.written_rows = self.written + size, self.written_rows + rows
        first = 0
        for each in merge.plans:
            at = max(batch.appended_at for batch in each.removed)
            merged = Batch(each.base_offset, each.limit, each.records, segment, 0, 0, first, appended_at=at)
            first += each.records
            kept = [b for b in self.logs[each.tp.partition].batches if b not in each.removed]
            self.logs[each.tp.partition] = log(*sorted([*kept, merged], key=lambda batch: batch.base_offset))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the segments."""
        return list({b.segment.object: b.segment.size for each in self.logs for b in each.batches}.values())


def _even(draw: random.Random) -> int:
    return 100 * KIB


def _any(draw: random.Random) -> int:
    return int(KIB * 2 ** draw.uniform(1, 11))


def _often_tiny(draw: random.Random) -> int:
    return 3 * KIB if draw.random() < 7 / 8 else 500 * KIB


@pytest.mark.parametrize("size", [_even, _any, _often_tiny])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_byte_is_written_once_for_each_level_at_most_whatever_the_order_of_commits(
    size: Callable[[random.Random], int], partitions: int
) -> None:
    """Also if some commits have one partition, so that their segments have one batch; and few segments are left."""
    draw = random.Random(1)
    topic = Written(partitions)
    for _ in range(600):
        topic.commit(size(draw), draw.sample(range(partitions), draw.randint(1, partitions)))
    assert topic.written <= 4 * topic.committed
    below = [each for each in topic.sizes if each < planning._MAX_MERGED_BYTES]
    assert len(below) <= 7 * 4 * partitions
    assert max(map(len, (each.batches for each in topic.logs))) <= 64


@pytest.mark.parametrize(("size", "times"), [(KIB, 4), (15 * MIB, 7)])
def test_a_row_is_written_a_few_times_however_well_it_compresses(size: int, times: int) -> None:
    """Merged segments of equal rows stay as small as each of them: by their size, each merge would be due again."""
    topic = Written(1, size)
    for _ in range(600):
        topic.commit(KIB, [0])
    assert topic.written_rows <= times * topic.committed_rows
    assert len(topic.sizes) <= 7 * 4


def test_only_the_end_of_a_log_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SMALL_BATCHES", 3)
    assert spans(plan(log(*(small(10 * number) for number in range(7))))) == [[(0, 40, 70, 3)]]
    monkeypatch.setattr(planning, "_OTHER_BATCHES", 1)
    assert spans(plan(log(small(0), large(10), large(20, "b"), small(30)))) == [[(0, 30, 40, 1)]]
    monkeypatch.setattr(planning, "_MERGED_BATCHES", 1)
    assert spans(plan(log(small(0), merged(10, "a"), merged(20, "b"), small(30)))) == [[(0, 30, 40, 1)]]


def test_commits_of_another_size_between_the_small_ones_hide_none_of_them() -> None:
    batches = [large(number * 10, f"{number}") if number % 2 else small(number * 10) for number in range(200)]
    assert len(spans(plan(log(*batches)))[0]) == 100


def test_a_topic_that_is_being_deleted_is_left_alone() -> None:
    closed = replace(state(log(small(0))), deleted=Map({"t": TOPIC.revision}))
    assert plan_small_commits(closed, Map(), lambda _: TopicConfig()) == []
