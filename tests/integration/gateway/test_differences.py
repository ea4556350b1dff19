"""What a client of Kafka notices at a gateway and not at a broker (``docs/kafka-differences.md``), as raw responses."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.gateway_process import fetch_fields, produce_fields
from tests.helpers.inlining import inlined
from tests.helpers.kafka_batches import kafka_batch, values_batch
from tests.helpers.kafka_wire import RawClient, ServedStore, users_of
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock

#: The last versions that name topics by their names.
PRODUCE, FETCH = 12, 12


@pytest.fixture
def served() -> Iterator[ServedStore]:
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        store.create_topic("t", partitions=3)
        yield ServedStore(store, gateway)


def _batches(data: bytes) -> list[DefaultRecordBatch]:
    """The record batches of a response."""
    batches = []
    while data:
        (size,) = struct.unpack_from(">i", data, 8)
        batches.append(DefaultRecordBatch(data[: size + 12]))
        data = data[size + 12 :]
    return batches


def _fetch(served: ServedStore, offset: int = 0, *, isolation: int = 1) -> Any:
    response = served.ask(Api.FETCH, {**fetch_fields("t", offset), "isolation_level": isolation}, FETCH)
    assert response.session_id == 0
    return response.responses[0].partitions[0]


def _produce(served: ServedStore, batch: bytes, *, partition: int = 0, acks: int = -1, user: str | None = None) -> Any:
    response = served.ask(Api.PRODUCE, produce_fields("t", batch, partition=partition, acks=acks), PRODUCE, user)
    return response.responses[0].partition_responses[0]


def _transact(served: ServedStore, *, commit: bool) -> None:
    """A transaction of librdkafka of one record in partition 0."""
    producer = confluent_kafka.Producer({**served.librdkafka(), "transactional.id": "job", "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"record of a transaction", partition=0)
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def test_a_record_with_acks_1_is_stored_when_it_is_acknowledged(served: ServedStore) -> None:
    assert _produce(served, values_batch([b"v"]), acks=1).base_offset == 0
    assert served.store.scan("t").to_table()["value"].to_pylist() == [b"v"]


def test_replicas_are_one_whatever_is_asked_for(served: ServedStore) -> None:
    wanted = {"name": "replicated", "num_partitions": 1, "replication_factor": 3}
    (created,) = served.ask(Api.CREATE_TOPICS, {"topics": [wanted], "timeout": 30_000}).topics
    assert created.error_code is ErrorCode.none
    (topic,) = served.ask(Api.METADATA, {"topics": [{"name": "replicated"}]}).topics
    (partition,) = topic.partitions
    assert (len(partition.replica_nodes), len(partition.isr_nodes), partition.leader_epoch) == (1, 1, 0)


def test_an_unknown_topic_is_not_created_by_default(served: ServedStore) -> None:
    asked = {"topics": [{"name": "unknown"}], "allow_auto_topic_creation": True}
    (topic,) = served.ask(Api.METADATA, asked).topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    assert [topic.name for topic in served.store.topics()] == ["t"]


def test_any_gateway_appends_and_reads() -> None:
    """No request of records is answered NOT_LEADER: leaders are advice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    peers = [each.getsockname() for each in sockets]
    with create_on(MemoryStore(), 3) as store:
        store.create_topic("t", partitions=3)
        gateways = [RunningGateway(store, bound=each, peers=peers) for each in sockets]
        for gateway in gateways:
            gateway.start()
        try:
            for partition in range(3):
                for number, gateway in enumerate(gateways):
                    answer = _produce(ServedStore(store, gateway), values_batch([b"v"]), partition=partition)
                    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number)
            read = [_fetch(ServedStore(store, gateway)).records for gateway in gateways]
            assert [sum(len(list(batch)) for batch in _batches(bytes(each))) for each in read] == [2, 2]
        finally:
            for gateway in gateways:
                gateway.stop()


def test_aborted_records_are_left_out_and_a_control_batch_stands_for_their_offsets(served: ServedStore) -> None:
    _produce(served, values_batch([b"before"]))
    _transact(served, commit=False)
    answer = _fetch(served)
    before, gap = _batches(bytes(answer.records))
    assert answer.aborted_transactions == ()
    assert [record.value for record in before] == [b"before"]
    assert (gap.is_control_batch, gap.base_offset, gap.next_offset) == (True, 1, 3)
    records = bytes(_fetch(served, isolation=0).records)
    assert [batch.is_control_batch for batch in _batches(records)] == [False, False, True]


def test_records_of_segments_are_encoded_again(served: ServedStore) -> None:
    """Batches in memory come as they were sent; those from the storage without compression and producer."""
    for value in (b"1", b"2"):
        _produce(served, values_batch([value * 1_000], codec=1))
    assert [batch.compression_type for batch in _batches(bytes(_fetch(served).records))] == [1, 1]
    with serving(served.store) as other:
        answer = _fetch(ServedStore(served.store, other))
    batches = _batches(bytes(answer.records))
    assert {(batch.compression_type, batch.producer_id) for batch in batches} == {(0, -1)}
    assert [record.offset for batch in batches for record in batch] == [0, 1]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["uploaded", "inlined"])
def test_the_time_of_the_append_is_of_that_type_until_a_compaction_joins_batches(inline_bytes: int) -> None:
    clock = ManualClock()
    config = {"message.timestamp.type": "LogAppendTime", "inline.bytes": inline_bytes}

    def read(gateway: RunningGateway) -> list[tuple[int, int, int]]:
        batches = _batches(bytes(_fetch(ServedStore(store, gateway)).records))
        return [(record.offset, record.timestamp, record.timestamp_type) for batch in batches for record in batch]

    with create_on(MemoryStore(clock=clock), runtime=Runtime(clock=clock)) as store:
        store.create_topic("t", config=config)
        with serving(store) as one:
            times = []
            for _ in range(3):
                clock.advance(1_000)
                answer = _produce(ServedStore(store, one), values_batch([b"1", b"2"]))
                times += [int(answer.log_append_time.timestamp() * 1_000)] * 2
            records = [(offset, time, 1) for offset, time in enumerate(times)]
            assert (len(set(times)), read(one)) == (3, records)
            with serving(store) as other:
                assert read(other) == records
        clock.advance(3_600_000)
        store.compact("t")
        with serving(store) as after:
            assert read(after) == [(offset, time, 0) for offset, time in enumerate(times)]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20], ids=["uploaded", "inlined"])
def test_a_record_without_a_time_has_that_of_its_write(inline_bytes: int) -> None:
    """At the gateway that took it, at another one, and after a compaction; the records beside it keep theirs."""
    clock = ManualClock()

    def read(gateway: RunningGateway) -> list[tuple[int, int]]:
        batches = _batches(bytes(_fetch(ServedStore(store, gateway)).records))
        return [(record.offset, record.timestamp) for batch in batches for record in batch]

    with create_on(MemoryStore(clock=clock), runtime=Runtime(clock=clock)) as store:
        store.create_topic("t", config={"inline.bytes": inline_bytes})
        with serving(store) as one:
            _produce(ServedStore(store, one), kafka_batch([(0, 5, None, b"1", []), (1, -1, None, b"2", [])]))
            _produce(ServedStore(store, one), values_batch([b"3"]))
            clock.advance(1_000)
            (_, first), (_, written), _ = records = read(one)
            assert (first, written > 1_000_000, read(one)) == (5, True, records)
            with serving(store) as other:
                assert read(other) == records
        clock.advance(3_600_000)
        store.compact("t")
        with serving(store) as after:
            assert read(after) == records
        assert store.scan("t").to_table()["_timestamp"].cast("int64").to_pylist() == [time for _, time in records]


def test_a_compaction_keeps_the_type_of_the_time_of_one_append() -> None:
    with create_on(MemoryStore()) as store:
        store.create_topic("t", config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"})
        with serving(store) as gateway:
            _produce(ServedStore(store, gateway), kafka_batch([(0, 1, b"k", b"1", []), (1, 2, b"k", b"2", [])]))
        store.compact("t")
        with serving(store) as gateway:
            batches = _batches(bytes(_fetch(ServedStore(store, gateway)).records))
    assert [record.timestamp_type for batch in batches if not batch.is_control_batch for record in batch] == [1]


def test_a_transaction_of_a_client_takes_several_entries_and_its_small_batches_are_in_them(served: ServedStore) -> None:
    """Also if it is aborted afterwards. A producer of the library needs one entry, or none."""
    before = served.store.metrics().commits
    _transact(served, commit=False)
    assert served.store.metrics().commits - before == 4  # init, the partition, the batch, the end
    assert inlined(served.store) == [True]
    before = served.store.metrics().commits
    with served.store.producer("job") as producer:
        with producer.transaction():
            producer.send("t", b"v", partition=0)
        producer.begin_transaction()
        producer.send("t", b"v", partition=0)
        producer.abort_transaction()
    assert served.store.metrics().commits - before == 2  # init, and the first transaction


def test_other_requests_than_produce_have_at_most_2_mb(served: ServedStore) -> None:
    with RawClient(served.gateway) as client:
        asked = {"topics": [{"name": "x" * 30_000} for _ in range(80)]}
        with pytest.raises(ConnectionError):
            client.ask(Api.METADATA, asked, 8)


def test_a_client_sends_at_most_128_kb_before_it_has_authenticated(secured: ServedStore) -> None:
    with RawClient(secured.gateway) as client:
        answer = client.ask(Api.SASL_AUTHENTICATE, {"auth_bytes": b"x" * 100_000}, 1)
        assert answer.error_code is ErrorCode.illegal_sasl_state
        with pytest.raises(ConnectionError):
            client.ask(Api.SASL_AUTHENTICATE, {"auth_bytes": b"x" * 140_000}, 1)


@pytest.mark.parametrize(
    "numbers",
    [(71, 72), (76, 77, 78, 79), (88, 89), (48, 49), (38, 39, 40, 41), (50, 51), (34, 45, 55), (57,)],
    ids=["telemetry", "share groups", "streams groups", "quotas", "tokens", "users", "replicas", "features"],
)
def test_what_a_gateway_does_not_have_is_not_listed(served: ServedStore, numbers: tuple[int, ...]) -> None:
    listed = {api.api_key for api in served.ask(Api.API_VERSIONS, {}, 0).api_keys}
    assert int(Api.PRODUCE) in listed
    assert not listed & set(numbers)
    assert not {int(api) for api in VERSIONS} & set(numbers)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[ServedStore]:
    """``alice`` may write to ``t`` and read ``t`` with the group ``g``; no rule is about ``u``."""
    with create_on(MemoryStore(), principal="User:gateway") as store:
        for name in ("t", "u"):
            store.create_topic(name, partitions=1)
        store.acls.enable(["User:gateway"])
        store.acls.create(
            [
                Acl("User:alice", "ALLOW", "WRITE", "TOPIC", "t"),
                Acl("User:alice", "ALLOW", "READ", "TOPIC", "t"),
                Acl("User:alice", "ALLOW", "READ", "GROUP", "g"),
            ]
        )
        with serving(store, security=users_of(tmp_path, "alice")) as gateway:
            yield ServedStore(store, gateway)


def test_a_gateway_asks_for_describe_as_a_broker_does(secured: ServedStore) -> None:
    denied = ErrorCode.topic_authorization_failed
    asked = {"topics": [{"name": "t"}, {"name": "u"}]}
    topics = secured.ask(Api.METADATA, asked, user="alice").topics
    assert [each.error_code for each in topics] == [ErrorCode.none, denied]
    secured.store.acls.create(Acl("User:alice", "DENY", "DESCRIBE", "TOPIC", "t"))
    topics = secured.ask(Api.METADATA, asked, user="alice").topics
    assert [each.error_code for each in topics] == [denied, denied]


def test_a_gateway_decides_about_each_topic_of_a_request(secured: ServedStore) -> None:
    def offsets(name: str) -> dict[str, Any]:
        return {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 0}]}

    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [offsets("t"), offsets("u")]}
    topics = secured.ask(Api.OFFSET_COMMIT, fields, 8, user="alice").topics
    codes = {each.name: each.partitions[0].error_code for each in topics}
    assert codes == {"t": ErrorCode.none, "u": ErrorCode.topic_authorization_failed}
    assert [(str(each.tp), each.offset) for each in secured.store.group("g").positions] == [("t-0", 0)]


def test_who_is_authenticated_is_the_principal_of_the_rules(secured: ServedStore) -> None:
    """The gateway has its own principal only where clients do not authenticate."""
    assert _produce(secured, values_batch([b"v"]), user="alice").error_code is ErrorCode.none
    secured.store.acls.create(Acl("User:alice", "DENY", "WRITE", "TOPIC", "t"))
    assert _produce(secured, values_batch([b"v"]), user="alice").error_code is ErrorCode.topic_authorization_failed
    with serving(secured.store) as open_to_all:
        answer = _produce(ServedStore(secured.store, open_to_all), values_batch([b"v"]))
    assert answer.error_code is ErrorCode.none


def test_a_committed_offset_may_be_negative(served: ServedStore) -> None:
    """A group is reset to its default so by kafkajs, which reads it back as none."""
    for number in (-1, -2):
        parts = [{"partition_index": 0, "committed_offset": number}]
        commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": parts}]}
        answer = served.ask(Api.OFFSET_COMMIT, commit, 8)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
        found = served.ask(Api.OFFSET_FETCH, asked, 7).topics[0].partitions[0]
        assert (found.error_code, found.committed_offset) == (ErrorCode.none, number)
        assert [position.offset for position in served.store.groups()[0].positions] == [None]
