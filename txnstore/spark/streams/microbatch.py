"""The versions, identity and offsets that a micro-batch commits. Pure.

The version of a micro-batch is its number, and the scope of the version is the id of its query. Spark repeats a
micro-batch under the same number with the same offsets, so a version that is committed already is left alone. It
repeats the last one only: an earlier one shows that the checkpoint is older than the store, and its number may mean
others.

A second version names the run that has committed the micro-batch, and a third one its epoch: each start of a query is
a run. The first micro-batch of a run is granted a new epoch, which fences the earlier runs. The commits of a run may
happen in several processes, in turn, since Spark has a pool of them for all queries. A process finds in the store that
the last micro-batch is of its own run and the last transaction, and continues with the run's epoch instead of a new
one. So a run that was fenced, by another run of the query or another query of the group, cannot fence the newer one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.offsets import committed
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.transactions.lookups import knows_version, next_id_and_epoch
from txnstore.core.transactions.model import DECIDED, Transaction, TxnState
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, ProducerFencedError
from txnstore.spark.streams.positions import Position

#: The bits of versions with the run and with the epoch; the number of the micro-batch is above them.
_RUN_BITS, _EPOCH_BITS = 32, 16
#: A transaction that its own run committed, and that no other run has replaced.
_COMMITTED = frozenset({TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT})


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a streaming query.

    Attributes:
        query_id: The id of the query; its checkpoint keeps it over restarts.
        run_id: The id of this run of the query.
        number: The number of the micro-batch in the query.
    """

    query_id: str
    run_id: str
    number: int

    def versions(self, epoch: int) -> tuple[tuple[str, int], ...]:
        """Return the (scope, version) pairs that the commit with this epoch records."""
        return (
            (self.query_id, self.number),
            (self._run_scope, self.number << _RUN_BITS | self._run_hash),
            (self._epoch_scope, self.number << _EPOCH_BITS | epoch),
        )

    def is_committed(self, txn: Transaction | None) -> bool:
        """Whether this micro-batch is committed.

        Raises:
            ProducerFencedError: A later one of the query is: this one may have been planned again, with other records.
        """
        if txn is None or not knows_version(txn, [(self.query_id, self.number)]):
            return False
        last_number = txn.versions[self.query_id]
        if self.number < last_number:
            msg = (
                f"micro-batch {self.number} of query {self.query_id} is not written, because micro-batch {last_number} "
                "of it is committed: the checkpoint is older than the store, such as one of a backup, or another "
                "driver has continued. What this run reads may not be what was committed under this number. Put back "
                "the newest checkpoint, or start the query with a new one"
            )
            raise ProducerFencedError(msg)
        return True

    def is_overtaken(self, txn: Transaction) -> bool:
        """Whether another run has committed this micro-batch, or a later one of the query."""
        return knows_version(txn, [(self.query_id, self.number)]) and not self.is_of_last_run(txn)

    def is_of_new_query(self, view: View) -> bool:
        """Whether the query has committed nothing, under any transactional id."""
        return not any(self.query_id in txn.versions for txn in view.transactions.values())

    def is_of_last_run(self, txn: Transaction) -> bool:
        """Whether the last micro-batch of the query was committed by this run."""
        return txn.versions.get(self._run_scope, -1) & (1 << _RUN_BITS) - 1 == self._run_hash and (
            self._run_scope in txn.versions
        )

    def is_of_last_transaction(self, txn: Transaction) -> bool:
        """Whether the last micro-batch of the query was committed by the last transaction of its transactional id."""
        last_epoch = txn.epoch if txn.state in DECIDED else txn.last_epoch
        return txn.versions.get(self._epoch_scope, -1) & (1 << _EPOCH_BITS) - 1 == last_epoch

    @property
    def _epoch_scope(self) -> str:
        return f"{self.query_id}/epoch"

    @property
    def _run_scope(self) -> str:
        return f"{self.query_id}/run"

    @property
    def _run_hash(self) -> int:
        return zlib.crc32(self.run_id.encode())


def transactional_id(configured_id: str | None, group: str | None, query_id: str) -> str:
    """Return the transactional id of a query.

    With a group it is that of the group, so a query with a new checkpoint fences one that still uses an old checkpoint.
    """
    return configured_id or f"spark-{query_id if group is None else group}"


def identity_of_run(txn: Transaction | None, batch: MicroBatch) -> ProducerIdentity | None:
    """Return the identity of the run; None if it needs a new one, which fences the earlier runs.

    Raises:
        ProducerFencedError: Another run was granted an epoch since the last micro-batch of this run.
    """
    if txn is None or not batch.is_of_last_run(txn):
        return None
    if txn.state not in _COMMITTED or not batch.is_of_last_transaction(txn):
        raise overtaken_error(txn, batch)
    producer_id, epoch = next_id_and_epoch(txn) if txn.state in DECIDED else (txn.producer_id, txn.epoch)
    return ProducerIdentity(producer_id, epoch, txn.transactional_id)


def overtaken_error(txn: Transaction, batch: MicroBatch) -> ProducerFencedError:
    """Return the error of a run that a newer run has replaced."""
    return ProducerFencedError(
        f"run {batch.run_id} of query {batch.query_id} is fenced: a newer run of it, or another query, uses the "
        f"transactional id {txn.transactional_id!r}"
    )


def consumed_offsets(
    view: View, store_id: str, group: str, positions: Iterable[Position], *, is_new: bool
) -> tuple[TxnOffsets, ...]:
    """Return the offsets that a micro-batch commits to a group: those of its sources that read this store.

    Args:
        view: A view in which no other run can commit any more.
        store_id: The id of the store that is written.
        positions: What the sources of the micro-batch read.
        is_new: Whether the query has committed nothing yet. Where the group is at the end of its first micro-batch,
            another query has read these records; later, a micro-batch may repeat the offsets of the one before.

    Raises:
        InvalidConfigError: No source reads this store, one has another group, or two read the same partition.
        ProducerFencedError: The offsets of the group have moved: another query of the group has read the records.
    """
    offsets: dict[TopicPartition, GroupOffset] = {}
    seen_tps: set[TopicPartition] = set()
    positions_here = [position for position in positions if position.store_id == store_id]
    if not positions_here:
        msg = (
            f"the sink has no offsets for group {group!r}, because no source of the query reads this store: leave out "
            "the option group of the sink. The group of a source in another store follows the query without it"
        )
        raise InvalidConfigError(msg)
    for position in positions_here:
        if position.group != group:
            msg = (
                f"the query writes its offsets to group {group!r}, but its source has "
                f"{'no group' if position.group is None else f'the group {position.group!r}'}: "
                "give both the same option group, so that a query with a new checkpoint starts there. A checkpoint "
                "keeps the group of its first start: to change it, start with a new one"
            )
            raise InvalidConfigError(msg)
        for tp, end in position.end.items():
            if tp in seen_tps:
                msg = f"two sources of the query read {tp}, so group {group!r} cannot have the offset of both"
                raise InvalidConfigError(msg)
            seen_tps.add(tp)
            if _needs_commit(view, group, tp, position.start.get(tp), end, is_new=is_new):
                topic_id = position.topic_ids.get(tp.topic)
                offsets[tp] = GroupOffset(topic=tp.topic, partition=tp.partition, offset=end, topic_id=topic_id)
    return (TxnOffsets(group, tuple(offsets[tp] for tp in sorted(offsets))),) if offsets else ()


def _needs_commit(view: View, group: str, tp: TopicPartition, start: int | None, end: int, *, is_new: bool) -> bool:
    """Whether the offset has to be committed: not if the group already has it."""
    stored_offset = committed(view, group, tp, require_stable=False)
    if stored_offset is not None and stored_offset.offset != start and (is_new or stored_offset.offset != end):
        msg = (
            f"group {group!r} has read {tp} up to offset {stored_offset.offset}, but this micro-batch reads it from "
            f"{start}: another query of the group has read on, or its offsets were reset. Start the query with a new "
            "checkpoint"
        )
        raise ProducerFencedError(msg)
    return stored_offset is None or stored_offset.offset != end
