"""The broker's side: topics, the transaction coordinator, the group coordinator, in one place and in one step.

A request that is refused changes nothing. The markers of an end are written before its answer (DIF-08).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.harness.model.group import NO_MEMBER, Claim, Group, Marker, Write
from tests.harness.model.log import NO_PRODUCER, Log, Record, RefusedError

#: The last epoch that a client may hold (INIT-07).
LAST_EPOCH = 32766
#: Kafka's ``transaction.max.timeout.ms``.
MAX_TIMEOUT_MS = 900_000


@dataclass(frozen=True)
class Identity:
    """The identity in a request: the producer id and epoch, and the transactional id if there is one."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None


@dataclass
class Transaction:
    """The coordinator's state of a transactional id.

    ``last``: the producer id and epoch of the transaction that ended last, or that a repeated init may carry.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = "EMPTY"
    last: tuple[int, int] | None = None
    partitions: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    started_at: int | None = None

    @property
    def current(self) -> tuple[int, int]:
        """The producer id and epoch of the current or next transaction."""
        return self.producer_id, self.epoch


@dataclass(frozen=True)
class Data:
    """A batch that a producer sends."""

    partition: str
    sequence: int
    records: list[Record]
    age_ms: int = 0


@dataclass(frozen=True)
class Offsets:
    """Positions that a producer or a consumer commits for a group."""

    group: str
    offsets: dict[str, int]
    claim: Claim = NO_MEMBER


class Broker:
    """A whole cluster. ``now`` is its clock in milliseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.logs: dict[str, Log] = {}
        self.transactions: dict[str, Transaction] = {}
        self.owners: dict[int, str | None] = {}
        self.groups: dict[str, Group] = {}

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic with empty partitions."""
        if f"{name}-0" in self.logs:
            raise RefusedError("TOPIC_ALREADY_EXISTS")
        for number in range(partitions):
            self.logs[f"{name}-{number}"] = Log(config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and what groups have committed for it."""
        if f"{name}-0" not in self.logs:
            raise RefusedError("UNKNOWN_TOPIC_OR_PARTITION")
        deleted = [partition for partition in self.logs if partition.rpartition("-")[0] == name]
        for partition in deleted:
            del self.logs[partition]
        for group in self.groups.values():
            group.log = [item for item in group.log if not isinstance(item, Write) or item.partition not in deleted]

    def of_topic(self, name: str) -> list[Log]:
        """The logs of a topic."""
        return [log for partition, log in self.logs.items() if partition.rpartition("-")[0] == name]

    # InitProducerId ---------------------------------------------------------------------------------------------------

    def init(
        self, transactional_id: str | None, timeout_ms: int = 60_000, expected: tuple[int, int] | None = None
    ) -> Identity:
        """Grant an identity; a transactional one fences its predecessor and ends its transaction (INIT-01 to 13)."""
        if transactional_id is None:
            return Identity(self._new_producer_id(None), 0)
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            raise RefusedError("INVALID_TRANSACTION_TIMEOUT")
        txn = self.transactions.get(transactional_id)
        if txn is None:
            if expected is not None:
                raise RefusedError("INVALID_PRODUCER_ID_MAPPING")
            txn = Transaction(self._new_producer_id(transactional_id), 0, timeout_ms)
            self.transactions[transactional_id] = txn
            return Identity(*txn.current, transactional_id)
        if expected is not None and expected != txn.current:
            if expected == txn.last:
                if txn.state.startswith("COMPLETE"):
                    txn.state, txn.timeout_ms = "EMPTY", timeout_ms
                return Identity(*txn.current, transactional_id)
            raise RefusedError("PRODUCER_FENCED")
        if txn.state == "ONGOING":
            self.finish(transactional_id, "ABORT")
            if expected is not None:  # The epoch bump that it requested before (KIP-360).
                txn.state, txn.timeout_ms = "EMPTY", timeout_ms
                return Identity(*txn.current, transactional_id)
        self._bump(transactional_id, txn)
        # Only an instance that requested the bump with its own identity may repeat it (INIT-10).
        txn.state, txn.timeout_ms, txn.last = "EMPTY", timeout_ms, expected
        return Identity(*txn.current, transactional_id)

    def _new_producer_id(self, transactional_id: str | None) -> int:
        producer_id = len(self.owners)
        self.owners[producer_id] = transactional_id
        return producer_id

    def _bump(self, transactional_id: str, txn: Transaction) -> None:
        """The next epoch; after the last one a new producer id (INIT-07, TV2-04)."""
        if txn.epoch < LAST_EPOCH:
            txn.epoch += 1
        else:
            txn.producer_id, txn.epoch = self._new_producer_id(transactional_id), 0

    # Produce, AddPartitionsToTxn, TxnOffsetCommit ---------------------------------------------------------------------

    def _transaction_of(self, who: Identity) -> Transaction:
        """The transaction of a producer: first the mapping is checked, then the epoch (ADD-03, END-02)."""
        txn = self.transactions.get(who.transactional_id or "")
        if txn is None or self.owners.get(who.producer_id) != who.transactional_id:
            raise RefusedError("INVALID_PRODUCER_ID_MAPPING")
        return txn

    def _fence(self, who: Identity) -> Transaction:
        txn = self._transaction_of(who)
        if (who.producer_id, who.epoch) != txn.current:
            raise RefusedError("PRODUCER_FENCED")
        return txn

    def add_partitions(self, who: Identity, partitions: list[str]) -> None:
        """AddPartitionsToTxn: all or none (ADD-04)."""
        txn = self._fence(who)
        for partition in partitions:
            self._log(partition)
        self._join(txn, set(partitions), set())

    def produce(self, who: Identity, data: list[Data], offsets: list[Offsets] | None = None) -> list[tuple[int, bool]]:
        """Append batches and pending offsets: all or nothing. Returns base offsets, and whether each is a duplicate."""
        transactional = who.transactional_id is not None
        txn = self._fence(who) if transactional else None
        if txn is None and self.owners.get(who.producer_id) is not None:
            raise RefusedError("INVALID_TXN_STATE")
        for batch in data:
            self._check_keys(batch)
        for item in offsets or []:
            self._check_offsets(item, transactional=True)
        for batch in data:
            log = self._log(batch.partition)
            log.check(who.producer_id, who.epoch, batch.sequence, len(batch.records), transactional=transactional)
        if txn is not None:
            self._join(txn, {batch.partition for batch in data}, {item.group for item in offsets or []})
        for item in offsets or []:
            self._write_offsets(item, who.producer_id)
        answers = []
        for batch in data:
            log = self._log(batch.partition)
            there, duplicate = log.append(
                who.producer_id,
                who.epoch,
                batch.sequence,
                batch.records,
                transactional=transactional,
                timestamp=self.now - batch.age_ms,
            )
            answers.append((there.base, duplicate))
        return answers

    def _check_keys(self, batch: Data) -> None:
        """Each record of a topic that is compacted has a key (CMP-19)."""
        if "compact" in self._log(batch.partition).policy and any(record[0] is None for record in batch.records):
            raise RefusedError("INVALID_RECORD")

    def _join(self, txn: Transaction, partitions: set[str], groups: set[str]) -> None:
        """The first partition or group begins the transaction and starts its clock (API-02, ADD-02)."""
        if txn.state != "ONGOING" and (partitions or groups):
            txn.state, txn.started_at = "ONGOING", self.now
        txn.partitions |= partitions
        txn.groups |= groups

    def _log(self, partition: str) -> Log:
        if partition not in self.logs:
            raise RefusedError("UNKNOWN_TOPIC_OR_PARTITION")
        return self.logs[partition]

    # EndTxn -----------------------------------------------------------------------------------------------------------

    def end(self, who: Identity, outcome: str) -> Identity:
        """Commit or abort, by the table of KIP-890 (TV2-02); answers with the identity of the next transaction."""
        txn = self._transaction_of(who)
        if (who.producer_id, who.epoch) != txn.current:
            return self._end_again(txn, who, outcome)
        if txn.state != "ONGOING" and outcome == "COMMIT":
            raise RefusedError("INVALID_TXN_STATE")
        self.finish(who.transactional_id or "", outcome)
        return Identity(*txn.current, who.transactional_id)

    def _end_again(self, txn: Transaction, who: Identity, outcome: str) -> Identity:
        """Answers a repeated end, which carries the identity of the first one (TV2-03)."""
        if txn.last != (who.producer_id, who.epoch) or txn.state not in {"COMPLETE_COMMIT", "COMPLETE_ABORT"}:
            raise RefusedError("PRODUCER_FENCED")
        if txn.state != f"COMPLETE_{outcome}":
            raise RefusedError("PRODUCER_FENCED" if outcome == "COMMIT" else "INVALID_TXN_STATE")
        return Identity(*txn.current, who.transactional_id)

    def finish(self, transactional_id: str, outcome: str) -> None:
        """Decide, write a marker everywhere, bump the epoch. The markers carry the next epoch (KIP-890)."""
        txn = self.transactions[transactional_id]
        for partition in sorted(txn.partitions & set(self.logs)):  # Others were deleted (END-07).
            self.logs[partition].mark(txn.producer_id, txn.epoch + 1, outcome)
        for group in sorted(txn.groups):
            self.group(group).log.append(Marker(txn.producer_id, outcome))
        txn.last = txn.current
        self._bump(transactional_id, txn)
        txn.state, txn.started_at = f"COMPLETE_{outcome}", None
        txn.partitions, txn.groups = set(), set()

    def sweep(self) -> list[str]:
        """Abort transactions past their timeout, with the bump that fences their producers (TMO-01, TMO-02)."""
        expired = [
            name
            for name, txn in sorted(self.transactions.items())
            if txn.started_at is not None and txn.started_at + txn.timeout_ms < self.now
        ]
        for name in expired:
            self.finish(name, "ABORT")
        return expired

    # Groups -----------------------------------------------------------------------------------------------------------

    def commit_offsets(self, item: Offsets) -> None:
        """Commit positions outside of a transaction."""
        self._check_offsets(item, transactional=False)
        self._write_offsets(item, None)

    def committed(self, group: str, partition: str, *, require_stable: bool) -> int | None:
        """The committed offset; with ``require_stable`` an undecided one is an error (OFF-09, KIP-447)."""
        state = self.groups.get(group, Group())
        if require_stable and state.unstable(partition):
            raise RefusedError("UNSTABLE_OFFSET_COMMIT")
        return state.committed(partition)

    def _check_offsets(self, item: Offsets, *, transactional: bool) -> None:
        if item.group not in self.groups and item.claim.generation >= 0:
            raise RefusedError("ILLEGAL_GENERATION")
        self.groups.get(item.group, Group()).check(item.claim, transactional=transactional)
        for partition in item.offsets:
            self._log(partition)

    def _write_offsets(self, item: Offsets, producer_id: int | None) -> None:
        for partition, offset in item.offsets.items():
            self.group(item.group).log.append(Write(partition, offset, producer_id))

    def group(self, name: str) -> Group:
        """A group, created on first use."""
        return self.groups.setdefault(name, Group())


__all__ = ["LAST_EPOCH", "NO_PRODUCER", "Broker", "Claim", "Data", "Identity", "Offsets", "Transaction"]
