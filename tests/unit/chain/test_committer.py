"""The side of a committer that hands commands over, against a channel whose messages the test writes."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.committing import hands_over
from tests.helpers.connections import connection_of
from tests.helpers.shell import runtime, topic
from txnstore.chain.committer import committer as module
from txnstore.chain.committer.committer import (
    HELLO_SECONDS,
    MAX_SLOWNESS_MS,
    MAX_WAITS,
    MIN_PATIENCE_MS,
    PACES,
    Committer,
    Place,
)
from txnstore.chain.committer.messages import (
    Commands,
    Declined,
    Hello,
    Message,
    Stored,
    Welcome,
    decode_message,
    encode_message,
)
from txnstore.chain.committer.rendezvous import Met
from txnstore.chain.committer.sharing import VARIABLE
from txnstore.chain.group_commit import NotCarriedError, Origin, QueuedCommand
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.state import first_state
from txnstore.errors import StorageError
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

PLACE = Place("memory://", "storage", "chains/0/0000/")


class Other:
    """The process at the other end of a channel: welcomes, and declines what it is told to."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque([encode_message(Welcome(0, "", 0, 0))])
        self.asked: list[Message] = []
        #: For how many seconds its answers were waited for.
        self.waits: list[float | None] = []
        self.closed = False

    def send(self, frame: bytes) -> None:
        self.asked.append(decode_message(frame))

    def receive(self, timeout: float | None) -> bytes | None:
        self.waits.append(timeout)
        return self.frames.popleft() if self.frames else None

    def close(self) -> None:
        self.closed = True


class Meetings:
    """A rendezvous that leads to one process after the other; its mailbox never waits.

    One that has waited for a message in vain is led to the process that it has met last, if that is ``there``.
    """

    def __init__(self, *others: Other) -> None:
        self._others = deque(others)
        self.there: deque[Other] = deque()
        self._identity, self._is_asking = object(), False
        self.clock = ManualClock()
        self.is_near = True
        self.wait_ms = 0
        self.asked_to: list[bool] = []
        self.mail: deque[object] = deque()

    def meet(self, name: str, serve: Any, silent: object = None, *, listen: bool = True) -> Met | None:
        if self._is_asking:
            self._is_asking = False
            return Met(self._identity, channel=self.there.popleft()) if self.there else None
        self.asked_to.append(listen)
        self._identity = object()
        return Met(self._identity, channel=self._others.popleft(), is_near=self.is_near) if self._others else None

    def mailbox(self) -> Any:
        return self

    def put(self, message: object) -> None:
        self.mail.append(message)

    def get(self, timeout: float | None) -> object:
        self.clock.advance(min(self.wait_ms, math.ceil((timeout or 0) * 1000)))
        message = self.mail.popleft() if self.mail else None
        self._is_asking = message is None and bool(timeout)
        return message

    def start(self, run: Any) -> None:
        """The test is the thread that reads the channel."""


class Chain:
    """What a committer that has nothing to commit needs of its chain."""

    state = first_state(0, 1)

    def latency_ms(self) -> float:
        return 1

    def known(self) -> tuple[int, int]:
        return 0, 0

    fails = False

    has: bool | None = True
    carried = 0

    def has_entry(self, sequence: int, entry_hash: str) -> bool | None:
        if self.fails:
            raise StorageError("the storage does not answer")
        return self.has

    def count_carried(self, carried: int) -> None:
        self.carried += carried

    def refresh(self, until: int) -> object:
        return self.state


def caller(*others: Other) -> tuple[Committer, Meetings]:
    meetings, chain = Meetings(*others), Chain()
    made: Any = Committer(chain, meetings, PLACE, "caller", runtime(meetings.clock))  # type: ignore[arg-type]
    made.chain = chain  # The committer alone keeps it.
    return made, meetings


def waiting(name: str = "t") -> QueuedCommand:
    return QueuedCommand(CreateTopic(topic(name)))


def test_what_is_declined_is_certain_to_be_left_to_its_process() -> None:
    other = Other()
    committer, meetings = caller(other)
    assert committer.join(listen=True)
    meetings.put(Declined((1,)))
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert [type(each) for each in other.asked] == [Hello, Commands]
    assert (waiter.done, waiter.is_declined, waiter.is_doubtful) == (False, True, False)
    assert hands_over(committer)


@pytest.mark.parametrize(("messages", "is_answered"), [(4, True), (5, False)])
def test_messages_show_that_the_committer_is_there_but_not_forever(messages: int, is_answered: bool) -> None:
    """Others win its slots, and it says so; its callers would only race, too."""
    other = Other()
    committer, meetings = caller(other)
    committer.join(listen=True)
    meetings.wait_ms = round(MIN_PATIENCE_MS)
    meetings.mail.extend([Stored(number, False, True, b"") for number in range(messages)])
    meetings.put(Declined((1,)))
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert waiter.is_declined is is_answered
    assert waiter.is_doubtful is not is_answered
    assert hands_over(committer) is is_answered


def test_a_committer_that_answers_a_second_connection_is_waited_for() -> None:
    """It is slow, as all processes of a busy machine are: a process that replaced it would be as slow."""
    committer, meetings = caller(Other())
    committer.join(listen=True)
    meetings.there.append(asked := Other())
    meetings.mail.extend([None, Declined((1,))])
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert waiter.is_declined
    assert hands_over(committer)
    assert [type(each) for each in asked.asked] == [Hello]
    assert asked.closed


@pytest.mark.parametrize("answer", ["closes", "says nothing", "is another one"])
def test_a_committer_that_does_not_answer_a_second_connection_is_left(answer: str) -> None:
    committer, meetings = caller(Other())
    committer.join(listen=True)
    meetings.there.append(asked := Other())
    if answer == "is another one":
        meetings._identity = object()
    else:
        asked.frames = deque([b""] if answer == "closes" else [])
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert not waiter.is_declined
    assert not hands_over(committer)
    assert asked.closed


def test_a_committer_of_another_machine_is_left_without_being_asked() -> None:
    """A second connection costs a PUT, a GET and a DELETE, and steps of a second where it cannot be reached."""
    committer, meetings = caller(Other())
    meetings.is_near = False
    committer.join(listen=True)
    meetings.there.append(asked := Other())
    committer.hand_over([waiting()], lambda: None)
    assert not hands_over(committer)
    assert asked.asked == []


def test_a_committer_that_answers_while_it_is_asked_in_vain_is_kept() -> None:
    """It has no thread for a second connection, or none in time, but it has committed."""
    committer, meetings = caller(Other())
    committer.join(listen=True)
    meetings.mail.extend([None, Declined((1,))])
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert waiter.is_declined
    assert hands_over(committer)


def test_a_committer_that_is_there_and_commits_nothing_is_left() -> None:
    """Its storage does not answer, for example."""
    committer, meetings = caller(Other())
    committer.join(listen=True)
    meetings.wait_ms = round(MIN_PATIENCE_MS)
    meetings.there.extend(Other() for _ in range(100))
    began = meetings.clock()
    committer.hand_over([waiting()], lambda: None)
    assert not hands_over(committer)
    assert meetings.clock() - began == MAX_WAITS * MIN_PATIENCE_MS


def test_patience_is_several_times_the_last_wait_for_an_answer() -> None:
    committer, meetings = caller(Other())
    committer.join(listen=True)
    meetings.wait_ms = 800
    meetings.put(Declined((1,)))
    committer.hand_over([waiting()], lambda: None)
    began, meetings.wait_ms = meetings.clock(), 60_000
    committer.hand_over([waiting()], lambda: None)
    assert not hands_over(committer)
    assert meetings.clock() - began == PACES * 800


def test_patience_doubles_with_each_process_that_does_not_answer_up_to_a_limit() -> None:
    silent = [Other() for _ in range(4)]
    for each in silent:
        each.frames.clear()
    committer, _ = caller(*silent, other := Other())
    for _ in silent:
        assert not committer.join(listen=True)
    assert committer.join(listen=True)
    waits = [each.waits[0] for each in (*silent, other)]
    longest = MAX_SLOWNESS_MS / 1000
    assert waits == [min(HELLO_SECONDS * 2**times, longest) for times in range(5)]
    assert waits[-1] == longest


def test_a_process_that_does_not_answer_is_replaced_also_by_one_that_would_only_connect() -> None:
    committer, meetings = caller(Other())
    committer.join(listen=False)
    committer.hand_over([waiting()], lambda: None)  # Nothing arrives.
    assert not hands_over(committer)
    committer.join(listen=False)
    assert meetings.asked_to == [False, True]


def test_a_command_is_handed_over_again_to_the_next_committer_until_one_declines_it() -> None:
    """The first committer may still carry it: only an entry tells whether what the second one declines is refused."""
    first, second = Other(), Other()
    committer, meetings = caller(first, second)
    waiter = waiting()
    committer.join(listen=True)
    committer.hand_over([waiter], lambda: None)  # Nothing arrives.
    assert (waiter.is_doubtful, waiter.is_declined) == (True, False)
    committer.join(listen=True)
    meetings.put(Declined((2,)))
    committer.hand_over([waiter], lambda: None)
    commands = [each for other in (first, second) for each in other.asked if isinstance(each, Commands)]
    assert [[number for number, _, _ in each.handed] for each in commands] == [[1], [2]]
    assert (waiter.done, waiter.is_doubtful, waiter.is_declined) == (False, True, True)


class Queue:
    """What is queued while a committer of the callers ``x`` and ``y`` gathers: one command at each wait."""

    def __init__(self, *arriving: str) -> None:
        self.committer, self.meetings = caller()
        self.channels = {name: Other() for name in ("x", "y")}
        for name, channel in self.channels.items():
            self.committer.greeted(encode_message(Hello(PLACE.chain, name)), channel)
        self.arriving = deque(arriving)
        self.waiters: list[QueuedCommand] = []
        self.took = 0

    def serve(self, *names: str, is_own: bool = True) -> None:
        """Write an entry with commands of these processes, and of this one."""
        carried, events = [(name, 1, 0, 1) for name in names], [None] * (len(names) + is_own)
        entry: Any = SimpleNamespace(sequence=1, writer_id="caller", carried=carried or None, events=events)
        self.committer.wrote(entry)

    def take(self) -> None:
        self.took += 1
        if self.took > 1 and self.arriving:
            name = self.arriving.popleft()
            origin = None if name == "caller" else Origin(name, 2, 1, 0, self.channels[name])
            self.waiters.append(QueuedCommand(CreateTopic(topic("t")), origin=origin))

    def gather(self) -> None:
        self.meetings.mail.extend([True] * len(self.arriving))
        self.committer.gather(self.waiters, self.take)


def test_a_committer_waits_for_the_next_commands_of_those_that_it_served() -> None:
    queue = Queue("x", "caller", "y")
    queue.serve("x", "y")
    queue.gather()
    assert [each.origin.writer_id if each.origin else "own" for each in queue.waiters] == ["x", "own", "y"]


def test_a_committer_waits_for_none_that_has_parted_and_once_for_one_that_sends_nothing() -> None:
    queue = Queue("caller", "x", "x")
    queue.serve("x", "y")
    queue.committer.parted("y", queue.channels["y"])
    queue.gather()
    assert len(queue.waiters) == 2
    queue.gather()
    assert len(queue.waiters) == 2
    idle = Queue()
    idle.serve("x")
    idle.gather()
    assert idle.took == 1


def test_a_committer_without_commits_does_not_wait_for_itself() -> None:
    queue = Queue("x", "caller")
    queue.serve("x", is_own=False)
    queue.gather()
    assert len(queue.waiters) == 1


def test_a_committer_that_served_itself_alone_does_not_wait() -> None:
    queue = Queue("x")
    queue.serve()
    queue.gather()
    assert queue.took == 0


def test_a_committer_gathers_for_a_part_of_a_latency() -> None:
    queue = Queue(*["x"] * 9)
    queue.serve("x", "y")
    queue.meetings.wait_ms = 1  # A latency is 1 ms here, and the time is over at the first wait.
    queue.gather()
    assert len(queue.waiters) == 1


def test_a_committer_carries_nothing_of_an_older_channel() -> None:
    committer, _ = caller()
    older, newer = Other(), Other()
    hello = encode_message(Hello(PLACE.chain, "x"))
    assert [committer.greeted(hello, channel) for channel in (older, newer)] == ["x", "x"]
    waiters = [
        QueuedCommand(CreateTopic(topic("t")), origin=Origin("x", number, 0, 0, channel))
        for number, channel in enumerate((older, newer), 1)
    ]
    admitted = list(waiters)
    committer.admit(admitted)
    assert admitted == waiters[1:]
    assert isinstance(waiters[0].error, NotCarriedError)
    committer.parted("x", older)
    committer.admit(admitted)
    assert admitted == waiters[1:]
    committer.parted("x", newer)
    committer.admit(admitted)
    assert admitted == []


def test_what_a_caller_asks_for_next_is_queued_before_all_waits_for_the_answer_before_it() -> None:
    """Else a thread that is not awake yet to read it would let it miss an entry."""
    committer, meetings = caller()
    made: Any = committer
    channel, queued, committed = Other(), list[QueuedCommand](), list[QueuedCommand]()
    made.chain.read_catalog = lambda until: None
    made.chain.enqueue_all = queued.extend
    made.chain.commit_queued = committed.append
    committer.greeted(encode_message(Hello(PLACE.chain, "x")), channel)
    for number in (1, 2):
        committer.asked(encode_message(Commands(0, 0, 0, ((number, "User:x", waiting().command),))), "x", channel)
    assert [each.origin.number for each in queued if each.origin] == [1, 2]
    assert committed == []
    while meetings.mail:
        committer.carry(*made._queued.get(0))
    assert committed == queued
    assert [each for each in channel.asked if isinstance(each, Declined)] == [Declined((1,)), Declined((2,))]


def test_an_error_at_a_caller_ends_its_channel_and_not_the_thread_that_commits_for_all() -> None:
    """Such as no memory to encrypt an answer; the thread would not be started again."""
    committer, meetings = caller()
    made: Any = committer
    broken, channel = Other(), Other()

    def no_memory(frame: bytes) -> None:
        raise MemoryError

    made.chain.read_catalog = lambda until: None
    made.chain.enqueue_all = made.chain.commit_queued = lambda _: None
    tasks: list[Any] = []
    vars(meetings)["start"] = tasks.append
    for each in (broken, channel):
        committer.greeted(encode_message(Hello(PLACE.chain, "x")), each)
        committer.asked(encode_message(Commands(0, 0, 0, ((1, "User:x", waiting().command),))), "x", each)
    vars(broken)["send"] = no_memory
    tasks[0]()
    assert [broken.closed, channel.closed] == [True, False]
    assert [each for each in channel.asked if isinstance(each, Declined)] == [Declined((1,))]


@pytest.mark.parametrize(("claimed_ms", "patience_ms"), [(20.0, 1_000), (2_500.0, 2_500), (20_000.0, 3_000)])
def test_the_first_latency_of_a_committer_makes_no_caller_wait_for_long(claimed_ms: float, patience_ms: int) -> None:
    other = Other()
    other.frames = deque([encode_message(Welcome(0, "", 0, claimed_ms))])
    committer, meetings = caller(other)
    committer.join(listen=True)
    meetings.wait_ms = 60_000
    began = meetings.clock()
    committer.hand_over([waiting()], lambda: None)
    assert meetings.clock() - began == patience_ms


@pytest.mark.parametrize("refusal", ["closes", "says nothing", "knows deleted entries"])
def test_a_listener_that_shares_nothing_is_replaced(refusal: str) -> None:
    other = Other()
    if refusal == "closes":
        other.frames = deque([b""])
    elif refusal == "says nothing":
        other.frames.clear()
    committer, meetings = caller(other)
    made: Any = committer
    made.chain.has = None if refusal == "knows deleted entries" else True
    assert not committer.join(listen=False)
    assert other.closed
    committer.join(listen=False)
    assert meetings.asked_to == [False, True]


def test_nothing_is_handed_over_to_a_channel_that_has_ended() -> None:
    other = Other()
    committer, _ = caller(other)
    assert committer.join(listen=True)
    assert committer._channel is other
    committer.lost(other)
    assert not hands_over(committer)
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert [type(each) for each in other.asked] == [Hello]
    assert not waiter.is_doubtful


def test_the_end_of_an_earlier_channel_does_not_end_the_newest_one() -> None:
    first, second = Other(), Other()
    committer, meetings = caller(first, second)
    assert committer.join(listen=True)
    committer.hand_over([waiting()], lambda: None)
    assert committer.join(listen=True)
    committer.lost(first)
    assert hands_over(committer)
    meetings.put(Declined((2,)))
    waiter = waiting()
    committer.hand_over([waiter], lambda: None)
    assert hands_over(committer)
    assert waiter.is_declined
    assert not second.closed


@pytest.mark.parametrize("step", ["receive", "has_entry", "refresh", "start"])
def test_an_interrupt_leaves_no_half_joined_process(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a commit meets the committer: the next commit meets it again."""
    first, second = Other(), Other()
    committer, meetings = caller(first, second)
    made: Any = committer
    of = {"receive": first, "start": meetings}.get(step, made.chain)
    with monkeypatch.context() as patch:
        patch.setattr(of, step, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            committer.join(listen=True)
    assert first.closed
    assert not hands_over(committer)
    assert committer.join(listen=True)
    assert committer._channel is second


def test_an_interrupt_while_a_command_waits_leaves_its_outcome_open(monkeypatch: pytest.MonkeyPatch) -> None:
    committer, meetings = caller(Other())
    committer.join(listen=True)
    waiter = waiting()
    with monkeypatch.context() as patch:
        patch.setattr(meetings, "get", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            committer.hand_over([waiter], lambda: None)
    assert (waiter.done, waiter.is_doubtful) == (False, True)
    assert hands_over(committer)
    meetings.put(Declined((2,)))
    following = waiting("u")
    committer.hand_over([following], lambda: None)
    assert (following.is_declined, following.is_doubtful) == (True, False)


def _interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("more", [0, 1])
def test_a_command_that_no_frame_holds_is_left_to_its_process(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other, waiter = Other(), waiting()
    committer, meetings = caller(other)
    committer.join(listen=True)
    size = len(encode_message(Commands(0, 0, 0, ((1, waiter.principal, waiter.command),))))
    monkeypatch.setattr(module, "MAX_FRAME", size - more)
    meetings.put(Declined((1,)))
    committer.hand_over([waiter], lambda: None)
    assert [type(each) for each in other.asked] == ([Hello] if more else [Hello, Commands])
    assert (waiter.done, waiter.is_declined, waiter.is_doubtful) == (False, True, False)
    assert hands_over(committer)


def test_who_cannot_read_the_entries_of_the_other_process_commits_alone() -> None:
    """The commit that led to the meeting goes on, and the channel is not left open."""
    other = Other()
    committer, _ = caller(other)
    made: Any = committer
    made.chain.fails = True
    assert not committer.join(listen=True)
    assert other.closed
    assert not hands_over(committer)


@pytest.mark.parametrize("made", [create_on, open_on])
def test_a_store_without_a_runtime_of_its_own_shares_unless_that_is_off(
    made: Callable[[ObjectStore], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryStore()
    if made is open_on:
        create_on(objects).close()
    monkeypatch.delenv(VARIABLE, raising=False)
    with made(objects) as store:
        assert connection_of(store).chain._committer is not None
    monkeypatch.setenv(VARIABLE, "off")
    with open_on(objects) as store:
        assert connection_of(store).chain._committer is None


def test_a_caller_that_is_dropped_leaves_its_channel() -> None:
    """The thread that reads the channel, and that of the other process, would wait for the next entry."""
    first, second = Other(), Other()
    committer, _ = caller(first, second)
    assert committer.join(listen=True)
    committer.lost(first)
    assert committer.join(listen=True)
    del committer
    gc.collect()
    assert second.closed
