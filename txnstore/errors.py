"""All errors that txnstore raises, and how a caller can respond to each.

    TxnStoreError
    ├── ProducerError
    │   ├── ProducerFencedError            fatal      a newer instance took over (Kafka: PRODUCER_FENCED)
    │   ├── TransactionalIdNotFoundError   caller     the transactional id is unknown or has expired
    │   ├── InvalidProducerEpochError      abortable  the transaction was aborted, for example after its timeout
    │   ├── InvalidPidMappingError         fatal      the transactional id has another producer id
    │   ├── OutOfOrderSequenceError        abortable  a gap in the sequence numbers, or an expired one
    │   ├── DuplicateSequenceError         internal   a duplicate batch; it gets the offsets of the first
    │   ├── InvalidTxnStateError           caller     the call is not allowed in the current state
    │   ├── InvalidTxnTimeoutError         fatal      the transaction timeout is out of range
    │   ├── TransactionAbortedError        caller     the record was dropped, because its transaction aborted
    │   ├── ConcurrentTransactionsError    retriable  the previous transaction is still being completed
    │   ├── NotCoordinatorError            retriable
    │   ├── CoordinatorNotAvailableError   retriable
    │   ├── ProducerClosedError            fatal      use after close, or in a forked child
    │   ├── UploadExpiredError             abortable  a vacuum may have deleted the unregistered upload
    │   ├── RecordTooLargeError            caller
    │   └── InvalidRecordError             caller     a record without a key for a compacted topic
    ├── GroupError
    │   ├── UnstableOffsetCommitError      retriable  an open transaction has pending offsets
    │   ├── IllegalGenerationError         abortable  the group has rebalanced
    │   ├── UnknownMemberError             abortable  the member's lease expired, or it left the group
    │   ├── FencedInstanceError            abortable  another consumer uses the group_instance_id
    │   ├── GroupNotEmptyError             caller     the group has live members
    │   ├── GroupNotFoundError             caller
    │   ├── ConsumerClosedError            fatal      use after close
    │   └── OffsetMetadataTooLargeError    caller
    ├── CatalogError
    │   ├── UnknownTopicOrPartitionError   caller
    │   ├── TopicExistsError               caller
    │   ├── TopicChangedError              retriable  the topic was altered concurrently
    │   ├── InvalidTopicError              caller     the name is not allowed, as in Kafka
    │   ├── PolicyViolationError           caller     the topic's cleanup.policy forbids to delete records
    │   ├── SchemaMismatchError            caller     names the column
    │   └── InvalidConfigError             caller     names the setting
    ├── AuthorizationError
    │   ├── TransactionalIdAuthorizationError  fatal  no right to write as this transactional id
    │   ├── TopicAuthorizationError        abortable
    │   ├── GroupAuthorizationError        abortable
    │   └── ClusterAuthorizationError      fatal
    ├── OffsetOutOfRangeError              caller
    ├── UndecidedRecordsError              retriable  an open transaction has records below the new log start
    ├── CompactionConflictError            retriable  a segment that the compaction read was replaced
    ├── StoreError
    │   ├── StoreNotFoundError             caller
    │   ├── StoreExistsError               caller
    │   ├── ReadOnlyError                  caller     a write to a store opened with read_only=True
    │   ├── UnsupportedFormatError         fatal      written by a newer txnstore
    │   ├── UnsafeStorageError             fatal      the storage created a name twice
    │   ├── SnapshotExpiredError           caller     a vacuum or an erasure has deleted what it needs
    │   ├── UnsoundStoreError              caller     a vacuum was refused: damage, or chains of another store
    │   ├── ReentrantCallError             caller     a signal handler used the store during a call of its thread
    │   └── CorruptionError                fatal      names the object and what was expected
    │       └── LostIdentityError          fatal      store.json is lost, or that of another store
    └── StorageError                       retriable  the request failed without effect
        ├── StorageRefusedError            caller     a persistent failure: credentials, no bucket, a full disk
        │   ├── StorageFullError           caller     the disk of the storage is full, or its quota is used up
        │   └── NoSpaceError               caller     the temporary folder of this machine is full
        ├── ObjectNotFoundError            internal   a GET or a stat of a key that does not exist
        ├── DamagedObjectError             internal   the bytes of an answer do not match their checksum
        └── UnknownOutcomeError            retriable  a write may or may not have happened

An error means that the call had no effect, except :class:`UnknownOutcomeError`: the call may have succeeded; repeat it.
After a ``fatal`` error, stop using the object that raised it. "caller" marks errors that the caller must correct;
"internal" classes do not reach applications. docs/guarantees.md lists what a caller knows after each error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar


class TxnStoreError(Exception):
    """The base class of all errors of txnstore.

    Attributes:
        retriable: Whether the same call may succeed later.
        abortable: Whether the transaction must be aborted; the producer can be used afterwards.
        fatal: Whether the object that raised the error cannot be used any more.
        advice: What to do, in a sentence or two; may be empty.
        kafka_code: The code of the corresponding error in Kafka's protocol (``Errors``), if there is one.
    """

    retriable: ClassVar[bool] = False
    abortable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    kafka_code: ClassVar[int | None] = None


class ProducerError(TxnStoreError):
    """An error of a producer or its transaction."""


class ProducerFencedError(ProducerError):
    """A newer instance of the transactional id fenced this producer, or its transaction timed out or was aborted."""

    kafka_code = 90
    fatal = True
    advice = "Close this producer. If it should be the active instance, create a new one."


class InvalidProducerEpochError(ProducerError):
    """Another process aborted the transaction, for example after its timeout; no newer instance exists (KIP-588)."""

    kafka_code = 47
    abortable = True
    advice = "Abort the transaction and send its records again."


class InvalidPidMappingError(ProducerError):
    """The transactional id does not map to this producer id, or no longer does."""

    kafka_code = 49
    fatal = True
    advice = "Close this producer and create a new one."


class TransactionalIdNotFoundError(ProducerError):
    """The transactional id does not exist: no producer has used it, or it has expired."""


class OutOfOrderSequenceError(ProducerError):
    """The sequence number of a batch does not follow the last one of its producer in the partition."""

    kafka_code = 45
    abortable = True
    advice = "Abort the transaction and send its records again."


class DuplicateSequenceError(ProducerError):
    """The batch is already in the log. Internal: a duplicate append returns the offsets of the first."""

    kafka_code = 46


class InvalidTxnStateError(ProducerError):
    """The call is not allowed in the current state of the producer or its transaction."""

    kafka_code = 48
    advice = "Check the order of begin, send, commit and abort."


class InvalidTxnTimeoutError(ProducerError):
    """The transaction timeout is not between 1 ms and the store's ``transaction.max.timeout.ms``."""

    kafka_code = 50
    fatal = True
    advice = "Choose a transaction_timeout within these limits."


class TransactionAbortedError(ProducerError):
    """The record was dropped, because its transaction was aborted before the record was written."""

    advice = "Send the record again in a new transaction."


class ConcurrentTransactionsError(ProducerError):
    """The previous transaction of this id is still being completed."""

    kafka_code = 51
    retriable = True
    advice = "Try again in a moment."


class NotCoordinatorError(ProducerError):
    """Another chain coordinates this transactional id or group."""

    kafka_code = 16
    retriable = True


class CoordinatorNotAvailableError(ProducerError):
    """The coordinating chain cannot be reached at the moment."""

    kafka_code = 15
    retriable = True


class ProducerClosedError(ProducerError):
    """The producer was closed, or was created in the parent of this forked process."""

    fatal = True
    advice = "Create a new producer."


class RecordTooLargeError(ProducerError):
    """The record exceeds ``max.message.bytes`` of its topic."""

    kafka_code = 10
    advice = "Send a smaller record or raise the topic's max.message.bytes."


class InvalidRecordError(ProducerError):
    """The topic does not take the record: it is compacted by key, and the record has no key (Kafka: INVALID_RECORD)."""

    kafka_code = 87
    advice = "Send the record with a key."


class UploadExpiredError(ProducerError):
    """The upload is so old that a vacuum may have deleted it. The records were not appended."""

    abortable = True
    advice = "Abort the transaction and send its records again."


class GroupError(TxnStoreError):
    """An error of a consumer group or its offsets."""


class UnstableOffsetCommitError(GroupError):
    """An open transaction has pending offsets for this partition, so its stable offset is unknown (KIP-447)."""

    kafka_code = 88
    retriable = True
    advice = "Try again when the transaction has ended."


class IllegalGenerationError(GroupError):
    """The group has a newer generation: this member may no longer own its partitions."""

    kafka_code = 22
    abortable = True
    advice = "Abort the transaction and rejoin the group."


class UnknownMemberError(GroupError):
    """The consumer is not a member of the group: its lease expired, it left, or it never joined."""

    kafka_code = 25
    abortable = True
    advice = "Poll again: the poll rejoins the group. Abort the transaction first, if this is an error of one."


class FencedInstanceError(GroupError):
    """Another consumer with the same ``group_instance_id`` has replaced this one."""

    kafka_code = 82
    abortable = True
    advice = "Close this consumer. Give every consumer a unique group_instance_id."


class InconsistentGroupProtocolError(GroupError):
    """The group has members of another kind: those of a gateway, or those of this library. Both are never in one."""

    kafka_code = 23
    advice = "Stop its other consumers first, or choose another group."


class GroupNotEmptyError(GroupError):
    """The group has live members, so an administrator cannot change its offsets or delete it."""

    kafka_code = 68
    advice = (
        "Stop its consumers first, or wait for their session timeout. If their gateways never return, remove the "
        "members with store.remove_members or `txnstore group remove-members`."
    )


class GroupNotFoundError(GroupError):
    """The group does not exist: no offset was ever committed to it, or it was deleted."""

    kafka_code = 69


class ConsumerClosedError(GroupError):
    """The consumer was closed."""

    fatal = True
    advice = "Create a new consumer."


class OffsetMetadataTooLargeError(GroupError):
    """The metadata string of a committed offset is longer than ``offset.metadata.max.bytes`` (4,096)."""

    kafka_code = 12


class CatalogError(TxnStoreError):
    """An error of a topic, its schema or its settings."""


class UnknownTopicOrPartitionError(CatalogError):
    """The topic does not exist, or it has no such partition."""

    kafka_code = 3
    advice = "Check the name of the topic and the number of the partition, or add what is missing first."


class TopicExistsError(CatalogError):
    """A topic with this name already exists."""

    kafka_code = 36


class TopicChangedError(CatalogError):
    """The topic was altered concurrently, after this call had read it. Nothing was changed."""

    retriable = True
    advice = "Read the topic again and repeat the change."


class InvalidTopicError(CatalogError):
    """The topic name is not legal. A name has 1 to 249 of ``a-z A-Z 0-9 . _ -``, and is neither ``.`` nor ``..``."""

    kafka_code = 17


class SchemaMismatchError(CatalogError):
    """The data does not fit the topic's schema, or the schema cannot change this way. The message names the column."""


class InvalidConfigError(CatalogError):
    """A setting or argument is unknown, or its value is not allowed. The message names it."""

    kafka_code = 40


class PolicyViolationError(CatalogError):
    """The topic's ``cleanup.policy`` has no ``delete``, so records cannot be deleted up to an offset."""

    kafka_code = 44
    advice = "Set the topic's cleanup.policy to delete, or to compact,delete."


class AuthorizationError(TxnStoreError):
    """The principal of this process has no right to do this. This call changed nothing.

    An earlier call whose outcome was unknown may have: its repetition is refused for a right that was removed since,
    except for records and ends of producers, whose repetition is answered.

    Attributes:
        principal: Who has no right.
        operation: The operation, such as ``WRITE``.
        resources: The names of all resources that it has no right to, sorted.
    """

    advice = "Ask who administers the store; `txnstore acl explain` shows which rule decides."

    def __init__(self, message: str, principal: str = "", operation: str = "", resources: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.principal, self.operation, self.resources = principal, operation, resources

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.principal, self.operation, self.resources)


class TransactionalIdAuthorizationError(AuthorizationError):
    """No right to the transactional id. The producer is unusable; create it again when it has the right (AUTH-04)."""

    kafka_code = 53
    fatal = True
    advice = (
        "Ask who administers the store; `txnstore acl explain` shows which rule decides. With the right, create the "
        "producer again."
    )


class TopicAuthorizationError(AuthorizationError):
    """No right to a topic. A transaction must be aborted, and can be: an abort needs no right to the topic."""

    kafka_code = 29
    abortable = True


class GroupAuthorizationError(AuthorizationError):
    """No right to a consumer group."""

    kafka_code = 30
    abortable = True


class ClusterAuthorizationError(AuthorizationError):
    """No right to the store as a whole: to idempotent writes, maintenance or the rules themselves."""

    kafka_code = 31
    fatal = True


class OffsetOutOfRangeError(TxnStoreError):
    """The offset is below the start or above the end of the partition's log."""

    kafka_code = 1
    advice = "Seek to an offset between the log start and the end, or set auto_offset_reset."


class UndecidedRecordsError(TxnStoreError):
    """An open transaction has records below the offset up to which records are to be deleted. Nothing was deleted."""

    retriable = True
    advice = "Wait for the end of the transaction, abort it with `txnstore txn abort`, or delete less."


class CompactionConflictError(TxnStoreError):
    """A segment that this compaction read was replaced or deleted. Nothing was changed."""

    retriable = True


class TablesChangedError(TxnStoreError):
    """Other publishers have published the tables in each attempt. Nothing was changed."""

    retriable = True


class CopiesTooLargeError(InvalidConfigError):
    """To publish the tables, more rows have to be copied than allowed. Compact the topic."""


class StoreError(TxnStoreError):
    """An error of the store as a whole."""


class StoreNotFoundError(StoreError):
    """No store exists at this URL, or the store was deleted while it was in use; another one may be in its place."""

    fatal = True
    advice = (
        "Check the URL. If a store was here, `txnstore recover` shows what is left of it; "
        "txnstore.create(url) or `txnstore init` creates a new one."
    )


class StoreExistsError(StoreError):
    """A store already exists at this URL."""

    advice = "Open it, or pass exist_ok=True."


class ReadOnlyError(StoreError):
    """The store was opened with ``read_only=True``."""

    advice = "Open it without read_only to write."


class UnsupportedFormatError(StoreError):
    """The store, or an object in it, has a format version that this release of txnstore does not support."""

    fatal = True
    advice = "Use a release of txnstore that supports it."


class UnsafeStorageError(StoreError):
    """The storage lets two writers create the same name, so that no commit would be safe."""

    fatal = True
    advice = "Use a storage whose conditional PUT (If-None-Match: *) is atomic."


class SnapshotExpiredError(StoreError):
    """A vacuum, or an erasure, has deleted what a pinned or earlier snapshot needs. The store is sound."""

    advice = "Take a newer snapshot; to keep them longer, run every vacuum with a larger --older-than and --history."


class UnsoundStoreError(StoreError):
    """A vacuum deleted nothing, because the store is damaged, or there are chains of another store below its root."""

    advice = (
        "Look with `txnstore recover --dry-run`; force=True (--force) vacuums a damaged store, and "
        "foreign=[id] (--foreign ID) deletes the chains of another one."
    )


class BackupError(StoreError):
    """A target of a backup is no copy of the store, or a copy is not complete. Nothing was overwritten."""

    advice = ""  # The message includes it.


class ReentrantCallError(StoreError):
    """A signal handler used the store while it interrupted a call of the same thread, which holds a lock."""

    advice = "In a signal handler, only set a flag or raise an exception; use the store after the call has ended."


class CorruptionError(StoreError):
    """An object is missing, damaged or altered. The message names the object and what was expected."""

    fatal = True
    advice = (
        "`txnstore verify` names what is affected. `txnstore recover` can write store.json, hints, boundaries and "
        "checkpoints again; entries and segments only a copy restores."
    )


class LostIdentityError(CorruptionError):
    """``store.json`` is lost, or that of another store than the one whose objects are below the root."""

    advice = ""  # The message includes it.


class StorageError(TxnStoreError):
    """A request to the storage failed and had no effect."""

    retriable = True
    advice = "Check the URL and, for a server, the credentials and the network, then try again."


class StorageRefusedError(StorageError):
    """The storage refused the request: credentials, permissions, a missing bucket, a full or read-only disk."""

    retriable = False
    advice = "Repair what the message names, then try again."


class StorageReplacedError(StorageRefusedError):
    """The folder of a local store was deleted while it was in use; another one may be in its place."""

    advice = "Close the store and open it again."


class StorageFullError(StorageRefusedError):
    """The disk of the storage is full, or its quota is used up. A vacuum may free some (docs/howto/maintenance.md)."""

    advice = ""  # The message includes it.


class NoSpaceError(StorageRefusedError):
    """The temporary folder of this machine has no space, or cannot be written to. The storage was not asked."""

    advice = ""  # The message includes it.


class ObjectNotFoundError(StorageError):
    """The key does not exist."""

    retriable = False
    advice = ""


class DamagedObjectError(StorageError):
    """The bytes of an answer do not match the checksum or the size that the storage gave with them.

    Internal: the read is repeated; if each answer is damaged, the object is, and the caller gets a
    :class:`CorruptionError`.
    """


class UnknownOutcomeError(StorageError):
    """A write may or may not have happened: the storage did not answer in time. Repeating the same call is safe."""

    kafka_code = 7
    advice = "Repeat the same call; it resolves the earlier attempt first."


def joined(errors: Sequence[TxnStoreError], what: str) -> TxnStoreError | None:
    """Join the errors of several parts of the work to one; None if there is none.

    Args:
        errors: The failures: damage, or errors of the storage.
        what: What the failures have in common, for the message: ``"parts of the compaction failed"``.

    Returns:
        The error that occurred alone; else one that names each once: damage if one of them is, else an error of their
        common class.
    """
    unique = {str(error): error for error in errors}
    if len(unique) <= 1:
        return next(iter(unique.values()), None)
    kinds = {type(error) for error in unique.values()}
    if any(issubclass(kind, CorruptionError) for kind in kinds):
        kind: type[TxnStoreError] = CorruptionError
    else:
        kind = kinds.pop() if len(kinds) == 1 else StorageError
    error = kind(f"{len(unique)} {what}: {'; '.join(unique)}")
    error.__cause__ = errors[0]
    return error


def raise_or_report(error: TxnStoreError | None, on_error: Callable[[TxnStoreError], object] | None) -> None:
    """Raise the error of what could not be done, if there is one, or pass it to ``on_error``."""
    if error is not None:
        if on_error is None:
            raise error
        on_error(error)


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__)
