"""A process that is many entries behind the head."""

from __future__ import annotations

import pytest

from tests.helpers.connections import connection_of
from txnstore.chain import tail
from txnstore.core.model import TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import ManualClock


def test_the_window_of_entries_that_are_read_does_not_grow_without_bound(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubled for each window, its numbers filled the memory after two thousand entries."""
    objects = MemoryStore(clock=clock)
    writer = create_on(objects)
    writer.create_topic("t", partitions=1)
    behind = connection_of(open_on(objects))
    behind.view()
    with writer.producer(linger=None) as producer:
        for _ in range(40):
            producer.send("t", b"value").result()
    sizes: list[int] = []
    window = tail._end_of_window

    def record(first: int, unfolded: dict[int, bytes | None], size: int) -> tuple[int, int]:
        end, size = window(first, unfolded, size)
        sizes.append(end - first + 1)
        return end, size

    monkeypatch.setattr(tail, "_MAX_WINDOW", 4)
    monkeypatch.setattr(tail, "_end_of_window", record)
    log = behind.view().partition(TopicPartition("t", 0))
    assert log is not None
    assert log.high_watermark == 40
    assert len(sizes) > 8
    assert max(sizes) <= 2 * 4
