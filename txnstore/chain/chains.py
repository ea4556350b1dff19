"""All chains of a store in one process: opened together, read together as one consistent view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from operator import is_
from typing import TypeVar

from txnstore.chain import keys
from txnstore.chain.log import Chain
from txnstore.core.model import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.ids import Runtime
from txnstore.storage.base import ObjectStore

T = TypeVar("T")


class Chains:
    """The chains of a store by number. Safe for many threads.

    ``requests``: the workers for single requests. ``workers``: those of each chain for work on several chains at
    once, which may wait for requests; so they are not the same ones.
    """

    def __init__(
        self,
        objects: ObjectStore,
        count: int,
        runtime: Runtime,
        requests: Executor,
        workers: Sequence[Executor] = (),
        *,
        read_only: bool = False,
    ) -> None:
        self._objects = objects
        self._requests = requests
        self._workers = workers or [requests] * count
        self._chains = tuple(
            Chain(objects, number, runtime, requests, read_only=read_only, chains=count, now=self._now)
            for number in range(count)
        )
        self._runtime = runtime
        self._view: View | None = None

    def _now(self) -> int:
        """The time of this process, but not before that of any entry it knows, of whichever chain (OBJ-05, ADD-07).

        So what follows from an entry of another chain has no earlier time, though the writers' clocks differ (Lamport).
        """
        return max(self._runtime.clock(), *(chain.state.timestamp for chain in self._chains))

    def __len__(self) -> int:
        return len(self._chains)

    def __getitem__(self, number: int) -> Chain:
        return self._chains[number]

    def __iter__(self) -> Iterator[Chain]:
        return iter(self._chains)

    # Reading ----------------------------------------------------------------------------------------------------------

    def load(self, first_hint: bytes | None) -> None:
        """Read all chains at once. ``first_hint``: that of chain 0, which is there already."""
        self.at_once({chain.number: self._loader(chain, first_hint) for chain in self._chains})

    def _loader(self, chain: Chain, first_hint: bytes | None) -> Callable[[], State]:
        def load() -> State:
            hint = first_hint if chain.number == 0 else read_if_there(self._objects, keys.latest(chain.number))
            return chain.load(hint)

        return load

    def view(self, refresh: Collection[int] | None = None) -> View:
        """A consistent view; the chains ``refresh`` (None: all) are read up to their heads, one GET each if idle.

        Another chain is read only if one of these rests on an entry of it that is not known yet, and no further than to
        that entry: what is at the head by then may rest on newer ones again, without an end while others commit.
        """
        numbers = range(len(self._chains)) if refresh is None else refresh
        self.at_once({number: self._chains[number].refresh for number in numbers})
        states = [chain.state for chain in self._chains]
        known = self._view
        if known is not None and all(map(is_, known.states, states)):
            return known
        while behind := _behind(states):
            found = self.at_once({number: partial(self._chains[number].refresh, behind[number]) for number in behind})
            for number, needed in behind.items():
                states[number] = found[number]
                if found[number].sequence < needed:
                    msg = f"another chain rests on {keys.entry(number, needed)}, which is missing"
                    raise CorruptionError(msg)
        self._view = View(tuple(states))
        return self._view

    # Several chains at once -------------------------------------------------------------------------------------------

    def at_once(self, work: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """What each piece of work gives. If one raises, so does this, when all have ended: the first by chain."""
        found, errors = self.try_at_once(work)
        for number in sorted(errors):
            raise errors[number]
        return found

    def try_at_once(self, work: Mapping[int, Callable[[], T]]) -> tuple[dict[int, T], dict[int, Exception]]:
        """What each piece of work gives, and what each that failed raised. The last one runs in this thread."""
        if not work:
            return {}, {}
        numbers = sorted(work)
        others = {number: self._workers[number].submit(work[number]) for number in numbers[:-1]}
        found: dict[int, T] = {}
        errors: dict[int, Exception] = {}
        for number in reversed(numbers):
            try:
                found[number] = others[number].result() if number in others else work[number]()
            except Exception as error:  # noqa: BLE001 - the caller looks at it
                errors[number] = error
        return found, errors


def _behind(states: list[State]) -> dict[int, int]:
    """The chains that other states rest on further than they were read, with the entry that is needed."""
    needed: dict[int, int] = {}
    for state in states:
        for chain, sequence in state.seen.items():
            if states[chain].sequence < sequence:
                needed[chain] = max(sequence, needed.get(chain, 0))
    return needed


def read_if_there(objects: ObjectStore, key: str) -> bytes | None:
    """The object, or None if there is none."""
    try:
        return objects.get(key)
    except ObjectNotFoundError:
        return None
