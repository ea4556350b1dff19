"""Partitions whose committed records wait behind an open transaction."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.reading import T0, append, begin, new_store
from txnstore import BlockedReadWarning
from txnstore.core.model import TopicPartition
from txnstore.runtime import Runtime
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

#: The records that wait.
WAITING = [f"waits-{number}" for number in range(40)]
#: The timeout of the transaction, and a moment after it, in ms.
TIMEOUT_MS = 60_000
LATER_MS = TIMEOUT_MS + 1


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    """A store of one chain, and of three."""
    store = new_store(clock, chains=request.param)
    store.create_topic("t", partitions=2)
    return store


@pytest.fixture
def one(clock: ManualClock) -> Store:
    """A store of one chain, whose requests are counted."""
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    return store


def hold_back(store: Store, name: str = "dead", tp: TopicPartition = T0) -> None:
    """A producer whose process dies with flushed records in an open transaction, then 40 records of another one."""
    begin(store, name, "undecided", tp=tp)
    append(store, *WAITING, tp=tp)


def warned(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    """The warnings of blocked reads that a call issues."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always", BlockedReadWarning)
        call()
    return [each for each in issued if each.category is BlockedReadWarning]


def reader_of(store: Store, clock: ManualClock) -> Store:
    """The same store, opened read_only by another process."""
    return open_on(connection_of(store).counts.inner, read_only=True, runtime=Runtime(clock, clock.sleep))
