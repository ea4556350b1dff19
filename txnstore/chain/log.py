"""One chain of a process: its head, and the one commit loop of the project.

Whoever commits first flushes at once; callers that arrive while a PUT is in flight ride in the next entry (flat
combining). There is no background thread and no fixed tick. Memory changes only after an entry is durable.

An entry claims the slot after the last one we know (:mod:`txnstore.storage.claim`). If somebody else has it, theirs is
folded, the commands are decided again, and the next slot is tried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from txnstore.chain import checkpoint, keys
from txnstore.chain.codec import Entry, content_hash, decode, encode
from txnstore.core.commands import Command
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.evolve import begin_entry, evolve, first_state
from txnstore.core.model import State
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
    UnknownOutcomeError,
)
from txnstore.ids import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.claim import Claim

_LOG = logging.getLogger(__name__)

#: Entries read at once: few for a tail that is probably short, doubling up to a bound for a long one.
_FIRST_WINDOW, _MAX_WINDOW = 4, 64
#: A checkpoint is written by whoever commits an entry with a multiple of this number.
CHECKPOINT_EVERY = 64


@dataclass(slots=True)
class _Waiter:
    """A caller whose command is to be committed, and its answer."""

    command: Command
    result: Any = None
    error: BaseException | None = None
    done: bool = False

    def answer(self) -> Any:
        """The result; raises what refused the command."""
        if not self.done:
            # The thread that took it out of the queue was interrupted before it could leave an answer.
            msg = "the thread that was to commit this was stopped before it could tell"
            raise UnknownOutcomeError(msg)
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(slots=True)
class _Attempt:
    """An entry that is offered to a slot, with the state that it leads to."""

    entry: Entry
    claim: Claim
    state: State


@dataclass(slots=True)
class ChainMetrics:
    """What happened at the head of a chain in this process."""

    commits: int = 0
    commands: int = 0
    conflicts: int = 0
    unknown_outcomes: int = 0
    checkpoints: int = 0


class Chain:
    """A chain of a store, as this process knows it. Safe for many threads.

    ``now``: the time of a new entry in milliseconds, unless the chain is later already; that of ``runtime`` by default.
    """

    def __init__(
        self,
        objects: ObjectStore,
        number: int,
        runtime: Runtime,
        pool: Executor,
        *,
        read_only: bool = False,
        checkpoint_every: int = CHECKPOINT_EVERY,
        chains: int = 1,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.number = number
        self._chains = chains
        self.metrics = ChainMetrics()
        self._objects = objects
        self._runtime = runtime
        self._now = now if now is not None else runtime.clock
        self._pool = pool
        self._read_only = read_only
        self._writer_id = runtime.new_id()
        self._checkpoint_every = checkpoint_every
        self._state = first_state(number, chains)
        self._undecided: _Attempt | None = None
        self._waiting: list[_Waiter] = []
        self._mutex = threading.Lock()
        self._head = threading.RLock()

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The last state this process knows. Never goes back."""
        return self._state

    def load(self, hint: bytes | None) -> State:
        """The newest state, from the checkpoint that ``hint`` names and the entries after it.

        A missing, stale or damaged hint or checkpoint costs requests, never correctness.
        """
        with self._head:
            sequence = checkpoint.hinted(self.number, hint)
            requested = checkpoint.request(self._objects, self._pool, self.number, sequence)
            # Without a hint the chain is either too short for a checkpoint, or the hint is lost: one entry tells.
            lost = None if sequence else self._pool.submit(self._get, self._checkpoint_every)
            window: list[bytes | None] | None = self._fetch(sequence + 1, _FIRST_WINDOW)
            found = checkpoint.receive(self.number, sequence, requested)
            if found is None and (lost is None or lost.result() is not None):
                found = checkpoint.newest(self._objects, self._pool, self.number)
                window = None
            if found is not None and (found.chain, found.chains) != (self.number, self._chains):
                msg = (
                    f"{keys.checkpoint_head(self.number, found.sequence)} is of chain {found.chain} of "
                    f"{found.chains}, not of chain {self.number} of {self._chains}: {keys.STORE} is not of this store"
                )
                raise CorruptionError(msg)
            self._state = found or first_state(self.number, self._chains)
            self._catch_up(_FIRST_WINDOW, window)
            return self._state

    def refresh(self, until: int | None = None) -> State:
        """The state at the head: one GET if nothing is new.

        ``until``: no further than this entry, which is known to exist; no GET if it is in the state already.
        """
        state = self._state
        if until is not None and state.sequence >= until:
            return state
        with self._head:
            self._catch_up(1 if until is None else until - self._state.sequence, until=until)
            return self._state

    def _catch_up(self, size: int, window: list[bytes | None] | None = None, until: int | None = None) -> bool:
        """Fold all entries after the last known one, or those up to ``until``; True if there was one.

        :class:`CorruptionError` if one is missing and a later one of the same window exists: a commit would write over
        what happened there. No request is made to find holes; ``verify`` lists, and finds all.
        """
        before = self._state.sequence
        while True:
            if until is not None:
                size = min(size, until - self._state.sequence)
                if size < 1:
                    return self._state.sequence > before
            if window is None:
                window = self._fetch(self._state.sequence + 1, min(size, _MAX_WINDOW))
            for place, data in enumerate(window):
                if data is None:
                    if all(later is None for later in window[place + 1 :]):
                        return self._state.sequence > before
                    # Most likely both were written while these requests were on their way; then it is there by now.
                    missing = self._state.sequence + 1
                    data = self._get(missing)
                    if data is None:
                        raise CorruptionError(f"{keys.entry(self.number, missing)} is missing, but later entries exist")
                self._fold(data)
            window, size = None, size * 2

    def _fetch(self, first: int, count: int) -> list[bytes | None]:
        """The entries ``first`` … in parallel; None for one that does not exist."""
        if count == 1:
            return [self._get(first)]
        return list(self._pool.map(self._get, range(first, first + count)))

    def _get(self, sequence: int) -> bytes | None:
        try:
            return self._objects.get(keys.entry(self.number, sequence))
        except ObjectNotFoundError:
            return None

    def _fold(self, data: bytes) -> Entry:
        """Fold the entry after the last known one; it must name that one's bytes."""
        state = self._state
        key = keys.entry(self.number, state.sequence + 1)
        entry = decode(Entry, key, data)
        if entry.sequence != state.sequence + 1:
            msg = f"{key} says that it is entry {entry.sequence}"
            raise CorruptionError(msg)
        if entry.previous != state.entry_hash:
            before = keys.entry(self.number, state.sequence)
            msg = f"{before} was altered: {key} follows one whose hash is {entry.previous}, not {state.entry_hash}"
            raise CorruptionError(msg)
        state = begin_entry(state, entry.timestamp)
        try:
            for event in entry.events:
                state = evolve(state, event)
        except (KeyError, StopIteration) as error:
            msg = f"{key} holds an event that does not fit the state before it: {error!r}"
            raise CorruptionError(msg) from error
        self._state = replace(state, entry_hash=content_hash(data))
        if self._undecided is not None and self._undecided.entry.sequence == entry.sequence:
            self._undecided = None
        return entry

    # Committing -------------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> Any:
        """Commit a command and return its answer. Raises what refuses it; then nothing has happened.

        :class:`UnknownOutcomeError`: the storage did not tell in time; the same call again resolves it first.
        """
        self._check_writable("committed")
        waiter = _Waiter(command)
        with self._mutex:
            self._waiting.append(waiter)
        checkpoint_due: State | None = None
        with self._head:
            if not waiter.done:
                checkpoint_due = self._commit_round()
        if checkpoint_due is not None:
            self._write_checkpoint(checkpoint_due)
        return waiter.answer()

    def _commit_round(self) -> State | None:
        """Commit everything that waits; the state to checkpoint if that is due."""
        with self._mutex:
            waiters, self._waiting = self._waiting, []
        try:
            return self._commit(waiters)
        except BaseException as error:
            for waiter in waiters:
                if not waiter.done:
                    waiter.error, waiter.done = _for_followers(error), True
            raise

    def _check_writable(self, what: str) -> None:
        if self._read_only:
            msg = f"the store {self._objects.url} was opened read_only, so nothing can be {what}"
            raise ReadOnlyError(msg)

    def _commit(self, waiters: list[_Waiter]) -> State | None:
        self._settle()
        losses = 0
        while True:
            attempt = self._decide(waiters)
            if not attempt.entry.events:
                if not self._catch_up(1):
                    break  # A refusal, or an answer without an entry, is true only at the head: it was looked for.
                continue
            if self._offer(attempt):
                self.metrics.commits += 1
                self.metrics.commands += len(waiters)
                break
            losses += 1
            self.metrics.conflicts += 1
            if losses > 1:
                self._runtime.backoff(losses)
                self._catch_up(1)
        for waiter in waiters:
            waiter.done = True
        crossed = attempt.entry.events and attempt.entry.sequence % self._checkpoint_every == 0
        return self._state if crossed else None

    def _decide(self, waiters: list[_Waiter], *, one_by_one: bool = False) -> _Attempt:
        """Decide the commands one after the other at the head; a refused one fails alone.

        ``one_by_one``: so does one whose events cannot be written, which is found out by encoding them alone.
        """
        state = begin_entry(self._state, self._now())
        events: list[Event] = []
        for waiter in waiters:
            try:
                decision = decide(state, waiter.command)
                if one_by_one:
                    encode(self._entry(decision.state, [*decision.events]))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a command is its caller's alone
                waiter.error, waiter.result = error, None
            else:
                waiter.error, waiter.result = None, decision.result
                state = decision.state
                events += decision.events
        entry = self._entry(state, events)
        try:
            data = encode(entry) if events else b""
        except InvalidConfigError:
            if one_by_one:
                raise
            return self._decide(waiters, one_by_one=True)
        return _Attempt(entry, Claim(keys.entry(self.number, entry.sequence), data), state)

    def _entry(self, state: State, events: list[Event]) -> Entry:
        return Entry(
            sequence=state.sequence,
            entry_id=self._runtime.new_id(),
            writer_id=self._writer_id,
            timestamp=state.timestamp,
            previous=self._state.entry_hash,
            events=events,
        )

    def _settle(self) -> None:
        """Find out what became of an entry whose outcome an earlier call could not tell."""
        attempt = self._undecided
        if attempt is not None:
            self._offer(attempt)

    def _offer(self, attempt: _Attempt) -> bool:
        """Offer an entry to its slot until that is decided: True if it is ours now."""
        self._undecided = attempt
        unknown_before = attempt.claim.unknown_outcomes
        try:
            found = attempt.claim.settle(self._objects, self._runtime.backoff)
        except StorageError:
            if not attempt.claim.doubtful:
                self._undecided = None  # No offer was ever accepted: nothing happened.
            raise
        finally:
            self.metrics.unknown_outcomes += attempt.claim.unknown_outcomes - unknown_before
        self._undecided = None
        if found != attempt.claim.data:
            self._fold(found)
            return False
        self._state = replace(attempt.state, entry_hash=content_hash(found))
        return True

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Write a checkpoint of the head; returns its sequence number."""
        self._check_writable("written")
        state = self.refresh()
        checkpoint.write(self._objects, self.number, state)
        self.metrics.checkpoints += 1
        return state.sequence

    def _write_checkpoint(self, state: State) -> None:
        """Off the commit path: the commit is durable and answered, so a failure here costs nothing but time later."""
        try:
            checkpoint.write(self._objects, self.number, state)
            self.metrics.checkpoints += 1
        except StorageError as error:
            _LOG.warning("checkpoint not written", extra={"sequence": state.sequence, "error": str(error)})


def _for_followers(error: BaseException) -> Exception:
    """What the others in the entry are told if the thread that writes it fails: an interrupt was for that one only."""
    if isinstance(error, Exception):
        return error
    return UnknownOutcomeError(f"the thread that was to commit this was stopped by {error!r}")
