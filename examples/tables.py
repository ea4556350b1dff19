"""Topics as Iceberg tables: orders and their totals in one transaction, read by four engines.

The pipeline writes each order to one topic, and the changed total of its customer to another one, in one transaction.
After each publication both tables are of the same moment: the totals add up to the orders, in whichever engine.
Run it with ``python examples/tables.py [URL]``; without a URL it uses a temporary folder. It needs
``txnstore[tables]``, and uses those of ``duckdb`` (after an ``INSTALL iceberg`` in it), ``pyiceberg[pyarrow]`` and
``chdb`` that are installed; and PySpark, if ``ICEBERG_SPARK`` is the jar of Iceberg's runtime for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable

import duckdb
import pyarrow as pa

import txnstore

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())])
CHANGES = pa.schema([("customer", pa.string()), ("added", pa.int64())])


def take(store: txnstore.Store, first: int) -> None:
    """Take a hundred orders, in transactions of ten."""
    with store.producer("shop") as producer:
        for start in range(first, first + 100, 10):
            orders = [{"id": n, "customer": f"c{n % 7}", "amount": n % 50 + 1} for n in range(start, start + 10)]
            added: Counter[str] = Counter()
            for order in orders:
                added[str(order["customer"])] += int(str(order["amount"]))
            with producer.transaction():
                producer.send_table("orders", orders)
                producer.send_table("changes", [{"customer": name, "added": sum_} for name, sum_ in added.items()])


def with_duckdb(table: str, column: str) -> int:
    """The sum of a column, by DuckDB."""
    connection = duckdb.connect()
    connection.execute("LOAD iceberg")
    row = connection.execute(f"SELECT sum({column}) FROM iceberg_scan('{table}')").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])


def with_pyiceberg(table: str, column: str) -> int:
    """The sum of a column, by pyiceberg."""
    from pyiceberg.table import StaticTable

    rows = StaticTable.from_metadata(table).scan(selected_fields=(column,)).to_arrow()
    return sum(rows.column(column).to_pylist())


def with_clickhouse(table: str, column: str) -> int:
    """The sum of a column, by ClickHouse in this process."""
    import chdb

    path = table.removeprefix("file://")
    return int(str(chdb.query(f"SELECT sum({column}) FROM icebergLocal('{path}')", "CSV")))  # noqa: S608


def with_spark(table: str, column: str) -> int:
    """The sum of a column, by Spark with Iceberg: the root of the store is the warehouse of its catalog."""
    from pyspark.sql import SparkSession

    warehouse, _, name = table.rpartition("/tables/")
    catalog = "spark.sql.catalog.lake"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", os.environ["ICEBERG_SPARK"])
        .config("spark.ui.enabled", "false")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "hadoop")
        .config(f"{catalog}.warehouse", warehouse)
        .config(f"{catalog}.cache-enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    [(total,)] = spark.sql(f"SELECT sum({column}) FROM lake.tables.{name}").collect()  # noqa: S608
    return int(total)


def compare(store: txnstore.Store) -> None:
    """Print what each engine that is installed finds in both tables."""
    engines: dict[str, Callable[[str, str], int]] = {
        "DuckDB": with_duckdb,
        "pyiceberg": with_pyiceberg,
        "ClickHouse": with_clickhouse,
    }
    if "ICEBERG_SPARK" in os.environ:
        engines["Spark"] = with_spark
    places = {table.topic: table.location for table in store.tables.list()}
    for name, sum_of in engines.items():
        try:
            orders, changes = sum_of(places["orders"], "amount"), sum_of(places["changes"], "added")
        except (ImportError, duckdb.Error) as error:
            print(f"{name}: not used ({type(error).__name__})")
            continue
        print(f"{name}: orders {orders}, changes {changes}")


def main(url: str) -> None:
    """Run the pipeline twice, before and after a compaction."""
    with txnstore.create(url) as store:
        for topic, schema in (("orders", ORDERS), ("changes", CHANGES)):
            store.create_topic(topic, partitions=2, schema=schema, key="customer", config={"table.format": "iceberg"})
        for first in (0, 100):
            take(store, first)
            report = store.tables.sync()
            rows = {change.topic: change.rows for change in report.changes}
            print(f"cut {report.cut}: {rows['orders']} orders, {rows['changes']} changes")
            compare(store)
        store.compact()
        report = store.tables.sync()
        copies = sum(change.copied_files for change in report.changes)
        print(f"cut {report.cut}, after a compaction: {copies} copies left")
        compare(store)


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
