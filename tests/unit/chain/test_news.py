"""Pauses that end when this process learns of an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers import keys
from tests.helpers.shell import in_threads, runtime
from txnstore.chain.committer.rendezvous import UnixSockets
from txnstore.chain.context import ChainContext
from txnstore.chain.news import News
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

#: Seconds that no test waits.
LONG = 240.0


def news() -> News:
    context = ChainContext(MemoryStore(), keys.KEYS, runtime(), InlineExecutor(), rendezvous=UnixSockets())
    return News(context)


def test_what_was_published_after_the_last_look_ends_the_pause_at_once() -> None:
    made = news()
    seen = made.count
    made.announce()
    assert made.wait(LONG, seen)
    assert not made.wait(0, made.count)


def test_an_entry_wakes_all_that_wait() -> None:
    made = news()

    def wait_or_announce(number: int) -> bool:
        if number < 3:
            return made.wait(LONG, 0)
        made.announce()
        return True

    assert all(in_threads(4, wait_or_announce))
    assert made._waiting == ()


def test_a_signal_handler_may_wait_in_the_midst_of_a_wait() -> None:
    made = news()
    with made._lock:  # The handler runs while its own thread has the lock.
        assert not made.wait(0, made.count)
    assert made._waiting == ()


def test_an_interrupt_leaves_no_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    made = news()

    class Interrupted:
        put: Callable[[object], None]

        def get(self, _timeout: float) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(UnixSockets, "mailbox", lambda _: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        made.wait(LONG, made.count)
    assert made._waiting == ()


def test_a_process_that_meets_no_others_pauses_by_its_clock() -> None:
    clock = ManualClock()
    own = replace(runtime(clock), sleep=clock.sleep)
    made = News(ChainContext(MemoryStore(), keys.KEYS, own, InlineExecutor()))
    before, seen = clock(), made.count
    made.announce()
    assert not made.wait(2, seen)
    assert clock() - before == 2_000
