"""What an entry follows from in another chain exists: checked by writers, readers, and the verification."""

from __future__ import annotations

import re

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import checkpoints
from tests.helpers.chains import ids_of, process, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.connection import Connection
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.evolve import evolve
from txnstore.core.state import Observed, State, first_state
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

CHAINS = 3


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def store(bucket: MemoryStore, clock: ManualClock) -> Store:
    """A store with a committed transaction over all chains, whose markers in other chains are not written."""
    process(bucket, clock, chains=CHAINS).create_topic("t", partitions=6)
    store = process(bucket, clock, background=DeferredExecutor)
    with store.producer(ids_of(store, 0)).transaction() as txn:
        write_everywhere(txn, b"value")
    return store


def test_a_reader_names_the_missing_entry_and_the_one_that_follows_from_it(
    store: Store, bucket: MemoryStore, clock: ManualClock
) -> None:
    """The decision in chain 0 follows from the data in chain 1, whose last entry is lost."""
    decided, data = (connection_of(store).view().states[number].sequence for number in (0, 1))
    entries = connection_of(store).keys
    lost = entries.entry(1, data)
    bucket.delete([lost])
    message = f"{lost} is missing, but {entries.entry(0, decided)}, or an entry before it, follows from {lost}"
    with pytest.raises(CorruptionError, match=re.escape(message)):
        process(bucket, clock)
    unloaded = Connection(bucket, read_only=True, checked=False)
    assert message in [each.message for each in Store(unloaded).verify().violations]


def test_an_entry_that_follows_from_one_that_does_not_exist_is_not_written(store: Store) -> None:
    connection = connection_of(store)
    before = [state.sequence for state in connection.view().states]
    offered, named = connection.keys.entry(0, before[0] + 1), connection.keys.entry(1, before[1] + 1)
    message = f"{offered} would follow from {named}, which does not exist"
    with pytest.raises(InvalidConfigError, match=re.escape(message)):
        connection.chains[0].submit(DeleteTopic("t", after=((1, before[1] + 1),)))
    assert [state.sequence for state in connection.view().states] == before


def test_a_writer_reads_what_its_entry_follows_from(store: Store, bucket: MemoryStore, clock: ManualClock) -> None:
    """Another process has written that entry since this one looked at its chain; what was read costs no request."""
    connection = connection_of(store)
    with process(bucket, clock) as other:
        with other.producer() as producer:
            write_everywhere(producer, b"plain")
            producer.flush()
        newest = connection_of(other).view().states[1].sequence
    assert connection.chains[1].state.sequence < newest
    connection.chains[0].submit(DeleteTopic("t", after=((1, newest),)))
    assert connection.chains[0].state.seen[1] == newest == connection.chains[1].state.sequence


@pytest.mark.parametrize(
    ("chain", "sequence", "problem"),
    [
        (3, 1, "chain 3 is named, but the store has chains 0 to 2"),
        (-1, 1, "chain -1 is named"),
        (0, 1, "entry 1 of chain 0 is named as one of another chain, but it is of this one"),
        (1, 0, "entry 0 of chain 1 is named, but the first entry of a chain is 1"),
        (1, -1, "entry -1 of chain 1 is named"),
    ],
)
def test_an_entry_that_cannot_be_one_of_another_chain_is_refused(chain: int, sequence: int, problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        evolve(first_state(0, CHAINS), Observed(chain=chain, sequence=sequence))


@pytest.mark.parametrize(("chain", "sequence"), [(3, 1), (0, 1), (1, 0)])
def test_a_checkpoint_with_such_an_entry_is_damaged(bucket: MemoryStore, chain: int, sequence: int) -> None:
    state = State(chains=CHAINS, sequence=1, entry_hash="h")
    checkpoints.write(bucket, state)
    assert checkpoints.read(bucket, 1) == state
    checkpoints.write(bucket, State(chains=CHAINS, sequence=1, entry_hash="h", seen=state.seen.insert(chain, sequence)))
    assert checkpoints.read(bucket, 1) is None
