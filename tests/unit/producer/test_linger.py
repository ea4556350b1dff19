"""The thread of a sender: one flush for what came together, another try after a failure, and an end when asked."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from queue import SimpleQueue

import pytest

from txnstore.errors import StorageError
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.linger import Linger, Waiter

TINY, LONG = 0.001, 3_600.0


class Flush:
    """Counts its calls, and fails as often as it is asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.called = threading.Semaphore(0)
        self.threads: list[str] = []
        self.failures = failures

    @property
    def has_more(self) -> bool:
        return True

    @property
    def holds_transaction(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError

    def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
        self.threads.append(threading.current_thread().name)
        self.called.release()
        if self.failures:
            self.failures -= 1
            return StorageError("away")
        return None

    def wait(self) -> None:
        assert self.called.acquire(timeout=300)


def waiter() -> Waiter:
    return SimpleQueue()


def test_a_wake_is_followed_by_a_flush_in_another_thread() -> None:
    flush = Flush()
    linger = Linger(flush, TINY)
    linger.wake()
    flush.wait()
    linger.stop()
    assert flush.threads == ["txnstore-linger"]


def test_each_flush_needs_a_wake_of_its_own() -> None:
    flush = Flush()
    linger = Linger(flush, 0.0)
    for _ in range(3):
        linger.wake()
        flush.wait()
    linger.stop()
    assert len(flush.threads) == 3


def test_a_producer_wakes_it_once_until_it_flushes() -> None:
    flush = Flush()
    linger = Linger(flush, LONG)
    before = linger.woken
    linger.wake()
    assert (before, linger.woken) == (False, True)
    linger.stop()
    assert flush.threads == []


def test_without_a_time_it_starts_when_somebody_waits() -> None:
    flush = Flush()
    linger = Linger(flush, None)
    linger.wake()
    assert not linger.loop.running()
    one = waiter()
    linger.demand(one)
    assert one.get(timeout=300) is None
    linger.stop()
    assert len(flush.threads) == 1


def test_who_waits_ends_the_linger() -> None:
    flush = Flush()
    linger = Linger(flush, LONG)
    linger.wake()
    one = waiter()
    linger.demand(one)
    assert one.get(timeout=300) is None
    linger.stop()


def test_who_waits_hears_why_the_flush_failed() -> None:
    flush = Flush(failures=1)
    linger = Linger(flush, None)
    one = waiter()
    linger.demand(one)
    assert isinstance(one.get(timeout=300), StorageError)
    linger.stop()


def test_a_stop_ends_the_thread_and_flushes_nothing() -> None:
    """The caller flushes what is left, so it hears what is wrong with it."""
    flush = Flush()
    linger = Linger(flush, LONG)
    linger.wake()
    linger.stop()
    assert linger.loop.done()
    assert flush.threads == []
    linger.wake()
    linger.stop()


def test_a_flush_that_failed_is_tried_again_without_a_wake(caplog: pytest.LogCaptureFixture) -> None:
    """The storage was away for a moment: the first records arrive without another ``send``."""
    flush = Flush(failures=2)
    linger = Linger(flush, TINY, retry_seconds=TINY)
    with caplog.at_level(logging.WARNING):
        linger.wake()
        for _ in range(3):
            flush.wait()
        linger.stop()
    assert len(flush.threads) == 3
    assert [record.msg for record in caplog.records] == ["records wait for another flush: %s"] * 2


def test_a_stop_does_not_wait_for_another_try() -> None:
    flush = Flush(failures=1)
    linger = Linger(flush, TINY, retry_seconds=LONG)
    linger.wake()
    flush.wait()
    linger.stop()
    assert len(flush.threads) == 1


def test_a_flush_may_stop_its_own_thread() -> None:
    """A done callback may close the producer."""
    done = threading.Event()

    class Closing(Flush):
        def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
            linger.stop()
            done.set()
            return None

    closing = Closing()
    linger = Linger(closing, TINY)
    linger.wake()
    assert done.wait(300)


def test_a_sender_without_references_ends_the_thread() -> None:
    flush = Flush()
    linger = Linger(flush, TINY)
    del flush
    assert linger.loop.wait(300)


def test_a_stop_before_the_thread_begins_forgets_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its orders would keep the sender, and with it the store, until the interpreter ends."""
    monkeypatch.setattr("txnstore.producer.linger.start", lambda *_: None)

    sender = Flush()
    linger = Linger(sender, 10.0)
    linger.wake()
    linger.stop()
    left = weakref.ref(sender)
    del sender
    gc.collect()
    assert left() is None
