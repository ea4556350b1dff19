"""A gateway that also maintains its store, and one that says that nobody does."""

from __future__ import annotations

import signal
import threading
import urllib.request
from pathlib import Path

import txnstore
from tests.helpers.gateway_process import gateway_process, produce_fields, record_batch
from txnstore.gateway.apis import Api


def _create_topic(name: str, **config: str) -> dict[str, object]:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    return {"topics": [topic], "timeout_ms": 10_000, "validate_only": False}


def test_records_past_their_retention_go_without_another_step(tmp_path: Path) -> None:
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t", config={"retention.ms": 1})
    options = ("--metrics", "127.0.0.1:0", "--maintain")
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
