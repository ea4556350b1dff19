"""DescribeProducers, DescribeTransactions, ListTransactions, WriteTxnMarkers: the requests of KIP-664."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from txnstore.admin.transactions import abort_open_data, describe_producers
from txnstore.core.authorization.rights import Right
from txnstore.core.model import NO_PRODUCER, TopicPartition
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.model import Transaction, TxnState
from txnstore.core.transactions.sessions import client_identity
from txnstore.core.view import View
from txnstore.errors import AuthorizationError, TxnStoreError
from txnstore.gateway.admin.common import error_fields, is_led, on_cluster, on_topic
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, field_value
from txnstore.validation import check_topic_name

_LOG = logging.getLogger(__name__)

#: Kafka's names of the states.
STATE_NAMES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TxnState}
_STATES = {name: state for state, name in STATE_NAMES.items()}
#: Stands for a missing offset, time or duration.
_NONE = -1


class AdminTransactions:
    """Shows transactions and producers, and aborts open data in a partition."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.DESCRIBE_PRODUCERS: self.describe_producers,
            Api.DESCRIBE_TRANSACTIONS: self.describe,
            Api.LIST_TRANSACTIONS: self.list,
            Api.WRITE_TXN_MARKERS: self.write_markers,
        }

    # Showing ----------------------------------------------------------------------------------------------------------

    async def describe_producers(self, request: Request, client: Client) -> Fields:
        """Describe the producers of partitions."""
        view = await self._services.freshness.head()
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    self._describe_partition(view, TopicPartition(topic.name, number), request.version, client)
                    for number in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ]
        return {"topics": topics}

    def _describe_partition(self, view: View, tp: TopicPartition, version: int, client: Client) -> Fields:
        """Return the producers of a partition, with the first offset of an open transaction, or the error."""
        try:
            check_topic_name(tp.topic)
            self._services.check(client, on_topic("READ", tp.topic))
            _check_exists(view, tp)
        except (TxnStoreError, RefusedError) as error:
            return {"partition_index": tp.partition, **error_fields(error, Api.DESCRIBE_PRODUCERS, version)}
        producers = [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": 0,
                "current_txn_start_offset": _NONE if producer.first_offset is None else producer.first_offset,
            }
            for producer in describe_producers(view, tp)
        ]
        return {"partition_index": tp.partition, "active_producers": producers}

    async def describe(self, request: Request, client: Client) -> Fields:
        """Describe the last transactions of transactional ids."""
        view = await self._services.freshness.head()
        states = [self._describe(view, name, request.version, client) for name in request.body.transactional_ids]
        return {"transaction_states": states}

    def _describe(self, view: View, transactional_id: str, version: int, client: Client) -> Fields:
        """Describe the transaction of an id; its topics are those that the client may see."""
        try:
            self._services.check(client, Right("DESCRIBE", "TRANSACTIONAL_ID", (transactional_id,)))
            if not transactional_id:
                raise RefusedError(ErrorCode.invalid_request, "the transactional id is empty")
            txn = view.transactions.get(transactional_id)
            if txn is None:
                msg = f"there is no transactional id {transactional_id!r}"
                raise RefusedError(ErrorCode.transactional_id_not_found, msg)
        except (TxnStoreError, RefusedError) as error:
            return {
                "error_code": code_of(error, Api.DESCRIBE_TRANSACTIONS, version),
                "transactional_id": transactional_id,
                "producer_id": NO_PRODUCER,
                "producer_epoch": NO_PRODUCER,
            }
        numbers_by_topic: dict[str, list[int]] = {}
        for tp in sorted(txn.partitions):
            if self._services.may(client, on_topic("DESCRIBE", tp.topic)):
                numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
        return {
            "transactional_id": transactional_id,
            "transaction_state": STATE_NAMES[txn.state],
            "transaction_timeout": txn.timeout_ms,
            "transaction_start_time": _NONE if txn.started_at is None else txn.started_at,
            "producer_id": txn.producer_id,
            "producer_epoch": client_identity(txn)[1],
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in numbers_by_topic.items()],
        }

    async def list(self, request: Request, client: Client) -> Fields:
        """List the transactions that this gateway coordinates and all filters match."""
        body = request.body
        unknown_states = [name for name in body.state_filters if name not in _STATES]
        states = {_STATES[name] for name in body.state_filters if name in _STATES}
        duration, pattern = field_value(body, "duration_filter", _NONE), field_value(body, "transactional_id_pattern")
        try:
            filter_by_id = _filter_by_pattern(pattern)
        except RefusedError as error:
            return {"error_code": error.code, "unknown_state_filters": unknown_states, "transaction_states": ()}
        view = await self._services.freshness.head()
        now = self._services.connection.runtime.clock()
        matching_txns = [
            txn
            for _, txn in sorted(view.transactions.items())
            if is_led(
                self._services, chain_of_transactional_id(txn.transactional_id, view.chains), txn.transactional_id
            )
            and (txn.state in states if body.state_filters else txn.state is not TxnState.DEAD)
            and (not body.producer_id_filters or txn.producer_id in body.producer_id_filters)
            and (duration < 0 or _has_run_longer(txn, now, duration))
            and self._services.may(client, Right("DESCRIBE", "TRANSACTIONAL_ID", (txn.transactional_id,)))
        ]
        txns_fields = [
            {
                "transactional_id": txn.transactional_id,
                "producer_id": txn.producer_id,
                "transaction_state": STATE_NAMES[txn.state],
            }
            for txn in filter_by_id(matching_txns)
        ]
        return {"unknown_state_filters": unknown_states, "transaction_states": txns_fields}

    # Aborting ---------------------------------------------------------------------------------------------------------

    async def write_markers(self, request: Request, client: Client) -> Fields:
        """Abort open data in partitions (KIP-664). A commit is refused: only a coordinator decides it."""
        denied_code: ErrorCode | None = None
        if not self._services.may(client, on_cluster("ALTER")):
            try:
                self._services.check(client, on_cluster("CLUSTER_ACTION"))
            except AuthorizationError as error:
                denied_code = code_of(error, Api.WRITE_TXN_MARKERS, request.version)
        markers = []
        for marker in request.body.markers:
            refusal = ErrorCode.cluster_authorization_failed if marker.transaction_result else denied_code
            topics = []
            for topic in marker.topics:
                codes = [
                    refusal or await self._abort(marker, TopicPartition(topic.name, number), request.version)
                    for number in topic.partition_indexes
                ]
                partitions = [
                    {"partition_index": number, "error_code": code}
                    for number, code in zip(topic.partition_indexes, codes, strict=True)
                ]
                topics.append({"name": topic.name, "partitions": partitions})
            markers.append({"producer_id": marker.producer_id, "topics": topics})
        return {"markers": markers}

    async def _abort(self, marker: Any, tp: TopicPartition, version: int) -> ErrorCode:
        """Abort the open data of a producer in one partition (WriteTxnMarkers); return the code."""
        services = self._services
        try:
            view = await services.freshness.head()
            _check_exists(view, tp)
            log = view.log(tp)
            producer = log.producers.get(marker.producer_id) if log is not None else None
            if producer is not None and marker.producer_epoch < producer.epoch:
                msg = f"the marker has epoch {marker.producer_epoch}, the producer {producer.epoch}"
                raise RefusedError(ErrorCode.invalid_producer_epoch, msg)
            # With the gateway's rights: those of the client to write markers were checked above.
            abort = partial(abort_open_data, services.connection, tp, marker.producer_id)
            if await services.in_thread(abort):
                extra = {"partition": str(tp), "producer_id": marker.producer_id}
                _LOG.info("open data aborted by an administrator", extra=extra)
        except (TxnStoreError, RefusedError) as error:
            return code_of(error, Api.WRITE_TXN_MARKERS, version)
        finally:
            services.freshness.publish_loaded()
        return ErrorCode.none


def _check_exists(view: View, tp: TopicPartition) -> None:
    if view.partition(tp) is None:
        raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")


def _has_run_longer(txn: Transaction, now: int, duration_ms: int) -> bool:
    """Whether an open transaction has run for longer than a duration."""
    return txn.started_at is not None and now - txn.started_at > duration_ms


def _filter_by_pattern(pattern: str | None) -> Callable[[list[Transaction]], list[Transaction]]:
    """Return a filter of transactions whose whole id matches an RE2 expression (KIP-1152)."""
    if not pattern:
        return lambda txns: txns
    anchored_pattern = rf"^(?:{pattern})$"
    try:
        pc.match_substring_regex(pa.array([""]), anchored_pattern)
    except pa.ArrowInvalid as error:
        raise RefusedError(ErrorCode.invalid_regular_expression, str(error)) from error

    def matching_txns(txns: list[Transaction]) -> list[Transaction]:
        ids = pa.array([txn.transactional_id for txn in txns], pa.string())
        matches = pc.match_substring_regex(ids, anchored_pattern).to_pylist()
        return [txn for txn, is_match in zip(txns, matches, strict=True) if is_match]

    return matching_txns
