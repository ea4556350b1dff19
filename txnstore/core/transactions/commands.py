"""The commands of producers and coordinators, and their answers."""

from __future__ import annotations

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.commands import Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import NO_PRODUCER, Command, Outcome, ProducerIdentity, TopicPartition, value_class
from txnstore.core.transactions.model import MAX_TIMEOUT_MS, NO_TIMEOUT_MS

#: The default of Kafka's ``transaction.timeout.ms``.
TIMEOUT_MS = 60_000


@value_class()
class InitProducer(Command):
    """Grant a producer id and epoch; fence earlier instances and abort their open transaction.

    Answered with a :class:`~txnstore.core.model.ProducerIdentity`; or with :class:`DecidedTransaction`, if a decided
    transaction must be completed in other chains first: complete it and repeat the command; or with
    :class:`KeptTransaction`, if the open transaction is kept and other chains have to fence its older epochs.

    Attributes:
        transactional_id: The transactional id; None for an idempotent producer.
        timeout_ms: The timeout of its transactions in ms. None: :data:`TIMEOUT_MS`, or the store's largest if that is
            less.
        expected: The (producer id, epoch) that the caller has and asks to bump (KIP-360).
        keep_prepared: Keep a prepared transaction open under the new epoch (KIP-939).
        two_phase: Transactions of the id have no timeout; ``timeout_ms`` has no effect
            (``transaction.two.phase.commit.enable``).
        max_timeout_ms: The largest timeout that the store allows.
    """

    transactional_id: str | None = None
    timeout_ms: int | None = None
    expected: tuple[int, int] | None = None
    keep_prepared: bool = False
    two_phase: bool = False
    max_timeout_ms: int = MAX_TIMEOUT_MS

    @property
    def granted_timeout_ms(self) -> int:
        """The timeout that is stored with the identity."""
        if self.two_phase:
            return NO_TIMEOUT_MS
        return min(TIMEOUT_MS, self.max_timeout_ms) if self.timeout_ms is None else self.timeout_ms


@value_class()
class EndTxn(Command):
    """Append the last batches and offsets, then commit or abort. Answered with :class:`Ended`.

    Attributes:
        outcome: The outcome asked for.
        batches: The batches that are not registered yet.
        offsets: The offsets that are not registered yet.
        versions: Pairs of (scope, version) of an idempotent job; if one is committed already, nothing is committed.
        after: For each other chain of the transaction, an entry that follows all its batches and offsets.
        session: The client continues with the epoch and the sequences that it has (transactions v1).
    """

    producer: ProducerIdentity
    outcome: Outcome
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    after: tuple[tuple[int, int], ...] = ()
    session: bool = False


@value_class()
class PrepareTxn(Command):
    """Prepare a transaction, which an external coordinator decides: it has no timeout (KIP-939). Answered with None.

    In another chain of the transaction: refuse further batches and offsets of it. ``after`` is then the coordinator's
    chain and its entry with the preparation.
    """

    producer: ProducerIdentity
    after: tuple[int, int] | None = None


@value_class()
class FenceProducer(Command):
    """Fence the older epochs of a producer of another chain. Answered with None.

    ``after``: the coordinator's chain and its entry that granted the epoch.
    """

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    after: tuple[int, int]


@value_class()
class AbortTxn(Command):
    """Abort an open transaction of another process and fence its producer.

    Answered with :class:`DecidedTransaction` if the transaction must be completed in other chains, else with None.

    Attributes:
        identity: The (producer id, epoch) of the transaction; without effect on another one. None: any.
        expired_only: The caller has measured that the timeout of the transaction ``identity`` has passed (TMO-01);
            without effect on a prepared transaction, which has none. The times of entries decide nothing here.
    """

    transactional_id: str
    identity: tuple[int, int] | None = None
    expired_only: bool = False


@value_class()
class WriteMarkers(Command):
    """Write the markers of a decided transaction in another chain than its coordinator's. Answered with None.

    Any process may repeat it at any time: an existing marker is not written again (END-08).

    Attributes:
        after: The coordinator's chain and its entry with the decision.
        copies_current: The chain has current copies of the topics, so an unknown topic is deleted and needs no marker.
            If not set, an unknown topic refuses the command.
    """

    decided: DecidedTransaction
    after: tuple[int, int]
    copies_current: bool = False


@value_class()
class CompleteTxn(Command):
    """Complete a decided transaction whose markers are all written. Answered with None, also if it is completed.

    ``after``: for each other chain of the transaction, an entry that follows its markers.
    """

    decided: DecidedTransaction
    after: tuple[tuple[int, int], ...]


@value_class()
class DecidedTransaction:
    """A decided transaction that is not completed: other chains may lack its markers.

    ``partitions`` and ``groups`` are all of the transaction, those of the coordinator's chain too. Its markers carry
    the epoch ``epoch + 1`` (KIP-890). ``topic_ids``: pairs of (topic, topic id) for topics of other
    chains, where the id is known. ``session_epoch``: the epoch with which the client continues; -1 if it does not.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()
    session_epoch: int = NO_PRODUCER

    def names(self, topic: CatalogTopic) -> bool:
        """Whether the transaction may have data in this topic, and not only in an earlier one of its name."""
        topic_ids = {topic_id for name, topic_id in self.topic_ids if name == topic.name}
        return not topic_ids or topic.topic_id in topic_ids


@value_class()
class KeptTransaction:
    """A granted identity whose transaction stays open, and the places where its older epochs must be fenced."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


@value_class()
class Ended:
    """The answer to an end.

    Attributes:
        producer: The identity of the next transaction.
        appended: Where the batches of the command were appended.
        repeated: The version of the job was committed before, so nothing was committed; an open transaction of this
            attempt is aborted.
        unfinished: The transaction, if it is decided and must be completed in other chains.
    """

    producer: ProducerIdentity
    appended: tuple[Appended, ...] = ()
    repeated: bool = False
    unfinished: DecidedTransaction | None = None
