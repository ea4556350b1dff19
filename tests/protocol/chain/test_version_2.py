"""What only stores of format version 2 have is read and has no effect."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.helpers import checkpoints, keys
from tests.helpers.damage import sealed
from tests.helpers.shell import a_chain, topic
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.state import State, first_state
from txnstore.storage.memory import MemoryStore

CLAIMED = {"type": "PartitionsClaimed", "owner": "a", "until": 9, "partitions": [["t", 0]]}
RELEASED = {"type": "PartitionsReleased", "owner": "a"}


def _changed(objects: MemoryStore, key: str, **members: object) -> None:
    document = json.loads(objects.get(key))
    del document["checksum"]
    objects.put(key, sealed(json.dumps(document | members, separators=(",", ":")).encode()))


def test_claims_of_compactors_in_entries_have_no_effect() -> None:
    objects = MemoryStore()
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("t")))
    created = json.loads(objects.get(keys.entry(0, 1)))["events"]
    _changed(objects, keys.entry(0, 1), events=[*created, CLAIMED, RELEASED])
    with a_chain(objects) as chain:
        assert set(chain.state.topics) == {"t"}
        chain.submit(CreateTopic(topic("u")))
        first = first_state()
        without_topics = replace(chain.state, topics=first.topics, alike=first.alike, partitions=first.partitions)
        assert without_topics == replace(
            first, sequence=2, entry_hash=chain.state.entry_hash, timestamp=chain.state.timestamp
        )


def test_claims_of_compactors_in_a_checkpoint_are_ignored_and_not_written_again() -> None:
    objects, state = MemoryStore(), State(sequence=1, entry_hash="h")
    checkpoints.write(objects, state)
    head = keys.checkpoint_head(0, 1)
    assert "claims" not in json.loads(objects.get(head))
    _changed(objects, head, claims=[{"tp": ["t", 0], "owner": "a", "until": 9}])
    assert checkpoints.read(objects, 1) == state
