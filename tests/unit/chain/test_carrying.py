"""The rules by which an entry carries commands of other processes, and by which these find their answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.shell import runtime, topic
from txnstore.chain.codec import Entry
from txnstore.chain.committer.carrying import Found, Horizons, find_answers, places_of
from txnstore.chain.group_commit import Attempt, Drafts, NotCarriedError, Origin, QueuedCommand
from txnstore.chain.payload import decode_entry
from txnstore.chain.tail import fold
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command, ProducerIdentity
from txnstore.core.state import State, first_state
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import UnknownOutcomeError

#: The writer of the entries, and two processes that hand commands over.
COMMITTER, CALLER, OTHER = "committer", "caller", "other"


def origin(after: int, writer_id: str = CALLER, number: int = 1) -> Origin:
    return Origin(writer_id, number, after, 0)


def entry_of(sequence: int, writer_id: str = COMMITTER, carries: Iterable[str] = ()) -> Entry:
    """An entry of a writer that carries a command of each of these processes."""
    carried = [(each, 1, 0, 1) for each in carries]
    return Entry(
        sequence=sequence, entry_id="", writer_id=writer_id, timestamp=0, previous="",
        payload=None, requires=None, principals=None, carried=carried or None, events=[],
    )  # fmt: skip


# What an entry may carry ----------------------------------------------------------------------------------------------


def test_nothing_is_carried_of_a_process_that_has_not_joined() -> None:
    horizons = Horizons()
    assert not horizons.allow(origin(100))
    horizons.join(OTHER, 5)
    assert not horizons.allow(origin(100))
    assert horizons.allow(origin(5, OTHER))


@pytest.mark.parametrize("after", [3, 4, 5, 6])
def test_what_was_known_before_a_process_joined_is_not_judged(after: int) -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    assert horizons.allow(origin(after)) is (after >= 5)


def test_entries_of_the_committer_alone_take_no_command_away() -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    for sequence in range(6, 20):
        horizons.record(entry_of(sequence))
        horizons.record(entry_of(sequence, OTHER, [COMMITTER]))
    assert horizons.allow(origin(5))


@pytest.mark.parametrize("entry", [entry_of(8, CALLER), entry_of(8, OTHER, [OTHER, CALLER])], ids=["own", "carried"])
def test_a_command_must_know_the_newest_entry_of_its_process(entry: Entry) -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    horizons.join(OTHER, 5)
    horizons.record(entry)
    horizons.record(entry_of(9))
    assert [horizons.allow(origin(after)) for after in (5, 7, 8, 9)] == [False, False, True, True]
    assert [horizons.allow(origin(after, OTHER)) for after in (7, 8)] == [entry.writer_id == CALLER, True]


def test_entries_that_were_not_read_count_as_those_of_all_processes() -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    horizons.join(OTHER, 7)
    horizons.skip(30)
    assert [horizons.allow(origin(29, each)) for each in (CALLER, OTHER)] == [False, False]
    assert [horizons.allow(origin(30, each)) for each in (CALLER, OTHER)] == [True, True]


def test_a_process_that_has_left_begins_again() -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    horizons.leave(CALLER)
    horizons.leave(CALLER)
    assert not horizons.allow(origin(5))
    horizons.record(entry_of(6, CALLER))
    horizons.skip(7)
    assert not horizons.allow(origin(7))
    horizons.join(CALLER, 9)
    assert [horizons.allow(origin(after)) for after in (8, 9)] == [False, True]


def test_a_process_that_joins_twice_forgets_no_entry() -> None:
    """Its new connection is served before the end of the old one is noticed."""
    horizons = Horizons()
    horizons.join(CALLER, 5)
    horizons.record(entry_of(8, CALLER))
    horizons.join(CALLER, 7)
    assert [horizons.allow(origin(after)) for after in (7, 8)] == [False, True]


def test_entries_that_two_threads_record_out_of_order() -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    for sequence in (7, 8, 6, 7):
        horizons.record(entry_of(sequence, CALLER))
    assert [horizons.allow(origin(after)) for after in (5, 6, 7, 8)] == [False, False, False, True]


def test_an_entry_that_was_recorded_late_does_not_keep_all_later_ones_in_memory() -> None:
    horizons = Horizons()
    horizons.join(CALLER, 5)
    for sequence in (8, 7, *range(9, 100)):
        horizons.record(entry_of(sequence, CALLER))
        assert horizons.allow(origin(sequence)) is (sequence >= 8)
    assert not horizons.allow(origin(98))
    assert len(horizons._entries[CALLER]) == 1


@pytest.mark.parametrize("skipped", [False, True], ids=["recorded", "skipped"])
def test_an_entry_that_is_recorded_but_not_published_counts_for_a_process_that_joins(skipped: bool) -> None:
    """A thread has recorded entry 6 and has not replaced the state, in which the process joins at entry 5."""
    horizons = Horizons()
    if skipped:
        horizons.skip(6)
    else:
        horizons.record(entry_of(6, CALLER))
    horizons.join(CALLER, 5)
    assert [horizons.allow(origin(after)) for after in (5, 6)] == [False, True]


# Answers --------------------------------------------------------------------------------------------------------------


class Log:
    """A chain of entries with commands of three processes, as the committer writes them."""

    def __init__(self) -> None:
        self.state = first_state(0, 1)
        self._drafts = Drafts(keys.KEYS, 0, COMMITTER, runtime())
        self._numbers = itertools.count(1)

    def write(self, *commands: tuple[str, Command]) -> tuple[State, Attempt, list[QueuedCommand]]:
        """Write an entry with commands, each with its process; the state before it, the entry, the answers there."""
        before = self.state
        waiters = [
            QueuedCommand(each, "User:x", None if of == COMMITTER else origin(before.sequence, of, next(self._numbers)))
            for of, each in commands
        ]
        attempt = self._drafts.decide(before, 1_000 * (before.sequence + 1), waiters)
        self.state = attempt.state
        return before, attempt, waiters


def read(attempt: Attempt) -> Entry:
    """The entry as another process reads it."""
    return decode_entry(attempt.claim.key, attempt.claim.data)


def answers(
    before: State, attempt: Attempt, commands: dict[int, QueuedCommand], writer_id: str = CALLER
) -> dict[int, Found]:
    """What a process finds while it folds the entry; the state after it is as without its commands."""
    found: dict[int, Found] = {}

    def on_entry(entry: Entry, inside: Mapping[int, State], _state: State, _data: bytes) -> None:
        found.update(find_answers(inside, entry, writer_id, commands))

    of_process = partial(places_of, writer_id=writer_id)
    data = attempt.claim.data
    assert fold(keys.KEYS, 0, before, data, on_entry, of_process) == fold(keys.KEYS, 0, before, data)
    return found


def append(name: str, data: bytes = b"") -> Append:
    """Three rows, inlined or not."""
    inlined = {"data": data} if data else {}
    segment = Segment("" if data else name, "arrow_stream" if data else "parquet", max(1, len(data)), "", 3)
    return Append(ProducerIdentity(), (NewBatch("t", 0, segment, 7, 8, **inlined),))  # type: ignore[arg-type]


def of_caller(waiters: Iterable[QueuedCommand]) -> dict[int, QueuedCommand]:
    return {
        each.origin.number: replace(each, origin=None, result=None, error=None)
        for each in waiters
        if each.origin is not None and each.origin.writer_id == CALLER
    }


def test_answers_of_the_caller_are_those_that_the_committer_decided() -> None:
    """Its commands stand between those of others, which change what they are answered: offsets, and producer ids."""
    log = Log()
    log.write((COMMITTER, CreateTopic(topic("t"))))
    before, attempt, waiters = log.write(
        (COMMITTER, append("a")),
        (COMMITTER, InitProducer()),
        (CALLER, append("", b"inlined")),
        (OTHER, append("b")),
        (OTHER, InitProducer()),
        (COMMITTER, append("c")),
        (CALLER, InitProducer()),
        (CALLER, append("d")),
        (CALLER, append("e")),
        (OTHER, append("f")),
    )
    found = answers(before, attempt, of_caller(waiters))
    decided = {each.origin.number: each.result for each in waiters if each.origin and each.origin.writer_id == CALLER}
    assert {number: each.result for number, each in found.items()} == decided
    assert {each.sequence for each in found.values()} == {2}
    assert {each.error for each in found.values()} == {None}
    appended, granted, *more = (found[number].result for number in sorted(found))
    assert (appended[0].base_offset, granted.producer_id) == (3, 2)
    assert [each[0].base_offset for each in more] == [12, 15]
    assert appended[0].timestamp == 2_000


def test_refused_commands_and_those_without_effect_are_not_carried() -> None:
    log = Log()
    before, attempt, waiters = log.write(
        (COMMITTER, CreateTopic(topic("t"))),
        (OTHER, append("a")),
        (CALLER, CreateTopic(topic("t"))),
        (OTHER, append("b")),
    )
    assert waiters[2].error is not None
    assert [writer_id for writer_id, _, _, _ in read(attempt).carried or ()] == [OTHER, OTHER]
    assert answers(before, attempt, of_caller(waiters)) == {}


def test_what_follows_a_refused_command_of_a_process_is_not_carried() -> None:
    """The process may find the refused one acceptable in its newer state; the order of the two must stay."""
    _, attempt, waiters = Log().write(
        (COMMITTER, CreateTopic(topic("t"))),
        (CALLER, CreateTopic(topic("t"))),
        (CALLER, append("a")),
        (OTHER, append("b")),
    )
    assert [writer_id for writer_id, _, _, _ in read(attempt).carried or ()] == [OTHER]
    assert isinstance(waiters[2].error, NotCarriedError)


def test_an_entry_that_the_committer_alone_has_commands_in_does_not_name_carried_ones() -> None:
    _, attempt, _ = Log().write((COMMITTER, CreateTopic(topic("t"))))
    assert read(attempt).carried is None
    assert b'"carried"' not in attempt.claim.data


def test_numbers_that_were_not_handed_over_are_ignored() -> None:
    """An earlier process may have had the command, or it was answered."""
    log = Log()
    before, attempt, waiters = log.write(
        (OTHER, CreateTopic(topic("t"))), (CALLER, append("a")), (CALLER, InitProducer()), (CALLER, append("b"))
    )
    handed = of_caller(waiters)
    assert answers(before, attempt, {}) == {}
    assert answers(before, attempt, handed, "nobody") == {}
    found = answers(before, attempt, {4: handed[4], 5: handed[2], 1: handed[2]})
    assert found.keys() == {4}
    assert found[4].result[0].base_offset == 3


def test_rights_are_those_that_the_committer_has_checked() -> None:
    """A chain other than 0 may have older rules in its state."""
    log = Log()
    before, attempt, waiters = log.write((CALLER, InitProducer()))
    older = replace(before, authorization=Authorization("declared"))
    assert answers(older, attempt, of_caller(waiters))[1].result == waiters[0].result


@pytest.mark.parametrize("bad", [Append(ProducerIdentity(9, 9, "unknown")), object()], ids=["refused", "no command"])
def test_a_command_whose_answer_cannot_be_computed_has_an_unknown_outcome(bad: Any) -> None:
    """The entry is valid, and the other commands in it have their answers."""
    log = Log()
    before, attempt, waiters = log.write(
        (CALLER, CreateTopic(topic("t"))), (CALLER, append("a")), (CALLER, InitProducer())
    )
    found = answers(before, attempt, {**of_caller(waiters), 2: QueuedCommand(bad)})
    assert found.keys() == {1, 2, 3}
    assert [found[number].result for number in (1, 2, 3)] == [waiters[0].result, None, waiters[2].result]
    assert isinstance(found[2].error, UnknownOutcomeError)
    assert "entry 1" in str(found[2].error)
