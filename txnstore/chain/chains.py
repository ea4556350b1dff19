"""All chains of a store in one process: loads them concurrently and reads a consistent view across them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from operator import is_
from typing import NamedTuple, TypeVar

from txnstore.chain.ages import Ages
from txnstore.chain.boundary import OvertakenError
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.checkpoint import read_hint
from txnstore.chain.committer.committer import FoundCommitter
from txnstore.chain.context import ChainContext
from txnstore.chain.earlier_states import EarlierStates, check_entries, check_timestamp
from txnstore.chain.identity import Identity
from txnstore.chain.keys import Keys, entry_sequence
from txnstore.chain.news import News
from txnstore.chain.principals import with_principal
from txnstore.core.groups.commands import ExpiredMembers
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, InvalidConfigError, SnapshotExpiredError
from txnstore.runtime import instant
from txnstore.storage.base import ObjectStore, iterate_objects

T = TypeVar("T")


class Chains:
    """The chains of a store, by number. Thread-safe.

    Args:
        workers: One executor per chain, for concurrent work on several chains. Such work waits for requests, so these
            executors must differ from the pool of requests.
    """

    def __init__(self, context: ChainContext, workers: Sequence[Executor] = ()) -> None:
        self._context, self._objects, self._runtime = context, context.objects, context.runtime
        self.keys = context.keys
        self.identity = Identity(context)
        self._workers = workers or [context.pool] * context.count
        self.news = News(context)
        self._chains: list[Chain] = []
        for number in range(context.count):
            self._chains.append(Chain(context, number, self._chains, self.identity, self.news.announce))
        self.ages = Ages(context, [chain.boundaries for chain in self._chains])
        #: The last view, which is returned again while no state has changed. Assigned in one step, without a lock.
        self._view: View | None = None

    def __len__(self) -> int:
        return len(self._chains)

    def __getitem__(self, number: int) -> Chain:
        return self._chains[number]

    def __iter__(self) -> Iterator[Chain]:
        return iter(self._chains)

    def close(self) -> None:
        """Part from the other processes that share the entries of the chains."""
        for chain in self._chains:
            chain.close()

    # Reading ----------------------------------------------------------------------------------------------------------

    def load(self, first_hint: bytes | None) -> None:
        """Load all chains concurrently, and compare them.

        Args:
            first_hint: The checkpoint hint of chain 0, which the caller has read.

        Raises:
            CorruptionError: A chain is damaged, or has lost an entry that another one follows from.
        """
        begun = self._runtime.monotonic()
        states = self.concurrently({chain.number: self._loader(chain, first_hint) for chain in self._chains})
        self.ages.record(states.values(), begun)
        # A view compares the chains. One may have lost an entry that another refers to, and a commit would reuse its
        # number.
        self.view(refresh=())

    def _loader(self, chain: Chain, first_hint: bytes | None) -> Callable[[], State]:
        """Return the function that loads one chain, from its own hint."""

        def load() -> State:
            hint = first_hint if chain.number == 0 else read_hint(self._objects, chain.number)
            return chain.load(hint)

        return load

    def view(self, refresh: Collection[int] | None = None) -> View:
        """Return a consistent view across all chains.

        It refreshes a further chain only if the state of another one depends on an entry of it that is not loaded yet,
        and only up to that entry: entries at its head may depend on newer entries again, so that reading to the head
        would not end while other processes commit.

        Args:
            refresh: The chains to read up to their heads; None for all. An idle chain costs one GET.

        Raises:
            CorruptionError: A chain depends on an entry of another chain that does not exist.
            StoreNotFoundError: The store was deleted, and maybe created again.
        """
        numbers = range(len(self._chains)) if refresh is None else refresh
        if numbers:
            begun = self._runtime.monotonic()
            confirm = self.identity.begin()
            heads = self.concurrently({number: self._chains[number].refresh for number in numbers})
            confirm()
            self.ages.record(heads.values(), begun)
        states, view = self._loaded()
        if view is not None:
            return view
        while behind := _behind(states):
            newer = self.concurrently(
                {number: partial(self._chains[number].refresh, needed.sequence) for number, needed in behind.items()}
            )
            for number, needed in behind.items():
                states[number] = newer[number]
                if newer[number].sequence < needed.sequence:
                    missing = self.keys.entry(number, newer[number].sequence + 1)
                    dependent = self.keys.entry(needed.by.chain, needed.by.sequence)
                    msg = (
                        f"{missing} is missing, but {dependent}, or an entry before it, follows from "
                        f"{self.keys.entry(number, needed.sequence)}"
                    )
                    raise CorruptionError(msg)
        self._view = View(tuple(states))
        return self._view

    def loaded_view(self) -> View | None:
        """The view of what is loaded; None if a state depends on an entry of another chain that is not. No request."""
        states, view = self._loaded()
        if view is None and not _behind(states):
            view = self._view = View(tuple(states))
        return view

    def _loaded(self) -> tuple[list[State], View | None]:
        """The states as they are loaded, and the view of them, if it was made before."""
        states, cached = [chain.state for chain in self._chains], self._view
        is_same = cached is not None and all(map(is_, cached.states, states))
        return states, cached if is_same else None

    def make_durable(self, view: View) -> None:
        """Make sure that what a view shows survives a power cut, before something that does rests on it.

        Such as an acknowledgement without an entry, or a deletion of what the entries of the view replace.

        Raises:
            StorageError: The entries could not be flushed.
        """
        self._chains[0].make_all_durable({self._chains[state.chain]: state.sequence for state in view.states})

    def save_if_overdue(self) -> None:
        """Write the checkpoints that those who write most have no right to write; for a process that maintains."""
        for chain in self._chains:
            chain.save_if_overdue()

    def last_checkpoints(self) -> list[Callable[[], None]]:
        """Return what writes the checkpoints that are due before this process closes the store; each raises nothing."""
        return [save for chain in self._chains if (save := chain.last_checkpoint()) is not None]

    def boundaries(self) -> list[int]:
        """The entry of the last boundary of each chain; 0 without one."""
        return [chain.boundaries.last().sequence for chain in self._chains]

    def past_view(self, entry: object = None, timestamp: object = None) -> View:
        """The view after earlier entries; :meth:`txnstore.Store.snapshot` describes both arguments.

        No entry depends on a later one of another chain (:meth:`Chain.now`), so all entries until a time are
        consistent.

        Raises:
            InvalidConfigError: Both are given, there are no such entries yet, or they are not consistent.
            SnapshotExpiredError: A vacuum has deleted their history.
            CorruptionError: An entry is missing or damaged.
        """
        if entry is not None and timestamp is not None:
            msg = "give entry or timestamp, not both"
            raise InvalidConfigError(msg)
        try:
            return self._past_view(entry, timestamp)
        except OvertakenError as error:
            msg = f"the history was deleted while it was read: {error}; ask again"
            raise SnapshotExpiredError(msg) from error

    def _past_view(self, entry: object, timestamp: object) -> View:
        """Return the view at these entries or this time, if it is consistent across the chains."""
        heads = self.view().states
        earlier_states = [
            EarlierStates(self._objects, self.keys, head, self._context.pool, chain.boundaries)
            for head, chain in zip(heads, self._chains, strict=True)
        ]
        firsts = self.concurrently({number: chain.boundaries.last for number, chain in enumerate(self._chains)})
        if entry is None:
            moment = check_timestamp(timestamp, self._runtime.clock(), heads, firsts)
            entries = self._in_each([partial(earlier.last_until, moment) for earlier in earlier_states])
            self._check_times(earlier_states, entries, moment)
            if not any(entries):
                times = [time for earlier in earlier_states if (time := earlier.first_time()) is not None]
                first = f"its first entry is of {instant(min(times))}" if times else "it has none yet"
                msg = (
                    f"the store had no entry yet at {instant(moment)} ({moment} milliseconds since the epoch): {first}"
                )
                raise InvalidConfigError(msg)
        else:
            entries = check_entries(entry, heads, firsts)
        states = self.concurrently(
            {number: partial(earlier_states[number].at, last) for number, last in enumerate(entries)}
        )
        view = View(tuple(states[number] for number in sorted(states)))
        for chain, needed in sorted(_behind([*view.states]).items()):
            msg = f"entries {entries} are no consistent view: they depend on entry {needed.sequence} of chain {chain}"
            raise InvalidConfigError(msg)
        return view

    def _check_times(self, earlier_states: Sequence[EarlierStates], entries: Sequence[int], moment: int) -> None:
        """Refuse a time by which entries would be left out that the storage had by then: a writer's clock was ahead."""
        late = self._in_each(
            [partial(earlier.is_late, last, moment) for earlier, last in zip(earlier_states, entries, strict=True)]
        )
        if not any(late):
            return
        chain = late.index(True)
        stored = self._in_each([partial(earlier.last_written_until, moment) for earlier in earlier_states])
        msg = (
            f"which entries were there at {instant(moment)} ({moment} milliseconds since the epoch) is not known by "
            f"their times: the storage had entry {entries[chain] + 1} of chain {chain} by then, and its time is later, "
            "because the clock of a writer was ahead. By the clock of the storage the last entry was "
            f"{stored[0] if len(stored) == 1 else stored}: if that is meant, give it as entry"
        )
        raise InvalidConfigError(msg)

    def _in_each(self, work: Sequence[Callable[[], T]]) -> tuple[T, ...]:
        """The results of concurrent work on all chains, by chain."""
        results = self.concurrently(dict(enumerate(work)))
        return tuple(results[number] for number in range(len(work)))

    def expired_members(self, group: str) -> ExpiredMembers:
        """The members of a group whose leases have expired, as this process measures; each with its watched renewal."""
        return self.ages.expired_members([chain.state for chain in self._chains], group)

    def find_committers(self) -> dict[int, FoundCommitter]:
        """Find the processes of this machine that commit for others, by chain, without any effect."""
        found = self.concurrently({chain.number: chain.find_committer for chain in self})
        return {number: committer for number, committer in found.items() if committer is not None}

    # Concurrent work on several chains --------------------------------------------------------------------------------

    def concurrently(self, work: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """Run the work of each chain concurrently and return the results by chain.

        If any work raises, raises the error of the lowest chain number after all work has ended.
        """
        results, errors = self.try_concurrently(work)
        for number in sorted(errors):
            raise errors[number]
        return results

    def try_concurrently(self, work: Mapping[int, Callable[[], T]]) -> tuple[dict[int, T], dict[int, Exception]]:
        """Run the work of each chain concurrently; returns the results and the errors by chain.

        The work of the last chain runs in the calling thread.
        """
        if not work:
            return {}, {}
        numbers = sorted(work)
        others = {number: self._workers[number].submit(with_principal(work[number])) for number in numbers[:-1]}
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}
        for number in reversed(numbers):
            try:
                results[number] = others[number].result() if number in others else work[number]()
            except Exception as error:  # noqa: BLE001 - Returned to the caller.
                errors[number] = error
        return results, errors


class _Needed(NamedTuple):
    """An entry that is not read yet, and the state that depends on it."""

    sequence: int
    by: State


def _behind(states: list[State]) -> dict[int, _Needed]:
    """The chains that are behind an entry that another state depends on, with the last such entry."""
    needed: dict[int, _Needed] = {}
    for state in states:
        for chain, sequence in state.seen.items():
            if sequence > (needed[chain].sequence if chain in needed else states[chain].sequence):
                needed[chain] = _Needed(sequence, state)
    return needed


def entry_numbers(objects: ObjectStore, names: Keys, chain: int, after: int) -> Iterator[int]:
    """List the numbers of the entries of a chain that exist after entry ``after``, in order."""
    for listed in iterate_objects(objects, names.entries(chain), names.entry(chain, after)):
        number = entry_sequence(listed.key)
        if number is not None:
            yield number
