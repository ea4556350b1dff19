"""A gateway that shares entries with a process of the library, which commits what its clients produce.

The gateway is a real process, and so is this one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.gateway_process import GatewayProcess, gateway_process, produce_fields, record_batch
from txnstore.chain.committer.committer import Committer
from txnstore.chain.committer.sharing import VARIABLE
from txnstore.gateway.apis import Api
from txnstore.store import Store


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Short, as a path of a socket must be.
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv(VARIABLE, "on")
        yield


def committer_of(store: Store) -> Committer:
    committer = connection_of(store).chains[0]._committer
    assert committer is not None
    return committer


def produce(gateway: GatewayProcess, name: str, count: int) -> list[tuple[int, bytes]]:
    """The offsets that a client of Kafka gets for its records, with their values."""
    produced = []
    with gateway.client() as client:
        for number in range(count):
            value = b"%s-%d" % (name.encode(), number)
            answer = client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([value])))
            (partition,) = answer.responses[0].partition_responses
            assert partition.error_code == 0
            produced.append((partition.base_offset, value))
    return produced


def commit(store: Store, name: str, records: int) -> list[tuple[int, bytes]]:
    """The same of this process, a transaction each."""
    produced = []
    with store.producer(name) as producer:
        for number in range(records):
            value = b"%s-%d" % (name.encode(), number)
            with producer.transaction() as txn:
                sent = txn.send("t", value)
            produced.append((sent.result().offset, value))
    return produced


def stored(url: Path) -> list[tuple[int, bytes]]:
    with txnstore.open(url, read_only=True) as store:
        table = store.scan("t").to_table()
        assert store.verify(deep=True).violations == ()
    return list(zip(table["_offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_a_gateway_hands_over_what_its_clients_produce_and_goes_on_when_its_committer_closes(tmp_path: Path) -> None:
    """Each record has the offset that its client was told."""
    url = tmp_path / "store"
    with txnstore.create(url) as store:
        store.create_topic("t")
    with gateway_process(url, tmp_path / "log") as gateway, ThreadPoolExecutor(1) as clients:
        with txnstore.open(url) as store:
            assert not committer_of(store).join(listen=True)
            there = clients.submit(produce, gateway, "there", 30)
            known = commit(store, "here", 30) + there.result()
            metrics = store.metrics()
            assert (metrics.carried > 0, metrics.handed_over) == (True, 0)
        known += produce(gateway, "alone", 5)
    assert sorted(known) == stored(url)
