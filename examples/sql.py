"""SQL over topics: typed columns, one snapshot for all topics of a query, and a look behind the scenes.

Run it with ``python examples/sql.py [URL]``; without a URL it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import pyarrow as pa

import txnstore

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.float64())])


def main(url: str) -> None:
    with txnstore.create(url, exist_ok=True) as store:
        store.create_topic("orders", partitions=2, schema=ORDERS, key="customer", exist_ok=True)
        with store.producer(transactional_id="shop") as producer:
            with producer.transaction() as txn:
                txn.send_table("orders", [{"id": n, "customer": f"c{n % 3}", "amount": n * 1.5} for n in range(30)])

            # The relation is DuckDB's own: fetch it, or hand it on as Arrow, pandas or polars.
            store.sql("SELECT customer, count(*) AS orders, sum(amount) FROM orders GROUP BY ALL ORDER BY ALL").show()

            # All views of a connection show one snapshot, until it is moved.
            with store.duckdb() as connection:
                with producer.transaction() as txn:
                    txn.send("orders", {"id": 99, "customer": "c9", "amount": 9.0})
                for moment in ("before", "after"):
                    [[count]] = connection.sql("SELECT count(*) FROM orders").fetchall()
                    print(f"{moment} the refresh: {count} orders")
                    store.refresh(connection)
                # How the store came to be what it is.
                connection.sql("SELECT transactional_id, state, epoch FROM txn.transactions").show()


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
