"""What must hold in every state of a chain, as far as the state alone can tell (architecture §10, OBJ-19).

Each invariant is one named function that yields a message for every violation; :func:`check` runs them all, and
:func:`check_step` those of :mod:`txnstore.core.steps`, which hold between two states. A finding is a bug or damage:
normal use, however odd, never leads to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from txnstore.core.fence_invariants import FENCE_ACROSS, FENCE_INVARIANTS
from txnstore.core.group_invariants import GROUP_INVARIANTS
from txnstore.core.log_invariants import LOG_INVARIANTS, logs, offsets_of
from txnstore.core.markers import leads_partition
from txnstore.core.model import (
    MAX_EPOCH,
    NO_PRODUCER,
    WINDOW,
    Batch,
    BatchMetadata,
    Partition,
    State,
    TopicPartition,
    Transaction,
    TxnState,
    next_sequence,
)
from txnstore.core.parts import chains_of
from txnstore.core.routing import chain_of_producer, first_producer_id
from txnstore.core.steps import STEPS
from txnstore.core.view import View


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        name: The name of the invariant.
        message: How it is violated.
        subject: The object, entry or partition that violates it; empty if the message names it.
    """

    name: str
    message: str
    subject: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.name, self.subject, self.message) if part)


def check(state: State) -> list[Violation]:
    """Everything that is wrong with a state; empty if it is sound."""
    return [Violation(rule.__name__, message) for rule in INVARIANTS for message in rule(state)]


def check_step(before: State, after: State) -> list[Violation]:
    """Everything that one entry did wrong between the state before it and the one after it; empty if nothing."""
    return [Violation(rule.__name__, message) for rule in STEPS for message in rule(before, after)]


def check_view(view: View) -> list[Violation]:
    """Everything that is wrong with the chains of a view, one by one and together."""
    return [violation for state in view.states for violation in check(state)] + check_across(view)


def check_across(view: View) -> list[Violation]:
    """Everything that is wrong with the chains of a view together."""
    return [Violation(rule.__name__, message) for rule in ACROSS for message in rule(view)]


# Transactions ---------------------------------------------------------------------------------------------------------


def transactions_well_formed(state: State) -> Iterator[str]:
    """A transaction is open, or decided and still to be ended in other chains, or has nothing (STM-07)."""
    for txn in _transactions(state):
        where = f"transactional id {txn.transactional_id!r}"
        if txn.state is TxnState.ONGOING:
            if txn.started_at is None:
                yield f"{where} is ONGOING, but never started"
        elif txn.outcome is not None:
            if chains_of(txn, state.chains) <= {state.chain}:
                yield f"{where} is {txn.state.name}, but no other chain takes part"
        elif txn.state not in (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT):
            yield f"{where} is {txn.state.name}, which is never stored"
        elif txn.partitions or txn.groups or txn.started_at is not None:
            yield f"{where} is {txn.state.name}, but still has partitions, groups or a start"
        if not 0 <= txn.epoch <= MAX_EPOCH:
            yield f"{where} has epoch {txn.epoch}, which no client may hold"


def open_transactions_listed(state: State) -> Iterator[str]:
    """Undecided data belongs to an open transaction that lists its partition (OBJ-19 I1, ADD-01): it gets a marker."""
    for tp, partition in logs(state):
        for producer_id in _own(state, partition.open_txns):
            txn = _owner(state, producer_id)
            if txn is None or txn.state is not TxnState.ONGOING or tp not in txn.partitions:
                yield f"{tp}: producer id {producer_id} has open data, but no open transaction with this partition"


def open_transactions_hold_the_lso(state: State) -> Iterator[str]:
    """The data of an open transaction is in the table that bounds the LSO, from its first batch on (OBJ-19 I1, I2)."""
    for txn in _transactions(state):
        for tp in sorted(txn.partitions) if txn.outcome is None else ():
            if not leads_partition(state, tp):
                continue
            partition = state.partition(tp)
            if partition is None:
                yield f"{tp}: transactional id {txn.transactional_id!r} lists it, but there is no such partition"
                continue
            known = partition.open_txns.get(txn.producer_id)
            first = _first_offset(partition, txn)
            if known != first:
                yield (
                    f"{tp}: the open transaction of {txn.transactional_id!r} begins at {first}, "
                    f"but the table of open transactions says {known}"
                )


def stable_data_is_decided(state: State) -> Iterator[str]:
    """Whoever has an open transaction has nothing of it below the LSO (LSO-01, invariant 2)."""
    for tp, partition in logs(state):
        stable = partition.last_stable_offset
        for producer_id, first in sorted(partition.open_txns.items()):
            if first < partition.log_start or first >= partition.high_watermark:
                yield f"{tp}: the open transaction of producer id {producer_id} begins at {first}, outside the log"
        for batch in partition.batches.overlapping(stable, partition.high_watermark):
            if batch.base_offset < stable < batch.limit:
                yield f"{tp}: the batch {offsets_of(batch)} lies on both sides of the last stable offset {stable}"


def aborted_index_sound(state: State) -> Iterator[str]:
    """Each entry covers the data of one transaction of one producer (OBJ-19 I3), so that nothing else is hidden."""
    for tp, partition in logs(state):
        last, ended = -1, dict[int, int]()
        for entry in partition.aborted:
            where = f"{tp}: the aborted transaction {entry.first_offset}-{entry.last_offset} of {entry.producer_id}"
            if entry.last_offset <= last:
                yield f"{where} does not follow the one whose marker is at {last}"
            if not entry.first_offset < entry.last_offset < partition.high_watermark:
                yield f"{where} is outside the log"
            if entry.first_offset <= ended.get(entry.producer_id, -1):
                yield f"{where} begins before the last one of this producer ended"
            if not entry.last_stable_offset <= entry.last_offset + 1:
                yield f"{where} has the last stable offset {entry.last_stable_offset} behind its marker"
            last = ended[entry.producer_id] = entry.last_offset
            inside = partition.batches.overlapping(entry.first_offset, entry.last_offset + 1)
            yield from (
                f"{where} {problem}" for problem in _aborted_batches(list(inside), entry.producer_id, entry.last_offset)
            )


def _aborted_batches(batches: list[Batch], producer_id: int, marker: int) -> Iterator[str]:
    own = [batch for batch in batches if batch.producer_id == producer_id]
    if any(not batch.transactional for batch in own):
        yield "holds a batch of that producer that is not transactional"
    if len({batch.epoch for batch in own}) > 1:
        yield "holds batches of several epochs"
    if any(batch.limit > marker and not batch.segment.explicit_offsets for batch in batches):
        yield "has a record where its marker is"


# Producers ------------------------------------------------------------------------------------------------------------


def producer_windows_sound(state: State) -> Iterator[str]:
    """A window holds the last five batches without a gap (SEQ-01, SEQ-03), so that it finds duplicates and gaps."""
    for tp, partition in logs(state):
        for producer_id, producer in sorted(partition.producers.items(), key=_by_id):
            where = f"{tp}: the window of producer id {producer_id}"
            if len(producer.batches) > WINDOW:
                yield f"{where} has {len(producer.batches)} batches"
            for before, after in pairwise(producer.batches):
                follows = after.first_sequence == next_sequence(before.last_sequence)
                if not follows or after.base_offset <= before.last_offset:
                    yield f"{where} has a gap before sequence {after.first_sequence} at offset {after.base_offset}"
            for batch in producer.batches:
                yield from (f"{where} {problem}" for problem in _window_batch(partition, batch))
            if producer.current_txn_first_offset != partition.open_txns.get(producer_id):
                yield f"{where} begins its transaction at {producer.current_txn_first_offset}, the partition does not"


def _window_batch(partition: Partition, batch: BatchMetadata) -> Iterator[str]:
    if not 0 <= batch.base_offset <= batch.last_offset < partition.high_watermark:
        yield f"has the offsets {batch.base_offset}-{batch.last_offset}, which are not in the log"
    if next_sequence(batch.first_sequence, batch.last_offset - batch.base_offset) != batch.last_sequence:
        yield f"has the sequences {batch.first_sequence}-{batch.last_sequence} for another number of offsets"


def epochs_known_to_coordinator(state: State) -> Iterator[str]:
    """No partition has seen an epoch that was never granted (OBJ-19 I8): else its own producer would be fenced there.

    After a rotation the old producer id is at the epoch of its last marker, one above what a client may hold.
    """
    for tp, partition in logs(state):
        for producer_id, producer in sorted(partition.producers.items(), key=_by_id):
            name = state.transactional_ids.get(producer_id)
            if name is None:
                continue
            txn = state.transactions.get(name)
            limit = MAX_EPOCH + 1
            if txn is not None and txn.producer_id == producer_id:
                limit = txn.epoch + (txn.outcome is not None)  # The markers of this chain are written already.
            if not 0 <= producer.epoch <= limit:
                yield f"{tp}: producer id {producer_id} of {name!r} is at epoch {producer.epoch}, above {limit}"


def producer_ids_unique(state: State) -> Iterator[str]:
    """A producer id is granted once, to one transactional id or session (INIT-06, OBJ-19 I11)."""
    for txn in _transactions(state):
        name = state.transactional_ids.get(txn.producer_id)
        if name != txn.transactional_id:
            yield f"transactional id {txn.transactional_id!r} has producer id {txn.producer_id}, which maps to {name!r}"
    used = {producer_id: f"transactional id {name!r}" for producer_id, name in state.transactional_ids.items()}
    for tp, partition in logs(state):
        ids = {batch.producer_id for batch in partition.batches} - {NO_PRODUCER}
        for producer_id in _own(state, ids | set(partition.producers)):
            used.setdefault(producer_id, str(tp))
    for producer_id, where in sorted(used.items()):
        if not first_producer_id(state.chain) <= producer_id < state.next_producer_id:
            yield f"{where}: producer id {producer_id} was never granted; the next one is {state.next_producer_id}"


# Groups ---------------------------------------------------------------------------------------------------------------


def pending_offsets_have_a_transaction(state: State) -> Iterator[str]:
    """Pending offsets belong to an open transaction with this group (OBJ-19 I6): else they would block it for ever."""
    for name, group in sorted(state.groups.items(), key=_by_name):
        for producer_id in _own(state, group.pending):
            txn = _owner(state, producer_id)
            if txn is None or txn.state is not TxnState.ONGOING or name not in txn.groups:
                yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction with it"


def group_offsets_sound(state: State) -> Iterator[str]:
    """Positions are in partitions that exist (OFF-18), and each has a place of its own in the order (OFF-11)."""
    for name, group in sorted(state.groups.items(), key=_by_name):
        for offsets in (group.offsets, *group.pending.values()):
            for tp, offset in sorted(offsets.items(), key=_by_partition):
                if leads_partition(state, tp) and tp not in state.partitions:
                    yield f"group {name!r}: it has an offset of {tp}, which does not exist"
                if offset.value.offset < 0 or not 0 <= offset.position < state.next_offset_position:
                    yield f"group {name!r}: offset {offset.value.offset} of {tp} at position {offset.position} is wrong"


#: All of them, in the order in which a reader wants to see them.
INVARIANTS: tuple[Callable[[State], Iterator[str]], ...] = (
    *LOG_INVARIANTS,
    transactions_well_formed,
    open_transactions_listed,
    open_transactions_hold_the_lso,
    stable_data_is_decided,
    aborted_index_sound,
    producer_windows_sound,
    epochs_known_to_coordinator,
    producer_ids_unique,
    pending_offsets_have_a_transaction,
    group_offsets_sound,
    *FENCE_INVARIANTS,
    *GROUP_INVARIANTS,
)


# Across chains --------------------------------------------------------------------------------------------------------


def cut_is_consistent(view: View) -> Iterator[str]:
    """Whatever a chain rests on in another one is in the view, too: else a transaction could be seen in part."""
    for state in view.states:
        for chain, sequence in sorted(state.seen.items(), key=_by_id):
            if view.states[chain].sequence < sequence:
                yield f"chain {state.chain} rests on entry {sequence} of chain {chain}, which is not in the view"


def copies_follow_the_catalog(view: View) -> Iterator[str]:
    """No chain knows more of a topic than the catalog says."""
    for state in view.states[1:]:
        for name, copy in sorted(state.topics.items(), key=_by_name):
            topic = view.topics.get(name)
            if topic is not None and copy.revision > topic.revision:
                yield f"chain {state.chain} has revision {copy.revision} of topic {name}, the catalog {topic.revision}"


def foreign_data_has_an_owner(view: View) -> Iterator[str]:
    """Open data and pending offsets belong to a transaction that lists them in its coordinator's chain (ADD-07).

    Else nobody would ever end them: a hanging transaction.
    """
    for state in view.states:
        for tp, partition in logs(state):
            for producer_id in sorted(set(partition.open_txns) - set(_own(state, partition.open_txns))):
                txn = view.owner(producer_id)
                if txn is None or tp not in txn.partitions:
                    yield f"{tp}: producer id {producer_id} has open data, but no open transaction with this partition"
        for name, group in sorted(state.groups.items(), key=_by_name):
            for producer_id in sorted(set(group.pending) - set(_own(state, group.pending))):
                txn = view.owner(producer_id)
                if txn is None or name not in txn.groups:
                    yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction"


#: The invariants that take several chains to tell.
ACROSS: tuple[Callable[[View], Iterator[str]], ...] = (
    cut_is_consistent,
    copies_follow_the_catalog,
    foreign_data_has_an_owner,
    *FENCE_ACROSS,
)


# Shared ---------------------------------------------------------------------------------------------------------------


def _transactions(state: State) -> list[Transaction]:
    return [state.transactions[name] for name in sorted(state.transactions)]


def _own(state: State, producer_ids: Iterable[int]) -> list[int]:
    """Those that this chain granted: of the others it cannot tell what they do."""
    return sorted(number for number in producer_ids if number < 0 or chain_of_producer(number) == state.chain)


def _owner(state: State, producer_id: int) -> Transaction | None:
    """The transaction whose current producer id this is."""
    txn = state.transactions.get(state.transactional_ids.get(producer_id, ""))
    return txn if txn is not None and txn.producer_id == producer_id else None


def _first_offset(partition: Partition, txn: Transaction) -> int | None:
    """Where the data of an open transaction begins in a partition: no other batch has its producer id and epoch."""
    for batch in partition.batches:
        if batch.transactional and (batch.producer_id, batch.epoch) == (txn.producer_id, txn.data_epoch):
            return batch.base_offset
    return None


def _by_id(item: tuple[int, object]) -> int:
    return item[0]


def _by_name(item: tuple[str, object]) -> str:
    return item[0]


def _by_partition(item: tuple[TopicPartition, object]) -> TopicPartition:
    return item[0]
