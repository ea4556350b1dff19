"""Expirations in all chains: each forgets by its own time what was unused for too long (:mod:`txnstore.core.expiry`).

Anybody may do it at any time; whoever is late finds nothing left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from txnstore.chain.chains import Chains
from txnstore.chain.log import Chain
from txnstore.core.expiration import Expire, Expired, is_due
from txnstore.validation import check_milliseconds


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What was forgotten.

    Attributes:
        producers: How many, counted once for each partition or group that knew them.
        transactional_ids: The ids.
        offsets: How many committed offsets of groups.
        groups: The groups that were deleted as a whole.
    """

    producers: int = 0
    transactional_ids: tuple[str, ...] = ()
    offsets: int = 0
    groups: tuple[str, ...] = ()


def expire(chains: Chains, producer_ids: float, transactional_ids: float, offsets: float) -> ExpiryReport:
    """Forget in all chains concurrently what was unused for longer than its limit, in seconds.

    If one chain cannot be written, this raises when the others are done.
    """
    chains.view()
    command = Expire(
        check_milliseconds("producer_ids", producer_ids),
        check_milliseconds("transactional_ids", transactional_ids),
        check_milliseconds("offsets", offsets),
    )
    return _expire(chains, command, list(chains))


def expire_due(chains: Chains, now: int) -> ExpiryReport:
    """Forget what is past Kafka's limits, as far as this process knows at ``now``. No request if nothing is."""
    command = Expire()
    return _expire(chains, command, [chain for chain in chains if is_due(chain.state, command, now)])


def _expire(chains: Chains, command: Expire, which: Iterable[Chain]) -> ExpiryReport:
    found = chains.at_once({chain.number: partial(_all, chain, command) for chain in which})
    every = [part for number in sorted(found) for part in found[number]]
    return ExpiryReport(
        producers=sum(part.producers for part in every),
        transactional_ids=tuple(sorted(name for part in every for name in part.transactional_ids)),
        offsets=sum(part.offsets for part in every),
        groups=tuple(sorted(name for part in every for name in part.groups)),
    )


def _all(chain: Chain, command: Expire) -> list[Expired]:
    """What a chain has forgotten, entry by entry."""
    found: list[Expired] = []
    while not found or found[-1].more:
        found.append(chain.submit(command))
    return found
