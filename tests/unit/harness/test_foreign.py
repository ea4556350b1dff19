"""How the run of the tests of other clients reads their outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.foreign.__main__ import EXPECTED, main
from tests.compat.foreign.kcat import CASES
from tests.compat.foreign.parsing import parse_go, parse_junit, short
from tests.compat.foreign.suites import SUITES
from tests.compat.kafka_clients.outcomes import Case, Result, read_expected


def _event(action: str, test: str | None, **more: object) -> str:
    return json.dumps({"Action": action, "Package": "kgo", **({} if test is None else {"Test": test}), **more})


def _line(test: str, text: str) -> str:
    return _event("output", test, Output=f"    client_test.go:12: {text}\n")


def test_tests_in_go_have_their_outcome_and_their_first_reason() -> None:
    lines = [
        "go: downloading a module",
        _event("start", None),
        *(_event("run", name) for name in ("TestA", "TestB", "TestC", "TestD", "TestB/one")),
        _line("TestB/one", "got 3 != exp 4"),
        _line("TestB", "deleting the topic"),
        _line("TestC", "no share groups"),
        _event("pass", "TestA", Elapsed=1.5),
        _event("fail", "TestB/one", Elapsed=1.0),
        _event("fail", "TestB", Elapsed=2.0),
        _event("skip", "TestC", Elapsed=0.0),
        _event("fail", None),
    ]
    assert parse_go("go", lines, "the process ended with 1") == {
        Case("go", "TestA"): Result("passed", "", 1.5),
        Case("go", "TestB"): Result("failed", "got 3 != exp 4", 2.0),
        Case("go", "TestC"): Result("left out", "no share groups"),
        Case("go", "TestD"): Result("failed", "the process ended with 1"),
    }


def test_cases_of_pytest_have_their_outcome(tmp_path: Path) -> None:
    (tmp_path / "out.xml").write_text(
        """<testsuites><testsuite>
        <testcase classname="test.test_a" name="test_good[gzip]" time="2.5"/>
        <testcase classname="test.test_a" name="test_bad" time="1"><failure message="assert 1 == 2"/></testcase>
        <testcase classname="test.test_a" name="test_setup" time="1"><error message="no topic"/></testcase>
        <testcase classname="test.test_a" name="test_old" time="0"><skipped message="an old broker"/></testcase>
        </testsuite></testsuites>""",
        encoding="utf-8",
    )
    assert parse_junit("py", tmp_path / "out.xml", "") == {
        Case("py", "test_a.test_good[gzip]"): Result("passed", "", 2.5),
        Case("py", "test_a.test_bad"): Result("failed", "assert 1 == 2", 1.0),
        Case("py", "test_a.test_setup"): Result("failed", "no topic", 1.0),
        Case("py", "test_a.test_old"): Result("left out", "an old broker"),
    }


def test_a_run_without_a_file_has_no_case_that_passed(tmp_path: Path) -> None:
    end = "no end in 3600 s"
    assert parse_junit("py", tmp_path / "none.xml", end) == {Case("py", "*"): Result("failed", end)}
    assert parse_go("go", ["go: updates to go.mod needed"], end) == {Case("go", "*"): Result("failed", end)}


def test_a_suite_that_cannot_run_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Neither git nor kcat is there.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["confluent-kafka", "kcat", "--folder", str(tmp_path / "foreign")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "confluent-kafka cannot run: git is not installed. Install it.",
        "kcat cannot run: kcat is not installed. Install it (Debian: kcat).",
    ]


def test_reasons_are_the_same_in_each_run() -> None:
    text = "topic 3e660d530e7b96a2755a664499734e4894bd11fbfbfe1b6f1cd3067df1c4eaac\n at localhost:45123"
    assert short(text) == "topic … at localhost:…"


def test_each_suite_has_cases_in_the_list_and_each_that_does_not_pass_a_reason() -> None:
    expected = read_expected(EXPECTED)
    assert {case.of for case in expected} == set(SUITES)
    assert {case.name for case in expected if case.of == "kcat"} == set(CASES)
    assert not [case for case, result in expected.items() if result.outcome != "passed" and not result.why]
