"""The code of Kafka's protocol for each error of the store."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from txnstore.errors import (
    ConcurrentTransactionsError,
    CorruptionError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerError,
    ProducerFencedError,
    ReadOnlyError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
    UploadExpiredError,
)
from txnstore.gateway.apis import Api
from txnstore.gateway.logs import limited_logger

_LOG = limited_logger(__name__)

#: Requests whose client repeats exactly the same one after COORDINATOR_NOT_AVAILABLE.
_COORDINATOR_APIS = frozenset(
    {
        Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN,
        Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP,
        Api.DELETE_GROUPS, Api.OFFSET_DELETE, Api.CONSUMER_GROUP_HEARTBEAT, Api.FIND_COORDINATOR, Api.DESCRIBE_GROUPS,
        Api.CONSUMER_GROUP_DESCRIBE, Api.LIST_GROUPS, Api.DESCRIBE_TRANSACTIONS,
    }
)  # fmt: skip
#: The only code after which Java's admin client repeats a request of this API.
_RETRIABLE_ADMIN_CODE = {
    Api.LIST_TRANSACTIONS: ErrorCode.coordinator_load_in_progress,
    Api.DESCRIBE_PRODUCERS: ErrorCode.not_leader_or_follower,
    Api.WRITE_TXN_MARKERS: ErrorCode.not_leader_or_follower,
}
#: The code after which a client of transactions v1 repeats a request; after CONCURRENT_TRANSACTIONS it does not.
_RETRIABLE_CODE = {
    Api.PRODUCE: ErrorCode.request_timed_out,
    Api.TXN_OFFSET_COMMIT: ErrorCode.coordinator_load_in_progress,
}
#: The first version of each API that has PRODUCER_FENCED; earlier ones have INVALID_PRODUCER_EPOCH (KIP-588).
_FIRST_WITH_FENCED = {Api.INIT_PRODUCER_ID: 4, Api.ADD_PARTITIONS_TO_TXN: 2, Api.ADD_OFFSETS_TO_TXN: 2, Api.END_TXN: 2}
#: A version that no API has.
_NO_VERSION = 1 << 15
#: The last version for transactions v1: its clients abort one that lacks a partition or a group (KIP-890, KIP-1050).
_LAST_ABORTABLE = {Api.PRODUCE: 11, Api.TXN_OFFSET_COMMIT: 4}
#: The first version of Produce with transactions of version 2, whose clients know CONCURRENT_TRANSACTIONS (KIP-890).
PRODUCE_V2 = 12


class RefusedError(Exception):
    """A request, or a part of it, that the gateway itself refuses.

    Args:
        code: The code of Kafka's protocol.
        message: The reason.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class EndedMeanwhileError(ProducerError):
    """The transaction of a request has ended since the request arrived. It had no effect; repeat it."""

    kafka_code = 51
    retriable = True


class NotAddedError(InvalidTxnStateError):
    """A request of transactions v1 for a partition or a group that is not in the transaction. It had no effect."""

    kafka_code = InvalidTxnStateError.kafka_code


def code_of(error: BaseException, api: Api, version: int) -> ErrorCode:
    """Return the code of an error for a client of this API; an error without one is logged with its traceback."""
    match error:
        case RefusedError():
            return error.code
        case ProducerFencedError() | InvalidProducerEpochError():
            return _fenced_code(error, api, version)
        case EndedMeanwhileError() if api in _RETRIABLE_CODE:
            return _RETRIABLE_CODE[api]
        case NotAddedError() if version == _LAST_ABORTABLE.get(api):
            return ErrorCode.transaction_abortable
        case ConcurrentTransactionsError() if api is Api.PRODUCE and version < PRODUCE_V2:  # Unknown to its client.
            return ErrorCode.not_enough_replicas
        case ReadOnlyError():
            return ErrorCode.topic_authorization_failed
        case UploadExpiredError():
            return ErrorCode.request_timed_out
        case UnknownOutcomeError() | StorageError():
            return _unavailable_code(error, api)
        case CorruptionError():
            _LOG.error("the store is damaged: %s", error, extra={"api": api.name, "error": str(error)})
            return ErrorCode.unknown_server_error
        case TxnStoreError() if error.kafka_code is not None:
            return ErrorCode(error.kafka_code)
    _LOG.error("unexpected error of a request", exc_info=error, extra={"api": api.name, "version": version})
    return ErrorCode.unknown_server_error


def message_of(error: BaseException) -> str:
    """The text of an error for a client, with the advice."""
    if not isinstance(error, TxnStoreError | RefusedError):
        return "internal error"
    text, advice = str(error), getattr(error, "advice", "")
    return f"{text}{'' if text.endswith('.') else '.'} {advice}" if advice else text


def _fenced_code(error: TxnStoreError, api: Api, version: int) -> ErrorCode:
    """PRODUCER_FENCED where the API's version has it (KIP-588), else INVALID_PRODUCER_EPOCH."""
    if isinstance(error, ProducerFencedError) and version >= _FIRST_WITH_FENCED.get(api, _NO_VERSION):
        return ErrorCode.producer_fenced
    return ErrorCode.invalid_producer_epoch


def _unavailable_code(error: TxnStoreError, api: Api) -> ErrorCode:
    """A code after which the client repeats a request that had no effect, or an unknown outcome."""
    _LOG.warning("request failed: %s", error, extra={"api": api.name, "error": str(error)})
    if api in _RETRIABLE_ADMIN_CODE:
        return _RETRIABLE_ADMIN_CODE[api]
    if api in _COORDINATOR_APIS:
        return ErrorCode.coordinator_not_available
    return ErrorCode.request_timed_out if isinstance(error, UnknownOutcomeError) else ErrorCode.kafka_storage_error
