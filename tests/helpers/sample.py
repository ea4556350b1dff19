"""A sample of the long tests: ``pytest --sample N`` runs all quick tests, and one in N of the others.

The commit draws the sample: a run can be repeated, and each long test runs every few commits. Of many long tests of one
kind ``@pytest.mark.one_in(M)`` draws another share. ``make test-all`` runs all. Load as a pytest plugin.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parent.parent
#: The folders whose tests are quick, but for those that are marked as slow: `make check` runs them.
_QUICK = tuple(_TESTS / name for name in ("unit", "protocol", "simulation"))
#: A number that draws the sample. The processes of one run share it.
_DRAW = "TXNSTORE_SAMPLE"
_LEFT_OUT = pytest.StashKey[int]()


def is_quick(item: pytest.Item) -> bool:
    """Whether `make check` runs a test."""
    return item.get_closest_marker("slow") is None and any(item.path.is_relative_to(folder) for folder in _QUICK)


def is_drawn(test: str, draw: int, share: int) -> bool:
    """Whether a test, by its node id, belongs to the sample of one in ``share`` that a number draws."""
    return (zlib.crc32(test.encode()) + draw) % share == 0


def share_of(item: pytest.Item, share: int) -> int:
    """Of how many long tests one runs: its own share where it has one, in a sample."""
    own = item.get_closest_marker("one_in")
    return own.args[0] if own is not None and share > 1 else share


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, default=1, metavar="N", help="one in N of the long tests, by the commit")
    parser.addoption("--after-check", action="store_true", help="leave out the tests that `make check` runs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sample") > 1:
        os.environ.setdefault(_DRAW, str(_number_of_commit()))


def _number_of_commit() -> int:
    """A number of the commit that is checked out; 0 without one."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_TESTS, capture_output=True, text=True, check=False)
    return int(head.stdout[:8] or "0", 16)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--sample")
    draw = int(os.environ.get(_DRAW, "0"))
    chosen: list[pytest.Item] = []
    checked: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        if is_quick(item):
            (checked if config.getoption("--after-check") else chosen).append(item)
        else:
            (chosen if is_drawn(item.nodeid, draw, share_of(item, share)) else left).append(item)
    config.stash[_LEFT_OUT] = len(left)
    if checked or left:
        items[:] = chosen
        config.hook.pytest_deselected(items=[*checked, *left])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist reports what it has left out: its controller collects nothing."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    config, output = node.config, getattr(node, "workeroutput", {})  # type: ignore[attr-defined]
    config.stash[_LEFT_OUT] = output.get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_LEFT_OUT, 0)
    if left:
        share = config.getoption("--sample")
        terminalreporter.write_line(
            f"{left:,} long tests were left out: the commit draws one in {share} ({_DRAW}={os.environ[_DRAW]}). "
            "`make test-all` runs all."
        )
