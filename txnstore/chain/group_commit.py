"""The group commit: the callers that wait for an entry of a chain, and the entry that carries their commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from txnstore.chain.codec import Carried, CarryingEntry, Entry, PayloadInfo
from txnstore.chain.keys import Keys
from txnstore.chain.payload import Payload, encode_entry, entry_hash
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.authorization.rules import Authorization
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.model import NO_FEATURES, Command
from txnstore.core.state import State, begin_entry, replace
from txnstore.errors import InvalidConfigError, StorageError, TxnStoreError, UnknownOutcomeError
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim

#: The callers of an entry with at least this many commands yield to the next leader.
BATCH_THRESHOLD = 16
#: The maximum number of seconds that they wait for it.
MAX_YIELD_SECONDS = 0.01


class Origin(NamedTuple):
    """Where a carried command comes from.

    Attributes:
        writer_id: The process that handed it over.
        number: The number that this process gave it; ascending.
        after: The newest entry that this process knew.
        not_before: The newest time in ms that it knew, of an entry of any chain.
        channel: The channel that it came over.
    """

    writer_id: str
    number: int
    after: int
    not_before: int
    channel: object = None


@dataclass(slots=True)
class QueuedCommand:
    """The command of a caller that waits for its commit, and the answer.

    Attributes:
        principal: Who asks for it.
        origin: The process that handed it over to this one; None for a command of this process.
        is_doubtful: Another process may still write an entry that carries it.
        is_declined: Another process has left it to this one to decide.
        events: The number of its events, as decided last.
        result: The answer to the command, as decided last. Written by the committing thread, which may decide again.
        error: The error of the caller; None if the command was accepted.
        done: Whether ``result`` and ``error`` are final. Set last, and never unset, so a thread that reads it needs no
            lock.
    """

    command: Command
    principal: str = ANONYMOUS
    origin: Origin | None = None
    is_doubtful: bool = False
    is_declined: bool = False
    events: int = 0
    result: Any = None
    error: BaseException | None = None
    done: bool = False

    def answer(self) -> Any:
        """Return the result, or raise the error that refused the command."""
        if not self.done:
            # The thread that took the command from the queue was interrupted before it set an answer.
            msg = "the thread that was committing this command was interrupted; repeat the call to find the outcome"
            raise UnknownOutcomeError(msg)
        if self.error is not None:
            raise self.error
        return self.result


class Leader:
    """The thread that commits an entry, or that waits until it is its turn.

    Many callers that have their answers would compete with the next leader for the interpreter: it would decide its
    entry when the last of them has prepared another command. So they yield to it, and prepare those commands while
    its request is under way.
    """

    __slots__ = ("_commands", "_offered")

    def __init__(self) -> None:
        #: The number of commands in its entry; 0 until that is decided. Written by the thread of the leader.
        self._commands = 0
        #: Has an item as soon as its entry is decided; the leader before it waits for that.
        self._offered: SimpleQueue[None] = SimpleQueue()

    def has_offered(self, commands: int) -> None:
        """Record that the entry is decided, with its number of commands; 0 if this leader writes no (other) entry."""
        self._commands = commands or self._commands
        self._offered.put(None)

    def yield_to(self, following: Leader) -> None:
        """Wait until the next leader has decided its entry, if the entry of this one had many callers.

        The next leader may need requests before it decides: the wait ends after :data:`MAX_YIELD_SECONDS`.
        """
        if following is not self and self._commands >= BATCH_THRESHOLD:
            with suppress(Empty):
                following._offered.get(timeout=MAX_YIELD_SECONDS)


@dataclass(slots=True)
class Attempt:
    """An entry that claims a slot, with the state after it."""

    entry: Entry
    claim: Claim
    state: State
    commands: tuple[Command, ...]


class NotCarriedError(Exception):
    """The process of the command is to commit it itself, or may have done so since it handed it over."""


def take(queue: deque[QueuedCommand], waiters: list[QueuedCommand]) -> None:
    """Move all queued callers to ``waiters``, so that their commands share the next entry."""
    while queue:
        waiters.append(queue.popleft())


def is_unwritten(attempt: Attempt | None, waiter: QueuedCommand) -> bool:
    """Whether it is certain that the command is in no entry: the chain waits for an entry without it.

    ``attempt``: the entry whose outcome is unknown; None if there is none.
    """
    return attempt is not None and waiter.command not in attempt.commands


def refuse_doubtful(waiters: Sequence[QueuedCommand]) -> None:
    """Replace the answers to commands that another process may still commit by an error: the outcome is unknown.

    This process found each of them refused or without effect, so it writes no entry that would decide the outcome.
    """
    for waiter in waiters:
        if waiter.is_doubtful:
            found = "without effect now" if waiter.error is None else f"refused: {waiter.error!r}"
            msg = f"another process may still commit the command, which this one finds {found}"
            waiter.error, waiter.result = UnknownOutcomeError(msg), None


def error_of(attempt: Attempt | None, waiter: QueuedCommand, error: BaseException) -> Exception:
    """Return the error for the caller of a command whose commit raised: an unknown outcome only if it was offered.

    A command that equals an offered one counts as offered: it is most likely the same call again.

    ``attempt``: the entry whose outcome is unknown; None if there is none.
    """
    if waiter.is_doubtful and not isinstance(error, UnknownOutcomeError):
        return UnknownOutcomeError(f"another process may have committed the command; this one was stopped by {error!r}")
    if attempt is not None and waiter.command in attempt.commands:
        if isinstance(error, UnknownOutcomeError):
            return error
        return UnknownOutcomeError(f"{attempt.claim.key} may exist: its creation was interrupted by {error!r}")
    if attempt is not None:
        msg = f"the command was not written: it waits for {attempt.claim.key}, which the storage has not decided"
        return StorageError(f"{msg}: {error!r}")
    if isinstance(error, TxnStoreError):
        return error
    return UnknownOutcomeError(f"the thread that was committing this command was interrupted by {error!r}")


class Drafts:
    """Makes the entries that a process offers to a chain.

    Args:
        writer_id: Names the process in its entries.
        runtime: Names the entries.
    """

    def __init__(self, keys: Keys, number: int, writer_id: str, runtime: Runtime) -> None:
        self._keys, self._number = keys, number
        self._writer_id, self._runtime = writer_id, runtime

    def decide(
        self,
        before: State,
        now: int,
        waiters: Sequence[QueuedCommand],
        authorization: Authorization | None = None,
        *,
        one_by_one: bool = False,
    ) -> Attempt:
        """Decide commands in order; each waiter gets its result, or the error that refuses its command alone.

        Args:
            before: The state at the head of the chain.
            now: The time of the entry in milliseconds since the epoch.
            authorization: The authorization of the store; None: that in the state.
            one_by_one: Encode the events of each command alone, so that a command whose events cannot be encoded does
                not affect the others either.
        """
        state = begin_entry(before, now)
        key = self._keys.entry(self._number, state.sequence)
        payload = Payload(key)
        events: list[Event] = []
        principals: list[tuple[str, int]] = []
        carried: list[Carried] = []
        not_carried: set[str] = set()
        for waiter in waiters:
            mark = payload.mark
            try:
                if waiter.origin is not None and waiter.origin.writer_id in not_carried:
                    raise NotCarriedError  # Its process decides an earlier command itself, and then this one.
                decision = decide(state, payload.place(waiter.command), waiter.principal, authorization)
                if one_by_one:
                    encode_entry(self._make_entry(before, decision.state, [*decision.events]))
            except Exception as error:  # noqa: BLE001 - The error is reported to the caller of this command only.
                payload.remove_after(mark)
                waiter.error, waiter.result, waiter.events = error, None, 0
            else:
                waiter.error, waiter.result, waiter.events = None, decision.result, len(decision.events)
                state = decision.state
                if waiter.origin is not None and decision.events:
                    origin = waiter.origin
                    carried.append((origin.writer_id, origin.number, len(events), len(decision.events)))
                events += payload.keep_if_named(mark, decision.events)
                add_principal(principals, waiter.principal, len(decision.events))
            if waiter.origin is not None and not waiter.events:
                not_carried.add(waiter.origin.writer_id)
        checked = (authorization or state.authorization).mode != "off" or before.authorization.mode != "off"
        shown = principals if checked else None
        entry = self._make_entry(before, state, events, payload.describe(), shown, carried or None)
        try:
            data = encode_entry(entry, payload.data) if events else b""
        except InvalidConfigError:
            if one_by_one:
                raise
            return self.decide(before, now, waiters, authorization, one_by_one=True)
        # All that follows from the entry is computed before it is written: then nothing can fail that is durable.
        state = replace(state, entry_hash=entry_hash(data))
        commands = tuple(waiter.command for waiter in waiters)
        return Attempt(entry, Claim(key, data), state, commands)

    def _make_entry(
        self,
        before: State,
        state: State,
        events: list[Event],
        payload: PayloadInfo | None = None,
        principals: list[tuple[str, int]] | None = None,
        carried: list[Carried] | None = None,
    ) -> Entry:
        """Make the entry that leads from ``before`` to ``state``, without validation: the rules checked its values."""
        requires = state.requires.without(before.requires)
        kind: type[Entry] = Entry if carried is None else CarryingEntry
        return kind(
            sequence=state.sequence,
            entry_id=self._runtime.new_id(),
            writer_id=self._writer_id,
            timestamp=state.timestamp,
            previous=before.entry_hash,
            payload=payload,
            requires=requires if requires != NO_FEATURES else None,
            principals=principals,
            carried=carried,
            events=events,
        )


def add_principal(principals: list[tuple[str, int]], principal: str, events: int) -> None:
    """Record who asked for the next events of an entry; consecutive ones of one principal are counted together."""
    if events and principals and principals[-1][0] == principal:
        principals[-1] = principal, principals[-1][1] + events
    elif events:
        principals.append((principal, events))
