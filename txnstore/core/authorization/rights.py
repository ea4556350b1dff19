"""The rights that each command needs: one table, which ``decide`` asks, and early each client.

A command that needs several rights is refused as a whole if one is missing. What a command leads to by itself needs no
right of its own: markers, completions, fences, copies of topics, the abort of a transaction past its timeout. Any
process may do it, and no process can decide otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from txnstore.core.authorization.model import (
    ANONYMOUS,
    CLUSTER,
    WORDS,
    ChangeAcls,
    ChangeAuthorization,
    FollowAuthorization,
    Operation,
    ResourceType,
)
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.commands import Command
from txnstore.core.expiration import Expire
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    StoreGeneration,
    TxnOffsets,
)
from txnstore.core.log.commands import Append, DeleteRecords
from txnstore.core.maintenance import DropObjects, ForgetEntries, ForgetObjects, ReplaceRuns, ReplaceSegments
from txnstore.core.model import ProducerIdentity
from txnstore.core.transactions.commands import (
    AbortTxn,
    CompleteTxn,
    EndTxn,
    FenceProducer,
    InitProducer,
    PrepareTxn,
    WriteMarkers,
)
from txnstore.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)


class Right(NamedTuple):
    """A right that a command needs.

    Attributes:
        operation: The operation.
        resource_type: On resources of this type.
        names: The names of the resources.
        or_else: Another operation, resource type and name that serves as well; a name of None: any resource.
    """

    operation: Operation
    resource_type: ResourceType
    names: Collection[str]
    or_else: tuple[Operation, ResourceType, str | None] | None = None


_ERRORS: Mapping[ResourceType, type[AuthorizationError]] = {
    "TOPIC": TopicAuthorizationError,
    "GROUP": GroupAuthorizationError,
    "TRANSACTIONAL_ID": TransactionalIdAuthorizationError,
    "CLUSTER": ClusterAuthorizationError,
}

#: The right to maintain the store: compaction, vacuum, expiration, checkpoints.
CLUSTER_ACTION = Right("CLUSTER_ACTION", "CLUSTER", (CLUSTER,))
#: The right to change the rules.
ALTER_CLUSTER = Right("ALTER", "CLUSTER", (CLUSTER,))
_OR_CLUSTER_ACTION: tuple[Operation, ResourceType, str | None] = "CLUSTER_ACTION", "CLUSTER", CLUSTER


def check_command(authorization: Authorization, principal: str, command: Command, topic: CatalogTopic | None) -> None:
    """Check that a principal has all rights that a command needs.

    Args:
        authorization: The authorization of the store.
        principal: Who asks for the command.
        command: The command.
        topic: The topic that an :class:`AlterTopic` changes, as it is; None: there is none.

    Raises:
        AuthorizationError: It lacks one; names all resources of the first kind of right that is missing.
    """
    if authorization.mode != "off":
        check_rights(authorization, principal, rights_of(command, topic))


def check_rights(authorization: Authorization, principal: str, rights: Iterable[Right]) -> None:
    """Check rights.

    Raises:
        AuthorizationError: As for :func:`check_command`.
    """
    if authorization.mode == "off":
        return
    allows = authorization.allows
    for right in rights:
        operation, kind, names, or_else = right
        refused = [name for name in names if not allows(principal, operation, kind, name)]
        if refused and not (or_else is not None and allows(principal, *or_else)):
            raise refusal(principal, right._replace(names=refused))


def refusal(principal: str, right: Right) -> AuthorizationError:
    """The error for a right that a principal does not have."""
    names = tuple(sorted(set(right.names)))
    word = WORDS[right.resource_type]
    if right.resource_type == "CLUSTER":
        what = "the cluster"
    else:
        what = f"{word}{'s' if len(names) > 1 else ''} {', '.join(repr(name) for name in names)}"
    msg = f"{principal} has no right to {right.operation} on {what}"
    if right.or_else is not None:
        operation, kind, _ = right.or_else
        msg += f", nor to {operation} on {'the cluster' if kind == 'CLUSTER' else f'any {WORDS[kind]}'}"
    if principal == ANONYMOUS:
        msg += ". No principal is given: give one (--principal), or set TXNSTORE_PRINCIPAL"
    return _ERRORS[right.resource_type](msg, principal, right.operation, names)


def rights_of(command: Command, topic: CatalogTopic | None = None) -> list[Right]:
    """The rights that a command needs, in the order in which Kafka's broker checks them."""
    if isinstance(command, AlterTopic):
        return _of_alter_topic(command, topic)
    return _RIGHTS[type(command)](command)


# The rows of the table ------------------------------------------------------------------------------------------------


def _of_init(command: InitProducer) -> list[Right]:
    """A producer without an id may also have the right to write some topic (KIP-679)."""
    if command.transactional_id is None:
        return [Right("IDEMPOTENT_WRITE", "CLUSTER", (CLUSTER,), or_else=("WRITE", "TOPIC", None))]
    rights = [Right("WRITE", "TRANSACTIONAL_ID", (command.transactional_id,))]
    if command.two_phase:
        rights.append(Right("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", (command.transactional_id,)))
    return rights


def _of_append(command: Append) -> list[Right]:
    rights = _of_producer(command.producer)
    if command.groups or command.offsets:
        rights.append(_right("READ", "GROUP", *{*command.groups, *(offsets.group for offsets in command.offsets)}))
    topics = {batch.topic for batch in command.batches}
    if command.partitions:
        topics.update(tp.topic for tp in command.partitions)
    if topics:
        rights.append(_right("WRITE", "TOPIC", *topics))
    return rights + _of_offset_topics(command.offsets) if command.offsets else rights


def _of_end(command: EndTxn) -> list[Right]:
    """The partitions and groups that are in the transaction already were checked when they were added."""
    return _of_append(Append(command.producer, command.batches, command.offsets))


def _of_prepare(command: PrepareTxn) -> list[Right]:
    """In other chains than the coordinator's, which has prepared the transaction, it follows from that."""
    return _of_producer(command.producer) if command.after is None else []


def _of_abort(command: AbortTxn) -> list[Right]:
    """Any process that finds that the timeout has passed may abort (TMO-01); else its owner, or an operator."""
    if command.expired_only:
        return []
    return [Right("WRITE", "TRANSACTIONAL_ID", (command.transactional_id,), or_else=_OR_CLUSTER_ACTION)]


def _of_offsets(command: CommitOffsets | ResetOffsets) -> list[Right]:
    return [Right("READ", "GROUP", (command.offsets.group,)), *_of_offset_topics((command.offsets,))]


def _of_member(command: JoinGroup | Heartbeat | LeaveGroup) -> list[Right]:
    return [Right("READ", "GROUP", (command.group,))]


def _of_leave(command: LeaveGroup) -> list[Right]:
    """A command without a member is of a gateway, which asks for itself when sessions have timed out."""
    names_member = bool(command.member_id) or command.instance_id is not None
    return _of_member(command) if names_member else [_of_gateway(command.group)]


def _of_gateway(group: str) -> Right:
    return Right("READ", "GROUP", (group,), or_else=_OR_CLUSTER_ACTION)


def _of_delete_group(command: DeleteGroup) -> list[Right]:
    return [Right("DELETE", "GROUP", (command.group,))]


def _of_store_generation(command: StoreGeneration) -> list[Right]:
    """A gateway asks for a member, or for itself, when the session of the last member has timed out."""
    return [_of_gateway(command.group)]


def _of_delete_offsets(command: DeleteOffsets) -> list[Right]:
    topics = tuple(dict.fromkeys(tp.topic for tp in command.partitions))
    return [Right("DELETE", "GROUP", (command.group,)), *([Right("READ", "TOPIC", topics)] if topics else [])]


def _of_create_topic(command: CreateTopic) -> list[Right]:
    return [Right("CREATE", "TOPIC", (command.topic.name,), or_else=("CREATE", "CLUSTER", CLUSTER))]


def _of_alter_topic(command: AlterTopic, before: CatalogTopic | None) -> list[Right]:
    """Settings need another right than partitions and columns, as with Kafka's AlterConfigs and CreatePartitions."""
    after = command.topic
    rights = []
    if before is None or replace(before, config=after.config, version=after.version, revision=after.revision) != after:
        rights.append(Right("ALTER", "TOPIC", (after.name,)))
    if before is None or before.config != after.config:
        rights.append(Right("ALTER_CONFIGS", "TOPIC", (after.name,)))
    return rights


def _of_delete_topic(command: DeleteTopic | CloseTopic) -> list[Right]:
    """Other chains close a topic before chain 0 deletes it, so both need the right: nothing is half done."""
    return [Right("DELETE", "TOPIC", (command.name,))]


def _of_delete_records(command: DeleteRecords) -> list[Right]:
    return [delete_records_of(item.tp.topic for item in command.deletions)]


def _of_maintenance(_: Command) -> list[Right]:
    return [CLUSTER_ACTION]


def _of_authorization(_: Command) -> list[Right]:
    return [ALTER_CLUSTER]


def _none(_: Command) -> list[Right]:
    """What other commands lead to: any process may do it, and it decides nothing."""
    return []


# Rights that clients check before they ask ----------------------------------------------------------------------------


def write_topics(topics: Iterable[str]) -> Right:
    """The right to write to these topics."""
    return Right("WRITE", "TOPIC", tuple(dict.fromkeys(topics)))


def write_id(transactional_id: str) -> Right:
    """The right to write as a transactional id."""
    return Right("WRITE", "TRANSACTIONAL_ID", (transactional_id,))


def read_topics(topics: Iterable[str]) -> Right:
    """The right to read these topics."""
    return Right("READ", "TOPIC", tuple(dict.fromkeys(topics)))


def delete_records_of(topics: Iterable[str]) -> Right:
    """The right to delete records of these topics."""
    return Right("DELETE", "TOPIC", tuple(dict.fromkeys(topics)), or_else=_OR_CLUSTER_ACTION)


def read_group(group: str) -> Right:
    """The right to be a member of a group, and to commit its offsets."""
    return Right("READ", "GROUP", (group,))


def _of_producer(producer: ProducerIdentity) -> list[Right]:
    if producer.transactional_id is None:
        return []
    return [_right("WRITE", "TRANSACTIONAL_ID", producer.transactional_id)]


def _of_offset_topics(offsets: Iterable[TxnOffsets]) -> list[Right]:
    topics = {offset.topic for item in offsets for offset in item.offsets}
    return [_right("READ", "TOPIC", *topics)] if topics else []


@lru_cache(maxsize=2**12)
def _right(operation: Operation, resource_type: ResourceType, *names: str) -> Right:
    """The same right for equal arguments: a producer needs the same ones for each commit."""
    return Right(operation, resource_type, names)


_RIGHTS: dict[type, Callable[[Any], list[Right]]] = {
    InitProducer: _of_init,
    Append: _of_append,
    EndTxn: _of_end,
    PrepareTxn: _of_prepare,
    AbortTxn: _of_abort,
    FenceProducer: _none,
    WriteMarkers: _none,
    CompleteTxn: _none,
    CommitOffsets: _of_offsets,
    ResetOffsets: _of_offsets,
    JoinGroup: _of_member,
    Heartbeat: _of_member,
    LeaveGroup: _of_leave,
    DeleteGroup: _of_delete_group,
    StoreGeneration: _of_store_generation,
    DeleteOffsets: _of_delete_offsets,
    CreateTopic: _of_create_topic,
    DeleteTopic: _of_delete_topic,
    CloseTopic: _of_delete_topic,
    CopyTopic: _none,
    DeleteRecords: _of_delete_records,
    ReplaceSegments: _of_maintenance,
    ReplaceRuns: _of_maintenance,
    DropObjects: _of_maintenance,
    ForgetObjects: _of_maintenance,
    ForgetEntries: _of_maintenance,
    Expire: _of_maintenance,
    ChangeAuthorization: _of_authorization,
    ChangeAcls: _of_authorization,
    FollowAuthorization: _none,
}
