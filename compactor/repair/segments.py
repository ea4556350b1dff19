"""Finds objects with records in use that are missing or truncated: nothing else has their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txnstore.chain import keys
from txnstore.chain.keys import Keys
from txnstore.compactor.repair.plan import Loss
from txnstore.compactor.verify.segments import all_batches, damage_of
from txnstore.core.log.slices import Slice
from txnstore.core.state import State
from txnstore.phrases import counted, some
from txnstore.storage.base import ObjectStore, iterate_objects


def lost_segments(objects: ObjectStore, names: Keys, states: Sequence[State]) -> tuple[Loss, ...]:
    """Return the lost segments and inlining entries that the states name, in order of their keys.

    A LIST for 1,000 objects, and for 1,000 entries from the first to the last with inlined records in use; no content
    is read. Only the sizes of objects in use are kept.
    """
    # A file system that ignores case lists the folder of a topic as the first topic of such a name had it.
    in_use = {part.batch.segment.object.casefold(): part.batch.segment.object for part in _slices_of(states)}
    sizes: dict[str, int] = {}
    # Of an entry the payload cannot be larger than the object; its exact size takes a GET.
    needed: dict[str, list[str]] = {}
    for name in in_use.values():
        prefix = keys.TOPICS if name.startswith(keys.TOPICS) else f"{name.rpartition('/')[0]}/"
        needed.setdefault(prefix, []).append(name)
    for prefix in (keys.TOPICS, *(names.entries(state.chain) for state in states)):
        if prefix not in needed:
            continue
        first_key, last_key = ("", "") if prefix == keys.TOPICS else (min(needed[prefix])[:-1], max(needed[prefix]))
        for info in iterate_objects(objects, prefix, first_key):
            key = in_use.get(info.key.casefold())
            if key is not None:
                sizes[key] = info.size
            if last_key and info.key >= last_key:
                break
    lost: dict[str, tuple[str, list[Slice]]] = {}
    for part in _slices_of(states):
        damage = damage_of(part.batch.segment, sizes)
        if damage is not None:
            lost.setdefault(part.batch.segment.object, (damage, []))[1].append(part)
    return tuple(
        Loss(key, damage, _describe_consequence(parts), blocks=False) for key, (damage, parts) in sorted(lost.items())
    )


def altered_segments(states: Sequence[State], damages: Mapping[str, str]) -> tuple[Loss, ...]:
    """The objects with segments whose contents are damaged, in order of their keys.

    ``damages``: what is wrong with segments, by their keys.
    """
    lost: dict[str, tuple[str, list[Slice]]] = {}
    for part in _slices_of(states):
        segment = part.batch.segment
        if segment.key in damages:
            lost.setdefault(segment.object, (damages[segment.key], []))[1].append(part)
    return tuple(
        Loss(key, damage, _describe_consequence(parts), blocks=False) for key, (damage, parts) in sorted(lost.items())
    )


def _slices_of(states: Sequence[State]) -> Iterator[Slice]:
    return (part for state in states for part in all_batches(state))


def _describe_consequence(parts: Sequence[Slice]) -> str:
    places = some(f"{part.tp} offsets {part.batch.base_offset} to {part.batch.limit - 1}" for part in parts)
    return (
        f"{counted(sum(part.batch.records for part in parts), 'record')} cannot be rebuilt: {places}. They can be read "
        "when the object is put back, from an older version of it in the bucket or from a backup"
    )
