"""Moves a folder of Parquet files into a topic, each file exactly once.

Each file is one transaction, which also has a record of the file in the topic ``migrated_files``. A run that fails or
is killed leaves no part of a file; the next run, or one after more files have come, migrates what is not recorded. Two
runs at the same time are safe: the second fences the first. The folder is a path or a URL of fsspec:

    python examples/migrate_parquet.py FOLDER URL TOPIC [--key COLUMN]
"""

from __future__ import annotations

import argparse
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import txnstore

MIGRATED_FILES = pa.schema([("topic", pa.string()), ("file", pa.string()), ("rows", pa.int64())])


def migrate(source: str, store: txnstore.Store, topic: str, key: str | None = None) -> int:
    """Migrate the files that are not yet in the topic; returns the number of rows."""
    files, folder = fsspec.core.url_to_fs(source)
    paths = sorted(files.glob(f"{folder}/**/*.parquet"))
    if not paths:
        raise SystemExit(f"there are no Parquet files in {source}")
    with files.open(paths[0]) as file:
        schema = pq.read_schema(file).remove_metadata()
    store.create_topic(topic, partitions=4, schema=schema, key=key, exist_ok=True)
    store.create_topic("migrated_files", schema=MIGRATED_FILES, exist_ok=True)
    rows = 0
    # The producer comes first: it fences a run that is still alive, so that no file is recorded after this.
    with store.producer(f"migration-of-{topic}", transaction_timeout=900) as producer:  # For a large file.
        table = store.scan("migrated_files", columns=["topic", "file"]).to_table()
        done = {row["file"] for row in table.to_pylist() if row["topic"] == topic}
        for path in paths:
            name = path.removeprefix(f"{folder}/")
            if name in done:
                continue
            with files.open(path) as file, pq.ParquetFile(file) as content, producer.transaction() as txn:
                count = content.metadata.num_rows
                for batch in content.iter_batches():  # A file may be larger than memory.
                    txn.send_table(topic, batch)
                txn.send("migrated_files", {"topic": topic, "file": name, "rows": count})
            rows += count
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key", metavar="COLUMN", help="the column that chooses the partition")
    arguments = parser.parse_args()
    try:
        with txnstore.create(arguments.url, exist_ok=True) as opened:
            print(f"{migrate(arguments.folder, opened, arguments.topic, arguments.key)} rows migrated")
    except (txnstore.TxnStoreError, OSError, pa.ArrowException) as error:
        sys.exit(str(error))
