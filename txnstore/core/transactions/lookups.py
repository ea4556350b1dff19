"""Lookups in the coordinator's transaction table: the transaction of a producer, its outcome, its next identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnstore.core.log.appending import find_repeated
from txnstore.core.log.commands import Append, Appended
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.state import State, leads_group, leads_partition
from txnstore.core.transactions.commands import DecidedTransaction, EndTxn
from txnstore.core.transactions.model import COMPLETED, DECIDED, Transaction, TxnState
from txnstore.errors import ConcurrentTransactionsError, InvalidPidMappingError, ProducerFencedError


def was_decided(txn: Transaction, command: EndTxn) -> bool:
    """Whether an earlier attempt of this end was decided, so that this one gets the same answer."""
    outcome = earlier_outcome(txn, command)
    return outcome is command.outcome or (outcome is Outcome.ABORT and knows_version(txn, command.versions))


def earlier_outcome(txn: Transaction, command: EndTxn) -> Outcome | None:
    """Return the outcome of an earlier attempt of this end; None if there was none.

    A commit records its versions. So if the last transaction of the producer was committed without them, it was another
    one: of a second process that has the same identity.
    """
    outcome = outcome_of(txn, command.producer)
    if outcome is Outcome.COMMIT and command.versions and not knows_version(txn, command.versions):
        return None
    return outcome


def knows_version(txn: Transaction, versions: Iterable[tuple[str, int]]) -> bool:
    """Whether one of the ``versions`` of a job, pairs of (scope, version), or a later one of its scope is committed."""
    return any(txn.versions.get(scope, -1) >= version for scope, version in versions)


def outcome_of(txn: Transaction, producer: ProducerIdentity) -> Outcome | None:
    """Return the outcome of the id's last decided transaction; None if it is not of this producer id and epoch."""
    identity = (producer.producer_id, producer.epoch)
    if txn.state in DECIDED and identity == (txn.producer_id, txn.epoch):
        return DECIDED[txn.state]
    return COMPLETED.get(txn.state) if is_previous_identity(txn, identity) else None


def decided_of(txn: Transaction) -> DecidedTransaction | None:
    """Return the transaction if it is decided and not completed, else None."""
    outcome = DECIDED.get(txn.state)
    if outcome is None:
        return None
    return DecidedTransaction(
        txn.transactional_id,
        txn.producer_id,
        txn.epoch,
        outcome,
        tuple(sorted(txn.partitions)),
        tuple(sorted(txn.groups)),
        tuple((name, topic_id) for name in sorted(txn.topic_ids) for topic_id in txn.topic_ids[name]),
        txn.session_epoch,
    )


def spans_chains(state: State, decided_txn: DecidedTransaction) -> bool:
    """Whether other chains take part in the transaction."""
    return not (
        all(leads_partition(state, tp) for tp in decided_txn.partitions)
        and all(leads_group(state, group) for group in decided_txn.groups)
    )


def transaction_of(state: State, producer: ProducerIdentity) -> Transaction:
    """Return the transaction of a producer; the producer id is checked before the epoch (ADD-03, END-02).

    Raises:
        InvalidPidMappingError: The transactional id does not exist, or has another producer id.
        ConcurrentTransactionsError: The producer has the next identity, and the transaction is not completed.
    """
    txn = state.transactions.get(producer.transactional_id or "")
    if txn is None:
        msg = f"transactional id {producer.transactional_id!r} does not exist: it was never initialized, or has expired"
        raise InvalidPidMappingError(msg)
    if txn.state in DECIDED and (producer.producer_id, producer.epoch) == next_id_and_epoch(txn):
        raise still_ending_error(txn)
    if state.transactional_ids.get(producer.producer_id) != txn.transactional_id:
        msg = f"transactional id {txn.transactional_id!r} maps to producer id {txn.producer_id}, not "
        raise InvalidPidMappingError(msg + str(producer.producer_id))
    return txn


def has_added(txn: Transaction, command: Append) -> bool:
    """Whether the transaction is open, and has all partitions and groups of an append already."""
    tps = {*command.partitions, *(batch.tp for batch in command.batches)}
    groups = {*command.groups, *(offsets.group for offsets in command.offsets if offsets.offsets)}
    return txn.state is TxnState.ONGOING and txn.partitions >= tps and txn.groups >= groups


def repeated_batches(
    states: Mapping[TopicPartition, State], txn: Transaction, command: Append
) -> tuple[Appended, ...] | None:
    """Return where the batches of an append were appended first (SEQ-03).

    None if one of them is not in the window of its partition, or if the append has offsets, which no window shows.

    Args:
        states: For the partition of each batch the state of the chain that leads it.
        txn: The transaction of the producer.
    """
    answers = [
        find_repeated(states[batch.tp].partition(batch.tp), command.producer, batch, txn.session_epoch)
        for batch in command.batches
    ]
    known_answers = tuple(answer for answer in answers if answer is not None)
    if not known_answers or len(known_answers) < len(answers) or command.offsets:
        return None
    return known_answers


def next_identity(state: State, producer: ProducerIdentity) -> ProducerIdentity:
    """Return the identity of the producer after its transaction is completed."""
    txn = state.transactions[producer.transactional_id or ""]
    producer_id, epoch = next_id_and_epoch(txn) if txn.state in DECIDED else (txn.producer_id, txn.epoch)
    return ProducerIdentity(producer_id, epoch, txn.transactional_id)


def next_id_and_epoch(txn: Transaction) -> tuple[int, int]:
    """Return the (producer id, epoch) that a decided transaction grants next; (-1, -1) if it is not decided."""
    return (txn.next_producer_id, txn.next_epoch) if txn.state in DECIDED else (NO_PRODUCER, NO_PRODUCER)


def is_previous_identity(txn: Transaction, identity: tuple[int, int]) -> bool:
    """Whether this (producer id, epoch) is the one before the current one, whose requests may be retried."""
    producer_id, epoch = identity
    producer_id_before = txn.producer_id if txn.previous_producer_id == NO_PRODUCER else txn.previous_producer_id
    return epoch != NO_PRODUCER and (producer_id, epoch) == (producer_id_before, txn.last_epoch)


def still_ending_error(txn: Transaction) -> ConcurrentTransactionsError:
    """Return the error while a decided transaction is not completed (Kafka: CONCURRENT_TRANSACTIONS)."""
    return ConcurrentTransactionsError(
        f"the previous transaction of {txn.transactional_id!r} is still being completed ({txn.state.name})"
    )


def fenced_error(txn: Transaction, producer: ProducerIdentity) -> ProducerFencedError:
    """Return the error of a request with an epoch that is not current."""
    msg = (
        f"{producer} is fenced: transactional id {txn.transactional_id!r} is at producer id {txn.producer_id}, "
        f"epoch {txn.epoch}"
    )
    return ProducerFencedError(msg)
