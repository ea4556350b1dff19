"""Earlier snapshots: at any time they are the fold of the entries until then, whatever checkpoints are left."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator

from tests.harness.simulation.world import World
from tests.helpers.connections import connection_of
from txnstore.chain.keys import checkpoint_sequence
from txnstore.chain.tail import fold
from txnstore.core.state import State, first_state
from txnstore.errors import TxnStoreError
from txnstore.store import Store

#: The number of moments that are looked at.
_MOMENTS = 3


def returned(world: World, store: Store) -> Iterator[str]:
    """Snapshots of some times, and of their entries, that differ from the folds of their chains."""
    rng = random.Random(f"past/{world.settings.seed}")
    chains = [_states(world, store, head.sequence, head.chain) for head in connection_of(store).view().states]
    oldest = max(chain.boundaries.last().timestamp for chain in connection_of(store).chains)
    certain = max(_first(store, chain, states) for chain, states in enumerate(chains))
    times = [[state.timestamp for state in states[1:]] for states in chains]
    for number, chain_times in enumerate(times):
        if chain_times != sorted(chain_times):
            yield f"time-goes-back: in chain {number}"
    moments = sorted({time for chain_times in times for time in chain_times})
    for moment in rng.sample(moments, min(_MOMENTS, len(moments))):
        try:
            snapshot = store.snapshot(timestamp=moment)
        except TxnStoreError as error:
            if moment >= certain and not _is_ahead(world, store, chains, moment):
                yield f"past-refused: {moment}, which is not before {certain}: {error}"
            continue
        if moment < oldest:
            yield f"past-found: {moment} is before {oldest}, the last boundary"
        heads = tuple(bisect_right(chain_times, moment) for chain_times in times)
        if snapshot.heads != heads:
            yield f"wrong-moment: {snapshot.heads} at {moment}, which is {heads}"
        again = store.snapshot(entry=heads)
        for state, same, states in zip(snapshot.view.states, again.view.states, chains, strict=True):
            if not state == same == states[same.sequence]:
                yield f"wrong-past: chain {state.chain} at entry {same.sequence} of {len(states) - 1}"


def _is_ahead(world: World, store: Store, chains: list[list[State]], moment: int) -> bool:
    """Whether the storage had an entry by then whose time is later: times do not tell then which entries there were."""
    names = connection_of(store).keys
    return any(
        state.timestamp > moment >= world.bucket.created[names.entry(number, state.sequence)]
        for number, states in enumerate(chains)
        for state in states[1:]
    )


def _first(store: Store, chain: int, states: list[State]) -> int:
    """The time from which the snapshots of a chain exist: that of its boundary, which has a checkpoint.

    A vacuum that has slept since it made its plan may have deleted that one: then the history begins with the next one
    (docs/internals/design/history.md).
    """
    connection = connection_of(store)
    last = connection.chains[chain].boundaries.last()
    listed = connection.objects.list(connection.keys.checkpoints(chain))
    heads = {checkpoint_sequence(item.key) for item in listed}
    first = min(number for number in heads | {len(states) - 1} if number is not None and number >= last.sequence)
    return last.timestamp if first == last.sequence or not last.sequence else states[first].timestamp


def _states(world: World, store: Store, head: int, chain: int) -> list[State]:
    """The states of a chain after 0, 1, 2, … entries, folded without a checkpoint."""
    connection = connection_of(store)
    states = [first_state(chain, len(connection.chains))]
    for sequence in range(1, head + 1):
        data = world.bucket.archive[connection.keys.entry(chain, sequence)]
        states.append(fold(connection.keys, chain, states[-1], data))
    return states
