"""Batches behind one that the storage failed to take: an idempotent producer repeats all of them in their order."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.gateway_process import Client, produce_fields
from tests.helpers.kafka_batches import kafka_batch, values_batch
from tests.helpers.kafka_wire import RawClient, request_frame, response_of
from txnstore.core.log.commands import Append
from txnstore.errors import StorageRefusedError
from txnstore.gateway.apis import Api
from txnstore.gateway.commits import Commits
from txnstore.gateway.produce import Produce, StagedBatch
from txnstore.gateway.wire import Request
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

PRODUCE = 12


class FailingStore(MemoryStore):
    """A store that refuses one object, at a moment of the test."""

    #: Whether the store refuses an object now; it may wait.
    refuses: Callable[[str, bytes], bool] = staticmethod(lambda _key, _data: False)
    #: Whether the next read fails.
    refuses_a_read = False

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.refuses_a_read:
            self.refuses_a_read = False
            raise StorageRefusedError(f"{key} cannot be read")
        return super().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._check(key, data)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._check(key, data)
        return super().put_if_absent(key, data)

    def _check(self, key: str, data: bytes) -> None:
        if self.refuses(key, data):
            self.refuses = lambda _key, _data: False
            raise StorageRefusedError(f"{key} is refused")


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each batch that is staged."""
    count, stage = threading.Semaphore(0), Produce._stage

    async def counted(*arguments: Any) -> Any:
        result = await stage(*arguments)
        count.release()
        return result

    monkeypatch.setattr(Produce, "_stage", counted)
    return count


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each batch that waits for a commit."""
    count, submit = threading.Semaphore(0), Commits.submit

    def counted(self: Commits, command: Any, principal: str | None) -> Any:
        future = submit(self, command, principal)
        if isinstance(command, Append):
            count.release()
        return future

    monkeypatch.setattr(Commits, "submit", counted)
    return count


def _reaches(count: threading.Semaphore, number: int) -> bool:
    return all(count.acquire(timeout=30) for _ in range(number))


@pytest.fixture
def objects() -> FailingStore:
    return FailingStore()


@pytest.fixture(params=[1, 3])
def store(objects: FailingStore, request: pytest.FixtureRequest) -> Iterator[Store]:
    with create_on(objects, request.param) as created:
        yield created


def _batch(producer: int, sequence: int) -> bytes:
    return kafka_batch([(0, 1_000, None, b"value %d" % sequence, [])], producer=(producer, 0, sequence))


def _send(
    client: RawClient, *batches: bytes, version: int = PRODUCE, name: str | None = None
) -> list[tuple[ErrorCode, int]]:
    """Send requests with a batch each without waiting for answers; returns the code and the offset of each."""
    for number, batch in enumerate(batches):
        fields = {**produce_fields("t", batch), "transactional_id": name}
        client.send(request_frame(Api.PRODUCE, version, number, fields))
    answers = []
    for number in range(len(batches)):
        answer = response_of(Api.PRODUCE, version, number, client.receive())
        part = answer.responses[0].partition_responses[0]
        answers.append((part.error_code, part.base_offset))
    return answers


def _check_order(client: RawClient, store: Store, producer: int, before: int = 0) -> None:
    """The client repeats the batches with the sequences 0, 1 and 2 in their order, and they are appended so."""
    repeated = _send(client, *(_batch(producer, sequence) for sequence in range(3)))
    assert repeated == [(ErrorCode.none, before + number) for number in range(3)]
    values = store.scan("t", columns=["value"]).to_table()["value"].to_pylist()
    assert values[before:] == [b"value %d" % sequence for sequence in range(3)]


def _producer(client: RawClient) -> int:
    fields = {"transactional_id": None, "transaction_timeout_ms": 60_000, "transaction_timeout": 60_000}
    return int(client.ask(Api.INIT_PRODUCER_ID, fields, 1).producer_id)


FAILED = [(ErrorCode.kafka_storage_error, -1)]


def test_batches_that_came_while_the_first_one_failed_to_upload_fail_with_it(
    store: Store, objects: FailingStore, arrived: threading.Semaphore
) -> None:
    store.create_topic("t", config={"inline.bytes": 0})
    with serving(store) as gateway, RawClient(gateway) as client:
        producer = _producer(client)
        objects.refuses = lambda key, _: key.startswith("topics/") and _reaches(arrived, 3)
        assert _send(client, *(_batch(producer, sequence) for sequence in range(3))) == FAILED * 3
        _check_order(client, store, producer)


def test_batches_of_the_flush_of_a_failed_one_fail_with_it(
    store: Store, objects: FailingStore, arrived: threading.Semaphore
) -> None:
    """Each has a segment of its own, so the others are uploaded. Batches of other producers are appended."""

    def refuses(key: str, data: bytes) -> bool:
        if key.startswith("topics/") and b"other" in data:
            assert _reaches(arrived, 4)
        return key.startswith("topics/") and b"value 0" in data

    store.create_topic("t", config={"inline.bytes": 0, "segment.own.bytes": 1})
    with serving(store) as gateway, RawClient(gateway) as client:
        producer, other = _producer(client), _producer(client)
        first = kafka_batch([(0, 1_000, None, b"other", [])], producer=(other, 0, 0))
        objects.refuses = refuses
        answers = _send(client, first, *(_batch(producer, sequence) for sequence in range(3)))
        assert answers == [(ErrorCode.none, 0), *FAILED * 3]
        _check_order(client, store, producer, 1)


def test_batches_that_wait_for_the_commit_behind_a_failed_one_fail_with_it(
    store: Store, objects: FailingStore, submitted: threading.Semaphore
) -> None:
    store.create_topic("t")
    with serving(store) as gateway, RawClient(gateway) as client:
        producer = _producer(client)
        objects.refuses = lambda key, _: "/entries" in key and _reaches(submitted, 3)
        assert _send(client, *(_batch(producer, sequence) for sequence in range(3))) == FAILED * 3
        _check_order(client, store, producer)


def test_a_batch_that_comes_just_after_a_failed_one_fails_with_it(store: Store, objects: FailingStore) -> None:
    """Its client has sent it before it has the refusal."""
    store.create_topic("t")
    with serving(store) as gateway, RawClient(gateway) as client:
        producer = _producer(client)
        objects.refuses = lambda key, _: "/entries" in key
        assert _send(client, _batch(producer, 0)) == FAILED
        assert _send(client, _batch(producer, 1)) == FAILED
        _check_order(client, store, producer)


def test_a_batch_behind_one_of_a_transaction_that_was_not_known_fails_with_it(
    store: Store, objects: FailingStore
) -> None:
    """TV1: the look for the first one makes the transaction known."""
    store.create_topic("t")
    with (
        serving(store) as one,
        open_on(objects) as second,
        serving(second) as two,
        RawClient(one) as client,
        RawClient(two) as other,
    ):
        identity = _Transactions(client).next_but_one()
        batches = [
            kafka_batch([(0, 1_000, None, b"%d" % each, [])], transactional=True, producer=(*identity, each))
            for each in range(2)
        ]
        assert _send(other, *batches, version=9, name="a") == [(ErrorCode.request_timed_out, -1)] * 2
        answers = _send(other, *batches, version=9, name="a")
        assert [code for code, _ in answers] == [ErrorCode.none] * 2
        assert answers[0][1] < answers[1][1]


class _Transactions:
    """A client of transactions v1."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        fields = {"transactional_id": "a", "transaction_timeout_ms": 60_000, "transaction_timeout": 60_000}
        answer = client.ask(Api.INIT_PRODUCER_ID, fields, 1)
        self.identity = int(answer.producer_id), int(answer.producer_epoch)

    def next_but_one(self) -> tuple[int, int]:
        """Its second transaction is open: the producer id and the epoch of both."""
        self._add()
        fields = {"transactional_id": "a", "producer_id": self.identity[0], "producer_epoch": self.identity[1]}
        while self._client.ask(Api.END_TXN, {**fields, "committed": True}, 3).error_code:
            pass  # The test's own timeout ends it.
        self._add()
        return self.identity

    def _add(self) -> None:
        fields = {
            "v3_and_below_transactional_id": "a",
            "v3_and_below_producer_id": self.identity[0],
            "v3_and_below_producer_epoch": self.identity[1],
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        }
        while True:
            answer = self._client.ask(Api.ADD_PARTITIONS_TO_TXN, fields, 3)
            if not answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code:
                return


def test_a_refusal_whose_version_cannot_be_checked_is_repeated(store: Store, objects: FailingStore) -> None:
    """The heads cannot be read before the refusal: each batch of the flush is answered, good ones are appended."""
    schema = pa.schema([("id", pa.int8())])
    store.create_topic("typed", partitions=2, schema=schema)
    batches = [values_batch([b'{"id": 1}']), values_batch([b'{"id": 1000}'])]
    parts = [{"index": number, "records": batch} for number, batch in enumerate(batches)]
    fields = {"acks": -1, "topic_data": [{"name": "typed", "partition_data": parts}]}
    with serving(store) as gateway, RawClient(gateway) as client:

        def codes() -> list[ErrorCode]:
            (topic,) = client.ask(Api.PRODUCE, fields, PRODUCE).responses
            return [each.error_code for each in topic.partition_responses]

        objects.refuses_a_read = True
        assert codes() == [ErrorCode.none, ErrorCode.kafka_storage_error]
        assert codes() == [ErrorCode.none, ErrorCode.invalid_record]
    assert store.scan("typed").to_table().num_rows == 2


def _living(kind: type) -> dict[int, object]:
    """The objects of a kind, by their ids; other tests may have left some."""
    return {id(item): item for item in gc.get_objects() if type(item) is kind}


def test_a_failed_request_without_acknowledgement_leaves_no_cycle() -> None:
    """Its bytes do not count any longer, and the collector, which would end it, runs rarely in a gateway."""
    before = _living(Request)
    gc.disable()
    try:
        with create_on(MemoryStore()) as store, serving(store) as gateway, Client(*gateway.address) as client:
            client.begin(Api.PRODUCE, 8, produce_fields("missing", values_batch([b"v"]), acks=0))
            assert client.is_closed()
        assert _living(Request).keys() == before.keys()
    finally:
        gc.enable()


def test_a_batch_that_the_storage_refuses_leaves_no_cycle() -> None:
    objects, batch = FailingStore(), values_batch([random.Random(1).randbytes(200_000)])
    before = _living(StagedBatch)
    gc.disable()
    try:
        with create_on(objects) as store:
            store.create_topic("t", partitions=1)
            with serving(store) as gateway, Client(*gateway.address) as client:
                objects.refuses = lambda key, _data: key.endswith(".parquet")
                answer = client.ask(Api.PRODUCE, 8, produce_fields("t", batch))
                assert answer.responses[0].partition_responses[0].error_code != ErrorCode.none
        assert _living(StagedBatch).keys() == before.keys()
    finally:
        gc.enable()
