"""Objects that are lost in the middle of what is numbered: entries, boundaries, checkpoints, index files; and hints.

A process that needs a lost object may report it (``CorruptionError`` with its key), or do without it. Nothing else may
happen: no read that succeeds lacks an acknowledged record, and nothing is acknowledged that others do not find when the
object is there again. So each lost object is put back later, as from a backup, and the checks need no other exception.

A chain cannot notice that its newest entry is missing, so that one is not lost. It makes sure of the names after its
head only after some time without a look, so an entry must be older than that (:data:`_OLD_MS`), and no clock jumps.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.storage import OBJECT_LOST, Bucket, Step
from tests.harness.simulation.world import Process, World
from tests.helpers import keys
from txnstore.storage.base import ObjectInfo

#: More than the maximum age of a head that a chain reads without a check of the entries before it.
_OLD_MS = 10_000
_ROUNDS = 12


class Loser(Actor):
    """Loses an object, and puts it back after a while."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = _ROUNDS

    def run(self) -> None:
        bucket = self.world.bucket
        while self.next_operation():
            self.pause(self.rng.choice((500, 5_000, 60_000, 500_000)))
            choice = sorted(lossy(bucket, entries=not self.world.settings.jumps))
            if not choice:
                continue
            kind = self.rng.choice(sorted({kind for kind, _ in choice}))
            key = self.rng.choice([key for each, key in choice if each == kind])
            bucket.lose(key)
            self.world.lost.add(key)
            self.world.trace.append(Step(self.world.scheduler.now, self.name, "", key, "", OBJECT_LOST))
            self.pause(self.rng.choice((500, 2_000, 30_000, 1_500_000)))
            put_back(self.world)

    def live(self, process: Process) -> None:
        """It has no process."""


def put_back(world: World) -> None:
    """Put all lost objects back."""
    for key in list(world.bucket.lost):
        world.bucket.put_back(key)


def lossy(bucket: Bucket, *, entries: bool) -> Iterator[tuple[str, str]]:
    """The kinds and keys of the objects that may be lost now; ``entries``: also entries."""
    for item in bucket.list(keys.CHAINS):
        kind = _kind(bucket, item) if keys.store_of(item.key) in (None, keys.STORE_ID) else None
        if kind is not None and (entries or kind != "entry"):
            yield kind, item.key


def _kind(bucket: Bucket, item: ObjectInfo) -> str | None:
    key, chain = item.key, keys.chain_number(item.key) or 0
    if bucket.is_unsynced(key):
        return None
    if key.startswith(keys.HINTS):
        return "hint"
    sequence = keys.entry_sequence(key)
    if sequence is not None:
        old = item.modified_ms <= bucket.now_ms() - _OLD_MS
        # Else a loss of power may make it the newest one.
        followed = sequence < bucket.heads.get(chain, 0) and not bucket.is_unsynced(keys.entry(chain, sequence + 1))
        return "entry" if old and followed else None
    number = keys.boundary_number(key)
    if number is not None:
        return "boundary" if bucket.list(keys.boundary(chain, number + 1), limit=1) else None
    return "index" if keys.index_range(key) is not None else "checkpoint"
