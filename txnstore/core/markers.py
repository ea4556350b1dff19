"""What the other chains of a store do for a coordinator: markers, fences, and the order between chains.

A marker carries the epoch after that of its transaction (KIP-890). It is written where the partition or group has not
seen that epoch yet, so it may be asked for any number of times, by anybody (END-08), and it fences late batches and
offsets of the transaction also where nothing of it had arrived (FEN-02).
"""

from __future__ import annotations

from txnstore.core.commands import FenceProducer, Unfinished, WriteMarkers
from txnstore.core.draft import Draft
from txnstore.core.events import GroupMarkerWritten, MarkerWritten, Observed, ProducerFenced
from txnstore.core.model import Group, State, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition
from txnstore.errors import UnknownTopicOrPartitionError


def observe(draft: Draft, after: tuple[tuple[int, int], ...]) -> None:
    """This entry follows from these entries of other chains: whoever reads it must have read them (architecture §5)."""
    for chain, sequence in after:
        if chain != draft.state.chain and draft.state.seen.get(chain, 0) < sequence:
            draft.emit(Observed(chain=chain, sequence=sequence))


def write_markers(draft: Draft, command: WriteMarkers) -> None:
    """The markers of a transaction that another chain decided.

    A partition that this chain does not know may still get a late batch: its topic has to be copied first, or it is
    gone, and then it is left out of the command.
    """
    own = [tp for tp in command.decided.partitions if leads_partition(draft.state, tp)]
    for tp in own:
        if tp not in draft.state.partitions:
            msg = f"chain {draft.state.chain} does not know {tp}, so it cannot write a marker there"
            raise UnknownTopicOrPartitionError(msg)
    before = len(draft.events)
    write_own_markers(draft, command.decided)
    if len(draft.events) > before:
        observe(draft, (command.after,))


def fence(draft: Draft, command: FenceProducer) -> None:
    """Let nothing of an older epoch in where a transaction goes on under a new one (TPC-05)."""
    producer = command.producer
    partitions = [
        tp
        for tp in command.partitions
        if leads_partition(draft.state, tp)
        and (log := draft.state.partitions.get(tp)) is not None
        and ((known := log.producers.get(producer.producer_id)) is None or known.epoch < producer.epoch)
    ]
    groups = [
        group
        for group in command.groups
        if leads_group(draft.state, group)
        and draft.state.groups.get(group, Group()).fences.get(producer.producer_id, (-1, 0))[0] < producer.epoch
    ]
    if partitions or groups:
        observe(draft, (command.after,))
        draft.emit(
            ProducerFenced(
                producer_id=producer.producer_id, epoch=producer.epoch, partitions=partitions, groups=groups
            ),
        )


def write_own_markers(draft: Draft, decided: Unfinished) -> None:
    """The markers in the partitions and groups of this chain that do not have them yet."""
    epoch = decided.epoch + 1
    for tp in decided.partitions:
        partition = draft.state.partitions.get(tp) if leads_partition(draft.state, tp) else None
        if partition is None:
            continue
        known = partition.producers.get(decided.producer_id)
        if known is None or known.epoch < epoch:
            draft.emit(
                MarkerWritten(
                    topic=tp.topic,
                    partition=tp.partition,
                    producer_id=decided.producer_id,
                    epoch=epoch,
                    outcome=decided.outcome,
                    offset=partition.high_watermark,
                ),
            )
    for group in decided.groups:
        if leads_group(draft.state, group) and _lacks_marker(draft.state.groups.get(group), decided):
            draft.emit(
                GroupMarkerWritten(group=group, producer_id=decided.producer_id, epoch=epoch, outcome=decided.outcome),
            )


def _lacks_marker(group: Group | None, decided: Unfinished) -> bool:
    if group is None:
        return True
    fence = group.fences.get(decided.producer_id)
    return fence is None or fence[0] <= decided.epoch


def leads_partition(state: State, tp: TopicPartition) -> bool:
    """Whether this is the chain of the partition."""
    return chain_of_partition(tp, state.chains) == state.chain


def leads_group(state: State, group: str) -> bool:
    """Whether this is the chain of the group."""
    return chain_of_group(group, state.chains) == state.chain
