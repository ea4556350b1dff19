"""Two gateways of one store: what is changed through one counts at the other."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_batches import kafka_batch, values_batch
from tests.helpers.kafka_wire import RawClient
from txnstore.core.catalog.model import AlterTopic
from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api


def test_a_consumer_that_never_waits_gets_the_records_of_another_gateway(tmp_path: Path) -> None:
    """``fetch.max.wait.ms=0``: no fetch is under way when the gateway looks whether any waits."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    asked = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [{"topic": "t", "partitions": [partition]}]}
    batch = {"index": 0, "records": values_batch([b"v"])}
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        first.create_topic("t", partitions=1)
        with serving(first) as one, serving(second) as two, RawClient(one) as producer, RawClient(two) as consumer:
            assert not consumer.ask(Api.FETCH, asked, 11).responses[0].partitions[0].records
            topics = [{"name": "t", "partition_data": [batch]}]
            response = producer.ask(Api.PRODUCE, {"acks": -1, "topic_data": topics}, 9)
            assert response.responses[0].partition_responses[0].base_offset == 0
            while not consumer.ask(Api.FETCH, asked, 11).responses[0].partitions[0].records:
                pass  # The test's own timeout ends it.


_NARROW, _WIDE = (pa.schema([("id", kind)]) for kind in (pa.int8(), pa.int64()))
_DELETE, _COMPACT = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("created", "altered", "good", "refused"),
    [
        ({"schema": _NARROW}, {"schema": _WIDE}, (b"", b'{"id": 1}'), b'{"id": 1000}'),
        ({"config": _COMPACT}, {"config": _DELETE}, (b"k", b"v"), b"v"),
        ({"schema": _WIDE, "key": "id", "config": _COMPACT}, {"config": _DELETE}, (b"", b'{"id": 1}'), b'{"id": null}'),
        (
            {"config": {"max.message.bytes": 100}}, {"config": {"max.message.bytes": 1000}}, (b"k", b"v"),
            b"x" * 200,
        ),
    ],
    ids=["type", "policy", "policy-of-rows", "size"],
)  # fmt: skip
def test_a_gateway_finds_the_version_that_accepts_a_record(
    tmp_path: Path,
    created: dict[str, Any],
    altered: dict[str, Any],
    good: tuple[bytes, bytes],
    refused: bytes,
) -> None:
    """Another process has altered the topic: the gateway asks for its newest version before it refuses a batch.

    The good batch of the request, before the refused one, keeps its place.
    """

    def parts(*batches: bytes) -> list[dict[str, Any]]:
        return [{"index": number, "records": batch} for number, batch in enumerate(batches)]

    key, value = good
    accepted = kafka_batch([(0, 1_000, key or None, value, [])])
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        first.create_topic("t", partitions=2, **created)
        with serving(second) as gateway, RawClient(gateway) as client:

            def produce(*batches: bytes) -> list[ErrorCode]:
                topics = [{"name": "t", "partition_data": parts(*batches)}]
                (response,) = client.ask(Api.PRODUCE, {"acks": -1, "topic_data": topics}, 9).responses
                return [each.error_code for each in response.partition_responses]

            refusal = values_batch([refused])
            first_answer = produce(accepted, refusal)
            assert first_answer[0] is ErrorCode.none
            assert first_answer[1] in (ErrorCode.invalid_record, ErrorCode.message_too_large)
            first.alter_topic("t", **altered)
            assert produce(accepted, refusal) == [ErrorCode.none, ErrorCode.none]
        assert first.scan("t").to_table().num_rows == 3
        assert first.verify().ok


@pytest.mark.parametrize("version", [9, 13], ids=["name", "id"])
@pytest.mark.parametrize(
    ("created", "recreated", "refused"),
    [
        ({"schema": _NARROW}, {"schema": _WIDE}, b'{"id": 1000}'),
        ({"config": {"max.message.bytes": 100}}, {"config": {"max.message.bytes": 1000}}, b"x" * 200),
    ],
    ids=["type", "size"],
)
def test_a_gateway_appends_no_batch_of_a_deleted_topic_to_its_successor(
    tmp_path: Path, created: dict[str, Any], recreated: dict[str, Any], refused: bytes, version: int
) -> None:
    """Another process has created the topic again, and the new one would accept the batch: the client looks it up."""
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        topic = first.create_topic("t", **created)
        name = {"topic_id": UUID(topic.topic_id)} if version == 13 else {"name": "t"}
        with serving(second) as gateway, RawClient(gateway) as client:

            def produce() -> Any:
                topics = [{**name, "partition_data": [{"index": 0, "records": values_batch([refused])}]}]
                (response,) = client.ask(Api.PRODUCE, {"acks": -1, "topic_data": topics}, version).responses
                return response.partition_responses[0].error_code

            assert produce() in (ErrorCode.invalid_record, ErrorCode.message_too_large)
            first.delete_topic("t")
            first.create_topic("t", **recreated)
            assert produce() is ErrorCode.unknown_topic_or_partition
            again = ErrorCode.none if version == 9 else ErrorCode.unknown_topic_id
            assert produce() is again
        assert first.scan("t").to_table().num_rows == (version == 9)


def test_a_version_that_cannot_be_read_fails_no_batch_of_another_topic(tmp_path: Path) -> None:
    """The gateway knows an earlier version of the damaged topic, which refuses a record, and looks for a newer one."""
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        for name in ("damaged", "good"):
            first.create_topic(name, schema=_NARROW)
        with serving(second) as gateway, RawClient(gateway) as client:

            def produce(**rows: bytes) -> list[ErrorCode]:
                parts = {name: [{"index": 0, "records": values_batch([row])}] for name, row in rows.items()}
                topics = [{"name": name, "partition_data": data} for name, data in parts.items()]
                responses = client.ask(Api.PRODUCE, {"acks": -1, "topic_data": topics}, 9).responses
                return [topic.partition_responses[0].error_code for topic in responses]

            assert produce(good=b'{"id": 1}', damaged=b'{"id": 1}') == [ErrorCode.none, ErrorCode.none]
            topic = connection_of(first).view().topics["damaged"]
            damaged = replace(topic, key="missing", version=topic.version + 1)
            connection_of(first).submit(AlterTopic(damaged, topic.version))
            codes = produce(good=b'{"id": 2}', damaged=b'{"id": 1000}')
            assert codes == [ErrorCode.none, ErrorCode.unknown_server_error]
        assert first.scan("good").to_table().num_rows == 2


def test_a_description_has_what_others_have_just_changed(tmp_path: Path) -> None:
    """Java's tools ask one gateway to enlarge a topic, and perhaps another one how large it is."""
    with txnstore.create(tmp_path) as first, txnstore.open(tmp_path) as second:
        first.create_topic("t", partitions=1)
        with serving(second) as gateway, RawClient(gateway) as client:
            for partitions in (1, 2, 3):
                first.alter_topic("t", partitions=partitions)
                for asked in ([{"name": "t"}], []):
                    (described,) = client.ask(Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": asked}, 0).topics
                    assert len(described.partitions) == partitions


def test_a_gateway_of_another_store_is_no_peer(tmp_path: Path) -> None:
    """Its records would be acknowledged, and be in the other store."""
    with txnstore.create(tmp_path / "a") as ours, txnstore.create(tmp_path / "b") as other, serving(other) as theirs:

        def beside(store: txnstore.Store) -> RunningGateway:
            bound = socket.create_server(("127.0.0.1", 0))
            return RunningGateway(store, bound=bound, peers=[theirs.address, bound.getsockname()])

        is_refused = pytest.raises(InvalidConfigError, match=rf"127.0.0.1:{theirs.address[1]} serves another store")
        with is_refused, beside(ours).running():
            pass
        with beside(other).running() as gateway, RawClient(gateway) as client:
            assert len(client.ask(Api.METADATA, {"topics": ()}, 9).brokers) == 2


def test_a_coordinator_that_has_just_ended_is_not_named(tmp_path: Path) -> None:
    """Its clients ask another gateway within milliseconds; kafka-python waits forever after two wrong answers."""
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [each.getsockname() for each in bound]
    with txnstore.create(tmp_path, chains=4) as first, txnstore.open(tmp_path) as second:
        one, two = (
            RunningGateway(store, bound=each, peers=addresses)
            for store, each in zip((first, second), bound, strict=True)
        )
        with one.running(), ExitStack() as until_later, RawClient(one) as client:
            until_later.enter_context(two.running())

            def coordinators() -> set[int]:
                keys = [f"group-{number}" for number in range(50)]
                found = client.ask(Api.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": keys}).coordinators
                return {each.port for each in found}

            while len(coordinators()) < 2:  # The first one has asked the second one before that listened.
                pass
            until_later.close()
            assert coordinators() == {one.address[1]}


def test_java_gets_the_gateways_that_live(tmp_path: Path) -> None:
    """Metadata lists a dead gateway for a minute, for librdkafka; tools of Java would wait for its answer."""
    bound = socket.create_server(("127.0.0.1", 0))
    with txnstore.create(tmp_path, chains=2) as store:
        peers = [bound.getsockname(), ("127.0.0.1", 9)]
        with RunningGateway(store, bound=bound, peers=peers).running() as gateway:
            for software, shown in (("apache-kafka-java", 1), ("librdkafka", 2)):
                with RawClient(gateway) as client:
                    asked = {"client_software_name": software, "client_software_version": "4"}
                    assert client.ask(Api.API_VERSIONS, asked, 3).error_code is ErrorCode.none
                    assert len(client.ask(Api.METADATA, {"topics": ()}, 9).brokers) == shown


def test_a_commit_is_refused_for_what_the_group_is_now(tmp_path: Path) -> None:
    """The group, of KIP-848, is newer than the view of the gateway that refuses: GROUP_ID_NOT_FOUND ends the client."""
    joining = {"group_id": "g", "member_id": "a", "rebalance_timeout": 60_000, "member_epoch": 0}
    joining |= {"subscribed_topic_names": ("t",), "topic_partitions": ()}
    partitions = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
    commit = {"group_id": "g", "member_id": "a", "topics": [{"name": "t", "partitions": partitions}]}
    with txnstore.create(tmp_path) as first:
        first.create_topic("t", partitions=1)
        with (
            txnstore.open(tmp_path) as second,
            serving(first) as one,
            serving(second) as two,
            RawClient(one) as member,
            RawClient(two) as other,
        ):
            assert member.ask(Api.CONSUMER_GROUP_HEARTBEAT, joining).member_epoch == 1
            (topic,) = other.ask(Api.OFFSET_COMMIT, {**commit, "generation_id_or_member_epoch": 2}, 9).topics
            assert topic.partitions[0].error_code is ErrorCode.stale_member_epoch


def test_a_topic_is_created_that_has_been_deleted_elsewhere(tmp_path: Path) -> None:
    """The gateway still knows the deleted one."""
    asked = {"name": "t", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    with txnstore.create(tmp_path) as first:
        first.create_topic("t", partitions=1)
        with txnstore.open(tmp_path) as second, serving(second) as gateway, RawClient(gateway) as client:
            first.delete_topic("t")
            (created,) = client.ask(Api.CREATE_TOPICS, {"topics": [asked]}).topics
            assert (created.error_code, created.num_partitions) == (ErrorCode.none, 2)
            (created,) = client.ask(Api.CREATE_TOPICS, {"topics": [asked]}).topics
            assert created.error_code is ErrorCode.topic_already_exists
