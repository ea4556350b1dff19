"""The order in which a checkpoint is written, which lets its process die anywhere in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.helpers.keys import HINTS, checkpoint_sequence, index_range
from txnstore.chain.checkpoints.document import StateDocument
from txnstore.chain.codec import LatestDocument, decode


class Written:
    """The checkpoints and index files that were ever written to a bucket."""

    def __init__(self) -> None:
        self._parts: set[str] = set()

    def add(self, key: str, data: bytes) -> Iterator[str]:
        """An object is written; what must exist before it, and does not."""
        if key.startswith(HINTS):
            number = decode(LatestDocument, key, data).sequence
            head = f"/{key.removeprefix(HINTS).removesuffix('.json')}/checkpoints/{number:020d}/state.json"
            if not any(part.endswith(head) for part in self._parts):
                yield f"hint-before-checkpoint: {key} names {number}"
        elif checkpoint_sequence(key) is not None:
            folder = key.rpartition("checkpoints/")[0]
            for after, until in pairwise([0, *decode(StateDocument, key, data).index]):
                if f"{folder}checkpoints/{until:020d}-{after:020d}.index" not in self._parts:
                    yield f"head-before-index: {key} names the entries {after + 1} to {until}"
            self._parts.add(key)
        elif index_range(key) is not None:
            self._parts.add(key)

    def place(self, key: str) -> None:
        """An operator has put the object there, in whatever order."""
        if checkpoint_sequence(key) is not None or index_range(key) is not None:
            self._parts.add(key)

    def forget(self, key: str) -> None:
        """A loss of power has taken the object back."""
        self._parts.discard(key)
