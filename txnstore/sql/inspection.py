"""The tables of the schema ``txn`` that are computed from the state alone; no I/O.

An empty table has the same schema. Producer ids, epochs and sequences are null where there is no producer.
Offset ranges are half-open: ``[base_offset, limit_offset)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from typing import Any

import pyarrow as pa

from txnstore.core.authorization.rules import NO_AUTHORIZATION
from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.groups.consumer_protocol import assigned_partitions
from txnstore.core.log.model import Batch, Partition, next_sequence
from txnstore.core.log.visibility import batch_status, count_records
from txnstore.core.model import NO_PRODUCER, TopicPartition, sorted_items
from txnstore.core.routing import CATALOG, chain_of_transactional_id
from txnstore.core.view import View
from txnstore.errors import CorruptionError
from txnstore.segment.schema import TIMESTAMP, schema_from_text
from txnstore.sql.types import shown_ms
from txnstore.sql.views import view_names
from txnstore.threads import load

Row = tuple[Any, ...]

_TP = [("topic", pa.string()), ("partition", pa.int32())]
_TP_LIST = pa.list_(pa.struct(_TP))

SCHEMAS: dict[str, pa.Schema] = {
    "topics": pa.schema(
        [
            ("topic", pa.string()),
            ("view", pa.string()),
            ("topic_id", pa.string()),
            ("partitions", pa.int32()),
            ("schema", pa.string()),
            ("key_column", pa.string()),
            ("timestamp_column", pa.string()),
            ("config", pa.map_(pa.string(), pa.string())),
            ("version", pa.int64()),
            ("created_at", TIMESTAMP),
        ],
    ),
    "partitions": pa.schema(
        [
            *_TP,
            ("log_start", pa.int64()),
            ("last_stable", pa.int64()),
            ("high_watermark", pa.int64()),
            ("segments", pa.int64()),
            ("records", pa.int64()),
            ("bytes", pa.int64()),
            ("open_transactions", pa.int64()),
            ("blocked_records", pa.int64()),
            ("blocked_by", pa.string()),
            ("blocked_by_producer_id", pa.int64()),
            ("blocked_since", TIMESTAMP),
            ("blocked_until", TIMESTAMP),
        ],
    ),
    "segments": pa.schema(
        [
            *_TP,
            ("key", pa.string()),
            ("format", pa.string()),
            ("bytes", pa.int64()),
            ("records", pa.int64()),
            ("sha256", pa.string()),
            ("compacted", pa.bool_()),
            ("base_offset", pa.int64()),
            ("limit_offset", pa.int64()),
            ("batches", pa.int64()),
        ],
    ),
    "batches": pa.schema(
        [
            *_TP,
            ("base_offset", pa.int64()),
            ("limit_offset", pa.int64()),
            ("records", pa.int64()),
            ("status", pa.string()),
            ("transactional", pa.bool_()),
            ("transactional_id", pa.string()),
            ("producer_id", pa.int64()),
            ("epoch", pa.int32()),
            ("base_sequence", pa.int64()),
            ("last_sequence", pa.int64()),
            ("min_timestamp", TIMESTAMP),
            ("max_timestamp", TIMESTAMP),
            ("appended_at", TIMESTAMP),
            ("segment", pa.string()),
            ("first_row", pa.int64()),
        ],
    ),
    "transactions": pa.schema(
        [
            ("transactional_id", pa.string()),
            ("state", pa.string()),
            ("producer_id", pa.int64()),
            ("epoch", pa.int32()),
            ("timeout_ms", pa.int64()),
            ("started_at", TIMESTAMP),
            ("updated_at", TIMESTAMP),
            ("partitions", _TP_LIST),
            ("groups", pa.list_(pa.string())),
            ("last_epoch", pa.int32()),
            ("previous_producer_id", pa.int64()),
            ("prepared", pa.bool_()),
            ("chain", pa.int32()),
            ("first_entry", pa.int64()),
        ],
    ),
    "producers": pa.schema(
        [
            *_TP,
            ("producer_id", pa.int64()),
            ("transactional_id", pa.string()),
            ("epoch", pa.int32()),
            ("last_sequence", pa.int64()),
            ("last_timestamp", TIMESTAMP),
            ("current_txn_start_offset", pa.int64()),
        ],
    ),
    "groups": pa.schema(
        [
            ("group_id", pa.string()),
            *_TP,
            ("committed_offset", pa.int64()),
            ("metadata", pa.string()),
            ("leader_epoch", pa.int32()),
            ("committed_at", TIMESTAMP),
            ("pending", pa.bool_()),
            ("producer_id", pa.int64()),
        ],
    ),
    "members": pa.schema(
        [
            ("group_id", pa.string()),
            ("generation", pa.int64()),
            ("member_id", pa.string()),
            ("instance_id", pa.string()),
            ("assignor", pa.string()),
            ("session_timeout_ms", pa.int64()),
            ("seen_at", TIMESTAMP),
            ("assigned", _TP_LIST),
            ("target", _TP_LIST),
        ],
    ),
    "aborted": pa.schema(
        [
            *_TP,
            ("producer_id", pa.int64()),
            ("first_offset", pa.int64()),
            ("last_offset", pa.int64()),
            ("last_stable_offset", pa.int64()),
        ],
    ),
    "acls": pa.schema(
        [
            ("principal", pa.string()),
            ("permission", pa.string()),
            ("operation", pa.string()),
            ("resource_type", pa.string()),
            ("resource_name", pa.string()),
            ("pattern_type", pa.string()),
        ],
    ),
    "authorization": pa.schema(
        [
            ("mode", pa.string()),
            ("super_users", pa.list_(pa.string())),
            ("allow_if_no_acl", pa.bool_()),
        ],
    ),
}


def table(name: str, view: View, readable: Callable[[str], bool]) -> pa.Table:
    """Compute a table of :data:`SCHEMAS`.

    Args:
        name: The name of the table.
        view: The view to show.
        readable: Whether the caller may read a topic: keys and hashes lead to its bytes.
    """
    if name in _OF_OBJECTS:
        return from_rows(SCHEMAS[name], (row for row in _ROWS[name](view) if readable(row[0])))
    return from_rows(SCHEMAS[name], _ROWS[name](view))


def from_rows(schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    """Convert rows, each a tuple in the order of the schema, to a table."""
    load("pandas")  # pa.array imports it, if it is installed.
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array([value if value is None else shown_ms(value) for value in column], field.type)
        if field.type == TIMESTAMP
        else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _partitions(view: View) -> Iterator[tuple[TopicPartition, Partition]]:
    for tp in sorted(view.partitions):
        yield tp, view.partitions[tp]


def _or_none(value: int) -> int | None:
    """Null where there is no producer."""
    return None if value == NO_PRODUCER else value


def _topic_rows(view: View) -> Iterator[Row]:
    """The topics, with the name of the view that shows each one's records."""
    views = view_names(view)
    for topic in view.sorted_topics():
        schema = None if topic.schema is None else _schema_text(topic.schema)
        config = sorted(topic.config.items())
        yield (
            topic.name, views[topic.name], topic.topic_id, topic.partitions, schema, topic.key, topic.timestamp, config,
            topic.version, topic.created_at,
        )  # fmt: skip


def _schema_text(text: str) -> str:
    try:
        return str(schema_from_text(text).to_string())
    except CorruptionError as error:
        return f"unreadable: {error}"


def _partition_rows(view: View) -> Iterator[Row]:
    """The partitions; ``blocked_…``: the committed records that wait for an open transaction, until its timeout."""
    blocked_by_tp = {part.tp: part for part in blocked_partitions(view)}
    for tp, partition in _partitions(view):
        segments = {batch.segment.key for batch in partition.batches}
        records = count_records(partition, partition.log_start, partition.high_watermark)
        yield (
            *tp, partition.log_start, partition.last_stable_offset, partition.high_watermark, len(segments), records,
            sum(batch.size for batch in partition.batches), len(partition.open_txns),
            *_blocked_columns(blocked_by_tp.get(tp)),
        )  # fmt: skip


def _blocked_columns(part: BlockedPartition | None) -> Row:
    if part is None:
        return 0, None, None, None, None
    return part.records, part.transactional_id, part.producer_id, part.since, part.expires_at


def _segment_rows(view: View) -> Iterator[Row]:
    """What each partition has of a segment, which it may share with others: its batches, records and bytes."""
    for tp, partition in _partitions(view):
        batches: dict[str, list[Batch]] = {}
        for batch in partition.batches:
            batches.setdefault(batch.segment.key, []).append(batch)
        for segment_batches in batches.values():
            segment = segment_batches[0].segment
            yield (
                *tp, segment.key, segment.format, sum(batch.size for batch in segment_batches),
                sum(batch.records for batch in segment_batches), segment.sha256, segment.explicit_offsets,
                segment_batches[0].base_offset, segment_batches[-1].limit, len(segment_batches),
            )  # fmt: skip


def _batch_rows(view: View) -> Iterator[Row]:
    """The batches of each log, with the producer and the outcome of their transaction."""
    for tp, partition in _partitions(view):
        status = batch_status(partition)
        for batch in partition.batches:
            sequence = _or_none(batch.base_sequence)
            last_sequence = None if sequence is None else next_sequence(sequence, batch.records - 1)
            yield (
                *tp, batch.base_offset, batch.limit, batch.records, status(batch), batch.transactional,
                view.transactional_ids.get(batch.producer_id), _or_none(batch.producer_id), _or_none(batch.epoch),
                sequence, last_sequence, batch.min_timestamp, batch.max_timestamp, batch.appended_at, batch.segment.key,
                batch.first_row,
            )  # fmt: skip


def _transaction_rows(view: View) -> Iterator[Row]:
    """The current transaction of each transactional id; columns are null where nothing is known yet."""
    for _, txn in sorted(view.transactions.items()):
        partitions = [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(txn.partitions)]
        yield (
            txn.transactional_id, txn.state.name, txn.producer_id, txn.epoch, txn.timeout_ms, txn.started_at,
            txn.updated_at, partitions, sorted(txn.groups), _or_none(txn.last_epoch),
            _or_none(txn.previous_producer_id), txn.is_prepared,
            chain_of_transactional_id(txn.transactional_id, view.chains), txn.first_entry or None,
        )  # fmt: skip


def _producer_rows(view: View) -> Iterator[Row]:
    """The producers of each partition, as KIP-664's DescribeProducers lists them; decided transactions are not open."""
    for tp, partition in _partitions(view):
        for producer_id, producer in sorted(partition.producers.items()):
            yield (
                *tp, producer_id, view.transactional_ids.get(producer_id), producer.epoch,
                _or_none(producer.last_sequence), producer.last_timestamp, partition.open_txns.get(producer_id),
            )  # fmt: skip


def _group_rows(view: View) -> Iterator[Row]:
    """Yield the committed offsets of each group, then the pending ones of transactions."""
    for group_id, group in sorted(view.groups.items()):
        generations = [(None, group.offsets), *sorted(group.pending.items())]
        for producer_id, offsets in generations:
            for tp, committed in sorted(offsets.items()):
                value = committed.value
                yield (
                    group_id, *tp, value.offset, value.metadata, _or_none(value.leader_epoch), committed.committed_at,
                    producer_id is not None, producer_id,
                )  # fmt: skip


def _member_rows(view: View) -> Iterator[Row]:
    """Yield the members of each group; those of a classic group as its gateway has stored them."""
    for group_id, group in sorted(view.groups.items()):
        for member_id, member in sorted(group.members.items()):
            assigned, target = ([tp._asdict() for tp in tps] for tps in (member.assigned, member.target))
            yield (
                group_id, group.generation, member_id, member.instance_id, member.assignor, member.session_timeout_ms,
                member.seen_at, assigned, target,
            )  # fmt: skip
        classic = group.classic
        if classic is None:
            continue
        for client in classic.members:
            assigned = [tp._asdict() for tp in assigned_partitions(classic.protocol_type, client.assignment)]
            yield (
                group_id, group.generation, client.member_id, client.instance_id, classic.protocol,
                client.session_timeout_ms, None, assigned, assigned,
            )  # fmt: skip


def _aborted_rows(view: View) -> Iterator[Row]:
    for tp, partition in _partitions(view):
        for txn in partition.aborted:
            yield (*tp, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)


def _acl_rows(view: View) -> Iterator[Row]:
    for acl, _ in sorted_items(view.states[CATALOG].authorization.acls):
        yield astuple(acl)


def _authorization_rows(view: View) -> Iterator[Row]:
    """How the store checks rights: one row, or none if it never had rules."""
    authorization = view.states[CATALOG].authorization
    if authorization != NO_AUTHORIZATION:
        yield authorization.mode, sorted(authorization.super_users), authorization.allow_if_no_acl


#: The tables whose rows, of the topic in the first column, name objects.
_OF_OBJECTS = frozenset({"segments", "batches"})

_ROWS: dict[str, Callable[[View], Iterator[Row]]] = {
    "topics": _topic_rows,
    "partitions": _partition_rows,
    "segments": _segment_rows,
    "batches": _batch_rows,
    "transactions": _transaction_rows,
    "producers": _producer_rows,
    "groups": _group_rows,
    "members": _member_rows,
    "aborted": _aborted_rows,
    "acls": _acl_rows,
    "authorization": _authorization_rows,
}
