"""Makes topics from the schemas of DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnstore.catalog import topics as catalog
from txnstore.core.view import View
from txnstore.errors import SchemaMismatchError, TopicExistsError
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.spark.types import arrow_type, spark_schema, type_name

if TYPE_CHECKING:
    from txnstore.catalog.description import Topic
    from txnstore.connection import Connection
    from txnstore.spark.options import NewTopic

_LOG = logging.getLogger(__name__)

#: The columns of a write that route a row.
TOPIC, PARTITION = "_topic", "_partition"

#: The types that a topic of Kafka records takes for each of its columns, by the names of Spark.
_RECORD_TYPES = {field.name: {type_name(field.type)} for field in spark_schema(RECORD_SCHEMA)}
_RECORD_TYPES["key"].add("string")
_RECORD_TYPES["value"].add("string")


class TopicCreator(Protocol):
    """A :class:`txnstore.Store`, which this package must not import."""

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        key: str | None = None,
        timestamp: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic."""
        ...


def topic_schema(schema: StructType, *, typed: bool = False) -> pa.Schema | None:
    """Return the schema of the topic for a DataFrame; None for a topic of Kafka records.

    That is the case if the DataFrame has a column ``value``, and no columns but those of a Kafka record, of the types
    that such a topic takes. All columns are nullable, as in other data sources of Spark. Columns that only route rows
    are left out.

    Args:
        schema: The schema of the DataFrame.
        typed: Whether the topic has typed columns in any case.

    Raises:
        SchemaMismatchError: A topic cannot store the type of a column; the message names both.
    """
    argument: object = schema
    if not isinstance(argument, StructType):
        msg = f"a topic is made from the schema of a DataFrame, df.schema, not from {type(argument).__name__}"
        raise SchemaMismatchError(msg)
    fields = [field for field in schema.fields if field.name not in (TOPIC, PARTITION)]
    types = {field.name: field.dataType.simpleString() for field in fields}
    if not typed and "value" in types and all(name in _RECORD_TYPES.get(column, ()) for column, name in types.items()):
        return None
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType, field.name)) for field in fields])


def create_missing(connection: Connection, view: View, name: str, schema: StructType, settings: NewTopic) -> View:
    """Create the topic from the schema of a DataFrame if it does not exist; return the view with it.

    Raises:
        SchemaMismatchError: A topic cannot store a column, or its key or timestamp is none of its columns.
        InvalidTopicError: The name is not legal.
    """
    if name in view.topics:
        return view
    is_typed = settings.key is not None or settings.timestamp is not None
    columns = topic_schema(schema, typed=is_typed)
    try:
        catalog.create_topic(
            connection, name, settings.partitions, columns, settings.key, settings.timestamp, None, exist_ok=False
        )
    except TopicExistsError:
        _LOG.info("another writer has created the topic", extra={"topic": name})
    return connection.view(refresh=False)


def _arrow_type(data_type: DataType, column: str) -> pa.DataType:
    """Return the Arrow type of a column of Spark, or of a part of it; ``column`` is its path."""
    if isinstance(data_type, ArrayType):
        return pa.list_(_arrow_type(data_type.elementType, f"{column}.element"))
    if isinstance(data_type, MapType):
        return pa.map_(
            _arrow_type(data_type.keyType, f"{column}.key"), _arrow_type(data_type.valueType, f"{column}.value")
        )
    if isinstance(data_type, StructType):
        return pa.struct(
            [(field.name, _arrow_type(field.dataType, f"{column}.{field.name}")) for field in data_type.fields]
        )
    name = data_type.simpleString()
    converted = arrow_type(name)
    if converted == pa.null():
        msg = f"column {column!r} is of type {name}, which a topic cannot store: convert the column, or drop it"
        raise SchemaMismatchError(msg)
    return converted
