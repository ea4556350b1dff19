"""The union of all commands; each subject defines its own."""

from __future__ import annotations

from txnstore.core.authorization.model import ChangeAcls, ChangeAuthorization, FollowAuthorization
from txnstore.core.catalog.model import AlterTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
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
)
from txnstore.core.log.commands import Append, DeleteRecords
from txnstore.core.maintenance import DropObjects, ForgetEntries, ForgetObjects, ReplaceRuns, ReplaceSegments
from txnstore.core.transactions.commands import (
    AbortTxn,
    CompleteTxn,
    EndTxn,
    FenceProducer,
    InitProducer,
    PrepareTxn,
    WriteMarkers,
)

Command = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | InitProducer
    | Append
    | DeleteRecords
    | EndTxn
    | PrepareTxn
    | FenceProducer
    | AbortTxn
    | WriteMarkers
    | CompleteTxn
    | CopyTopic
    | CloseTopic
    | CommitOffsets
    | JoinGroup
    | Heartbeat
    | LeaveGroup
    | ResetOffsets
    | DeleteGroup
    | StoreGeneration
    | DeleteOffsets
    | ReplaceSegments
    | ReplaceRuns
    | DropObjects
    | ForgetObjects
    | ForgetEntries
    | Expire
    | ChangeAuthorization
    | ChangeAcls
    | FollowAuthorization
)
