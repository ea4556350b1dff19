"""Names and conversions for the driver of a store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from tests.harness.differential.members import Claim
from tests.harness.traces import Op
from tests.helpers import keys
from txnstore.chain.codec import Entry, encode
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.events import ProducerInitialized
from txnstore.errors import TxnStoreError
from txnstore.producer.futures import RecordFuture
from txnstore.storage.base import ObjectStore
from txnstore.store import Store

#: Kafka's names of the error classes; a class without a counterpart is not listed and keeps its name.
KAFKA_NAMES = {
    "ClusterAuthorizationError": "CLUSTER_AUTHORIZATION_FAILED",
    "ConcurrentTransactionsError": "CONCURRENT_TRANSACTIONS",
    "FencedInstanceError": "FENCED_INSTANCE_ID",
    "GroupAuthorizationError": "GROUP_AUTHORIZATION_FAILED",
    "IllegalGenerationError": "ILLEGAL_GENERATION",
    "InvalidPidMappingError": "INVALID_PRODUCER_ID_MAPPING",
    "InvalidProducerEpochError": "INVALID_PRODUCER_EPOCH",
    "InvalidRecordError": "INVALID_RECORD",
    "InvalidTxnStateError": "INVALID_TXN_STATE",
    "InvalidTxnTimeoutError": "INVALID_TRANSACTION_TIMEOUT",
    "OffsetMetadataTooLargeError": "OFFSET_METADATA_TOO_LARGE",
    "OffsetOutOfRangeError": "OFFSET_OUT_OF_RANGE",
    "OutOfOrderSequenceError": "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "PolicyViolationError": "POLICY_VIOLATION",
    "ProducerClosedError": "PRODUCER_CLOSED",
    "ProducerFencedError": "PRODUCER_FENCED",
    "TopicAuthorizationError": "TOPIC_AUTHORIZATION_FAILED",
    "TopicExistsError": "TOPIC_ALREADY_EXISTS",
    "UnknownMemberError": "UNKNOWN_MEMBER_ID",
    "TransactionalIdAuthorizationError": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "TransactionalIdNotFound": "TRANSACTIONAL_ID_NOT_FOUND",
    "UnknownTopicOrPartitionError": "UNKNOWN_TOPIC_OR_PARTITION",
    "UnstableOffsetCommitError": "UNSTABLE_OFFSET_COMMIT",
}


class TransactionalIdNotFound(TxnStoreError):  # noqa: N818 - Kafka's name
    """A query of an unknown transactional id."""


class Results:
    """The futures of the records that a producer has not settled yet; a call removes those that it settles."""

    def __init__(self, futures: list[tuple[str, RecordFuture]]) -> None:
        self._futures = futures

    def offsets(self) -> dict[str, list[int]]:
        """The offsets of the records, by partition."""
        by_partition: dict[str, list[int]] = {}
        for partition, future in self._futures:
            by_partition.setdefault(partition, []).append(future.result(timeout=0).offset)
        return by_partition

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._futures[:] = [waiting for waiting in self._futures if not waiting[1].done()]


def in_threads(apply: Callable[[Op], dict[str, Any]], ops: list[Op]) -> list[dict[str, Any]]:
    """The answers to operations that run at the same time."""
    with ThreadPoolExecutor(len(ops)) as pool:
        return list(pool.map(apply, ops))


def partition_of(name: str) -> TopicPartition:
    """``t-0`` as a partition."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def offsets_of(op: Op, claim: Claim) -> TxnOffsets:
    """The positions of an operation, converted for a command."""
    items = ((partition_of(name), offset) for name, offset in op["offsets"].items())
    offsets = tuple(GroupOffset(topic=tp.topic, partition=tp.partition, offset=offset) for tp, offset in items)
    return TxnOffsets(op["group"], offsets, claim.generation, claim.member_id, claim.instance)


def bad_offsets(refused: str) -> tuple[str, int, str, str]:
    """Topic, partition, metadata and group of positions of which one is refused: ``what`` names it."""
    topic, partition = ("missing" if refused == "topic" else "t"), (99 if refused == "partition" else 0)
    return topic, partition, "x" * (5000 if refused == "metadata" else 0), "" if refused == "group" else "g"


def as_bytes(text: str | None) -> bytes | None:
    """A key or value of a trace, converted for a record."""
    return text.encode() if text is not None else None


def as_text(data: Any) -> str | None:
    """A key or value of a record, converted for a trace."""
    return data.decode() if data is not None else None


def write_epoch(store: Store, objects: ObjectStore, transactional_id: str, epoch: int, now_ms: int) -> None:
    """Write an entry with the result of many transactions of an id, beside the store."""
    number = chain_of_transactional_id(transactional_id, len(store._connection.chains))
    state = store._connection.chains[number].refresh()
    txn = state.transactions[transactional_id]
    event = ProducerInitialized(
        producer_id=txn.producer_id, epoch=epoch, transactional_id=transactional_id, timeout_ms=txn.timeout_ms
    )
    entry = Entry(
        sequence=state.sequence + 1,
        entry_id=store._connection.runtime.new_id(),
        writer_id="differential",
        timestamp=max(now_ms, state.timestamp),
        previous=state.entry_hash,
        payload=None,
        requires=None,
        principals=None,
        events=[event],
    )
    objects.put_if_absent(keys.entry(number, entry.sequence), encode(entry))
