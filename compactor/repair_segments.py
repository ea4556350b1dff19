"""Finds objects with records in use that are missing or truncated: nothing else has their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnstore.chain import keys
from txnstore.chain.keys import Keys
from txnstore.compactor.damage import Loss
from txnstore.compactor.findings import counted, some
from txnstore.compactor.verify_segments import damage_of, slices
from txnstore.core.log.visibility import Slice
from txnstore.core.state import State
from txnstore.storage.base import ObjectStore


def lost_segments(objects: ObjectStore, names: Keys, states: Sequence[State]) -> tuple[Loss, ...]:
    """The lost segments, packs, and entries with inlined records that the states name, in order of their keys.

    A LIST for 1,000 objects, and no content is read.
    """
    # Of an entry the payload cannot be larger than the object; its exact size takes a GET.
    prefixes = [keys.TOPICS, *(names.entries(state.chain) for state in states)]
    sizes = {item.key: item.size for prefix in prefixes for item in objects.list(prefix)}
    lost: dict[str, tuple[str, list[Slice]]] = {}
    for state in states:
        for part in slices(state):
            damage = damage_of(part.batch.segment, sizes)
            if damage is not None:
                lost.setdefault(part.batch.segment.object, (damage, []))[1].append(part)
    return tuple(Loss(key, damage, _consequence(parts), blocks=False) for key, (damage, parts) in sorted(lost.items()))


def altered_segments(states: Sequence[State], damages: Mapping[str, str]) -> tuple[Loss, ...]:
    """The objects with segments whose contents are damaged, in order of their keys.

    ``damages``: what is wrong with segments, by their keys.
    """
    lost: dict[str, tuple[str, list[Slice]]] = {}
    for part in (part for state in states for part in slices(state)):
        segment = part.batch.segment
        if segment.key in damages:
            lost.setdefault(segment.object, (damages[segment.key], []))[1].append(part)
    return tuple(Loss(key, damage, _consequence(parts), blocks=False) for key, (damage, parts) in sorted(lost.items()))


def _consequence(parts: Sequence[Slice]) -> str:
    places = some(f"{part.tp} offsets {part.batch.base_offset} to {part.batch.limit - 1}" for part in parts)
    return (
        f"{counted(sum(part.batch.records for part in parts), 'record')} cannot be rebuilt: {places}. They can be read "
        "when the object is put back, from an older version of it in the bucket or from a backup"
    )
