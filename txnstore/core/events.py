"""The union of all events; each subject defines its own. An entry of a chain is a list of these."""

from __future__ import annotations

from typing import get_args

from txnstore.core.authorization.model import AclCreated, AclDeleted, AuthorizationChanged
from txnstore.core.catalog.model import TopicAltered, TopicClosed, TopicCreated, TopicDeleted
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
from txnstore.core.state import Observed, UnknownEvent
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

Event = (
    TopicCreated
    | TopicAltered
    | TopicClosed
    | TopicDeleted
    | Observed
    | ProducerInitialized
    | PartitionsAdded
    | BatchesAppended
    | OffsetsAdded
    | OffsetsCommitted
    | TxnPrepared
    | ProducerFenced
    | TxnDecided
    | SessionContinued
    | MarkerWritten
    | GroupMarkerWritten
    | VersionRecorded
    | TxnCompleted
    | SegmentsReplaced
    | LogStartMoved
    | ObjectsDropped
    | ObjectsForgotten
    | MemberJoined
    | MemberLeft
    | MemberSeen
    | MemberReconciled
    | GroupRebalanced
    | GroupDeleted
    | GenerationStored
    | OffsetsDeleted
    | ProducersExpired
    | FencesExpired
    | TransactionalIdExpired
    | OffsetsExpired
    | AuthorizationChanged
    | AclCreated
    | AclDeleted
    | UnknownEvent
)

#: The names of all events that this release writes and folds.
EVENT_TYPES = frozenset(event.__name__ for event in get_args(Event)) - {UnknownEvent.__name__}


def event_name(event: Event) -> str:
    """Return the name of an event, also of one of a later release."""
    return event.name if isinstance(event, UnknownEvent) else event.type
