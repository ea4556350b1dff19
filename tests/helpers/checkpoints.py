"""Checkpoints that a test writes and reads itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.helpers import keys
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.index import Edge
from txnstore.core.state import State
from txnstore.storage.base import ObjectStore


def write(objects: ObjectStore, state: State) -> None:
    """Save the state of chain 0 with one index file."""
    ends = [Edge(), checkpoint.edge_of(state)]
    for key, data in [*checkpoint.encode_checkpoint(keys.KEYS, 0, ends, state), checkpoint.hint_to(keys.KEYS, state)]:
        objects.put(key, data)


def read(objects: ObjectStore, sequence: int) -> State | None:
    """The state in a checkpoint of chain 0; None if it is missing or damaged."""
    with ThreadPoolExecutor(2) as pool:
        requested = checkpoint.request(objects, pool, keys.KEYS, 0, sequence)
        saved = checkpoint.receive(keys.KEYS, 0, sequence, requested)
    return saved.state if saved is not None else None
