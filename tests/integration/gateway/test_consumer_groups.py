"""Groups of KIP-848: consumers of librdkafka, and raw requests."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_copier import GROUP
from tests.helpers.kafka_wire import ServedStore, users_of
from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition as StoredPartition
from txnstore.gateway.apis import Api
from txnstore.gateway.services import topic_uuid
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

#: Short intervals: members learn of a change soon, and a dead member is removed soon.
QUICK = {"group.consumer.heartbeat.interval.ms": "100", "group.consumer.session.timeout.ms": "3000"}


@pytest.fixture(params=[1, 3])
def gateway(request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    with create_on(MemoryStore(), request.param) as store, serving(store, QUICK) as running:
        store.create_topic("t", partitions=4)
        yield ServedStore(store, running)


@pytest.fixture
def opened(gateway: ServedStore) -> Iterator[ExitStack]:
    """Closes consumers, also those of a failed test, before the gateway ends.

    A member in the middle of a rebalance that is only collected waits for its coordinator without bound.
    """
    with ExitStack() as consumers:
        yield consumers


def consumer(gateway: ServedStore | RunningGateway, *topics: str, **settings: Any) -> Consumer:
    bootstrap = gateway.gateway.bootstrap if isinstance(gateway, ServedStore) else gateway.bootstrap
    member = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    member.subscribe([*(topics or ("t",))])
    return member


def owned(member: Consumer) -> list[tuple[str, int]]:
    return sorted((tp.topic, tp.partition) for tp in member.assignment())


def commit_behind(member: Consumer, message: Message) -> None:
    """Commit the position behind a record; again with the next epoch, if the group has just given the member one."""
    while True:
        try:
            member.commit(message=message, asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.STALE_MEMBER_EPOCH:
                raise


def until(happened: Callable[[], bool]) -> None:
    """Ask until something has happened; each question waits for a consumer."""
    while not happened():
        pass


def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    def polled() -> bool:
        for each in consumers:
            message = each.poll(0.02)
            assert message is None or message.error() is None
        return condition()

    until(polled)


def test_members_join_and_leave_and_go_on_where_others_were(gateway: ServedStore, opened: ExitStack) -> None:
    everything = [("t", number) for number in range(4)]
    with gateway.store.producer() as producer:
        for number in range(40):
            producer.send("t", value=b"%d" % number, partition=number % 4)
    values: list[bytes | None] = []

    def read(*consumers: Consumer) -> bool:
        for each in consumers:
            for message in each.consume(3, timeout=0.05):
                assert message.error() is None
                values.append(message.value())
                commit_behind(each, message)
        return True

    first = opened.enter_context(consumer(gateway))
    until(lambda: read(first) and len(values) >= 10)
    second = opened.enter_context(consumer(gateway))
    until(lambda: read(first, second) and len(owned(first)) == len(owned(second)) == 2)
    assert sorted(owned(first) + owned(second)) == everything
    third = opened.enter_context(consumer(gateway))
    until(lambda: read(first, second, third) and sorted(map(len, map(owned, (first, second, third)))) == [1, 1, 2])
    first.close()
    until(lambda: read(second, third) and sorted(owned(second) + owned(third)) == everything)
    with gateway.store.producer() as producer:
        for number in range(40, 60):
            producer.send("t", value=b"%d" % number, partition=number % 4)
    until(lambda: read(second, third) and len(values) >= 60)
    # Each record was committed before another member read on.
    assert sorted(int(value or b"") for value in values) == list(range(60))


def test_a_killed_member_is_replaced_and_each_record_is_copied_once(tmp_path: Path) -> None:
    rng, records = random.Random(1), 400
    with txnstore.create(tmp_path / "store") as store, serving(store, QUICK) as gateway:
        for name in ("in", "out"):
            store.create_topic(name, partitions=4)
        # librdkafka 2.16 asks for the first offset of a partition without a position, and if the partition is revoked
        # meanwhile, it fetches it anyhow, and returns its records when it gets the partition back: twice.
        store.reset_offsets(GROUP, {StoredPartition("in", number): 0 for number in range(4)})
        with store.producer() as producer:
            for number in range(records):
                producer.send("in", value=b"%d" % number, partition=number % 4)

        def start(number: int) -> subprocess.Popen[bytes]:
            arguments = [sys.executable, "-m", "tests.helpers.kafka_copier", gateway.bootstrap, f"copier-{number}"]
            return subprocess.Popen(arguments, cwd=Path(__file__).parents[3])

        copied: list[bytes | None] = []
        observer = Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "observer", "log_level": 0})
        observer.assign([TopicPartition("out", number, 0) for number in range(4)])

        def has_copied(count: int) -> bool:
            messages = observer.consume(50, timeout=0.2)
            copied.extend(message.value() for message in messages if message.error() is None)
            return len(copied) >= count

        copiers = [start(number) for number in range(2)]
        try:
            for kill in range(3):
                until(partial(has_copied, (kill + 1) * records // 5))
                victim = rng.randrange(len(copiers))
                copiers[victim].kill()
                copiers[victim].wait()
                copiers[victim] = start(victim)  # It ends the open transaction of the one before.
            until(partial(has_copied, records))
        finally:
            for process in copiers:
                process.kill()
                process.wait()
            observer.close()
        values = store.scan("out").to_table()["value"].to_pylist()
        assert sorted(map(int, values)) == list(range(records))
        assert store._connection.view().groups[GROUP].kind == "consumer"


def test_a_static_member_comes_back_without_a_rebalance(gateway: ServedStore, opened: ExitStack) -> None:
    first, second = (opened.enter_context(consumer(gateway, **{"group.instance.id": name})) for name in ("i1", "i2"))
    poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
    before, generation = owned(first), group(gateway).generation
    first.close()
    assert len(group(gateway).members) == 2
    again = opened.enter_context(consumer(gateway, **{"group.instance.id": "i1"}))
    poll_until(lambda: owned(again) == before, again, second)
    assert group(gateway).generation == generation
    again.close()
    poll_until(lambda: len(owned(second)) == 4, second)  # Its session has ended.


def test_a_regular_expression_takes_new_topics(gateway: ServedStore, opened: ExitStack) -> None:
    member = opened.enter_context(consumer(gateway, "^u.*"))
    poll_until(lambda: bool(gateway.store._connection.view(refresh=False).groups), member)
    gateway.store.create_topic("u1")
    poll_until(lambda: owned(member) == [("u1", 0)], member)
    gateway.store.create_topic("u2")
    poll_until(lambda: owned(member) == [("u1", 0), ("u2", 0)], member)


def test_range_and_uniform(gateway: ServedStore, opened: ExitStack) -> None:
    first, second = (opened.enter_context(consumer(gateway, **{"group.remote.assignor": "range"})) for _ in range(2))
    poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
    assert sorted([owned(first), owned(second)]) == [[("t", 0), ("t", 1)], [("t", 2), ("t", 3)]]
    admin = AdminClient(gateway.librdkafka())
    described = admin.describe_consumer_groups(["g"])["g"].result(30)
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert described.partition_assignor == "range"
    assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [2, 2]
    assert {(member.client_id, member.host) for member in described.members} == {("rdkafka", "127.0.0.1")}
    (listed,) = admin.list_consumer_groups().result(30).valid
    assert (listed.group_id, listed.type) == ("g", ConsumerGroupType.CONSUMER)


def test_a_gateway_ends_and_the_members_stay(tmp_path: Path) -> None:
    with txnstore.create(tmp_path) as store, txnstore.open(tmp_path) as other:
        store.create_topic("t", partitions=4)
        gateways = [RunningGateway(each, QUICK) for each in (store, other)]
        peers = [gateway.address for gateway in gateways]
        for gateway in gateways:
            gateway._peers = peers
            gateway.start()
        running = [*gateways]
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
        consumers = [consumer(gateways[0], **{"bootstrap.servers": bootstrap}) for _ in range(2)]
        try:
            poll_until(lambda: [len(owned(each)) for each in consumers] == [2, 2], *consumers)
            before, members = [*map(owned, consumers)], set(dict(group(other).members))
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            coordinator = admin.describe_consumer_groups(["g"])["g"].result(30).coordinator
            leader = next(each for each in gateways if each.address[1] == coordinator.port)
            leader.stop()
            running.remove(leader)
            with other.producer() as producer:
                for number in range(4):
                    producer.send("t", value=b"v", partition=number)
            read: set[tuple[str | None, int | None]] = set()

            def commits_all() -> bool:
                for each in consumers:
                    for message in each.consume(4, timeout=0.05):
                        assert message.error() is None
                        read.add((message.topic(), message.partition()))
                        commit_behind(each, message)
                return len(read) == 4

            until(commits_all)
            assert [*map(owned, consumers)] == before
            assert set(dict(group(other).members)) == members
        finally:
            for each in consumers:
                each.close()
            for gateway in running:
                gateway.stop()


# Raw requests ---------------------------------------------------------------------------------------------------------


def group(gateway: ServedStore | Store) -> Any:
    store = gateway.store if isinstance(gateway, ServedStore) else gateway
    return store._connection.view().groups["g"]


def heartbeat(gateway: ServedStore, version: int = 1, user: str | None = None, **fields: Any) -> Any:
    body = {"group_id": "g", "member_id": "a", "rebalance_timeout": -1, "topic_partitions": None, **fields}
    return gateway.ask(Api.CONSUMER_GROUP_HEARTBEAT, body, version, user)


FULL: dict[str, Any] = {"rebalance_timeout": 60_000, "subscribed_topic_names": ("t",), "topic_partitions": ()}


@pytest.mark.parametrize("version", [0, 1])
def test_heartbeats_of_each_version(gateway: ServedStore, version: int) -> None:
    joined = heartbeat(gateway, version, **FULL)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (ErrorCode.none, "a", 1)
    (topic,) = joined.assignment.topic_partitions
    assert topic.topic_id == topic_uuid(gateway.store._connection.view().topics["t"])
    assert topic.partitions == (0, 1, 2, 3)
    assert heartbeat(gateway, version, member_epoch=1).assignment is None
    left = heartbeat(gateway, version, member_epoch=-1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)
    assert heartbeat(gateway, version, member_epoch=1).error_code is ErrorCode.unknown_member_id


def test_names_that_no_topic_can_have_are_no_topics(gateway: ServedStore) -> None:
    """Metadata refuses them; a broker takes a heartbeat with them."""
    joined = heartbeat(gateway, **{**FULL, "subscribed_topic_names": ("t", "topic abc")})
    assert joined.error_code is ErrorCode.none
    (topic,) = joined.assignment.topic_partitions
    assert topic.partitions == (0, 1, 2, 3)


@pytest.mark.parametrize("version", [0, 1])
def test_descriptions_of_each_version(gateway: ServedStore, version: int) -> None:
    heartbeat(gateway, instance_id="i", rack_id="r", subscribed_topic_regex="x.*", **FULL)
    described = gateway.ask(
        Api.CONSUMER_GROUP_DESCRIBE, {"group_ids": ("g", "none"), "include_authorized_operations": True}, version
    ).groups
    assert described[1].error_code is ErrorCode.group_id_not_found
    found = described[0]
    assert (found.error_code, found.group_state, found.group_epoch) == (ErrorCode.none, "Stable", 1)
    assert (found.assignment_epoch, found.assignor_name) == (1, "uniform")
    assert found.authorized_operations > 0
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 1)
    assert (member.client_id, member.client_host) == ("test", "127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("t",), "x.*")
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", (0, 1, 2, 3))
    assert member.target_assignment == member.assignment
    (classic,) = gateway.ask(Api.DESCRIBE_GROUPS, {"groups": ("g",)}).groups
    assert classic.error_code is ErrorCode.group_id_not_found


def commit(gateway: ServedStore, epoch: int, member_id: str = "a", version: int = 9) -> ErrorCode:
    partitions = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
    names = {"generation_id_or_member_epoch": epoch, "generation_id": epoch}
    body = {"group_id": "g", "member_id": member_id, "topics": [{"name": "t", "partitions": partitions}], **names}
    (topic,) = gateway.ask(Api.OFFSET_COMMIT, body, version).topics
    code: ErrorCode = topic.partitions[0].error_code
    return code


def test_commits_name_the_epoch_of_the_member(gateway: ServedStore) -> None:
    heartbeat(gateway, **FULL)
    assert commit(gateway, 1) is ErrorCode.none
    assert commit(gateway, 2) is ErrorCode.stale_member_epoch
    assert commit(gateway, 2, version=8) is ErrorCode.unsupported_version
    assert commit(gateway, 1, "b") is ErrorCode.unknown_member_id
    assert commit(gateway, -1, "") is ErrorCode.unknown_member_id
    producer = gateway.ask(
        Api.INIT_PRODUCER_ID, {"transactional_id": "tx", "transaction_timeout": 60_000, "producer_id": -1}
    )
    partitions = [{"partition_index": 0, "committed_offset": 8, "committed_metadata": ""}]
    for epoch, member_id, code in (
        (2, "a", ErrorCode.illegal_generation),
        (1, "b", ErrorCode.unknown_member_id),
        (1, "a", ErrorCode.none),
    ):
        body = {
            "transactional_id": "tx",
            "group_id": "g",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "generation_id": epoch,
            "member_id": member_id,
            "topics": [{"name": "t", "partitions": partitions}],
        }
        (topic,) = gateway.ask(Api.TXN_OFFSET_COMMIT, body, 5).topics
        assert topic.partitions[0].error_code is code


def test_offsets_are_fetched_with_the_epoch_of_the_member(gateway: ServedStore) -> None:
    heartbeat(gateway, **FULL)
    commit(gateway, 1)
    for member_id, epoch, code in (
        (None, -1, ErrorCode.none),
        ("a", 1, ErrorCode.none),
        ("a", 2, ErrorCode.stale_member_epoch),
        ("b", 1, ErrorCode.unknown_member_id),
    ):
        topics = [{"name": "t", "partition_indexes": (0,)}]
        asked = {"group_id": "g", "member_id": member_id, "member_epoch": epoch, "topics": topics}
        (answer,) = gateway.ask(Api.OFFSET_FETCH, {"groups": [asked], "require_stable": False}, 9).groups
        assert answer.error_code is code
        if code is ErrorCode.none:
            assert answer.topics[0].partitions[0].committed_offset == 7


def test_the_feature_of_the_groups_is_listed(gateway: ServedStore) -> None:
    response = gateway.ask(Api.API_VERSIONS, {"client_software_name": "n", "client_software_version": "1"})
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert levels == {"transaction.version": 2, "group.version": 1}


def test_rights_of_members(tmp_path: Path) -> None:
    with create_on(MemoryStore(), principal="User:gateway") as store:
        store.create_topic("t", partitions=2)
        store.acls.enable(["User:gateway", "User:root"])
        with serving(store, security=users_of(tmp_path, "root", "alice")) as running:
            gateway = ServedStore(store, running)
            answer = heartbeat(gateway, user="alice", **FULL)
            assert answer.error_code is ErrorCode.group_authorization_failed
            store.acls.create(Acl("User:alice", "ALLOW", "READ", "GROUP", "g"))
            answer = heartbeat(gateway, user="alice", **FULL)
            assert answer.error_code is ErrorCode.topic_authorization_failed
            assert heartbeat(gateway, user="root", **FULL).error_code is ErrorCode.none
            body = {"group_ids": ("g",)}
            (described,) = gateway.ask(Api.CONSUMER_GROUP_DESCRIBE, body, user="alice").groups
            assert (described.error_code, described.members) == (ErrorCode.topic_authorization_failed, ())
