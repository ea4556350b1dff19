"""Anomalies of what was read: for each the smallest history that has it, and one that has not."""

from __future__ import annotations

import pytest

from tests.harness.history import Poll, check
from tests.helpers.histories import Story, poll, send


def test_jep_01_two_values_at_one_offset_are_inconsistent_offsets() -> None:
    story = Story()
    story.op("p1", "poll", poll("k", (5, "a")))
    story.op("p2", "poll", poll("k", (5, "a")))
    assert story.kinds() == set()
    story.op("p3", "poll", poll("k", (5, "b")), kind="info")
    anomalies = check(story.history())
    assert {(item.kind, item.key) for item in anomalies} == {("inconsistent-offsets", "k")}


def test_jep_02_one_value_at_two_offsets_is_a_duplicate() -> None:
    story = Story()
    story.op("p1", "poll", poll("k", (5, "a")))
    story.op("p1", "poll", poll("j", (9, "a")))
    assert story.kinds() == set()
    story.op("p2", "poll", poll("k", (9, "a")))
    assert "duplicate" in story.kinds()


def test_jep_02_the_writer_and_the_reader_must_agree_about_the_offset() -> None:
    story = Story()
    story.op("w", "send", send("a", 4))
    story.op("r", "poll", poll("k", (5, "a")))
    assert "duplicate" in story.kinds()


def test_jep_03_read_of_failed_write_is_aborted_read() -> None:
    story = Story()
    story.op("w", "txn", send("a"), kind="fail")
    story.op("r", "poll", poll("k", (0, "a")), isolation="read_uncommitted")
    assert story.kinds() == set()
    story.op("r2", "poll", poll("k", (0, "a")))
    assert story.kinds() == {"aborted-read"}


def test_jep_03_read_of_unknown_write_is_no_aborted_read() -> None:
    story = Story()
    story.op("w", "txn", send("a"), kind="info")
    story.op("r", "poll", poll("k", (0, "a")))
    assert story.kinds() == set()


def test_jep_04_a_value_that_readers_have_passed_is_lost() -> None:
    story = Story()
    for number, value in enumerate("abc"):
        story.op("w", "send", send(value, number))
    story.op("r", "poll", poll("k", (0, "a")))
    assert story.kinds() == set()
    story.op("r2", "poll", poll("k", (2, "c")))
    assert story.kinds() == {"lost-write"}


def test_jep_04_the_last_place_of_a_value_counts() -> None:
    """At 1 and at 3: a reader that came as far as c at 2 has not passed it."""
    story = Story()
    story.op("w", "txn", [send("a", 0), send("b", 1), send("c", 2)])
    story.op("r0", "poll", poll("k", (3, "b")), kind="fail")
    story.op("r", "poll", poll("k", (0, "a")))
    story.op("r2", "poll", poll("k", (2, "c")))
    assert "lost-write" not in story.kinds()


@pytest.mark.parametrize("read_other", [False, True])
def test_jep_04_an_unknown_transaction_is_lost_only_if_another_of_its_values_was_read(read_other: bool) -> None:
    """Also JEP-16: then it is torn as well."""
    story = Story()
    story.op("w", "txn", [send("a", 0), send("x", 0, "j")], kind="info")
    story.op("w2", "send", send("b", 1))
    story.op("r", "poll", poll("k", (1, "b")))
    if read_other:
        story.op("r", "poll", poll("j", (0, "x")))
    assert story.kinds() == ({"lost-write", "torn-txn"} if read_other else set())


def test_jep_04_a_plain_send_is_not_all_or_nothing() -> None:
    story = Story()
    story.op("w", "send", [send("a", 0), send("x", 0, "j")], kind="info")
    story.op("w2", "send", send("b", 1))
    story.op("r", "poll", [poll("k", (1, "b")), poll("j", (0, "x"))])
    assert story.kinds() == set()


def test_jep_05_unseen_needs_a_last_phase() -> None:
    story = Story()
    for number, value in enumerate("abcd"):
        story.op("w", "send", send(value, number))
    story.op("r", "poll", poll("k", (0, "a"), (1, "b"), (2, "c")))
    assert story.kinds() == set()
    story.op("f", "poll", poll("k", (0, "a"), (1, "b"), (2, "c")), final=True)
    assert story.kinds() == {"unseen"}
    story.op("f", "poll", poll("k", (3, "d")), final=True)
    assert story.kinds() == set()


def test_jep_05_an_empty_last_poll_says_that_the_key_is_empty() -> None:
    story = Story()
    story.op("w", "txn", send("a"))
    story.op("w2", "txn", send("b"), kind="info")
    story.op("f", "poll", Poll({"k": ()}), final=True)
    assert [item.operations for item in check(story.history())] == [(0,)]


def test_jep_11_a_transaction_that_reads_itself() -> None:
    story = Story()
    story.op("p", "txn", [poll("k", (0, "a")), send("b", 1)])
    story.op("p", "poll", poll("k", (1, "b")))
    assert story.kinds() == set()
    story.op("q", "txn", [send("c", 2), poll("k", (2, "c"))])
    assert story.kinds() == {"precommitted-read"}


def test_a_workload_that_sends_a_value_twice_is_refused() -> None:
    story = Story()
    story.op("p", "send", send("a"))
    story.op("p", "send", send("a"))
    with pytest.raises(ValueError, match="twice"):
        story.kinds()
