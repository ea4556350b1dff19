"""Compactors that share the partitions by claims in the chains, and what these claims must be at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.storage import Bucket
from tests.harness.simulation.world import Process, World
from tests.helpers import keys
from txnstore.chain.payload import decode_entry
from txnstore.compactor.compact.rounds import CLAIM_MS
from txnstore.core.claims import PartitionsClaimed, PartitionsReleased
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.store import Store

#: No claim lasts longer, in ms.
_LONGEST = 3_600_000


class Sharer(Actor):
    """Compacts round after round: plans, claims, compacts; releases its claims at the end, or dies with them."""

    def live(self, process: Process) -> None:
        max_bytes = self.rng.choice((None, 1, 2_000))
        with closing(process.store.compact_rounds(interval=self.rng.choice((1, 60)), max_bytes=max_bytes)) as rounds:
            while self.next_operation():
                try:
                    error = next(rounds).error
                except TxnStoreError as raised:
                    self.check_expected(process, "compact_rounds", raised, ())
                    return
                if isinstance(error, TxnStoreError):
                    self.check_expected(process, "a round", error, ())
                self.breathe()
            if self.rng.random() < 0.5:
                process.storage.crash()


def shared(world: World, store: Store) -> Iterator[str]:
    """A partition had one compactor at any time, and claims of those that died hold nothing back."""
    if not any(name.startswith("share:") for name in world.settings.actors):
        return
    for chain in range(world.settings.chains):
        yield from _claims(world.bucket, chain)
    for _ in range(2):
        with closing(store.compact_rounds(rounds=1)) as rounds:
            latest = next(rounds)
        # The time of a claim from a wrong clock may seem to be that of now, once.
        world.scheduler.now += _LONGEST
        if not latest.claimed:
            break
    if latest.claimed or latest.error is not None:
        yield f"claimed-without-end: {latest.claimed} of {latest.due} partitions, error {latest.error}"


def _claims(bucket: Bucket, chain: int) -> Iterator[str]:
    """What is wrong with the claims in the entries of a chain.

    A claim ends by the times of the chain, or after its length by the clock of the storage. Before a gap the history
    was deleted, and with it the ends of claims.
    """
    held: dict[TopicPartition, tuple[str, int, int]] = {}
    following = 1
    for item in bucket.list(keys.entries(chain)):
        entry = decode_entry(item.key, bucket.get(item.key))
        if entry.sequence != following:
            held = {}
        following = entry.sequence + 1
        for event in entry.events:
            if isinstance(event, PartitionsReleased):
                held = {tp: claim for tp, claim in held.items() if claim[0] != event.owner}
            if not isinstance(event, PartitionsClaimed):
                continue
            if not entry.timestamp < event.until <= entry.timestamp + _LONGEST:
                yield f"wrong-claim: until {event.until} at {entry.timestamp} in {item.key}"
            for tp in event.partitions:
                owner, until, since = held.get(tp, (event.owner, 0, 0))
                if owner != event.owner and until > entry.timestamp and item.modified_ms - since <= CLAIM_MS:
                    yield f"claimed-twice: {tp} in {item.key}, held by {owner} until {until}"
                held[tp] = event.owner, event.until, item.modified_ms
