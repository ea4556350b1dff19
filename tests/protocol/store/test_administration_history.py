"""The history of a transactional id, read from the entries of the chains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import keys
from tests.helpers.administration import ALL, DAY_MS, PARTITIONS, T0, decided, name_of, open_everywhere
from tests.helpers.chains import groups_of, process, sound_store, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.history import TransactionStep
from txnstore.errors import (
    InvalidConfigError,
    InvalidPidMappingError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture(params=[1, 3])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    yield from sound_store(clock, request.param, PARTITIONS)


def steps_of(store: Store, name: str) -> list[str]:
    return [step.step for step in store.transaction_history(name).steps]


def test_history_names_the_steps(store: Store, clock: ManualClock) -> None:
    """END-15: The seeds' steps: a commit with offsets, then an abort by a successor, which fences."""
    name, group = name_of(store), groups_of(store, 0)
    started = clock()
    producer = open_everywhere(store, name)
    producer.send_offsets({T0: 1}, group)
    producer.commit_transaction()
    open_everywhere(store, name).close()
    history = store.transaction_history(name)
    assert history.complete
    assert [step.timestamp for step in history.steps] == [started] * len(history.steps)
    numbers = sorted({step.chain for step in history.steps})
    assert numbers == list(range(len(connection_of(store).chains)))
    markers = len(connection_of(store).chains)
    names = [step.step for step in history.steps if step.step != "ADD_PARTITIONS"]
    commit = ["PREPARE_COMMIT", *["COMMIT(PID)"] * markers, "COMMITTED"]
    abort = ["PREPARE_ABORT", *["ABORT(PID)"] * markers, "ABORTED"]
    assert names == ["INIT", "BEGIN", "ADD_OFFSETS", *commit, "FENCED", "INIT", "BEGIN", *abort]
    added = [tp for step in history.steps if step.step == "ADD_PARTITIONS" for tp in step.partitions]
    assert sorted(added) == sorted(2 * ALL)
    marked = [step for step in history.steps if step.step == "COMMIT(PID)"]
    assert sorted(tp for step in marked for tp in step.partitions) == list(ALL)
    assert [step.groups for step in marked if step.groups] == [(group,)]
    assert {(step.producer_id, step.epoch) for step in marked} == {(producer.producer_id, 0)}
    (fenced,) = [step for step in history.steps if step.step == "FENCED"]
    assert (fenced.producer_id, fenced.epoch) == (producer.producer_id, 1)


def test_history_shows_the_entries_of_each_step(store: Store) -> None:
    """STM-09: Each step is in the entry that it names."""
    name = name_of(store)
    open_everywhere(store, name).commit_transaction()
    types = {"INIT": "ProducerInitialized", "PREPARE_COMMIT": "TxnDecided", "COMMIT(PID)": "MarkerWritten"}
    for step in store.transaction_history(name).steps:
        data = connection_of(store).objects.get(keys.entry(step.chain, step.entry))
        assert types.get(step.step, "").encode() in data
        assert step.writer_id.encode() in data


def test_history_shows_a_prepared_transaction_that_was_taken_over(store: Store) -> None:
    """TPC-04, TPC-05: the old epoch is fenced, in other chains by an entry of their own, and the end is the new one's.

    ``BEGIN`` and ``PREPARED`` have the old epoch, the decision the new one.
    """
    name = open_everywhere(store, name_of(store)).prepare_transaction()
    store.producer(name_of(store), keep_prepared=True).complete_transaction(name)
    steps = [step for step in store.transaction_history(name_of(store)).steps if step.step != "ADD_PARTITIONS"]
    others = len(connection_of(store).chains) - 1
    assert [(step.step, step.epoch) for step in steps] == [
        ("INIT", 0),
        ("BEGIN", 0),
        *[("PREPARED", 0)] * (others + 1),
        ("FENCED", 0),
        ("INIT", 1),
        *[("FENCED", 0)] * others,
        ("PREPARE_COMMIT", 1),
        *[("COMMIT(PID)", 1)] * (others + 1),
        ("COMMITTED", 1),
    ]


def test_history_leaves_out_other_ids(store: Store) -> None:
    """Two ids in the same chains, and a producer without an id: each has its own steps."""
    name = name_of(store)
    plain, other = store.producer(), open_everywhere(store, "other")
    producer = open_everywhere(store, name)
    write_everywhere(plain, b"plain")
    plain.flush()
    producer.abort_transaction()
    other.commit_transaction()
    assert "COMMITTED" not in steps_of(store, name)
    assert "ABORTED" not in steps_of(store, "other")


def test_history_continues_after_expiration_of_id(store: Store, clock: ManualClock) -> None:
    """TMO-07: the entries still tell what was; a new producer begins with another producer id."""
    name = name_of(store)
    old = store.producer(name)
    clock.advance(7 * DAY_MS)
    store.expire()
    assert steps_of(store, name) == ["INIT", "EXPIRED"]
    new = store.producer(name)
    steps = store.transaction_history(name).steps
    assert [(step.step, step.producer_id) for step in steps] == [
        ("INIT", old.producer_id),
        ("EXPIRED", old.producer_id),
        ("INIT", new.producer_id),
    ]
    old.begin_transaction()
    old.send("t", b"x")
    with pytest.raises(InvalidPidMappingError):
        old.commit_transaction()


def test_history_is_bounded_by_entries_and_by_time(store: Store, clock: ManualClock) -> None:
    """What is cut off is not guessed: no BEGIN for a transaction whose beginning was not read."""
    name = name_of(store)
    producer = open_everywhere(store, name)
    clock.advance(1_000)
    producer.commit_transaction()
    late = store.transaction_history(name, since=clock())
    assert not late.complete
    assert not {"INIT", "BEGIN"} & {step.step for step in late.steps}
    assert late.steps[0].step == "PREPARE_COMMIT"
    short = store.transaction_history(name, limit=len(connection_of(store).chains))
    assert not short.complete
    assert {(step.chain, step.entry) for step in short.steps} <= {
        (state.chain, state.sequence) for state in connection_of(store).view().states
    }
    for limit in (0, True):
        with pytest.raises(InvalidConfigError):
            store.transaction_history(name, limit=limit)


def test_history_order_does_not_depend_on_clocks(store: Store, clock: ManualClock) -> None:
    """A chain whose clock is behind: its markers still come after the decision that they carry out."""
    decided(store, clock)
    behind = process(connection_of(store).counts.inner, lambda: clock() - 3_600_000)
    assert behind.recover().failed == ()
    steps: tuple[TransactionStep, ...] = store.transaction_history(name_of(store)).steps
    names = [step.step for step in steps if step.step not in ("INIT", "BEGIN", "ADD_PARTITIONS", "ADD_OFFSETS")]
    assert names == ["PREPARE_COMMIT", *["COMMIT(PID)"] * len(connection_of(store).chains), "COMMITTED"]
