"""DescribeAcls, CreateAcls, DeleteAcls with clients of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import errors as kafka_errors
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as PythonResourceType
from kio.schema.errors import ErrorCode

from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import VERSIONS, Api

#: Numbers of Kafka: types of resources, of patterns, operations, permissions.
ANY, TOPIC, GROUP, CLUSTER, TXN_ID = 1, 2, 3, 4, 5
MATCH, LITERAL, PREFIXED = 2, 3, 4
ALL, READ, WRITE, ALTER = 2, 3, 4, 7
DENY, ALLOW = 2, 3

RULES = (
    Acl("User:alice", "ALLOW", "READ", "TOPIC", "orders"),
    Acl("User:alice", "ALLOW", "READ", "TOPIC", "ord", "PREFIXED"),
    Acl("User:alice", "DENY", "WRITE", "TOPIC", "*"),
    Acl("User:bob", "ALLOW", "READ", "GROUP", "orders"),
)


def _filter(**changes: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **changes,
    }


def _creation(**changes: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": "t",
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **changes,
    }


@pytest.fixture
def root(secured: ServedStore) -> AdminClient:
    """The admin client of a super user."""
    return AdminClient(secured.librdkafka("root"))


@pytest.fixture
def python_root(secured: ServedStore) -> Iterator[KafkaAdminClient]:
    """The same, of kafka-python."""
    with KafkaAdminClient(**secured.kafka_python("root")) as client:
        yield client


# Clients --------------------------------------------------------------------------------------------------------------


def test_librdkafka_manages_rules(root: AdminClient, secured: ServedStore) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    assert failure_of(root.create_acls([binding])[binding]) is ErrorCode.none
    assert secured.store.acls.list() == [Acl("User:alice", "ALLOW", "READ", "TOPIC", "orders", "PREFIXED")]
    filter_of: Any = AclBindingFilter  # Its types know no None.
    everything = filter_of(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert root.describe_acls(everything).result(10) == [binding]
    assert root.delete_acls([everything])[everything].result(10) == [binding]
    assert secured.store.acls.list() == []


def test_kafka_python_manages_rules(python_root: KafkaAdminClient, secured: ServedStore) -> None:
    pattern = ResourcePattern(PythonResourceType.GROUP, "g", ACLResourcePatternType.LITERAL)
    rule = ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.DENY, pattern)
    result = python_root.create_acls([rule])
    assert result["succeeded"] == [rule], result
    assert secured.store.acls.list() == [Acl("User:alice", "DENY", "READ", "GROUP", "g")]
    wanted = ACLFilter(
        None, None, ACLOperation.ANY, ACLPermissionType.ANY,
        ResourcePatternFilter(PythonResourceType.GROUP, "g", ACLResourcePatternType.MATCH),
    )  # fmt: skip
    assert [str(each) for each in python_root.describe_acls(wanted)[0]] == [str(rule)]
    python_root.delete_acls([wanted])
    assert secured.store.acls.list() == []


def test_a_store_without_rights_has_no_rules(
    gateway: ServedStore, confluent: AdminClient, kafka_python: KafkaAdminClient
) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    assert failure_of(confluent.create_acls([binding])[binding]) is ErrorCode.security_disabled
    assert gateway.ask(Api.DESCRIBE_ACLS, _filter()).error_code is ErrorCode.security_disabled
    wanted = ACLFilter(
        None, None, ACLOperation.ANY, ACLPermissionType.ANY,
        ResourcePatternFilter(PythonResourceType.ANY, None, ACLResourcePatternType.ANY),
    )  # fmt: skip
    with pytest.raises(kafka_errors.SecurityDisabledError, match="the store checks no rights"):
        kafka_python.describe_acls(wanted)
    (result,) = gateway.ask(Api.CREATE_ACLS, {"creations": [_creation()]}).results
    assert result.error_code is ErrorCode.security_disabled
    (deleted,) = gateway.ask(Api.DELETE_ACLS, {"filters": [_filter()]}).filter_results
    assert deleted.error_code is ErrorCode.security_disabled


# Filters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({}, {0, 1, 2, 3}),
        ({"resource_type_filter": TOPIC}, {0, 1, 2}),
        ({"resource_name_filter": "orders"}, {0, 3}),
        ({"resource_name_filter": "orders", "pattern_type_filter": LITERAL}, {0, 3}),
        ({"resource_name_filter": "orders", "pattern_type_filter": PREFIXED}, set()),
        ({"resource_name_filter": "ord", "pattern_type_filter": PREFIXED}, {1}),
        ({"resource_name_filter": "orders", "pattern_type_filter": MATCH}, {0, 1, 2, 3}),
        ({"resource_name_filter": "or", "pattern_type_filter": MATCH}, {2}),
        ({"resource_name_filter": "*"}, {2}),
        ({"pattern_type_filter": PREFIXED}, {1}),
        ({"principal_filter": "User:bob"}, {3}),
        ({"principal_filter": "User:*"}, set()),
        ({"host_filter": "*"}, {0, 1, 2, 3}),
        ({"host_filter": "10.0.0.1"}, set()),
        ({"operation": READ}, {0, 1, 3}),
        ({"operation": ALL}, set()),
        ({"permission_type": DENY}, {2}),
        ({"resource_type_filter": 6}, set()),
        ({"operation": 13}, set()),
    ],
)
def test_filters_are_those_of_kafka(secured: ServedStore, wanted: dict[str, Any], numbers: set[int]) -> None:
    secured.store.acls.create(RULES)
    described = secured.ask(Api.DESCRIBE_ACLS, _filter(**wanted), user="root")
    found = {
        (resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal, acl.operation)
        for resource in described.resources
        for acl in resource.acls
    }
    codes = {"TOPIC": TOPIC, "GROUP": GROUP, "LITERAL": LITERAL, "PREFIXED": PREFIXED, "READ": READ, "WRITE": WRITE}
    assert found == {
        (codes[acl.resource_type], acl.resource_name, codes[acl.pattern_type], acl.principal, codes[acl.operation])
        for acl in (RULES[number] for number in numbers)
    }
    (deleted,) = secured.ask(Api.DELETE_ACLS, {"filters": [_filter(**wanted)]}, user="root").filter_results
    assert (deleted.error_code, len(deleted.matching_acls)) == (ErrorCode.none, len(numbers))
    assert set(secured.store.acls.list()) == {acl for number, acl in enumerate(RULES) if number not in numbers}


@pytest.mark.parametrize(
    "wanted",
    [{"resource_type_filter": 0}, {"pattern_type_filter": 0}, {"operation": 0}, {"permission_type": 9}],
)
def test_filters_of_no_meaning_are_refused(secured: ServedStore, wanted: dict[str, int]) -> None:
    secured.store.acls.create(RULES)
    described = secured.ask(Api.DESCRIBE_ACLS, _filter(**wanted), user="root")
    assert (described.error_code, described.resources) == (ErrorCode.invalid_request, ())
    filters = [_filter(**wanted), _filter(principal_filter="User:bob")]
    results = secured.ask(Api.DELETE_ACLS, {"filters": filters}, user="root").filter_results
    assert [(each.error_code, len(each.matching_acls)) for each in results] == [
        (ErrorCode.invalid_request, 0),
        (ErrorCode.none, 1),
    ]
    assert secured.store.acls.list("User:bob") == []


@pytest.mark.parametrize("version", range(VERSIONS[Api.CREATE_ACLS].first, VERSIONS[Api.CREATE_ACLS].last + 1))
def test_every_version_manages_rules(secured: ServedStore, version: int) -> None:
    (created,) = secured.ask(Api.CREATE_ACLS, {"creations": [_creation()]}, version, user="root").results
    assert created.error_code is ErrorCode.none
    (resource,) = secured.ask(Api.DESCRIBE_ACLS, _filter(), version, user="root").resources
    assert (resource.resource_name, resource.acls[0].host) == ("t", "*")
    (deleted,) = secured.ask(Api.DELETE_ACLS, {"filters": [_filter()]}, version, user="root").filter_results
    assert [acl.principal for acl in deleted.matching_acls] == ["User:alice"]


# Creating -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "10.0.0.1"},
        {"principal": "alice"},
        {"principal": "Group:all"},
        {"resource_type": ANY},
        {"resource_type": 6},
        {"resource_type": CLUSTER},
        {"resource_name": ""},
        {"resource_name": "a!"},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"operation": 13},
        {"operation": 12},
        {"permission_type": ANY},
    ],
    ids=str,
)
def test_a_rule_without_effect_is_refused_alone(secured: ServedStore, changes: dict[str, Any]) -> None:
    creations = [_creation(**changes), _creation()]
    results = secured.ask(Api.CREATE_ACLS, {"creations": creations}, user="root").results
    assert [each.error_code for each in results] == [ErrorCode.invalid_request, ErrorCode.none]
    assert secured.store.acls.list() == [Acl("User:alice", "ALLOW", "READ", "TOPIC", "t")]


def test_no_administrator_loses_the_right_to_change_the_rules(secured: ServedStore) -> None:
    secured.store.acls.create(Acl("User:alice", "ALLOW", "ALTER", "CLUSTER", "kafka-cluster"))
    own = {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "operation": ALTER}
    creations = [_creation(**own, permission_type=DENY), _creation()]
    results = secured.ask(Api.CREATE_ACLS, {"creations": creations}, user="alice").results
    assert {each.error_code for each in results} == {ErrorCode.invalid_request}
    assert "could not change the rules again" in results[0].error_message
    (deleted,) = secured.ask(Api.DELETE_ACLS, {"filters": [_filter()]}, user="alice").filter_results
    assert (deleted.error_code, deleted.matching_acls) == (ErrorCode.invalid_request, ())
    assert len(secured.store.acls.list()) == 1


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_rules(secured: ServedStore) -> None:
    denied = ErrorCode.cluster_authorization_failed
    described = secured.ask(Api.DESCRIBE_ACLS, _filter(), user="alice")
    created = secured.ask(Api.CREATE_ACLS, {"creations": [_creation(), _creation()]}, user="alice")
    deleted = secured.ask(Api.DELETE_ACLS, {"filters": [_filter()]}, user="alice")
    assert described.error_code is denied
    assert [each.error_code for each in created.results] == [denied, denied]
    assert [each.error_code for each in deleted.filter_results] == [denied]
    secured.store.acls.create(Acl("User:alice", "ALLOW", "DESCRIBE", "CLUSTER", "kafka-cluster"))
    assert secured.ask(Api.DESCRIBE_ACLS, _filter(), user="alice").error_code is ErrorCode.none
    (created,) = secured.ask(Api.CREATE_ACLS, {"creations": [_creation()]}, user="alice").results
    assert created.error_code is denied
