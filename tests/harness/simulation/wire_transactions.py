"""Transactions of clients of gateways: of version 1, with one epoch for many, and of version 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.harness.simulation.ledger import Mark
from tests.harness.simulation.recorder import Txn
from tests.harness.simulation.wire import ATTEMPTS, Unanswered, WireClient
from tests.harness.simulation.world import SIDE, SOURCE, World
from tests.helpers.kafka_batches import kafka_batch
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import Api

#: After these a producer repeats its request.
_AGAIN = frozenset({3, 6, 7, 14, 15, 16, 19, 51, 56})
#: These end a producer: another instance has its id, or its transaction has timed out.
_FENCED = frozenset({47, 49, 90})
#: Those of the membership that a transactional commit of offsets names.
_OF_GROUP = frozenset({22, 25, 82, 110, 113, 27})
_TIMEOUT_MS = 60_000


class Refused(Exception):  # noqa: N818 - an answer
    """The request had no effect."""

    def __init__(self, api: Api, code: int) -> None:
        super().__init__(f"{api.name.lower()} was refused with {code}")
        self.code = code


class Transactions:
    """A transactional producer, used by a client of gateways.

    Args:
        client: The client.
        transactional_id: Its transactional id.
        is_v1: Whether it ends transactions with EndTxn 3, and keeps its epoch.
    """

    def __init__(self, client: WireClient, transactional_id: str, *, is_v1: bool) -> None:
        self._client = client
        self._id = transactional_id
        self._is_v1 = is_v1
        self._name = ""
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[object] = set()
        #: Whether it can continue without another init.
        self.is_usable = False

    @property
    def _history(self) -> Any:
        return self._client.world.history

    # Requests ---------------------------------------------------------------------------------------------------------

    def _ask(
        self, api: Api, version: int, fields: Mapping[str, Any], code_of: Callable[[Mapping[str, Any]], Any], late: bool
    ) -> Mapping[str, Any]:
        """Repeat a request until it succeeds.

        Raises:
            Unanswered: There is no answer, also not to repetitions.
            Refused: It is refused, and may not be repeated.
        """
        unknown = False
        for _ in range(ATTEMPTS):
            try:
                answer = self._client.ask(api, version, fields, late=late)
            except Unanswered:
                unknown = True
                continue
            code = int(code_of(answer))
            if code == 0:
                return answer
            if code not in _AGAIN:
                if code not in _FENCED | _OF_GROUP:
                    self._client.odd(f"{api.name} v{version}", code)
                self._check_fenced(api, code)
                raise Refused(api, code)
            unknown = unknown or code in (7, 15)
            self._client.pause(500)
        if unknown:
            raise Unanswered
        raise Refused(api, 51)

    def init(self, *, bump: bool) -> bool:
        """Get a producer id and an epoch, or the next epoch; False if that fails."""
        history, producer = self._history, self._producer if bump else (-1, -1)
        name = self._name = self._client.world._incarnation(self._client.name)
        history.invoke(name, "init", {"transactional_id": self._id})
        fields = {
            "transactional_id": self._id,
            "transaction_timeout": _TIMEOUT_MS,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        try:
            answer = self._ask(Api.INIT_PRODUCER_ID, 4, fields, lambda answer: answer["error_code"], late=False)
        except Unanswered:
            history.info(name, "no answer")
            return False
        except Refused as error:
            history.fail(name, error)
            return False
        self._producer = answer["producer_id"], answer["producer_epoch"]
        granted = {"producer_id": self._producer[0], "epoch": self._producer[1]}
        history.ok(name, {"transactional_id": self._id, **granted})
        self._sequences, self.is_usable = {}, True
        return True

    def _add(self, api: Api, what: object, fields: Mapping[str, Any], code_of: Callable[[Any], Any]) -> None:
        if self._is_v1 and what not in self._added:
            self._ask(api, 3, fields, code_of, late=True)
            self._added.add(what)

    def _send(self, tp: TopicPartition, value: int) -> int:
        """The offset of a record."""
        producer_id, epoch = self._producer
        self._add(
            Api.ADD_PARTITIONS_TO_TXN,
            tp,
            {
                "v3_and_below_transactional_id": self._id,
                "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": epoch,
                "v3_and_below_topics": [{"name": tp.topic, "partitions": [tp.partition]}],
            },
            lambda answer: answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0][
                "partition_error_code"
            ],
        )
        sequence = self._sequences.get(tp, 0)
        data = kafka_batch(
            [(0, 1_000, None, str(value).encode(), [])],
            transactional=True,
            producer=(producer_id, epoch, sequence),
        )
        fields = {
            "transactional_id": self._id,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": tp.topic, "partition_data": [{"index": tp.partition, "records": data}]}],
        }
        answer = self._ask(Api.PRODUCE, 9 if self._is_v1 else 12, fields, _code_of_produce, late=True)
        self._sequences[tp] = sequence + 1
        offset: int = answer["responses"][0]["partition_responses"][0]["base_offset"]
        if offset < 0:
            self._client.world.anomalies.append(f"no-offset: {self._client.client} sent {value} to {tp}")
        return offset

    def _send_offset(self, group: str, tp: TopicPartition, mark: Mark, instance_id: str | None) -> None:
        producer_id, epoch = self._producer
        identity = {"transactional_id": self._id, "producer_id": producer_id, "producer_epoch": epoch}
        self._add(Api.ADD_OFFSETS_TO_TXN, group, {**identity, "group_id": group}, lambda answer: answer["error_code"])
        fields = {
            **identity,
            "group_id": group,
            "generation_id": mark.generation,
            "member_id": mark.member_id,
            "group_instance_id": instance_id,
            "topics": [{"name": tp.topic, "partitions": [_offset(tp, mark)]}],
        }
        version = 3 if self._is_v1 else 5
        # A late one of version 1 would get into the next transaction, in Kafka as well.
        self._ask(Api.TXN_OFFSET_COMMIT, version, fields, _code_of_commit, late=not self._is_v1)

    # Transactions -----------------------------------------------------------------------------------------------------

    def transact(
        self, offset: tuple[str, TopicPartition, Mark, str | None] | None = None, *, most: int = 3
    ) -> tuple[bool | None, int | None]:
        """A transaction with some records, and with an offset of a group.

        Returns:
            Whether it has committed, None: it is not known, and the code that has refused a part of it.
        """
        client, history = self._client, self._history
        rng, world = client.rng, client.world
        if not self.is_usable and not self.init(bump=False):
            return False, None
        plan = [(_partition(client), world.next_value()) for _ in range(rng.randint(1, most))]
        name, self._added = self._name, set()
        history.invoke(name, "txn", [("send", str(tp), value) for tp, value in plan], self._identity())
        try:
            sent = [(tp, value, self._send(tp, value)) for tp, value in plan]
            if offset is not None:
                self._send_offset(*offset)
            if rng.random() < 0.1:
                client.pause(rng.choice((100, 2_000, 70_000)))
        except (Unanswered, Refused) as error:
            code = error.code if isinstance(error, Refused) else None
            self._abort(code)
            history.fail(name, error)
            return False, code
        if rng.random() < 0.15:
            self._abort(None)
            history.fail(name, "changed its mind")
            return False, None
        history.committing(name)
        committed, why = self._end(commit=True)
        if committed:
            history.ok(name, [("send", str(tp), (at, value)) for tp, value, at in sent])
        elif committed is None:
            history.info(name, why)
        else:
            history.fail(name, why)
        return committed, None

    def _identity(self) -> Txn:
        """That of the transaction in the chain: each has its own epoch there, also those of version 1."""
        newest = self._client.world.ledger.identities.get(self._id, self._producer)
        return (self._id, *(newest if self._is_v1 else self._producer))

    def _end(self, *, commit: bool) -> tuple[bool | None, object]:
        """Whether the transaction has ended so; None: that is not known."""
        version = 3 if self._is_v1 else 5
        producer_id, epoch = self._producer
        fields = {
            "transactional_id": self._id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }
        unknown = False
        for _ in range(ATTEMPTS):
            try:
                # A late one of version 1 would end the next transaction, in Kafka as well.
                answer = self._client.ask(Api.END_TXN, version, fields, late=not self._is_v1)
            except Unanswered:
                unknown = True
                continue
            code = int(answer["error_code"])
            if code == 0:
                if not self._is_v1:
                    self._producer = answer["producer_id"], answer["producer_epoch"]
                    self._sequences = {}
                return True, None
            if code not in _AGAIN:
                self.is_usable = False
                self._check_fenced(Api.END_TXN, code)
                if code not in _FENCED and not (code == 48 and not commit):
                    self._client.odd(f"END_TXN v{version} {'commit' if commit else 'abort'}", code)
                return None if unknown else False, f"refused with {code}"
            unknown = unknown or code == 15
            self._client.pause(1_000)
        self.is_usable = False
        return None if unknown else False, "no end"

    def _check_fenced(self, api: Api, code: int) -> None:
        """FEN-01: a client of version 1 is fenced by another instance, or by the end of its transaction by others."""
        is_current = self._is_v1 and self._client.world.ledger.clients.get(self._id) == self._producer
        if code in _FENCED and is_current:
            what = f"{self._client.client} {self._id} with {self._producer} by {api.name}: {code}"
            self._client.world.anomalies.append(f"fenced-without-cause: {what}")

    def _abort(self, code: int | None) -> None:
        """Abort, as far as that is possible; then the next sequence numbers are not known, so it asks for an epoch."""
        if code in _FENCED:
            self.is_usable = False
            return
        ended, _ = self._end(commit=False)
        if not ended or self._is_v1:
            self.is_usable = self.is_usable and self.init(bump=True)


def _partition(client: WireClient) -> TopicPartition:
    number = client.rng.randrange(client.world.settings.partitions)
    return TopicPartition(client.rng.choice((SOURCE, SOURCE, SIDE)), number)


def _offset(tp: TopicPartition, mark: Mark) -> Mapping[str, Any]:
    return {"partition_index": tp.partition, "committed_offset": mark.number, "committed_metadata": str(mark)}


def _code_of_produce(answer: Mapping[str, Any]) -> Any:
    return answer["responses"][0]["partition_responses"][0]["error_code"]


def _code_of_commit(answer: Mapping[str, Any]) -> Any:
    return answer["topics"][0]["partitions"][0]["error_code"]


class WireProducer(WireClient):
    """Transactions without offsets; ``w1`` is an id of version 1, ``w2`` one of version 2."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._is_v1 = self.label.startswith("w1")

    def program(self) -> None:
        producer = Transactions(self, self.label.partition("/")[0], is_v1=self._is_v1)
        while self.next_operation():
            producer.transact()
            if not producer.is_usable and self.rng.random() < 0.3:
                return
            self.breathe()
