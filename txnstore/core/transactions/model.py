"""The states of a transaction and the values that the coordinator keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from txnstore.core.model import NO_PRODUCER, Map, Outcome, TopicPartition

#: The last epoch a client may hold; at this one the producer id is rotated (Kafka: ``isEpochExhausted``).
MAX_EPOCH = 2**15 - 2


class TxnState(Enum):
    """The states of a transaction, with Kafka's stable ids (``TransactionState``)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


#: The states from which each state may be entered (STM-02; Kafka: ``TransactionState.VALID_PREVIOUS_STATES``).
VALID_PREVIOUS_STATES: dict[TxnState, frozenset[TxnState]] = {
    TxnState.EMPTY: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.ONGOING: frozenset(
        {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT},
    ),
    TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING}),
    TxnState.PREPARE_ABORT: frozenset(
        {
            TxnState.ONGOING,
            TxnState.PREPARE_EPOCH_FENCE,
            TxnState.EMPTY,
            TxnState.COMPLETE_COMMIT,
            TxnState.COMPLETE_ABORT,
        },
    ),
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    TxnState.DEAD: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
    TxnState.PREPARE_EPOCH_FENCE: frozenset({TxnState.ONGOING}),
}

#: The states of a transaction whose outcome is decided and whose markers are being written.
_DECIDED = {TxnState.PREPARE_COMMIT: Outcome.COMMIT, TxnState.PREPARE_ABORT: Outcome.ABORT}


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator knows of a transactional id: Kafka's ``TransactionMetadata``.

    ``epoch`` is the epoch of the current or next transaction; ``last_epoch`` that of the transaction that ended last
    (a retried commit carries it), ``previous_producer_id`` the producer id that went with it if that was another one.
    ``next_producer_id`` and ``next_epoch``: while it is prepared, the identity that follows its completion.
    ``topic_ids``: of each topic in other chains the ids under which it takes part, where its writers named them: a
    topic that is created again under its name is another one.
    ``held``: while an outside coordinator decides (KIP-939), the epoch that its batches have; such a transaction has no
    time-out. ``versions`` maps a job's scope to the last version it committed.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    last_epoch: int = NO_PRODUCER
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    next_epoch: int = NO_PRODUCER
    held: int = NO_PRODUCER
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    topic_ids: Map[str, tuple[str, ...]] = field(default_factory=Map)
    started_at: int | None = None
    updated_at: int = 0
    versions: Map[str, int] = field(default_factory=Map)

    @property
    def data_epoch(self) -> int:
        """The epoch that the batches of the open transaction have."""
        return self.epoch if self.held == NO_PRODUCER else self.held

    @property
    def outcome(self) -> Outcome | None:
        """How it will end, if that is decided and not all of its markers are known to be written."""
        return _DECIDED.get(self.state)

    def expired(self, now: int) -> bool:
        """Whether it is open for longer than its time-out at the time ``now`` (TMO-01); then anybody may abort it.

        A transaction that an outside coordinator decides never is (TPC-02).
        """
        started = self.started_at if self.state is TxnState.ONGOING and self.held == NO_PRODUCER else None
        return started is not None and started + self.timeout_ms < now
