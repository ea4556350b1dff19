"""The commands of producers and coordinators, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.catalog.model import Topic
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.commands import Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition


@dataclass(frozen=True, slots=True)
class InitProducer:
    """Grant a producer id and epoch; fence and recover the previous instance. Answered with a ProducerIdentity.

    Where the previous transaction has to be ended in other chains first, the answer is :class:`Unfinished`: finish it,
    then ask again. ``keep_held``: a transaction that an outside coordinator decides goes on under the new epoch
    (KIP-939); the answer is then :class:`Kept`. ``expected``: the (producer id, epoch) that the caller holds and wants
    bumped (KIP-360).
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000
    expected: tuple[int, int] | None = None
    keep_held: bool = False


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Append what is left, then commit or abort. Answered with :class:`Ended`.

    ``versions``: pairs of (scope, version) of an idempotent job; if one is committed already, nothing is done.
    ``after``: for each other chain that takes part, an entry at which all of its batches and offsets are there.
    """

    producer: ProducerIdentity
    outcome: Outcome
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    after: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HoldTxn:
    """All is written, and an outside coordinator decides: no timeout from now on (KIP-939). Answered with None.

    In another chain that takes part: accept nothing more of the transaction. ``after``: then the coordinator's chain
    and its entry that holds the same.
    """

    producer: ProducerIdentity
    after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FenceProducer:
    """Accept nothing of an older epoch from a producer of another chain. Answered with None.

    ``after``: the coordinator's chain and its entry that granted the epoch.
    """

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    after: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AbortTxn:
    """Abort a transaction that another process left, if it is still open. Answered with :class:`Unfinished` or None.

    Its owner is fenced. ``identity``: the (producer id, epoch) of the transaction that is meant; None: whichever is
    open. ``expired_only``: only if it is past its time-out by the time of the chain (TMO-01).
    """

    transactional_id: str
    identity: tuple[int, int] | None = None
    expired_only: bool = False


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a decided transaction in a chain that takes part in it. Answered with None.

    May be repeated at any time by anybody: a marker that is there is not written again (END-08).
    ``after``: the coordinator's chain and its entry that holds the decision. ``told``: the chain has been told what the
    catalog knows of the topics, so what it does not know is deleted; else it refuses the command.
    """

    decided: Unfinished
    after: tuple[int, int]
    told: bool = False


@dataclass(frozen=True, slots=True)
class CompleteTxn:
    """All markers of a decided transaction are written. Answered with None, also if that was known already.

    ``after``: for each chain that took part, an entry at which its markers are there.
    """

    decided: Unfinished
    after: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A transaction whose outcome is decided, and which still has to be ended in other chains.

    ``partitions`` and ``groups``: all that take part. The marker's epoch is ``epoch + 1`` (KIP-890). ``topic_ids``:
    pairs of name and id of the topics in other chains, where they are known.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    topic_ids: tuple[tuple[str, str], ...] = ()

    def names(self, topic: Topic) -> bool:
        """Whether the transaction takes part in this topic, and not only in another one that had its name."""
        known = {topic_id for name, topic_id in self.topic_ids if name == topic.name}
        return not known or topic.topic_id in known


@dataclass(frozen=True, slots=True)
class Kept:
    """An identity whose transaction goes on, and where it takes part: there its old epoch is to be fenced."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a transaction ended: the identity of the next one, and where its last batches landed.

    ``unfinished``: it is decided and durable, but other chains have still to be told.

    ``repeated``: the version of the job was committed before, so nothing was committed now; what was still open of this
    attempt is aborted.
    """

    producer: ProducerIdentity
    appended: tuple[Appended, ...] = ()
    repeated: bool = False
    unfinished: Unfinished | None = None
