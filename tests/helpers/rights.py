"""The rights that each event needs, and what rules allow, by a look at each of them: without the code under test.

An event is the outcome of some command, so a right is a choice: any of its alternatives is enough. What another event
leads to needs none: a marker, a completion, a fence, a copy of a topic, the abort of a transaction past its timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from txnstore.core.authorization.model import (
    CLUSTER,
    EVERYONE,
    Acl,
    AclCreated,
    AclDeleted,
    AuthorizationChanged,
    Operation,
    ResourceType,
)
from txnstore.core.catalog.model import TopicAltered, TopicClosed, TopicCreated, TopicDeleted
from txnstore.core.events import Event
from txnstore.core.expiration import FencesExpired, OffsetsExpired, ProducersExpired, TransactionalIdExpired
from txnstore.core.groups.events import (
    GenerationStored,
    GroupDeleted,
    GroupMarkerWritten,
    GroupRebalanced,
    MemberJoined,
    MemberLeft,
    MemberReconciled,
    MemberSeen,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnstore.core.log.events import BatchesAppended, LogStartMoved, MarkerWritten, ProducerFenced
from txnstore.core.maintenance import ObjectsDropped, ObjectsForgotten, SegmentsReplaced
from txnstore.core.model import NO_PRODUCER, Outcome
from txnstore.core.routing import CATALOG
from txnstore.core.state import Observed, State
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    SessionContinued,
    TxnCompleted,
    TxnDecided,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.transactions.model import NO_TIMEOUT_MS

#: An operation on the resource of a name; None: on some resource of the type.
Named = tuple[Operation, ResourceType, str | None]
#: Any of these is enough.
Need = tuple[Named, ...]

ACTION: Named = ("CLUSTER_ACTION", "CLUSTER", CLUSTER)
ALTER: Named = ("ALTER", "CLUSTER", CLUSTER)
#: What follows from other events, in the entry of any principal.
_CONSEQUENCES = (Observed, SessionContinued, MarkerWritten, GroupMarkerWritten, TxnCompleted, ProducerFenced)
_MAINTENANCE = (
    SegmentsReplaced,
    ObjectsDropped,
    ObjectsForgotten,
    ProducersExpired,
    FencesExpired,
    TransactionalIdExpired,
    OffsetsExpired,
)
#: The events that change the rules.
CHANGES = (AuthorizationChanged, AclCreated, AclDeleted)


def needs(state: State, event: Event, names: Mapping[int, str]) -> list[Need]:  # noqa: C901, PLR0912 - a table
    """The rights that the principal that asked for an event needed.

    Args:
        state: The state of the chain before the event.
        event: The event.
        names: The transactional id of each producer id.
    """
    match event:
        case TopicCreated() | TopicAltered() | TopicDeleted() if state.chain != CATALOG:
            return []  # A copy.
        case TopicClosed():
            # Where there is no copy, a copy of the deletion may have closed it.
            return [_one("DELETE", "TOPIC", event.name)] if event.name in state.topics else []
        case TopicCreated():
            return [(("CREATE", "TOPIC", event.topic.name), ("CREATE", "CLUSTER", CLUSTER))]
        case TopicAltered():
            return list(_of_alter(state, event))
        case TopicDeleted():
            return [_one("DELETE", "TOPIC", event.name)]
        case ProducerInitialized(transactional_id=None):
            return [(("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER), ("WRITE", "TOPIC", None))]
        case ProducerInitialized(transactional_id=str(name)):
            two_phase = event.timeout_ms == NO_TIMEOUT_MS
            return [_write_id(name), *([_one("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", name)] if two_phase else [])]
        case PartitionsAdded():
            topics = {tp.topic for tp in event.partitions} | set(event.topic_ids)
            return [_write_id(event.transactional_id), *(_one("WRITE", "TOPIC", name) for name in sorted(topics))]
        case BatchesAppended():
            of_txn = [_write_id(names[event.producer_id])] if event.transactional else []
            return [*of_txn, _one("WRITE", "TOPIC", event.topic)]
        case OffsetsAdded():
            return [_write_id(event.transactional_id), _one("READ", "GROUP", event.group)]
        case OffsetsCommitted():
            of_txn = [_write_id(names[event.producer_id])] if event.producer_id != NO_PRODUCER else []
            topics = {item.topic for item in event.offsets}
            return [
                *of_txn,
                _one("READ", "GROUP", event.group),
                *(_one("READ", "TOPIC", name) for name in sorted(topics)),
            ]
        case VersionRecorded():
            return [_write_id(event.transactional_id)]
        case TxnPrepared():
            return [_write_id(event.transactional_id)] if event.transactional_id else []
        case TxnDecided(outcome=Outcome.COMMIT):
            return [_write_id(event.transactional_id)]
        case TxnDecided():
            if state.transactions[event.transactional_id].timed_from is not None:
                return []  # Perhaps its timeout has passed.
            return [(*_write_id(event.transactional_id), ACTION)]
        case MemberJoined() | MemberSeen() | MemberReconciled() | MemberLeft(reason="left"):
            return [_one("READ", "GROUP", event.group)]
        case MemberLeft() | GroupRebalanced():
            # Members whose leases have expired leave with whatever is asked of the group.
            return [(("READ", "GROUP", event.group), ("DELETE", "GROUP", event.group), ACTION)]
        case GroupDeleted():
            return [(("DELETE", "GROUP", event.group), ACTION)]
        case GenerationStored():
            return [(("READ", "GROUP", event.group), ACTION)]
        case OffsetsDeleted():
            topics = {tp.topic for tp in event.partitions}
            return [_one("DELETE", "GROUP", event.group), *(_one("READ", "TOPIC", name) for name in sorted(topics))]
        case LogStartMoved():
            return [(("DELETE", "TOPIC", event.topic), ACTION)]
        case AuthorizationChanged() | AclCreated() | AclDeleted():
            return [(ALTER,)]
        case _:
            if isinstance(event, _MAINTENANCE):
                return [(ACTION,)]
            assert isinstance(event, _CONSEQUENCES), f"no right is known for {type(event).__name__}"
            return []


def _of_alter(state: State, event: TopicAltered) -> Iterator[Need]:
    before, after = state.topics[event.topic.name], event.topic
    if (before.partitions, before.schema) != (after.partitions, after.schema):
        yield _one("ALTER", "TOPIC", after.name)
    if before.config != after.config:
        yield _one("ALTER_CONFIGS", "TOPIC", after.name)


def _one(operation: Operation, kind: ResourceType, name: str) -> Need:
    return ((operation, kind, name),)


def _write_id(name: str) -> Need:
    return _one("WRITE", "TRANSACTIONAL_ID", name)


def named(names: dict[int, str], event: Event) -> None:
    """Note which transactional id a producer id is of."""
    match event:
        case ProducerInitialized(transactional_id=str(name)):
            names[event.producer_id] = name
        case TxnDecided():
            names[event.next_producer_id] = event.transactional_id
        case _:
            pass


@dataclass(frozen=True)
class Rules:
    """The rules of a store."""

    mode: str = "off"
    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False
    acls: frozenset[Acl] = frozenset()

    def after(self, events: Iterable[Event]) -> Rules:
        """The rules after these events."""
        rules = self
        for event in events:
            match event:
                case AuthorizationChanged():
                    users = frozenset(event.super_users)
                    rules = Rules(event.mode, users, event.allow_if_no_acl, rules.acls)
                case AclCreated():
                    rules = replace(rules, acls=rules.acls | {event.acl})
                case AclDeleted():
                    rules = replace(rules, acls=rules.acls - {event.acl})
                case _:
                    pass
        return rules

    def have(self, principal: str, need: Need) -> bool:
        """Whether a principal has one of the alternatives."""
        return any(self.allow(principal, *right) for right in need)

    def allow(self, principal: str, operation: Operation, kind: ResourceType, name: str | None) -> bool:
        """Whether a principal may do this to the resource of the name; None: to some resource of the type."""
        if self.mode == "off" or principal in self.super_users:
            return True
        if name is not None:
            return self._allow(principal, operation, kind, name)
        names = {acl.resource_name for acl in self.acls if acl.resource_type == kind} | {"~"}
        return any(
            self._allow(principal, operation, kind, each)
            for name in names
            for each in (name, f"{name}~")
            if each != "*"
        )

    def _allow(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        of_it = [acl for acl in self.acls if acl.resource_type == kind and _is_for(acl, name)]
        mine = [acl for acl in of_it if acl.principal in (principal, EVERYONE)]
        if any(acl.permission == "DENY" and acl.operation in (operation, "ALL") for acl in mine):
            return False
        if any(acl.permission == "ALLOW" and acl.operation in (operation, "ALL") for acl in mine):
            return True
        return self.allow_if_no_acl and not of_it


def _is_for(acl: Acl, name: str) -> bool:
    if acl.pattern_type == "PREFIXED":
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")
