"""Exactly once from one topic to another: the positions of the group are committed in the transaction of the output.

Kill it at any point and start it again: what it was doing is aborted, and it continues where the last commit ended.
Run it with ``python examples/consume_transform_produce.py [URL]``; without a URL it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import txnstore


def prepare(store: txnstore.Store) -> None:
    """Something to read: 1,000 readings of ten sensors."""
    store.create_topic("readings", partitions=3, exist_ok=True)
    store.create_topic("alarms", partitions=3, exist_ok=True)
    with store.producer() as producer:
        for number in range(1_000):
            producer.send("readings", key=b"sensor-%d" % (number % 10), value=b"%d" % (number * 37 % 101))


def run(store: txnstore.Store) -> int:
    """Process all existing records in transactions of up to 200; returns the number of records."""
    done = 0
    # The producer comes first: it fences the job's previous instance, and aborts its open transaction. As a static
    # member of its group the job gets its partitions back immediately, also if that one was killed.
    with (
        store.producer(transactional_id="alarm-job") as producer,
        store.consumer(["readings"], group="alarm-job", group_instance_id="alarm-job") as consumer,
    ):
        while records := consumer.poll(max_records=200):
            with producer.transaction() as txn:
                for record in records:
                    if isinstance(record.value, bytes) and int(record.value) > 90:
                        txn.send("alarms", key=record.key, value=b"too high: " + record.value)
                positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
                txn.send_offsets(positions, consumer.group_metadata())
            done += len(records)
    return done


def main(url: str) -> None:
    with txnstore.create(url, exist_ok=True) as store:
        prepare(store)
        print(f"first run: {run(store)} readings")
        print(f"second run: {run(store)} readings")
        with store.consumer(["alarms"]) as consumer:
            alarms = consumer.poll(max_records=1_000)
        print(f"{len(alarms)} alarms, such as {alarms[0].key!r}: {alarms[0].value!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a folder, or s3://bucket/prefix; else a temporary folder"
    )
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        try:
            main(url or f"{folder}/store")
        except txnstore.TxnStoreError as error:
            sys.exit(str(error))
