"""The order in which a checkpoint is written, which lets its process die anywhere in between."""

from __future__ import annotations

from collections.abc import Iterator

from tests.helpers.keys import HINTS, checkpoint_of, checkpoint_sequence
from txnstore.chain.codec import LatestDocument, decode


class Written:
    """The parts of checkpoints that were ever written to a bucket."""

    def __init__(self) -> None:
        self._parts: set[str] = set()

    def add(self, key: str, data: bytes) -> Iterator[str]:
        """An object is written; what must exist before it, and does not."""
        if key.startswith(HINTS):
            number = decode(LatestDocument, key, data).sequence
            head = f"/{key.removeprefix(HINTS).removesuffix('.json')}/checkpoints/{number:020d}/head.json"
            if not any(part.endswith(head) for part in self._parts):
                yield f"hint-before-checkpoint: {key} names {number}"
        elif checkpoint_of(key) is not None:
            if checkpoint_sequence(key) is not None and key.replace("head.json", "batches.parquet") not in self._parts:
                yield f"head-before-batches: {key}"
            self._parts.add(key)
