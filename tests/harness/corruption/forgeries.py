"""Entries and checkpoints whose checksums fit, with members that no writer would write."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.harness.corruption.damages import sealed
from tests.harness.corruption.schemas import schema_text
from tests.harness.corruption.texts import value
from tests.harness.corruption.worlds import Objects, World
from tests.helpers import keys
from txnstore.chain.codec import FORMAT_VERSION
from txnstore.chain.payload import entry_hash, line_of


def _places(document: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values inside of a document."""
    inside: Any = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [place, *(path for name, item in inside for path in _places(item, (*place, name)))]


def mutate(rng: random.Random, document: Any) -> Any:
    """A copy with some values replaced, removed or repeated, at any depth."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        *where, last = rng.choice(_places(document)[1:])
        owner = document
        for name in where:
            owner = owner[name]
        if last == "schema":
            owner[last] = schema_text(rng)
        elif rng.random() < 0.1 and isinstance(owner, dict):
            del owner[last]
        elif rng.random() < 0.1 and isinstance(owner, list) and isinstance(last, int):
            owner.insert(last, owner[last])
        else:
            owner[last] = value(rng, owner[last])
        if not (isinstance(document, dict | list) and _places(document)[1:]):
            break
    return document


def forged_entry(rng: random.Random, world: World, chains: int) -> tuple[str, Objects]:
    """One more entry at the end of a chain, made of mutated events of earlier entries."""
    objects = dict(world.objects)
    chain = rng.randrange(chains)
    names = sorted(key for key in objects if key.startswith(keys.entries(chain)))
    documents = [json.loads(line_of(objects[name])) for name in names]
    events = [event for document in documents for event in document["events"]]
    last: dict[str, Any] = (
        documents[-1]
        if documents
        else {
            "version": FORMAT_VERSION,
            "sequence": 0,
            "entry_id": "e",
            "writer_id": "w",
            "timestamp": 1_700_000_000_000,
            "payload": None,
            "requires": None,
            "principals": None,
        }
    )
    entry = {
        **last,
        "sequence": last["sequence"] + 1,
        "previous": entry_hash(objects[names[-1]]) if names else "",
        "events": mutate(rng, rng.sample(events, min(len(events), rng.choice([1, 1, 2, 4])))) if events else [],
    }
    if rng.random() < 0.1:
        entry = mutate(rng, entry)
    key = keys.entry(chain, last["sequence"] + 1)
    objects[key] = sealed(entry)
    return key, objects


def forged_checkpoint(rng: random.Random, world: World, _chains: int) -> tuple[str, Objects]:
    """The newest checkpoint of a chain with a mutated head, and no entry before it to compare with."""
    objects = dict(world.objects)
    heads = sorted(key for key in objects if key.endswith("/state.json"))
    key = rng.choice(heads)
    document = json.loads(objects[key])
    document.pop("checksum")
    forged = mutate(rng, document)
    objects[key] = sealed(forged) if isinstance(forged, dict) else json.dumps(forged).encode()
    return key, objects
