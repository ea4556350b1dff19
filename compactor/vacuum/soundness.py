"""Whether a store is sound enough for a vacuum: the part of a verification that reads neither entries nor records.

A vacuum deletes what the newest known state does not name. Where that may not be the newest one, or may be that of
another store, it would delete what is still needed. Where objects that it names are missing, they may be among those
that it does not name: in a folder that was renamed. See docs/internals/design/identity.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from txnstore.chain import keys
from txnstore.chain.keys import Keys
from txnstore.compactor.foreign import ForeignStore, choice_advice
from txnstore.compactor.repair.chain import ChainRepairs, Survey
from txnstore.compactor.repair.plan import Loss
from txnstore.compactor.repair.segments import lost_segments
from txnstore.connection import Connection
from txnstore.core.state import State
from txnstore.errors import UnsoundStoreError
from txnstore.phrases import counted
from txnstore.runtime import instant
from txnstore.storage.base import ObjectStore, iterate_objects


class Unsound(NamedTuple):
    """An object, and the damage that makes a vacuum unsafe."""

    key: str
    damage: str

    def __str__(self) -> str:
        return f"{self.key}: {self.damage}"


def find_damage(connection: Connection) -> list[Unsound]:
    """Find damaged boundaries and checkpoints, missing entries, and the first lost object with records.

    For each chain the requests of ``recover`` (its hint, a list, the checkpoints of the history, the boundaries), and
    lists of the entries of the history and of the objects with records. A hint that is merely missing or stale is not
    wrong: the next checkpoint writes it again.

    Raises:
        CorruptionError: The store does not open.
    """
    states = connection.view().states
    with connection.runtime.executor() as workers:  # Not the pool of requests, for which the surveys wait.
        damage = [item for each in workers.map(partial(_chain_damage, connection), states) for item in each]
    return damage + _find_lost_object(connection, states)


def _find_lost_object(connection: Connection, states: Sequence[State]) -> list[Unsound]:
    """Name the first missing or truncated object with records in use, and count the others; two looks must agree."""

    def find_losses(states: Sequence[State]) -> dict[str, Loss]:
        return {loss.key: loss for loss in lost_segments(connection.objects, connection.keys, states)}

    losses = find_losses(states)
    if losses:  # A compaction may have replaced them since the state was read, and a vacuum deleted them.
        losses_again = find_losses(connection.view().states)
        losses = {key: loss for key, loss in losses_again.items() if key in losses}
    if not losses:
        return []
    first, *others = losses.values()
    more = f", and {counted(len(others), 'more object')} with records in use" if others else ""
    return [Unsound(first.key, f"{first.damage}, though it has records in use{more}")]


def _chain_damage(connection: Connection, state: State) -> list[Unsound]:
    """Return the damage of a chain that two looks agree on: another vacuum and writers may work meanwhile."""
    repairs = ChainRepairs(connection.objects, connection.pool, connection.keys, state.chain, len(connection.chains))
    damage = [*_damage_in_survey(connection, state, repairs.survey())]
    if not damage:
        return []
    damage_again = {*_damage_in_survey(connection, state, repairs.survey())}
    return [item for item in damage if item in damage_again]


def _damage_in_survey(connection: Connection, state: State, survey: Survey) -> Iterator[Unsound]:
    """Yield damaged boundaries and checkpoints, a conflict of the hint, and the first missing entry."""
    names, chain = connection.keys, state.chain
    for number, boundary in survey.boundaries.items():
        if boundary is None:
            yield Unsound(names.boundary(chain, number), "it is missing or damaged")
    for number, saved in survey.saved.items():
        if saved is None and number in survey.checkpoints and not (survey.leftover and number == survey.hinted):
            yield Unsound(names.checkpoint_state(chain, number), "it cannot be read: it or its index is damaged")
    if survey.conflict:
        yield Unsound(keys.latest(chain), survey.conflict)
    boundary_entry = max((each.sequence for each in survey.boundaries.values() if each is not None), default=0)
    missing_entry = _find_missing_entry(connection.objects, names, state, boundary_entry)
    if missing_entry is not None:
        yield missing_entry


def _find_missing_entry(objects: ObjectStore, names: Keys, state: State, boundary_entry: int) -> Unsound | None:
    """Find the first missing entry between that of the last boundary and that of the known state."""
    expected = boundary_entry + 1
    for item in iterate_objects(objects, names.entries(state.chain), names.entry(state.chain, boundary_entry)):
        number = keys.entry_sequence(item.key)
        if number is None:
            continue
        if number != expected:
            return Unsound(names.entry(state.chain, expected), f"it is missing, though entry {number} exists")
        expected += 1
    if expected <= state.sequence:
        return Unsound(names.entry(state.chain, expected), f"it is missing, though entry {state.sequence} was read")
    return None


def check_sound(connection: Connection) -> None:
    """Refuse to delete anything in a store that is not sound.

    Raises:
        UnsoundStoreError: Something is wrong.
    """
    problems = find_damage(connection)
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        msg = (
            f"nothing was deleted, because the store at {connection.url} is not sound: {problems[0]}{more}. `txnstore "
            "recover` says what can be rebuilt and what is lost"
        )
        raise UnsoundStoreError(msg)


def check_no_others(connection: Connection, others: Mapping[str, ForeignStore]) -> None:
    """Refuse to delete anything while another store has chains here: objects unknown to this store may be its own.

    Raises:
        UnsoundStoreError: There are.
    """
    if others:
        store_id, other = max(others.items(), key=lambda item: item[1].youngest_ms)
        raise UnsoundStoreError(
            f"nothing was deleted at {connection.url}: {describe_foreign(connection.keys, store_id, other)}"
        )


def describe_foreign(names: Keys, store_id: str, other: ForeignStore) -> str:
    """Describe the objects of another store, and what can be done about them."""
    objects_text = f"{counted(other.objects, 'object')}, the newest of {instant(other.youngest_ms)}"
    return (
        f"{Keys(store_id).chains} belongs to another store ({objects_text}), and segments that the store "
        f"{names.store_id} does not name may be its own. `txnstore recover --dry-run` shows what each of them holds. "
        f"{choice_advice(store_id)}"
    )
