"""How the run of the tests of other clients reads their outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.foreign import librdkafka
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


def test_subtests_in_go_are_cases_in_place_of_their_test() -> None:
    lines = [
        *(_event("run", name) for name in ("TestA", "TestA/one", "TestA/two", "TestA/two/deep", "TestB")),
        _line("TestA/two/deep", "got 3"),
        _event("pass", "TestA/one", Elapsed=1.0),
        _event("fail", "TestA/two/deep", Elapsed=1.0),
        _event("fail", "TestA/two", Elapsed=2.0),
        _event("fail", "TestA", Elapsed=3.0),
        _event("pass", "TestB", Elapsed=1.0),
    ]
    assert parse_go("go", lines, "", parts=True) == {
        Case("go", "TestA/one"): Result("passed", "", 1.0),
        Case("go", "TestA/two"): Result("failed", "got 3", 2.0),
        Case("go", "TestB"): Result("passed", "", 1.0),
    }


_TESTS = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          _THRES(.ucpu = 100.0, .scpu = 20.0, .rss = 900.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0045_update, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0045_update_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0045_update_mock, TEST_F_LOCAL),
#if WITH_SOCKEM
    _TEST(0049_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
#endif
    _TEST(0103_transactions, 0, .scenario = "default,ak23"),

    /* Manual tests */
    _TEST(8000_idle, TEST_F_MANUAL),

    {NULL}};
"""


def test_tests_of_librdkafka_that_need_a_broker_are_run_by_number_and_cluster() -> None:
    assert [(job.number, job.scenario, job.names) for job in librdkafka.jobs(_TESTS)] == [
        ("0001", "default", ("0001_multiobj",)),
        ("0045", "default", ("0045_update",)),
        ("0045", "noautocreate", ("0045_update_remove",)),
        ("0049", "default", ("0049_close",)),
        ("0103", "default", ("0103_transactions",)),
    ]


def test_a_test_of_librdkafka_that_ends_with_its_first_failure_is_run_by_parts() -> None:
    jobs = librdkafka.jobs("    _TEST(0081_admin, 0, TEST_BRKVER(0, 10, 2, 0)),\n    _TEST(0082_b, 0),\n\n")
    assert [job.number for job in jobs[-2:]] == ["0081", "0082"]
    assert jobs[1].cases == {"0081_admin.CreateTopics": "0081_admin"}


def test_results_of_librdkafka_are_those_of_its_summary() -> None:
    output = """\
\x1b[31m### Test "0001_a (part:7)" failed at a.c:882:part() at Tue Dec  1 08:13:14 2026: ###
expected NO_ERROR, got 42
TEST 20261201081142 (bare, scenario default) SUMMARY
|\x1b[32m <MAIN>                  |     PASSED |   3.209s \x1b[0m|
|\x1b[31m 0001_a                  |     FAILED |   2.500s \x1b[0m|
|\x1b[32m 0001_b                  |     PASSED |   1.250s \x1b[0m|
|\x1b[36m 0001_c                  |    SKIPPED |   0.000s \x1b[0m|\x1b[36m no TLS\x1b[0m
"""
    cases = {name: name for name in ("0001_a", "0001_b", "0001_c", "0001_d")}
    assert librdkafka.parse("rd", cases, output, "the process ended with -6") == {
        Case("rd", "0001_a"): Result("failed", "expected NO_ERROR, got 42", 2.5),
        Case("rd", "0001_b"): Result("passed", "", 1.25),
        Case("rd", "0001_c"): Result("left out", "no TLS"),
        Case("rd", "0001_d"): Result("failed", "expected NO_ERROR, got 42"),
    }
    assert librdkafka.parse("rd", {"x": "x"}, "", "no end")[Case("rd", "x")] == Result("failed", "no end")


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
