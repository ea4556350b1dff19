"""``format("txnstore")``: the class that Spark asks for a schema, a reader, a writer.

Spark makes an instance in one process on the driver, and pickles it into others; so it holds the options only.
"""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from txnstore.errors import InvalidConfigError
from txnstore.spark import types
from txnstore.spark.options import read_options, refuse_streaming, write_options
from txnstore.spark.planning import projection_schema
from txnstore.spark.reading import TxnStoreReader
from txnstore.spark.stores import open_location
from txnstore.spark.writing import TxnStoreWriter


class TxnStoreSource(DataSource):
    """The Spark data source ``txnstore``: batch read and write of topics, Arrow both ways."""

    def __init__(self, options: Any) -> None:
        # Spark calls it by this keyword, with a dictionary that ignores case.
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "txnstore"

    def schema(self) -> str:
        """The columns of the read, as DDL."""
        options = read_options(self.options)
        with open_location(options.location, read_only=True) as store:
            schema = projection_schema(store.state(refresh=False), options)
        return types.ddl(types.spark_schema(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns: all, or those of ``.schema(…)``."""
        return TxnStoreReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a DataFrame with these columns."""
        if overwrite:
            msg = 'txnstore can only append to a log: use mode("append") or INSERT INTO, not overwrite'
            raise InvalidConfigError(msg)
        return TxnStoreWriter(write_options(self.options), schema)

    def streamReader(self, schema: StructType) -> Never:  # noqa: N802 - Spark's name
        """Refused: streaming comes later."""
        raise refuse_streaming()

    def simpleStreamReader(self, schema: StructType) -> Never:  # noqa: N802 - Spark's name
        """Refused: streaming comes later."""
        raise refuse_streaming()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Never:  # noqa: N802 - Spark's signature
        """Refused: streaming comes later."""
        raise refuse_streaming()
