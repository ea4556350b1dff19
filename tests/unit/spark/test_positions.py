"""What a micro-batch of a stream reads, decided without Spark and without a store."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, UnsupportedFormatError
from txnstore.spark.streams import positions
from txnstore.spark.streams.positions import Log, Logs, Position

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("c", 0)
IDS = {"a": "id-a", "c": "id-c"}


def logs(*, ids: Mapping[str, str] = IDS, **limits: int | tuple[int, int] | tuple[int, int, int]) -> Logs:
    """Logs by partition: ``limit``, ``(start, limit)`` or ``(start, limit, end)``; ``a0=5`` is partition 0 of ``a``."""
    logs_by_partition = {}
    for name, given_log in limits.items():
        start, limit, *end = (0, given_log) if isinstance(given_log, int) else given_log
        logs_by_partition[TopicPartition(name[:-1], int(name[-1]))] = Log(start, limit, *(end or [limit]))
    topics = {tp.topic for tp in logs_by_partition}
    return Logs("store", {name: text for name, text in ids.items() if name in topics}, logs_by_partition)


def at(ends: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int] | None = None) -> Position:
    topics = {tp.topic: IDS[tp.topic] for tp in ends}
    return Position("store", topics, starts if starts is not None else ends, ends)


def test_positions_survive_the_checkpoint_with_equal_text() -> None:
    """Spark compares the text, so the order in which partitions were found must not matter."""
    position = Position("s", {"c": "2", "a": "1"}, {C: 1, A: 0}, {TopicPartition("a", 10): 4, B: 2, A: 3, C: 9}, "etl")
    text = json.dumps(position.to_json())
    assert positions.parse(json.loads(text)) == position
    other = Position("s", {"a": "1", "c": "2"}, {A: 0, C: 1}, dict(sorted(position.end.items(), reverse=True)), "etl")
    assert json.dumps(other.to_json()) == text
    assert list(position.to_json()["end"]["a"]) == ["0", "1", "10"]


@pytest.mark.parametrize("document", [{}, {"topic": {"0": 1}}, 5, [], {"txnstore": "1"}, {"txnstore": True}])
def test_offsets_of_other_sources_are_refused(document: object) -> None:
    with pytest.raises(InvalidConfigError, match="not one of txnstore"):
        positions.parse(document)


def test_positions_of_a_newer_release_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="newer txnstore"):
        positions.parse({"txnstore": 2})


def test_positions_are_found_in_a_log_of_offsets() -> None:
    """Spark's offset log: its version, its metadata, then a line per source; or sources by name."""
    one, two = at({A: 3}), at({C: 4})
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(one.to_json()), '{"kafka":{"0":1}}', "-"]
    assert positions.parse_lines(lines) == [one]
    named = {"0": json.dumps(one.to_json()), "1": two.to_json(), "2": "v"}
    assert positions.parse_lines(["v2", "{}", json.dumps(named)]) == [one, two]


def test_a_stream_reads_up_to_the_limit_and_then_nothing() -> None:
    position = positions.initial_position(logs(a0=3, a1=0), {A: 0, B: 0})
    step = positions.next_step(position, logs(a0=3, a1=0))
    assert (step.position.start, step.position.end, step.losses) == ({A: 0, B: 0}, {A: 3, B: 0}, ())
    assert positions.next_step(step.position, logs(a0=3, a1=0)).position is step.position
    # Offsets between the last stable offset and the high watermark are valid, and read nothing yet (LSO-12).
    assert positions.next_step(at({A: 3}), logs(a0=(0, 2, 5))).position.end == {A: 3}


def test_a_new_partition_or_topic_is_read_from_its_start() -> None:
    step = positions.next_step(at({A: 3}), logs(a0=3, a1=2, c0=(4, 6)))
    assert step.position.start == {A: 3, B: 0, C: 4}
    assert step.position.end == {A: 3, B: 2, C: 6}
    assert step.losses == ()


def test_a_target_holds_back_later_records_and_later_partitions() -> None:
    """``availableNow``: what came after the start of the query is left to the next one."""
    step = positions.next_step(at({A: 1}), logs(a0=9, a1=2), until={A: 5})
    assert step.position.end == {A: 5}
    assert positions.next_step(step.position, logs(a0=9, a1=2), until={A: 5}).position is step.position


@pytest.mark.parametrize(
    ("now", "resumed", "loss"),
    [
        (logs(a0=(7, 9)), {A: 7}, "offsets 5 to 6 of a-0 were deleted before they were read"),
        (logs(a0=3), {A: 3}, "up to offset 5, but its log ends at 3"),
        (logs(a0=3, ids={"a": "new"}), {A: 0}, "deleted and created again"),
        (logs(c0=1), {C: 0}, "topic 'a' does not exist any more"),
    ],
)
def test_lost_records_are_reported_and_can_be_passed_over(
    now: Logs, resumed: Mapping[TopicPartition, int], loss: str
) -> None:
    step = positions.next_step(at({A: 5}), now)
    assert [loss in text for text in step.losses] == [True]
    assert step.position.start == resumed
    assert positions.next_step(step.position, now).losses == ()


def test_a_repeated_micro_batch_reads_its_own_start() -> None:
    """The start of the first one is not in Spark's log, so the position has it; the store has grown since."""
    step = positions.replay_step(at({A: 5, B: 2}, {A: 3, B: 2}), logs(a0=90, a1=7))
    assert (step.position.start, step.position.end, step.losses) == ({A: 3}, {A: 5}, ())


def test_a_repeated_micro_batch_reports_what_is_lost() -> None:
    planned = at({A: 5, B: 4, C: 2}, {A: 0, B: 0, C: 0})
    step = positions.replay_step(planned, logs(a0=(3, 9), a1=2, c0=9, ids={"a": "id-a", "c": "new"}))
    assert (step.position.start, step.position.end) == ({A: 3, B: 0}, {A: 5, B: 2})
    assert len(step.losses) == 3
    # A micro-batch without records has lost none.
    assert positions.replay_step(at({A: 5}), logs(a0=(9, 9))).losses == ()


@pytest.mark.slow
@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1000), min_size=1), st.integers(1, 500))
def test_a_limit_is_used_up_and_never_exceeded(pending: Mapping[int, int], most: int) -> None:
    tps = {TopicPartition("a", number): count for number, count in pending.items()}
    pending_logs = Logs("store", IDS, {tp: Log(0, count, count) for tp, count in tps.items()})
    position = positions.initial_position(pending_logs, dict.fromkeys(tps, 0))
    for _ in range(sum(pending.values()) // most + 1):
        step = positions.next_step(position, pending_logs, max_offsets=most)
        read = {tp: step.position.end[tp] - position.end[tp] for tp in tps}
        assert min(read.values()) >= 0
        assert sum(read.values()) == min(most, sum(tps[tp] - position.end[tp] for tp in tps))
        position = step.position
    assert position.end == tps


def test_lag_is_what_is_left_to_read() -> None:
    assert positions.lag(at({A: 3}).to_json(), positions.limits_json({A: 5, C: 2})) == {A: 2, C: 2}
