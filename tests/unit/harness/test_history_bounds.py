"""Anomalies of the ends of the logs and of what stays in them."""

from __future__ import annotations

import pytest

from tests.harness.history import Bounds, Snapshot, check
from tests.helpers.histories import Story, send


def ends(log_start: int, lso: int, hw: int, *records: tuple[int, str]) -> Snapshot:
    bounds = {"k": Bounds(log_start, lso, hw)}
    return Snapshot(bounds, {"k": records}) if records else Snapshot(bounds)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((1, 12, 20), set()),
        ((1, 10, 20), {"lso-regression"}),
        ((1, 12, 19), {"hw-regression"}),
        ((0, 12, 20), {"log-start-regression"}),
    ],
)
@pytest.mark.parametrize("process", ["p", "q"])
def test_jep_18_ends_do_not_decrease_for_later_snapshots(
    after: tuple[int, int, int], expected: set[str], process: str
) -> None:
    story = Story()
    story.op("p", "snapshot", ends(1, 12, 20))
    story.op(process, "snapshot", ends(*after))
    assert story.kinds() == expected


def test_jep_18_concurrent_snapshots_may_differ() -> None:
    story = Story()
    story.op("p", "snapshot", ends(0, 12, 20), at=1, until=5)
    story.op("q", "snapshot", ends(0, 10, 20), at=5, until=6)
    assert story.kinds() == set()


def test_jep_19_final_snapshot_has_no_open_transaction() -> None:
    story = Story()
    story.op("p", "snapshot", ends(0, 5, 9))
    assert story.kinds() == set()
    story.op("p", "snapshot", ends(0, 5, 9), final=True)
    assert story.kinds() == {"stuck-lso"}
    story.op("p", "snapshot", ends(0, 10, 10), final=True)
    assert story.kinds() == set()
    story.op("p", "snapshot", Snapshot({}, {}, {"g": {}}, ("g",)), final=True)
    assert story.kinds() == {"stuck-lso"}


@pytest.mark.parametrize(
    ("value", "expected"), [("v2", set()), ("v1", {"compaction-anomaly"}), (None, {"compaction-anomaly"})]
)
def test_jep_23_the_last_record_of_a_record_key_stays(value: str | None, expected: set[str]) -> None:
    story = Story()
    story.op("p", "txn", send("v1", 3, record_key="u"))
    story.op("p", "txn", send("v2", 9, record_key="u"))
    offset = {"v1": 3, "v2": 9}
    records = ((offset[value], value),) if value is not None else ()
    story.op("s", "snapshot", Snapshot({"k": Bounds(0, 11, 11)}, {"k": records}), final=True)
    assert {item.kind for item in check(story.history(compacted=["k"]))} == expected


def test_jep_23_a_record_that_comes_back() -> None:
    story = Story()
    story.op("s", "snapshot", ends(0, 11, 11, (9, "v2")))
    assert story.kinds() == set()
    story.op("s", "snapshot", ends(0, 11, 11, (3, "v1"), (9, "v2")))
    assert "compaction-anomaly" in story.kinds()


@pytest.mark.parametrize(("log_start", "expected"), [(5, set()), (8, {"retention-anomaly"})])
def test_jep_24_the_log_start_stays_at_or_below_the_lso(log_start: int, expected: set[str]) -> None:
    story = Story()
    story.op("p", "snapshot", ends(log_start, 5, 9))
    assert story.kinds() == expected


@pytest.mark.parametrize(("log_start", "expected"), [(4, set()), (3, {"retention-anomaly"})])
def test_jep_24_a_record_above_the_log_start_stays(log_start: int, expected: set[str]) -> None:
    story = Story()
    story.op("p", "txn", [send("a", 3), send("b", 5)])
    story.op("s", "snapshot", ends(0, 7, 7, (3, "a"), (5, "b")))
    story.op("s", "snapshot", ends(log_start, 7, 7, (5, "b")))
    assert {item.kind for item in check(story.history())} - {"torn-txn"} == expected
