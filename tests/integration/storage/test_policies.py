"""``txnstore acl policy`` on a bucket, and a policy for all requests that a producer makes there."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest

import txnstore
from tests.harness.s3.wire import RequestLog
from tests.helpers.cli import captured
from tests.helpers.connections import connection_of
from tests.helpers.policies import ADMIN, BILLING, RULES
from txnstore.core.catalog.model import CatalogTopic, CreateTopic

pytestmark = pytest.mark.s3


def test_the_command_prints_the_policy_of_the_bucket(s3_bucket_url: str, storage_options: dict[str, Any]) -> None:
    url = f"{s3_bucket_url}/events"
    with txnstore.create(url, storage_options=storage_options, principal=ADMIN) as store:
        store.create_topic("secret")
        store.acls.create(RULES)
        policy = store.acls.policy(BILLING, "minio")
    arguments = _command(url, storage_options)
    text = captured(*arguments)
    assert (text.status, json.loads(text.out)) == (0, policy.document)
    assert text.err.splitlines() == [f"note: {note}" for note in policy.notes]
    (printed,) = captured(*arguments, "--json").lines
    assert printed == {
        "principal": BILLING, "provider": "minio", "policy": policy.document, "notes": [*policy.notes]
    }  # fmt: skip
    assert f"arn:aws:s3:::{s3_bucket_url.removeprefix('s3://')}/events/store.json" in text.out


def _command(url: str, storage_options: dict[str, Any]) -> list[str]:
    options = [
        f"--storage-option={name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in storage_options.items()
    ]
    return ["--store", url, *options, "acl", "policy", BILLING, "--provider", "minio"]


def test_a_topic_with_unreadable_settings_does_not_hide_the_policy(
    s3_bucket_url: str, storage_options: dict[str, Any]
) -> None:
    """What the policy grants depends on no settings; the command names the topic, and ends with status 1."""
    url = f"{s3_bucket_url}/events"
    with txnstore.create(url, storage_options=storage_options, principal=ADMIN) as store:
        store.create_topic("secret")
        store.acls.create(RULES)
        before = store.acls.policy(BILLING, "minio")
        odd = CatalogTopic("odd", "a" * 32, 1, config={"inline.bytes": "many"})
        connection_of(store).chain.submit(CreateTopic(odd))
        policy = store.acls.policy(BILLING, "minio")
    assert (policy.document, policy.unreadable) == (before.document, ("odd",))
    assert "The settings of odd cannot be read" in policy.notes[-1]
    text = captured(*_command(url, storage_options))
    assert (text.status, json.loads(text.out)) == (1, policy.document)
    assert "error: the settings of odd cannot be read" in text.err


@pytest.mark.usefixtures("own_objects")
def test_all_requests_of_a_producer_are_in_its_policy(
    s3_bucket_url: str, storage_options: dict[str, Any], logged_options: dict[str, Any], request_log: RequestLog
) -> None:
    """Each PUT of an entry has the header that the policy demands."""
    url = f"{s3_bucket_url}/events"
    with txnstore.create(url, storage_options=storage_options, principal=ADMIN) as store:
        for topic in ("orders", "billing.invoices"):
            store.create_topic(topic)
        store.acls.enable(ADMIN)
        store.acls.create(RULES)
        statements = store.acls.policy(BILLING).document["Statement"]
    with (
        txnstore.open(url, storage_options=logged_options, principal=BILLING) as store,
        store.producer(transactional_id="billing-1") as producer,
    ):
        for number in range(70):
            with producer.transaction() as txn:
                txn.send("billing.invoices", b"x")
                txn.send_offsets({txnstore.TopicPartition("orders", 0): number}, "billing")
    actions = {"GET": "s3:GetObject", "PUT": "s3:PutObject", "LIST": "s3:ListBucket", "DELETE": "s3:DeleteObject"}
    allowed = {
        (action, pattern, "Condition" in statement)
        for statement in statements
        for action in statement["Action"]
        for pattern in statement["Resource"]
    }
    kinds = set()
    for request in request_log.requests:
        kinds.add(request.kind)
        resource = f"arn:aws:s3:::{request.bucket}" + (f"/{request.key}" if request.key else "")
        assert any(
            actions[request.kind] == action
            and (fnmatchcase(resource, pattern) or request.kind == "DELETE")  # whose keys are in its body
            and (request.conditional or not conditional)
            for action, pattern, conditional in allowed
        ), request
    assert {"GET", "PUT", "DELETE"} <= kinds
