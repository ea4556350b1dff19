"""The data source class of ``format("txnstore")``: gives Spark a schema, a reader or a writer.

Spark creates an instance in one process of the driver and pickles it for others, so it contains only the options.
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
from txnstore.spark.stores import open_reader
from txnstore.spark.writing import TxnStoreWriter


class TxnStoreSource(DataSource):
    """The Spark data source ``txnstore``: batch reads and writes of topics, with Arrow in both directions."""

    def __init__(self, options: Any) -> None:
        # Spark passes this keyword argument, with a case-insensitive dictionary.
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "txnstore"

    def schema(self) -> str:
        """The columns of the read, as DDL."""
        options = read_options(self.options)
        with open_reader(options.location) as connection:
            schema = projection_schema(connection.view(refresh=False), options)
        return types.ddl(types.spark_schema(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns: all columns, or those of ``.schema(…)``."""
        return TxnStoreReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for a DataFrame with these columns."""
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
