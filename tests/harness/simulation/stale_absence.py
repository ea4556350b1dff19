"""Entries that one process does not find for a while, although they exist, and later ones exist, too (stale absence).

A chain promises to notice this where it looks at :data:`~txnstore.chain.tail.ABSENT` names: when it is loaded, and at
the first look at its head after a pause. So an entry is hidden only in such a look, and only if the look finds the
entry after it: the requests of a look overlap while entries are written, and one of them may take very long. Then
``CorruptionError`` may name it, or the process finds it when it asks again; it must not take the entry before it for
the head.

Hints and checkpoints are hidden at any time: without them, a chain is loaded from an older checkpoint or from entry 1.
Checkpoints of a chain with a boundary are not hidden, as its entries up to that are deleted.
"""

from __future__ import annotations

import random

from tests.harness.simulation.scheduler import Scheduler
from tests.harness.simulation.storage import Bucket
from tests.helpers.keys import HINTS, chain_number, checkpoint_sequence, entry_sequence, index_range
from txnstore.chain.context import CHECKPOINT_EVERY

#: A chain reads a head that it read longer ago with a check that no entry is missing there.
_HEAD_MAX_AGE_MS = 5_000


class HiddenEntries:
    """Decides which GETs of a process are answered with 404.

    Args:
        bucket: The objects, with the heads of their chains.
        scheduler: The virtual clock.
        rng: The randomness of the process.
        share: The share of the GETs whose object may be hidden that do not find it.
        hidden: Gets the keys that were hidden.
    """

    def __init__(
        self, bucket: Bucket, scheduler: Scheduler, rng: random.Random, share: float, hidden: set[str]
    ) -> None:
        self._bucket = bucket
        self._scheduler = scheduler
        self._rng = rng
        self._share = share
        self._hidden = hidden
        self._until: dict[str, int] = {}
        #: By chain: the end of the last hole; the last proof of the head; the first GET of an entry after that.
        self._ends: dict[int, int] = {}
        self._proved: dict[int, int] = {}
        self._first_gets: dict[int, int] = {}
        self._since_proof: set[int] = set()
        #: The chains and numbers of entries that the process did not find when it asked last.
        self._absent: set[tuple[int, int]] = set()

    def get_begins(self, key: str) -> None:
        """A GET begins."""
        if entry_sequence(key) is not None:
            self._first_gets.setdefault(_chain(key), self._scheduler.now)

    def offered(self, key: str) -> None:
        """A create begins: if it succeeds, the process knows the head."""
        if entry_sequence(key) is not None:
            self._know(_chain(key))

    def hides(self, key: str) -> bool:
        """Whether this GET does not find the entry; called when it takes effect."""
        sequence = entry_sequence(key)
        if sequence is None:
            hidden = _is_saved(key) and self._rng.random() < self._share and not self._is_needed(key)
            if hidden:
                self._hidden.add(key)
            return hidden
        chain = _chain(key)
        head = self._bucket.heads.get(chain, 0)
        # A window is read in any order, while entries are written: each absent name may end the look. The name of the
        # first checkpoint's entry is read apart, before all others.
        if sequence > head and sequence % CHECKPOINT_EVERY:
            self._know(chain)
        # The newest entry has no successor that shows that it is missing.
        hidden = sequence < head and self._is_hidden(key, chain, sequence)
        if hidden or sequence > head:
            self._absent.add((chain, sequence))
        else:
            self._absent.discard((chain, sequence))
        return hidden

    def _is_needed(self, key: str) -> bool:
        """Whether it is of a checkpoint of a chain whose history does not begin with entry 1."""
        prefix, _, rest = key.partition("checkpoints/")
        return rest != "" and len(self._bucket.list(f"{prefix}boundaries/", limit=1)) > 0

    def _is_hidden(self, key: str, chain: int, sequence: int) -> bool:
        now = self._scheduler.now
        if (
            key not in self._until
            and self._may_begin(chain)
            and self._rng.random() < self._share
            # It exists by now. But the current look may have found before that it does not.
            and (chain, sequence + 1) not in self._absent
        ):
            self._until[key] = self._ends[chain] = now + self._rng.choice((2, 500, 30_000))
            self._hidden.add(key)
            self._since_proof.add(chain)
        return now < self._until.get(key, 0)

    def _may_begin(self, chain: int) -> bool:
        """Whether the current look reads three names, and finds all others of these that exist when it asks."""
        proved = self._proved.get(chain)
        looks = proved is None or self._first_gets.get(chain, proved) - proved > _HEAD_MAX_AGE_MS
        alone = chain not in self._since_proof and self._scheduler.now >= self._ends.get(chain, 0)
        return looks and alone  # Three hidden entries in one look would be a head.

    def _know(self, chain: int) -> None:
        self._proved[chain] = self._scheduler.now
        self._first_gets.pop(chain, None)
        self._since_proof.discard(chain)


def _is_saved(key: str) -> bool:
    """Whether it is a hint, a checkpoint or an index file."""
    return key.startswith(HINTS) or checkpoint_sequence(key) is not None or index_range(key) is not None


def _chain(key: str) -> int:
    number = chain_number(key)
    assert number is not None
    return number
