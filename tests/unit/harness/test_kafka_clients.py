"""How the run of Kafka's own tests reads its outcomes, and when it fails."""

from __future__ import annotations

from pathlib import Path

from tests.compat.kafka_clients.outcomes import (
    Case,
    Result,
    accepted,
    differences,
    left_out_of,
    parse,
    read_expected,
    write_expected,
)

_FENCE = Case("FenceTest", "testFence")


def _line(event: str, time: int, number: str = "1", error: str = "") -> str:
    return "\t".join((event, str(time), "org.apache.kafka.FenceTest", "testFence", number, error))


def test_cases_have_their_outcome_and_their_time() -> None:
    lines = [_line("STARTED", 1_000), _line("SUCCESSFUL", 3_500), _line("STARTED", 4_000, "2")]
    lines += [
        _line("FAILED", 5_000, "2", "TimeoutException: localhost:45123 did not answer"),
        _line("SKIPPED", 6_000, "3"),
    ]
    assert parse(lines, "the machine ended with 0") == {
        _FENCE: Result("passed", "", 2.5),
        Case("FenceTest", "testFence[2]"): Result("failed", "TimeoutException: localhost:… did not answer", 1.0),
    }


def test_a_case_that_has_not_ended_fails() -> None:
    assert parse([_line("STARTED", 1_000)], "no end in 300 s") == {_FENCE: Result("failed", "no end in 300 s")}


def test_a_case_that_looks_into_a_broker_is_left_out() -> None:
    error = "ExecutionException <- NeedsInternals: KafkaBroker.metrics (line 90)"
    assert parse([_line("FAILED", 1_000, error=error)], "") == {
        _FENCE: Result("left out", "looks into the broker: KafkaBroker.metrics")
    }


def test_the_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    results = {_FENCE: Result("failed", 'a "quoted" reason'), Case("FenceTest", "testOther"): Result("passed")}
    write_expected(results, tmp_path / "expected.tsv")
    assert read_expected(tmp_path / "expected.tsv") == results


def test_a_case_that_begins_to_fail_or_vanishes_or_is_new_fails_the_run() -> None:
    expected = {Case("ATest", name): Result("passed") for name in ("broken", "good", "vanished")}
    expected |= {
        Case("ATest", "bad"): Result("failed", "no ACLs"),
        Case("ATest", "inside"): Result("left out", "metrics"),
    }
    results = {
        Case("ATest", "good"): Result("passed"),
        Case("ATest", "bad"): Result("failed", "another reason"),
        Case("ATest", "broken"): Result("failed", "TimeoutException"),
        Case("ATest", "new"): Result("passed"),
    }
    assert differences(expected, results, list(expected)) == [
        "ATest.broken should pass: TimeoutException",
        "ATest.new is not in the list: passed",
        "ATest.vanished should pass, and did not run",
    ]


def test_what_the_list_says_of_a_case_stays_while_its_outcome_does() -> None:
    expected = {Case("ATest", "a"): Result("failed", "a gateway has no ACLs"), Case("ATest", "b"): Result("passed")}
    results = {
        Case("ATest", "a"): Result("failed", "Timeout", 60.0),
        Case("ATest", "b"): Result("failed", "Timeout", 60.0),
    }
    assert accepted(expected, results) == {
        Case("ATest", "a"): Result("failed", "a gateway has no ACLs"),
        Case("ATest", "b"): Result("failed", "Timeout"),
    }


def test_methods_without_a_case_to_run_are_left_out() -> None:
    expected = {
        Case("ATest", "some"): Result("left out", "metrics"),
        Case("ATest", "some[2]"): Result("passed"),
        Case("ATest", "none"): Result("left out", "metrics"),
        Case("ATest", "bad"): Result("failed", "no ACLs"),
        Case("BTest", "*"): Result("left out", "share groups"),
    }
    assert left_out_of(expected, "ATest") == ["none"]
    assert left_out_of(expected, "ATest", failing=True) == ["bad", "none"]
    assert left_out_of(expected, "BTest") is None
    assert left_out_of(expected, "CTest") == []
