"""Claims of compactors on partitions: commands, events, rules and folding.

A claim keeps two compactors from doing the same work. It is advice: what makes a compaction safe is that the chain
refuses a replacement of batches that no longer exist. So a claim may be lost, or end early by a wrong clock, at the
cost of work that is done twice. Times are those of the chain's entries, in ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from txnstore.core.model import CompactionLease, Map, TopicPartition, items_of, sorted_items
from txnstore.core.state import Draft, Fold, State
from txnstore.errors import InvalidConfigError

#: A claim ends at the latest after this time, in ms: a compactor that has died holds a partition back no longer.
MAX_CLAIM_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Claim partitions for a compactor. Answered with those that it has now; others have claimed the rest.

    Attributes:
        owner: The id of the compactor. It may renew its own claims.
        partitions: The partitions, the most urgent first.
        duration_ms: How long it may hold them; at most :data:`MAX_CLAIM_MS`.
        expired: Claims of others that the compactor has measured to be over, by clocks that no other machine can set
            (``docs/design/0009-time.md``): the time of the chain may stand still.
    """

    owner: str
    partitions: tuple[TopicPartition, ...]
    duration_ms: int
    expired: tuple[tuple[TopicPartition, CompactionLease], ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """End all claims of a compactor. Answered with None."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsClaimed:
    """A compactor holds these partitions until the chain's time ``until``."""

    type: Literal["PartitionsClaimed"] = "PartitionsClaimed"
    owner: str
    until: int
    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsReleased:
    """A compactor has no claims any more."""

    type: Literal["PartitionsReleased"] = "PartitionsReleased"
    owner: str


def is_claimed(state: State, tp: TopicPartition, owner: str, now: int) -> bool:
    """Whether another compactor than ``owner`` holds the partition at the time ``now``."""
    claim = state.claims.get(tp)
    return claim is not None and claim.owner != owner and claim.until > now


def claim_partitions(draft: Draft, command: ClaimPartitions) -> tuple[TopicPartition, ...]:
    """Claim the partitions that exist and that no other compactor holds.

    Raises:
        InvalidConfigError: The claims would last longer than :data:`MAX_CLAIM_MS`, or no time.
    """
    if not 0 < command.duration_ms <= MAX_CLAIM_MS:
        msg = f"a claim must last between 1 and {MAX_CLAIM_MS} ms, not {command.duration_ms}"
        raise InvalidConfigError(msg)
    state = draft.state
    free = [
        tp
        for tp in dict.fromkeys(command.partitions)
        if tp in state.partitions
        and ((tp, state.claims.get(tp)) in command.expired or not is_claimed(state, tp, command.owner, state.timestamp))
    ]
    if free:
        until = state.timestamp + command.duration_ms
        draft.emit(PartitionsClaimed(owner=command.owner, until=until, partitions=free))
    return tuple(free)


def release_partitions(draft: Draft, command: ReleasePartitions) -> None:
    """End the claims of a compactor."""
    if any(claim.owner == command.owner for _, claim in items_of(draft.state.claims)):
        draft.emit(PartitionsReleased(owner=command.owner))


def _partitions_claimed(state: State, event: PartitionsClaimed) -> State:
    claims = _lasting(state)
    for tp in event.partitions:
        claims = claims.insert(tp, CompactionLease(event.owner, event.until))
    return replace(state, claims=claims)


def _partitions_released(state: State, event: PartitionsReleased) -> State:
    claims = state.claims
    for tp, claim in sorted_items(claims):
        if claim.owner == event.owner:
            claims = claims.discard(tp)
    return replace(state, claims=claims)


def _lasting(state: State) -> Map[TopicPartition, CompactionLease]:
    """The claims that have not ended at the time of the entry."""
    claims = state.claims
    for tp, claim in sorted_items(claims):
        if claim.until <= state.timestamp:
            claims = claims.discard(tp)
    return claims


CLAIM_FOLDS: dict[type, Fold] = {
    PartitionsClaimed: _partitions_claimed,
    PartitionsReleased: _partitions_released,
}
