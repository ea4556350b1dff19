"""The copies of the catalog in the other chains: chain 0 decides; a process that needs a copy makes it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from txnstore.chain.chains import Chains
from txnstore.core.catalog.model import CatalogTopic, CloseTopic, CopyTopic, DeleteTopic
from txnstore.core.commands import topics_of
from txnstore.core.model import Command, items_of
from txnstore.core.routes import leaders_of
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import (
    AuthorizationError,
    StorageError,
    TopicAuthorizationError,
    TopicChangedError,
    TxnStoreError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)

_LOG = logging.getLogger(__name__)


def submit_copying_topics(chains: Chains, number: int, command: Command) -> Any:
    """Submit to one chain; if the chain lacks a topic of the catalog, copy the topic and submit again."""
    try:
        return chains[number].submit(command)
    except UnknownTopicOrPartitionError:
        if not copy_topics(chains, number, topics_of(command, number, len(chains))):
            raise
    return chains[number].submit(command)


def copy_topics(chains: Chains, number: int, topics: Iterable[str]) -> bool:
    """Update a chain's copies of these topics; return whether any was stale. One GET, and one PUT per stale copy."""
    if number == CATALOG:
        return False
    catalog = chains[CATALOG].refresh()
    return _update_copies(chains, catalog, number, topics)


def copy_everywhere(chains: Chains, topic: CatalogTopic, *, deleted: bool = False) -> list[TxnStoreError]:
    """Update the copies of a changed topic in all chains that lead a partition of it.

    The catalog has decided, so a chain that cannot be written is only logged: a process that needs the topic there
    updates the copy. A deleted topic is closed there already (:func:`delete_topic`).

    Returns:
        The errors of the chains that could not be written, by their numbers.
    """
    refusals: list[TxnStoreError] = []
    catalog = chains[CATALOG].state
    work = {
        number: partial(_update_copies, chains, catalog, number, [topic.name], deleted=deleted)
        for number in leaders_of(topic, len(chains)) - {CATALOG}
    }
    _, errors = chains.try_concurrently(work)
    for number, error in sorted(errors.items()):
        if not isinstance(error, TxnStoreError):
            raise error
        refusals.append(error)
        _LOG.warning(
            "topic not copied yet: %s", error, extra={"topic": topic.name, "chain": number, "error": str(error)}
        )
    return refusals


def delete_topic(chains: Chains, command: DeleteTopic) -> None:
    """Delete a topic: close it in all chains that lead its partitions, delete it in the catalog, delete the copies.

    No chain takes a record after the catalog has deleted the topic. If a chain cannot close it, the deletion fails: the
    topic exists, and takes no records in the chains that have closed it, until the deletion is repeated (also by
    :func:`finish_deletions`) or the topic is altered. With one chain it is one entry.

    Raises:
        UnknownTopicOrPartitionError: The topic does not exist.
        TopicChangedError: The topic does not have the revision of the command.
        TopicAuthorizationError: The principal has no right to delete it; no chain has closed it.
        UnknownOutcomeError: Some chains have closed the topic, and it may not be deleted.
    """
    catalog = chains[CATALOG]
    if len(chains) == 1:
        catalog.submit(command)
        return
    topic = deleted_topic = catalog.refresh().topics.get(command.name)
    if deleted_topic is None:
        catalog.make_durable(catalog.state.sequence)  # An earlier call may have had an unknown outcome.
        msg = f"there is no topic {command.name!r}"
        raise UnknownTopicOrPartitionError(msg)
    while topic is not None and topic.topic_id == deleted_topic.topic_id:
        if command.revision not in {None, topic.revision}:
            msg = f"topic {topic.name!r} was changed concurrently with its deletion"
            raise TopicChangedError(msg)
        try:
            _close_and_delete(chains, topic)
        except TopicChangedError:
            topic = catalog.refresh().topics.get(command.name)
        except UnknownTopicOrPartitionError:
            break
        else:
            copy_everywhere(chains, topic, deleted=True)
            return
    catalog.make_durable(catalog.state.sequence)  # Another process has deleted it.


def _close_and_delete(chains: Chains, topic: CatalogTopic) -> None:
    """Close a topic in the other chains that lead its partitions, then delete this revision in the catalog."""
    close = CloseTopic(topic.name, topic.revision)
    others = leaders_of(topic, len(chains)) - {CATALOG}
    work = {number: partial(chains[number].submit, close) for number in others}
    closed_chains, errors = chains.try_concurrently(work)
    for number in sorted(errors):
        raise unknown_if_partial(errors[number], happened=bool(closed_chains)) from errors[number]
    entries_after = tuple((number, chains[number].state.sequence) for number in sorted(others))
    try:
        chains[CATALOG].submit(DeleteTopic(topic.name, topic.revision, entries_after))
    except (StorageError, AuthorizationError) as error:
        raise unknown_if_partial(error, happened=bool(closed_chains)) from error


def half_deleted_topics(view: View) -> list[CatalogTopic]:
    """Return topics of the catalog that a chain has closed: their deletion has begun, and may be abandoned."""
    return [
        topic
        for topic in view.sorted_topics()
        if any(state.is_closed(topic) for state in view.states if state.chain != CATALOG)
    ]


def finish_deletions(chains: Chains, view: View) -> int:
    """Delete the topics whose deletion has begun, and that this process may delete; return their number."""
    deleted_topics = 0
    for topic in half_deleted_topics(view):
        try:
            delete_topic(chains, DeleteTopic(topic.name, topic.revision))
            deleted_topics += 1
        except (TopicChangedError, UnknownTopicOrPartitionError):
            _LOG.info("the topic of an abandoned deletion was changed or deleted", extra={"topic": topic.name})
        except TopicAuthorizationError as error:
            _LOG.warning("an abandoned deletion is left to others: %s", error, extra={"topic": topic.name})
    return deleted_topics


def has_stale_copies(view: View) -> bool:
    """Whether a chain of the view has a copy that is older than the catalog."""
    return any(
        (topic := view.topics.get(name)) is None or copy.revision < topic.revision
        for state in view.states[1:]
        for name, copy in items_of(state.topics)
    )


def copy_all(chains: Chains) -> int:
    """Update all copies; return the number of chains with stale ones."""
    catalog = chains[CATALOG].refresh()
    return sum(
        _update_copies(chains, catalog, chain.number, sorted(set(chain.refresh().topics)))
        for chain in chains
        if chain.number != CATALOG
    )


def _update_copies(
    chains: Chains, catalog: State, number: int, topics: Iterable[str], *, deleted: bool = False
) -> bool:
    """Update a chain's copies of topics; return whether any was stale.

    ``deleted``: the topics were just deleted; update the chain even if the cached state has no copy there.
    """
    was_stale = False
    for name in topics:
        topic, copy = catalog.topics.get(name), chains[number].state.topics.get(name)
        if topic is None and (deleted or copy is not None):
            chains[number].submit(CopyTopic(name, None, catalog.sequence))
            was_stale = True
        elif topic is not None and (copy is None or copy.revision < topic.revision):
            chains[number].submit(CopyTopic(name, topic, topic.revision))
            was_stale = True
    chains[number].make_durable(chains[number].state.sequence)  # Other processes may have made the others.
    return was_stale


def unknown_if_partial(error: Exception, *, happened: bool) -> Exception:
    """Return the error to raise: a storage error is an unknown outcome if a part of the command is stored.

    A :class:`StorageError` means that nothing was written, which is not true then; and so does a refusal for a right
    that was taken away between two parts.
    """
    if (
        not happened
        or not isinstance(error, StorageError | AuthorizationError)
        or isinstance(error, UnknownOutcomeError)
    ):
        return error
    return UnknownOutcomeError(f"a part of the command is stored, the rest is not: {error}")
