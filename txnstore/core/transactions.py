"""The rules of a transaction's coordinator: init, joining, the decision, the end.

The tables are Kafka's: ``TransactionCoordinator`` and ``TransactionMetadata``, with KIP-890's epoch bump at every end.
A transaction that stays inside the coordinator's chain is decided, marked and completed in one entry. If other chains
take part, the entry holds the decision and the own markers, and the answer is :class:`Unfinished`: the markers of the
others follow (:mod:`txnstore.core.markers`), then the completion.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.appending import append_batch, check_added, check_plain_producer, find_batch, partition_of
from txnstore.core.commands import (
    AbortTxn,
    Append,
    Appended,
    Ended,
    EndTxn,
    HoldTxn,
    InitProducer,
    Kept,
    ProducerIdentity,
    Unfinished,
)
from txnstore.core.draft import Draft
from txnstore.core.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    TxnCompleted,
    TxnHeld,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.fences import check_fence, is_foreign
from txnstore.core.groups import commit_offsets
from txnstore.core.markers import leads_group, leads_partition, observe, seal, write_own_markers
from txnstore.core.model import (
    MAX_EPOCH,
    NO_PRODUCER,
    VALID_PREVIOUS_STATES,
    Outcome,
    State,
    Transaction,
    TxnState,
    sorted_tps,
)
from txnstore.core.routing import chain_of_producer
from txnstore.errors import (
    ConcurrentTransactionsError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerFencedError,
)

#: Kafka's ``transaction.max.timeout.ms``.
MAX_TIMEOUT_MS = 900_000
#: Dropped objects are remembered for this long, which exceeds the age of any upload by more than clocks differ.
FORGET_AFTER_MS = 7 * 86_400_000

_COMPLETED = {TxnState.COMPLETE_COMMIT: Outcome.COMMIT, TxnState.COMPLETE_ABORT: Outcome.ABORT}


# Init -----------------------------------------------------------------------------------------------------------------


def init_producer(draft: Draft, command: InitProducer) -> ProducerIdentity | Unfinished | Kept:
    """Grant an identity. A transactional one fences its predecessor and ends its transaction first (INIT-01…11)."""
    transactional_id = command.transactional_id
    if transactional_id is None:
        draft.emit(ProducerInitialized(producer_id=draft.state.next_producer_id, epoch=0))
        return ProducerIdentity(draft.state.next_producer_id - 1, 0)
    if not 0 < command.timeout_ms <= MAX_TIMEOUT_MS:
        msg = f"the transaction time-out of {transactional_id!r} must be 1 to {MAX_TIMEOUT_MS} ms, not "
        raise InvalidTxnTimeoutError(msg + str(command.timeout_ms))
    txn = draft.state.transactions.get(transactional_id)
    if txn is None:
        if command.expected is not None:
            msg = f"transactional id {transactional_id!r} is not known (any more)"
            raise InvalidPidMappingError(msg)
        return _grant(draft, command, draft.state.next_producer_id, 0)
    if command.expected is not None:
        held = _expected_identity(txn, command.expected)
        if held is not None:
            # An end has bumped the epoch that the caller holds, so nothing else does; its transaction is over for good.
            return _grant(draft, command, txn.producer_id, txn.epoch) if txn.state in _COMPLETED else held
    if command.keep_held and txn.state is TxnState.ONGOING and txn.held != NO_PRODUCER:
        return _keep(draft, command, txn)
    unfinished = _end(draft, txn, Outcome.ABORT) if txn.state is TxnState.ONGOING else unfinished_of(txn)
    if unfinished is not None:
        return unfinished
    txn = draft.state.transactions[transactional_id]
    if command.expected is not None and _is_last(txn, command.expected):
        # The end has bumped the epoch that the caller held.
        return _grant(draft, command, txn.producer_id, txn.epoch)
    if txn.epoch >= MAX_EPOCH:
        return _grant(draft, command, draft.state.next_producer_id, 0)
    return _grant(draft, command, txn.producer_id, txn.epoch + 1)


def _expected_identity(txn: Transaction, expected: tuple[int, int]) -> ProducerIdentity | None:
    """The identity that a repeated init was granted before, or None if the epoch is to be bumped now (KIP-360)."""
    if expected in {(txn.producer_id, txn.epoch), _following(txn)}:
        return None
    if _is_last(txn, expected):
        return ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id)
    raise _fenced(txn, ProducerIdentity(*expected, txn.transactional_id))


def _grant(draft: Draft, command: InitProducer, producer_id: int, epoch: int) -> ProducerIdentity:
    """Grant an identity; only a bump that its own holder asked for remembers the one before, for a retry (INIT-10)."""
    last_id, last_epoch = command.expected or (NO_PRODUCER, NO_PRODUCER)
    draft.emit(
        ProducerInitialized(
            producer_id=producer_id,
            epoch=epoch,
            transactional_id=command.transactional_id,
            timeout_ms=command.timeout_ms,
            last_epoch=last_epoch,
            previous_producer_id=last_id if last_id != producer_id else NO_PRODUCER,
        ),
    )
    return ProducerIdentity(producer_id, epoch, command.transactional_id)


def _keep(draft: Draft, command: InitProducer, txn: Transaction) -> Kept:
    """Grant the next epoch without ending the transaction that an outside coordinator decides (TPC-04)."""
    if txn.epoch >= MAX_EPOCH:
        msg = f"transaction {txn.transactional_id!r} was taken over so often that its epochs are used up: abort it"
        raise InvalidTxnStateError(msg)
    draft.emit(
        ProducerInitialized(
            producer_id=txn.producer_id,
            epoch=txn.epoch + 1,
            transactional_id=txn.transactional_id,
            timeout_ms=command.timeout_ms,
            keeps=True,
        ),
    )
    identity = ProducerIdentity(txn.producer_id, txn.epoch + 1, txn.transactional_id)
    return Kept(identity, tuple(sorted_tps(txn.partitions)), tuple(sorted(txn.groups)))


def hold(draft: Draft, command: HoldTxn) -> None:
    """All of the transaction is written; an outside coordinator decides it. It may be told again (TPC-03)."""
    producer = command.producer
    if is_foreign(draft.state, producer.producer_id):
        seal(draft, command)
        return
    txn = _transaction(draft.state, producer)
    if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
        raise _fenced(txn, producer)
    if txn.state is not TxnState.ONGOING:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: there is nothing to prepare"
        raise InvalidTxnStateError(msg)
    if txn.held == NO_PRODUCER:
        draft.emit(
            TxnHeld(transactional_id=txn.transactional_id, producer_id=txn.producer_id, epoch=txn.epoch),
        )


# Append ---------------------------------------------------------------------------------------------------------------


def append(draft: Draft, command: Append) -> tuple[Appended, ...]:
    """Append batches and pending offsets; all or nothing."""
    producer = command.producer
    if producer.transactional_id is None:
        if command.offsets:
            msg = "offsets can only be sent inside a transaction"
            raise InvalidTxnStateError(msg)
        check_plain_producer(draft.state, producer)
        check_fence(draft.state, producer)
    elif chain_of_producer(producer.producer_id) == draft.state.chain:
        txn = _transaction(draft.state, producer)
        if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
            raise _fenced(txn, producer)
        _join(draft, command)
    else:
        added = check_added(draft.state, command)
        check_fence(draft.state, producer)
        observe(draft, ((added.chain, added.sequence),))
        for offsets in command.offsets:
            commit_offsets(draft, offsets, producer)
    return tuple(append_batch(draft, producer, batch) for batch in command.batches)


def _join(draft: Draft, command: Append | EndTxn) -> None:
    """Record partitions and groups in the transaction before their data (ADD-01), and the groups' offsets (OFF-02)."""
    identity = command.producer
    transactional_id = identity.transactional_id
    if transactional_id is None:  # pragma: no cover - both callers have looked the id up
        msg = "only a transactional producer joins a transaction"
        raise InvalidTxnStateError(msg)
    txn = draft.state.transactions[transactional_id]
    if txn.outcome is not None:
        raise _still_ending(txn)
    if txn.held != NO_PRODUCER and (command.batches or command.offsets or isinstance(command, Append)):
        msg = f"transaction {transactional_id!r} is prepared for an outside coordinator: nothing can join it any more"
        raise InvalidTxnStateError(msg)
    for batch in command.batches:
        partition_of(draft.state, batch.tp)
    joining = {batch.tp for batch in command.batches}
    groups = {offsets.group for offsets in command.offsets if offsets.offsets}
    topic_ids: dict[str, str] = {}
    if isinstance(command, Append):
        joining |= set(command.partitions)
        groups |= set(command.groups)
        topic_ids = {name: of for name, of in command.topic_ids if of not in txn.topic_ids.get(name, ())}
    new = sorted_tps(joining - txn.partitions)
    if new or topic_ids:
        draft.emit(
            PartitionsAdded(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                partitions=new,
                topic_ids=topic_ids,
            ),
        )
    for group in sorted(groups - txn.groups):
        draft.emit(
            OffsetsAdded(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                group=group,
            ),
        )
    for offsets in command.offsets:
        commit_offsets(draft, offsets, identity)


# End ------------------------------------------------------------------------------------------------------------------


def end(draft: Draft, command: EndTxn) -> Ended:
    """Commit or abort: what is left to append, the decision, and what of the end can be done in this chain."""
    producer = command.producer
    txn = _transaction(draft.state, producer)
    if txn.outcome is not None or (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
        return _repeated_end(draft.state, txn, command)
    if knows_version(txn, command.versions):
        return _repeated_version(draft, txn)
    _join(draft, command)
    appended = tuple(append_batch(draft, producer, batch) for batch in command.batches)
    txn = draft.state.transactions[txn.transactional_id]
    begun = txn.state is TxnState.ONGOING
    if not begun and command.outcome is Outcome.COMMIT and not command.versions:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: nothing was sent, so nothing can be ended"
        raise InvalidTxnStateError(msg)
    for scope, version in command.versions if command.outcome is Outcome.COMMIT else ():
        draft.emit(VersionRecorded(transactional_id=txn.transactional_id, scope=scope, version=version))
    unfinished = None
    if begun or command.outcome is Outcome.ABORT:
        # An abort of nothing still bumps the epoch, which a client needs whose append has an unknown end (TV2-08).
        observe(draft, command.after)
        unfinished = _end(draft, draft.state.transactions[txn.transactional_id], command.outcome)
    return Ended(_next_identity(draft.state, producer), appended, unfinished=unfinished)


def _repeated_version(draft: Draft, txn: Transaction) -> Ended:
    """The version of the job is committed already; what this attempt has registered before must not be."""
    unfinished = _end(draft, txn, Outcome.ABORT) if txn.state is TxnState.ONGOING else None
    identity = ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id)
    return Ended(_next_identity(draft.state, identity), repeated=True, unfinished=unfinished)


def _repeated_end(state: State, txn: Transaction, command: EndTxn) -> Ended:
    """The answer to an end whose first answer was lost: the same, with the identity that follows (TV2-02, TV2-03)."""
    producer = command.producer
    if txn.outcome is not None and (producer.producer_id, producer.epoch) == _following(txn):
        raise _still_ending(txn)
    outcome = outcome_of(txn, producer)
    if outcome is Outcome.ABORT and knows_version(txn, command.versions):
        return Ended(_next_identity(state, producer), repeated=True, unfinished=unfinished_of(txn))
    if outcome is None or (outcome is Outcome.ABORT and command.outcome is Outcome.COMMIT):
        # An abort that the producer did not ask for may have ended it, so it is fenced (KAFKA-20785).
        raise _fenced(txn, producer)
    if outcome is not command.outcome:
        msg = f"transaction {txn.transactional_id!r} of {producer} is committed: it cannot be aborted any more"
        raise InvalidTxnStateError(msg)
    appended = tuple(find_batch(state, batch, txn.updated_at) for batch in command.batches)
    return Ended(_next_identity(state, producer), appended, unfinished=unfinished_of(txn))


def was_decided(txn: Transaction, command: EndTxn) -> bool:
    """Whether an earlier attempt of this end was decided, so that it is answered as that was."""
    outcome = outcome_of(txn, command.producer)
    return outcome is command.outcome or (outcome is Outcome.ABORT and knows_version(txn, command.versions))


def knows_version(txn: Transaction, versions: Iterable[tuple[str, int]]) -> bool:
    """Whether one of these versions of a job, pairs of (scope, version), or a later one is committed."""
    return any(txn.versions.get(scope, -1) >= version for scope, version in versions)


def outcome_of(txn: Transaction, producer: ProducerIdentity) -> Outcome | None:
    """How the transaction of this producer id and epoch was decided; None if it was not, or too long ago."""
    identity = (producer.producer_id, producer.epoch)
    if txn.outcome is not None and identity == (txn.producer_id, txn.epoch):
        return txn.outcome
    return _COMPLETED.get(txn.state) if _is_last(txn, identity) else None


def abort(draft: Draft, command: AbortTxn) -> Unfinished | None:
    """Abort what another process left (TMO-01, TMO-03): the epoch is bumped in the same entry, so its owner is fenced.

    A transaction that is decided already is only to be finished: what was decided stays (INIT-05).
    """
    txn = draft.state.transactions.get(command.transactional_id)
    if txn is None or command.identity not in {None, (txn.producer_id, txn.epoch)}:
        return None
    if txn.state is not TxnState.ONGOING or (command.expired_only and not txn.expired(draft.state.timestamp)):
        return unfinished_of(txn)
    return _end(draft, txn, Outcome.ABORT)


def _end(draft: Draft, txn: Transaction, outcome: Outcome) -> Unfinished | None:
    """Decide, write the markers of this chain, and complete if there are no others.

    The markers carry the next epoch, so that no late batch fits (KIP-890). That epoch is the fence, too, when a
    successor aborts what its predecessor left (INIT-04): one entry holds the bump and the abort.
    """
    prepared = TxnState.PREPARE_COMMIT if outcome is Outcome.COMMIT else TxnState.PREPARE_ABORT
    if txn.state not in VALID_PREVIOUS_STATES[prepared]:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: it cannot become {prepared.name}"
        raise InvalidTxnStateError(msg)
    rotate = txn.epoch >= MAX_EPOCH
    draft.emit(
        TxnPrepared(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=outcome,
            next_producer_id=draft.state.next_producer_id if rotate else txn.producer_id,
            next_epoch=0 if rotate else txn.epoch + 1,
        ),
    )
    decided = unfinished_of(draft.state.transactions[txn.transactional_id])
    assert decided is not None  # it was prepared in the line above
    write_own_markers(draft, decided)
    if _takes_others(draft.state, decided):
        return decided
    complete(draft, decided)
    return None


def complete(draft: Draft, decided: Unfinished) -> None:
    """All markers are written; does nothing if that is known already."""
    txn = draft.state.transactions.get(decided.transactional_id)
    if txn is None or txn.outcome is None or (txn.producer_id, txn.epoch) != (decided.producer_id, decided.epoch):
        return
    draft.emit(
        TxnCompleted(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=txn.outcome,
            next_producer_id=txn.next_producer_id,
            next_epoch=txn.next_epoch,
        ),
    )


def unfinished_of(txn: Transaction) -> Unfinished | None:
    """What is to be done for a transaction that is decided, but not known to be ended everywhere."""
    if txn.outcome is None:
        return None
    return Unfinished(
        txn.transactional_id,
        txn.producer_id,
        txn.epoch,
        txn.outcome,
        tuple(sorted_tps(txn.partitions)),
        tuple(sorted(txn.groups)),
        tuple((name, topic_id) for name in sorted(txn.topic_ids) for topic_id in txn.topic_ids[name]),
    )


def _takes_others(state: State, decided: Unfinished) -> bool:
    """Whether other chains take part."""
    return not (
        all(leads_partition(state, tp) for tp in decided.partitions)
        and all(leads_group(state, group) for group in decided.groups)
    )


# Shared ---------------------------------------------------------------------------------------------------------------


def _transaction(state: State, producer: ProducerIdentity) -> Transaction:
    """The transaction of a producer; the mapping is checked before the epoch (ADD-03, END-02)."""
    txn = state.transactions.get(producer.transactional_id or "")
    if txn is None:
        msg = f"transactional id {producer.transactional_id!r} is not known (any more)"
        raise InvalidPidMappingError(msg)
    if txn.outcome is not None and (producer.producer_id, producer.epoch) == _following(txn):
        raise _still_ending(txn)
    if state.transactional_ids.get(producer.producer_id) != txn.transactional_id:
        msg = f"transactional id {txn.transactional_id!r} maps to producer id {txn.producer_id}, not "
        raise InvalidPidMappingError(msg + str(producer.producer_id))
    return txn


def _next_identity(state: State, producer: ProducerIdentity) -> ProducerIdentity:
    """Who the producer is after its transaction has ended, or will have."""
    txn = state.transactions[producer.transactional_id or ""]
    producer_id, epoch = _following(txn) if txn.outcome is not None else (txn.producer_id, txn.epoch)
    return ProducerIdentity(producer_id, epoch, txn.transactional_id)


def _following(txn: Transaction) -> tuple[int, int]:
    """The (producer id, epoch) of the transaction after one that is decided; nobody's if none is."""
    return (txn.next_producer_id, txn.next_epoch) if txn.outcome is not None else (NO_PRODUCER, NO_PRODUCER)


def _is_last(txn: Transaction, identity: tuple[int, int]) -> bool:
    """Whether this (producer id, epoch) was the one before the current one, so that it may ask what became of it."""
    producer_id, epoch = identity
    before = txn.producer_id if txn.previous_producer_id == NO_PRODUCER else txn.previous_producer_id
    return epoch != NO_PRODUCER and (producer_id, epoch) == (before, txn.last_epoch)


def _still_ending(txn: Transaction) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the previous transaction of {txn.transactional_id!r} is still being completed ({txn.state.name})"
    )


def _fenced(txn: Transaction, producer: ProducerIdentity) -> ProducerFencedError:
    msg = (
        f"{producer} is fenced: transactional id {txn.transactional_id!r} is at producer id {txn.producer_id}, "
        f"epoch {txn.epoch}"
    )
    return ProducerFencedError(msg)
