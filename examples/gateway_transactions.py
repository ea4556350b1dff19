"""Exactly once with a client of Kafka: consume, transform and produce through a gateway, with confluent-kafka.

Kill it at any point and start it again: what it was doing is aborted, and it continues where the last commit ended.
Run it with ``python examples/gateway_transactions.py [HOST:PORT]``, the address of a gateway; without an address it
starts one on a temporary folder. It needs ``txnstore[gateway]`` and ``confluent-kafka``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import txnstore

TIMEOUT = 30


@contextmanager
def gateway(url: str, log: Path) -> Iterator[str]:
    """In the block a gateway serves the store, with its log in a file; yields its address."""
    options = ["--listen", "127.0.0.1:0", "--property", "group.initial.rebalance.delay.ms=0"]
    command = [sys.executable, "-m", "txnstore.cli", "gateway", "--store", url, *options]
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


def prepare(servers: str) -> None:
    """Something to read: 1,000 readings of ten sensors."""
    topics = [NewTopic(name, num_partitions=3) for name in ("readings", "alarms")]
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics(topics).values():
        try:
            created.result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 50})
    for number in range(1_000):
        producer.produce("readings", key=f"sensor-{number % 10}", value=str(number * 37 % 101))
    if producer.flush(TIMEOUT):
        raise SystemExit("the readings were not acknowledged")


def run(servers: str) -> int:
    """Process all existing records in transactions of up to 200; returns the number of records."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": "alarm-job", "linger.ms": 50}
    )
    producer.init_transactions(TIMEOUT)  # It fences the job's previous instance, and aborts its open transaction.
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "alarm-job",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # The offsets are committed by the transactions.
            "enable.partition.eof": True,  # So this program knows when it has read all.
        }
    )
    consumer.subscribe(["readings"])
    done = 0
    ended: set[int | None] = set()  # partitions that were read to their end
    try:
        while len(ended) < 3:
            messages = []
            for message in consumer.consume(200, timeout=1):
                if (error := message.error()) is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - confluent-kafka's public name.
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
            if messages:
                transform(messages, consumer, producer)
            done += len(messages)
    finally:
        consumer.close()
    return done


def transform(
    messages: list[confluent_kafka.Message], consumer: confluent_kafka.Consumer, producer: confluent_kafka.Producer
) -> None:
    """One transaction: the alarms, and the positions of the group."""
    producer.begin_transaction()
    try:
        for message in messages:
            value = message.value() or b""
            if int(value) > 90:
                producer.produce("alarms", key=message.key(), value=b"too high: " + value)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT)
        producer.commit_transaction(TIMEOUT)
    except KafkaException:
        producer.abort_transaction(TIMEOUT)
        raise


def main(servers: str) -> None:
    prepare(servers)
    print(f"first run: {run(servers)} readings")
    print(f"second run: {run(servers)} readings")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT", nargs="?", help="a gateway; else one that this starts")
    address = parser.parse_args().address
    try:
        if address is not None:
            main(address)
        else:
            with tempfile.TemporaryDirectory() as folder:
                url = f"{folder}/store"
                with txnstore.create(url) as store, gateway(url, Path(folder, "gateway.log")) as started:
                    main(started)
                    # Beside the gateway, the library and SQL read the same topics.
                    print("alarms:", store.sql("select count(*) from alarms").fetchall()[0][0])
    except (txnstore.TxnStoreError, KafkaException) as error:
        sys.exit(str(error))
    except TimeoutError:
        sys.exit(f"no gateway has answered at {address} within {TIMEOUT} seconds")
