"""The keys of stores in tests: those of a :class:`FixedRuntime` have one id."""

from __future__ import annotations

from txnstore.chain.checkpoints.index import edge_numbers
from txnstore.chain.keys import (
    CHAINS,
    HINTS,
    STORE,
    TOPICS,
    Keys,
    boundary_number,
    chain_number,
    checkpoint_sequence,
    entry_sequence,
    has_segments,
    index_range,
    latest,
    segment,
    store_of,
)
from txnstore.runtime import Runtime

#: The id of the stores that tests create.
STORE_ID = "0000aaaa-0000-7000-8000-00000000cafe"
KEYS = Keys(STORE_ID)

entries, entry = KEYS.entries, KEYS.entry
checkpoints, checkpoint_state = KEYS.checkpoints, KEYS.checkpoint_state
index_file = KEYS.index_file
boundaries, boundary = KEYS.boundaries, KEYS.boundary

__all__ = [
    "CHAINS",
    "HINTS",
    "KEYS",
    "STORE",
    "STORE_ID",
    "TOPICS",
    "FixedRuntime",
    "boundaries",
    "boundary",
    "boundary_number",
    "chain_number",
    "checkpoint_index",
    "checkpoint_sequence",
    "checkpoint_state",
    "checkpoints",
    "entries",
    "entry",
    "entry_sequence",
    "has_segments",
    "index_file",
    "index_range",
    "latest",
    "segment",
    "store_of",
]


class FixedRuntime(Runtime):
    """A runtime that gives each new store the same id, so that a test knows the keys of its chains."""

    def new_store_id(self) -> str:
        self.new_id()  # The same random numbers follow.
        return STORE_ID


def checkpoint_index(chain: int, sequence: int) -> str:
    """The last index file of a checkpoint of an entry."""
    return index_file(chain, [0, *edge_numbers(sequence)][-2], sequence)
