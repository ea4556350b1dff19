"""Rows of typed columns from clients of Kafka: JSON through a gateway, with kafka-python, and SQL beside it.

A topic with an Arrow schema takes and gives each row as a JSON object. A row that does not fit is refused.
Run it with ``python examples/gateway_typed.py [URL]``; without a URL it uses a temporary folder. It needs
``txnstore[gateway]`` and ``kafka-python``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kafka
import pyarrow as pa
from kafka.errors import InvalidRecordError, KafkaError

import txnstore

TIMEOUT = 30


@contextmanager
def gateway(url: str, log: Path) -> Iterator[str]:
    """In the block a gateway serves the store, with its log in a file; yields its address."""
    command = [sys.executable, "-m", "txnstore.cli", "gateway", "--store", url, "--listen", "127.0.0.1:0"]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(log.read_text())
        try:
            yield line.split()[-1]
        finally:
            process.terminate()


def send(servers: str) -> None:
    """Send readings, and one that is none."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, linger_ms=50)
    for number in range(1_000):
        row = {"sensor": f"s{number % 10}", "celsius": number % 40 + 0.5}
        producer.send("readings", json.dumps(row).encode())
    producer.flush(TIMEOUT)
    try:
        producer.send("readings", b'{"sensor": "s1", "celsius": "warm"}').get(TIMEOUT)
    except InvalidRecordError as error:
        print("refused:", error)
    producer.close()


def receive(servers: str) -> None:
    """Read rows from the beginning; those of other writers are JSON, too."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition("readings", 0)])
    print("first row:", json.loads(next(consumer).value))
    consumer.close()


def main(url: str, log: Path) -> None:
    schema = pa.schema([pa.field("sensor", pa.string(), nullable=False), pa.field("celsius", pa.float64())])
    with txnstore.create(url, exist_ok=True) as store:
        store.create_topic("readings", schema=schema, key="sensor", exist_ok=True)
        with gateway(url, log) as servers:
            send(servers)
            receive(servers)
        print(store.sql("select sensor, count(*), max(celsius) from readings group by 1 order by 1 limit 2").fetchall())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a folder, or s3://bucket/prefix; else a temporary folder"
    )
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        try:
            main(url or f"{folder}/store", Path(folder, "gateway.log"))
        except (txnstore.TxnStoreError, KafkaError) as error:
            sys.exit(str(error))
