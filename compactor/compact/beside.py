"""Encodes rows in another thread than the one that reads them, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import Self

import pyarrow as pa

from txnstore.threads import Task

#: The bytes of the decoded rows that wait until a row group is encoded; one table may have more.
_WAITING_BYTES = 32 << 20
#: Rows that are checked, hashed and encoded at a time, and their bytes; one table may have more.
_BLOCK_ROWS, _BLOCK_BYTES = 16 * 1024, 8 << 20


class Beside:
    """Runs one piece of work after the other in a pool, beside what the caller does.

    Most tables only wait for their row group, and the one that fills it is encoded for long. Some wait meanwhile, so
    that the next ones can be decoded.

    Its end waits for work that runs, also after an interrupt, and lets none begin: nothing may write to what the caller
    closes next.

    Args:
        pool: Runs the work.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._tasks: deque[tuple[int, Task[None]]] = deque()  # Those that have not been waited for, with their bytes.
        self._bytes = 0
        self._waiting: deque[Task[None]] = deque()
        self._busy = self._ended = False
        self._lock, self._at_work = threading.Lock(), threading.Lock()

    def run(self, work: Callable[[], None], size: int) -> None:
        """Run work after the earlier work; waits for that while the tables of all waiting work are too large.

        Raises the error of earlier work, if there is one.
        """
        while self._tasks and (self._tasks[0][1].done() or self._bytes + size > _WAITING_BYTES):
            self._first()
        task = Task(work)
        self._tasks.append((size, task))
        self._bytes += size
        with self._lock:
            self._waiting.append(task)
            busy, self._busy = self._busy, True
        if not busy:
            self._pool.submit(self._work)

    def wait(self) -> None:
        """Wait until all work has ended. Raises the first error of it."""
        while self._tasks:
            self._first()

    def _first(self) -> None:
        size, task = self._tasks.popleft()
        task.result()
        self._bytes -= size

    def _work(self) -> None:
        with self._at_work:
            while True:
                with self._lock:
                    if self._ended or not self._waiting:
                        self._busy = False
                        return
                    task = self._waiting.popleft()
                task.run()
                if task.exception() is not None:
                    self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        interrupt: BaseException | None = None
        while True:
            try:
                with self._at_work:
                    break
            except BaseException as caught:  # noqa: BLE001 - raised when nothing runs
                interrupt = caught
        if interrupt is not None:
            raise interrupt


def in_blocks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of at least ``_BLOCK_ROWS`` or ``_BLOCK_BYTES``, but for the last: each table costs time."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # Else it is in memory while the next one is decoded.
        if rows >= _BLOCK_ROWS or size >= _BLOCK_BYTES:
            block, waiting, rows, size = pa.concat_tables(waiting), [], 0, 0
            yield block
            del block
    if rows:
        yield pa.concat_tables(waiting)
