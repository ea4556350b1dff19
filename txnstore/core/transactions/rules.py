"""The rules of a transaction: joining, decision, completion.

The tables are Kafka's (``TransactionCoordinator``, ``TransactionMetadata``), with the epoch bump of KIP-890 at every
end. A transaction inside the coordinator's chain is decided, marked and completed in one entry. If other chains take
part, this entry holds the decision and the markers of this chain, and the answer is a
:class:`~txnstore.core.transactions.commands.DecidedTransaction`: the markers of the other chains follow, then the
completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from txnstore.core.authorization.rights import OR_CLUSTER_ACTION, Right, no_right, right_to, writes_id
from txnstore.core.declaration import command
from txnstore.core.fences import check_fence, fenced_epoch, is_left_open, lacks_markers
from txnstore.core.groups.events import GroupMarkerWritten
from txnstore.core.groups.offsets import commit_offsets, reads_topics_of
from txnstore.core.log.appending import (
    NO_BATCHES,
    LastBatches,
    append_batches,
    begin_append,
    check_added,
    check_granting_chain,
    check_plain_producer,
    find_batch,
    fold_batches,
    marker_written,
    partition_of,
    with_markers,
)
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.events import MarkerWritten, ProducerFenced
from txnstore.core.log.model import Batch, Partition
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_producer
from txnstore.core.state import Draft, State, is_foreign, leads_group, leads_partition, observe, replace
from txnstore.core.transactions.commands import (
    AbortTxn,
    CompleteTxn,
    DecidedTransaction,
    Ended,
    EndTxn,
    FenceProducer,
    PrepareTxn,
    WriteMarkers,
)
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    SessionContinued,
    TxnCompleted,
    TxnDecided,
    TxnPrepared,
    VersionRecorded,
)
from txnstore.core.transactions.lookups import (
    decided_of,
    earlier_outcome,
    fenced_error,
    has_added,
    knows_version,
    next_id_and_epoch,
    next_identity,
    repeated_batches,
    spans_chains,
    still_ending_error,
    transaction_of,
)
from txnstore.core.transactions.machine import check_transition
from txnstore.core.transactions.model import (
    COMPLETED,
    COMPLETING,
    DECIDED,
    MAX_EPOCH,
    PREPARING,
    Transaction,
    TxnState,
)
from txnstore.core.transactions.sessions import SESSIONS
from txnstore.errors import InvalidTxnStateError, UnknownTopicOrPartitionError


@command(CompleteTxn, route=None, right=no_right)
def complete_transaction(draft: Draft, command: CompleteTxn) -> None:
    """Complete a decided transaction; without effect if it is completed."""
    events_before = len(draft.events)
    complete(draft, command.decided)
    if len(draft.events) > events_before:
        observe(draft, command.after)


def prepares(command: PrepareTxn, _: State) -> list[Right]:
    """The right to write as the id; none in other chains, which follow the coordinator's decision."""
    return writes_id(command.producer) if command.after is None else []


@command(PrepareTxn, route=None, right=prepares, repeats=True)
def prepare(draft: Draft, command: PrepareTxn) -> None:
    """Prepare a transaction for an external coordinator; may be repeated (TPC-03).

    Raises:
        ProducerFencedError: The producer is fenced.
        ConcurrentTransactionsError: Another process has decided the transaction, and it is not completed.
        InvalidTxnStateError: The transaction is not open.
    """
    producer = command.producer
    if is_foreign(draft.state, producer.producer_id):
        _prepare_foreign(draft, command)
        return
    txn = transaction_of(draft.state, producer)
    if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
        raise fenced_error(txn, producer)
    if txn.state in DECIDED:
        raise still_ending_error(txn)
    if txn.state is not TxnState.ONGOING:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: there is nothing to prepare"
        raise InvalidTxnStateError(msg)
    if txn.in_session:
        raise _two_phase_session_error(txn)
    if not txn.is_prepared:
        draft.emit(
            TxnPrepared(transactional_id=txn.transactional_id, producer_id=txn.producer_id, epoch=txn.epoch),
        )


def partitions_of_append(command: Append | EndTxn) -> Iterator[TopicPartition]:
    """The partitions of batches and offsets, and those that join the transaction without data."""
    yield from (batch.tp for batch in command.batches)
    yield from command.partitions if isinstance(command, Append) else ()
    yield from (offset.tp for offsets in command.offsets for offset in offsets.offsets)


def appends(command: Append, _: State) -> list[Right]:
    """The rights to write as the id, to be a member of the groups, to write topics, and to read those of offsets."""
    rights = writes_id(command.producer)
    if command.groups or command.offsets:
        rights.append(right_to("READ", "GROUP", *{*command.groups, *(offsets.group for offsets in command.offsets)}))
    topics = {batch.topic for batch in command.batches}
    if command.partitions:
        topics.update(tp.topic for tp in command.partitions)
    if topics:
        rights.append(right_to("WRITE", "TOPIC", *topics))
    return rights + reads_topics_of(command.offsets) if command.offsets else rights


@command(Append, route=None, right=appends, partitions=partitions_of_append, repeats=True)
def append(draft: Draft, command: Append) -> tuple[Appended, ...]:
    """Append batches and pending offsets, all or none."""
    producer = command.producer
    session_epoch = NO_PRODUCER
    if producer.transactional_id is None:
        if command.offsets:
            msg = "offsets can only be sent inside a transaction"
            raise InvalidTxnStateError(msg)
        check_plain_producer(draft.state, producer)
        check_fence(draft.state, producer)
    elif chain_of_producer(producer.producer_id) == draft.state.chain:
        txn = transaction_of(draft.state, producer)
        if (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
            raise fenced_error(txn, producer)
        session_epoch = txn.session_epoch
        if command.added_only and not has_added(txn, command):
            return _answer_repeated(draft.state, txn, command)
        join(draft, command)
    else:
        added_txn = check_added(draft.state, command)
        check_granting_chain(draft.state, producer)
        check_fence(draft.state, producer)
        session_epoch = added_txn.session_epoch
        observe(draft, ((added_txn.chain, added_txn.sequence),))
        for offsets in command.offsets:
            commit_offsets(draft, offsets, producer)
    return append_batches(draft, producer, command.batches, session_epoch)


def _answer_repeated(state: State, txn: Transaction, command: Append) -> tuple[Appended, ...]:
    """Answer an append outside the open transaction, if its batches repeat earlier ones of the session (SEQ-03).

    Raises:
        InvalidTxnStateError: A batch repeats none (ADD-06), or the append has parts for other chains, of which this one
            does not know the batches: the coordinator looks them up after the refusal.
    """
    answers = None
    has_parts_elsewhere = command.partitions or command.groups
    if not has_parts_elsewhere:
        answers = repeated_batches({batch.tp: state for batch in command.batches}, txn, command)
    if answers is None:
        msg = f"{command.producer} has not added all its partitions and groups to the transaction ({txn.state.name})"
        raise InvalidTxnStateError(msg)
    return answers


def join(draft: Draft, command: Append | EndTxn) -> None:
    """Emit the partitions and groups that are new to the transaction (ADD-01), then its pending offsets (OFF-02).

    The batches of the command are appended by the caller, afterwards.

    Raises:
        ConcurrentTransactionsError: The previous transaction is not completed (ADD-05).
        InvalidTxnStateError: The transaction is prepared for an external coordinator (TPC-03).
        UnknownTopicOrPartitionError: A partition does not exist, or its topic is being deleted.
    """
    identity = command.producer
    transactional_id = identity.transactional_id
    if transactional_id is None:  # pragma: no cover - both callers have looked the id up
        msg = "only a transactional producer joins a transaction"
        raise InvalidTxnStateError(msg)
    txn = draft.state.transactions[transactional_id]
    _check_takes_data(txn, command)
    joining_tps = {batch.tp for batch in command.batches}
    groups = {offsets.group for offsets in command.offsets if offsets.offsets}
    topic_ids: dict[str, str] = {}
    renews = False
    if isinstance(command, Append):
        renews = command.renews
        joining_tps |= set(command.partitions)
        groups |= set(command.groups)
        topic_ids = {
            name: topic_id for name, topic_id in command.topic_ids if topic_id not in txn.topic_ids.get(name, ())
        }
    new_tps, new_groups = sorted(joining_tps - txn.partitions), sorted(groups - txn.groups)
    for tp in new_tps:
        if leads_partition(draft.state, tp):
            partition_of(draft.state, tp)
    if new_tps or topic_ids or renews or new_groups:
        check_transition(txn, TxnState.ONGOING)
    if new_tps or topic_ids or renews:
        draft.emit(
            PartitionsAdded(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                partitions=new_tps,
                topic_ids=topic_ids,
            ),
        )
    for group in new_groups:
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


def _check_takes_data(txn: Transaction, command: Append | EndTxn) -> None:
    """Check that the transaction of an id is completed or open, and not prepared if the command has data for it."""
    if txn.state in DECIDED:
        raise still_ending_error(txn)
    if txn.is_prepared and (command.batches or command.offsets or isinstance(command, Append)):
        msg = f"transaction {txn.transactional_id!r} is prepared for an external coordinator and takes no more data"
        raise InvalidTxnStateError(msg)


def ends(command: EndTxn, state: State) -> list[Right]:
    """The rights of an append with the last batches and offsets: earlier ones were checked when they were added."""
    return appends(Append(command.producer, command.batches, command.offsets), state)


@command(EndTxn, route=None, right=ends, partitions=partitions_of_append, repeats=True)
def end(draft: Draft, command: EndTxn) -> Ended:
    """Commit or abort: append the last batches, decide, and end the transaction in this chain.

    Raises:
        ProducerFencedError: The producer is fenced, or its transaction was aborted by another process.
        ConcurrentTransactionsError: The previous transaction is not completed.
        InvalidTxnStateError: There is no open transaction, or it has ended with the other outcome.
    """
    producer = command.producer
    txn = transaction_of(draft.state, producer)
    if command.session and (txn.is_prepared or txn.two_phase):
        raise _two_phase_session_error(txn)
    if txn.state in DECIDED or (txn.producer_id, txn.epoch) != (producer.producer_id, producer.epoch):
        return _repeated_end(draft.state, txn, command)
    if knows_version(txn, command.versions):
        return _repeated_version(draft, txn)
    join(draft, command)
    answers, last_batches = begin_append(draft, producer, command.batches, txn.session_epoch)
    txn = draft.state.transactions[txn.transactional_id]
    has_begun = txn.state is TxnState.ONGOING
    if command.session and not has_begun:
        return _repeated_session_end(txn, command)
    if not has_begun and command.outcome is Outcome.COMMIT and not command.versions:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: there is nothing to commit"
        raise InvalidTxnStateError(msg)
    for scope, version in command.versions if command.outcome is Outcome.COMMIT else ():
        draft.emit(VersionRecorded(transactional_id=txn.transactional_id, scope=scope, version=version))
    unfinished_txn = None
    if has_begun or command.outcome is Outcome.ABORT:
        # An empty abort still bumps the epoch, which fences an append whose outcome is unknown (TV2-08).
        observe(draft, command.after)
        txn = draft.state.transactions[txn.transactional_id]
        unfinished_txn = decide_end(draft, txn, command.outcome, last_batches, session=command.session)
    return Ended(next_identity(draft.state, producer), answers, unfinished=unfinished_txn)


def _repeated_session_end(txn: Transaction, command: EndTxn) -> Ended:
    """Answer an end in a session without an open transaction: a repetition, by Kafka's table (END-03).

    The client has the same epoch in its next transaction, so only the state tells a repetition.

    Raises:
        InvalidTxnStateError: The last transaction has ended with the other outcome, or there is none.
    """
    if COMPLETED.get(txn.state) is not command.outcome:
        msg = f"transaction {txn.transactional_id!r} is {txn.state.name}: there is nothing to {command.outcome.lower()}"
        raise InvalidTxnStateError(msg)
    return Ended(command.producer)


def _two_phase_session_error(txn: Transaction) -> InvalidTxnStateError:
    msg = f"transactional id {txn.transactional_id!r} has two-phase commit, which needs a client of transactions v2"
    return InvalidTxnStateError(msg)


def _repeated_version(draft: Draft, txn: Transaction) -> Ended:
    """Answer for a version that is already committed; an open transaction of this attempt is aborted."""
    unfinished_txn = decide_end(draft, txn, Outcome.ABORT) if txn.state is TxnState.ONGOING else None
    identity = ProducerIdentity(txn.producer_id, txn.epoch, txn.transactional_id)
    return Ended(next_identity(draft.state, identity), repeated=True, unfinished=unfinished_txn)


def _repeated_end(state: State, txn: Transaction, command: EndTxn) -> Ended:
    """Answer a repeated end as the first attempt, with the next identity (TV2-02, TV2-03)."""
    producer = command.producer
    if txn.state in DECIDED and (producer.producer_id, producer.epoch) == next_id_and_epoch(txn):
        raise still_ending_error(txn)
    outcome = earlier_outcome(txn, command)
    if command.session and not txn.in_session:
        # Another process has ended it, or an init has: the epoch of the client has ended.
        raise fenced_error(txn, producer)
    if outcome is Outcome.ABORT and knows_version(txn, command.versions):
        return Ended(next_identity(state, producer), repeated=True, unfinished=decided_of(txn))
    if outcome is None or (outcome is Outcome.ABORT and command.outcome is Outcome.COMMIT and not txn.in_session):
        # Another process may have aborted it, so the producer is fenced (KAFKA-20785).
        raise fenced_error(txn, producer)
    if outcome is not command.outcome:
        actual_word, other_word = ("committed", "aborted") if outcome is Outcome.COMMIT else ("aborted", "committed")
        msg = f"transaction {txn.transactional_id!r} of {producer} is {actual_word}, so it cannot be {other_word}"
        raise InvalidTxnStateError(msg)
    answers = tuple(find_batch(state, producer, batch, txn.updated_at) for batch in command.batches)
    return Ended(next_identity(state, producer), answers, unfinished=decided_of(txn))


def aborts(command: AbortTxn, _: State) -> list[Right]:
    """The right of the owner or an operator; none after the timeout, when any process may abort (TMO-01)."""
    if command.expired_only:
        return []
    return [Right("WRITE", "TRANSACTIONAL_ID", (command.transactional_id,), or_else=OR_CLUSTER_ACTION)]


@command(AbortTxn, route=None, right=aborts)
def abort(draft: Draft, command: AbortTxn) -> DecidedTransaction | None:
    """Abort an open transaction of another process (TMO-01, TMO-03); the same entry bumps the epoch and fences it.

    A decided transaction keeps its outcome and is only completed (INIT-05).
    """
    txn = draft.state.transactions.get(command.transactional_id)
    if txn is None or command.identity not in {None, (txn.producer_id, txn.epoch)}:
        return None
    if txn.state is not TxnState.ONGOING or (command.expired_only and not _may_time_out(txn, command)):
        return decided_of(txn)
    return decide_end(draft, txn, Outcome.ABORT)


def _may_time_out(txn: Transaction, command: AbortTxn) -> bool:
    """Whether the command names the open transaction that its caller watched, which is not prepared (TPC-02)."""
    return command.identity is not None and txn.timed_from is not None


def decide_end(
    draft: Draft, txn: Transaction, outcome: Outcome, last_batches: LastBatches = NO_BATCHES, *, session: bool = False
) -> DecidedTransaction | None:
    """Emit the decision of a transaction, the markers of this chain, and the completion if no other chain takes part.

    The markers carry the next epoch, which refuses late batches (KIP-890). The same bump fences the earlier instance
    when init aborts its transaction (INIT-04): one entry holds the bump and the abort.

    ``last_batches``: see :func:`emit_markers`. ``session``: the client continues with the epoch that it has. Then the
    epoch of its transactions, which the client does not have, may be of more than 16 bits.

    Returns:
        The transaction, if its markers in other chains and its completion are still to be written; else None.
    """
    check_transition(txn, PREPARING[outcome])
    rotate = txn.epoch >= MAX_EPOCH and not session
    draft.emit(
        TxnDecided(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=outcome,
            next_producer_id=draft.state.next_producer_id if rotate else txn.producer_id,
            next_epoch=0 if rotate else txn.epoch + 1,
        ),
    )
    decided_txn = decided_of(draft.state.transactions[txn.transactional_id])
    assert decided_txn is not None  # TxnDecided is folded.
    if session:
        decided_txn = replace(decided_txn, session_epoch=txn.session_epoch if txn.in_session else txn.epoch)
    emit_markers(draft, decided_txn, last_batches)
    if spans_chains(draft.state, decided_txn):
        return decided_txn
    complete(draft, decided_txn)
    return None


def complete(draft: Draft, decided_txn: DecidedTransaction) -> None:
    """Emit the completion of a decided transaction; nothing if it is completed."""
    txn = draft.state.transactions.get(decided_txn.transactional_id)
    if (
        txn is None
        or txn.state not in DECIDED
        or (txn.producer_id, txn.epoch) != (decided_txn.producer_id, decided_txn.epoch)
    ):
        return
    outcome = DECIDED[txn.state]
    check_transition(txn, COMPLETING[outcome])
    draft.emit(
        TxnCompleted(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            outcome=outcome,
            next_producer_id=txn.next_producer_id,
            next_epoch=txn.next_epoch,
        ),
    )


def _prepare_foreign(draft: Draft, command: PrepareTxn) -> None:
    """Emit ``TxnPrepared`` in another chain than the coordinator's, which then refuses its batches (TPC-03).

    The chain refuses offsets as well, and the epoch stays. Nothing is emitted if it refuses them already.
    """
    producer = command.producer
    current_fence = draft.state.fences.get(producer.producer_id)
    if current_fence is not None and (current_fence.epoch, current_fence.prepared) >= (producer.epoch, True):
        return
    observe(draft, (command.after,) if command.after is not None else ())
    draft.emit(
        TxnPrepared(
            transactional_id=producer.transactional_id or "", producer_id=producer.producer_id, epoch=producer.epoch
        ),
    )


@command(WriteMarkers, route=None, right=no_right, partitions=lambda command: command.decided.partitions)
def write_markers(draft: Draft, command: WriteMarkers) -> None:
    """The rule of ``WriteMarkers``: end a transaction that another chain decided in this chain (END-05).

    Raises:
        UnknownTopicOrPartitionError: The chain does not know a topic of the transaction, and ``copies_current`` is not
            set. With ``copies_current`` the topic is deleted: it needs no marker, and the fence refuses late batches.
    """
    for tp in command.decided.partitions:
        leads = leads_partition(draft.state, tp)
        if leads and not command.copies_current and _log_of(draft.state, command.decided, tp) is None:
            msg = f"chain {draft.state.chain} does not know {tp}, so it cannot write a marker there"
            raise UnknownTopicOrPartitionError(msg)
    events_before = len(draft.events)
    emit_markers(draft, command.decided)
    if len(draft.events) > events_before:
        observe(draft, (command.after,))


@command(FenceProducer, route=None, right=no_right, partitions=lambda command: command.partitions)
def fence(draft: Draft, command: FenceProducer) -> None:
    """Fence the older epochs of a transaction that is kept under a new one (TPC-05)."""
    producer = command.producer
    if fenced_epoch(draft.state, producer.producer_id) < producer.epoch:
        observe(draft, (command.after,))
        _emit_fence(draft, producer.producer_id, producer.epoch, command.partitions, command.groups)


def emit_markers(draft: Draft, decided_txn: DecidedTransaction, last_batches: LastBatches = NO_BATCHES) -> None:
    """End a transaction in this chain: emit the markers that its partitions and groups here still lack.

    That is a ``MarkerWritten`` for each partition and a ``GroupMarkerWritten`` for each group, or nothing if the chain
    has them. In another chain than the coordinator's, these fence the producer; if there are none, a
    ``ProducerFenced`` does.

    ``last_batches``: the last batch in each partition that is recorded in the draft and not folded; it is folded
    together with the marker that follows it, or before, if the session of the client continues.
    """
    if decided_txn.session_epoch != NO_PRODUCER:
        draft.state = fold_batches(draft.state, last_batches)
        last_batches = NO_BATCHES
        _keep_windows(draft, decided_txn)
    state = draft.state
    coordinated_here = not is_foreign(state, decided_txn.producer_id)
    lacks_all = coordinated_here or lacks_markers(state, decided_txn.producer_id, decided_txn.epoch)
    markers = list[MarkerWritten]()
    logs = dict[TopicPartition, Partition]()
    for tp in decided_txn.partitions:
        partition = _log_of(state, decided_txn, tp)
        if partition is not None and (lacks_all or is_left_open(partition, decided_txn.producer_id, decided_txn.epoch)):
            batch = last_batches.get(tp)
            marker = _next_marker(decided_txn, tp, partition, batch)
            if marker is not None and tp not in logs:
                markers.append(marker)
                logs[tp] = marker_written(partition, marker, state, batch)
    assert last_batches.keys() <= logs.keys()  # Else a batch would not be folded.
    draft.record(*markers)
    draft.state = with_markers(state, markers, logs)
    epoch = decided_txn.epoch + 1
    for group in decided_txn.groups:
        if lacks_all and leads_group(draft.state, group):
            draft.emit(
                GroupMarkerWritten(
                    group=group, producer_id=decided_txn.producer_id, epoch=epoch, outcome=decided_txn.outcome
                ),
            )
    if not coordinated_here and lacks_markers(draft.state, decided_txn.producer_id, decided_txn.epoch):
        _emit_fence(draft, decided_txn.producer_id, epoch, (), ())


def _keep_windows(draft: Draft, decided_txn: DecidedTransaction) -> None:
    """Emit that the client's session continues: in the coordinator's chain, and where there are batches to keep."""
    partitions = [tp for tp in decided_txn.partitions if _has_window(draft.state, decided_txn, tp)]
    if partitions or not is_foreign(draft.state, decided_txn.producer_id):
        draft.require(SESSIONS)
        draft.emit(
            SessionContinued(
                transactional_id=decided_txn.transactional_id,
                producer_id=decided_txn.producer_id,
                epoch=decided_txn.epoch,
                outcome=decided_txn.outcome,
                session_epoch=decided_txn.session_epoch,
                partitions=partitions,
            ),
        )


def _has_window(state: State, decided_txn: DecidedTransaction, tp: TopicPartition) -> bool:
    """Whether a partition has batches of the transaction and no marker yet."""
    partition = _log_of(state, decided_txn, tp)
    producer = partition.producers.get(decided_txn.producer_id) if partition is not None else None
    return producer is not None and producer.epoch == decided_txn.epoch and bool(producer.batches)


def _next_marker(
    decided_txn: DecidedTransaction, tp: TopicPartition, partition: Partition, last_batch: Batch | None
) -> MarkerWritten | None:
    """Return the marker of a transaction, after ``last_batch``; None if the partition has seen its epoch."""
    # A partition that has just taken a batch of the transaction has not seen a newer epoch.
    state = partition.producers.get(decided_txn.producer_id) if last_batch is None else None
    if state is None or state.epoch <= decided_txn.epoch:
        offset = partition.high_watermark if last_batch is None else last_batch.limit
        return MarkerWritten(
            tp.topic, tp.partition, decided_txn.producer_id, decided_txn.epoch + 1, decided_txn.outcome, offset
        )
    return None


def _emit_fence(
    draft: Draft, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], groups: Iterable[str]
) -> None:
    """Emit ``ProducerFenced`` for the whole chain, with the partitions and groups among these that it leads."""
    state = draft.state
    led_tps = [tp for tp in partitions if leads_partition(state, tp) and tp in state.partitions]
    led_groups = [group for group in groups if leads_group(state, group)]
    draft.emit(ProducerFenced(producer_id=producer_id, epoch=epoch, partitions=led_tps, groups=led_groups))


def _log_of(state: State, decided_txn: DecidedTransaction, tp: TopicPartition) -> Partition | None:
    """Return the log of a transaction's partition; None if this chain lacks it, or has another topic of the name.

    The topic is the transaction's if the transaction names its id, or if the log has open data of the transaction. In
    the coordinator's chain the name is enough: deleting a topic there removes it from the transactions.
    """
    partition = state.partitions.get(tp)
    if partition is None or not is_foreign(state, decided_txn.producer_id):
        return partition
    is_of_txn = decided_txn.names(state.topics[tp.topic]) or is_left_open(
        partition, decided_txn.producer_id, decided_txn.epoch
    )
    return partition if is_of_txn else None
