"""Invariants of producer ids, epochs and windows in a state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from txnstore.core.invariants.common import highest_epoch, own_producers, transactions_of
from txnstore.core.log.model import NO_OFFSET, WINDOW, BatchMetadata, Partition, next_sequence
from txnstore.core.model import NO_PRODUCER, sorted_items
from txnstore.core.routing import first_producer_id
from txnstore.core.state import State


def producer_windows_sound(state: State) -> Iterator[str]:
    """A window holds the last five batches, with contiguous sequences (SEQ-01, SEQ-03)."""
    for tp, partition in sorted_items(state.partitions):
        for producer_id, producer in sorted_items(partition.producers):
            where = f"{tp}: the window of producer id {producer_id}"
            yield from (f"{where} {problem}" for problem in _window_violations(partition, producer.batches))
            if producer.current_txn_first_offset != partition.open_txns.get(producer_id):
                yield f"{where} begins its transaction at {producer.current_txn_first_offset}, the partition does not"

        for producer_id, session_window in sorted_items(partition.session_windows):
            where = f"{tp}: the window of the session of producer id {producer_id}"
            yield from (f"{where} {problem}" for problem in _window_violations(partition, session_window.batches))
            producer_state = partition.producers.get(producer_id)
            if producer_state is None or producer_state.epoch <= session_window.session_epoch:
                epoch = session_window.session_epoch
                yield f"{where}, epoch {epoch}, has no later transaction: the state is {producer_state}"


def _window_violations(partition: Partition, batches: Sequence[BatchMetadata]) -> Iterator[str]:
    """Yield what is wrong in a producer's window: its size, gaps in sequences, offsets out of order."""
    if len(batches) > WINDOW:
        yield f"has {len(batches)} batches"
    for before, after in pairwise(batches):
        follows = after.first_sequence == next_sequence(before.last_sequence)
        if not follows or NO_OFFSET < after.base_offset <= before.last_offset:
            yield f"has a gap before sequence {after.first_sequence} at offset {after.base_offset}"
    for batch in batches:
        yield from _window_batch(partition, batch)


def _window_batch(partition: Partition, batch: BatchMetadata) -> Iterator[str]:
    """Yield what is wrong with a batch of a window; one without offsets has nothing to check."""
    if batch.base_offset == batch.last_offset == NO_OFFSET:
        return
    if not 0 <= batch.base_offset <= batch.last_offset < partition.high_watermark:
        yield f"has the offsets {batch.base_offset}-{batch.last_offset}, which are not in the log"
    if next_sequence(batch.first_sequence, batch.last_offset - batch.base_offset) != batch.last_sequence:
        yield f"has sequences {batch.first_sequence}-{batch.last_sequence}, which do not match its number of offsets"


def epochs_known_to_coordinator(state: State) -> Iterator[str]:
    """No partition has an epoch that was never granted (OBJ-19 I8): it would fence the producer itself."""
    for tp, partition in sorted_items(state.partitions):
        for producer_id, producer in sorted_items(partition.producers):
            name = state.transactional_ids.get(producer_id)
            if name is None:
                continue
            txn = state.transactions.get(name)
            if txn is None or txn.producer_id != producer_id:
                continue  # Of a producer id before a rotation; a session may have gone beyond 16 bits.
            limit = highest_epoch(txn)
            if not 0 <= producer.epoch <= limit:
                yield f"{tp}: producer id {producer_id} of {name!r} is at epoch {producer.epoch}, above {limit}"


def producer_ids_unique(state: State) -> Iterator[str]:
    """A producer id is granted once, to one transactional id or idempotent producer (INIT-06, OBJ-19 I11)."""
    for txn in transactions_of(state):
        name = state.transactional_ids.get(txn.producer_id)
        if name != txn.transactional_id:
            yield f"transactional id {txn.transactional_id!r} has producer id {txn.producer_id}, which maps to {name!r}"
    users_by_id = {producer_id: f"transactional id {name!r}" for producer_id, name in state.transactional_ids.items()}
    for tp, partition in sorted_items(state.partitions):
        ids = {batch.producer_id for batch in partition.batches} - {NO_PRODUCER}
        for producer_id in own_producers(state, ids | set(partition.producers)):
            users_by_id.setdefault(producer_id, str(tp))
    for producer_id, user in sorted(users_by_id.items()):
        if not first_producer_id(state.chain) <= producer_id < state.next_producer_id:
            yield f"{user}: producer id {producer_id} was never granted; the next one is {state.next_producer_id}"
