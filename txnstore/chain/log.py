"""A chain in one process: its state, and the commit loop, which is the only code that writes entries.

Group commit: the first caller writes an entry immediately; the commands of callers that arrive while the PUT is in
flight share the next entry (flat combining). There is no background thread and no timer. The state in memory changes
only after the entry is durable.

An entry claims the slot after the last known entry (:class:`~txnstore.storage.base.Claim`). If another process has
taken the slot, the loop folds that entry, decides the commands again, and claims the next slot. See
docs/design/0002-commit.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from txnstore.chain import checkpoint, keys
from txnstore.chain.codec import Entry, content_hash, decode, encode
from txnstore.core.commands import Command
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.evolve import evolve
from txnstore.core.state import State, begin_entry, first_state, replace
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
    UnknownOutcomeError,
)
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim, ObjectStore

_LOG = logging.getLogger(__name__)

#: Entries read concurrently: few at first, because the tail is usually short; doubles up to a bound for a long tail.
_FIRST_WINDOW, _MAX_WINDOW = 4, 64
#: The process that commits an entry whose number is a multiple of this one writes a checkpoint.
CHECKPOINT_EVERY = 64


@dataclass(slots=True)
class _Waiter:
    """A caller that waits for the commit of its command, and the answer to it."""

    command: Command
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


@dataclass(slots=True)
class _Attempt:
    """An entry that claims a slot, with the state after it."""

    entry: Entry
    claim: Claim
    state: State


@dataclass(slots=True)
class ChainMetrics:
    """Counters of the commits of a chain in this process.

    Attributes:
        commits: Entries written.
        commands: Commands in these entries, including refused ones.
        conflicts: Slots that another process took first.
        unknown_outcomes: Conditional creates whose outcome was unknown at first.
        checkpoints: Checkpoints written.
    """

    commits: int = 0
    commands: int = 0
    conflicts: int = 0
    unknown_outcomes: int = 0
    checkpoints: int = 0


class Chain:
    """A chain of a store with the state known to this process. Thread-safe.

    ``state``: the last state that this process knows; never goes back, and only the chain itself replaces it.
    ``siblings``: all chains of the store, this one included; by default it is the only one.
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
        siblings: Sequence[Chain] | None = None,
    ) -> None:
        self.number = number
        self._chains = chains
        self.metrics = ChainMetrics()
        self._objects = objects
        self._runtime = runtime
        self._siblings = siblings if siblings is not None else (self,)
        self._pool = pool
        self._read_only = read_only
        self._writer_id = runtime.new_id()
        self._checkpoint_every = checkpoint_every
        self.state = first_state(number, chains)
        self._undecided: _Attempt | None = None
        self._waiting: list[_Waiter] = []
        self._mutex = threading.Lock()
        self._head = threading.RLock()

    # Reading ----------------------------------------------------------------------------------------------------------

    def load(self, hint: bytes | None) -> State:
        """Load the state at the head from the checkpoint that ``hint`` names and the entries after it.

        A missing, stale or damaged hint or checkpoint costs additional requests, never correctness.

        Args:
            hint: The content of ``latest.json``; None if it does not exist.

        Raises:
            CorruptionError: An entry is missing or altered, or the checkpoint belongs to another chain.
        """
        with self._head:
            sequence = checkpoint.hinted(self.number, hint)
            requested = checkpoint.request(self._objects, self._pool, self.number, sequence)
            # Without a hint, the chain is too short for a checkpoint, or the hint is missing: one entry decides.
            lost = None if sequence else self._pool.submit(self._get, self._checkpoint_every)
            window: list[bytes | None] | None = self._fetch(sequence + 1, _FIRST_WINDOW)
            found = checkpoint.receive(self.number, sequence, requested)
            if found is None and (lost is None or lost.result() is not None):
                found = checkpoint.newest(self._objects, self._pool, self.number)
                window = None
            if found is not None and (found.chain, found.chains) != (self.number, self._chains):
                msg = (
                    f"{keys.checkpoint_head(self.number, found.sequence)} belongs to chain {found.chain} of "
                    f"{found.chains}; expected chain {self.number} of {self._chains}: "
                    f"{keys.STORE} belongs to another store"
                )
                raise CorruptionError(msg)
            self.state = found or first_state(self.number, self._chains)
            self._catch_up(_FIRST_WINDOW, window)
            return self.state

    def refresh(self, until: int | None = None) -> State:
        """Read new entries and return the state at the head. Costs one GET if there are none.

        Args:
            until: Read no further than this entry, which must exist. Makes no request if the state includes it.
        """
        state = self.state
        if until is not None and state.sequence >= until:
            return state
        with self._head:
            self._catch_up(1 if until is None else until - self.state.sequence, until=until)
            return self.state

    def _catch_up(self, size: int, window: list[bytes | None] | None = None, until: int | None = None) -> bool:
        """Fold all entries after the last known one, or those up to ``until``; True if there was at least one.

        Raises :class:`CorruptionError` if an entry is missing and a later one of the same window exists: a commit would
        fill the gap and change history. No further requests look for gaps; ``verify`` lists the chain and finds all.
        """
        before = self.state.sequence
        while True:
            if until is not None:
                size = min(size, until - self.state.sequence)
                if size < 1:
                    return self.state.sequence > before
            if window is None:
                window = self._fetch(self.state.sequence + 1, min(size, _MAX_WINDOW))
            for place, data in enumerate(window):
                if data is None:
                    if all(later is None for later in window[place + 1 :]):
                        return self.state.sequence > before
                    # Most likely both were written while these requests were on their way; then it is there by now.
                    missing = self.state.sequence + 1
                    data = self._get(missing)
                    if data is None:
                        raise CorruptionError(f"{keys.entry(self.number, missing)} is missing, but later entries exist")
                self._fold(data)
            window, size = None, size * 2

    def _fetch(self, first: int, count: int) -> list[bytes | None]:
        """Read ``count`` entries from ``first`` concurrently; None for an entry that does not exist."""
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
        state = self.state
        key = keys.entry(self.number, state.sequence + 1)
        entry = decode(Entry, key, data)
        if entry.sequence != state.sequence + 1:
            msg = f"{key} contains entry {entry.sequence}; expected {state.sequence + 1}"
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
            msg = f"{key} contains an event that is invalid in the state before it: {error!r}"
            raise CorruptionError(msg) from error
        self.state = replace(state, entry_hash=content_hash(data))
        if self._undecided is not None and self._undecided.entry.sequence == entry.sequence:
            self._undecided = None
        return entry

    # Committing -------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time of a new entry in ms: the local clock, never before a known entry of any chain (OBJ-05, ADD-07).

        As with Lamport clocks, an entry that follows from an entry of another chain has no earlier timestamp, although
        the clocks of their writers differ. A clock that is behind continues from there by 1 ms per entry, so that the
        times of entries still tell them apart, however long the clock stays behind.
        """
        now, known = self._runtime.clock(), max([chain.state.timestamp for chain in self._siblings])
        return now if now >= known else known + 1

    def submit(self, command: Command) -> Any:
        """Commit a command and return its result.

        Raises:
            UnknownOutcomeError: The command may have been committed; the next call resolves this first.
            ReadOnlyError: The store was opened read-only.
            TxnStoreError: The command was refused and had no effect.
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
        """Commit all waiting commands; returns the state to checkpoint if a checkpoint is due."""
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
            msg = f"the store {self._objects.url} was opened with read_only=True; nothing can be {what}"
            raise ReadOnlyError(msg)

    def _commit(self, waiters: list[_Waiter]) -> State | None:
        self._settle()
        losses = 0
        while True:
            attempt = self._decide(waiters)
            if not attempt.entry.events:
                if not self._catch_up(1):
                    break  # A refusal, or a result without an entry, is valid only at the head: the chain is at it now.
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
        return self.state if crossed else None

    def _decide(self, waiters: list[_Waiter], *, one_by_one: bool = False) -> _Attempt:
        """Decide the commands in order at the head; a refused command does not affect the others.

        ``one_by_one``: encode the events of each command alone, so that a command whose events cannot be encoded does
        not affect the others either.
        """
        state = begin_entry(self.state, self.now())
        events: list[Event] = []
        for waiter in waiters:
            try:
                decision = decide(state, waiter.command)
                if one_by_one:
                    encode(self._entry(decision.state, [*decision.events]))
            except Exception as error:  # noqa: BLE001 - The error is reported to the caller of this command only.
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
        return Entry.model_construct(  # It is validated when it is encoded.
            sequence=state.sequence,
            entry_id=self._runtime.new_id(),
            writer_id=self._writer_id,
            timestamp=state.timestamp,
            previous=self.state.entry_hash,
            events=events,
        )

    def _settle(self) -> None:
        """Resolve the outcome of an earlier entry, if it is unknown."""
        attempt = self._undecided
        if attempt is not None:
            self._offer(attempt)

    def _offer(self, attempt: _Attempt) -> bool:
        """Claim the slot of the entry; True if this entry has it, False if another process's entry was folded."""
        self._undecided = attempt
        unknown_before = attempt.claim.unknown_outcomes
        try:
            found = attempt.claim.settle(self._objects, self._runtime.backoff)
        except StorageError:
            if not attempt.claim.doubtful:
                self._undecided = None  # No attempt can have created the entry: the outcome is known.
            raise
        finally:
            self.metrics.unknown_outcomes += attempt.claim.unknown_outcomes - unknown_before
        self._undecided = None
        if found != attempt.claim.data:
            self._fold(found)
            return False
        self.state = replace(attempt.state, entry_hash=content_hash(found))
        return True

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Write a checkpoint of the state at the head; returns its sequence number."""
        self._check_writable("written")
        state = self.refresh()
        checkpoint.write(self._objects, self.number, state)
        self.metrics.checkpoints += 1
        return state.sequence

    def _write_checkpoint(self, state: State) -> None:
        """Write a checkpoint after a commit; logs a failure, because the commit is durable without a checkpoint."""
        try:
            checkpoint.write(self._objects, self.number, state)
            self.metrics.checkpoints += 1
        except StorageError as error:
            _LOG.warning("checkpoint not written", extra={"sequence": state.sequence, "error": str(error)})


def _for_followers(error: BaseException) -> Exception:
    """The error reported to followers of the group commit: an interrupt (Ctrl-C) is for the leader only."""
    if isinstance(error, Exception):
        return error
    return UnknownOutcomeError(f"the thread that was committing this command was interrupted by {error!r}")
