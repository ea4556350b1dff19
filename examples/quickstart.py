"""A store, a transaction over two topics, and what each kind of reader sees of it.

Run it with ``python examples/quickstart.py [URL]``; without a URL it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import txnstore


def main(url: str) -> None:
    with txnstore.create(url, exist_ok=True) as store:
        store.create_topic("orders", partitions=4, exist_ok=True)
        store.create_topic("payments", partitions=4, exist_ok=True)

        with store.producer(transactional_id="shop-1") as producer:
            # Both records become visible in one step, or never.
            with producer.transaction() as txn:
                txn.send("orders", key=b"order-1", value=b"3 apples")
                txn.send("payments", key=b"order-1", value=b"4.50")

            # A block that raises aborts its transaction.
            try:
                with producer.transaction() as txn:
                    txn.send("orders", key=b"order-2", value=b"1,000 pears")
                    txn.flush()
                    raise ValueError("there are no pears")
            except ValueError as error:
                print(f"aborted: {error}")

        for isolation in ("read_committed", "read_uncommitted"):
            table = store.scan("orders", isolation=isolation, columns=["_partition", "_offset", "value"]).to_table()
            print(f"{isolation}: {table.to_pylist()}")


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
