"""The states of a transaction, and the coordinator's record of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from txnstore.core.model import NO_PRODUCER, Map, Outcome, TopicPartition

#: The last epoch that a client may have; at this epoch the producer id is rotated (Kafka: ``isEpochExhausted``).
MAX_EPOCH = 2**15 - 2


class TxnState(Enum):
    """The states of a transaction, with Kafka's stable ids (``TransactionState``).

    ``machine.py`` beside this file has the transitions between them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


#: The default of Kafka's ``transaction.max.timeout.ms``.
MAX_TIMEOUT_MS = 900_000
#: The stored timeout of a transactional id that has none, as in Kafka (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1

#: The states of a transaction that is decided and not completed, with its outcome.
DECIDED = {TxnState.PREPARE_COMMIT: Outcome.COMMIT, TxnState.PREPARE_ABORT: Outcome.ABORT}
#: The states of a completed transaction, with its outcome.
COMPLETED = {TxnState.COMPLETE_COMMIT: Outcome.COMMIT, TxnState.COMPLETE_ABORT: Outcome.ABORT}
#: For each outcome the state of a transaction that is decided, and that of one that is completed.
PREPARING = {outcome: state for state, outcome in DECIDED.items()}
COMPLETING = {outcome: state for state, outcome in COMPLETED.items()}


@dataclass(frozen=True)
class Transaction:
    """The coordinator's record of a transactional id (Kafka: ``TransactionMetadata``). Times are in ms.

    Attributes:
        transactional_id: The transactional id.
        producer_id: The current producer id.
        epoch: The epoch of the open or next transaction.
        timeout_ms: The timeout of its transactions; 2**31 - 1 if they have none, as in Kafka (KIP-939).
        state: The state.
        last_epoch: The epoch before the current one, which a retried end or init carries; -1 if not known.
        previous_producer_id: The producer id of ``last_epoch``, if it was another one; else -1.
        next_producer_id: While decided: the producer id after the completion.
        next_epoch: While decided: the epoch after the completion.
        prepared_epoch: Once it is prepared for an external coordinator (KIP-939), until its completion: the epoch of
            its batches; else -1. A newer instance that keeps the transaction raises ``epoch`` and leaves this one.
        partitions: The partitions of the transaction.
        groups: The groups of the transaction.
        topic_ids: The ids of its topics in other chains, where its writers named them. A topic that was created again
            under its name has another id.
        started_at: The time at which the open or decided transaction began; None without one.
        first_entry: The entry in which the open or decided transaction began; 0 if there is none.
        updated_at: The time of the last change.
        versions: The last committed version of each scope of an idempotent job.
        session_epoch: The epoch that the client has, if it is not ``epoch``: a client of transactions v1 keeps one for
            a session of many transactions (``txnstore.core.transactions.sessions``); else -1.
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
    prepared_epoch: int = NO_PRODUCER
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    topic_ids: Map[str, tuple[str, ...]] = field(default_factory=Map)
    started_at: int | None = None
    first_entry: int = 0
    updated_at: int = 0
    versions: Map[str, int] = field(default_factory=Map)
    session_epoch: int = NO_PRODUCER

    @property
    def in_session(self) -> bool:
        """Whether the client has another epoch than the transaction: it has ended earlier ones with transactions v1."""
        return self.session_epoch != NO_PRODUCER

    @property
    def is_prepared(self) -> bool:
        """Whether it was prepared for an external coordinator (KIP-939); true until its completion."""
        return self.prepared_epoch != NO_PRODUCER

    @property
    def data_epoch(self) -> int:
        """The epoch of the batches of the open transaction."""
        return self.prepared_epoch if self.is_prepared else self.epoch

    @property
    def timed_from(self) -> int | None:
        """The time from which its timeout runs; None if it is not open, or has none.

        A prepared transaction has none, and no transaction of an id with two-phase commit (TPC-02, KIP-939).
        """
        is_timed = self.state is TxnState.ONGOING and not self.is_prepared and not self.two_phase
        return self.started_at if is_timed else None

    @property
    def two_phase(self) -> bool:
        """Whether the transactional id uses two-phase commit, so that its transactions have no timeout (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def expires_at(self) -> int | None:
        """When its timeout has passed, in ms, if the clock of its writer is right; None if it has no timeout now."""
        return None if self.timed_from is None else self.timed_from + self.timeout_ms

    def is_expired(self, now: int) -> bool:
        """Whether it is open past its timeout, if the clocks of its writer and of ``now`` (ms) are right.

        For what is shown only. ``chain.ages.Ages`` decides whether it may be aborted (TMO-01).
        """
        started_at = self.timed_from
        return started_at is not None and started_at + self.timeout_ms < now
