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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from txnstore.chain.boundary import Boundaries, OvertakenError
from txnstore.chain.checkpoints.checkpoint import Saved, interval
from txnstore.chain.checkpoints.index import FAN
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.codec import check
from txnstore.chain.group_commit import Attempt, Drafts, Leader, Waiter, error_of, is_unwritten, take
from txnstore.chain.identity import Identity
from txnstore.chain.keys import Keys
from txnstore.chain.loading import Loader
from txnstore.chain.pacing import Pacing
from txnstore.chain.payload import line_of, payload_of
from txnstore.chain.tail import FIRST_WINDOW, Tail, entry_in
from txnstore.chain.turns import Turns
from txnstore.core.commands import Command
from txnstore.core.groups.events import OffsetsCommitted
from txnstore.core.state import State, first_state
from txnstore.errors import CorruptionError, StorageError, UnknownOutcomeError
from txnstore.metrics import ChainMetrics
from txnstore.runtime import LATEST_MS, Runtime
from txnstore.storage.base import ObjectStore, make_durable
from txnstore.storage.recent import keep
from txnstore.threads import ForkLock
from txnstore.validation import check_writable

_LOG = logging.getLogger(__name__)

#: The process that commits an entry whose number is a multiple of this one writes a checkpoint of a small state.
CHECKPOINT_EVERY = 64
#: After so many milliseconds without a look at the head, the next look makes sure that no entry is missing there.
_TRUST_MS = 5_000


class Chain:
    """A chain of a store with the state known to this process. Thread-safe.

    ``state``: the last state that this process knows; never goes back, and only the chain itself replaces it.
    ``identity``: tells whether the store still exists; None: it is not asked.
    ``siblings``: all chains of the store, this one included; by default it is the only one.
    ``background``: returns the executor that writes checkpoints; None: the committing thread writes them.

    Reading takes no lock that a commit holds: a reader does not wait for a PUT, its repetitions and pauses. A state is
    decided or folded aside, and replaces the known one in one step if it is newer.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        number: int,
        runtime: Runtime,
        pool: Executor,
        *,
        read_only: bool = False,
        checkpoint_every: int = CHECKPOINT_EVERY,
        chains: int = 1,
        identity: Identity | None = None,
        siblings: Sequence[Chain] | None = None,
        background: Callable[[], Executor] | None = None,
        check_storage: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.metrics = ChainMetrics()
        self._objects = objects
        self._keys = keys
        self._identity = identity
        self._runtime = runtime
        self._siblings = siblings if siblings is not None else (self,)
        self._read_only = read_only
        self._check_storage = check_storage
        writer_id = runtime.new_id()
        self._checkpoint_every = checkpoint_every
        self.state = first_state(number, chains)
        self._turns = Turns(writer_id)
        self.boundaries = Boundaries(objects, keys, number, runtime, pool)
        self._tail = Tail(objects, keys, number, pool, self._turns.saw, self.boundaries)
        self._loader = Loader(objects, keys, number, chains, pool, self._tail, self.boundaries, checkpoint_every)
        self._saver = Saver(objects, keys, number, self.metrics, self.boundaries, background)
        self._drafts = Drafts(keys, number, writer_id, runtime)
        self._pacing = Pacing(self._turns, self._tail, runtime, self._publish)
        self._looked_at: int | None = None
        #: The last entry that is known to be durable, with all before it; on most storages all that is visible is.
        self.durable = 0
        self._undecided: Attempt | None = None
        self._waiting: deque[Waiter] = deque()
        # Re-entrant: a signal handler that reads must not block its own thread. A nested commit is refused instead.
        self._publishing = threading.RLock()
        self._reading = threading.RLock()
        self._head, self._round = ForkLock(), ForkLock()
        self._leader = Leader()

    # Reading ----------------------------------------------------------------------------------------------------------

    def load(self, hint: bytes | None) -> State:
        """Load the state at the head from the checkpoint that ``hint`` names and the entries after it.

        Args:
            hint: The hint of this chain; None if it does not exist.

        Raises:
            CorruptionError: An entry is missing or altered, or the checkpoint belongs to another chain.
        """
        with self._reading:
            now = self._runtime.clock()
            start = self._loader.first(hint)
            self._begin(start.saved)
            self._catch_up(FIRST_WINDOW, start.window, sure=True, now=now)
            while not self._or_begin_again(lambda: self._loader.check(start, self.state)):
                self._catch_up(FIRST_WINDOW, sure=True)
            return self.state

    def _begin(self, saved: Saved | None) -> None:
        """Begin with a checkpoint, unless a newer state is known."""
        with self._publishing:
            if saved is not None and saved.state.sequence > self.state.sequence:
                self._saver.loaded(saved)
                self.state = saved.state

    def _or_begin_again(self, step: Callable[[], object]) -> bool:
        """Whether the step is done: it did not return False, and the chain was not loaded again.

        It is loaded again if entries after the known state may have been deleted.
        """
        try:
            return step() is not False
        except OvertakenError:
            self._begin(self._loader.again())
            number = self.boundaries.number_at(self.state.sequence)
            self._note("entries deleted, chain loaded again", self.state.sequence, logging.INFO, boundary=number)
            return False

    def refresh(self, until: int | None = None) -> State:
        """Read new entries and return the state at the head. Costs one GET if there are none.

        A look at the head after a pause costs two GETs more, which show that no entry is missing there. So an entry is
        noticed to be missing if it existed for longer than the pause that needs them.

        Args:
            until: Read no further than this entry, which must exist. Makes no request if the state includes it.

        Raises:
            CorruptionError: An entry is missing or altered.
        """
        state = self.state
        if until is not None and state.sequence >= until:
            return state
        with self._reading:
            self._catch_up(1 if until is None else until - self.state.sequence, until=until)
            return self.state

    def _catch_up(
        self,
        size: int,
        window: list[bytes | None] | None = None,
        *,
        until: int | None = None,
        sure: bool = False,
        now: int | None = None,
    ) -> None:
        """Fold all entries after the last known one, or those up to ``until``; see :meth:`Tail.follow`.

        ``now``: the time before the first of its requests, if the ``window`` was requested before.
        """
        now = self._runtime.clock() if now is None else now
        sure = sure or (until is None and self._is_stale(now))
        follow = partial(self._tail.follow, size=size, until=until, sure=sure)
        while not self._or_begin_again(partial(follow, self.state, self._publish, window=window)):
            window = None
        if until is None and not sure and self._is_stale(self._runtime.clock()):
            # It was not at the beginning of the look: this process was suspended within it.
            self._catch_up(1, sure=True)
        elif until is None:
            self._looked_at = now

    def _is_stale(self, now: int) -> bool:
        """Whether the last look at the head, or the last commit, is so long ago that an entry may be missing since."""
        return self._looked_at is None or abs(now - self._looked_at) > _TRUST_MS

    def _publish(self, state: State) -> None:
        """Replace the known state, unless that is as new: readers and a commit may learn of an entry concurrently."""
        with self._publishing:
            if state.sequence > self.state.sequence:
                self.state = state
                if state.sequence % FAN == 0:
                    self._saver.saw(state)

    # Committing -------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time of a new entry in ms: the local clock, never before a known entry of any chain (OBJ-05, ADD-07).

        As with Lamport clocks, an entry that follows from an entry of another chain has no earlier timestamp, although
        the clocks of their writers differ. A clock that is behind continues from there by 1 ms per entry, so that the
        times of entries still tell them apart, however long the clock stays behind.
        """
        now, known = min(self._runtime.clock(), LATEST_MS), max([chain.state.timestamp for chain in self._siblings])
        return now if now >= known else known + 1

    def submit(self, command: Command) -> Any:
        """Commit a command and return its result.

        Raises:
            UnknownOutcomeError: The command may have been committed; the next call resolves this first.
            ReadOnlyError: The store was opened read-only.
            ReentrantCallError: A signal handler called it while this thread commits to the chain.
            InvalidConfigError: The command has a value of a wrong type.
            TxnStoreError: The command was refused and had no effect.
        """
        locks = self._round.own, self._head.own  # Before the command is queued, which no nested call may commit.
        return self._flush(self.leave(command), *locks)

    def leave(self, command: Command) -> Waiter:
        """Queue a command: the next entry that this process writes carries it, or :meth:`flush` writes one.

        Raises what :meth:`submit` raises for a command that is not queued.
        """
        self._check_writable("committed")
        check(command)
        waiter = Waiter(command)
        self._waiting.append(waiter)
        return waiter

    def flush(self, waiter: Waiter) -> Any:
        """Commit a command that was left, unless an entry has it; returns its result and raises as :meth:`submit`."""
        return self._flush(waiter, self._round.own, self._head.own)

    def _flush(
        self, waiter: Waiter, together: AbstractContextManager[bool], alone: AbstractContextManager[bool]
    ) -> Any:
        """Commit the commands of all threads that wait with this one, unless another thread does.

        Those that come while it commits wait for a lock of their own round. So a thread whose command was committed
        does not wait for one that commits the next ones.

        Args:
            waiter: The command of this thread.
            together: The lock of the round.
            alone: The lock of the head.
        """
        checkpoint_due = None
        with together:
            if not waiter.done:
                self._leader = leader = Leader()
                with alone:
                    if not waiter.done:  # Another thread of an earlier round may have committed it.
                        self._round = ForkLock()
                        checkpoint_due = self._commit_round(waiter, leader)
                    following = self._leader
                leader.offers(0)
                leader.let_go_first(following)
        if checkpoint_due is not None:
            self._saver.save_later(checkpoint_due)
        return waiter.answer()

    def _commit_round(self, own: Waiter, leader: Leader) -> State | None:
        """Commit all waiting commands; returns the state to checkpoint if a checkpoint is due.

        Args:
            own: The command of this thread.
            leader: This thread.
        """
        waiters: list[Waiter] = []
        try:
            take(self._waiting, waiters)
            return self._commit(waiters, leader)
        except BaseException as error:
            for waiter in reversed(waiters):
                if waiter.done:
                    continue
                if waiter is not own and not isinstance(error, Exception) and is_unwritten(self._undecided, waiter):
                    self._waiting.appendleft(waiter)  # Only this thread was interrupted: the waiter's own commits it.
                else:
                    waiter.error, waiter.done = error_of(self._undecided, waiter, error), True
            if not isinstance(error, Exception):
                raise
            return None

    def _check_writable(self, what: str) -> None:
        check_writable(self._read_only, self._objects.url, f"nothing can be {what}")
        self._check_storage()

    def _commit(self, waiters: list[Waiter], leader: Leader) -> State | None:
        began = self._runtime.monotonic()
        self._settle()
        confirm = self._identity.begin() if self._identity is not None else None
        if self._is_stale(self._runtime.clock()):
            self._catch_up(1)  # The next entry must not be written where one is missing.
        if confirm is not None:
            confirm()  # Nothing must be acknowledged into a store that was deleted.
        losses = 0
        while True:
            self._or_begin_again(partial(self._pacing.wait, lambda: self.state, losses))
            take(self._waiting, waiters)  # Those that came while it was the turn of other processes.
            attempt = self._drafts.decide(self.state, self.now(), waiters)
            if not attempt.entry.events:
                self._catch_up(1)
                if self.state.sequence < attempt.entry.sequence:
                    self.make_durable(self.state.sequence)
                    break  # A refusal, or a result without an entry, is valid only at the head: the chain is at it now.
                continue
            self._make_seen_durable(attempt)
            leader.offers(len(waiters))
            offered = self._runtime.monotonic()
            if self._offer(attempt):
                now = self._runtime.monotonic()
                self._turns.won(attempt.entry.sequence, offered, now)
                self.metrics.commits += 1
                self.metrics.commands += len(waiters)
                self._note("committed", attempt.entry.sequence, commands=len(waiters), ms=now - began)
                break
            self._turns.lost(offered, self._runtime.monotonic())
            losses += 1
            self.metrics.conflicts += 1
            self._note("lost a race for an entry, deciding again", attempt.entry.sequence, attempt=losses)
        for waiter in waiters:
            waiter.done = True
        every = interval(attempt.state, self._checkpoint_every)
        return attempt.state if attempt.entry.events and attempt.entry.sequence % every == 0 else None

    def _note(self, message: str, sequence: int, level: int = logging.DEBUG, **values: object) -> None:
        """Log a step of a commit; costs next to nothing if the level is off."""
        if _LOG.isEnabledFor(level):
            _LOG.log(level, message, extra={"chain": self.number, "sequence": sequence, **values})

    def _settle(self) -> None:
        """Resolve the outcome of an earlier entry, if it is unknown."""
        attempt = self._undecided
        if attempt is None:
            return
        if not self._or_begin_again(partial(self.boundaries.check, attempt.entry.sequence)):
            self._undecided = None  # Entries of its time are deleted: whatever had that slot is history.
            return
        # Also if a reader has found the entry of that slot: it is visible, but only an answer says that it is durable.
        try:
            self._offer(attempt)
        except UnknownOutcomeError:
            if self._undecided is not None:
                raise  # Else the chain was loaded again, and the next command can be decided.

    def _offer(self, attempt: Attempt) -> bool:
        """Claim the slot of the entry; True if this entry has it, False if another process's entry was folded."""
        self._undecided = attempt
        unknown_before, now = attempt.claim.unknown_outcomes, self._runtime.clock()
        try:
            found = attempt.claim.settle(self._objects, self._pause)
        except BaseException as error:
            if not attempt.claim.doubtful:
                self._undecided = None  # No attempt can have created the entry: the outcome is known.
            elif isinstance(error, UnknownOutcomeError):
                self._note("outcome of a commit unknown", attempt.entry.sequence, logging.WARNING, error=str(error))
            raise
        finally:
            self.metrics.unknown_outcomes += attempt.claim.unknown_outcomes - unknown_before
        self._check_in_time(attempt)
        # The lines are compared: a vacuum may have deleted the payload of an entry that was written long ago.
        if found != attempt.claim.data and line_of(found) != line_of(attempt.claim.data):
            self._undecided, state = None, self.state
            try:
                if state.sequence < attempt.entry.sequence:
                    self._publish(self._tail.fold(state, found))
            except CorruptionError:
                if not self._is_readable(found, attempt.entry.sequence):
                    self._undecided = attempt  # Nobody knows whose bytes they are.
                raise
            return False
        self._check_followers(attempt)
        self._undecided = None
        keep(self._objects, attempt.claim.key, payload_of(found))
        self._publish(attempt.state)
        self._looked_at, self.durable = now, attempt.entry.sequence
        return True

    def _is_readable(self, data: bytes, sequence: int) -> bool:
        try:
            entry_in(data, self._keys, self.number, sequence)
        except CorruptionError:
            return False
        return True

    def _check_in_time(self, attempt: Attempt) -> None:
        """Raise :class:`UnknownOutcomeError` if the slot of an entry may be that of an entry that was deleted."""
        try:
            in_time = self._or_begin_again(partial(self.boundaries.check, attempt.entry.sequence))
        except StorageError as error:
            raise UnknownOutcomeError(f"{attempt.claim.key} may not be one of the chain: {error}") from error
        if not in_time:
            self._undecided = None
            why = "this process was suspended, and entries of that time are deleted by now"
            raise UnknownOutcomeError(f"{attempt.claim.key} may not be one of the chain: {why}")

    def _check_followers(self, attempt: Attempt) -> None:
        """Raise :class:`UnknownOutcomeError` if the slot of an entry may be that of an entry that was lost.

        The last look at the head, which has found no later entry, is too long ago if this process was suspended since.
        What follows now must follow this entry.
        """
        if not self._is_stale(self._runtime.clock()):
            return
        try:
            self._tail.follow(attempt.state, lambda _: None, 1, sure=True)
        except (CorruptionError, StorageError, OvertakenError) as error:
            if isinstance(error, CorruptionError):
                self._undecided = None  # The next look at the head reports it.
            raise UnknownOutcomeError(f"{attempt.claim.key} may not be one of the chain: {error}") from error

    def _pause(self, tries: int) -> None:
        self.metrics.retries += 1
        self._note("creation of an entry not confirmed, retrying", self.state.sequence + 1, attempt=tries)
        self._runtime.backoff(tries)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Write a checkpoint of the state at the head; returns its sequence number. An empty chain (0) needs none."""
        self._check_writable("written")
        state = self.refresh()
        if state.sequence > 0:
            self.make_durable(state.sequence)
            self._saver.save(state)
        return state.sequence

    def make_durable(self, sequence: int) -> None:
        """Make sure that the entries up to this one survive a power cut, before something rests on them that does.

        Those that others wrote may only be visible. What this process has written itself is durable.
        """
        if sequence > self.durable:
            make_durable(self._objects, [self._keys.entry(self.number, sequence)])
            self.durable = sequence

    def _make_seen_durable(self, attempt: Attempt) -> None:
        """Make sure that what an entry follows from in other chains survives a power cut.

        That is what the entry names. If it commits offsets, it is all that this process has read: the records before an
        offset are in the chain of their partition, and the decision of their transaction may be in a third one.
        """
        if any(isinstance(event, OffsetsCommitted) for event in attempt.entry.events):
            seen = {chain.number: chain.state.sequence for chain in self._siblings if chain is not self}
        else:
            before = self.state.seen
            seen = {chain: number for chain, number in attempt.state.seen.items() if number > before.get(chain, 0)}
        late = {self._siblings[chain]: sequence for chain, sequence in seen.items()}
        late = {chain: sequence for chain, sequence in late.items() if sequence > chain.durable}
        if late:  # In one call, which flushes the folders that they share once.
            make_durable(self._objects, [self._keys.entry(chain.number, sequence) for chain, sequence in late.items()])
            for chain, sequence in late.items():
                chain.durable = max(chain.durable, sequence)
