"""Policies for the storage: what they print, and what a process can do with one (PolicyCases)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of
from tests.helpers.policies import ADMIN, BILLING, OPERATOR, REPORTS, RULES, PolicedStore, PolicyCases, Teams, allow
from txnstore.admin.policies import Provider, StoragePolicy, storage_policy
from txnstore.core.authorization.model import CLUSTER, Acl
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Map
from txnstore.errors import InvalidConfigError, StorageRefusedError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create, create_on, open_on

ROOT = "s3://bucket/events"
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "permissions.md"
ID = "00000000-0000-0000-0000-000000000000"


class _Bucket(MemoryStore):
    """A bucket in memory."""

    @property
    def url(self) -> str:
        return ROOT


class TestPolicies(PolicyCases):
    """On a storage in memory that enforces the policies of AWS."""

    @pytest.fixture
    def teams(self, chains: int) -> Iterator[Teams]:
        objects = _Bucket()
        with ExitStack() as stack:
            admin = stack.enter_context(create_on(objects, chains, principal=ADMIN))

            def policed(policy: StoragePolicy) -> PolicedStore:
                return PolicedStore(objects, policy.document, "bucket", "events")

            def open_store(policy: StoragePolicy, **options: Any) -> Store:
                return stack.enter_context(open_on(policed(policy), **options))

            yield Teams(admin, admin.acls.policy, policed, open_store)

    def test_without_the_permission_to_list_no_process_finds_the_end_of_a_chain(self, teams: Teams) -> None:
        """S3 answers 403 then, whether the object exists or not."""
        policy = teams.policy(REPORTS)
        statements = [item for item in policy.document["Statement"] if item["Action"] != ["s3:ListBucket"]]
        assert len(statements) == len(policy.document["Statement"]) - 1
        objects = PolicedStore(connection_of(teams.admin).objects, {"Statement": statements}, "bucket", "events")
        with pytest.raises(StorageRefusedError, match="ListBucket"):
            open_on(objects, read_only=True)

    def test_a_refused_commit_is_one_request(self, teams: Teams) -> None:
        """A storage that denies access is not asked again, and the producer continues."""
        objects = CountingStore(teams.objects(BILLING), log=True)
        with open_on(objects, principal=ADMIN) as store, store.producer(transactional_id="t") as producer:
            objects.reset()
            producer.begin_transaction()
            producer.send("secret", b"x")
            with pytest.raises(StorageRefusedError, match="topics/secret"):
                producer.commit_transaction()
            # With several chains, the partition is added to the transaction in the background at the same time.
            assert [kind for kind, key in objects.log if key.startswith("topics/")] == ["put"]
            producer.abort_transaction()


def _printed(
    *acls: Acl,
    principal: str = BILLING,
    topics: Mapping[str, int] | None = None,
    root: str = ROOT,
    provider: Provider = "aws",
    **settings: Any,
) -> StoragePolicy:
    authorization = Authorization(acls=Map(dict.fromkeys(acls)), **{"mode": "declared", **settings})
    return storage_policy(authorization, principal, ID, topics or {}, root, provider)


def _granted(policy: StoragePolicy, action: str, effect: str = "Allow") -> list[str]:
    """The resources of an action, without the part that all have."""
    return [
        resource.removeprefix("arn:aws:s3:::bucket").removeprefix("/events/")
        for statement in policy.document["Statement"]
        if action in statement["Action"] and statement["Effect"] == effect
        for resource in statement["Resource"]
    ]


def test_the_policy_of_a_producer() -> None:
    arn = "arn:aws:s3:::bucket"
    put, delete = ["s3:PutObject", "s3:AbortMultipartUpload"], ["s3:DeleteObject"]
    expected: list[dict[str, Any]] = [
        {"Sid": "List", "Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [arn]},
        {
            "Sid": "ReadChains",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [f"{arn}/events/store.json", f"{arn}/events/chains/*"],
        },
        {
            "Sid": "CreateEntries",
            "Effect": "Allow",
            "Action": ["s3:PutObject"],
            "Resource": [f"{arn}/events/chains/{ID}/*/entries/*"],
            "Condition": {"Null": {"s3:if-none-match": "false"}},
        },
        {
            "Sid": "CheckStorage",
            "Effect": "Allow",
            "Action": ["s3:GetObject", *put, *delete],
            "Resource": [f"{arn}/events/_probe/*"],
        },
        {
            "Sid": "ShareEntries",
            "Effect": "Allow",
            "Action": ["s3:GetObject", *put, *delete],
            "Resource": [f"{arn}/events/committers/{ID}/*"],
        },
        {
            "Sid": "ReadTopics",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [f"{arn}/events/topics/orders/*"],
        },
        {
            "Sid": "WriteTopics",
            "Effect": "Allow",
            "Action": put,
            "Resource": [f"{arn}/events/topics/billing.*/*"],
        },
    ]
    assert _printed(*RULES).document == {"Version": "2012-10-17", "Statement": expected}
    minio = _printed(*RULES, provider="minio")
    expected[2].pop("Condition")
    assert minio.document["Statement"] == expected
    assert [note for note in minio.notes if "can be overwritten" in note]
    assert [note for note in minio.notes if "trust with what the store says" in note]


def test_the_policies_of_the_page_are_those_that_are_printed() -> None:
    """The rules of the page are :data:`RULES`."""
    text = PAGE.read_text(encoding="utf-8")
    shown = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    printed = [_printed(*RULES, principal=principal).document for principal in (REPORTS, BILLING, OPERATOR)]
    assert shown[:-1] == json.loads(json.dumps(printed).replace(ID, "STORE-ID"))
    assert shown[-1]["Effect"] == "Deny", "of the bucket"


def test_a_reader_may_write_nothing() -> None:
    policy = _printed(*RULES, principal=REPORTS, topics={"billing.invoices": 0, "secret": 0})
    assert _granted(policy, "s3:PutObject") == _granted(policy, "s3:DeleteObject") == []
    assert _granted(policy, "s3:GetObject") == ["store.json", "chains/*", "topics/billing.invoices/*"]
    assert "read_only=True" in policy.notes[0]
    assert not [note for note in policy.notes if "inline.bytes" in note], "no topic has small commits"


def test_a_store_at_the_root_of_a_bucket() -> None:
    policy = _printed(*RULES, root="s3://bucket")
    assert policy.document["Statement"][1]["Resource"] == [
        "arn:aws:s3:::bucket/store.json", "arn:aws:s3:::bucket/chains/*"
    ]  # fmt: skip


def test_rules_that_deny_are_statements_that_deny() -> None:
    """For everyone, too; but only where another rule allows."""
    policy = _printed(
        allow("User:*", "READ", "TOPIC", "*"),
        allow(BILLING, "ALL", "TOPIC", "billing.", prefixed=True),
        Acl(BILLING, "DENY", "ALL", "TOPIC", "billing.secret"),
        Acl("User:*", "DENY", "READ", "TOPIC", "hr.", "PREFIXED"),
        Acl("User:*", "DENY", "WRITE", "TOPIC", "orders"),
        Acl("User:other", "DENY", "READ", "TOPIC", "orders"),
    )
    assert _granted(policy, "s3:GetObject") == [
        "store.json", "chains/*", "_probe/*", f"committers/{ID}/*", "topics/*",
    ]  # fmt: skip
    assert _granted(policy, "s3:GetObject", "Deny") == ["topics/billing.secret/*", "topics/hr.*/*"]
    assert _granted(policy, "s3:PutObject", "Deny") == ["topics/billing.secret/*"]
    assert [item["Sid"] for item in policy.document["Statement"]][-4:] == [
        "ReadTopics", "NoReadTopics", "WriteTopics", "NoWriteTopics"
    ]  # fmt: skip


def test_names_that_no_topic_can_have_are_no_patterns() -> None:
    """In a policy an asterisk would stand for other names."""
    names = [allow(BILLING, "READ", "TOPIC", name) for name in ("a*", "a?", "${x}", "../x", "..")]
    policy = _printed(
        *names, allow(BILLING, "READ", "TOPIC", "*b", prefixed=True), allow(BILLING, "READ", "TOPIC", "a")
    )
    assert _granted(policy, "s3:GetObject") == ["store.json", "chains/*", "topics/a/*"]


@pytest.mark.parametrize(
    "rule",
    [
        *(allow(BILLING, operation, "TOPIC", "t") for operation in ("WRITE", "CREATE", "DELETE", "ALTER")),
        *(allow(BILLING, operation, "GROUP", "g") for operation in ("READ", "DELETE")),
        allow(BILLING, "WRITE", "TRANSACTIONAL_ID", "i", prefixed=True),
        *(allow(BILLING, operation, "CLUSTER", CLUSTER) for operation in ("ALTER", "CREATE", "IDEMPOTENT_WRITE")),
    ],
    ids=str,
)
def test_each_right_to_a_command_is_the_permission_to_create_entries(rule: Acl) -> None:
    writes = ["topics/t/*"] if rule.operation == "WRITE" and rule.resource_type == "TOPIC" else []
    entries = f"chains/{ID}/*/entries/*"
    assert _granted(_printed(rule), "s3:PutObject") == [entries, "_probe/*", f"committers/{ID}/*", *writes]


def test_who_may_only_describe_reads_the_chains() -> None:
    policy = _printed(allow(BILLING, "DESCRIBE", "TOPIC", "t"))
    assert _granted(policy, "s3:GetObject") == ["store.json", "chains/*"]
    assert _granted(policy, "s3:PutObject") == []


def test_an_operator_needs_all_segments_whatever_its_rules_say_of_topics() -> None:
    policy = _printed(*RULES, Acl("User:*", "DENY", "READ", "TOPIC", "secret"), principal=OPERATOR)
    maintained = ["chains/*", "topics/*", "tables/*", "leases/*", "committers/*", "_probe/*"]
    assert _granted(policy, "s3:PutObject") == _granted(policy, "s3:DeleteObject") == maintained
    assert _granted(policy, "s3:GetObject") == ["store.json", *maintained]
    assert _granted(policy, "s3:GetObject", "Deny") == []
    assert "compactions" in policy.notes[0]


def test_a_super_user_has_everything() -> None:
    policy = _printed(principal=ADMIN, super_users=frozenset({ADMIN}))
    assert _granted(policy, "s3:PutObject") == _granted(policy, "s3:DeleteObject") == ["*"]
    assert policy.notes == ()


def test_topics_that_no_rule_is_for() -> None:
    rules = [allow(OPERATOR, "CLUSTER_ACTION", "CLUSTER", CLUSTER), allow(REPORTS, "READ", "TOPIC", "taken")]
    policy = _printed(*rules, topics={"free": 1, "taken": 1}, allow_if_no_acl=True)
    assert _granted(policy, "s3:PutObject") == [
        f"chains/{ID}/*/entries/*", "_probe/*", f"committers/{ID}/*", "topics/free/*",
    ]  # fmt: skip
    assert "needs a new policy" in policy.notes[-1]
    assert [note for note in policy.notes if "(taken)" in note]


def test_a_policy_can_be_printed_before_the_rules_are_checked() -> None:
    policy = _printed(*RULES, mode="off")
    assert policy.document == _printed(*RULES).document
    assert "No process checks the rules" in policy.notes[-1]


def test_many_topics_are_named_briefly() -> None:
    policy = _printed(*RULES, principal=REPORTS, topics={f"t{number}": 1 for number in range(7)})
    assert [note for note in policy.notes if "(t0, t1, t2, t3, t4 and 2 more)" in note]


def test_a_policy_that_aws_would_refuse_is_announced() -> None:
    rules = [allow(BILLING, "READ", "TOPIC", f"topic-{number:03}-{'x' * 60}") for number in range(60)]
    assert "6,144 characters" in _printed(*rules).notes[-1]
    assert "6,144" not in _printed(*rules, provider="minio").notes[-1]


@pytest.mark.parametrize(
    ("root", "principal", "message"),
    [
        ("file:///data/store", BILLING, "a policy is for a bucket, and the store is at file:///data/store"),
        ("s3://bucket/a*b", BILLING, "a policy cannot name s3://bucket/a.b"),
        (ROOT, "User:nobody", "User:nobody has no right to anything in this store"),
    ],
)
def test_what_has_no_policy(root: str, principal: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        _printed(*RULES, root=root, principal=principal)


def test_a_store_in_a_folder_has_no_policy(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(local_store_url, principal=ADMIN) as store:
        store.acls.create(RULES)
        with pytest.raises(InvalidConfigError, match="provider must be"):
            store.acls.policy(BILLING, "azure")  # type: ignore[arg-type]
    result = Cli(local_store_url, monkeypatch)("acl", "policy", BILLING)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("error: a policy is for a bucket")
