"""Which files Spark's own reader reads: settled ones as a whole, or none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.compaction import new_store
from tests.helpers.connections import connection_of
from tests.helpers.settling import numbers, send, settle_now
from txnstore.core.model import TopicPartition
from txnstore.read.reader import Projection
from txnstore.scan import Scan
from txnstore.spark.reads.native import Kinds, _kinds
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with new_store(clock) as made:
        made.create_topic("t", partitions=3)
        for first in (0, 2):
            send(made, numbers(2, first), partitions=range(3))
            settle_now(made)
        yield made


def kinds(store: Store) -> Kinds | None:
    scan = Scan(connection_of(store), "t")
    return _kinds(scan.plan(), Projection(scan.topic))


def test_settled_files_are_read_whole_with_the_partitions_that_they_store(store: Store) -> None:
    files = kinds(store)
    assert files is not None
    (kind,) = files
    assert (kind.explicit, kind.settled, kind.cut) == (True, True, False)
    assert len({file.key for file in files[kind]}) == len(files[kind]) == 2


@pytest.mark.parametrize("offset", [1, 2])
def test_files_of_which_some_rows_are_not_visible_are_not(store: Store, offset: int) -> None:
    """A log that starts inside a batch, or behind it."""
    store.delete_records({TopicPartition("t", 1): offset})
    assert kinds(store) is None
