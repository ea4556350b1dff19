"""The turns of many writers on one chain (OBJ-10): the rules, and what they achieve in a simulation in virtual time."""

from __future__ import annotations

import random

import pytest

from tests.helpers.contention import LATENCY, Contention, Writer
from txnstore.chain.turns import JOIN, LOOK, NEXT, PATIENCE, SOON, Turns, Wait

A, B, C, D = "aaa", "bbb", "ccc", "ddd"


def turns_of(writer: str, entries: str = "", *, every: float = 100.0, callers: set[str] | None = None) -> Turns:
    """What a writer knows that has polled each entry of others, one every 100 ms from 0 on, with a latency of 100 ms.

    ``entries``: their writers, by the first letters of their names.
    """
    turns = Turns(writer, callers or ())
    turns.record_read(0, head=True)
    turns.lost(0, 200)
    for number, letter in enumerate(entries, 1):
        turns.record(number, letter * 3)
        turns.record_read(number * every, head=True, fresh=True)
    return turns


def in_turn(waits: dict[str, Wait | None]) -> list[str]:
    """The writers that PUT now."""
    return [writer for writer, wait in waits.items() if wait is None]


# Who is next ----------------------------------------------------------------------------------------------------------


def test_a_writer_that_has_seen_no_other_never_waits() -> None:
    turns = Turns(A)
    assert turns.next(0, 0) is None
    for number in range(1, 50):
        turns.won(number, number * 100 - 30, number * 100)
        assert turns.next(number * 100, 0) is None


@pytest.mark.parametrize("writer", [A, D])
def test_a_writer_waits_for_no_turn_of_those_whose_commands_it_commits(writer: str) -> None:
    """They have written before they met it, and write no more; another one that writes is waited for."""
    callers = {B, C}
    turns = turns_of(writer, "abcbc", callers=callers)
    if writer == D:
        turns = turns_of(writer, "bcbcb", callers=callers)
    assert not turns.is_contended(500)
    assert turns.next(500, 0) is None
    turns = turns_of(writer, "abcbc", callers=callers)
    callers.remove(B)  # It has parted.
    assert turns.is_contended(500)


def test_entries_found_on_opening_are_of_no_known_age() -> None:
    turns = Turns(D)
    for number, letter in enumerate("ABC" * 5, 1):
        turns.record(number, letter)
    turns.record_read(1000)
    turns.lost(1000, 1200)
    assert turns.next(1200, 1) is None


def test_without_a_measured_latency_there_are_no_turns() -> None:
    """A manual clock, or storage that is faster than the clock: as before, a look at the head after two losses."""
    turns = Turns(D)
    turns.record_read(0)
    for number, letter in enumerate("ABC" * 5, 1):
        turns.record(number, letter)
        turns.record_read(0)
    turns.lost(0, 0)
    assert (turns.next(0, 1), turns.next(5, 2)) == (None, LOOK)


@pytest.mark.parametrize(
    ("entries", "next_one"), [("abcd", A), ("abcda", B), ("abcdab", C), ("dacb", D), ("dacbd", A), ("abcabcabc", A)]
)
def test_the_least_recently_served_is_next(entries: str, next_one: str) -> None:
    now = len(entries) * 100
    waits = {writer: turns_of(writer, entries).next(now, 0) for writer in sorted({letter * 3 for letter in entries})}
    assert in_turn(waits) == [next_one]


def test_the_one_after_the_next_polls_with_overlap_and_the_others_sleep_first() -> None:
    writers = [letter * 3 for letter in "abcdefgh"]
    waits = {writer: turns_of(writer, "abcdefgh").next(800, 0) for writer in writers}
    assert in_turn(waits) == [A]
    assert waits[B] == Wait(polls=PATIENCE * 100, overlap=NEXT)
    assert waits[C] == Wait(polls=PATIENCE * 100 + 50, overlap=SOON)
    assert waits["hhh"] == Wait(pause=450, ahead=7, polls=PATIENCE * 100 + 300, overlap=SOON)


def test_an_unused_turn_is_taken_by_the_next_in_order_and_later_by_the_one_after_it() -> None:
    """Silence counts from when the entry was seen."""
    after = {writer: turns_of(writer, "abcd") for writer in (B, C, D)}
    assert in_turn({writer: turns.next(400 + 299, 0) for writer, turns in after.items()}) == []
    assert in_turn({writer: turns.next(400 + 301, 0) for writer, turns in after.items()}) == [B]
    assert in_turn({writer: turns.next(400 + 351, 0) for writer, turns in after.items()}) == [B, C]


def test_a_writer_that_lets_its_turn_pass_is_out_of_the_order_until_its_next_entry() -> None:
    """One pause for a dead writer, not one a round."""
    assert turns_of(C, "abcdac").next(600, 0) is not None  # After c: d, then a; b is out.
    assert turns_of(D, "abcdac").next(600, 0) is None
    assert turns_of(A, "abcdacd").next(700, 0) is None
    b_is_out = turns_of(C, "abcdacda").next(800, 0)
    assert b_is_out is None
    assert turns_of(C, "abcdacdab").next(900, 0) is None
    assert turns_of(C, "abcdacdabcda").next(1200, 0) is not None  # b is expected again.


def test_writers_of_a_quiet_chain_are_not_waited_for() -> None:
    assert turns_of(C, "abcabc").next(600, 0) == Wait(polls=350, overlap=SOON)
    assert turns_of(C, "abcabc").next(600 + 10_000, 0) is None
    assert turns_of(C, "abcabc", every=1000).next(6000 + 100, 0) is None


def test_a_writer_outside_the_order_puts_when_it_sees_an_entry_as_early_as_the_next_one() -> None:
    outside = turns_of("new", "abab")
    assert outside.next(400, 0) is None
    assert outside.next(470, 0) is not None  # By now the next one in order has begun its PUT.


def test_a_writer_that_has_lost_polls_the_first_entry_that_does_not_exist_yet() -> None:
    """An entry every 100 ms: when the first GET is answered, the entries 5 and 6 exist."""
    outside = turns_of("new", "abab")
    wait = outside.next(570, 1)
    assert wait is not None
    assert (wait.pause, wait.target, wait.overlap) == (0, 3, JOIN)
    assert wait.polls >= 300 + 400 - 570  # Entry 7, one interval late.
    slower = turns_of("new", "abab", every=190).next(4 * 190 + 170, 1)
    assert slower is not None
    assert slower.target == 2


def test_the_entry_of_a_newcomer_takes_no_turn_of_another_writer() -> None:
    """Writer d comes between a and b, who has lost a PUT and needs no other turn."""
    assert turns_of(B, "abcabcad").next(800, 1) is None
    assert turns_of(C, "abcabcad").next(800, 0) == Wait(polls=PATIENCE * 100, overlap=NEXT)
    assert turns_of(D, "abcabcadbca").next(1100, 0) is None


def test_an_entry_is_not_dated_before_its_writer_can_have_read_the_one_before_it() -> None:
    """So a lost race at entry 5 shows how far the chain is by now: entry 7 is the one to poll."""
    outside = turns_of("new", "abab")
    outside.record(5, A)
    outside.lost(405, 605)  # Its GET came back 205 ms after entry 4.
    wait = outside.next(605, 1)
    assert wait is not None
    assert wait.target == 3


def test_a_wait_is_bounded_whatever_the_clock_does() -> None:
    turns = turns_of("hhh", "abcdefgh")
    turns.lost(0, 10**9)
    assert turns.latency <= 200
    for now in (-(10**9), 0, 850, 10**9):
        wait = turns.next(now, 0)
        assert wait is None or (wait.pause <= 2000 and wait.polls <= 10 * turns.latency)


def test_entries_are_counted_once_in_their_order_whichever_thread_read_them() -> None:
    turns = turns_of(C, "abc")
    for number in (5, 4, 5, 3, 4):
        turns.record(number, {3: C, 4: A, 5: B}[number])
    turns.record_read(500, head=True, fresh=True)
    assert turns.next(500, 0) is None


# What comes of it -----------------------------------------------------------------------------------------------------


def writers(count: int, seed: int, **more: object) -> list[Writer]:
    rng = random.Random(seed)
    return [Writer(f"{rng.getrandbits(64):016x}", **more) for _ in range(count)]  # type: ignore[arg-type]


def one(latencies: int = 500, **more: bool) -> int:
    return len(Contention(writers(1, 0), 0, **more).run(latencies).entries)


def first_commits(incumbents: int, seeds: range, newcomers: int = 1, **more: object) -> list[float]:
    """How many latencies the first commits of newcomers take, sorted, in a chain whose writers have their order.

    ``more``: of :class:`Contention`, or of the newcomers.
    """
    of_chain = {name: more.pop(name) for name in ("upload", "spread") if name in more}
    firsts = list[float]()
    for seed in seeds:
        begin = (60 + 10 * incumbents) * LATENCY
        old, new = writers(incumbents, seed), writers(newcomers, seed + 1000, begins=begin, **more)
        many = Contention(old + new, seed, **of_chain)  # type: ignore[arg-type]
        for until in range(0, 1000, 10):
            if all(one.waits for one in many.run(until).writers):
                break
        firsts += [one.waits[0] / LATENCY if one.waits else 1000 for one in new]
    return sorted(firsts)


@pytest.mark.slow
@pytest.mark.parametrize("upload", [False, True], ids=["in-entry", "upload"])
@pytest.mark.parametrize("spread", [0.3, 0.05], ids=["jitter", "even"])
@pytest.mark.parametrize(("incumbents", "median", "longest"), [(4, 12, 40), (8, 16, 40), (16, 20, 60)])
def test_a_newcomer_among_busy_writers_joins_soon(
    incumbents: int, median: float, longest: float, upload: bool, spread: float
) -> None:
    firsts = first_commits(incumbents, range(16), upload=upload, spread=spread)
    assert firsts[8] <= median, firsts
    assert firsts[-1] <= longest, firsts


@pytest.mark.parametrize(("upload", "median", "longest"), [(True, 12, 24), (False, 20, 60)], ids=["upload", "in-entry"])
def test_a_newcomer_joins_a_lone_writer(upload: bool, median: float, longest: float) -> None:
    """The lone one sends no GET and makes no pause, so they race on equal terms."""
    firsts = first_commits(1, range(16), upload=upload)
    assert firsts[8] <= median, firsts
    assert firsts[-1] <= longest, firsts


@pytest.mark.parametrize("upload", [False, True], ids=["in-entry", "upload"])
def test_newcomers_that_begin_together_join_one_after_the_other(upload: bool) -> None:
    firsts = first_commits(4, range(8), newcomers=4, upload=upload)
    assert firsts[len(firsts) // 2] <= 16, firsts
    assert firsts[-1] <= 50, firsts


def test_a_newcomer_that_is_near_the_storage_does_not_lock_out_the_others() -> None:
    some = [*writers(4, 8), *writers(1, 9, begins=60 * LATENCY, distance=0.5)]
    many = Contention(some, 8).run(500)
    assert many.share() > 0.5, many.line()


def test_a_writer_that_was_suspended_joins_again() -> None:
    some = writers(4, 10)
    some[0].suspended = (100.3 * LATENCY, 160 * LATENCY)
    before = len(Contention(some, 10).run(160).entries)
    some = writers(4, 10)
    some[0].suspended = (100.3 * LATENCY, 160 * LATENCY)
    many = Contention(some, 10).run(160 + 40)
    assert some[0].name in many.entries[before:], many.line()
    assert len(many.entries) > 1.1 * one(200), many.line()


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("seed", [1, 2])
def test_many_writers_are_faster_than_one_and_none_starves(count: int, seed: int) -> None:
    """OBJ-10: every writer makes progress."""
    many = Contention(writers(count, seed), seed).run(500)
    assert len(many.entries) > 1.2 * one(), many.line()
    assert many.puts < 1.3 * len(many.entries), many.line()
    assert many.share() > 0.6, many.line()
    assert many.wait(0.99) < 4 * count, many.line()
    assert many.wait(1) < 30, many.line()


def test_sixteen_writers_are_as_fast_as_one() -> None:
    many = Contention(writers(16, 1), 1).run(800)
    assert len(many.entries) > one(800), many.line()
    assert many.puts < 1.5 * len(many.entries), many.line()
    assert many.share() > 0.4, many.line()


def test_writers_that_die_cost_one_pause_each() -> None:
    some = writers(8, 3)
    for number, writer in enumerate(some[:4]):
        writer.dies = (100 + 20 * number) * LATENCY
    many = Contention(some, 3).run(500)
    assert len(many.entries) > 1.1 * one(), many.line()


def test_a_survivor_is_alone_again() -> None:
    some = writers(2, 4)
    some[0].dies = 50 * LATENCY
    many = Contention(some, 4).run(500)
    assert many.entries[-150:] == [some[1].name] * 150
    assert len(many.entries) > 0.95 * one(), many.line()


def test_writers_that_pause_between_commits_still_make_progress() -> None:
    some = writers(8, 5, think=lambda rng: rng.expovariate(1 / 16) * LATENCY)
    many = Contention(some, 5).run(500)
    assert many.share() > 0.4, many.line()
    assert many.wait(0.99) < 60, many.line()


def test_a_busy_writer_does_not_lock_out_the_others_when_commits_need_no_upload() -> None:
    """A writer that needs no other request PUTs again when its answer arrives; the others must find a gap."""
    many = Contention(writers(4, 6), 6, upload=False).run(800)
    assert many.share() > 0.5, many.line()
    assert len(many.entries) > 0.6 * one(800, upload=False), many.line()
