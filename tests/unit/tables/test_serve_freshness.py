"""``--fresh``: who asks for the newest cut publishes first, unless that was done a short time ago."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from txnstore.errors import StorageError
from txnstore.tables.serve.cuts import Freshness
from txnstore.testing import ManualClock


class Syncs:
    """Publications, counted. Each takes 100 ms of the clock; ``error`` is raised at its end."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.count += 1
        self._clock.advance(100)
        if self.error is not None:
            raise self.error


@pytest.fixture
def syncs(clock: ManualClock) -> Syncs:
    return Syncs(clock)


def test_the_first_one_publishes(syncs: Syncs, clock: ManualClock) -> None:
    """The newest cut may be of last year, whatever its age by the time of its entries."""
    assert Freshness(syncs, clock, 5_000).ensure() is None
    assert syncs.count == 1


def test_a_publication_lasts_from_its_beginning_on(syncs: Syncs, clock: ManualClock) -> None:
    """What was committed while it ran may not be in it."""
    freshness = Freshness(syncs, clock, 5_000)
    freshness.ensure()
    clock.advance(4_899)
    freshness.ensure()
    assert syncs.count == 1
    clock.advance(1)
    freshness.ensure()
    assert syncs.count == 2


def test_none_lasts_for_zero_seconds(syncs: Syncs) -> None:
    stopped = ManualClock()
    freshness = Freshness(syncs, stopped, 0)
    for count in (1, 2, 3):
        freshness.ensure()
        assert syncs.count == count


def test_an_error_is_logged_and_returned_until_a_publication_succeeds(
    syncs: Syncs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not each load of an engine waits for a storage that fails."""
    freshness = Freshness(syncs, clock, 5_000)
    syncs.error = StorageError("no answer")
    with caplog.at_level(logging.WARNING):
        assert (freshness.ensure(), freshness.ensure(), syncs.count) == ("StorageError", "StorageError", 1)
    assert [record.getMessage() for record in caplog.records] == ["the tables could not be published"]
    syncs.error = None
    clock.advance(5_000)
    assert (freshness.ensure(), syncs.count) == (None, 2)


def together(count: int, task: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=task, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_those_who_come_meanwhile_wait_for_the_same_publication(clock: ManualClock) -> None:
    began, end, asked = threading.Event(), threading.Event(), threading.Semaphore(0)
    counted: list[int] = []

    def sync() -> None:
        counted.append(1)
        began.set()
        assert end.wait(60)

    def now() -> int:
        asked.release()
        return clock()

    freshness = Freshness(sync, now, 5_000)
    first = together(1, freshness.ensure)
    assert began.wait(60)
    asked.acquire(timeout=60)  # The first one has asked the clock twice: when it came, and when it began.
    asked.acquire(timeout=60)
    others = together(5, freshness.ensure)
    for _ in others:
        assert asked.acquire(timeout=60)
    end.set()
    for thread in [*first, *others]:
        thread.join(60)
        assert not thread.is_alive()
    assert len(counted) == 1
