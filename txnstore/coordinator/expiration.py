"""Expiration in all chains, each by the age of its entries on the storage (:mod:`txnstore.core.expiration`).

Any process may run it at any time, several of them concurrently.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from txnstore.chain.ages import Ages
from txnstore.chain.chain import Chain
from txnstore.chain.chains import Chains
from txnstore.core.expiration import Expire, Expired, decided_producers, is_due, preview
from txnstore.core.state import State
from txnstore.validation import check_milliseconds

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The state that an expiration has removed.

    Attributes:
        producers: The number of producer states; a producer counts once per partition, and once per chain with a fence.
        transactional_ids: The transactional ids.
        offsets: The number of committed offsets.
        groups: The deleted groups.
    """

    producers: int = 0
    transactional_ids: tuple[str, ...] = ()
    offsets: int = 0
    groups: tuple[str, ...] = ()


def expire(
    chains: Chains, producer_ids: float, transactional_ids: float, offsets: float, *, preview_at: int | None = None
) -> ExpiryReport:
    """Remove expired state in all chains concurrently; see :meth:`txnstore.Store.expire`.

    Args:
        preview_at: Change nothing; report what would be removed at this time, in milliseconds since the epoch.

    Raises:
        InvalidConfigError: A limit is not valid.
        StorageError: A chain cannot be written; raised after the other chains are done.
    """
    view = chains.view()
    command = Expire(
        check_milliseconds("producer_ids", producer_ids),
        check_milliseconds("transactional_ids", transactional_ids),
        check_milliseconds("offsets", offsets),
    )
    return _expire_in_chains(chains, command, view.states, preview_at)


def expire_due(chains: Chains, now: int) -> ExpiryReport:
    """Remove state past Kafka's default limits in the chains where the cached state has any at ``now`` (ms).

    Makes no request if nothing has expired.
    """
    command = Expire()
    if not any(is_due(chain.state, command, now) for chain in chains):
        return ExpiryReport()
    return _expire_in_chains(chains, command, chains.view(refresh=()).states, due_at=now)


def _expire_in_chains(
    chains: Chains,
    command: Expire,
    states: Sequence[State],
    preview_at: int | None = None,
    due_at: int | None = None,
) -> ExpiryReport:
    """Expire what is old enough in all chains.

    What has expired lies before ``states``: all decisions that its markers follow are in them, too.

    Args:
        states: The states of a closed cut.
        preview_at: Change nothing; report what would be removed at this time, in ms.
        due_at: Only in the chains where something is due at this time, in ms; None: in all.
    """
    command = replace(command, decided=decided_producers(states))
    expired_by_chain = chains.concurrently(
        {
            state.chain: partial(_expire_in_chain, chains[state.chain], state, command, chains.ages, preview_at)
            for state in states
            if due_at is None or is_due(state, command, due_at)
        }
    )
    events = [event for expired in expired_by_chain.values() for event in expired]
    report = ExpiryReport(
        producers=sum(event.producers for event in events),
        transactional_ids=tuple(sorted(name for event in events for name in event.transactional_ids)),
        offsets=sum(event.offsets for event in events),
        groups=tuple(sorted(name for event in events for name in event.groups)),
    )
    if report != ExpiryReport() and preview_at is None:
        counts = {"producers": report.producers, "offsets": report.offsets, "groups": len(report.groups)}
        _LOG.info("expired", extra={**counts, "transactional_ids": len(report.transactional_ids)})
    return report


def _expire_in_chain(chain: Chain, state: State, command: Expire, ages: Ages, preview_at: int | None) -> list[Expired]:
    """Expire the old state of one chain, in as many entries as it takes; a preview changes nothing."""
    limits = command.producer_ms, command.transactional_id_ms, command.offsets_ms
    entry_by_limit = {limit: ages.newest_older_than(state, limit) for limit in sorted(set(limits))}
    producers, ids, offsets = (entry_by_limit[limit] for limit in limits)
    command = replace(command, oldest=(producers, ids, offsets))
    if preview_at is not None:
        return [preview(state, command, preview_at)]
    expired: list[Expired] = []
    while not expired or expired[-1].more:
        expired.append(chain.submit(command))
    return expired
