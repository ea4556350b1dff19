"""``state.json`` of a checkpoint: the state of a chain as a JSON document, without its batches (``docs/format.md``)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args

from txnstore.chain.codec import Int64, Stored
from txnstore.core.authorization.model import Acl, Mode
from txnstore.core.authorization.rules import NO_AUTHORIZATION, Authorization
from txnstore.core.catalog.model import CatalogTopic, alike
from txnstore.core.groups.model import ClassicGeneration, CommittedOffset, Group, Member
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import AbortedTxn, Batch, Partition, ProducerState, SessionWindow
from txnstore.core.model import (
    EntrySpan,
    Features,
    Fence,
    Map,
    TopicPartition,
    sorted_items,
    value_class,
)
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction, TxnState

K = TypeVar("K", int, str)
V = TypeVar("V")


@value_class()
class PartitionDocument:
    """A partition without its batches."""

    tp: TopicPartition
    log_start: int
    high_watermark: int
    producers: dict[int, ProducerState]
    open_txns: dict[int, int]
    aborted: list[AbortedTxn]
    clean_until: int
    revision: int
    session_windows: dict[int, SessionWindow]


StoredState = Literal["EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"]


@value_class()
class TransactionDocument:
    """A transaction, with sorted partitions, groups, topic ids and versions."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: StoredState
    last_epoch: int
    previous_producer_id: int
    next_producer_id: int
    next_epoch: int
    prepared_epoch: int
    partitions: list[TopicPartition]
    groups: list[str]
    topic_ids: dict[str, tuple[str, ...]]
    started_at: int | None
    updated_at: int
    versions: dict[str, int]
    session_epoch: int
    first_entry: int


@value_class()
class OffsetDocument:
    """A committed or pending offset of a group."""

    tp: TopicPartition
    committed: CommittedOffset


@value_class()
class GroupDocument:
    """A group; ``pending`` has the pending offsets by producer id."""

    name: str
    offsets: list[OffsetDocument]
    pending: dict[int, list[OffsetDocument]]
    generation: int
    last_producer: tuple[int, int] | None
    members: list[Member]
    emptied_at: int


@value_class()
class AuthorizationDocument:
    """The authorization of the store, with sorted super users and rules."""

    mode: Mode
    super_users: list[str]
    allow_if_no_acl: bool
    acls: list[Acl]


@value_class(kw_only=True)
class StateDocument(Stored):
    """``state.json`` of a checkpoint; ``index``: the last entry of each of its index files, in order."""

    chain: int
    chains: int
    sequence: Int64
    entry_hash: str
    timestamp: Int64
    next_producer_id: Int64
    next_commit_position: Int64
    topics: list[CatalogTopic]
    partitions: list[PartitionDocument]
    transactions: list[TransactionDocument]
    transactional_ids: dict[int, str]
    groups: list[GroupDocument]
    dropped: dict[str, int]
    released: dict[str, int]
    released_entries: list[EntrySpan]
    seen: dict[int, int]
    deleted: dict[str, int]
    fences: dict[int, Fence]
    requires: Features
    authorization: AuthorizationDocument | None
    #: What gateways have stored of classic groups, by name of the group.
    generations: dict[str, ClassicGeneration]
    #: The epochs of the members of groups of the kind ``consumer``, by name of the group.
    epochs: dict[str, dict[str, int]]
    index: list[Int64]


D = TypeVar(
    "D",
    PartitionDocument,
    TransactionDocument,
    GroupDocument,
    AuthorizationDocument,
    Partition,
    Transaction,
    Group,
    Authorization,
)


def to_document(state: State, index: list[int]) -> StateDocument:
    """Convert a state to its document; equal states have equal documents."""
    return StateDocument(
        chain=state.chain,
        chains=state.chains,
        sequence=state.sequence,
        entry_hash=state.entry_hash,
        timestamp=state.timestamp,
        next_producer_id=state.next_producer_id,
        next_commit_position=state.next_commit_position,
        topics=state.sorted_topics(),
        partitions=[_partition_document(*item) for item in sorted_items(state.partitions)],
        transactions=[_transaction_document(txn) for _, txn in sorted_items(state.transactions)],
        transactional_ids=_sorted_lists(state.transactional_ids),
        groups=[_group_document(*item) for item in sorted_items(state.groups)],
        dropped=_sorted_lists(state.dropped),
        released=_sorted_lists(state.released),
        released_entries=list(state.released_entries),
        seen=_sorted_lists(state.seen),
        deleted=_sorted_lists(state.deleted),
        fences=_sorted_lists(state.fences),
        requires=state.requires,
        authorization=_authorization_document(state.authorization),
        generations={name: group.classic for name, group in sorted_items(state.groups) if group.classic is not None},
        epochs={
            name: _sorted_lists(group.epochs) for name, group in sorted_items(state.groups) if group.epochs is not None
        },
        index=index,
    )


def from_document(document: StateDocument, logs: Map[TopicPartition, Partition]) -> State:
    """Convert a document to its state, with the batches of these logs."""
    return State(
        chain=document.chain,
        chains=document.chains,
        sequence=document.sequence,
        entry_hash=document.entry_hash,
        timestamp=document.timestamp,
        next_producer_id=document.next_producer_id,
        next_commit_position=document.next_commit_position,
        topics=Map({topic.name: topic for topic in document.topics}),
        alike=alike(topic.name for topic in document.topics),
        partitions=Map(
            {partition.tp: _partition(partition, logs.get(partition.tp)) for partition in document.partitions}
        ),
        transactions=Map({txn.transactional_id: _transaction(txn) for txn in document.transactions}),
        transactional_ids=Map(document.transactional_ids),
        groups=Map({group.name: _group(group, document) for group in document.groups}),
        dropped=Map(document.dropped),
        released=Map(document.released),
        released_entries=tuple(document.released_entries),
        seen=Map(document.seen),
        deleted=Map(document.deleted),
        fences=Map(document.fences),
        requires=document.requires,
        authorization=_authorization(document.authorization),
    )


def _authorization_document(authorization: Authorization) -> AuthorizationDocument | None:
    """Return the stored form of the rules; None without any."""
    if authorization == NO_AUTHORIZATION:
        return None
    return _copy_fields(
        AuthorizationDocument,
        authorization,
        super_users=sorted(authorization.super_users),
        acls=authorization.sorted_acls,
    )


def _authorization(document: AuthorizationDocument | None) -> Authorization:
    if document is None:
        return NO_AUTHORIZATION
    return _copy_fields(
        Authorization,
        document,
        super_users=frozenset(document.super_users),
        acls=Map(dict.fromkeys(document.acls)),
    )


def _partition_document(tp: TopicPartition, partition: Partition) -> PartitionDocument:
    """Return the stored form of a partition; its batches are in index files."""
    return _copy_fields(
        PartitionDocument,
        partition,
        tp=tp,
        producers=_sorted_lists(partition.producers),
        open_txns=_sorted_lists(partition.open_txns),
        aborted=list(partition.aborted),
        session_windows=_sorted_lists(partition.session_windows),
    )


def _partition(document: PartitionDocument, log: Partition | None) -> Partition:
    """Convert the document of a partition; its batches are those of ``log`` (None: no batches)."""
    return _copy_fields(
        Partition,
        document,
        batches=log.batches if log is not None else BatchList[Batch](),
        producers=Map(document.producers),
        open_txns=Map(document.open_txns),
        aborted=tuple(document.aborted),
        session_windows=Map(document.session_windows),
    )


def _transaction_document(txn: Transaction) -> TransactionDocument:
    return _copy_fields(
        TransactionDocument,
        txn,
        state=_stored_name(txn.state),
        partitions=sorted(txn.partitions),
        groups=sorted(txn.groups),
        topic_ids=_sorted_lists(txn.topic_ids),
        versions=_sorted_lists(txn.versions),
    )


def _stored_name(state: TxnState) -> StoredState:
    """Return the stored name of a state; Kafka's DEAD and PREPARE_EPOCH_FENCE are never stored (STM-03)."""
    for name in get_args(StoredState):
        if name == state.name:
            stored: StoredState = name
            return stored
    msg = f"the state {state.name} is never stored"
    raise ValueError(msg)


def _transaction(document: TransactionDocument) -> Transaction:
    return _copy_fields(
        Transaction,
        document,
        state=TxnState[document.state],
        partitions=frozenset(document.partitions),
        groups=frozenset(document.groups),
        topic_ids=Map(document.topic_ids),
        versions=Map(document.versions),
    )


def _group_document(name: str, group: Group) -> GroupDocument:
    """Return the stored form of a group; its generation and epochs are members of the state's document."""
    return _copy_fields(
        GroupDocument,
        group,
        name=name,
        offsets=_offset_documents(group.offsets),
        pending={pid: _offset_documents(group.pending[pid]) for pid in sorted(group.pending)},
        members=[group.members[member_id] for member_id in sorted(group.members)],
    )


def _group(group: GroupDocument, document: StateDocument) -> Group:
    """Convert the document of a group, with its generation and epochs from that of the state."""
    return _copy_fields(
        Group,
        group,
        offsets=_committed_offsets(group.offsets),
        pending=Map({pid: _committed_offsets(offsets) for pid, offsets in group.pending.items()}),
        members=Map({member.member_id: member for member in group.members}),
        classic=document.generations.get(group.name),
        epochs=Map(document.epochs[group.name]) if group.name in document.epochs else None,
    )


def _copy_fields(kind: type[D], source: object, **converted: Any) -> D:
    """Make a ``kind`` from the fields of ``source``; ``converted`` has those that are stored in another form."""
    same = {field.name: getattr(source, field.name) for field in fields(kind) if field.name not in converted}
    return kind(**same, **converted)


def _offset_documents(offsets: Map[TopicPartition, CommittedOffset]) -> list[OffsetDocument]:
    return [OffsetDocument(tp, offset) for tp, offset in sorted_items(offsets)]


def _committed_offsets(items: list[OffsetDocument]) -> Map[TopicPartition, CommittedOffset]:
    return Map({offset.tp: offset.committed for offset in items})


def _sorted_lists(values: Map[K, V]) -> dict[K, V]:
    return dict(sorted_items(values))
