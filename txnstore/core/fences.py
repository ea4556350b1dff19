"""The fence table of a chain: for each producer that another chain coordinates, the newest epoch seen in this chain.

A fence applies to the whole chain: a batch, an offset or a marker of an older epoch is refused in every partition and
group, also in a topic that was deleted and created again (``docs/internals/design/fences.md``).
"""

from __future__ import annotations

from txnstore.core.log.model import Partition
from txnstore.core.model import NO_PRODUCER, Fence, ProducerIdentity
from txnstore.core.state import State, is_foreign, replace
from txnstore.errors import InvalidTxnStateError, ProducerFencedError


def fenced_epoch(state: State, producer_id: int) -> int:
    """Return the epoch of the fence of a producer of another chain; -1 without a fence."""
    fence = state.fences.get(producer_id)
    return fence.epoch if fence is not None else NO_PRODUCER


def check_fence(state: State, producer: ProducerIdentity) -> None:
    """Refuse a batch or an offset below the fence, or of a prepared transaction.

    Raises:
        ProducerFencedError: The epoch is below the fence (FEN-02).
        InvalidTxnStateError: The transaction is prepared for an external coordinator (TPC-03).
    """
    fence = state.fences.get(producer.producer_id)
    if fence is None or producer.epoch > fence.epoch:
        return
    if producer.epoch < fence.epoch:
        msg = f"{producer} is fenced in chain {state.chain}: the chain has seen epoch {fence.epoch}"
        raise ProducerFencedError(msg)
    if fence.prepared:
        msg = f"the transaction of {producer} is prepared for an external coordinator and takes no more data"
        raise InvalidTxnStateError(msg)


def lacks_markers(state: State, producer_id: int, epoch: int) -> bool:
    """Whether the chain has not written the markers of this transaction of another chain's producer.

    One entry holds all markers of a transaction in a chain, and a newer epoch arrives only after the transaction is
    completed in all chains (ADD-05). In the coordinator's own chain the entry of the decision holds the markers.
    """
    return is_foreign(state, producer_id) and fenced_epoch(state, producer_id) <= epoch


def is_left_open(partition: Partition, producer_id: int, epoch: int) -> bool:
    """Whether a partition has open data of a producer with this epoch or an older one."""
    producer = partition.producers.get(producer_id)
    return producer_id in partition.open_txns and (producer is None or producer.epoch <= epoch)


def with_fence(state: State, producer_id: int, epoch: int, *, prepared: bool = False) -> State:
    """Raise the fence of a producer of another chain to ``epoch``, at the time of the entry.

    An older epoch only sets the time.
    """
    earlier_fence = state.fences.get(producer_id)
    fence = Fence(epoch, state.timestamp, prepared)
    if earlier_fence is not None and epoch < earlier_fence.epoch:
        fence = earlier_fence._replace(at=state.timestamp)
    return replace(state, fences=state.fences.insert(producer_id, fence))
