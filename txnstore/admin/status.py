"""The state of a store as numbers for a monitoring system, whichever processes use the store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from txnstore.admin.groups import list_groups
from txnstore.admin.upkeep import maintenance_status, retention_status
from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.chain.checkpoints import checkpoint
from txnstore.connection import Connection
from txnstore.core.blocked import blocked_partitions
from txnstore.core.log.model import Partition
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import DECIDED
from txnstore.core.view import View
from txnstore.metrics import (
    ChainStatus,
    GroupLag,
    GroupStatus,
    PartitionStatus,
    StoreMetrics,
    StoreStatus,
    TableStatus,
    TransactionStatus,
)
from txnstore.storage.base import read_if_there
from txnstore.tables.published import published_of


def store_metrics(connection: Connection, *, status: bool) -> StoreMetrics:
    """Return the metrics of this process; with ``status`` also the state of the store, whose requests count."""
    current_status = store_status(connection) if status else None
    return replace(connection.metrics(), status=current_status)


def store_status(connection: Connection) -> StoreStatus:
    """Read the state at the heads of the chains. Two GETs for each chain: its head, and the hint to its checkpoint.

    One more says when the store was maintained.

    In a store with tables, also the GETs that find the newest cut.
    """
    groups = list_groups(connection)
    view = connection.view(refresh=False)
    blocked_records = {waiting.tp: waiting.records for waiting in blocked_partitions(view)}
    logs, now = sorted(view.partitions.items()), connection.runtime.clock()
    return StoreStatus(
        chains=_chain_status(connection, view),
        partitions=tuple(_partition_status(tp, log, blocked_records.get(tp, 0)) for tp, log in logs),
        transactions=_transaction_status(view, now),
        groups=tuple(GroupStatus(group.group, group.state, group.generation, len(group.members)) for group in groups),
        lags=tuple(
            GroupLag(group.group, position.tp.topic, position.tp.partition, position.offset, position.lag)
            for group in groups
            for position in group.positions
        ),
        tables=_table_status(connection, view),
        maintenance=maintenance_status(connection, now),
        retention=retention_status(view, now),
    )


def _chain_status(connection: Connection, view: View) -> tuple[ChainStatus, ...]:
    """Return the head and the last checkpoint of each chain; one GET for each."""
    chains = range(view.chains)
    hints = connection.chains.concurrently(
        {chain: partial(read_if_there, connection.objects, keys.latest(chain)) for chain in chains}
    )
    # Another process may have written a checkpoint of entries after the view.
    checkpoint_sequences = {
        chain: checkpoint.decode_hint(connection.keys, chain, hints[chain]).sequence for chain in chains
    }
    return tuple(
        ChainStatus(
            state.chain, state.sequence, min(checkpoint_sequences[state.chain], state.sequence), state.journal_watermark
        )
        for state in view.states
    )


def _partition_status(tp: TopicPartition, log: Partition, blocked_records: int) -> PartitionStatus:
    """Return the offsets and sizes of a partition; `blocked_records`: those that an open transaction holds back."""
    return PartitionStatus(
        topic=tp.topic,
        partition=tp.partition,
        log_start=log.log_start,
        last_stable=log.last_stable_offset,
        high_watermark=log.high_watermark,
        lso_distance=log.high_watermark - log.last_stable_offset,
        blocked=blocked_records,
        segments=len({batch.segment.key for batch in log.batches}),
        bytes=sum(batch.size for batch in log.batches),
    )


def _table_status(connection: Connection, view: View) -> tuple[TableStatus, ...]:
    """Return the published version of each table topic, and how far it is behind the view."""
    topics = [topic for topic in view.sorted_topics() if publishes_table(topic.config)]
    cut = published_of(connection).newest() if topics else None
    if cut is None:
        return tuple(TableStatus(topic.name, 0, 0, 0, view.sequence, 0.0) for topic in topics)
    statuses = []
    for topic in topics:
        moment = cut.moment_of(topic.name)
        behind = max(0, view.sequence - sum(moment.heads)), max(0, view.timestamp - moment.timestamp) / 1000
        table = cut.tables.get(topic.name)
        is_published = table is not None and not table.dropped and table.topic_id == topic.topic_id
        published = (table.number, table.rows, table.copied_bytes) if table and is_published else (0, 0, 0)
        statuses.append(TableStatus(topic.name, *published, *behind))
    return tuple(statuses)


def _transaction_status(view: View, now: int) -> tuple[TransactionStatus, ...]:
    """Describe the transactions that are open, or decided and not completed."""
    return tuple(
        TransactionStatus(
            transactional_id=name,
            producer_id=txn.producer_id,
            state=txn.state.name,
            prepared=txn.is_prepared,
            age=max(0, now - (txn.started_at if txn.started_at is not None else txn.updated_at)) / 1000,
            timeout=txn.timeout_ms / 1000,
        )
        for name, txn in sorted(view.transactions.items())
        if txn.started_at is not None or txn.state in DECIDED
    )
