"""One gateway for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import txnstore
from tests.helpers.gateway_process import GatewayProcess, gateway_process
from txnstore.gateway import logs


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of the log is left out, whatever other tests have logged."""
    monkeypatch.setattr(logs.RateLimit, "filter", lambda *_: True)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway on a folder with the topic ``t`` of one partition, with metrics."""
    folder = tmp_path_factory.mktemp("gateway")
    with txnstore.create(folder / "store") as store:
        store.create_topic("t", partitions=1)
    with gateway_process(folder / "store", folder / "log", "--metrics", "127.0.0.1:0") as running:
        yield running
