"""Describes transactions and producers, aborts hanging transactions and fences producers (KIP-664).

Descriptions are read from one consistent view. Each change is a command, decided at the head of a chain, so two
operators who make the same change concurrently make it once (ADM-07).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from txnstore.admin.descriptions import (
    HangingTransaction,
    OpenData,
    ProducerDescription,
    TransactionDescription,
    TransactionHistory,
)
from txnstore.chain.tail import newest, read_entry
from txnstore.connection import Connection
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.blocked import blocked_partitions, known_transaction
from txnstore.core.fences import fenced_epoch, lacks_markers
from txnstore.core.history import HistoryEntry, steps_of
from txnstore.core.log.model import Partition
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_producer, chain_of_transactional_id
from txnstore.core.transactions.commands import AbortTxn, DecidedTransaction, InitProducer, WriteMarkers
from txnstore.core.transactions.model import DECIDED, Transaction, TxnState
from txnstore.core.view import View
from txnstore.errors import TransactionalIdNotFoundError, UnknownTopicOrPartitionError
from txnstore.validation import (
    check_choice,
    check_expression,
    check_id,
    check_integer,
    check_milliseconds,
    check_names,
    check_topic_name,
    nearest,
)

_LOG = logging.getLogger(__name__)

#: Kafka's ``LATE_TRANSACTION_BUFFER_MS`` in seconds: a transaction that is past its timeout by more is hanging.
LATE = 300.0
#: The number of newest entries that a history reads, in all chains together.
HISTORY_ENTRIES = 10_000


# Describing -----------------------------------------------------------------------------------------------------------


def list_transactions(
    connection: Connection,
    state: str | None = None,
    older_than: float | None = None,
    producer_id: int | None = None,
    pattern: str | None = None,
) -> list[Transaction]:
    """Return the transactions by id that match all filters (ADM-01)."""
    wanted_state = _parse_state(state)
    expression = check_expression(pattern)
    age_ms = None if older_than is None else check_milliseconds("older_than", older_than)
    if producer_id is not None:
        check_integer("producer_id", producer_id)
    view = connection.view()
    started_until = None if age_ms is None else connection.runtime.clock() - age_ms
    return [
        txn
        for transactional_id, txn in sorted(view.transactions.items())
        if (wanted_state is None or txn.state is wanted_state)
        and (started_until is None or (txn.started_at is not None and txn.started_at <= started_until))
        and producer_id in (None, txn.producer_id)
        and (expression is None or expression.fullmatch(transactional_id))
    ]


def describe_transaction(view: View, transactional_id: str) -> TransactionDescription:
    """Describe the last transaction of an id."""
    txn = _existing_transaction(view, transactional_id)
    partitions, groups = sorted(txn.partitions), sorted(txn.groups)
    if txn.state in DECIDED:
        chains_without_markers = {
            state.chain for state in view.states if lacks_markers(state, txn.producer_id, txn.epoch)
        }
        partitions = [
            tp
            for tp in partitions
            if chain_of_partition(tp, view.chains) in chains_without_markers and view.log(tp) is not None
        ]
        groups = [name for name in groups if chain_of_group(name, view.chains) in chains_without_markers]
    return TransactionDescription(
        transactional_id=txn.transactional_id,
        chain=chain_of_transactional_id(txn.transactional_id, view.chains),
        state=txn.state,
        producer_id=txn.producer_id,
        epoch=txn.epoch,
        timeout_ms=txn.timeout_ms,
        started_at=txn.started_at,
        first_entry=txn.first_entry or None,
        updated_at=txn.updated_at,
        prepared=txn.is_prepared,
        partitions=tuple(partitions),
        groups=tuple(groups),
        versions=dict(sorted(txn.versions.items())),
        open=tuple(_open_data(view, txn.producer_id)),
    )


def describe_producers(view: View, tp: TopicPartition) -> list[ProducerDescription]:
    """Describe the producers of a partition, by id."""
    log = existing_log(view, tp)
    return [
        ProducerDescription(
            producer_id=producer_id,
            epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            first_offset=log.open_txns.get(producer_id),
            transactional_id=view.transactional_ids.get(producer_id),
        )
        for producer_id, producer in sorted(log.producers.items(), key=lambda item: item[0])
    ]


def find_hanging(connection: Connection, topic: str | None = None, late: float = LATE) -> list[HangingTransaction]:
    """Find hanging transactions, first by partition, then by group."""
    late_ms = check_milliseconds("late", late)
    view = connection.view()
    if topic is not None and check_topic_name(topic) not in view.topics:
        msg = f"there is no topic {topic!r}{nearest(topic, view.topics)}"
        raise UnknownTopicOrPartitionError(msg)
    now = connection.runtime.clock()
    return [*_hanging_data(view, topic, now, late_ms), *_hanging_offsets(view, topic, now, late_ms)]


def _hanging_data(view: View, topic: str | None, now: int, late_ms: int) -> Iterator[HangingTransaction]:
    """The hanging transactions with open records, by partition."""
    blocked_tps = {part.tp for part in blocked_partitions(view)}
    for tp in sorted(view.partitions):
        log = view.log(tp)
        if log is None or (topic is not None and tp.topic != topic):
            continue
        for producer_id, first_offset in sorted(log.open_txns.items(), key=lambda item: item[0]):
            txn = known_transaction(view, tp, producer_id)
            reason = _hanging_reason(txn, now, late_ms, blocks=tp in blocked_tps)
            if reason is not None:
                producer = log.producers[producer_id]
                yield HangingTransaction(
                    tp=tp,
                    producer_id=producer_id,
                    epoch=producer.epoch,
                    first_offset=first_offset,
                    last_timestamp=producer.last_timestamp,
                    transactional_id=view.transactional_ids.get(producer_id),
                    reason=reason,
                )


def _hanging_offsets(view: View, topic: str | None, now: int, late_ms: int) -> Iterator[HangingTransaction]:
    """The hanging transactions with pending offsets, by group."""
    for group_id, group in sorted(view.groups.items()):
        for producer_id, pending in sorted(group.pending.items(), key=lambda item: item[0]):
            if topic is not None and all(tp.topic != topic for tp in pending):
                continue
            txn = view.owner(producer_id)
            txn_with_group = txn if txn is not None and group_id in txn.groups else None
            reason = _hanging_reason(txn_with_group, now, late_ms, blocks=bool(pending))
            if reason is not None:
                state = view.states[chain_of_group(group_id, view.chains)]
                epoch = txn.epoch if txn is not None else fenced_epoch(state, producer_id)
                last_committed_at = max((offset.committed_at for offset in pending.values()), default=0)
                yield HangingTransaction(
                    tp=None,
                    producer_id=producer_id,
                    epoch=epoch,
                    first_offset=None,
                    last_timestamp=last_committed_at,
                    transactional_id=view.transactional_ids.get(producer_id),
                    reason=reason,
                    group=group_id,
                )


def _hanging_reason(txn: Transaction | None, now: int, late_ms: int, *, blocks: bool) -> str | None:
    """The reason why an open transaction hangs in a partition or group; None if it does not.

    Args:
        txn: The transaction, if its coordinator knows it.
        blocks: Whether readers wait for it, so that it hangs as soon as its timeout has passed.
    """
    if txn is None:
        return "unknown"
    if txn.is_expired(now - late_ms):
        return "late"
    return "expired" if blocks and txn.is_expired(now) else None


def transaction_history(
    connection: Connection,
    transactional_id: str,
    limit: int = HISTORY_ENTRIES,
    since: int | None = None,
) -> TransactionHistory:
    """Read the steps of the transactions of an id. One GET for each entry."""
    check_id("transactional.id", transactional_id)
    check_integer("limit", limit, 1)
    if since is not None:
        check_integer("since", since)
    view = connection.view()
    objects = connection.objects
    keys = connection.keys
    deleted_up_to = tuple(connection.chains.boundaries())
    ranges = newest([state.sequence for state in view.states], limit, deleted_up_to)
    places = [(chain, sequence) for chain, sequences in enumerate(ranges) for sequence in sequences]
    entries_by_chain: dict[int, list[HistoryEntry]] = {}
    complete = all(sequences.start <= 1 for sequences in ranges)
    cut_by_limit = set(range(len(ranges)))
    results = connection.pool.map(lambda place: read_entry(objects, keys, *place), places)
    for (chain, sequence), entry_and_size in zip(places, results, strict=True):
        if entry_and_size is None:
            complete = False
            continue
        entry = entry_and_size[0]
        if since is not None and entry.timestamp < since:
            complete = False
            cut_by_limit.discard(chain)  # The limit omits only entries from before ``since``.
            continue
        entries_by_chain.setdefault(chain, []).append(
            HistoryEntry(chain, sequence, entry.timestamp, entry.writer_id, entry.events, entry.principals)
        )
    steps = steps_of(transactional_id, entries_by_chain)
    if not steps:
        _existing_transaction(view, transactional_id)
    is_limited = any(ranges[chain].start > deleted_up_to[chain] + 1 for chain in cut_by_limit)
    return TransactionHistory(transactional_id, tuple(steps), complete, deleted_up_to, is_limited)


# Changing -------------------------------------------------------------------------------------------------------------


def abort_transaction(connection: Connection, transactional_id: str) -> bool:
    """See :meth:`txnstore.Store.abort_transaction`."""
    view = connection.view()
    return _end_transaction(connection, view, _existing_transaction(view, transactional_id))


def abort_open_data(connection: Connection, tp: TopicPartition, producer_id: int) -> bool:
    """Abort the open transaction of a producer in a partition; returns whether there was one (ADM-05).

    If its coordinator knows the transaction, the whole transaction is ended. Else an abort marker is written to this
    partition only, which needs the right CLUSTER_ACTION; if its epoch is the current one of its transactional id, that
    producer is fenced first, which needs WRITE on the id.
    """
    view = connection.view()
    chains = connection.chains
    log = existing_log(view, tp)
    if check_integer("producer_id", producer_id) not in log.open_txns:
        chains.make_durable(view)
        return False
    txn = view.owner(producer_id)
    if txn is not None and tp in txn.partitions:
        return _end_transaction(connection, view, txn)
    connection.check_rights(CLUSTER_ACTION)  # No coordinator has decided this marker.
    transactional_id = view.transactional_ids.get(producer_id, "")
    epoch = log.producers[producer_id].epoch
    if txn is not None and txn.epoch <= epoch and not _end_transaction(connection, view, txn):
        # The marker has the next epoch, so the producer must not append with its epoch any more.
        connection.submit(_reinitialize_command(connection, txn))
    hanging = DecidedTransaction(transactional_id, producer_id, epoch, Outcome.ABORT, (tp,), ())
    chain = chain_of_partition(tp, len(chains))
    coordinator_chain = chain_of_producer(producer_id)
    if not 0 <= coordinator_chain < len(chains):
        coordinator_chain = chain  # No chain has granted this producer id.
    chains[chain].submit(
        WriteMarkers(hanging, (coordinator_chain, view.states[coordinator_chain].sequence), copies_current=True)
    )
    return True


def fence_producers(connection: Connection, ids: Iterable[str]) -> dict[str, ProducerIdentity]:
    """Fence the owners of ids and abort their open transactions (INIT-17); return the new identities."""
    names = [check_id("transactional.id", name) for name in check_names("transactional_ids", ids)]
    view = connection.view()
    identities: dict[str, ProducerIdentity] = {}
    for name in dict.fromkeys(names):
        txn = view.transactions.get(name)
        command = InitProducer(name) if txn is None else _reinitialize_command(connection, txn)
        identity = identities[name] = connection.submit(command)
        extra = {"transactional_id": name, "producer_id": identity.producer_id, "epoch": identity.epoch}
        _LOG.info("producers fenced by an administrator", extra=extra)
    return identities


def _reinitialize_command(connection: Connection, txn: Transaction) -> InitProducer:
    """An init that keeps the timeout of the id, unless it exceeds the maximum of a rebuilt ``store.json``."""
    timeout_ms = min(txn.timeout_ms, connection.transaction_max_timeout_ms)
    return InitProducer(txn.transactional_id, timeout_ms, two_phase=txn.two_phase)


def _end_transaction(connection: Connection, view: View, txn: Transaction) -> bool:
    """Abort a transaction of a view, or complete a decided one, with the same command; return whether it was open."""
    if txn.state is not TxnState.ONGOING and txn.state not in DECIDED:
        connection.chains.make_durable(view)
        return False
    connection.coordinator.submit(AbortTxn(txn.transactional_id, (txn.producer_id, txn.epoch)))
    extra = {"transactional_id": txn.transactional_id, "producer_id": txn.producer_id, "epoch": txn.epoch}
    _LOG.info("transaction ended by an administrator", extra={**extra, "state": txn.state.name})
    return True


# Shared ---------------------------------------------------------------------------------------------------------------


def _parse_state(name: str | None) -> TxnState | None:
    """The state of a transaction with this name, in upper or lower case."""
    if name is None:
        return None
    return TxnState[check_choice("state", str(name).upper(), TxnState.__members__)]


def _existing_transaction(view: View, transactional_id: str) -> Transaction:
    """Return the transaction of an id; an unknown one is an error that suggests a similar id."""
    txn = view.transactions.get(check_id("transactional.id", transactional_id))
    if txn is None:
        msg = f"there is no transactional id {transactional_id!r}{nearest(transactional_id, view.transactions)}"
        raise TransactionalIdNotFoundError(msg)
    return txn


def existing_log(view: View, tp: TopicPartition) -> Partition:
    """Return the log of a partition.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic, or no such partition of it.
    """
    log = view.log(TopicPartition(check_topic_name(tp.topic), check_integer("partition", tp.partition)))
    if log is None:
        view.find_topic(tp.topic)  # Raises if there is none.
        msg = f"there is no partition {tp}"
        raise UnknownTopicOrPartitionError(msg)
    return log


def _open_data(view: View, producer_id: int) -> Iterator[OpenData]:
    """The open batches of a producer, by partition."""
    for tp in sorted(view.partitions):
        log = view.partitions[tp]
        if producer_id in log.open_txns:
            yield OpenData(tp, log.open_txns[producer_id], log.last_stable_offset, log.high_watermark)
