"""The rules of the catalog, and the folding of its events."""

from __future__ import annotations

from dataclasses import replace

from txnstore.core.authorization.model import CLUSTER
from txnstore.core.authorization.rights import Right, no_right
from txnstore.core.catalog.model import (
    AlterTopic,
    CatalogTopic,
    CloseTopic,
    CopyTopic,
    CreateTopic,
    DeleteTopic,
    TopicAltered,
    TopicClosed,
    TopicCreated,
    TopicDeleted,
    folded_name,
)
from txnstore.core.declaration import command
from txnstore.core.groups.model import CommittedOffset, Group
from txnstore.core.log.model import Partition
from txnstore.core.log.released import with_removed
from txnstore.core.model import Map, TopicPartition, items_of
from txnstore.core.routing import CATALOG, chain_of_partition
from txnstore.core.state import Draft, State, fold, observe
from txnstore.errors import (
    InvalidConfigError,
    InvalidTopicError,
    TopicChangedError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)


def creates_topic(command: CreateTopic, _: State) -> list[Right]:
    """The right to create the topic, or any topic."""
    return [Right("CREATE", "TOPIC", (command.topic.name,), or_else=("CREATE", "CLUSTER", CLUSTER))]


def alters_topic(command: AlterTopic, state: State) -> list[Right]:
    """The rights to alter the topic: settings and partitions need different ones (AlterConfigs, CreatePartitions)."""
    before, after = state.topics.get(command.topic.name), command.topic
    rights = []
    if before is None or replace(before, config=after.config, version=after.version, revision=after.revision) != after:
        rights.append(Right("ALTER", "TOPIC", (after.name,)))
    if before is None or before.config != after.config:
        rights.append(Right("ALTER_CONFIGS", "TOPIC", (after.name,)))
    return rights


def deletes_topic(command: DeleteTopic | CloseTopic, _: State) -> list[Right]:
    """The right to delete the topic: closing it needs the same right, so that no deletion stops half way."""
    return [Right("DELETE", "TOPIC", (command.name,))]


@command(CreateTopic, route=None, right=creates_topic)
def create_topic(draft: Draft, command: CreateTopic) -> CatalogTopic:
    """Create a topic; its name must be free, and differ from the others in more than ``.``, ``_`` and case."""
    topic = command.topic
    if topic.name in draft.state.topics:
        msg = f"topic {topic.name!r} exists already"
        raise TopicExistsError(msg)
    other_name = _colliding_topic(draft.state, topic.name)
    if other_name is not None:
        same_case = topic.name.replace(".", "_") == other_name.replace(".", "_")
        msg = f"topic {topic.name!r} collides with topic {other_name!r}: " + (
            "names must differ in more than '.' and '_', as in Kafka; choose another one"
            if same_case
            else "names must differ in more than upper and lower case, which SQL and some file systems ignore; choose "
            "another one"
        )
        raise InvalidTopicError(msg)
    if topic.partitions < 1:
        msg = f"partitions of topic {topic.name!r} must be at least 1, not {topic.partitions}"
        raise InvalidConfigError(msg)
    topic = replace(topic, revision=draft.state.sequence)
    draft.emit(TopicCreated(topic=topic))
    return topic


@command(AlterTopic, route=None, right=alters_topic)
def alter_topic(draft: Draft, command: AlterTopic) -> CatalogTopic:
    """Change a topic of the expected version; partitions can only be added. Emits nothing without a change."""
    topic = command.topic
    current_topic = _require_topic(draft.state, command.topic.name)
    if current_topic.version != command.expected_version or current_topic.topic_id != topic.topic_id:
        msg = f"topic {topic.name!r} was changed concurrently: read it again and repeat the change"
        raise TopicChangedError(msg)
    if topic.partitions < current_topic.partitions:
        msg = (
            f"topic {topic.name!r} has {current_topic.partitions} partitions; partitions can be added, not removed "
            f"({topic.partitions} were asked for)"
        )
        raise InvalidConfigError(msg)
    if replace(topic, version=current_topic.version, revision=current_topic.revision) == current_topic:
        return current_topic
    topic = replace(topic, revision=draft.state.sequence)
    draft.emit(TopicAltered(topic=topic))
    return topic


@command(DeleteTopic, route=None, right=deletes_topic)
def delete_topic(draft: Draft, command: DeleteTopic) -> None:
    """Delete a topic, after the other chains that lead its partitions have closed it."""
    topic = _require_topic(draft.state, command.name)
    if command.revision not in {None, topic.revision}:
        msg = f"topic {topic.name!r} was changed concurrently with its deletion"
        raise TopicChangedError(msg)
    observe(draft, command.after)
    draft.emit(TopicDeleted(name=topic.name, topic_id=topic.topic_id, revision=draft.state.sequence))


@command(CopyTopic, route=None, right=no_right)
def copy_topic(draft: Draft, command: CopyTopic) -> None:
    """Make this chain's copy of a topic that of the catalog, in whose entry ``revision`` it was changed or deleted.

    A revision that is not newer than the copy's changes nothing: copies may arrive in any order.
    """
    copy, topic = draft.state.topics.get(command.name), command.topic
    if command.revision <= _newest_revision(draft.state, command.name):
        return
    observe(draft, ((CATALOG, command.revision),))
    if copy is None and topic is None:
        draft.emit(TopicClosed(name=command.name, revision=command.revision))
    if copy is not None and (topic is None or topic.topic_id != copy.topic_id):
        draft.emit(TopicDeleted(name=copy.name, topic_id=copy.topic_id, revision=command.revision))
        copy = None
    if topic is not None:
        draft.emit(TopicCreated(topic=topic) if copy is None else TopicAltered(topic=topic))


@command(CloseTopic, route=None, right=deletes_topic)
def close_topic(draft: Draft, command: CloseTopic) -> None:
    """Close a topic in this chain: it takes no records from this entry on, so the catalog can delete it."""
    copy, closed_revision = draft.state.topics.get(command.name), draft.state.deleted.get(command.name, 0)
    if command.revision <= closed_revision or (copy is not None and copy.revision > command.revision):
        return
    observe(draft, ((CATALOG, command.revision),))
    draft.emit(TopicClosed(name=command.name, revision=command.revision))


def _newest_revision(state: State, name: str) -> int:
    """Return the newest revision of a topic that this chain knows, closed ones included; 0 for none."""
    copy = state.topics.get(name)
    return max(copy.revision if copy is not None else 0, state.deleted.get(name, 0))


def _colliding_topic(state: State, name: str) -> str | None:
    """Return the topic that has the same :func:`folded_name`; None if there is none."""
    return next(iter(state.alike.get(folded_name(name), ())), None)


def _require_topic(state: State, name: str) -> CatalogTopic:
    topic = state.topics.get(name)
    if topic is None:
        msg = f"there is no topic {name!r}"
        raise UnknownTopicOrPartitionError(msg)
    return topic


@fold(TopicCreated)
def _topic_created(state: State, event: TopicCreated) -> State:
    return _with_partitions(state, event.topic.name, 0, event.topic.partitions, event)


@fold(TopicAltered)
def _topic_altered(state: State, event: TopicAltered) -> State:
    partitions_before = state.topics[event.topic.name].partitions
    return _with_partitions(state, event.topic.name, partitions_before, event.topic.partitions, event)


def _with_partitions(
    state: State,
    name: str,
    first_number: int,
    limit: int,
    event: TopicCreated | TopicAltered,
) -> State:
    """Add a topic, and its partitions from ``first_number`` to ``limit`` that this chain leads."""
    partitions = state.partitions
    for number in range(first_number, limit):
        tp = TopicPartition(name, number)
        if chain_of_partition(tp, state.chains) == state.chain:
            partitions = partitions.insert(tp, Partition(revision=state.sequence))
    return replace(
        state,
        topics=state.topics.insert(name, event.topic),
        alike=_with_name(state.alike, name),
        partitions=partitions,
        deleted=state.deleted.discard(name),
    )


def _with_name(alike: Map[str, tuple[str, ...]], name: str) -> Map[str, tuple[str, ...]]:
    form = folded_name(name)
    return alike.insert(form, tuple(sorted({*alike.get(form, ()), name})))


def _without_name(alike: Map[str, tuple[str, ...]], name: str) -> Map[str, tuple[str, ...]]:
    form = folded_name(name)
    others = tuple(other for other in alike.get(form, ()) if other != name)
    return alike.insert(form, others) if others else alike.discard(form)


@fold(TopicClosed)
def _topic_closed(state: State, event: TopicClosed) -> State:
    """Close a topic; its records can be read, and its transactions ended, until the catalog has deleted it."""
    return replace(state, deleted=state.deleted.insert(event.name, event.revision))


@fold(TopicDeleted)
def _topic_deleted(state: State, event: TopicDeleted) -> State:
    """Delete a topic with its partitions, also from open transactions and from groups (OFF-18, END-07).

    From a transaction only the partitions that this chain leads are removed. Another chain may still have data of the
    transaction, or a new topic of this name in which the transaction takes part: the end of the transaction sends a
    marker there, and that chain decides whether it needs one.
    """
    topic = state.topics[event.name]
    all_partitions = {TopicPartition(event.name, number) for number in range(topic.partitions)}
    led_partitions = {tp for tp in all_partitions if tp in state.partitions}
    deleted_revisions = state.deleted if state.chain == CATALOG else state.deleted.insert(event.name, event.revision)
    partitions = state.partitions
    for tp in sorted(led_partitions):
        state = with_removed(state, partitions[tp].batches)
        partitions = partitions.remove(tp)
    transactions = state.transactions
    for txn_id, txn in items_of(state.transactions):
        if txn.partitions & led_partitions:
            transactions = transactions.insert(txn_id, replace(txn, partitions=txn.partitions - led_partitions))
    groups = state.groups
    for name, group in items_of(state.groups):
        groups = groups.insert(name, _without_offsets(group, all_partitions, event.topic_id))
    return replace(
        state,
        topics=state.topics.remove(event.name),
        alike=_without_name(state.alike, event.name),
        partitions=partitions,
        transactions=transactions,
        groups=groups,
        deleted=deleted_revisions,
    )


def _without_offsets(group: Group, deleted_tps: set[TopicPartition], topic_id: str) -> Group:
    pending = group.pending
    for producer_id, values in group.pending.items():
        pending = pending.insert(producer_id, _without_topic(values, deleted_tps, topic_id))
    return replace(group, offsets=_without_topic(group.offsets, deleted_tps, topic_id), pending=pending)


def _without_topic(
    offsets: Map[TopicPartition, CommittedOffset], deleted_tps: set[TopicPartition], topic_id: str
) -> Map[TopicPartition, CommittedOffset]:
    """Return the offsets without those of the deleted topic; offsets of a new topic of its name stay."""
    for tp in deleted_tps:
        offset = offsets.get(tp)
        if offset is not None and offset.topic_id in (None, topic_id):
            offsets = offsets.remove(tp)
    return offsets
