"""Moves a Kafka topic into a topic of txnstore, from the files that Kafka's S3 sink connectors write.

Each record is migrated once, with its key, headers, timestamp, partition and order. The files have the usual names,
``topics/TOPIC/partition=N/TOPIC+N+OFFSET.parquet``, or ``.json`` with a record in each line, and whole records: the
fields are value and, where there are any, key, headers and timestamp. (Aiven's connector writes them with
``format.output.fields``; with others, a transform puts them into the value.) A file is one transaction, as in
``migrate_parquet.py``: run it again as often as you like, also while the connector runs. The folder is a path or a
URL of fsspec. Avro files need a line in ``_records``, with a reader such as fastavro. ``spark_migrate_kafka.py`` does
the same from a broker.

    python examples/migrate_kafka.py s3://bucket/topics URL TOPIC
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import txnstore

NAME = re.compile(r"partition=(\d+)/[^/]+\+\d+\+(\d+)\.(?:parquet|json)$")
MIGRATED_FILES = pa.schema([("topic", pa.string()), ("file", pa.string()), ("rows", pa.int64())])


def migrate(source: str, store: txnstore.Store, topic: str) -> int:
    """Migrate the files of the connector that are not yet in the topic; returns the number of records."""
    files, folder = fsspec.core.url_to_fs(f"{source}/{topic}")
    matches = {path: match for path in files.find(folder) if (match := NAME.search(path))}
    if not matches:
        raise SystemExit(f"there are no files of a connector in {source}/{topic}")
    partitions = 1 + max(int(match[1]) for match in matches.values())
    store.create_topic(topic, partitions=partitions, exist_ok=True)
    store.create_topic("migrated_files", schema=MIGRATED_FILES, exist_ok=True)
    total = 0
    # The producer comes first: it fences a run that is still alive, so that no file is recorded after this.
    with store.producer(f"migration-of-{topic}", transaction_timeout=900) as producer:  # For a large file.
        table = store.scan("migrated_files", columns=["topic", "file"]).to_table()
        done = {row["file"] for row in table.to_pylist() if row["topic"] == topic}
        # In the order of their first offsets, which keeps the order of each partition.
        for path, match in sorted(matches.items(), key=lambda item: (int(item[1][1]), int(item[1][2]))):
            name = path.removeprefix(f"{folder}/")
            if name in done:
                continue
            with producer.transaction() as txn:
                count = 0
                for record in _records(files, path):
                    count += 1
                    key, value, moment = _bytes(record.get("key")), _value(record, path), record.get("timestamp")
                    headers = [(each["key"], _bytes(each["value"])) for each in record.get("headers") or []]
                    millis = round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
                    txn.send(topic, value, key, int(match[1]), headers, millis)
                txn.send("migrated_files", {"topic": topic, "file": name, "rows": count})
            total += count
    return total


def _records(files: fsspec.AbstractFileSystem, path: str) -> Iterator[dict[str, Any]]:
    with files.open(path) as file:
        if path.endswith(".parquet"):
            for batch in pq.ParquetFile(file).iter_batches():
                yield from batch.to_pylist()
        else:
            yield from map(json.loads, file)


def _value(record: dict[str, Any], path: str) -> bytes | None:
    if "value" not in record:
        raise ValueError(f"{path} has a record without the field value: let the connector write whole records")
    return _bytes(record["value"])


def _bytes(value: Any) -> bytes | None:
    """Bytes and text as they are, anything else, such as an object, as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the connector's topics")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("topic", metavar="TOPIC")
    arguments = parser.parse_args()
    try:
        with txnstore.create(arguments.url, exist_ok=True) as opened:
            print(f"{migrate(arguments.folder, opened, arguments.topic)} records migrated")
    except (txnstore.TxnStoreError, OSError, ValueError) as error:
        sys.exit(str(error))
