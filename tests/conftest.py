"""Fixtures that every ring of tests uses."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.helpers.compaction import new_store
from txnstore.catalog.settings import TopicConfig
from txnstore.read import ranged
from txnstore.segment import codec
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

pytest_plugins = ["tests.helpers.parallel", "tests.helpers.s3_servers", "tests.helpers.sample"]

_NAMES = itertools.count()

#: Where the tests and the processes that they start remember what storage was probed: not in the cache of the user.
_CACHE = tempfile.TemporaryDirectory(prefix="txnstore-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# A busy machine, such as one that runs tests in several processes, is no failure; and a run is like the one before.
hypothesis.settings.register_profile(
    "txnstore", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("txnstore")

# In the child of a fork, a collection would end objects that other tests have left, whose libraries' threads it lacks.
os.register_at_fork(after_in_child=gc.freeze)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests and the modules that were imported stay until the end: leave them out of all garbage collections, each
    of which would look at hundreds of thousands of them. Not in the middle of a run, nor of one inside of another: that
    would keep garbage. They are back in the end, since nanobind reports what is not freed at exit as leaks.
    """
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
        session.config.add_cleanup(gc.unfreeze)


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


@pytest.fixture
def objects(clock: ManualClock) -> MemoryStore:
    """An empty object store in memory, whose clock a test moves."""
    return MemoryStore(clock=clock)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 3])
def chains(request: pytest.FixtureRequest) -> int:
    """How many chains the store of a test has: the result must be the same with one and with several.

    One chain is what most tests have: those of this fixture are in the sample of the long tests.

    A test that counts requests or looks at the entries of one chain says ``@ONE_CHAIN`` (tests/helpers/shell.py).
    """
    number: int = request.param
    return number


@pytest.fixture
def used_for_days(clock: ManualClock, objects: MemoryStore, chains: int) -> Store:
    """A store whose segments are objects of their own, for :func:`tests.helpers.history.pass_days`."""
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", config={"inline.bytes": 0})
    return store


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


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small Parquet segments have checksums of their blocks too, and are read by ranges."""
    ranged.forget_footers()
    monkeypatch.setattr(codec, "BLOCKS_FROM_BYTES", 1)
    monkeypatch.setattr(ranged, "SMALL_BYTES", 0)
    monkeypatch.setattr(ranged, "WHOLE_BYTES", 0)


@pytest.fixture
def unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small commits stay as they are: no process merges them in the background."""
    monkeypatch.setattr("txnstore.store._merge_later", lambda _connection, _state: None)


@pytest.fixture
def own_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """All segments are objects of their own, as with ``inline.bytes=0`` and ``segment.own.bytes=0``, however small."""
    parameters = inspect.signature(TopicConfig).parameters.values()
    defaults = [item.default for item in parameters if item.default is not inspect.Parameter.empty]
    names = [item.name for item in parameters if item.default is not inspect.Parameter.empty]
    off = ("inline_bytes", "segment_own_bytes")
    new_defaults = tuple(0 if name in off else value for name, value in zip(names, defaults, strict=True))
    monkeypatch.setattr(TopicConfig.__init__, "__defaults__", new_defaults)
