"""Names and conversions for the driver of a store."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tests.harness.differential.members import Claim
from tests.harness.differential.trace import Op
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.producer.futures import RecordFuture

#: Kafka's names for the classes of errors; a class that is not here has no counterpart and stands for itself.
KAFKA_NAMES = {
    "ConcurrentTransactionsError": "CONCURRENT_TRANSACTIONS",
    "FencedInstanceError": "FENCED_INSTANCE_ID",
    "IllegalGenerationError": "ILLEGAL_GENERATION",
    "InvalidPidMappingError": "INVALID_PRODUCER_ID_MAPPING",
    "InvalidProducerEpochError": "INVALID_PRODUCER_EPOCH",
    "InvalidTxnStateError": "INVALID_TXN_STATE",
    "InvalidTxnTimeoutError": "INVALID_TRANSACTION_TIMEOUT",
    "OffsetMetadataTooLargeError": "OFFSET_METADATA_TOO_LARGE",
    "OffsetOutOfRangeError": "OFFSET_OUT_OF_RANGE",
    "OutOfOrderSequenceError": "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "ProducerClosedError": "PRODUCER_CLOSED",
    "ProducerFencedError": "PRODUCER_FENCED",
    "TopicExistsError": "TOPIC_ALREADY_EXISTS",
    "UnknownMemberError": "UNKNOWN_MEMBER_ID",
    "TransactionalIdNotFound": "TRANSACTIONAL_ID_NOT_FOUND",
    "UnknownTopicOrPartitionError": "UNKNOWN_TOPIC_OR_PARTITION",
    "UnstableOffsetCommitError": "UNSTABLE_OFFSET_COMMIT",
}


class TransactionalIdNotFound(TxnStoreError):  # noqa: N818 - Kafka's name
    """A question about a transactional id that is not known."""


class Results:
    """The futures of the records that a producer has not settled yet; those that a call settles are over with it."""

    def __init__(self, futures: list[tuple[str, RecordFuture]]) -> None:
        self._futures = futures

    def offsets(self) -> dict[str, list[int]]:
        """Where the records went, by partition."""
        found: dict[str, list[int]] = {}
        for partition, future in self._futures:
            found.setdefault(partition, []).append(future.result(timeout=0).offset)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._futures[:] = [waiting for waiting in self._futures if not waiting[1].done()]


def partition_of(name: str) -> TopicPartition:
    """``t-0`` as a partition."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def offsets_of(op: Op, claim: Claim) -> TxnOffsets:
    """The positions of an operation as a command holds them."""
    items = ((partition_of(name), offset) for name, offset in op["offsets"].items())
    offsets = tuple(GroupOffset(topic=tp.topic, partition=tp.partition, offset=offset) for tp, offset in items)
    return TxnOffsets(op["group"], offsets, claim.generation, claim.member_id, claim.instance)


def as_bytes(text: str | None) -> bytes | None:
    """A key or value of a trace as a record has it."""
    return text.encode() if text is not None else None


def as_text(data: Any) -> str | None:
    """The other way round."""
    return data.decode() if data is not None else None
