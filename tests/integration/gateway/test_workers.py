"""Several processes that serve one address, and what happens when one of them dies, or their parent."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import txnstore
from tests.helpers.gateway_process import Client, GatewayProcess, gateway_process, produce_fields, record_batch
from txnstore.gateway.apis import Api

PARTITIONS = 4


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Two workers on a store of one chain."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t", partitions=PARTITIONS)
    options = ("--workers", "2", "--metrics", "127.0.0.1:0")
    with gateway_process(tmp_path / "store", tmp_path / "log", *options) as running:
        yield running


def processes_of(gateway: GatewayProcess) -> list[int]:
    """The workers that run."""
    parent = gateway.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    return [int(each) for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def scrape(gateway: GatewayProcess, path: str = "/metrics") -> str:
    assert gateway.metrics is not None
    with urllib.request.urlopen(gateway.metrics.replace("/metrics", path), timeout=30) as response:  # noqa: S310 - Our own endpoint.
        return str(response.read().decode())


def value_of(text: str, name: str) -> int:
    match = re.search(rf"^txnstore_{name}{{.*}} (\d+)$", text, re.MULTILINE)
    assert match is not None
    return int(match[1])


def metadata_of(client: Client) -> Any:
    return client.ask(Api.METADATA, 9, {"topics": None})


def wait_for_brokers(host: str, port: int, count: int) -> Any:
    """The metadata when a worker sees so many that live; Java's clients see only those."""
    while True:
        with Client(host, port) as client:
            client.ask(
                Api.API_VERSIONS, 3, {"client_software_name": "apache-kafka-java", "client_software_version": "4"}
            )
            metadata = metadata_of(client)
            if len(metadata.brokers) == count:
                return metadata


def test_workers_lead_the_partitions_of_one_chain_and_any_serves_the_common_address(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    metadata = wait_for_brokers(gateway.host, gateway.port, 2)
    leaders = [partition.leader_id for partition in metadata.topics[0].partitions]
    assert sorted(leaders) == [0, 0, 1, 1]
    assert gateway.port not in {broker.port for broker in metadata.brokers}
    for broker in metadata.brokers:
        assert wait_for_brokers(broker.host, broker.port, 2).topics == metadata.topics
        with Client(broker.host, broker.port) as client:
            response = client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"])))
            assert response.responses[0].partition_responses[0].error_code.name == "none"
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address})
    for partition in range(PARTITIONS):
        producer.produce("t", b"v", partition=partition)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": gateway.address, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    read = 0
    while read < PARTITIONS + 2:
        message = consumer.poll(1)
        read += message is not None and message.error() is None
    consumer.close()
    text = scrape(gateway)
    assert scrape(gateway, "/health") == "ok\n"
    assert value_of(text, "gateway_workers") == 2
    assert text.count("# TYPE txnstore_gateway_connections gauge") == 1
    assert len(re.findall(r'^txnstore_gateway_connections{.*worker="[01]"} \d+$', text, re.MULTILINE)) == 2
    with txnstore.open(tmp_path / "store", read_only=True) as store:
        assert store.scan("t").to_table().num_rows == PARTITIONS + 2


def test_a_worker_that_dies_is_started_again(gateway: GatewayProcess) -> None:
    wait_for_brokers(gateway.host, gateway.port, 2)
    workers = processes_of(gateway)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    while (
        value_of(text := scrape(gateway), "gateway_worker_restarts_total") < 1 or value_of(text, "gateway_workers") < 2
    ):
        pass
    assert any("a worker has died, and is started again" in line for line in gateway.log_lines())
    wait_for_brokers(gateway.host, gateway.port, 2)
    assert workers[1] in processes_of(gateway)
    assert gateway.stop(100) == 0


def test_sigterm_ends_all(gateway: GatewayProcess) -> None:
    workers = processes_of(gateway)
    assert gateway.stop(100) == 0
    assert not any(map(is_alive, workers))
    lines = gateway.log_lines()
    assert sum("the gateway has ended" in line for line in lines) == 2
    assert not any("died" in line for line in lines)


def test_workers_end_with_their_parent(gateway: GatewayProcess) -> None:
    workers = processes_of(gateway)
    gateway.process.kill()
    gateway.process.wait()
    while any(map(is_alive, workers)):
        pass


def test_a_worker_that_cannot_start_again_is_tried_until_it_can(gateway: GatewayProcess, tmp_path: Path) -> None:
    """A file that is damaged for a while, or a storage that does not answer, ends none of those that serve."""
    wait_for_brokers(gateway.host, gateway.port, 2)
    workers = processes_of(gateway)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    os.kill(workers[0], signal.SIGKILL)
    while not any("error: worker 0: there is no txnstore at" in line for line in gateway.log_lines()):
        pass
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    while value_of(scrape(gateway), "gateway_workers") < 2:
        pass
    wait_for_brokers(gateway.host, gateway.port, 2)
    assert is_alive(workers[1])
    assert gateway.stop(100) == 0
