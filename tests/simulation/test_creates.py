"""A process that does not know whether its create took effect offers no other bytes for the name."""

from __future__ import annotations

import random

import pytest

from tests.harness.simulation.creates import Creates
from tests.harness.simulation.scheduler import Scheduler
from tests.helpers import keys
from txnstore.errors import UnknownOutcomeError

NAME = keys.entry(0, 3)


@pytest.fixture
def anomalies() -> list[str]:
    return []


@pytest.fixture
def creates(anomalies: list[str]) -> Creates:
    """Its first create has an unknown outcome."""
    creates = Creates(Scheduler(random.Random(1)), random.Random(1), 0.0, anomalies)

    def fail() -> bool:
        raise UnknownOutcomeError

    with pytest.raises(UnknownOutcomeError):
        creates.create("p", NAME, b"one", fail)
    return creates


def test_other_bytes_for_a_name_that_is_not_settled_are_an_anomaly(creates: Creates, anomalies: list[str]) -> None:
    creates.create("p", keys.entry(0, 4), b"two", lambda: True)
    creates.create("p", keys.boundary(0, 3), b"two", lambda: True)
    assert not anomalies
    creates.create("p", NAME, b"two", lambda: False)
    assert [anomaly.partition(":")[0] for anomaly in anomalies] == ["other-bytes"]


def test_an_answer_to_the_same_bytes_settles_the_name(creates: Creates, anomalies: list[str]) -> None:
    creates.create("p", NAME, b"one", lambda: False)
    creates.create("p", NAME, b"two", lambda: False)
    assert not anomalies


def test_an_object_that_was_read_settles_its_name(creates: Creates, anomalies: list[str]) -> None:
    """Seed 5005363: the store of a process was deleted, and its chain had a hole before the entry that was found."""
    creates.settle(NAME)
    creates.create("p", NAME, b"two", lambda: False)
    assert not anomalies
