"""A gateway that also maintains its store, and one that says that nobody does."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import txnstore
from tests.helpers.gateway_process import gateway_process, produce_fields, record_batch
from txnstore.gateway.apis import Api


def _create_topic(name: str, **config: str) -> dict[str, object]:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    return {"topics": [topic], "timeout_ms": 10_000, "validate_only": False}


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_records_past_their_retention_go_without_another_step(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Of workers the parent maintains the store."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t", config={"retention.ms": 1})
    options = ("--metrics", "127.0.0.1:0", "--maintain", *workers)
    with gateway_process(tmp_path / "store", tmp_path / "log", *options) as gateway:
        with gateway.client() as client:
            client.ask(Api.PRODUCE, 7, produce_fields("t", record_batch([b"v"] * 50)))
        with txnstore.open(tmp_path / "store", read_only=True) as store:
            while store.offsets("t", 0).log_start < 50:
                threading.Event().wait(0.2)
        assert gateway.metrics is not None
        with urllib.request.urlopen(gateway.metrics, timeout=30) as response:  # noqa: S310 - our own endpoint
            assert "txnstore_maintenance_rounds_total" in response.read().decode()
        with urllib.request.urlopen(gateway.metrics.replace("/metrics", "/health"), timeout=30) as response:  # noqa: S310
            assert response.read() == b"ok\n"
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
    assert "round of maintenance" in (tmp_path / "log").read_text(encoding="utf-8")


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_the_end_of_its_maintenance_is_a_problem_of_its_health(tmp_path: Path, workers: tuple[str, ...]) -> None:
    folder = tmp_path / "store"
    with txnstore.create(folder) as store:
        record = folder / store._connection.keys.maintenance
    record.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(record)  # The first round reads it, and waits.
    options = ("--metrics", "127.0.0.1:0", "--maintain", *workers)
    with gateway_process(folder, tmp_path / "log", *options) as gateway:
        assert gateway.metrics is not None
        folder.rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / record.relative_to(folder)).write_bytes(b"")  # The round continues.
        while not any("maintenance has ended" in line for line in gateway.log_lines()):
            pass
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(gateway.metrics.replace("/metrics", "/health"), timeout=30)  # noqa: S310 - our own endpoint
        assert raised.value.code == 503
        assert raised.value.read().startswith(b"maintenance has ended: ")


def test_the_log_says_once_that_nobody_maintains_the_store(tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store"):
        pass
    with gateway_process(tmp_path / "store", tmp_path / "log") as gateway:
        with gateway.client() as client:
            for name in ("a", "b"):
                answer = client.ask(Api.CREATE_TOPICS, 4, _create_topic(name, cleanup_policy="compact"))
                assert answer.topics[0].error_code == 0
            client.ask(Api.CREATE_TOPICS, 4, _create_topic("c"))
        assert gateway.stop() == 0
    warnings = [line for line in gateway.log_lines() if "the store is not maintained" in line]
    assert len(warnings) == 1
    assert "topic 'a' has cleanup.policy=compact" in warnings[0]
