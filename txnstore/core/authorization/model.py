"""Rules (ACLs), the commands that change them and how they are checked, and the events of these.

The words are Kafka's (KIP-11, KIP-290): a rule allows or denies a principal one operation on the resources of a type
whose name it gives, or begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txnstore.core.model import Command, value_class

Permission = Literal["ALLOW", "DENY"]
Operation = Literal[
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "TWO_PHASE_COMMIT",
]
ResourceType = Literal["TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"]
PatternType = Literal["LITERAL", "PREFIXED"]
#: ``off``: nothing is checked. ``declared``: each process names its principal, and checks its own commands.
Mode = Literal["off", "declared"]

#: The principal of a process that names none.
ANONYMOUS = "User:ANONYMOUS"
#: The principal of a rule for everyone.
EVERYONE = "User:*"
#: The name of a rule for all resources of a type.
ANY_NAME = "*"
#: The name of the only resource of the type CLUSTER.
CLUSTER = "kafka-cluster"

#: The operations of each type of resource, besides ALL; Kafka's ``AclEntry.supportedOperations``.
OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    "TOPIC": frozenset({"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}),
    "GROUP": frozenset({"READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}),
    "TRANSACTIONAL_ID": frozenset({"WRITE", "DESCRIBE", "TWO_PHASE_COMMIT"}),
    "CLUSTER": frozenset(
        {"CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"}
    ),
}


#: The word for a resource of each type in a sentence.
WORDS: dict[ResourceType, str] = {
    "TOPIC": "topic",
    "GROUP": "group",
    "TRANSACTIONAL_ID": "transactional id",
    "CLUSTER": "cluster",
}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """A rule: allows or denies a principal an operation on resources.

    Attributes:
        principal: ``User:`` and a name; ``User:*`` is everyone.
        permission: ``ALLOW`` or ``DENY``.
        operation: One that the type of resource has, or ``ALL``.
        resource_type: The type of the resources.
        resource_name: The name, or with ``PREFIXED`` what the names begin with. ``*`` with ``LITERAL``: every name.
            That of the cluster is ``kafka-cluster``.
        pattern_type: ``LITERAL`` or ``PREFIXED`` (KIP-290).
    """

    principal: str
    permission: Permission
    operation: Operation
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType = "LITERAL"

    def __str__(self) -> str:
        return f"{self.permission} {self.principal} {self.operation} on {self.resources}"

    @property
    def resources(self) -> str:
        """The resources in words."""
        if self.resource_type == "CLUSTER":
            return "the cluster"
        word = WORDS[self.resource_type]
        if self.pattern_type == "PREFIXED":
            return f"each {word} that begins with {self.resource_name!r}"
        return f"every {word}" if self.resource_name == ANY_NAME else f"{word} {self.resource_name!r}"


# Commands -------------------------------------------------------------------------------------------------------------


@value_class()
class ChangeAuthorization(Command):
    """Set how commands are checked; None: unchanged.

    Answered with the :class:`~txnstore.core.authorization.rules.Authorization`.
    Refused if the caller could not change it again.
    """

    mode: Mode | None = None
    super_users: tuple[str, ...] | None = None
    allow_if_no_acl: bool | None = None


@value_class()
class ChangeAcls(Command):
    """Delete rules and create others, all or none. Answered with :class:`ChangedAcls`.

    A rule that exists is not created again, and one that does not exist is not deleted. Refused if the caller could not
    change the rules again.
    """

    created: tuple[Acl, ...] = ()
    deleted: tuple[Acl, ...] = ()


@value_class()
class ChangedAcls:
    """The rules that a command has created and deleted."""

    created: tuple[Acl, ...]
    deleted: tuple[Acl, ...]


@value_class()
class FollowAuthorization(Command):
    """Make writers of another chain than 0 know the rules of entry ``sequence`` of chain 0.

    Answered with None.
    """

    sequence: int


# Events ---------------------------------------------------------------------------------------------------------------


@value_class(kw_only=True)
class AuthorizationChanged:
    """Commands after this event are checked this way; all values are the new ones. ``super_users`` are sorted."""

    type: Literal["AuthorizationChanged"] = "AuthorizationChanged"
    mode: Mode
    super_users: tuple[str, ...]
    allow_if_no_acl: bool


@value_class(kw_only=True)
class AclCreated:
    """A rule exists from this event on."""

    type: Literal["AclCreated"] = "AclCreated"
    acl: Acl


@value_class(kw_only=True)
class AclDeleted:
    """A rule does not exist any more."""

    type: Literal["AclDeleted"] = "AclDeleted"
    acl: Acl
