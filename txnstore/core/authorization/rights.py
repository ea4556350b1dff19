"""The rights that commands and clients need.

A command that needs several rights is refused as a whole if one is missing. Its rights stand beside its rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from txnstore.core.authorization.model import ANONYMOUS, CLUSTER, WORDS, Operation, ResourceType
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Command, ProducerIdentity
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
OR_CLUSTER_ACTION: tuple[Operation, ResourceType, str | None] = "CLUSTER_ACTION", "CLUSTER", CLUSTER


def check_rights(authorization: Authorization, principal: str, rights: Iterable[Right]) -> None:
    """Check rights.

    Raises:
        AuthorizationError: The principal lacks one; names all resources of the first kind of right that is missing.
    """
    if authorization.mode == "off":
        return
    allows = authorization.allows
    for right in rights:
        operation, kind, names, or_else = right
        refused_names = [name for name in names if not allows(principal, operation, kind, name)]
        if refused_names and not (or_else is not None and allows(principal, *or_else)):
            raise refusal(principal, right._replace(names=refused_names))


def refusal(principal: str, right: Right) -> AuthorizationError:
    """Return the error for a right that a principal does not have."""
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


# Rights of commands ---------------------------------------------------------------------------------------------------


class HasGroup(Protocol):
    """A command of a group."""

    @property
    def group(self) -> str: ...


def no_right(_: Command, __: object) -> list[Right]:
    """The rights of commands that follow from others: none, as any process may run them, and they decide nothing."""
    return []


def maintains(_: Command, __: object) -> list[Right]:
    """The right to maintain the store."""
    return [CLUSTER_ACTION]


def alters_cluster(_: Command, __: object) -> list[Right]:
    """The right to change the rules."""
    return [ALTER_CLUSTER]


def reads_group(command: HasGroup, _: object) -> list[Right]:
    """The right to be a member of the group."""
    return [read_group(command.group)]


def reads_group_or_maintains(command: HasGroup, _: object) -> list[Right]:
    """The right of a member, or of a gateway that asks for itself when the session of a member has timed out."""
    return [Right("READ", "GROUP", (command.group,), or_else=OR_CLUSTER_ACTION)]


def writes_id(producer: ProducerIdentity) -> list[Right]:
    """The rights to write as the producer."""
    if producer.transactional_id is None:
        return []
    return [right_to("WRITE", "TRANSACTIONAL_ID", producer.transactional_id)]


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
    return Right("DELETE", "TOPIC", tuple(dict.fromkeys(topics)), or_else=OR_CLUSTER_ACTION)


def erase_records_of(topics: Iterable[str]) -> list[Right]:
    """The rights to erase records of these topics: who maintains the store may not, unless they may also delete."""
    return [Right("DELETE", "TOPIC", tuple(dict.fromkeys(topics))), CLUSTER_ACTION]


def read_group(group: str) -> Right:
    """The right to be a member of a group, and to commit its offsets."""
    return Right("READ", "GROUP", (group,))


@lru_cache(maxsize=2**12)
def right_to(operation: Operation, resource_type: ResourceType, *names: str) -> Right:
    """Return a right, the same object for equal arguments: a producer needs the same ones for each commit."""
    return Right(operation, resource_type, names)
