"""Threads, tasks and locks: an interrupt at any line leaves nothing that hangs."""

from __future__ import annotations

import _thread
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from txnstore import threads
from txnstore.errors import ReentrantCallError
from txnstore.runtime import Runtime
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock
from txnstore.threads import ForkLock, NoTimer, Task, ThreadTimer, Workers, in_thread, load, start

ROOT = Path(__file__).parents[3]
GUARD = 120.0  # Seconds: against hangs, no verdict.


class Gate:
    """Holds a task back until it is opened."""

    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self._open.wait(GUARD)
        return "done"

    def open(self) -> None:
        self._open.set()


def fail() -> None:
    raise LookupError("as asked")


# Tasks ----------------------------------------------------------------------------------------------------------------


def test_task_has_the_methods_of_a_future() -> None:
    gate = Gate()
    calls: list[object] = []
    task = Task(gate)
    task.add_done_callback(calls.append)
    assert not task.done()
    assert not task.running()
    start(task.run, "test")
    assert gate.entered.wait(GUARD)
    assert task.running()
    assert not task.cancel()
    with pytest.raises(TimeoutError):
        task.result(timeout=0.01)
    gate.open()
    assert task.result(GUARD) == "done"
    assert task.exception() is None
    assert task.done()
    task.add_done_callback(calls.append)
    assert calls == [task, task]
    assert not task.run()


def test_task_raises_the_error_of_its_call_in_each_thread_that_waits() -> None:
    task = Task(fail)
    task.run()
    for _ in range(2):
        with pytest.raises(LookupError, match="as asked"):
            task.result()
    assert isinstance(task.exception(), LookupError)


def test_cancelled_task_does_not_run_and_wakes_who_waits() -> None:
    task = Task(fail)
    waiting = Task(lambda: task.wait(GUARD))
    start(waiting.run, "test")
    assert task.cancel()
    assert task.cancelled()
    assert not task.run()
    assert waiting.result(GUARD)
    with pytest.raises(CancelledError):
        task.result()


def test_task_that_raised_is_collected_without_the_collector_of_cycles() -> None:
    task = Task(fail)
    task.run()
    gc.disable()
    try:
        reference = weakref.ref(task)
        with suppress(LookupError):
            task.result()
        del task
        assert reference() is None
    finally:
        gc.enable()


# The pool -------------------------------------------------------------------------------------------------------------


def test_pool_runs_tasks_and_starts_no_thread_while_one_is_idle() -> None:
    with Workers(4) as pool:
        first = pool.submit(lambda: threading.current_thread().name).result(GUARD)
        names = {first}
        for _ in range(20):
            while not pool._idle_tokens:
                pass
            names.add(pool.submit(lambda: threading.current_thread().name).result(GUARD))
        assert names == {"txnstore-0"}
        assert list(pool.map(abs, range(-20, 0))) == list(range(20, 0, -1))


def test_a_thread_that_runs_its_first_task_does_not_count_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it starts: the second task would be queued behind the first, which waits for it here."""
    both, began = threading.Barrier(2), threading.Event()
    pool = Workers(2)

    def start_first(run: Callable[[], object], name: str) -> None:
        start(run, name)
        while not (began.is_set() or pool._idle_tokens):
            began.wait(0.001)

    def meet() -> int:
        began.set()
        return both.wait(10)

    monkeypatch.setattr(threads, "start", start_first)
    met = [pool.submit(meet), pool.submit(meet)]
    assert sorted(task.result() for task in met) == [0, 1]
    pool.shutdown()


def test_pool_starts_no_more_than_its_threads() -> None:
    gates = [Gate() for _ in range(3)]
    with Workers(2) as pool:
        tasks = [pool.submit(gate) for gate in gates]
        assert all(gate.entered.wait(GUARD) for gate in gates[:2])
        assert not gates[2].entered.is_set()
        for gate in gates:
            gate.open()
        assert [task.result(GUARD) for task in tasks] == ["done"] * 3


def test_shutdown_ends_what_is_queued_and_later_tasks_run_in_the_calling_thread() -> None:
    """A store may be closed while a transaction is under way: its rest must not fail because of that."""
    gate = Gate()
    pool = Workers(1)
    first, second = pool.submit(gate), pool.submit(threading.get_ident)
    closing = Task(pool.shutdown)
    start(closing.run, "test")
    gate.open()
    closing.result(GUARD)
    assert first.result(0) == "done"
    assert second.result(0) != threading.get_ident()
    assert pool.submit(threading.get_ident).result(0) == threading.get_ident()
    pool.shutdown()


def test_shutdown_can_cancel_what_is_queued() -> None:
    gate = Gate()
    pool = Workers(1)
    first, second = pool.submit(gate), pool.submit(fail)
    assert gate.entered.wait(GUARD)
    pool.shutdown(wait=False, cancel_futures=True)
    gate.open()
    pool.shutdown()
    assert (first.result(0), second.cancelled()) == ("done", True)


def test_task_may_shut_down_its_own_pool() -> None:
    pool = Workers(1)
    pool.submit(pool.shutdown).result(GUARD)


def test_pool_without_threads_runs_tasks_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(run: object, name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start", refused)
    with Workers(2) as pool:
        assert pool.submit(threading.get_ident).result(0) == threading.get_ident()
        with pytest.raises(LookupError):
            pool.submit(fail).result(0)


def test_pool_without_references_ends_its_threads() -> None:
    pool = Workers(1)
    pool.submit(fail).wait()
    (loop,) = pool._loops
    del pool
    gc.collect()
    assert loop.wait(GUARD)


def test_exit_of_the_interpreter_runs_what_is_queued() -> None:
    """As the threads of concurrent.futures do: the background completes transactions."""
    code = """
import sys, time
from txnstore.threads import Workers
pool = Workers(1)
pool.submit(time.sleep, 0.05)
pool.submit(sys.stdout.write, "written")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GUARD, check=True)
    assert (done.stdout, done.stderr) == ("written", "")


def test_call_in_another_thread_returns_or_raises_there() -> None:
    assert in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(LookupError):
        in_thread(fail)


def test_load_imports_in_another_thread_and_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle of an import would leave Python's import lock acquired."""
    (tmp_path / "loaded_by_a_test.py").write_text("import threading; thread = threading.current_thread().name")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        load("loaded_by_a_test")
        assert sys.modules["loaded_by_a_test"].thread == "txnstore-import"
    load("a_module_that_is_not_installed")


# Interrupts -----------------------------------------------------------------------------------------------------------

OURS = places(
    Workers.submit, Workers._hand_over, start, Task.__init__, Task.wait, Task.result, Task.exception, Task.done
)


def test_interrupt_anywhere_in_a_submit_or_a_wait_leaves_the_pool_usable() -> None:
    def attempt(interrupter: Interrupter) -> bool:
        pool = Runtime().executor()
        interrupted = interrupter.run(lambda: [pool.submit(abs, -1).result(), pool.submit(abs, -2).result()])
        assert [task.result(GUARD) for task in [pool.submit(abs, -number) for number in range(40)]] == list(range(40))
        pool.shutdown()
        return interrupted

    assert len(list(everywhere(OURS, attempt))) > 30


def test_interrupt_anywhere_in_a_run_or_a_cancel_wakes_who_waits() -> None:
    def attempt(interrupter: Interrupter) -> bool:
        task, other = Task(lambda: 1), Task(lambda: 2)
        waiting = [Task(lambda: task.wait(GUARD)), Task(lambda: other.wait(GUARD))]
        for one in waiting:
            start(one.run, "test")

        def both() -> None:
            task.run()
            task.result()
            other.cancel()

        interrupted = interrupter.run(both)
        task.run()
        assert task.done()
        other.cancel()
        assert [one.result(GUARD) for one in waiting] == [True, True]
        return interrupted

    assert (
        len(
            list(
                everywhere(places(Task.run, Task._call_and_store, Task._end, Task._wake_waiters, Task.cancel), attempt)
            )
        )
        > 10
    )


def test_interrupt_anywhere_in_a_shutdown_can_be_repeated() -> None:
    def attempt(interrupter: Interrupter) -> bool:
        pool = Workers(2)
        tasks = [pool.submit(abs, -1) for _ in range(3)]
        interrupted = interrupter.run(pool.shutdown)
        pool.shutdown()
        assert [task.result(GUARD) for task in tasks] == [1, 1, 1]
        return interrupted

    assert len(list(everywhere(places(Workers.shutdown), attempt))) > 5


def test_real_signals_leave_no_thread_waiting() -> None:
    """Ctrl-C while tasks are submitted and waited for, as the kernel delivers it."""
    pool = Workers(4)
    count = 0

    def interrupt() -> None:
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGINT)
            taken.acquire(timeout=GUARD)

    taken = threading.Semaphore(0)
    interrupting = Task(interrupt)
    start(interrupting.run, "interrupts")
    while not interrupting.done():
        try:
            while not interrupting.done():
                assert pool.submit(abs, -1).result(GUARD) == 1
        except KeyboardInterrupt:
            count += 1
            taken.release()
    assert count == 200
    assert pool.submit(abs, -1).result(GUARD) == 1
    pool.shutdown()


# Locks ----------------------------------------------------------------------------------------------------------------


def test_lock_refuses_the_thread_that_holds_it() -> None:
    lock = ForkLock()
    with lock.own, pytest.raises(ReentrantCallError, match="signal handler"):
        lock.own  # noqa: B018
    with lock.own, pickle.loads(pickle.dumps(lock)).own:  # noqa: S301 - our own
        pass


def test_signal_handler_that_uses_a_store_gets_an_error_and_does_not_hang() -> None:
    """The handler runs in the middle of a request, whose thread holds the lock of the counters."""
    objects = CountingStore(MemoryStore())
    errors: list[type[BaseException] | None] = []

    def handler(number: int, frame: FrameType | None) -> None:
        try:
            objects.put("b", b"2")
            errors.append(None)
        except ReentrantCallError as error:
            errors.append(type(error))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with objects._lock.own:
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert errors == [ReentrantCallError, None]
    objects.put("c", b"3")
    assert objects.snapshot().put == 2


def test_callback_that_fails_ends_no_thread_of_the_pool() -> None:
    """As for any future, the error of a callback is logged; the callbacks after it, and later tasks, run."""
    called: list[int] = []
    with Workers(1) as pool:
        begun: SimpleQueue[None] = SimpleQueue()
        task = pool.submit(begun.get)
        task.add_done_callback(lambda _: called.append(1 // 0))
        task.add_done_callback(lambda _: called.append(1))
        begun.put(None)
        assert pool.submit(lambda: 5).result(timeout=60) == 5
    assert called == [1]


_DELIVERY = """
import _thread, atexit, sys
from queue import SimpleQueue
from txnstore import threads

threads._EXIT_TIMEOUT = float(sys.argv[1])
inside, leave = SimpleQueue(), SimpleQueue()

def call_soon_threadsafe():
    inside.put(None)
    leave.get()
    sum(range(1_000_000))
    print("delivered", flush=True)

# Python does not know the thread, as it does not know one of Rust.
_thread.start_new_thread(call_soon_threadsafe, ())
inside.get()
atexit.register(leave.put, None)  # Called before the exit function of the module that was imported earlier.
"""


def test_exit_waits_for_a_library_that_hands_over_an_answer() -> None:
    """Else a thread of Rust is ended in the middle, and the process with it."""
    command = [sys.executable, "-c", _DELIVERY, str(GUARD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "delivered\n"


def test_exit_waits_for_no_other_thread_of_a_library() -> None:
    leave, ended, inside = SimpleQueue[None](), SimpleQueue[None](), SimpleQueue[None]()

    def stays() -> None:
        inside.put(None)
        ended.put(leave.get())

    _thread.start_new_thread(stays, ())
    inside.get()
    threads.wait_for_deliveries()
    assert threads._foreign_threads() != []
    leave.put(None)
    ended.get()


_FORK = """
import os, signal, sys
from queue import SimpleQueue
from txnstore import threads

sys.path.insert(0, sys.argv[1])
inside, leave = sys.gates = SimpleQueue(), SimpleQueue()
threads.start(lambda: threads.load("slowly_imported"), "importer")
inside.get()
os.register_at_fork(before=lambda: leave.put(None))  # Called before the hooks that were registered earlier.
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    import slowly_imported
    os._exit(slowly_imported.VALUE)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import slowly_imported, json.tool  # Imports continue in the parent, too.
"""
_SLOWLY_IMPORTED = """
import sys
inside, leave = sys.gates
inside.put(None)
leave.get()
sum(range(3_000_000))  # Without a wait, the fork is faster.
VALUE = 7
"""


def test_fork_waits_for_an_import_of_another_thread(tmp_path: Path) -> None:
    """The child has the lock of the module, without the thread that holds it."""
    (tmp_path / "slowly_imported.py").write_text(_SLOWLY_IMPORTED)
    command = [sys.executable, "-c", _FORK, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n", done.stderr


def test_fork_in_an_import_does_not_wait_for_itself(tmp_path: Path) -> None:
    code = "import os\npid = os.fork()\nif pid == 0:\n    import json.tool\n    os._exit(5)\n"
    (tmp_path / "forks.py").write_text(f"{code}STATUS = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import txnstore.threads, forks; print(forks.STATUS)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n", done.stderr


# Timers ---------------------------------------------------------------------------------------------------------------


def timer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "txnstore-timer" and thread.is_alive()]


def test_timer_calls_its_task_once_for_each_time() -> None:
    called: SimpleQueue[int] = SimpleQueue()
    timer = ThreadTimer(lambda: called.put(threading.get_ident()))
    timer.stop()
    timer.set(1_000.0)
    for _ in range(3):
        timer.set(0.0)
        assert called.get() != threading.get_ident()
    timer.stop()
    timer.set(0.0)
    called.get()
    timer.stop()
    assert called.empty()


def test_timer_continues_after_a_task_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    called: SimpleQueue[None] = SimpleQueue()

    def fail() -> None:
        called.put(None)
        raise ValueError

    timer = ThreadTimer(fail)
    for _ in range(2):
        timer.set(0.0)
        called.get()
    timer.stop()
    for thread in timer_threads():
        thread.join()
    assert caplog.text.count("the task of a timer failed") == 2


@pytest.mark.parametrize("end", ["stop", "collect"])
def test_thread_of_a_timer_ends_with_it(end: str) -> None:
    """It is a daemon: an exit of the interpreter does not wait for it."""
    before = set(timer_threads())
    timer = ThreadTimer(lambda: None)
    timer.set(1_000.0)
    while not (mine := set(timer_threads()) - before):
        pass
    assert all(thread.daemon for thread in mine)
    if end == "stop":
        timer.stop()
    else:
        del timer
        gc.collect()
    for thread in mine:
        thread.join()


def test_timer_without_threads_waits_for_its_next_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: SimpleQueue[None] = SimpleQueue()
    timer = ThreadTimer(lambda: called.put(None))

    def refuse(*_: object) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "start", refuse)
        timer.set(0.0)
    assert "a timer cannot start: can't start new thread" in caplog.text
    timer.set(0.0)
    called.get()
    timer.stop()


def test_runtime_with_an_injected_clock_has_no_real_timer() -> None:
    """Real time says nothing about an injected clock, so nothing runs in the background of a simulation."""
    assert isinstance(Runtime().timer(lambda: None), ThreadTimer)
    timer = Runtime(ManualClock()).timer(lambda: None)
    timer.set(0.0)
    timer.stop()
    assert isinstance(timer, NoTimer)
