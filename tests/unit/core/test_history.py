"""The history of a transactional id: of which the first entries are deleted, and who asked for its steps."""

from __future__ import annotations

from itertools import islice

import pytest

from txnstore.core.expiration import TransactionalIdExpired
from txnstore.core.history import HistoryEntry, principals_of_events, steps_of
from txnstore.core.log.events import MarkerWritten
from txnstore.core.model import Outcome
from txnstore.core.transactions.events import ProducerInitialized, TxnCompleted, TxnDecided


def test_an_expired_id_whose_begin_is_deleted_is_shown_with_its_newest_producer_id() -> None:
    expired = TransactionalIdExpired(transactional_id="id", producer_ids=[3, 9, 5])
    (step,) = steps_of("id", {0: [HistoryEntry(0, 70, 1_000, "writer", [expired])]})
    assert (step.step, step.entry, step.producer_id, step.epoch) == ("EXPIRED", 70, 9, -1)


@pytest.mark.parametrize(
    ("principals", "expected"),
    [
        (None, [None, None, None]),
        ([], [None, None, None]),
        ([("a", 1), ("b", 2)], ["a", "b", "b"]),
        ([("a", 1)], ["a", None, None]),
        ([("a", -1), ("b", 9)], ["b", "b", "b"]),
    ],
)
def test_each_event_has_who_asked_for_it(principals: list[tuple[str, int]] | None, expected: list[str | None]) -> None:
    """An entry whose numbers do not add up is shown all the same."""
    assert list(islice(principals_of_events(principals), 3)) == expected


def test_each_step_has_who_asked_for_it() -> None:
    """Events of several callers in one entry: the markers of a transaction are one step for each of them."""
    init = ProducerInitialized(producer_id=1, epoch=0, transactional_id="id", timeout_ms=1)
    prepared = TxnDecided(
        transactional_id="id", producer_id=1, epoch=0, outcome=Outcome.COMMIT, next_producer_id=1, next_epoch=1
    )
    markers = [
        MarkerWritten(topic="t", partition=number, producer_id=1, epoch=1, outcome=Outcome.COMMIT, offset=5)
        for number in range(3)
    ]
    completed = TxnCompleted(
        transactional_id="id", producer_id=1, epoch=0, outcome=Outcome.COMMIT, next_producer_id=1, next_epoch=1
    )
    asked = [("User:a", 2), ("User:b", 2), ("User:a", 1), ("User:b", 1)]
    entries = [HistoryEntry(0, 7, 1_000, "writer", [init, prepared, *markers, completed], asked)]
    steps = steps_of("id", {0: entries})
    assert [(step.step, step.principal, len(step.partitions)) for step in steps] == [
        ("INIT", "User:a", 0),
        ("PREPARE_COMMIT", "User:a", 0),
        ("COMMIT(PID)", "User:b", 2),
        ("COMMIT(PID)", "User:a", 1),
        ("COMMITTED", "User:b", 0),
    ]


def test_an_instance_whose_predecessor_is_deleted_has_fenced_it() -> None:
    init = ProducerInitialized(producer_id=1, epoch=3, transactional_id="id", timeout_ms=1)
    steps = steps_of("id", {0: [HistoryEntry(0, 7, 1_000, "writer", [init])]})
    assert [(step.step, step.epoch) for step in steps] == [("FENCED", 2), ("INIT", 3)]
