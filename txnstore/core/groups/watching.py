"""The members of groups whose leases are over, added to the commands that depend on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from txnstore.core.commands import Command
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    TxnOffsets,
    Watched,
)
from txnstore.core.log.commands import Append
from txnstore.core.transactions.commands import EndTxn


def with_expired(command: Command, expired: Callable[[str], Watched]) -> Command:
    """The command with the members whose leases are over, if it depends on them.

    Args:
        command: A command.
        expired: Returns the members of a group whose leases are over, as the caller has measured.
    """
    match command:
        case JoinGroup() | Heartbeat() | LeaveGroup() | DeleteGroup():
            found = expired(command.group)
            return replace(command, expired=found) if found else command
        case CommitOffsets() | ResetOffsets():
            return replace(command, offsets=_watched(command.offsets, expired))
        case Append() | EndTxn():
            # Without a membership, or with a generation, offsets in a transaction do not depend on who else is alive.
            if all(item.generation >= 0 or not (item.member_id or item.instance_id) for item in command.offsets):
                return command
            return replace(command, offsets=tuple(_watched(item, expired) for item in command.offsets))
    return command


def _watched(offsets: TxnOffsets, expired: Callable[[str], Watched]) -> TxnOffsets:
    found = expired(offsets.group)
    return replace(offsets, expired=found) if found else offsets
