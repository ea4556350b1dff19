"""The data source class of ``format("txnstore")``: gives Spark a schema, a reader or a writer.

Spark creates an instance in one process of the driver and pickles it for others, so it contains only the options.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.segment.schema import is_reserved
from txnstore.spark import tables, types
from txnstore.spark.failures import line_first
from txnstore.spark.options import column_options, read_options, sink_options, stream_options, write_options
from txnstore.spark.reads.planning import check_starts, loaded_view, projection_schema
from txnstore.spark.reads.reader import TxnStoreReader
from txnstore.spark.stores import open_reader
from txnstore.spark.streams.sink import TxnStoreStreamWriter
from txnstore.spark.streams.source import RefusedStreamReader, TxnStoreStreamReader
from txnstore.spark.versions import check_options
from txnstore.spark.writes.writer import TxnStoreWriter


@line_first
class TxnStoreSource(DataSource):
    """The Spark data source ``txnstore``: reads and writes of topics, in batches and streams, with Arrow in both."""

    def __init__(self, options: Any) -> None:
        # Spark passes this keyword argument, with a case-insensitive dictionary.
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "txnstore"

    def schema(self) -> str:
        """The columns of the read, as DDL."""
        tables.check_columns(self.options)
        check_options(self.options)
        options = column_options(self.options)
        with open_reader(options.location) as connection:
            view = loaded_view(connection, options)
            schema = projection_schema(view, options)
            check_starts(view, options)
        if not options.system_columns and options.columns is None:
            schema = pa.schema([field for field in schema if not is_reserved(field.name)])
        return types.ddl(types.spark_schema(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns: all columns, or those of ``.schema(…)``."""
        tables.check_read(self.options)
        return TxnStoreReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for a DataFrame with these columns."""
        if overwrite:
            msg = 'a log can only be appended to: use mode("append") or INSERT INTO, or write to a new topic'
            raise InvalidConfigError(msg)
        tables.check_write(self.options)
        return TxnStoreWriter(write_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream's reader; for wrong options one that raises later, as Spark hides an error raised here."""
        try:
            check_options(self.options)
            options = stream_options(self.options)
        except TxnStoreError as error:
            return RefusedStreamReader(error)
        return TxnStoreStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A writer for the micro-batches of a query with these columns."""
        if overwrite:
            msg = 'a log can only be appended to: use outputMode("append"), not complete'
            raise InvalidConfigError(msg)
        return TxnStoreStreamWriter(sink_options(self.options), schema)
