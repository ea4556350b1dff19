"""Every error that txnstore raises, and what a caller may do about each.

    TxnStoreError
    ├── ProducerError
    │   ├── ProducerFencedError            fatal      a newer instance took over (Kafka: PRODUCER_FENCED)
    │   ├── TransactionalIdNotFoundError   caller     nothing is known of this transactional id (any more)
    │   ├── InvalidPidMappingError         fatal      the id and the producer id do not belong together
    │   ├── OutOfOrderSequenceError        abortable  a gap or an old, forgotten sequence
    │   ├── DuplicateSequenceError         internal   a duplicate that answers with the first offsets
    │   ├── InvalidTxnStateError           caller     the call does not fit the state of the transaction
    │   ├── InvalidTxnTimeoutError         fatal      the time-out is out of range
    │   ├── TransactionAbortedError        caller     a record was dropped because its transaction aborted
    │   ├── ConcurrentTransactionsError    retriable  the previous transaction is still being completed
    │   ├── NotCoordinatorError            retriable
    │   ├── CoordinatorNotAvailableError   retriable
    │   ├── ProducerClosedError            fatal      use after close, or in a forked child
    │   ├── UploadExpiredError             abortable  a vacuum came before the upload was registered
    │   └── RecordTooLargeError            caller
    ├── GroupError
    │   ├── UnstableOffsetCommitError      retriable  an open transaction holds offsets of this partition
    │   ├── IllegalGenerationError         abortable  the members have changed since
    │   ├── UnknownMemberError             abortable  no member (any more): its lease ran out, or it left
    │   ├── FencedInstanceError            abortable
    │   ├── GroupNotEmptyError             caller     the group has live members
    │   ├── GroupNotFoundError             caller
    │   ├── ConsumerClosedError            fatal      use after close
    │   └── OffsetMetadataTooLargeError    caller
    ├── CatalogError
    │   ├── UnknownTopicOrPartitionError   caller
    │   ├── TopicExistsError               caller
    │   ├── TopicChangedError              retriable  somebody else altered the topic at the same moment
    │   ├── InvalidTopicError              caller     a name that Kafka refuses, too
    │   ├── SchemaMismatchError            caller     names the column
    │   └── InvalidConfigError             caller     names the setting
    ├── OffsetOutOfRangeError              caller
    ├── CompactionConflictError            retriable  a segment that the compaction read is gone
    ├── StoreError
    │   ├── StoreNotFoundError             caller
    │   ├── StoreExistsError               caller
    │   ├── ReadOnlyError                  caller     a write to a store that was opened read_only
    │   ├── UnsupportedFormatError         fatal      written by a newer txnstore
    │   ├── UnsafeStorageError             fatal      the store lets a name be created twice
    │   └── CorruptionError                fatal      names the object and what was expected
    └── StorageError                       retriable  nothing happened: the storage refused or is away
        ├── StorageRefusedError            caller     it will refuse again: credentials, no bucket, a full disk
        ├── ObjectNotFoundError            internal   a GET or a stat of a key that is not there
        └── UnknownOutcomeError            retriable  nobody could tell in time whether it happened

A caller can always tell *nothing happened* (every class but the next two), *it may have happened*
(:class:`UnknownOutcomeError`; repeat the same call) and *stop* (``fatal``) apart. "internal" classes do not
reach an application.
"""

from __future__ import annotations

from typing import ClassVar


class TxnStoreError(Exception):
    """The root of all errors of txnstore.

    ``retriable``: the same call may succeed later.  ``abortable``: the transaction must be aborted, then the
    producer goes on.  ``fatal``: the object that raised it cannot be used any more.
    ``advice``: one sentence that says what to do.
    ``kafka_code``: the number of its counterpart in Kafka's protocol (``Errors``), if it has one.
    """

    retriable: ClassVar[bool] = False
    abortable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    kafka_code: ClassVar[int | None] = None


class ProducerError(TxnStoreError):
    """Something is wrong with a producer or its transaction."""


class ProducerFencedError(ProducerError):
    """A newer instance with the same transactional id has taken over, or the transaction was aborted for this one."""

    kafka_code = 90
    fatal = True
    advice = "Close this producer. If it should be the active instance, create a new one."


class InvalidPidMappingError(ProducerError):
    """The transactional id does not map to this producer id (any more)."""

    kafka_code = 49
    fatal = True
    advice = "Close this producer and create a new one."


class TransactionalIdNotFoundError(ProducerError):
    """There is no such transactional id: no producer ever had it, or it has expired."""


class OutOfOrderSequenceError(ProducerError):
    """A batch came with a sequence number that does not follow the last one."""

    kafka_code = 45
    abortable = True
    advice = "Abort the transaction and send its records again."


class DuplicateSequenceError(ProducerError):
    """The batch is already in the log. Never surfaces: a duplicate append is answered with the first offsets."""

    kafka_code = 46


class InvalidTxnStateError(ProducerError):
    """The call does not fit the state that the producer or its transaction is in."""

    kafka_code = 48
    advice = "Check the order of begin, send, commit and abort."


class InvalidTxnTimeoutError(ProducerError):
    """The transaction time-out is not between 1 ms and the store's ``transaction.max.timeout.ms``."""

    kafka_code = 50
    fatal = True
    advice = "Choose a transaction_timeout within these limits."


class TransactionAbortedError(ProducerError):
    """The record was dropped because its transaction was aborted before the record was written."""

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
    """The producer was closed, or belongs to the process that this one was forked from."""

    fatal = True
    advice = "Create a new producer."


class RecordTooLargeError(ProducerError):
    """The record exceeds ``max.message.bytes`` of its topic."""

    kafka_code = 10
    advice = "Send a smaller record or raise the topic's max.message.bytes."


class UploadExpiredError(ProducerError):
    """Records were uploaded so long before their registration that a vacuum may have deleted them. Nothing happened."""

    abortable = True
    advice = "Abort the transaction and send its records again."


class GroupError(TxnStoreError):
    """Something is wrong with a consumer group or its offsets."""


class UnstableOffsetCommitError(GroupError):
    """An open transaction has pending offsets for this partition, so no stable offset can be told (KIP-447)."""

    kafka_code = 88
    retriable = True
    advice = "Try again when the transaction has ended."


class IllegalGenerationError(GroupError):
    """The group has moved on to another generation: this member no longer owns its partitions."""

    kafka_code = 22
    abortable = True
    advice = "Abort the transaction and rejoin the group."


class UnknownMemberError(GroupError):
    """The group does not know this member (any more): its lease ran out and others took over, or it never joined."""

    kafka_code = 25
    abortable = True
    advice = "Abort the transaction and poll again, which joins the group anew."


class FencedInstanceError(GroupError):
    """Another consumer with the same static member id has taken over."""

    kafka_code = 82
    abortable = True
    advice = "Close this consumer. Give every consumer a group_instance_id of its own."


class GroupNotEmptyError(GroupError):
    """The group has live members, so its offsets cannot be changed from outside, nor can it be deleted."""

    kafka_code = 68
    advice = "Stop its consumers first, or wait for their session time-out."


class GroupNotFoundError(GroupError):
    """There is no such group: nothing was ever committed to it, or it was deleted."""

    kafka_code = 69


class ConsumerClosedError(GroupError):
    """The consumer was closed."""

    fatal = True
    advice = "Create a new consumer."


class OffsetMetadataTooLargeError(GroupError):
    """The metadata string of a committed offset is longer than ``offset.metadata.max.bytes`` (4,096)."""

    kafka_code = 12


class CatalogError(TxnStoreError):
    """Something is wrong with a topic, its schema or its settings."""


class UnknownTopicOrPartitionError(CatalogError):
    """There is no such topic, or the topic has fewer partitions."""

    kafka_code = 3
    advice = "Create the topic first, or check its name and partition count."


class TopicExistsError(CatalogError):
    """A topic of this name exists already."""

    kafka_code = 36


class TopicChangedError(CatalogError):
    """Somebody else altered the topic between its reading and its change. Nothing was changed."""

    retriable = True
    advice = "Read the topic again and repeat the change."


class InvalidTopicError(CatalogError):
    """The topic name is not legal: 1 to 249 of ``a-z A-Z 0-9 . _ -``, but neither ``.`` nor ``..``."""

    kafka_code = 17


class SchemaMismatchError(CatalogError):
    """The data does not fit the schema of the topic, or a schema cannot evolve this way. Names the column."""


class InvalidConfigError(CatalogError):
    """A setting is unknown or its value is not allowed. Names the setting."""

    kafka_code = 40


class OffsetOutOfRangeError(TxnStoreError):
    """The offset is below the log start or above the end of the partition."""

    kafka_code = 1
    advice = "Seek to an offset between the log start and the end, or set auto_offset_reset."


class CompactionConflictError(TxnStoreError):
    """Another compaction has replaced a segment that this one read. Nothing was changed."""

    retriable = True


class StoreError(TxnStoreError):
    """Something is wrong with the store as a whole."""


class StoreNotFoundError(StoreError):
    """There is no txnstore at this URL."""

    advice = "Create it with txnstore.create(url) or `txnstore init`."


class StoreExistsError(StoreError):
    """There is a txnstore at this URL already."""

    advice = "Open it, or pass exist_ok=True."


class ReadOnlyError(StoreError):
    """The store was opened with ``read_only=True``."""

    advice = "Open it without read_only to write."


class UnsupportedFormatError(StoreError):
    """The store, or an object in it, was written in a format version that this txnstore does not know."""

    fatal = True
    advice = "Upgrade txnstore."


class UnsafeStorageError(StoreError):
    """The storage lets a name be created twice, so nothing could be committed safely."""

    fatal = True
    advice = "Use a storage whose conditional PUT (If-None-Match: *) is atomic."


class CorruptionError(StoreError):
    """An object is not what the chain says that it is. The message names the object and what was expected."""

    fatal = True
    advice = "Restore the object from a copy, or run `txnstore verify` to see what is affected."


class StorageError(TxnStoreError):
    """The storage refused a request or cannot be reached. Nothing happened."""

    retriable = True
    advice = "Check the URL and, for a server, the credentials and the network, then try again."


class StorageRefusedError(StorageError):
    """The storage refused the request and will refuse it again until something outside is repaired. Nothing happened.

    Wrong credentials, missing permissions, a bucket that does not exist, a full disk, a read-only file system.
    """

    retriable = False
    advice = "Repair what the message names, then try again."


class ObjectNotFoundError(StorageError):
    """There is no object of this key."""

    retriable = False
    advice = ""


class UnknownOutcomeError(StorageError):
    """A write may or may not have happened: the storage did not answer in time.

    Repeating the same call is safe: it finds out first what became of the earlier attempt.
    """

    kafka_code = 7
    advice = "Repeat the same call; it resolves the earlier attempt first."
