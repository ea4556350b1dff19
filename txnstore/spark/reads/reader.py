"""The batch reader: plans once on the driver; tasks only read segments.

It deliberately has no ``pushFilters``: up to Spark 4.3, the filters of one query also apply to other queries on the
same DataFrame, which silently gives wrong results. Ranges and columns are options, which belong to one ``load()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from txnstore.connection import Connection
from txnstore.errors import InvalidConfigError, SchemaMismatchError
from txnstore.read.expired import expirations
from txnstore.read.ranged import Fetch, choose_fetch_mode
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import read_share
from txnstore.read.rows import Columns
from txnstore.spark import types
from txnstore.spark.failures import line_first
from txnstore.spark.options import Location, ReadOptions
from txnstore.spark.reads.planning import SliceGroup, plan, projection_schema, view_to_read, with_topics
from txnstore.spark.stores import open_objects, open_reader
from txnstore.spark.workers import Sent, freeze_worker_objects
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import RecentObjects
from txnstore.threads import Workers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnstore.core.view import View

#: Threads per task: enough to fetch the next segments while one is decoded.
_THREADS = 4


class SlicesPartition(InputPartition):
    """The slices that one task reads."""

    def __init__(self, group: SliceGroup) -> None:
        super().__init__(None)
        self.group = group


@line_first
class TxnStoreReader(Sent, DataSourceReader):
    """Reads the slices of one snapshot; the plan is fixed when Spark plans the DataFrame."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        with open_reader(options.location) as connection:
            view = view_to_read(connection, options)
            options = with_topics(view, options)
            self._schema = target_schema(view, schema, options)
            # Decode only the columns that Spark requests.
            options = replace(options, columns=tuple(self._schema.names))
            self._groups = plan(connection, view, options)
            # Tasks may have another working directory, so they need the store's absolute URL.
            self._location = replace(options.location, url=connection.url)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the plan: Spark passes each task its group."""
        return {**self.__dict__, "_groups": []}

    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each group of slices."""
        return [SlicesPartition(group) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group as record batches with exactly the schema that Spark expects."""
        if not isinstance(partition, SlicesPartition):
            return  # Spark runs one task even for an empty plan.
        yield from read_group(self._location, partition.group, self._schema)


def read_group(location: Location, group: SliceGroup, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a group as record batches of this schema."""
    freeze_worker_objects()
    columns = Columns(group.topic, schema.names)
    objects = open_objects(location)
    pool = Workers(_THREADS, "txnstore-read")
    try:
        with ExitStack() as stack, expirations(lambda: stack.enter_context(Connection(objects, read_only=True))):
            if group.share is None:
                partitions = {group.topic.name: len({part.tp for part in group.slices})}
                caching_objects = RecentObjects(objects).with_read_cache(partitions)
                ahead = _decodes_ahead(objects, group, columns)
                tables = read_ahead(caching_objects, pool, group.slices, columns, decode_ahead=ahead)
            else:
                tables = read_share(objects, group.slices[0], columns, group.share)
            yield from types.to_batches(tables, schema)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        objects.close()


def _decodes_ahead(objects: ObjectStore, group: SliceGroup, columns: Columns) -> bool:
    """Whether other threads decode, because they also fetch what they decode, from afar.

    Otherwise the thread of the task decodes, which takes less of a processor: Arrow then uses the memory of the last
    piece again. The other processors have tasks of their own.
    """
    if objects.url.startswith("file:"):
        return False
    return any(choose_fetch_mode(part, columns) is Fetch.RANGES for part in group.slices)


def target_schema(view: View, schema: StructType, options: ReadOptions) -> pa.Schema:
    """Return the Arrow schema of the columns that Spark requests.

    Args:
        schema: What Spark requests.
        options: What is read, with its topics.

    Raises:
        SchemaMismatchError: The topics do not have these columns, or not with these types.
        InvalidConfigError: The option ``columns`` names others.
    """
    if options.columns is not None and schema.names != list(options.columns):
        msg = f"give the option columns or a schema, not both: the schema differs from {', '.join(options.columns)}"
        raise InvalidConfigError(msg)
    full_schema = types.spark_schema(projection_schema(view, options))
    fields = []
    for field in schema.fields:
        if field.name not in full_schema.names:
            names = ", ".join(full_schema.names)
            msg = f"topic {options.topics[0]!r} has no column {field.name!r} to read; it has {names}"
            raise SchemaMismatchError(msg)
        arrow = full_schema.field(field.name)
        name = types.type_name(arrow.type)
        requested_type = field.dataType.simpleString()
        if requested_type != name:
            msg = f"column {field.name!r} is of type {name}; the schema of the read says {requested_type}"
            raise SchemaMismatchError(msg)
        nested = field.dataType.json()
        if any(f'"{rule}":false' in nested for rule in ("nullable", "containsNull", "valueContainsNull")):
            msg = f"column {field.name!r} may contain nested nulls; the schema of the read must allow them"
            raise SchemaMismatchError(msg)
        fields.append(pa.field(field.name, arrow.type, nullable=field.nullable))
    return pa.schema(fields)
