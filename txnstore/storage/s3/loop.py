"""The event loop of this process for requests to S3, and requests on it.

``fsspec.asyn.sync`` waits with a ``threading.Event``: an interrupt (Ctrl-C) inside may leave the lock of the event
acquired, for which the I/O thread then waits forever, and with it every request of the process. See
:mod:`txnstore.threads`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from txnstore.threads import Task, start

T = TypeVar("T")

#: The event loops, by process id. A forked child keeps that of its parent without using it: collecting it would close
#: what both share.
_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}


def own_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process. The first call starts its thread, which ends with the process.

    Raises:
        RuntimeError: The system has no more threads. A later call tries again.
    """
    pid = os.getpid()
    loop = _LOOPS.get(pid)
    if loop is None:
        start_task = Task(partial(_start_loop, pid))
        start(partial(_run_loop, start_task), "txnstore-s3")
        start_task.result()
        loop = _LOOPS[pid]
    return loop


def _run_loop(start_task: Task[asyncio.AbstractEventLoop]) -> None:
    """Make a loop, and run it.

    The same thread shares the loop and runs it: requests would wait forever for a loop whose thread did not start, or
    whose start an interrupt ended. None reaches this thread.
    """
    start_task.run()
    if start_task.exception() is None:
        loop = start_task.result()
        loop.run_forever()
        loop.close()


def _start_loop(pid: int) -> asyncio.AbstractEventLoop:
    """Make a loop, and share it unless another thread was first; then it ends at once."""
    loop = asyncio.new_event_loop()
    if _LOOPS.setdefault(pid, loop) is not loop:
        loop.call_soon(loop.stop)
    return loop


def run_on(loop: asyncio.AbstractEventLoop, request: Callable[[], Awaitable[T]]) -> Task[T]:
    """Run a request in the thread of an event loop, wait for its end, and return its outcome.

    An interrupt ends the wait; the request continues. So what this raises is not an error of the request.

    Raises:
        RuntimeError: The loop is closed, or this is its own thread, which cannot wait for itself.
    """
    running_loop: asyncio.AbstractEventLoop | None = None
    with suppress(RuntimeError):
        running_loop = asyncio.get_running_loop()
    if running_loop is loop:
        msg = "a request cannot wait for the event loop that runs it"
        raise RuntimeError(msg)
    running_tasks: list[asyncio.Task[T]] = []
    answer = Task(lambda: running_tasks[0].result())  # noqa: PLW0108 - there is none yet

    async def whole() -> T:
        return await request()

    def begin() -> None:
        running_tasks.append(loop.create_task(whole()))
        running_tasks[0].add_done_callback(lambda _: answer.run())

    loop.call_soon_threadsafe(begin)
    answer.wait()
    return answer
