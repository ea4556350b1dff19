"""What the other chains of a store do for a coordinator: markers, fences, and the order between chains.

A marker carries the epoch after that of its transaction (KIP-890). It is written if the chain's fence table has not
seen that epoch yet (:mod:`txnstore.core.fences`), so it may be asked for any number of times, by anybody (END-08). It
fences the whole chain: a late batch or offset of the transaction is refused also where nothing of it had arrived
(FEN-02).
"""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.commands import FenceProducer, HoldTxn, Unfinished, WriteMarkers
from txnstore.core.draft import Draft
from txnstore.core.events import GroupMarkerWritten, MarkerWritten, Observed, ProducerFenced, TxnHeld
from txnstore.core.fences import fenced_epoch, is_foreign, is_left_open, lacks_markers
from txnstore.core.model import Partition, State, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition
from txnstore.errors import UnknownTopicOrPartitionError


def observe(draft: Draft, after: tuple[tuple[int, int], ...]) -> None:
    """This entry follows from these entries of other chains: whoever reads it must have read them (architecture §5)."""
    for chain, sequence in after:
        if chain != draft.state.chain and draft.state.seen.get(chain, 0) < sequence:
            draft.emit(Observed(chain=chain, sequence=sequence))


def write_markers(draft: Draft, command: WriteMarkers) -> None:
    """The markers of a transaction that another chain decided (END-05).

    Raises :class:`UnknownTopicOrPartitionError` if the chain does not know a topic of the transaction, unless it has
    been told of the topics: then the topic is deleted. The fence covers what arrives for it later.
    """
    for tp in command.decided.partitions:
        if not command.told and leads_partition(draft.state, tp) and _log_of(draft.state, command.decided, tp) is None:
            msg = f"chain {draft.state.chain} does not know {tp}, so it cannot write a marker there"
            raise UnknownTopicOrPartitionError(msg)
    before = len(draft.events)
    write_own_markers(draft, command.decided)
    if len(draft.events) > before:
        observe(draft, (command.after,))


def fence(draft: Draft, command: FenceProducer) -> None:
    """Accept nothing of an older epoch where a transaction goes on under a new one (TPC-05)."""
    producer = command.producer
    if fenced_epoch(draft.state, producer.producer_id) < producer.epoch:
        observe(draft, (command.after,))
        _emit_fence(draft, producer.producer_id, producer.epoch, command.partitions, command.groups)


def seal(draft: Draft, command: HoldTxn) -> None:
    """Accept nothing more of a prepared transaction, whose epoch stays the same (TPC-03)."""
    producer = command.producer
    known = draft.state.fences.get(producer.producer_id)
    if known is not None and (known.epoch > producer.epoch or (known.epoch == producer.epoch and known.held)):
        return
    observe(draft, (command.after,) if command.after is not None else ())
    draft.emit(
        TxnHeld(
            transactional_id=producer.transactional_id or "", producer_id=producer.producer_id, epoch=producer.epoch
        ),
    )


def write_own_markers(draft: Draft, decided: Unfinished) -> None:
    """The markers in the partitions and groups of this chain, unless the chain has them already.

    A chain that has nothing of the transaction left is fenced all the same.
    """
    own = not is_foreign(draft.state, decided.producer_id)
    lacking = own or lacks_markers(draft.state, decided.producer_id, decided.epoch)
    epoch = decided.epoch + 1
    for tp in decided.partitions:
        partition = _log_of(draft.state, decided, tp) if leads_partition(draft.state, tp) else None
        if partition is not None and (lacking or is_left_open(partition, decided.producer_id, decided.epoch)):
            _emit_marker(draft, decided, tp, partition)
    for group in decided.groups:
        if lacking and leads_group(draft.state, group):
            draft.emit(
                GroupMarkerWritten(group=group, producer_id=decided.producer_id, epoch=epoch, outcome=decided.outcome),
            )
    if not own and lacks_markers(draft.state, decided.producer_id, decided.epoch):
        _emit_fence(draft, decided.producer_id, epoch, (), ())


def _emit_marker(draft: Draft, decided: Unfinished, tp: TopicPartition, partition: Partition) -> None:
    """The marker of a transaction in a partition that has not seen its epoch yet."""
    known = partition.producers.get(decided.producer_id)
    if known is None or known.epoch <= decided.epoch:
        draft.emit(
            MarkerWritten(
                topic=tp.topic,
                partition=tp.partition,
                producer_id=decided.producer_id,
                epoch=decided.epoch + 1,
                outcome=decided.outcome,
                offset=partition.high_watermark,
            ),
        )


def _emit_fence(
    draft: Draft, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], groups: Iterable[str]
) -> None:
    """Fence the chain; what takes part and is known here is named."""
    state = draft.state
    known = [tp for tp in partitions if leads_partition(state, tp) and tp in state.partitions]
    led = [group for group in groups if leads_group(state, group)]
    draft.emit(ProducerFenced(producer_id=producer_id, epoch=epoch, partitions=known, groups=led))


def _log_of(state: State, decided: Unfinished, tp: TopicPartition) -> Partition | None:
    """The log in which a transaction takes part: that of a topic which it names, or the one that has its data.

    What the coordinator's own chain deletes leaves its transactions with the topic, so there the name is enough.
    """
    partition = state.partitions.get(tp)
    if partition is None or not is_foreign(state, decided.producer_id):
        return partition
    named = decided.names(state.topics[tp.topic]) or is_left_open(partition, decided.producer_id, decided.epoch)
    return partition if named else None


def leads_partition(state: State, tp: TopicPartition) -> bool:
    """Whether this is the chain of the partition."""
    return chain_of_partition(tp, state.chains) == state.chain


def leads_group(state: State, group: str) -> bool:
    """Whether this is the chain of the group."""
    return chain_of_group(group, state.chains) == state.chain
