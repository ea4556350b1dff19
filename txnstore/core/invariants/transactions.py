"""Invariants of transactions and of the aborted index in a state."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.invariants.common import offsets_of, own_producers, owner_of, transactions_of
from txnstore.core.log.model import Batch, Partition
from txnstore.core.model import sorted_items
from txnstore.core.routes import chains_of
from txnstore.core.state import State, leads_partition
from txnstore.core.transactions.machine import NEVER_STORED
from txnstore.core.transactions.model import DECIDED, MAX_EPOCH, Transaction, TxnState


def transactions_well_formed(state: State) -> Iterator[str]:
    """A transaction is open, or decided with other chains to complete, or has no partitions and groups (STM-07)."""
    for txn in transactions_of(state):
        where = f"transactional id {txn.transactional_id!r}"
        if txn.state is TxnState.ONGOING:
            if txn.started_at is None or not txn.first_entry:
                yield f"{where} is ONGOING, but has no start"
        elif txn.state in DECIDED:
            if chains_of(txn, state.chains) <= {state.chain}:
                yield f"{where} is {txn.state.name}, but no other chain takes part"
        elif txn.state in NEVER_STORED:
            yield f"{where} is {txn.state.name}, which is never stored"
        elif txn.partitions or txn.groups or txn.started_at is not None or txn.first_entry:
            yield f"{where} is {txn.state.name}, but has partitions, groups or a start"
        if not 0 <= txn.first_entry <= state.sequence:
            yield f"{where} began in entry {txn.first_entry}, but the chain ends at entry {state.sequence}"
        client = txn.session_epoch if txn.in_session else txn.epoch
        if not 0 <= client <= MAX_EPOCH:
            yield f"{where} has epoch {client}, which no client may have"
        if client > txn.epoch or (txn.in_session and (txn.state is TxnState.EMPTY or txn.is_prepared or txn.two_phase)):
            yield f"{where} is {txn.state.name} at epoch {txn.epoch}, which session {client} cannot be"


def open_transactions_listed(state: State) -> Iterator[str]:
    """Open data belongs to an open transaction that lists its partition and will mark it (OBJ-19 I1, ADD-01)."""
    for tp, partition in sorted_items(state.partitions):
        for producer_id in own_producers(state, partition.open_txns):
            txn = owner_of(state, producer_id)
            if txn is None or txn.state is not TxnState.ONGOING or tp not in txn.partitions:
                yield f"{tp}: producer id {producer_id} has open data, but no open transaction with this partition"


def open_transactions_hold_the_lso(state: State) -> Iterator[str]:
    """The first offset of an open transaction is in the table that bounds the LSO (OBJ-19 I1, I2)."""
    for txn in transactions_of(state):
        for tp in sorted(txn.partitions) if txn.state not in DECIDED else ():
            if not leads_partition(state, tp):
                continue
            partition = state.partition(tp)
            if partition is None:
                yield f"{tp}: transactional id {txn.transactional_id!r} lists it, but there is no such partition"
                continue
            listed_offset = partition.open_txns.get(txn.producer_id)
            first_offset = _first_offset(partition, txn)
            if listed_offset != first_offset:
                yield (
                    f"{tp}: the open transaction of {txn.transactional_id!r} begins at {first_offset}, "
                    f"but the table of open transactions says {listed_offset}"
                )


def stable_data_is_decided(state: State) -> Iterator[str]:
    """An open transaction has no data below the LSO (LSO-01)."""
    for tp, partition in sorted_items(state.partitions):
        stable = partition.last_stable_offset
        for producer_id, first_offset in sorted(partition.open_txns.items()):
            if first_offset < partition.log_start or first_offset >= partition.high_watermark:
                yield (
                    f"{tp}: the open transaction of producer id {producer_id} begins at {first_offset}, outside the log"
                )
        for batch in partition.batches.overlapping(stable, partition.high_watermark):
            if batch.base_offset < stable < batch.limit:
                yield f"{tp}: the batch {offsets_of(batch)} spans the last stable offset {stable}"


def aborted_index_sound(state: State) -> Iterator[str]:
    """Each entry of the aborted index covers the data of one transaction (OBJ-19 I3), so it hides nothing else."""
    for tp, partition in sorted_items(state.partitions):
        previous_marker = -1
        previous_marker_of: dict[int, int] = {}  # By producer id.
        for entry in partition.aborted:
            where = f"{tp}: the aborted transaction {entry.first_offset}-{entry.last_offset} of {entry.producer_id}"
            if entry.last_offset <= previous_marker:
                yield f"{where} does not follow the one whose marker is at {previous_marker}"
            if not entry.first_offset < entry.last_offset < partition.high_watermark:
                yield f"{where} is outside the log"
            if entry.last_offset < partition.log_start:
                yield f"{where} is below the log start {partition.log_start}, but still in the aborted index"
            if entry.first_offset <= previous_marker_of.get(entry.producer_id, -1):
                yield f"{where} begins before the previous one of this producer ended"
            if entry.last_stable_offset > entry.last_offset + 1:
                yield f"{where} has the last stable offset {entry.last_stable_offset} behind its marker"
            batches = list(partition.batches.overlapping(entry.first_offset, entry.last_offset + 1))
            for problem in _aborted_batches(batches, entry.producer_id, entry.last_offset):
                yield f"{where} {problem}"
            previous_marker = entry.last_offset
            previous_marker_of[entry.producer_id] = entry.last_offset


def _aborted_batches(batches: list[Batch], producer_id: int, marker: int) -> Iterator[str]:
    """Yield what is wrong with the batches between the first offset of an aborted transaction and its marker."""
    own_batches = [batch for batch in batches if batch.producer_id == producer_id]
    if any(not batch.transactional for batch in own_batches):
        yield "contains a batch of that producer that is not transactional"
    if len({batch.epoch for batch in own_batches}) > 1:
        yield "contains batches of several epochs"
    if any(batch.limit > marker and not batch.segment.explicit_offsets for batch in batches):
        yield "has a record at the offset of its marker"


def _first_offset(partition: Partition, txn: Transaction) -> int | None:
    """The first offset of an open transaction in a partition: only its batches have its producer id and epoch."""
    for batch in partition.batches:
        if batch.transactional and (batch.producer_id, batch.epoch) == (txn.producer_id, txn.data_epoch):
            return batch.base_offset
    return None
