"""Fixtures that every ring of tests uses."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

pytest_plugins = ["tests.helpers.parallel", "tests.helpers.s3_servers"]

_NAMES = itertools.count()

# A busy machine, such as one that runs tests in several processes, is no failure; and a run is like the one before.
hypothesis.settings.register_profile(
    "txnstore", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("txnstore")


def pytest_configure() -> None:
    """A shell starts what runs in its background with interrupts ignored, and every process that a test starts would
    inherit that: tests that interrupt one would wait without bound.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when the test moves it."""
    return ManualClock()


@pytest.fixture(params=[1, 3])
def chains(request: pytest.FixtureRequest) -> int:
    """How many chains the store of a test has: whatever it does must come to the same with several.

    A test that counts requests or looks at the entries of one chain says ``@ONE_CHAIN`` (tests/helpers/shell.py).
    """
    number: int = request.param
    return number


@pytest.fixture
def memory_store_url() -> Iterator[str]:
    """The URL of an empty store in memory that no other test shares."""
    name = f"test-{next(_NAMES)}"
    yield f"memory://{name}"
    MemoryStore.forget(name)


@pytest.fixture
def local_store_url(tmp_path: Path) -> str:
    """The URL of a store in a folder that does not exist yet."""
    return (tmp_path / "store").as_uri()
