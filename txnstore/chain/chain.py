"""A chain in one process: its state, and the commit loop, which is the only code that writes entries.

Group commit: the first caller writes an entry immediately; the commands of callers that arrive while the PUT is in
flight share the next entry (flat combining). There is no background thread and no timer. The state in memory changes
only after the entry is durable.

An entry claims the slot after the last known entry (:class:`~txnstore.storage.base.Claim`). If another process has
taken the slot, the loop folds that entry, decides the commands again, and claims the next slot. See
docs/internals/design/commit.md.

The locks of a chain, in the order in which a thread takes them; it never takes one of them while it holds a later one:

1. ``_round``: one for each group of callers that wait together. Held until the commands of the group are answered.
2. ``_head``: held by the one thread that commits, for the whole commit with its requests and pauses.
3. ``_publishing``: held for a comparison and an assignment, never for a request.

``_reading`` is taken by readers, before ``_publishing`` and never together with the first two of the same chain: a
reader does not wait for a commit. A commit, which holds its ``_head``, takes the ``_reading`` of another chain whose
entry it names. The checkpoints and boundaries of the chain have locks of their own, which are taken last.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from txnstore.chain.boundary import Boundaries, OvertakenError
from txnstore.chain.checkpoints.checkpoint import Saved, interval
from txnstore.chain.checkpoints.index import FAN
from txnstore.chain.checkpoints.saver import Saver
from txnstore.chain.codec import WRITE_FEATURES, AnyEvent, Entry, check, check_features
from txnstore.chain.committer.committer import Committer, FoundCommitter, Place, find_committer
from txnstore.chain.committer.messages import Stored
from txnstore.chain.context import ChainContext
from txnstore.chain.group_commit import (
    Attempt,
    Drafts,
    Leader,
    QueuedCommand,
    error_of,
    is_unwritten,
    refuse_doubtful,
    take,
)
from txnstore.chain.identity import Identity
from txnstore.chain.loading import Loader
from txnstore.chain.pacing import Pacing
from txnstore.chain.payload import entry_hash as hash_of
from txnstore.chain.payload import line_of, payload_of
from txnstore.chain.principals import asking_principal
from txnstore.chain.tail import FIRST_WINDOW, Tail, entry_in
from txnstore.chain.turns import Turns
from txnstore.core.authorization.changes import is_in_use
from txnstore.core.authorization.model import CLUSTER
from txnstore.core.authorization.rights import CLUSTER_ACTION, check_rights
from txnstore.core.authorization.rules import Authorization
from txnstore.core.groups.events import OffsetsCommitted
from txnstore.core.model import Command
from txnstore.core.routing import CATALOG
from txnstore.core.state import State, first_state
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    InvalidConfigError,
    StorageError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from txnstore.metrics import ChainMetrics
from txnstore.runtime import LATEST_MS
from txnstore.storage.base import make_durable, place_of
from txnstore.storage.recent import keep
from txnstore.threads import ForkLock, load
from txnstore.validation import check_writable

_LOG = logging.getLogger(__name__)

#: A head that was read longer ago, in ms, is read with a check that no entry is missing there.
HEAD_MAX_AGE_MS = 5_000
#: A commit hands its commands to so many other processes at most, one after the other.
MAX_COMMITTERS = 3
#: The newest entries whose events are kept for those who ask what has changed.
_KEPT_EVENTS = 16


class Chain:
    """A chain of a store with the newest state that this process knows. Thread-safe.

    Reading takes no lock that a commit holds: a reader does not wait for a PUT, its repetitions and pauses. A state is
    decided or folded aside, and replaces ``state`` in one step if it is newer.

    Args:
        siblings: All chains of the store, this one included; by default it is the only one.
        identity: Checks that the store still exists; None: nothing does.
        announce: Called after a state was published.
    """

    def __init__(
        self,
        context: ChainContext,
        number: int,
        siblings: Sequence[Chain] | None = None,
        identity: Identity | None = None,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        # What never changes.
        self.number = number
        self._context = context
        self._objects, self._keys, self._runtime = context.objects, context.keys, context.runtime
        self._checkpoint_every = context.checkpoint_every
        self._siblings = siblings if siblings is not None else (self,)
        self._identity = identity
        self._announce = announce

        # The parts of the chain. Each documents its own fields.
        writer_id = self._runtime.new_id()
        #: Counters. Those of commits are written by the holder of `_head`, those of checkpoints by the saver.
        self.metrics = ChainMetrics()
        #: Up to where entries may be deleted.
        self.boundaries = Boundaries(context, number)
        #: Shares the entries of the chain with other processes; None: with none.
        self._committer = self._make_committer(writer_id)
        #: The order of writers. Threads that read append the writers of entries; all else is done under `_head`.
        self._turns = Turns(writer_id, () if self._committer is None else self._committer.callers)
        places = (lambda _: ()) if self._committer is None else self._committer.places
        self._tail = Tail(self._objects, self._keys, number, context.pool, self._record, self.boundaries, places)
        self._loader = Loader(context, number, self._tail, self.boundaries)
        #: Its edges change under `_publishing`, together with `state`.
        self._saver = Saver(context, number, self.metrics, self.boundaries, self._durable_state)
        self._drafts = Drafts(self._keys, number, writer_id, self._runtime)
        self._pacing = Pacing(self._turns, self._tail, self._runtime, self._publish)

        #: The newest state that this process knows. Readers and the committing thread replace it under `_publishing`;
        #: any thread reads it without a lock. Invariant: its sequence never decreases.
        self.state = first_state(number, context.count)
        #: The number of an entry that is known to survive a power cut, with all entries before it. Committing threads
        #: of this chain and of its siblings and the saver write it, without a lock: a lost update costs one flush more,
        #: because it can only make the number too small. On most storages all that is visible is durable.
        self.durable = 0
        #: The wall clock in ms before the newest look at the head that found no later entry, or before the PUT of the
        #: newest own entry; None before the first look. Readers and the committing thread assign it without a lock.
        self._head_read_at: int | None = None
        #: The newest entry with a checkpoint, as far as this process can tell. Where rights are checked it may be far
        #: behind: those who write most may have no right to write one. Assigned without a lock: a lost update costs a
        #: checkpoint more.
        self._saved_until = 0
        #: The newest entry that this process has written, or that it knew when one of another process carried its
        #: commands; 0: none. Under `_head`.
        self._written_until = 0
        #: The entry whose PUT was begun and whose outcome this process does not know; else None. Under `_head`.
        #: Invariant: while it is set, no other bytes are offered to any slot.
        self._undecided: Attempt | None = None
        #: The events of the newest entries, with their numbers, also of some that are not published yet. Any thread
        #: that reads or writes an entry adds them, without a lock, before it publishes the state that includes it.
        self._events: list[tuple[int, Sequence[AnyEvent]]] = [(0, ())] * _KEPT_EVENTS
        #: The commands that no entry has taken yet, oldest first. Any thread appends one, without a lock; the holder of
        #: `_head` takes them.
        self._waiting: deque[QueuedCommand] = deque()
        #: The leader of the newest round: the thread that commits now, or the next one. Each leader sets it under
        #: `_round`, before it waits for `_head`; the committing leader reads it under `_head`.
        self._leader = Leader()

        #: The lock of the round that callers join now. The holder of `_head` replaces it when its round is closed:
        #: later callers wait for the next leader, and not for this one's answers.
        self._round = ForkLock()
        #: Guards the commit: `_undecided`, the turns, and which thread takes `_waiting`.
        self._head = ForkLock()
        #: Guards the replacement of `state`, and the saver's edges. Re-entrant, as `_reading`: a signal handler that
        #: reads must not block its own thread. A nested commit is refused instead.
        self._publishing = threading.RLock()
        #: Guards nothing: it keeps the readers of this process from fetching the same entries several times.
        self._reading = threading.RLock()

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
                self._saver.begin_with(saved)
                if self._committer is not None:
                    self._committer.skip(saved.state.sequence)
                self._saved_until = max(self._saved_until, saved.state.sequence)
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
            self._log_step("entries deleted, chain loaded again", self.state.sequence, logging.INFO, boundary=number)
            if self._loader.names_after(self.state):
                self._catch_up(FIRST_WINDOW, sure=True)  # A newer checkpoint is damaged; its entry must exist.
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
        window: Mapping[int, bytes | None] | None = None,
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
        if until is None:
            self._or_begin_again(lambda: self._loader.check_end(self.state))
        if until is None and not sure and self._is_stale(self._runtime.clock()):
            # It was not at the beginning of the look: this process was suspended within it.
            self._catch_up(1, sure=True)
        elif until is None:
            self._head_read_at = now

    def _is_stale(self, now: int) -> bool:
        """Whether the last look at the head, or the last commit, is so long ago that an entry may be missing since."""
        return self._head_read_at is None or abs(now - self._head_read_at) > HEAD_MAX_AGE_MS

    def _publish(self, state: State) -> None:
        """Replace the state, unless it is as new: readers and a commit may read the same entry concurrently."""
        with self._publishing:
            if state.sequence > self.state.sequence:
                self.state = state
                if state.sequence % FAN == 0:
                    self._saver.add_edge(state)
                self._announce()

    def events_between(self, after: int, until: int) -> list[AnyEvent] | None:
        """Return the events of the entries after ``after``, up to ``until``; None if they are not kept any more."""
        if until - after > _KEPT_EVENTS:
            return None
        numbers = range(after + 1, until + 1)
        kept = [self._events[number % _KEPT_EVENTS] for number in numbers]
        if any(number != sequence for number, (sequence, _) in zip(numbers, kept, strict=True)):
            return None
        return [event for _, events in kept for event in events]

    def _keep_events(self, entry: Entry) -> None:
        self._events[entry.sequence % _KEPT_EVENTS] = entry.sequence, entry.events

    # Committing -------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time of a new entry in ms: the local clock, never before a known entry of any chain (OBJ-05, ADD-07).

        As with Lamport clocks, an entry that follows from an entry of another chain has no earlier timestamp, although
        the clocks of their writers differ. A clock that is behind continues from there by 1 ms per entry, so that the
        times of entries still tell them apart, however long the clock stays behind.
        """
        now = min(self._runtime.clock(), LATEST_MS)
        newest = max([chain.state.timestamp for chain in self._siblings])
        return now if now >= newest else newest + 1

    def submit(self, command: Command) -> Any:
        """Commit a command and return its result.

        Raises:
            UnknownOutcomeError: The command may have been committed; the next call resolves this first.
            ReadOnlyError: The store was opened read-only.
            ReentrantCallError: A signal handler called it while this thread commits to the chain.
            InvalidConfigError: The command has a value of a wrong type.
            UnsupportedFormatError: The store requires a feature that this release cannot write.
            TxnStoreError: The command was refused and had no effect.
        """
        locks = self._round.own, self._head.own  # Before the command is queued, which no nested call may commit.
        return self._commit_in_round(self.enqueue(command), *locks)

    def enqueue(self, command: Command) -> QueuedCommand:
        """Queue a command: the next entry of this process carries it, or :meth:`commit_queued` writes one.

        Raises what :meth:`submit` raises for a command that is not queued.
        """
        self._check_writable("committed")
        check(command)
        waiter = QueuedCommand(command, asking_principal(self._context.principal))
        self._waiting.append(waiter)
        if self._committer is not None:
            self._committer.has_arrived()
        return waiter

    def commit_queued(self, waiter: QueuedCommand) -> Any:
        """Commit a queued command, unless an entry has it; returns its result and raises as :meth:`submit`."""
        if waiter.done:
            return waiter.answer()
        return self._commit_in_round(waiter, self._round.own, self._head.own)

    def _commit_in_round(
        self, waiter: QueuedCommand, round_lock: AbstractContextManager[bool], head_lock: AbstractContextManager[bool]
    ) -> Any:
        """Commit the commands of all threads that wait with this one, unless another thread does.

        Threads that call while it commits wait for a lock of their own round. So a thread whose command was committed
        does not wait for one that commits the next ones.

        Args:
            waiter: The command of this thread.
        """
        checkpoint_due = None
        with round_lock:
            if not waiter.done:
                self._leader = leader = Leader()
                with head_lock:
                    if not waiter.done:  # Another thread of an earlier round may have committed it.
                        # The round is closed: all who have joined it by now are queued, and this commit takes them.
                        self._round = ForkLock()
                        checkpoint_due = self._commit_round(waiter, leader)
                    following = self._leader
                leader.has_offered(0)
                leader.yield_to(following)
        if checkpoint_due is not None:
            self._save_later(checkpoint_due)
        return waiter.answer()

    def _commit_round(self, own_command: QueuedCommand, leader: Leader) -> State | None:
        """Commit all waiting commands; returns the state to checkpoint if a checkpoint is due.

        Args:
            own_command: The command of this thread.
            leader: This thread.
        """
        waiters: list[QueuedCommand] = []
        try:
            take(self._waiting, waiters)
            return self._commit(waiters, leader)
        except BaseException as error:
            for waiter in reversed(waiters):
                if waiter.done:
                    continue
                if (
                    waiter is not own_command
                    and not isinstance(error, Exception)
                    and is_unwritten(self._undecided, waiter)
                ):
                    self._waiting.appendleft(waiter)  # Only this thread was interrupted: the waiter's own commits it.
                else:
                    waiter.error, waiter.done = error_of(self._undecided, waiter, error), True
            if not isinstance(error, Exception):
                raise
            return None

    def _check_writable(self, refused: str) -> None:
        check_writable(self._context.read_only, self._objects.url, f"nothing can be {refused}")
        self.check_features()
        self._context.check_storage()

    def check_features(self) -> None:
        """Check that this release has the features that writers of the store need, as far as its chains are known.

        What one chain requires holds for all of them: a transaction may need several, and must not stop half way.

        Raises:
            UnsupportedFormatError: It lacks some.
        """
        for chain in self._siblings:
            if chain.state.requires.write:
                name = self._keys.chain(chain.number).removesuffix("/")
                check_features(name, chain.state.requires.write, WRITE_FEATURES, "write")

    def _commit(self, waiters: list[QueuedCommand], leader: Leader) -> State | None:
        """Commit the commands of the waiters, and of those that call meanwhile, in one entry.

        The order of the steps prevents these failures:

        1. An earlier entry of this process has an unknown outcome, and may still be created. Were the next entry
           decided without it, the slot would have two contents for this process. So it is resolved first.
        2. The newest entry was deleted from outside, or this process slept while others wrote. The name after the last
           known entry looks free, and its PUT would succeed inside the history. So a head that was not read lately is
           read again, with the names behind it.
        3. The store was deleted, and its names are free again. ``store.json`` is read before the PUT, concurrently with
           the head; nothing is acknowledged into a deleted store.
        4. A command is refused for a state that is out of date, such as "no such topic". So a decision without events
           counts only if no entry follows the state it was made from; else the commands are decided again.
        5. An entry names an entry of another chain that does not exist, or that is visible, but lost in a power cut.
           So this process has read that one, and it is made durable, before this one is offered.
        6. Another chain than 0 refuses a command by rules that are out of date. So a refusal for a missing right counts
           only at the head of chain 0.

        Args:
            waiters: The callers; those that call while it is the turn of other writers are added.
            leader: This thread.

        Returns:
            The state to checkpoint, if a checkpoint is due.
        """
        began_at = self._runtime.monotonic()
        self._resolve()  # 1.
        if self._hand_over(waiters, leader, listen=False):
            return None
        confirm = self._identity.begin() if self._identity is not None else None
        if self._is_stale(self._runtime.clock()):
            self._catch_up(1)  # 2. The next entry must not be written where one is missing.
        if confirm is not None:
            confirm()  # 3. An entry must not be acknowledged if the store was deleted.
        losses = 0
        while True:
            if (losses or self._turns.is_contended(began_at)) and self._hand_over(waiters, leader, listen=True):
                return None
            self._or_begin_again(partial(self._pacing.wait, lambda: self.state, losses))
            self._take_waiting(waiters, gather=not losses)
            self.check_features()  # An entry that was read meanwhile may require more.
            rules = self.authorization() if self.number != CATALOG else None
            attempt = self._decide(waiters, rules)
            if attempt is None:
                return None
            if rules is not None and self._is_refused_by_old(rules, waiters):
                continue  # 6.
            if not attempt.entry.events:
                self._catch_up(1)
                if self.state.sequence < attempt.entry.sequence:
                    self.make_durable(self.state.sequence)
                    refuse_doubtful(waiters)
                    break  # 4. A refusal, or a result without an entry, is valid at the head, and this is the head.
                continue
            self._read_observed(attempt)  # 5.
            self._make_seen_durable(attempt)
            leader.has_offered(len(waiters))
            offered = self._runtime.monotonic()
            if self._offer(attempt):
                now = self._runtime.monotonic()
                self._turns.won(attempt.entry.sequence, offered, now)
                self.metrics.commits += 1
                self.metrics.commands += len(waiters)
                self.metrics.carried += len(attempt.entry.carried or ())
                self._log_step("committed", attempt.entry.sequence, commands=len(waiters), ms=now - began_at)
                break
            self._turns.lost(offered, self._runtime.monotonic())
            losses += 1
            self.metrics.conflicts += 1
            self._log_step("lost a race for an entry, deciding again", attempt.entry.sequence, attempt=losses)
        for waiter in waiters:
            self.metrics.refusals += waiter.origin is None and isinstance(waiter.error, AuthorizationError)
            waiter.done = True
        return attempt.state if attempt.entry.events and self._is_checkpoint_due(attempt.state) else None

    # Sharing entries --------------------------------------------------------------------------------------------------

    def _make_committer(self, writer_id: str) -> Committer | None:
        context = self._context
        if context.rendezvous is None or context.read_only:
            return None
        rendezvous = context.rendezvous
        if context.network is not None:
            rendezvous = context.network.at(self.number, rendezvous)
        return Committer(self, rendezvous, self._place(), writer_id, self._runtime)

    def _place(self) -> Place:
        """What the processes that share entries of this chain have in common.

        Copies of a store may have one URL, at two endpoints or in two containers.
        """
        return Place(self._objects.url, place_of(self._objects), self._keys.chain(self.number))

    def find_committer(self) -> FoundCommitter | None:
        """Find the process that commits for others of this machine, else for those of several; None: none does."""
        rendezvous = self._context.rendezvous
        found = None if rendezvous is None else find_committer(rendezvous, self._place(), self._runtime.new_id())
        if found is not None:
            return found
        load("txnstore.chain.committer.network")  # It takes time to import, and only this and a setting need it.
        from txnstore.chain.committer.network import find_announced

        return find_announced(self._objects, self._keys, self.number)

    def _hand_over(self, waiters: list[QueuedCommand], leader: Leader, *, listen: bool) -> bool:
        """Let another process commit the waiting commands, if one does that; True if all are answered.

        What was declined is for this process to decide. A committer that has ended, or does not answer, is followed by
        another one, to which the commands are handed over again; or by this process.

        Args:
            listen: If no other process does, commit for those that come.
        """
        committer = self._committer
        for _ in range(MAX_COMMITTERS):
            if committer is None or any(waiter.is_declined for waiter in waiters) or not committer.join(listen=listen):
                return False
            now = self._runtime.clock()
            carried = committer.hand_over(waiters, lambda: leader.has_offered(len(waiters)))
            if carried:
                self._head_read_at = now
            if not waiters:
                return True
            listen = True
        return False

    def _take_waiting(self, waiters: list[QueuedCommand], *, gather: bool) -> None:
        """Take the commands that were queued while it was the turn of other processes, and maybe those that follow."""
        take(self._waiting, waiters)
        if gather and self._committer is not None:
            self._committer.gather(waiters, partial(take, self._waiting, waiters))

    def count_carried(self, carried: int) -> None:
        """Count commands that entries of other processes carry; it counts as writing when this process closes."""
        self.metrics.handed_over += carried
        if carried:
            self._written_until = max(self._written_until, self.state.sequence)

    def _time_for(self, waiters: Sequence[QueuedCommand]) -> int:
        """Return the time of an entry with these commands: at least what their processes know."""
        times = [waiter.origin.not_before for waiter in waiters if waiter.origin is not None]
        return max([self.now(), *(min(time, LATEST_MS) for time in times)])

    def enqueue_all(self, waiters: Sequence[QueuedCommand]) -> None:
        """Queue commands of another process, which were checked when they were decoded; the same entry takes them."""
        self._check_writable("committed")
        self._waiting.extend(waiters)
        if self._committer is not None:
            self._committer.has_arrived()

    def has_entry(self, sequence: int, entry_hash: str) -> bool | None:
        """Whether the storage has an entry with this hash; None if it was deleted. Entries up to it are read."""
        state = self.refresh(sequence)
        if state.sequence <= sequence:
            return (state.sequence, state.entry_hash) == (sequence, entry_hash)
        data = self._tail.get(sequence) if sequence else None
        return sequence == 0 or (None if data is None else hash_of(data) == entry_hash)

    def known(self) -> tuple[int, int]:
        """What commands of this process may follow from: the newest time of an entry, and the entry of chain 0.

        What it has read in other chains is made durable, as for its own entries.
        """
        self.make_all_durable({chain: chain.state.sequence for chain in self._siblings if chain is not self})
        return max(chain.state.timestamp for chain in self._siblings), self._siblings[CATALOG].state.sequence

    def read_catalog(self, until: int) -> None:
        """Read chain 0 up to an entry, which exists; no request if this process has."""
        if self.number != CATALOG and self._siblings[CATALOG].refresh(until).sequence < until:
            raise CorruptionError(f"{self._keys.entry(CATALOG, until)} is missing, but another process has read it")

    def latency_ms(self) -> float:
        """The mean latency of a request in ms; 0 if it is not known."""
        return self._turns.latency

    def take_stored(self, stored: Stored) -> None:
        """Fold an entry that another process has sent; entries before it that are not known are read."""
        state = self.state
        if stored.sequence == state.sequence + 1:
            self._publish(self._tail.fold(state, stored.data, is_whole=stored.is_whole))
        elif stored.sequence > state.sequence:
            self.refresh(stored.sequence)
        if stored.durable and stored.sequence <= self.state.sequence:
            self.durable = max(self.durable, stored.sequence)

    def close(self) -> None:
        """Part from the other processes that share entries."""
        if self._committer is not None:
            self._committer.close()

    def _decide(self, waiters: list[QueuedCommand], rules: Authorization | None) -> Attempt | None:
        """Decide the waiting commands in the newest state; None if entries of other processes have answered all.

        The state is read first: the entries up to it were folded, so their answers are known.
        """
        state = self.state
        if self._committer is not None:
            self._committer.settle(waiters)
            self._committer.admit(waiters)
            if not waiters:
                return None
        return self._drafts.decide(state, self._time_for(waiters), waiters, rules)

    # Authorization ----------------------------------------------------------------------------------------------------

    def authorization(self) -> Authorization:
        """The authorization of the store as far as this process knows it, and at least as this chain follows from it.

        Another chain than 0 follows from a change of the rules by an entry of its own (``FollowAuthorization``), so
        every process that commits after that entry has read the change. Without rules it costs nothing.

        Raises:
            CorruptionError: The entry of chain 0 that this chain follows from is lost: which rules hold is not known.
        """
        catalog, state = self._siblings[CATALOG], self.state
        if catalog is self or not is_in_use(state):
            return catalog.state.authorization
        needed = state.seen.get(CATALOG, 0)
        known = catalog.refresh(needed)
        if known.sequence < needed:
            missing, dependent = self._keys.entry(CATALOG, needed), self._keys.entry(self.number, state.sequence)
            raise CorruptionError(f"{missing} is missing, but {dependent}, or an entry before it, follows from it")
        return known.authorization

    def _is_refused_by_old(self, rules: Authorization, waiters: Sequence[QueuedCommand]) -> bool:
        """Whether a command lacks a right by these rules, and chain 0 has newer ones. A GET only if one lacks it."""
        if not any(isinstance(waiter.error, AuthorizationError) for waiter in waiters):
            return False
        return self._siblings[CATALOG].refresh().authorization != rules

    def _may_maintain(self, principal: str) -> bool:
        """Whether a principal writes checkpoints, which readers believe: it has ClusterAction."""
        return self._siblings[CATALOG].state.authorization.allows(principal, "CLUSTER_ACTION", "CLUSTER", CLUSTER)

    def _log_step(self, message: str, sequence: int, level: int = logging.DEBUG, **values: object) -> None:
        """Log a step of a commit; costs next to nothing if the level is off."""
        if _LOG.isEnabledFor(level):
            _LOG.log(level, message, extra={"chain": self.number, "sequence": sequence, **values})

    def _resolve(self) -> None:
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
        """Claim the slot of the entry; True if this entry has it, False if another process's entry was folded.

        The order of the steps prevents these failures:

        1. The thread is interrupted while its PUT is under way. The attempt is recorded as undecided before the PUT,
           and forgotten only when its outcome is known: until then the slot gets no other bytes.
        2. This process slept between its look at the boundaries and its PUT, and a vacuum deleted the entries of that
           time. The PUT creates a free name in the past. So the boundaries are checked after it, before any verdict.
        3. The slot has the line of this entry without its payload: a vacuum has deleted the payload of an entry that
           was created long ago by an attempt of unknown outcome. It is this entry; so lines are compared, not objects.
        4. The slot has damaged bytes. They may be this entry's, so the outcome stays unknown.
        5. The entry is where an older one was lost, and later ones exist; see :meth:`_check_followers`. So it is
           acknowledged, and replaces the state, only after that check.
        """
        self._undecided = attempt  # 1.
        unknown_before = attempt.claim.unknown_outcomes
        now = self._runtime.clock()
        try:
            stored = attempt.claim.resolve(self._objects, self._pause)
        except BaseException as error:
            if not attempt.claim.doubtful:
                self._undecided = None  # No attempt can have created the entry: the outcome is known.
            elif isinstance(error, UnknownOutcomeError):
                self._log_step("outcome of a commit unknown", attempt.entry.sequence, logging.WARNING, error=str(error))
            raise
        finally:
            self.metrics.unknown_outcomes += attempt.claim.unknown_outcomes - unknown_before
        self._check_in_time(attempt)  # 2.
        if stored != attempt.claim.data and line_of(stored) != line_of(attempt.claim.data):  # 3.
            self._undecided, state = None, self.state
            try:
                if state.sequence < attempt.entry.sequence:
                    self._publish(self._tail.fold(state, stored))
            except CorruptionError:
                if not self._is_readable(stored, attempt.entry.sequence):
                    self._undecided = attempt  # 4. No process can tell which writer won.
                raise
            return False
        self._check_followers(attempt)  # 5.
        self._undecided = None
        keep(self._objects, attempt.claim.key, payload_of(stored))
        if self._committer is not None:
            self._committer.wrote(attempt.entry)
        self._keep_events(attempt.entry)
        self._publish(attempt.state)
        self._head_read_at, self.durable = now, attempt.entry.sequence
        self._written_until = attempt.entry.sequence
        if self._committer is not None:
            self._committer.push(attempt.entry.sequence, stored, durable=True)
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

        The failure, which takes a suspended process and a lost entry:

        1. This process reads the head, finds no entry 8, decides its commands for slot 8, and is suspended.
        2. Another process writes the entries 8 and 9. Entry 8 is deleted from outside.
        3. This process continues. Its PUT creates entry 8, which entry 9 does not follow: its hash names another one.

        So if the last look at the head is too long ago by now, the names after the slot are read: what is there must
        follow this entry. If it does not, the entry stays, and the next look at the head reports the damage.
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
        self._log_step("creation of an entry not confirmed, retrying", self.state.sequence + 1, attempt=tries)
        self._runtime.backoff(tries)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _record(self, entry: Entry, inside: Mapping[int, State], state: State, data: bytes) -> None:
        """Record an entry of another process: whose turn it was, and whether its writer has written a checkpoint.

        While the chains are loaded, chain 0 may not have the rules yet: then no principal counts as one that may.
        """
        self._turns.record(entry.sequence, entry.writer_id)
        self._keep_events(entry)
        if self._committer is not None:
            self._committer.record(entry, inside, data)
        if entry.principals is None or entry.sequence % interval(state, self._checkpoint_every) != 0:
            return
        is_known = self._siblings[CATALOG].state.authorization.mode != "off"
        if is_known and any(self._may_maintain(principal) for principal, _ in entry.principals):
            self._saved_until = max(self._saved_until, entry.sequence)

    def _is_checkpoint_due(self, state: State) -> bool:
        """Whether this process writes a checkpoint of the state after its entry: that of each ``interval`` entries.

        Where rights are checked, also if the interval has passed without one: the process that wrote the entry at which
        it was due had no right to write one.
        """
        every = interval(state, self._checkpoint_every)
        due = state.sequence % every == 0
        if self._siblings[CATALOG].state.authorization.mode != "off":
            due = due or state.sequence - self._saved_until >= every
        return due and self._may_maintain(self._context.principal)

    def _save_later(self, state: State) -> None:
        """Write a checkpoint in the background, and do what is done beside one."""
        self._saved_until = max(self._saved_until, state.sequence)
        self._saver.save_later(state)
        self._context.on_checkpoint(state)

    def save_if_overdue(self) -> None:
        """Write a checkpoint in the background if those who write to the chain have no right to, and one is due."""
        state = self.state
        is_checked = self._siblings[CATALOG].state.authorization.mode != "off"
        if is_checked and state.sequence > self._saved_until and self._is_checkpoint_due(state):
            self._save_later(state)

    def last_checkpoint(self) -> Callable[[], None] | None:
        """Return what writes a checkpoint before this process closes the store; None if it need not, or may not.

        It is due if this process has written an entry since the last checkpoint that it knows, and that is at least
        :data:`FAN` entries, more of a large state, before the newest entry with an edge. So those who close after the
        same entries write the same checkpoint, and a later one needs its index files.
        """
        state = self._saver.edge_state
        saved_until = 0 if self._saver.has_failed else self._saved_until  # What the hint names counts in any case.
        if state is None or self._undecided is not None or self._written_until <= saved_until:
            return None
        distance = interval(state, FAN)
        if state.sequence - saved_until < distance or not self._may_maintain(self._context.principal):
            return None
        try:
            self.check_features()  # A checkpoint of this release lacks what it does not know.
        except UnsupportedFormatError:
            return None
        return self._saver.last(state, distance)

    def checkpoint(self) -> int:
        """Write a checkpoint of the state at the head; returns its sequence number. An empty chain (0) needs none."""
        self._check_writable("written")
        state = self.refresh()
        self.check_features()  # A checkpoint of this release lacks what it does not know.
        check_rights(self.authorization(), self._context.principal, [CLUSTER_ACTION])
        if state.sequence > 0:
            self._saver.save(state)
            self._saved_until = max(self._saved_until, state.sequence)
        return state.sequence

    def _durable_state(self) -> State:
        """The newest state that this process knows, whose entries survive a power cut from now on."""
        state = self.state
        self.make_durable(state.sequence)
        return state

    def make_durable(self, sequence: int) -> None:
        """Make sure that the entries up to this one survive a power cut, before something rests on them that does.

        Those that others wrote may only be visible. What this process has written itself is durable.
        """
        self.make_all_durable({self: sequence})

    def _read_observed(self, attempt: Attempt) -> None:
        """Make sure that this process has read what an entry names in other chains; costs no request if it has.

        Raises:
            InvalidConfigError: The entry names one that does not exist.
        """
        before = self.state.seen
        if attempt.state.seen is before:
            return
        for number, sequence in attempt.state.seen.items():
            if sequence > before.get(number, 0) and self._siblings[number].refresh(sequence).sequence < sequence:
                msg = (
                    f"{attempt.claim.key} would follow from {self._keys.entry(number, sequence)}, which does not exist"
                )
                raise InvalidConfigError(msg)

    def _make_seen_durable(self, attempt: Attempt) -> None:
        """Make sure that what an entry follows from in other chains survives a power cut.

        That is what the entry names. If it commits offsets, it is all that this process has read: the records before an
        offset are in the chain of their partition, and the decision of their transaction may be in a third one.
        """
        if any(isinstance(event, OffsetsCommitted) for event in attempt.entry.events):
            sequences = {chain.number: chain.state.sequence for chain in self._siblings if chain is not self}
        else:
            before = self.state.seen
            sequences = {chain: number for chain, number in attempt.state.seen.items() if number > before.get(chain, 0)}
        self.make_all_durable({self._siblings[chain]: sequence for chain, sequence in sequences.items()})

    def make_all_durable(self, sequences: Mapping[Chain, int]) -> None:
        """Make sure that the entries of these chains of the store, up to these, survive a power cut."""
        not_durable = {chain: sequence for chain, sequence in sequences.items() if sequence > chain.durable}
        if not_durable:  # In one call, which flushes the folders that they share once.
            make_durable(
                self._objects, [self._keys.entry(chain.number, sequence) for chain, sequence in not_durable.items()]
            )
            for chain, sequence in not_durable.items():
                chain.durable = max(chain.durable, sequence)
