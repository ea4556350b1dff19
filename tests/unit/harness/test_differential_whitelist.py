"""Each entry of the whitelist allows one difference from a Kafka broker, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.differential import WHITELIST, Comparison

# The whitelist --------------------------------------------------------------------------------------------------------


BROKER = "kafka 4.1"
#: What cleans and retention leave at other times: the rules follow a whole trace.
OF_UPKEEP = ("CMP-07", "CMP-08", "CMP-02", "RET-04", "RET-12", "RET-01", "CMP-25")


def _log(uncommitted: list[Any]) -> dict[str, Any]:
    """A partition whose first record was aborted."""
    return {"uncommitted": uncommitted, "committed": [[1, None, "b"]], "lso": 2, "hw": 2, "log_start": 0}


ALLOWED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("FEN-06", "model", {"op": "raw_append"}, {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}),
    ("API-01", BROKER, {"op": "begin"}, {"error": "ILLEGAL_STATE"}, {"error": "PRODUCER_CLOSED"}),
    (
        "CMP-17",
        "model",
        {"op": "compact"},
        {"state": {"partitions": {"t-0": _log([[0, None, "a"], [1, None, "b"]])}}},
        {"state": {"partitions": {"t-0": _log([[1, None, "b"]])}}},
    ),
    (
        "TV2-02",
        BROKER,
        {"op": "raw_end_txn", "commit": True},
        {"error": "INVALID_TXN_STATE"},
        {"error": "PRODUCER_FENCED"},
    ),
    ("OFF-06", BROKER, {"op": "flush"}, {"error": "COMMIT_FAILED"}, {"error": "ILLEGAL_GENERATION"}),
    (
        "OFF-07",
        BROKER,
        {"op": "commit_offsets", "group": "g", "protocol": "consumer"},
        {"error": "STALE_MEMBER_EPOCH"},
        {"error": "ILLEGAL_GENERATION"},
    ),
    (
        "OFF-08",
        BROKER,
        {"op": "commit_offsets"},
        {"error": "GROUP_ID_NOT_FOUND"},
        {"error": "ILLEGAL_GENERATION"},
    ),
    (
        "ADD-09",
        BROKER,
        {"op": "raw_txn_offset_commit"},
        {"state": {"transactions": {"x": {"state": "ONGOING"}}}},
        {"state": {"transactions": {"x": {"state": "EMPTY"}}}},
    ),
    (
        "API-05",
        BROKER,
        {"op": "send_bad_offsets", "what": "topic"},
        {"error": "REQUEST_TIMED_OUT"},
        {"error": "UNKNOWN_TOPIC_OR_PARTITION"},
    ),
    ("OFF-18", BROKER, {"op": "flush", "recreated": True}, {"error": "REQUEST_TIMED_OUT"}, {"error": None}),
    ("CON-17", "model", {"op": "heartbeat"}, {"error": "ILLEGAL_GENERATION"}, {"error": None}),
    ("OFF-22", "model", {"op": "leave"}, {"error": "UNKNOWN_MEMBER_ID"}, {"error": None}),
    ("CON-13", "model", {"op": "poll"}, {"error": "NO_OFFSET"}, {"error": "OFFSET_OUT_OF_RANGE"}),
    (
        "END-07",
        "model",
        {"op": "delete_topic", "topic": "u"},
        {"state": {"transactions": {"x": {"partitions": ["t-0", "u-0"]}}}},
        {"state": {"transactions": {"x": {"partitions": ["t-0"]}}}},
    ),
    ("PST-03", BROKER, {"op": "raw_append"}, {"error": "OUT_OF_ORDER_SEQUENCE_NUMBER"}, {"error": None}),
    (
        "INIT-07",
        BROKER,
        {"op": "commit", "producer": "A"},
        {"error": "INVALID_PRODUCER_ID_MAPPING"},
        {"error": "PRODUCER_FENCED"},
    ),
    ("API-09", BROKER, {"op": "flush"}, {"error": None}, {"error": "PRODUCER_CLOSED"}),
]


@pytest.mark.parametrize(("item", "source", "op", "expected", "actual"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_dif_09_a_difference_is_allowed_by_its_item_alone(
    item: str, source: str, op: dict[str, Any], expected: dict[str, Any], actual: dict[str, Any]
) -> None:
    """DIF-09: with the entry it passes and is counted; without it it fails."""
    comparison = Comparison(source)
    others = Comparison(source, [entry for entry in WHITELIST if entry.item != item])
    for one in (comparison, others):
        _rotate(one)
    assert comparison.step(op, expected, actual) == []
    assert comparison.used == {item: 1}
    assert others.step(op, expected, actual)


def _rotate(comparison: Comparison) -> None:
    """A restart, and a transactional id that gets another producer id."""
    for op, producer_id in (({"op": "init", "producer": "A", "id": "a"}, 0), ({"op": "restart"}, 1)):
        state = {"state": {"transactions": {"a": {"producer_id": producer_id, "epoch": 0}}}}
        assert comparison.step(op, {}, state) == []


def test_end_07_only_partitions_of_deleted_topics_may_be_missing() -> None:
    def step(topic: str, *actual: str) -> int:
        expected = {"state": {"transactions": {"x": {"partitions": ["t-0", "u-0"]}}}}
        observation = {"state": {"transactions": {"x": {"partitions": list(actual)}}}}
        return len(Comparison().step({"op": "delete_topic", "topic": topic}, expected, observation))

    assert step("u", "t-0") == 0
    assert step("u", "u-0") == 1
    assert step("u", "t-0", "v-0") == 1
    assert step("t", "t-0") == 1


def test_init_07_only_a_former_producer_id_may_be_unknown_in_kafka() -> None:
    answers = {"error": "INVALID_PRODUCER_ID_MAPPING"}, {"error": "PRODUCER_FENCED"}
    comparison = Comparison(BROKER)
    comparison.step({"op": "init", "producer": "B", "id": "b"}, {}, {})
    _rotate(comparison)
    assert comparison.step({"op": "commit", "producer": "A"}, *answers) == []
    assert comparison.step({"op": "commit", "producer": "B"}, *answers)
    raw = {"op": "raw_end_txn", "id": "a", "epoch": 0, "commit": True}
    assert comparison.step({**raw, "producer_id": 0}, *answers) == []
    assert comparison.step({**raw, "producer_id": 1}, *answers)


def test_fen_06_a_store_that_calls_a_replaced_producer_abortable_differs() -> None:
    """FEN-06: by whom an epoch was raised decides the class, for producers and for requests."""
    comparison = Comparison(BROKER)
    fenced, abortable = {"error": "PRODUCER_FENCED"}, {"error": "INVALID_PRODUCER_EPOCH"}
    for name, epoch in (("A", 0), ("B", 1)):
        state = {"state": {"transactions": {"a": {"producer_id": 0, "epoch": epoch}}}}
        comparison.step({"op": "init", "producer": name, "id": "a"}, {}, state)
    assert comparison.step({"op": "commit", "producer": "B"}, fenced, abortable) == []
    assert comparison.step({"op": "commit", "producer": "B"}, abortable, fenced)
    assert comparison.step({"op": "commit", "producer": "A"}, fenced, abortable)
    assert comparison.step({"op": "commit", "producer": "A"}, abortable, fenced) == []
    raw = {"op": "raw_end_txn", "id": "a", "producer_id": 0, "commit": True}
    assert comparison.step({**raw, "epoch": 0}, fenced, abortable)
    assert comparison.step({**raw, "epoch": 1}, fenced, abortable) == []


def test_dif_09_every_entry_of_the_whitelist_is_tested() -> None:
    """Here, or with the rules of cleans and retention (``test_differential_mutants_of_cleans.py``)."""
    tested = [row[0] for row in ALLOWED]
    assert [entry.item for entry in WHITELIST if entry.item not in OF_UPKEEP] == tested
    assert {entry.item for entry in WHITELIST} == {*tested, *OF_UPKEEP}
    assert all(entry.why for entry in WHITELIST)


def test_off_07_commits_of_older_epochs_may_differ_only_in_newer_protocol() -> None:
    def differs(group: str, ahead: int, expected: str | None, actual: str) -> bool:
        comparison = Comparison(BROKER)
        comparison.step({"op": "join", "group": "newer", "protocol": "consumer"}, {}, {})
        op = {"op": "commit_offsets", "group": group, "ahead": ahead}
        return bool(comparison.step(op, {"error": expected}, {"error": actual}))

    assert not differs("newer", -1, None, "ILLEGAL_GENERATION")
    assert not differs("newer", 0, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
    assert differs("newer", 0, None, "ILLEGAL_GENERATION")
    assert differs("newer", -1, None, "UNKNOWN_MEMBER_ID")
    assert differs("classic", -1, None, "ILLEGAL_GENERATION")
    assert differs("classic", 0, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")


def test_cmp_17_a_compaction_may_hide_aborted_records_but_not_add_or_change_any() -> None:
    def step(actual: list[Any]) -> int:
        records = [[0, None, "a"], [1, None, "b"]]
        sides = ({"state": {"partitions": {"t-0": _log(rows)}}} for rows in (records, actual))
        return len(Comparison().step({"op": "compact"}, *sides))

    assert [step([[1, None, "b"]]), step([]), step([[1, None, "c"]]), step([[2, None, "b"]])] == [0, 1, 1, 1]


# Traces ---------------------------------------------------------------------------------------------------------------


def test_fen_06_only_newer_instance_fences_permanently() -> None:
    """FEN-06, KIP-588: after a timeout, Kafka's client aborts and continues."""
    comparison = Comparison(BROKER)
    flush = {"op": "flush", "producer": "A"}
    answers = {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}
    comparison.step({"op": "init", "producer": "A", "id": "a"}, {}, {})
    assert comparison.step(flush, *answers)
    comparison.step({"op": "init", "producer": "B", "id": "a"}, {}, {})
    assert comparison.step(flush, *answers) == []
