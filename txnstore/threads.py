"""Threads, tasks and locks that an interrupt (Ctrl-C) cannot leave broken.

Python runs signal handlers in the main thread, between two of its instructions. ``threading.Condition`` and all that
is built on it (``Event``, ``Thread.start``, ``concurrent.futures.Future``, ``ThreadPoolExecutor``) is written in
Python: an interrupt in the middle leaves a lock acquired, and the next thread that needs it waits forever. A caller's
thread uses only ``SimpleQueue`` and ``with`` on a lock, which are written in C, and starts no ``threading.Thread``.
"""

from __future__ import annotations

import _imp
import _thread
import atexit
import concurrent.futures.thread  # noqa: F401 - PyArrow imports it on first use, which fails while the interpreter exits.
import importlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import AbstractContextManager, suppress
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, sleep  # noqa: TID251 - a caller waits in real time
from types import FrameType, ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar

from txnstore.errors import ReentrantCallError

_LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds after which a waiting thread checks for signals, which the system may have delivered to another thread.
_SIGNAL_CHECK_SECONDS = 1.0
#: Seconds after which the exit no longer waits for threads of libraries, and between two checks of them or of imports.
_EXIT_TIMEOUT, _POLL_SECONDS = 5.0, 0.001
#: Seconds after which a fork no longer waits for imports of other threads, one of which may wait for this thread.
_FORK_TIMEOUT = 5.0


class ForkLock:
    """A mutex with one lock per process: ``with lock.own: …``.

    A plain lock that another thread holds during a fork stays locked in the child forever. Here each process uses its
    own lock. An unpickled copy is unlocked.

    ``own`` returns the lock instead of wrapping it in a context manager: only ``with`` on a lock itself cannot be
    interrupted (Ctrl-C) between acquiring the lock and entering the block, which would leave it locked forever.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        #: The lock of each process, by process id: those of parents are never used again.
        self._locks: dict[int, Any] = {}

    @property
    def own(self) -> AbstractContextManager[bool]:
        """The lock of this process, to be used by ``with``.

        Raises:
            ReentrantCallError: This thread holds it already, so it would wait for itself forever: a signal handler
                interrupted the holder.
        """
        pid = os.getpid()
        # dict.setdefault is atomic, so all threads of a process agree on one lock.
        lock = self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())
        if lock._is_owned():  # noqa: SLF001 - threading.Condition relies on it too; there is no public way
            msg = "a signal handler used the store while it interrupted a call of this thread that uses it"
            raise ReentrantCallError(msg)
        return lock  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return (ForkLock, ())


class _TaskStep(Enum):
    WAITING = 1
    RUNNING = 2
    CANCELLED = 3
    ENDED = 4


class Task(Future[T]):
    """A call and its outcome: a future whose methods may be interrupted anywhere.

    Unlike its base class it has no ``Condition``, so ``concurrent.futures.wait`` and ``as_completed`` cannot be used.

    Args:
        call: What :meth:`run` calls.
    """

    def __init__(self, call: Callable[[], T]) -> None:  # The base class would make a Condition.
        #: What :meth:`run` calls; None after the end, so that the task keeps nothing alive.
        self._call: Callable[[], T] | None = call
        #: WAITING, then RUNNING and ENDED, or CANCELLED.
        self._step = _TaskStep.WAITING
        #: The thread that is in the middle of the call.
        self._runner: int | None = None
        #: Guards the step from WAITING: one thread runs the task, or one cancels it. Held for that step only; its
        #: ``with`` is written in C, so an interrupt cannot leave it locked.
        self._lock = threading.Lock()
        #: The outcome; both are written by the thread that runs, before ENDED.
        self._value: T | None = None
        self._error: BaseException | None = None
        #: One queue for each waiting thread. A thread appends its queue before it reads the step, and the runner
        #: reads the list after it has set the step, so no thread waits for an end that has passed.
        self._queues: list[SimpleQueue[None]] = []
        #: Callbacks that were not called. Each is taken by an atomic step, so it is called once.
        self._callbacks: list[Callable[[Future[T]], object]] = []

    def run(self) -> bool:
        """Make the call and store its outcome; False if another thread has begun, or the task was cancelled."""
        mine = False
        try:
            with self._lock:
                mine = self._step is _TaskStep.WAITING
                if mine:
                    self._step = _TaskStep.RUNNING
            if mine:
                self._call_and_store()
                self._end()
        except BaseException as error:  # An interrupt outside the call; a second time, because it may have hit the end.
            if mine:
                if self._step is not _TaskStep.ENDED:
                    self._error = error
                self._end()
            raise
        finally:
            del self  # The traceback of an error refers to this frame.
        return mine

    def _call_and_store(self) -> None:
        """Call the function, and keep its value or its error."""
        self._runner = threading.get_ident()
        try:
            assert self._call is not None
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - result() raises it
            self._error = error
        finally:
            del self

    def _end(self) -> None:
        self._runner = None
        self._step = _TaskStep.ENDED
        self._wake_waiters()

    @property
    def runs_here(self) -> bool:
        """Whether this thread is in the middle of the call, so it must not wait for the end."""
        return self._runner == threading.get_ident()

    def _wake_waiters(self) -> None:
        """Wake the waiting threads and call the callbacks, if the task is done. Can be repeated."""
        if not self.done():
            return
        self._call = None
        for waiter in tuple(self._queues):
            waiter.put(None)
        while self._callbacks:
            with suppress(IndexError):
                self._callbacks.pop(0)(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended or the task is cancelled; False after ``timeout`` seconds."""
        if self.done():
            return True
        queue: SimpleQueue[None] = SimpleQueue()
        self._queues.append(queue)
        deadline = None if timeout is None else monotonic() + timeout
        while not self.done():
            pause = _SIGNAL_CHECK_SECONDS if deadline is None else min(_SIGNAL_CHECK_SECONDS, deadline - monotonic())
            with suppress(Empty):
                queue.get(timeout=max(0.0, pause))
            if deadline is not None and not self.done() and monotonic() >= deadline:
                with suppress(ValueError):
                    self._queues.remove(queue)
                return False
        return True

    __repr__ = object.__repr__

    # The methods of a future ------------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the task if it has not begun; return whether it is cancelled."""
        try:
            with self._lock:
                if self._step is _TaskStep.WAITING:
                    self._step = _TaskStep.CANCELLED
            self._wake_waiters()
        except BaseException:
            self._wake_waiters()
            raise
        return self.cancelled()

    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._step is _TaskStep.CANCELLED

    def running(self) -> bool:
        """Whether the call has begun and has not ended."""
        return self._step is _TaskStep.RUNNING

    def done(self) -> bool:
        """Whether the call has ended or the task is cancelled."""
        return self._step is _TaskStep.ENDED or self._step is _TaskStep.CANCELLED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception of the call, or None."""
        if not self.wait(timeout):
            raise TimeoutError
        if self.cancelled():
            raise CancelledError
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return the result of the call, or raise its exception."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # Else the traceback and this frame refer to each other.
        return self._value  # type: ignore[return-value]

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` with the task when it is done; immediately if it is done already."""
        self._callbacks.append(fn)
        self._wake_waiters()


def start(run: Callable[[], object], name: str) -> None:
    """Run ``run`` in a new daemon thread.

    The thread is started by another new one: ``Thread.start`` waits for an ``Event``, and signals reach only the main
    thread.

    Raises:
        RuntimeError: The system has no more threads.
    """
    _thread.start_new_thread(_start_thread, (run, name))


def _start_thread(run: Callable[[], object], name: str) -> None:
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # There is this thread, and no other one.
        run()


class Timer(Protocol):
    """Calls a task once for each time that was set, a number of seconds later, in another thread."""

    def set(self, seconds: float) -> None:
        """Call the task after ``seconds``, instead of at the time that was set before."""
        ...

    def stop(self) -> None:
        """Never call the task again, until the next :meth:`set`. A call that has begun is not ended."""
        ...


class ThreadTimer:
    """A timer with a daemon thread, which starts with the first :meth:`set` and ends with :meth:`stop`.

    The thread refers to the task only. It ends, too, when the timer is collected. After a fork the child has no thread;
    a timer is made again there.
    """

    def __init__(self, task: Callable[[], object]) -> None:
        self._task = task
        #: The times that were set, for the thread; None without a thread. None in it ends the thread.
        self._times: SimpleQueue[float | None] | None = None

    def set(self, seconds: float) -> None:
        """Call the task after ``seconds``, instead of at the time that was set before."""
        times = self._times
        if times is None:
            times = SimpleQueue()
            try:
                start(partial(_run_timer, times, self._task), "txnstore-timer")
            except RuntimeError as error:  # The system has no more threads; the next set tries again.
                _LOG.warning("a timer cannot start: %s", error, extra={"error": str(error)})
                return
            self._times = times
            weakref.finalize(self, times.put, None).atexit = False
        times.put(seconds)

    def stop(self) -> None:
        """End the thread."""
        times, self._times = self._times, None
        if times is not None:
            times.put(None)


class NoTimer:
    """A timer that never calls its task: for a runtime whose time is not real, unless its own timer is given."""

    def __init__(self, task: Callable[[], object]) -> None:
        del task

    def set(self, seconds: float) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def _run_timer(times: SimpleQueue[float | None], task: Callable[[], object]) -> None:
    """Call the task at the time that was set last; end at None."""
    seconds = times.get()
    while seconds is not None:
        try:
            seconds = times.get(timeout=max(0.0, seconds))
        except Empty:
            try:
                task()
            except Exception:  # noqa: BLE001 - no caller can handle it
                _LOG.exception("the task of a timer failed")
            seconds = times.get()


def in_thread(call: Callable[[], T], name: str = "txnstore-call") -> T:
    """Call in a new thread and wait for the result. An interrupt ends the wait, never the call."""
    task = Task(call)
    start(task.run, name)
    return task.result()


def load(name: str) -> None:
    """Import a module in another thread, unless it is imported; do nothing if it is not installed.

    An interrupt in the middle of an ``import`` leaves Python's import lock acquired: every later import waits forever.
    """
    if is_loaded(name):
        return
    place = (os.getpid(), name)
    task = _loads.get(place) or _loads.setdefault(place, Task(partial(importlib.import_module, name)))
    if not task.done():
        try:
            start(task.run, "txnstore-import")
        except RuntimeError:
            task.run()
        task.wait()


def is_loaded(name: str) -> bool:
    """Whether a module is imported, and no thread is in the middle of that."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


#: The imports of :func:`load`, by process and name.
_loads: dict[tuple[int, str], Task[ModuleType]] = {}


def _wait_for_imports() -> None:
    """Before a fork, wait until no other thread is in the middle of an import.

    The child has the lock of the module and not the thread that holds it: its own import of the module would wait
    forever. The import lock is kept until the fork, so that no other thread begins an import meanwhile.
    """
    deadline = monotonic() + _FORK_TIMEOUT
    while True:
        _imp.acquire_lock()
        if not _imports_elsewhere() or monotonic() >= deadline:
            return
        _imp.release_lock()
        sleep(_POLL_SECONDS)


def _imports_elsewhere() -> bool:
    """Whether another thread holds the lock of a module. Python has no public way to see this."""
    me, locks = threading.get_ident(), getattr(importlib._bootstrap, "_module_locks", {})  # noqa: SLF001
    owners = [getattr(lock(), "owner", None) for lock in list(locks.values())]
    return any(owner not in (None, me) for owner in owners)


def _release_imports() -> None:
    with suppress(RuntimeError):  # An interrupt has ended the wait: the lock is not acquired.
        _imp.release_lock()


os.register_at_fork(before=_wait_for_imports, after_in_parent=_release_imports, after_in_child=_release_imports)


class Workers(Executor):
    """A thread pool. Threads start as they are needed, up to ``max_threads``, and are daemons that the exit waits for.

    A store may be closed, or the interpreter may exit, while another thread executes a transaction. The rest of the
    transaction must not fail because of this, least of all after its decision. So a task runs in the calling thread
    after a shutdown, and if the system has no threads.

    Args:
        max_threads: The maximum number of threads.
        name: The name of the threads.
    """

    def __init__(self, max_threads: int, name: str = "txnstore") -> None:
        self._max_threads, self._name = max_threads, name
        #: The process that has the threads; in a forked child, tasks run in the calling thread.
        self._pid = os.getpid()
        #: Guards the choice between a thread and the calling thread: nothing is queued after a shutdown. No task runs
        #: with it.
        self._lock = ForkLock()
        self._closed = False
        #: Tasks that no thread has taken; None ends a thread, which puts it back for the next one.
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        #: One element for each waiting thread that no submit has claimed.
        self._idle_tokens: list[None] = []
        #: The loops of all threads that were started; at most ``max_threads``.
        self._loops: list[Task[None]] = []
        # A pool without a reference to it ends its threads; at the exit `_finish_pools` does.
        finalizer = weakref.finalize(self, self._tasks.put, None)
        finalizer.atexit = False
        _pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run ``fn`` in a thread of the pool, or in this one if the pool is closed, forked or without threads."""
        task = Task(partial(fn, *args, **kwargs))
        with self._lock.own:
            # After a shutdown nothing is queued: no thread would take it.
            if not self._closed and self._pid == os.getpid() and self._hand_over(task):
                return task
        task.run()
        # An interrupt is for the calling thread, whose caller would otherwise get it only with the result.
        error = task._error  # noqa: SLF001
        if error is not None and not isinstance(error, Exception):
            raise error
        return task

    def _hand_over(self, task: Task[Any]) -> bool:
        """Hand a task over to a thread, a new one if none is idle; return False if there is no thread."""
        try:
            self._idle_tokens.pop()
        except IndexError:
            if len(self._loops) < self._max_threads:
                loop = Task(partial(_run_tasks, self._tasks, self._idle_tokens, [task]))
                with suppress(RuntimeError):  # The system has no more threads.
                    start(loop.run, f"{self._name}-{len(self._loops)}")
                    self._loops.append(loop)
                    return True
        if not self._loops:
            return False
        self._tasks.put(task)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the tasks that are queued; can be repeated after an interrupt."""
        if self._pid != os.getpid():
            return
        with self._lock.own:
            self._closed = True
        while cancel_futures:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task.cancel()
        self._tasks.put(None)
        if wait:
            for loop in tuple(self._loops):
                if not loop.runs_here:
                    loop.wait()


def _run_tasks(tasks: SimpleQueue[Task[Any] | None], idle_tokens: list[None], first_task: list[Task[Any]]) -> None:
    """Run tasks in a thread of a pool, beginning with its first one.

    A thread that found the queue empty before its first task was queued would count as idle while it runs the task.
    Refers to no pool, so a pool without other references is collected.
    """
    task: Task[Any] | None = first_task.pop()  # The loop of a thread outlives its tasks, and keeps none.
    while task is not None:
        try:
            task.run()
        except Exception:  # noqa: BLE001 - not of the call, which result() raises; and no signal reaches this thread
            _LOG.exception("a callback of a task failed")
        del task  # An idle thread keeps no result.
        try:
            task = tasks.get_nowait()
        except Empty:
            idle_tokens.append(None)
            task = tasks.get()
    tasks.put(None)  # For the next thread.


_pools: weakref.WeakSet[Workers] = weakref.WeakSet()


def _finish_pools() -> None:
    """Run the queued tasks before the interpreter exits, as Python does for the threads of its own pools."""
    for pool in tuple(_pools):
        pool.shutdown()
    wait_for_deliveries()


def wait_for_deliveries() -> None:
    """Wait until no thread of a library is in the middle of handing over an answer to an event loop.

    obstore hands it over from a thread of Rust: ``loop.call_soon_threadsafe`` wakes the loop, and with it the caller,
    before it returns to Rust, for which the thread needs the GIL once more. If the interpreter begins to finalize
    meanwhile, CPython before 3.14 ends the thread by ``pthread_exit``, whose unwinding aborts the process in the frames
    of Rust: SIGABRT, SIGBUS or SIGSEGV instead of the exit status.
    """
    deadline = monotonic() + _EXIT_TIMEOUT
    while any(map(_delivers_answer, _foreign_threads())) and monotonic() < deadline:
        sleep(_POLL_SECONDS)


def _foreign_threads() -> list[FrameType]:
    """Return the frames of threads that run Python code but were not started by Python."""
    ours = {thread.ident for thread in threading.enumerate()}
    return [frame for ident, frame in sys._current_frames().items() if ident not in ours]  # noqa: SLF001 - documented


def _delivers_answer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "call_soon_threadsafe":
            return True
        frame = frame.f_back
    return False


atexit.register(_finish_pools)
