"""Dispatch of commands: ``decide(state, command) -> Decision``.

A refused command raises a class of :mod:`txnstore.errors` and changes nothing. An accepted command becomes events. Each
event is folded as soon as it is emitted, so that the second batch of a command is checked against the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txnstore.core import expiration
from txnstore.core.authorization.changes import change_acls, change_authorization, follow_authorization
from txnstore.core.authorization.model import ANONYMOUS, ChangeAcls, ChangeAuthorization, FollowAuthorization
from txnstore.core.authorization.rights import check_command
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import AlterTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.catalog.rules import alter_topic, close_topic, copy_topic, create_topic, delete_topic
from txnstore.core.commands import Command
from txnstore.core.events import Event
from txnstore.core.evolve import FOLDS
from txnstore.core.expiration import Expire
from txnstore.core.groups import membership as groups_membership
from txnstore.core.groups.classic import store_generation
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    StoreGeneration,
)
from txnstore.core.groups.offsets import commit_plain_offsets, delete_group, delete_offsets, reset_offsets
from txnstore.core.log.commands import Append, DeleteRecords
from txnstore.core.log.retention import delete_records
from txnstore.core.maintenance import (
    DropObjects,
    ForgetEntries,
    ForgetObjects,
    ReplaceRuns,
    ReplaceSegments,
    drop_objects,
    forget_entries,
    forget_objects,
    replace_runs,
    replace_segments,
)
from txnstore.core.state import Draft, State
from txnstore.core.transactions import init as transactions_init
from txnstore.core.transactions import rules as transactions_rules
from txnstore.core.transactions.commands import (
    AbortTxn,
    CompleteTxn,
    EndTxn,
    FenceProducer,
    InitProducer,
    PrepareTxn,
    WriteMarkers,
)
from txnstore.core.transactions.rules import complete_transaction, fence, write_markers
from txnstore.errors import AuthorizationError, TxnStoreError


@dataclass(frozen=True, slots=True)
class Decision:
    """An accepted command.

    Attributes:
        events: The events to store; empty if the command changes nothing.
        state: The state after the events.
        result: The answer to the command; each command documents its type.
    """

    events: tuple[Event, ...]
    state: State
    result: Any


def decide(
    state: State, command: Command, principal: str = ANONYMOUS, authorization: Authorization | None = None
) -> Decision:
    """Decide ``command``.

    Args:
        state: The state inside a new entry, from :func:`~txnstore.core.state.begin_entry`.
        command: The command.
        principal: Who asks for it.
        authorization: The authorization of the store, as far as it is known; None: that in the state, which is that of
            chain 0.

    Returns:
        The events, the state after them, and the answer.

    Raises:
        TxnStoreError: A subclass of it: the command is refused.
    """
    authorization = state.authorization if authorization is None else authorization
    if authorization.mode != "off":
        try:
            topic = state.topics.get(command.topic.name) if isinstance(command, AlterTopic) else None
            check_command(authorization, principal, command, topic)
        except AuthorizationError:
            repetition = _repetition(state, command, principal)
            if repetition is None:
                raise
            return repetition
    return _by_rule(state, command, principal)


def _by_rule(state: State, command: Command, principal: str) -> Decision:
    draft = Draft(state, FOLDS, principal)
    result = RULES[type(command)](draft, command)
    return Decision(tuple(draft.events), draft.state, result)


def _repetition(state: State, command: Command, principal: str) -> Decision | None:
    """The decision of a producer's command that an earlier attempt has committed; None if none has.

    The answer to that attempt was lost, and the producer has lost its right since. A refusal would mean that nothing
    was written.
    """
    if not isinstance(command, Append | EndTxn | PrepareTxn):
        return None
    try:
        decision = _by_rule(state, command, principal)
    except TxnStoreError:
        return None
    return None if decision.events else decision


#: The rule of each class of command: emits events into the draft and returns the answer.
RULES: dict[type, Callable[[Draft, Any], Any]] = {
    CreateTopic: create_topic,
    AlterTopic: alter_topic,
    DeleteTopic: delete_topic,
    InitProducer: transactions_init.init_producer,
    Append: transactions_rules.append,
    EndTxn: transactions_rules.end,
    PrepareTxn: transactions_rules.prepare,
    FenceProducer: fence,
    AbortTxn: transactions_rules.abort,
    WriteMarkers: write_markers,
    CompleteTxn: complete_transaction,
    CopyTopic: copy_topic,
    CloseTopic: close_topic,
    CommitOffsets: commit_plain_offsets,
    JoinGroup: groups_membership.join,
    Heartbeat: groups_membership.heartbeat,
    LeaveGroup: groups_membership.leave,
    ResetOffsets: reset_offsets,
    DeleteGroup: delete_group,
    StoreGeneration: store_generation,
    DeleteOffsets: delete_offsets,
    ReplaceSegments: replace_segments,
    ReplaceRuns: replace_runs,
    DeleteRecords: delete_records,
    DropObjects: drop_objects,
    ForgetObjects: forget_objects,
    ForgetEntries: forget_entries,
    Expire: expiration.expire,
    ChangeAuthorization: change_authorization,
    ChangeAcls: change_acls,
    FollowAuthorization: follow_authorization,
}
