"""The event loop of a process: whatever happens while it begins, requests find one that runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from txnstore.storage.s3 import loop as s3_loop
from txnstore.storage.s3.loop import own_loop, run_on
from txnstore.threads import Task, start

GUARD = 30.0  # Seconds: against hangs, no verdict.


class Loops:
    """Those of a process that has none yet."""

    def __init__(self) -> None:
        self.shared: dict[int, asyncio.AbstractEventLoop] = {}
        self._threads: list[tuple[Task[object], Task[object]]] = []

    def start(self, run: Any, name: str) -> None:
        """As :func:`txnstore.threads.start`, for the threads of loops."""
        task: Task[object] = Task(run)
        start(task.run, name)
        self._threads.append((run.args[0], task))

    def answer(self) -> bool:
        """Whether a request is answered. A shared loop that nothing runs is seen before a request waits for it."""
        loop = self.shared.get(os.getpid())
        if loop is not None:
            beat: Task[bool] = Task(lambda: True)
            loop.call_soon_threadsafe(beat.run)
            assert beat.wait(GUARD), "nothing runs the loop"
        return run_on(own_loop(), _true).result()

    def end(self) -> None:
        """End all threads."""
        for begun, _ in self._threads:
            begun.wait()
        shared = [*self.shared.values()]
        self.shared.clear()
        for loop in shared:
            loop.call_soon_threadsafe(loop.stop)
        while self._threads:
            self._threads.pop()[1].result()
        for loop in shared:
            loop.close()


@pytest.fixture(autouse=True)
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loops]:
    made = Loops()
    monkeypatch.setattr(s3_loop, "_LOOPS", made.shared)
    monkeypatch.setattr(s3_loop, "start", made.start)
    yield made
    made.end()


async def _true() -> bool:
    return True


def test_thread_that_cannot_start_leaves_no_loop(monkeypatch: pytest.MonkeyPatch, loops: Loops) -> None:
    """The next request tries again, instead of waiting for a loop that nothing runs."""

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(s3_loop, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            own_loop()
    assert loops.shared == {}
    assert loops.answer()


def test_loop_that_cannot_be_made_is_an_error_of_its_request(monkeypatch: pytest.MonkeyPatch, loops: Loops) -> None:
    def no_files() -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", no_files)
        with pytest.raises(OSError, match="Too many open files"):
            own_loop()
    assert loops.answer()


def test_interrupt_anywhere_leaves_no_loop_that_nothing_runs(loops: Loops) -> None:
    def attempt(interrupter: Interrupter) -> bool:
        struck = interrupter.run(own_loop)
        assert loops.answer()
        loops.end()
        return struck

    assert list(everywhere(places(own_loop, start), attempt))


def test_threads_that_begin_at_once_agree_on_one_loop(monkeypatch: pytest.MonkeyPatch, loops: Loops) -> None:
    """The loop of the others is closed."""
    made: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop
    first: list[asyncio.AbstractEventLoop] = []

    def counted() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    def late(run: Any, name: str) -> None:
        """Another thread begins after this one has seen that there is no loop."""
        monkeypatch.setattr(s3_loop, "start", loops.start)
        first.append(own_loop())
        loops.start(run, name)

    monkeypatch.setattr(asyncio, "new_event_loop", counted)
    monkeypatch.setattr(s3_loop, "start", late)
    assert own_loop() is first[0]
    assert loops.answer()
    loops.end()
    assert [loop.is_closed() for loop in made] == [True, True]
