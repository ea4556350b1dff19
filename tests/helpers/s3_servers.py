"""Fixtures with S3 servers: one process a session, a fresh bucket a test. Load as a pytest plugin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.s3.servers import S3Server, storage_options
from tests.harness.s3.wire import RequestLog
from txnstore.runtime import Runtime

_RUN = Runtime().new_id()
_numbers = itertools.count()


def fresh_bucket(server: S3Server) -> str:
    """The ``s3://`` URL of a new, empty bucket; also on a server that has those of earlier runs."""
    return server.create_bucket(f"txnstore-test-{_RUN}-{next(_numbers)}")


class _ThroughS3fs(S3Server):
    """A server whose options choose s3fs, with obstore installed or not; tests of transports choose themselves."""

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**super().storage_options, "transport": "s3fs"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The S3 server that ``TXNSTORE_TEST_S3`` names, or else moto."""
    with _ThroughS3fs() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    """Moto, behind a lock."""
    with _ThroughS3fs("moto") as server:
        yield server


@pytest.fixture
def s3_bucket_url(s3_server: S3Server) -> str:
    """The URL of a fresh bucket on ``s3_server``."""
    return fresh_bucket(s3_server)


@pytest.fixture(name="storage_options")
def storage_options_fixture(s3_server: S3Server) -> dict[str, Any]:
    """What opens ``s3_bucket_url``."""
    return s3_server.storage_options


@pytest.fixture(params=["s3fs", "obstore"])
def transport(request: pytest.FixtureRequest) -> str:
    """The library that sends the requests to S3. Tests that use it run with each."""
    name: str = request.param
    return name


@pytest.fixture
def request_log(s3_server: S3Server) -> Iterator[RequestLog]:
    """A logging proxy in front of ``s3_server``; ``logged_options`` go through it."""
    with RequestLog(s3_server.url) as log:
        yield log


@pytest.fixture
def logged_options(request_log: RequestLog) -> dict[str, Any]:
    """Like ``storage_options``, but through ``request_log``."""
    return {**storage_options(request_log.url), "transport": "s3fs"}
