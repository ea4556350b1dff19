"""Each entry of the whitelist allows one difference from a Kafka broker, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.differential import WHITELIST, Comparison

# The whitelist --------------------------------------------------------------------------------------------------------


BROKER = "kafka 4.1"
ALLOWED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("FEN-06", "model", {"op": "raw_append"}, {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}),
    ("API-01", BROKER, {"op": "begin"}, {"error": "ILLEGAL_STATE"}, {"error": "PRODUCER_CLOSED"}),
    (
        "CMP-17",
        "model",
        {"op": "compact"},
        {"state": {"partitions": {"t-0": {"uncommitted": [[0, None, "a"], [1, None, "b"]]}}}},
        {"state": {"partitions": {"t-0": {"uncommitted": [[1, None, "b"]]}}}},
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
    ("PST-03", BROKER, {"op": "raw_append"}, {"error": "OUT_OF_ORDER_SEQUENCE_NUMBER"}, {"error": None}),
    (
        "INIT-07",
        BROKER,
        {"op": "commit"},
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
        assert one.step({"op": "restart"}, {}, {}) == []
    assert comparison.step(op, expected, actual) == []
    assert comparison.used == {item: 1}
    assert others.step(op, expected, actual)


def test_dif_09_every_entry_of_the_whitelist_is_tested_here() -> None:
    assert [entry.item for entry in WHITELIST] == [row[0] for row in ALLOWED]
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


def test_cmp_17_a_compaction_may_hide_records_but_not_add_or_change_any() -> None:
    def step(actual: list[Any]) -> int:
        records = [[0, None, "a"], [1, None, "b"]]
        sides = ({"state": {"partitions": {"t-0": {"uncommitted": found}}}} for found in (records, actual))
        return len(Comparison().step({"op": "compact"}, *sides))

    assert [step([[1, None, "b"]]), step([]), step([[1, None, "c"]]), step([[2, None, "b"]])] == [0, 0, 1, 1]


# Traces ---------------------------------------------------------------------------------------------------------------


def test_fen_06_only_newer_instance_fences_permanently() -> None:
    """FEN-06, KIP-588: after a timeout, Kafka's client aborts and goes on."""
    comparison = Comparison(BROKER)
    flush = {"op": "flush", "producer": "A"}
    told = {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}
    comparison.step({"op": "init", "producer": "A", "id": "a"}, {}, {})
    assert comparison.step(flush, *told)
    comparison.step({"op": "init", "producer": "B", "id": "a"}, {}, {})
    assert comparison.step(flush, *told) == []
