"""The copies of the catalog that the other chains keep: chain 0 decides, whoever needs a copy makes it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from txnstore.chain.chains import Chains
from txnstore.core.catalog.model import CloseTopic, CopyTopic, DeleteTopic, Topic
from txnstore.core.commands import Command
from txnstore.core.routes import leaders_of, topics_of
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import (
    StorageError,
    TopicChangedError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)

_LOG = logging.getLogger(__name__)


def submit_told(chains: Chains, number: int, command: Command) -> Any:
    """Submit to one chain; if it does not know a topic yet that the catalog has, it is told first."""
    try:
        return chains[number].submit(command)
    except UnknownTopicOrPartitionError:
        if not copy_topics(chains, number, topics_of(command, number, len(chains))):
            raise
    return chains[number].submit(command)


def copy_topics(chains: Chains, number: int, topics: Iterable[str]) -> bool:
    """Tell a chain what the catalog says of these topics; whether that was news. One GET, a PUT for news."""
    if number == CATALOG:
        return False
    catalog = chains[CATALOG].refresh()
    return _tell(chains, catalog, number, topics)


def copy_everywhere(chains: Chains, topic: Topic, *, deleted: bool = False) -> None:
    """Tell all chains that lead a partition of a topic of a change that was just made.

    A chain that cannot be written is told by whoever needs the topic there: the catalog has decided already, and takes
    nothing back. A deleted topic was closed there before (:func:`delete_topic`).
    """
    catalog = chains[CATALOG].state
    work = {
        number: partial(_tell, chains, catalog, number, [topic.name], deleted=deleted)
        for number in leaders_of(topic, len(chains)) - {CATALOG}
    }
    _, errors = chains.try_at_once(work)
    for number, error in errors.items():
        if not isinstance(error, TxnStoreError):
            raise error
        _LOG.warning("topic not copied yet", extra={"topic": topic.name, "chain": number, "error": str(error)})


def delete_topic(chains: Chains, command: DeleteTopic) -> None:
    """Delete a topic: close it in all chains that lead partitions of it, delete it in the catalog, tell the chains.

    No chain takes a record after the catalog has deleted the topic. A chain that cannot be closed fails the deletion:
    the topic exists, and takes no records in the chains that are closed, until the deletion is repeated (also by
    :func:`finish_deletions`) or the topic is altered. One chain: one entry.
    """
    catalog = chains[CATALOG]
    if len(chains) == 1:
        catalog.submit(command)
        return
    topic = first = catalog.refresh().topics.get(command.name)
    if first is None:
        msg = f"there is no topic {command.name!r}"
        raise UnknownTopicOrPartitionError(msg)
    while topic is not None and topic.topic_id == first.topic_id:
        if command.revision not in {None, topic.revision}:
            msg = f"topic {topic.name!r} was changed by somebody else while it was deleted"
            raise TopicChangedError(msg)
        try:
            _delete(chains, topic)
        except TopicChangedError:
            topic = catalog.refresh().topics.get(command.name)
        except UnknownTopicOrPartitionError:
            return  # Somebody else has deleted it since.
        else:
            copy_everywhere(chains, topic, deleted=True)
            return


def _delete(chains: Chains, topic: Topic) -> None:
    """Close a topic in the other chains that lead partitions of it, then delete this revision in the catalog."""
    close = CloseTopic(topic.name, topic.revision)
    others = leaders_of(topic, len(chains)) - {CATALOG}
    closed, errors = chains.try_at_once({number: partial(chains[number].submit, close) for number in others})
    for number in sorted(errors):
        raise left_unknown(errors[number], happened=bool(closed)) from errors[number]
    after = tuple((number, chains[number].state.sequence) for number in sorted(others))
    try:
        chains[CATALOG].submit(DeleteTopic(topic.name, topic.revision, after))
    except StorageError as error:
        raise left_unknown(error, happened=bool(closed)) from error


def half_deleted(view: View) -> list[Topic]:
    """Topics that the catalog has, and that a chain has closed for a deletion: nobody knows whether it goes on."""
    return [
        topic
        for topic in view.sorted_topics()
        if any(state.is_closed(topic) for state in view.states if state.chain != CATALOG)
    ]


def finish_deletions(chains: Chains, view: View) -> int:
    """Delete the topics whose deletion was begun and not ended; how many there were."""
    found = half_deleted(view)
    for topic in found:
        try:
            delete_topic(chains, DeleteTopic(topic.name, topic.revision))
        except (TopicChangedError, UnknownTopicOrPartitionError):
            _LOG.info("a deletion was overtaken", extra={"topic": topic.name})
    return len(found)


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


def _tell(chains: Chains, catalog: State, number: int, topics: Iterable[str], *, deleted: bool = False) -> bool:
    """``deleted``: the chain may have heard of the topics, whatever this process has seen of it."""
    news = False
    for name in topics:
        topic, copy = catalog.topics.get(name), chains[number].state.topics.get(name)
        if topic is None and (deleted or copy is not None):
            chains[number].submit(CopyTopic(name, None, catalog.sequence))
            news = True
        elif topic is not None and (copy is None or copy.revision < topic.revision):
            chains[number].submit(CopyTopic(name, topic, topic.revision))
            news = True
    return news


def left_unknown(error: Exception, *, happened: bool) -> Exception:
    """The error to raise if a storage failed in the middle: *nothing happened* would not be true any more."""
    if not happened or not isinstance(error, StorageError) or isinstance(error, UnknownOutcomeError):
        return error
    return UnknownOutcomeError(f"a part of it is written, the rest is not: {error}")
