"""Rows are encoded beside the reading of the next ones: bounded memory, interrupts, and pools of few threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType

import pyarrow as pa
import pytest

from tests.helpers.compaction import batches, rows
from txnstore.compactor.compact import copying, sources
from txnstore.compactor.compact.encoding import BackgroundQueue
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.sources import in_blocks
from txnstore.runtime import Runtime
from txnstore.segment.codec import SegmentWriter
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock
from txnstore.threads import Workers

MIB = 1 << 20


def test_a_block_has_many_rows_or_many_bytes() -> None:
    """Of values of a MiB, 16,384 rows would take 16 GiB."""
    large = [pa.table({"value": [bytes(3 * MIB)]}) for _ in range(7)]
    assert [block.num_rows for block in in_blocks(large)] == [3, 3, 1]
    small = [pa.table({"value": [b"v"] * 5_000}) for _ in range(7)]
    assert [block.num_rows for block in in_blocks(small)] == [20_000, 15_000]
    assert list(in_blocks([])) == []


class _Watched:
    """A lock that tells when the main thread is about to wait for it, which may be interrupted there."""

    def __init__(self, about_to_wait: Callable[[], object]) -> None:
        self._lock, self._about_to_wait = threading.Lock(), about_to_wait

    def __enter__(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            self._about_to_wait()
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


@pytest.mark.parametrize("more", [0, 2])
def test_an_interrupt_waits_for_the_rows_that_are_being_encoded(more: int) -> None:
    """Else a thread would write to the segment that the interrupted one closes; what has not begun does not begin.

    ``more``: the interrupts that hit the wait itself.
    """
    begun, gate, order, left = threading.Event(), threading.Event(), list[str](), [KeyboardInterrupt] * more

    def encode() -> None:
        begun.set()
        assert gate.wait(240)
        order.append("encoded")

    def about_to_wait() -> None:
        if left:
            raise left.pop()
        gate.set()

    def interrupted() -> None:
        with encoding:
            encoding.run(encode, 1)
            assert begun.wait(240)
            encoding.run(lambda: order.append("late"), 1)
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        encoding = BackgroundQueue(pool, Memory())
        encoding._work_lock = _Watched(about_to_wait)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        order.append("closed")
    assert order == ["encoded", "closed"]
    assert not left


@pytest.mark.slow
def test_a_clean_with_one_thread_in_its_pool_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task of the pool waits for another one, though each segment waits for the sums of its rows."""
    monkeypatch.setattr(sources, "_FETCHES", 1)
    monkeypatch.setattr(copying, "SegmentWriter", partial(SegmentWriter, row_group_rows=64))
    clock = ManualClock()
    runtime = Runtime(clock, clock.sleep, random.Random(0), executor=lambda: Workers(1))
    with create_on(MemoryStore(clock=clock), runtime=runtime) as store:
        store.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        with store.producer() as producer:
            for first in range(0, 8_000, 400):
                for number in range(first, first + 800):
                    producer.send("t", random.Random(number).randbytes(40), key=b"%d" % number)
                producer.flush()
        newest = {row["key"]: row for row in rows(store)}
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(store.compact(target_bytes=64 << 10).cleans), daemon=True)
        thread.start()
        thread.join(240)
        assert done == [1]
        assert rows(store) == sorted(newest.values(), key=lambda row: row["_offset"])
        assert len(batches(store)) > 3
        assert store.verify(deep=True).ok
