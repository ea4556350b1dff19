"""What the members of a classic group ask, what they are answered, and what is stored of a group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from txnstore.core.groups.model import ClassicMember


class Code(IntEnum):
    """The error codes of Kafka's protocol that a group answers itself; ``NONE`` is false."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30
    INVALID_REQUEST = 42
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82


class State(StrEnum):
    """The state of a group, as Kafka names it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# --- what is stored ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """A generation of a group as the chain has it; without members after the group has become empty."""

    generation: int
    protocol_type: str
    protocol: str = ""
    leader: str = ""
    members: tuple[ClassicMember, ...] = ()


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request of ``version`` 0 to 9; ``member_id`` is empty for a new member.

    Attributes:
        protocols: The assignors that the member supports, the preferred ones first, each with its subscription.
        reason: Why the member joins (KIP-800), for the log.
    """

    group: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    version: int = 9
    reason: str | None = None

    @property
    def requires_known_member_id(self) -> bool:
        """Whether a new member first gets an id, with which it joins (KIP-394)."""
        return self.version >= 4

    @property
    def skips_assignment(self) -> bool:
        """Whether the client knows ``skip_assignment`` (KIP-814)."""
        return self.version >= 9

    @property
    def join_timeout_ms(self) -> int:
        """The rebalance timeout; requests of version 0 have none but their session timeout (KIP-62)."""
        return self.rebalance_timeout_ms if self.version > 0 else self.session_timeout_ms


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request; only the leader sends ``assignments``, of member ids."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    version: int = 5


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A Heartbeat request."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member of a LeaveGroup request; an administrator names only the instance id, and no member id."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A LeaveGroup request; before version 3 it has one member."""

    group: str
    members: tuple[LeavingMember, ...]


# --- responses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The answer to a JoinGroup; only the leader's has ``members``. Before version 7 a missing protocol is ``""``."""

    error: Code
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The answer to a SyncGroup."""

    error: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The answer to a Heartbeat."""

    error: Code


@dataclass(frozen=True, slots=True)
class LeftMember:
    """The answer for one member of a LeaveGroup."""

    member_id: str
    instance_id: str | None
    error: Code


@dataclass(frozen=True, slots=True)
class LeaveResponse:
    """The answer to a LeaveGroup; before version 3, the error of the only member is that of the response."""

    error: Code
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group for DescribeGroups: subscriptions and the protocol only while it is stable."""

    group: str
    state: State
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ClassicMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group for ListGroups."""

    group: str
    state: State
    protocol_type: str
