"""Producer ids and transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import read_group, write_id, write_topics
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.commands import Append
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import Ended, EndTxn, InitProducer
from txnstore.errors import InvalidPidMappingError, TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.groups.offsets import GroupOffsets, commit_response_topics
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, field_value

#: The first version of EndTxn with transactions of version 2: each end returns the next epoch (KIP-890).
END_TXN_V2 = 5
#: The first version of TxnOffsetCommit that adds its group to the transaction itself.
TXN_OFFSET_COMMIT_V2 = 5


class Transactions:
    """Grants identities of producers, and carries their transactions."""

    def __init__(self, services: Services, offsets: GroupOffsets) -> None:
        self._services = services
        self._offsets = offsets

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of the APIs of producers and their transactions."""
        return {
            Api.INIT_PRODUCER_ID: self.init,
            Api.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            Api.ADD_OFFSETS_TO_TXN: self.add_offsets,
            Api.TXN_OFFSET_COMMIT: self.commit_offsets,
            Api.END_TXN: self.end,
        }

    async def init(self, request: Request, client: Client) -> Fields:
        """Grant a producer id and epoch; fence earlier instances of a transactional id."""
        body = request.body
        expected_identity = (
            field_value(body, "producer_id", NO_PRODUCER),
            field_value(body, "producer_epoch", NO_PRODUCER),
        )
        without_producer = {"producer_id": NO_PRODUCER, "producer_epoch": NO_PRODUCER}
        try:
            if (expected_identity[0] < 0) != (expected_identity[1] < 0):
                raise RefusedError(ErrorCode.invalid_request, "producer id and epoch must be given together")
            _check_id(body.transactional_id)
            if body.transactional_id is not None:
                self._services.check(client, write_id(body.transactional_id))
            timeout_ms = int(body.transaction_timeout.total_seconds() * 1000)
            init = InitProducer(
                body.transactional_id,
                timeout_ms if body.transactional_id is not None else None,
                expected_identity if expected_identity[0] >= 0 else None,
            )
            try:
                identity: ProducerIdentity = await self._services.commits.submit(init, client.principal)
            except InvalidPidMappingError:  # Of an id without identities, a broker grants the first one to any client.
                identity = await self._services.commits.submit(replace(init, expected=None), client.principal)
        except (TxnStoreError, RefusedError) as error:
            return {**without_producer, "error_code": code_of(error, Api.INIT_PRODUCER_ID, request.version)}
        return {
            "error_code": ErrorCode.none,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }

    async def add_partitions(self, request: Request, client: Client) -> Fields:
        """Add partitions to a transaction: all or none, as in Kafka."""
        body = request.body
        transactional_id = body.v3_and_below_transactional_id
        producer = ProducerIdentity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch, transactional_id)
        tps = [(topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions]
        codes: dict[tuple[str, int], ErrorCode] = {}
        partitions: list[TopicPartition] = []
        for name, number in tps:
            try:
                _check_id(transactional_id)
                self._services.check(client, write_id(transactional_id), write_topics([name]))
                await self._services.find(name, None, number)
                partitions.append(TopicPartition(name, number))
            except (TxnStoreError, RefusedError) as error:
                codes[name, number] = code_of(error, Api.ADD_PARTITIONS_TO_TXN, request.version)
        if codes:
            codes = {tp: codes.get(tp, ErrorCode.operation_not_attempted) for tp in tps}
        elif partitions:
            failure = await self._add_to_transaction(
                producer, Append(producer, partitions=tuple(partitions)), request, client
            )
            codes = dict.fromkeys(tps, failure)
        results = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": number, "partition_error_code": codes[topic.name, number]}
                    for number in topic.partitions
                ],
            }
            for topic in body.v3_and_below_topics
        ]
        return {"results_by_topic_v3_and_below": results}

    async def add_offsets(self, request: Request, client: Client) -> Fields:
        """Add a group to a transaction."""
        body = request.body
        try:
            _check_id(body.transactional_id)
            self._services.check(client, write_id(body.transactional_id), read_group(body.group_id))
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": code_of(error, Api.ADD_OFFSETS_TO_TXN, request.version)}
        producer = ProducerIdentity(body.producer_id, body.producer_epoch, body.transactional_id)
        return {
            "error_code": await self._add_to_transaction(
                producer, Append(producer, groups=(body.group_id,)), request, client
            )
        }

    async def commit_offsets(self, request: Request, client: Client) -> Fields:
        """Commit offsets of a group with a transaction."""
        body, api = request.body, Api.TXN_OFFSET_COMMIT
        checked_offsets = await self._offsets.check_offsets(body.topics, body.group_id, api, request.version, client)
        offsets = tuple(offset for offset, _ in checked_offsets if offset is not None)
        failure = ErrorCode.invalid_group_id if body.group_id == "" else None
        if offsets and failure is None:
            generation, member_id = field_value(body, "generation_id", -1), field_value(body, "member_id", "")
            txn_offsets = TxnOffsets(
                body.group_id, offsets, generation, member_id, field_value(body, "group_instance_id")
            )
            producer = ProducerIdentity(body.producer_id, body.producer_epoch, body.transactional_id)
            try:
                self._services.check(client, write_id(body.transactional_id))
                is_v1 = request.version < TXN_OFFSET_COMMIT_V2
                append = Append(producer, offsets=(txn_offsets,), added_only=is_v1)
                failure = await self._add_to_transaction(producer, append, request, client, is_v1=is_v1)
            except TxnStoreError as error:
                failure = code_of(error, api, request.version)
        return {"topics": commit_response_topics(body.topics, checked_offsets, failure)}

    async def end(self, request: Request, client: Client) -> Fields:
        """Commit or abort a transaction."""
        body = request.body
        producer = ProducerIdentity(body.producer_id, body.producer_epoch, body.transactional_id)
        outcome = Outcome.COMMIT if body.committed else Outcome.ABORT
        try:
            _check_id(body.transactional_id)
            self._services.check(client, write_id(body.transactional_id))
            ended = await self._end(producer, outcome, request, client)
        except (TxnStoreError, RefusedError) as error:
            return {"error_code": code_of(error, Api.END_TXN, request.version), "producer_id": -1, "producer_epoch": -1}
        return {
            "error_code": ErrorCode.none,
            "producer_id": ended.producer.producer_id,
            "producer_epoch": ended.producer.epoch,
        }

    async def _end(self, producer: ProducerIdentity, outcome: Outcome, request: Request, client: Client) -> Ended:
        """End a transaction; one of version 1 leaves its client the epoch that it has.

        A repeated end is answered as the first one.
        """
        if request.version < END_TXN_V2:
            return await self._services.sessions.end(producer, outcome, client.principal)
        ended: Ended = await self._services.commits.submit(EndTxn(producer, outcome), client.principal)
        return ended

    async def _add_to_transaction(
        self, producer: ProducerIdentity, command: Append, request: Request, client: Client, *, is_v1: bool = True
    ) -> ErrorCode:
        """Commit a command that adds to the transaction of a client; return the code of its error, or NONE."""
        try:
            if is_v1:
                await self._services.sessions.commit(
                    producer, lambda identity: replace(command, producer=identity), client.principal
                )
            else:
                await self._services.commits.submit(command, client.principal)
        except TxnStoreError as error:
            return code_of(error, Api(request.api), request.version)
        return ErrorCode.none


def _check_id(transactional_id: str | None) -> None:
    """Check that a transactional id is not empty (INVALID_REQUEST)."""
    if transactional_id == "":
        raise RefusedError(ErrorCode.invalid_request, "the transactional id is empty")
