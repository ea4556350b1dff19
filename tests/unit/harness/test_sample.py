"""Which long tests a sample has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.sample import is_drawn, share_of

SHARE = 3
#: Quick tests, and long ones.
FILES = ("unit/harness/test_sample.py", "integration/test_corruption.py", "mutants/test_mutants.py")
TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("test", ["tests/a.py::test", "tests/a.py::test[1]", "tests/a.py::test[3]"])
def test_each_long_test_is_in_one_of_the_samples(test: str) -> None:
    assert [is_drawn(test, draw, SHARE) for draw in range(7, 7 + SHARE)].count(True) == 1


@pytest.mark.one_in(32)
def test_a_long_test_may_have_a_share_of_its_own(request: pytest.FixtureRequest) -> None:
    assert share_of(request.node, SHARE) == 32


def test_other_long_tests_have_the_share_of_the_sample(request: pytest.FixtureRequest) -> None:
    assert share_of(request.node, SHARE) == SHARE


@pytest.mark.one_in(32)
def test_without_a_sample_all_long_tests_run(request: pytest.FixtureRequest) -> None:
    assert share_of(request.node, 1) == 1


@pytest.mark.slow
def test_a_sample_has_all_quick_tests_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    found: list[set[str]] = []
    for draw in range(SHARE):
        monkeypatch.setenv("TXNSTORE_SAMPLE", str(draw))
        collected = _Collected()
        files = [str(TESTS / name) for name in FILES]
        options = ["-q", "--collect-only", "-pno:cacheprovider", f"--sample={SHARE}"]
        assert pytest.main([*options, *files], [collected]) is pytest.ExitCode.OK
        assert f"the commit draws one in {SHARE} (TXNSTORE_SAMPLE={draw})" in capsys.readouterr().out
        found.append(collected.names)
    quick = set.intersection(*found)
    assert quick
    assert all("unit/harness/test_sample.py::" in name for name in quick)
    assert sum(len(names - quick) for names in found) == len(set.union(*found) - quick)


class _Collected:
    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names |= {item.nodeid for item in session.items}
