"""What clients print for an error: a catalogue, for those who search for a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition
from kafka import admin as python_admin
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient

from tests.helpers.kafka_wire import SECONDS, ServedStore

_ADVICE = "Ask who administers the store; `txnstore acl explain` shows which rule decides."
_RULE = AclBinding(
    ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "alice", "*", AclOperation.READ, AclPermissionType.ALLOW
)
_CHANGE = ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
_SOON = "retention.ms must be a whole number from -1 to 9223372036854775807, not 'soon'"
_NOT_A_PRINCIPAL = "a principal is 'User:' and a name, such as 'User:billing', not 'alice'"

#: For confluent-kafka a user, a call, and what it prints.
CONFLUENT: list[tuple[str, Callable[[AdminClient], Any], str]] = [
    (
        "root",
        lambda admin: admin.create_topics([NewTopic("t", 1, 1)]),
        """KafkaError{code=TOPIC_ALREADY_EXISTS,val=36,str="Topic 't' already exists."}""",
    ),
    (
        "root",
        lambda admin: admin.create_topics([NewTopic("new", 1, 0)]),
        (
            'KafkaError{code=INVALID_REPLICATION_FACTOR,val=38,str="Replication factor must be larger than 0, or -1 to '
            'use the default value."}'
        ),
    ),
    (
        "alice",
        lambda admin: admin.create_topics([NewTopic("new", 1, 1)]),
        (
            "KafkaError{code=TOPIC_AUTHORIZATION_FAILED,val=29,str=\"User:alice has no right to CREATE on topic 'new', "
            f'nor to CREATE on the cluster. {_ADVICE}"}}'
        ),
    ),
    (
        "root",
        lambda admin: admin.delete_topics(["x"]),
        'KafkaError{code=UNKNOWN_TOPIC_OR_PART,val=3,str="Broker: Unknown topic or partition"}',
    ),
    (
        "root",
        lambda admin: admin.create_partitions([NewPartitions("t", 2)]),
        'KafkaError{code=INVALID_PARTITIONS,val=37,str="Topic already has 2 partition(s)."}',
    ),
    (
        "root",
        lambda admin: admin.incremental_alter_configs([ConfigResource("topic", "t", incremental_configs=[_CHANGE])]),
        f'KafkaError{{code=INVALID_CONFIG,val=40,str="{_SOON}"}}',
    ),
    (
        "root",
        lambda admin: admin.describe_configs([ConfigResource("topic", "x")]),
        """KafkaError{code=UNKNOWN_TOPIC_OR_PART,val=3,str="there is no topic 'x'"}""",
    ),
    (
        "root",
        lambda admin: admin.delete_records([TopicPartition("c", 0, 0)]),
        'KafkaError{code=POLICY_VIOLATION,val=44,str="Broker: Policy violation"}',
    ),
    (
        "root",
        lambda admin: admin.delete_consumer_groups(["none"]),
        'KafkaError{code=GROUP_ID_NOT_FOUND,val=69,str="Broker: The group id does not exist"}',
    ),
    (
        "root",
        lambda admin: admin.create_acls([_RULE]),
        f'KafkaError{{code=INVALID_REQUEST,val=42,str="{_NOT_A_PRINCIPAL}"}}',
    ),
    (
        "alice",
        lambda admin: admin.create_acls([_RULE]),
        (
            'KafkaError{code=CLUSTER_AUTHORIZATION_FAILED,val=31,str="User:alice has no right to ALTER on the cluster. '
            f'{_ADVICE}"}}'
        ),
    ),
]

#: For kafka-python a user, a call, and the class and a part of what it prints.
PYTHON: list[tuple[str, Callable[[KafkaAdminClient], Any], type[Exception], str]] = [
    (
        "root",
        lambda admin: admin.create_topics([python_admin.NewTopic("t", 1, 1)]),
        kafka_errors.TopicAlreadyExistsError,
        "Topic 't' already exists.",
    ),
    ("root", lambda admin: admin.delete_topics(["x"]), kafka_errors.UnknownTopicOrPartitionError, "no topic 'x'"),
    (
        "alice",
        lambda admin: admin.create_partitions({"t": 5}),
        kafka_errors.TopicAuthorizationFailedError,
        f"User:alice has no right to ALTER on topic 't'. {_ADVICE}",
    ),
    (
        "root",
        lambda admin: admin.delete_records({PythonPartition("c", 0): 0}),
        kafka_errors.PolicyViolationError,
        "Error deleting records from topic c partition 0",
    ),
    (
        "root",
        lambda admin: admin.describe_transactions(["id"]),
        kafka_errors.TransactionalIdNotFoundError,
        "failed for transactional id 'id'",
    ),
    (
        "alice",
        lambda admin: admin.describe_transactions(["id"]),
        kafka_errors.TransactionalIdAuthorizationFailedError,
        "User:alice has no right to DESCRIBE on transactional id 'id'.",
    ),
    (
        "alice",
        lambda admin: admin.describe_groups(["g"]),
        kafka_errors.GroupAuthorizationFailedError,
        "User:alice has no right to DESCRIBE on group 'g'.",
    ),
    (
        "alice",
        lambda admin: admin.list_config_resources(),
        kafka_errors.ClusterAuthorizationFailedError,
        "error_code=31",
    ),
]


@pytest.fixture
def compacted(secured: ServedStore) -> ServedStore:
    """The gateway that checks rights, with a compacted topic ``c``, too."""
    secured.store.create_topic("c", config={"cleanup.policy": "compact"})
    return secured


def test_messages_of_librdkafka(compacted: ServedStore) -> None:
    admins = {user: AdminClient(compacted.librdkafka(user)) for user in ("root", "alice")}
    printed = []
    for user, call, _ in CONFLUENT:
        (future,) = call(admins[user]).values()
        error = future.exception(SECONDS)
        assert isinstance(error, KafkaException)
        printed.append(str(error))
    assert printed == [expected for *_, expected in CONFLUENT]


def test_messages_of_kafka_python(compacted: ServedStore) -> None:
    admins = {user: KafkaAdminClient(**compacted.kafka_python(user)) for user in ("root", "alice")}
    try:
        for user, call, error, part in PYTHON:
            with pytest.raises(error) as raised:
                call(admins[user])
            assert part in str(raised.value).replace("\\'", "'")
    finally:
        for admin in admins.values():
            admin.close()


def test_what_kafka_python_returns_instead_of_raising(compacted: ServedStore) -> None:
    with KafkaAdminClient(**compacted.kafka_python("root")) as admin:
        altered = admin.alter_configs([python_admin.ConfigResource("TOPIC", "t", configs={"retention.ms": "soon"})])
        assert altered == {"topic": {"t": f"[Error 40] InvalidConfigurationError: {_SOON}"}}
        assert admin.describe_configs([python_admin.ConfigResource("TOPIC", "x")]) == {"topic": {"x": {}}}
        assert (
            admin.describe_groups(["none"])["none"]["error"] == "[Error 69] GroupIdNotFoundError: Group none not found."
        )
        assert admin.delete_groups(["none"]) == {"none": "GroupIdNotFoundError"}
