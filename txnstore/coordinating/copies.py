"""The copies of the catalog that the other chains keep: chain 0 decides, whoever needs a copy makes it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from txnstore.chain.chains import Chains
from txnstore.core.commands import CopyTopic
from txnstore.core.model import State, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_partition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError

_LOG = logging.getLogger(__name__)


def copy_topics(chains: Chains, number: int, topics: Iterable[str]) -> bool:
    """Tell a chain what the catalog says of these topics; whether that was news. One GET, a PUT for news."""
    if number == CATALOG:
        return False
    catalog = chains[CATALOG].refresh()
    return _tell(chains, catalog, number, topics)


def copy_everywhere(chains: Chains, name: str) -> None:
    """Tell all chains that it concerns of a change that was just made.

    A chain that cannot be written is told by whoever needs the topic there: the catalog has decided already.
    """
    catalog = chains[CATALOG].state
    numbers = {chain.number for chain in chains if name in chain.state.topics}
    topic = catalog.topics.get(name)
    if topic is not None:
        numbers |= {chain_of_partition(TopicPartition(name, place), len(chains)) for place in range(topic.partitions)}
    _, errors = chains.try_at_once(
        {number: partial(_tell, chains, catalog, number, [name]) for number in numbers - {CATALOG}}
    )
    for number, error in errors.items():
        if not isinstance(error, TxnStoreError):
            raise error
        _LOG.warning("topic not copied yet", extra={"topic": name, "chain": number, "error": str(error)})


def has_stale_copies(view: View) -> bool:
    """Whether a chain knows a topic otherwise than the catalog, as far as a view tells."""
    return any(
        (topic := view.topics.get(name)) is None or copy.revision < topic.revision
        for state in view.states[1:]
        for name, copy in state.topics.items()
    )


def copy_all(chains: Chains) -> int:
    """Bring all copies up to date; how many were not."""
    catalog = chains[CATALOG].refresh()
    return sum(
        _tell(chains, catalog, chain.number, sorted(set(chain.refresh().topics)))
        for chain in chains
        if chain.number != CATALOG
    )


def _tell(chains: Chains, catalog: State, number: int, topics: Iterable[str]) -> bool:
    news = False
    for name in topics:
        topic, copy = catalog.topics.get(name), chains[number].state.topics.get(name)
        if topic is None and copy is not None:
            chains[number].submit(CopyTopic(name, None, catalog.sequence))
            news = True
        elif topic is not None and (copy is None or copy.revision < topic.revision):
            chains[number].submit(CopyTopic(name, topic, topic.revision))
            news = True
    return news
