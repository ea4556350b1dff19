"""The linger thread: one flush for what came together, another try after a failure, and an end when it is told."""

from __future__ import annotations

import logging
import threading

import pytest

from txnstore.errors import StorageError
from txnstore.producing.linger import Lingerer

TINY, LONG = 0.001, 3_600.0


class Flush:
    """Counts, and tells when it was called; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.called = threading.Semaphore(0)
        self.threads: list[str] = []
        self.failures = failures

    def __call__(self) -> BaseException | None:
        self.threads.append(threading.current_thread().name)
        self.called.release()
        if self.failures:
            self.failures -= 1
            return StorageError("away")
        return None

    def wait(self) -> None:
        assert self.called.acquire(timeout=30)


def test_a_wake_is_followed_by_a_flush_in_another_thread() -> None:
    flush = Flush()
    lingerer = Lingerer(TINY, flush)
    lingerer.wake()
    flush.wait()
    lingerer.stop()
    assert flush.threads == ["txnstore-linger"]


def test_each_flush_needs_a_wake_of_its_own() -> None:
    flush = Flush()
    lingerer = Lingerer(0.0, flush)
    for _ in range(3):
        lingerer.wake()
        flush.wait()
    lingerer.stop()
    assert len(flush.threads) == 3


def test_wakes_before_the_time_is_up_are_one_flush() -> None:
    flush = Flush()
    lingerer = Lingerer(LONG, flush)
    for _ in range(100):
        lingerer.wake()
    lingerer.stop()
    assert flush.threads == []


def test_nothing_runs_without_a_wake() -> None:
    lingerer = Lingerer(TINY, Flush())
    assert lingerer._thread is None
    lingerer.stop()


def test_a_stop_ends_the_thread_at_once_and_flushes_nothing() -> None:
    """The caller flushes what is left, so that it hears what is wrong with it."""
    flush = Flush()
    lingerer = Lingerer(LONG, flush)
    lingerer.wake()
    thread = lingerer._thread
    assert thread is not None
    lingerer.stop()
    assert not thread.is_alive()
    assert flush.threads == []


def test_a_wake_after_the_stop_starts_nothing() -> None:
    flush = Flush()
    lingerer = Lingerer(TINY, flush)
    lingerer.stop()
    lingerer.wake()
    assert lingerer._thread is None


def test_a_flush_that_failed_is_tried_again_without_a_wake(caplog: pytest.LogCaptureFixture) -> None:
    """The storage was away for a moment: nobody has to send another record for the first ones to arrive."""
    flush = Flush(failures=2)
    lingerer = Lingerer(TINY, flush, again=TINY)
    with caplog.at_level(logging.WARNING):
        lingerer.wake()
        for _ in range(3):
            flush.wait()
        lingerer.stop()
    assert len(flush.threads) == 3
    assert [record.message for record in caplog.records] == ["records wait for another flush"] * 2


def test_a_stop_does_not_wait_for_another_try() -> None:
    flush = Flush(failures=1)
    lingerer = Lingerer(TINY, flush, again=LONG)
    lingerer.wake()
    flush.wait()
    lingerer.stop()
    assert len(flush.threads) == 1


def test_a_flush_may_stop_its_own_thread() -> None:
    """A done callback may close the producer."""
    done = threading.Event()

    def flush() -> None:
        lingerer.stop()
        done.set()

    lingerer = Lingerer(TINY, flush)
    lingerer.wake()
    assert done.wait(30)


def test_a_stop_at_the_moment_of_a_flush_is_not_missed() -> None:
    """The thread has just seen that it is wanted and not stopped, and clears the event that the stop has set."""
    lingerer = Lingerer(0.0, lambda: None)

    class Late(threading.Event):
        def clear(self) -> None:
            lingerer._stopped.set()
            self.set()
            super().clear()

    lingerer._wanted = Late()
    lingerer.wake()
    thread = lingerer._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
