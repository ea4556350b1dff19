"""The printed policies on MinIO, which enforces them: teams with credentials of their own. ``python -m tests.harness
minio`` runs this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest

import txnstore
from tests.harness.s3.servers import S3Server
from tests.helpers.policies import ADMIN, BILLING, REPORTS, PolicyCases, Teams, is_refused
from txnstore.admin.policies import StoragePolicy
from txnstore.storage.base import ObjectStore
from txnstore.storage.registry import open_store
from txnstore.store import Store

pytestmark = pytest.mark.s3


def credentials(server: S3Server, document: Mapping[str, Any]) -> dict[str, Any]:
    """The storage options of a temporary user, whom a policy limits (STS AssumeRole with a session policy)."""
    from botocore.session import get_session

    options = server.storage_options
    sts = get_session().create_client(
        "sts",
        endpoint_url=server.url,
        region_name=options["client_kwargs"]["region_name"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
    answer = sts.assume_role(
        RoleArn="arn:aws:iam::123456789012:role/team", RoleSessionName="team", Policy=json.dumps(document)
    )
    made = answer["Credentials"]
    keys = {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"], "token": made["SessionToken"]}
    return {**options, **keys}


class TestPoliciesOnMinio(PolicyCases):
    """MinIO has no condition for creates: who may create entries can overwrite them."""

    only_creates = False

    @pytest.fixture
    def teams(
        self, s3_server: S3Server, s3_bucket_url: str, storage_options: dict[str, Any], transport: str
    ) -> Iterator[Teams]:
        url = f"{s3_bucket_url}/events"
        with ExitStack() as stack:
            admin = stack.enter_context(txnstore.create(url, storage_options=storage_options, principal=ADMIN))

            def options(policy: StoragePolicy) -> dict[str, Any]:
                return {**credentials(s3_server, policy.document), "transport": transport}

            def objects(policy: StoragePolicy) -> ObjectStore:
                store = open_store(url, options(policy))
                stack.callback(store.close)
                return store

            def open_(policy: StoragePolicy, **others: Any) -> Store:
                return stack.enter_context(txnstore.open(url, storage_options=options(policy), **others))

            yield Teams(admin, partial(admin.acls.policy, provider="minio"), objects, open_)

    def test_minio_refuses_the_condition_of_aws(self, teams: Teams, s3_server: S3Server) -> None:
        """When it knows it, MinIO's policies can have it, too."""
        with pytest.raises(Exception, match="invalid condition key 's3:if-none-match'"):
            credentials(s3_server, teams.admin.acls.policy(BILLING).document)

    def test_the_permission_to_list_has_no_condition(
        self, teams: Teams, s3_server: S3Server, s3_bucket_url: str
    ) -> None:
        """The clock of the storage is a HEAD of the bucket, which has no prefix."""
        document = json.loads(json.dumps(teams.policy(REPORTS).document))
        with closing(open_store(f"{s3_bucket_url}/events", credentials(s3_server, document))) as objects:
            assert objects.now_ms() > 0
        (statement,) = [item for item in document["Statement"] if item["Action"] == ["s3:ListBucket"]]
        statement["Condition"] = {"StringLike": {"s3:prefix": ["events/*"]}}
        with closing(open_store(f"{s3_bucket_url}/events", credentials(s3_server, document))) as objects:
            assert len(objects.list("chains/", limit=1)) == 1
            assert is_refused(objects.now_ms)
