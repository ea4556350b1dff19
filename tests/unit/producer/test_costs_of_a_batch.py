"""What is asked of every batch must not cost what all transactions together cost."""

from __future__ import annotations

from typing import Any

from tests.helpers.core import RC, T0, World
from txnstore.core.log.model import AbortedTxn, Batch, Partition, Segment
from txnstore.core.log.visibility import aborted_batches, visible_slices

TRANSACTIONS = 1000


class Counted(int):
    """An offset that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) <= int(other)

    def __gt__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)

    def __ge__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) >= int(other)


def batch(base_offset: int) -> Batch:
    segment = Segment(f"topics/t/0/{base_offset}.parquet", "parquet", 1, "", 1)
    return Batch(base_offset, base_offset + 1, 1, segment, 0, 0, producer_id=1, epoch=0, transactional=True)


def test_whether_a_batch_is_aborted_is_not_looked_up_in_all_aborted_transactions() -> None:
    """A job that aborts often must not make every later read of the partition slower than the one before."""
    aborted = tuple(
        AbortedTxn(1, Counted(4 * number), Counted(4 * number + 1), 4 * number + 2) for number in range(TRANSACTIONS)
    )
    is_aborted = aborted_batches(Partition(aborted=aborted))
    Counted.comparisons = 0
    flags = [is_aborted(batch(offset)) for offset in range(0, 4 * TRANSACTIONS, 2)]
    assert flags == [True, False] * TRANSACTIONS
    assert Counted.comparisons < 2 * TRANSACTIONS * 20


def test_aborted_and_committed_transactions_of_several_producers_are_distinguished() -> None:
    world = World()
    clients = [world.client("a"), world.client("b")]
    expected = []
    for number in range(40):
        client = clients[number % 3 % 2]
        start = world.log().high_watermark
        client.send(2)
        if number % 4 == 1:
            client.commit()
            expected.append((start, start + 2))
        else:
            client.abort()
    assert [(part.start, part.limit) for part in visible_slices(T0, world.log(), RC)] == expected
