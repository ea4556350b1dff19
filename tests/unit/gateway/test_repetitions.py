"""What clients repeat before what they have sent behind it."""

from __future__ import annotations

import pytest

from txnstore.core.log.model import MAX_SEQUENCE
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError
from txnstore.gateway.repetitions import ProducerPartition, Repetitions

SENDER: ProducerPartition = (7, 3, TopicPartition("t", 0))


class Clients:
    """Repetitions with a clock of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.repetitions = Repetitions(lambda: self.now)

    def refuse(self, sequence: int, sender: ProducerPartition = SENDER, text: str = "refused") -> None:
        self.repetitions.expect(sender, sequence, StorageError(text))

    def is_refused(self, sequence: int, sender: ProducerPartition = SENDER) -> bool:
        try:
            self.repetitions.check(sender, sequence)
        except StorageError:
            return True
        return False


def test_what_is_behind_a_refused_batch_is_refused_until_that_is_repeated() -> None:
    clients = Clients()
    clients.refuse(5)
    assert [clients.is_refused(sequence) for sequence in (6, 20, 5, 6)] == [True, True, False, False]


def test_other_producers_epochs_and_partitions_are_not_refused() -> None:
    clients = Clients()
    clients.refuse(5)
    others: list[ProducerPartition] = [(8, 3, SENDER[2]), (7, 4, SENDER[2]), (7, 3, TopicPartition("t", 1))]
    assert not any(clients.is_refused(6, other) for other in others)
    assert clients.is_refused(6)


def test_the_first_refused_batch_of_a_producer_counts() -> None:
    clients = Clients()
    clients.refuse(5, text="first")
    clients.refuse(7)
    with pytest.raises(StorageError, match="first"):
        clients.repetitions.check(SENDER, 7)
    clients.refuse(3)
    assert clients.is_refused(4)


def test_a_client_that_does_not_repeat_its_batch_is_held_back_for_30_seconds() -> None:
    clients = Clients()
    clients.refuse(5)
    clients.now = 29.9
    assert clients.is_refused(6)
    clients.now = 30.0
    assert not clients.is_refused(6)
    clients.refuse(9)
    assert clients.is_refused(10)


def test_a_refusal_after_one_that_was_not_repeated_in_time_counts() -> None:
    clients = Clients()
    clients.refuse(5)
    clients.now = 31.0
    clients.refuse(9)
    assert not clients.is_refused(8)


def test_after_the_greatest_sequence_comes_0() -> None:
    clients = Clients()
    clients.refuse(MAX_SEQUENCE)
    assert clients.is_refused(0)
    clients.refuse(0)
    assert not clients.is_refused(MAX_SEQUENCE)


def test_refused_batches_that_clients_do_not_repeat_are_bounded() -> None:
    clients = Clients()
    for number in range(5_000):
        clients.now = number
        clients.refuse(0, (number, 0, SENDER[2]))
    assert len(clients.repetitions._refused_batches) <= 1_001


def test_a_kept_error_does_not_hold_the_frames_of_requests() -> None:
    """Their records would stay in memory."""
    clients = Clients()
    try:
        raise StorageError("refused")
    except StorageError as error:
        clients.repetitions.expect(SENDER, 5, error)
    assert clients.is_refused(6)
    (refused,) = clients.repetitions._refused_batches.values()
    assert (str(refused.error), refused.error.__traceback__) == ("refused", None)
