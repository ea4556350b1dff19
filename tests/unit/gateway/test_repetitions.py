"""What clients repeat before what they have sent behind it."""

from __future__ import annotations

import pytest

from txnstore.core.log.model import MAX_SEQUENCE
from txnstore.core.model import TopicPartition
from txnstore.errors import StorageError
from txnstore.gateway.repetitions import Line, Repetitions

LINE: Line = (7, 3, TopicPartition("t", 0))


class Lines:
    """Repetitions with a clock of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.repetitions = Repetitions(lambda: self.now)

    def refuse(self, sequence: int, line: Line = LINE, text: str = "refused") -> None:
        self.repetitions.expect(line, sequence, StorageError(text))

    def is_refused(self, sequence: int, line: Line = LINE) -> bool:
        try:
            self.repetitions.check(line, sequence)
        except StorageError:
            return True
        return False


def test_what_is_behind_a_refused_batch_is_refused_until_that_is_repeated() -> None:
    lines = Lines()
    lines.refuse(5)
    assert [lines.is_refused(sequence) for sequence in (6, 20, 5, 6)] == [True, True, False, False]


def test_other_producers_epochs_and_partitions_are_not_refused() -> None:
    lines = Lines()
    lines.refuse(5)
    others: list[Line] = [(8, 3, LINE[2]), (7, 4, LINE[2]), (7, 3, TopicPartition("t", 1))]
    assert not any(lines.is_refused(6, other) for other in others)
    assert lines.is_refused(6)


def test_the_first_refused_batch_of_a_line_counts() -> None:
    lines = Lines()
    lines.refuse(5, text="first")
    lines.refuse(7)
    with pytest.raises(StorageError, match="first"):
        lines.repetitions.check(LINE, 7)
    lines.refuse(3)
    assert lines.is_refused(4)


def test_a_client_that_does_not_repeat_its_batch_is_held_back_for_30_seconds() -> None:
    lines = Lines()
    lines.refuse(5)
    lines.now = 29.9
    assert lines.is_refused(6)
    lines.now = 30.0
    assert not lines.is_refused(6)
    lines.refuse(9)
    assert lines.is_refused(10)


def test_a_refusal_after_one_that_was_not_repeated_in_time_counts() -> None:
    lines = Lines()
    lines.refuse(5)
    lines.now = 31.0
    lines.refuse(9)
    assert not lines.is_refused(8)


def test_after_the_greatest_sequence_comes_0() -> None:
    lines = Lines()
    lines.refuse(MAX_SEQUENCE)
    assert lines.is_refused(0)
    lines.refuse(0)
    assert not lines.is_refused(MAX_SEQUENCE)


def test_refused_batches_that_clients_do_not_repeat_are_bounded() -> None:
    lines = Lines()
    for number in range(5_000):
        lines.now = number
        lines.refuse(0, (number, 0, LINE[2]))
    assert len(lines.repetitions._refused) <= 1_001


def test_a_kept_error_does_not_hold_the_frames_of_requests() -> None:
    """Their records would stay in memory."""
    lines = Lines()
    try:
        raise StorageError("refused")
    except StorageError as error:
        lines.repetitions.expect(LINE, 5, error)
    assert lines.is_refused(6)
    (refused,) = lines.repetitions._refused.values()
    assert (str(refused.error), refused.error.__traceback__) == ("refused", None)
