"""Commits a micro-batch: all its segments and the offsets of its sources in one transaction, in one entry."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from txnstore.core.log.model import NewBatch
from txnstore.core.model import Outcome, ProducerIdentity
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.core.view import View
from txnstore.errors import ProducerFencedError, UnknownTopicOrPartitionError
from txnstore.spark.streams.checkpoint import planned_positions
from txnstore.spark.streams.microbatch import (
    MicroBatch,
    consumed_offsets,
    identity_of_run,
    overtaken_error,
    transactional_id,
)
from txnstore.spark.writes.jobs import number_batches, submit

if TYPE_CHECKING:
    from txnstore.connection import Connection
    from txnstore.core.groups.commands import TxnOffsets
    from txnstore.core.transactions.model import Transaction
    from txnstore.spark.options import SinkOptions
    from txnstore.spark.streams.positions import Position

_LOG = logging.getLogger(__name__)

#: What a connection keeps: the identities of runs, by transactional id and run.
_RUNS = "runs of streaming queries"


def commit_micro_batch(
    connection: Connection, options: SinkOptions, batch: MicroBatch, batches: Sequence[NewBatch]
) -> Ended | None:
    """Commit the batches and the offsets of a micro-batch, in their order, as one transaction.

    The first commit of a run is granted an epoch, in an entry of its own. After that, a micro-batch is one entry, and
    an empty one whose offsets have not moved is none.

    Args:
        connection: The store; it keeps the epochs of the runs that commit in this process.
        batches: What its tasks uploaded.

    Returns:
        The end of the transaction; None if the micro-batch is committed already, or there was nothing to commit.

    Raises:
        ProducerFencedError: A newer run of the query, or another query of its group, has taken over; or the checkpoint
            of the query is older than what it has committed.
        UnknownTopicOrPartitionError: A topic was deleted while the micro-batch ran.
    """
    name = _transactional_id(options, batch)
    identities: dict[tuple[str, str], ProducerIdentity] = connection.cached(_RUNS, dict)
    identity = identities.get((name, batch.run_id))
    try:
        end = _commit(connection, options, batch, batches, identity)
    except ProducerFencedError:
        if identity is None:
            raise
        # Another process of this run may have committed since: Spark has a pool of them for all queries.
        current_identity = identity_of_run(connection.view().transactions.get(name), batch)
        if current_identity in {None, identity}:
            raise
        end = _commit(connection, options, batch, batches, current_identity)
    if end is not None and not end.repeated:
        # The answer to a repetition names the epoch of the run that has committed the micro-batch.
        identities[name, batch.run_id] = end.producer
    return end


def _commit(
    connection: Connection,
    options: SinkOptions,
    batch: MicroBatch,
    batches: Sequence[NewBatch],
    identity: ProducerIdentity | None,
) -> Ended | None:
    """Commit with the last known identity of the run; None: find the identity, or get one."""
    name = _transactional_id(options, batch)
    fields = {"transactional_id": name, "query_id": batch.query_id, "micro_batch": batch.number}
    view = connection.view(refresh=identity is None)
    txn = view.transactions.get(name)
    if txn is not None and identity is not None and batch.is_overtaken(txn):
        raise overtaken_error(txn, batch)  # A run repeats its first micro-batch at most, and this one has committed.
    if _is_durable(connection, view, batch, [txn]):
        _check_plan(view, connection, options, batch)
        _LOG.info("this micro-batch is committed; its batches are left to the vacuum", extra=fields)
        return None
    read_positions = [] if options.group is None else _read_positions(options, batch)
    is_new = batch.is_of_new_query(view)
    if not batches and not _consumed_offsets(view, connection, options, read_positions, is_new=is_new):
        return None
    _check_topics(view, batches)
    if identity is None:
        identity = identity_of_run(txn, batch)
    if identity is None:
        # The query may have had another transactional id: another group, or another option ``transactionalId``.
        if _is_durable(connection, view, batch, view.transactions.values()):
            _LOG.info("this micro-batch is committed, with another transactional id", extra=fields)
            return None
        identity = submit(connection, InitProducer(name))
        view = connection.view()
    offsets = _consumed_offsets(view, connection, options, read_positions, is_new=is_new)
    command = EndTxn(identity, Outcome.COMMIT, number_batches(batches), offsets, batch.versions(identity.epoch))
    ended: Ended = submit(connection, command)
    _LOG.info("committed", extra={**fields, "batches": len(batches), "repeated": ended.repeated})
    return ended


def is_committed(connection: Connection, options: SinkOptions, batch: MicroBatch) -> bool:
    """Whether a micro-batch is committed in the known view, so that it need not be computed.

    Raises:
        ProducerFencedError: A newer run of the query has committed it, after this run has committed others; or a later
            one is committed.
    """
    name = _transactional_id(options, batch)
    view = connection.view(refresh=False)
    txn = view.transactions.get(name)
    if txn is not None and (name, batch.run_id) in connection.cached(_RUNS, dict) and batch.is_overtaken(txn):
        raise overtaken_error(txn, batch)
    if not _is_durable(connection, view, batch, [txn]):
        return False
    _check_plan(view, connection, options, batch)
    return True


def _is_durable(connection: Connection, view: View, batch: MicroBatch, txns: Iterable[Transaction | None]) -> bool:
    """Whether one of the transactions has committed a micro-batch, for good, as Spark's checkpoint says from now on."""
    if not any(map(batch.is_committed, txns)):
        return False
    connection.chains.make_durable(view)
    return True


def _transactional_id(options: SinkOptions, batch: MicroBatch) -> str:
    return transactional_id(options.transactional_id, options.group, batch.query_id)


def _read_positions(options: SinkOptions, batch: MicroBatch) -> list[Position]:
    return planned_positions(options.checkpoint or "", batch.number, options.location)


def _consumed_offsets(
    view: View, connection: Connection, options: SinkOptions, read_positions: Sequence[Position], *, is_new: bool
) -> tuple[TxnOffsets, ...]:
    return (
        ()
        if options.group is None
        else consumed_offsets(view, connection.store_id, options.group, read_positions, is_new=is_new)
    )


def _check_plan(view: View, connection: Connection, options: SinkOptions, batch: MicroBatch) -> None:
    """Raise if a committed micro-batch was planned again with other records, as far as the group's offsets show it.

    A checkpoint that is older by one micro-batch has no offsets for it, so Spark plans it up to what there is now.
    """
    if options.group is not None:
        consumed_offsets(view, connection.store_id, options.group, _read_positions(options, batch), is_new=False)


def _check_topics(view: View, batches: Sequence[NewBatch]) -> None:
    """Raise for a topic that was deleted, or created again, since the tasks wrote for it."""
    for name, topic_id in sorted({(batch.topic, batch.topic_id or "") for batch in batches}):
        topic = view.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            msg = f"topic {name!r} was deleted while the micro-batch ran; nothing was written"
            raise UnknownTopicOrPartitionError(msg)
