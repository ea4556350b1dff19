"""The Parquet form of segments: the encoding and the compression of each column.

The settings follow measurements: zstd at level 1; integers and times delta-encoded (an ``_offset`` column takes almost
no space); a dictionary only if values of a sample repeat; and no compression of the few bytes that most columns of a
small commit have.

Engines skip row groups by statistics, and some conclude more than these say; ``docs/howto/engines.md`` lists what each
concludes. So a column gets them only if every known engine is right: :func:`_has_statistics`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.segment.field_ids import with_field_ids

#: Higher levels of zstd compress little better and cost much more time.
ZSTD_LEVEL = 1
#: A column of a small segment with fewer bytes is not compressed: zstd's context costs more than the whole column does.
_COMPRESS_FROM = 512
#: The maximum number of bytes that are not compressed for this reason: many columns, or partitions, add up.
_UNCOMPRESSED_MAX = 4096
#: Columns whose values are longer than this on average, in bytes, get neither statistics nor a dictionary.
_SHORT_BYTES = 64
#: Tables with fewer rows get no dictionary: it costs more time than the saved bytes are worth.
_DICTIONARY_ROWS = 1000
#: The size of the sample that decides whether values of a column repeat.
_SAMPLE_ROWS = 8192


def parquet_writer(
    sink: Any, schema: pa.Schema, first_rows: pa.Table, codec: str | None, *, small: bool, for_table: bool = False
) -> pq.ParquetWriter:
    """Open a writer.

    Args:
        sink: What it writes to.
        schema: The schema of the file.
        first_rows: The first rows that will be written, which decide the settings.
        codec: pyarrow's name of the compression; None: none.
        small: These are all rows of a small file.
        for_table: Iceberg tables may use the file: each field gets its id, and times in milliseconds get no statistics.
            Iceberg's Java library takes these for microseconds, so Spark finds no row by its time
            (apache/iceberg#18173).
    """
    compression: Any = codec or "none"
    level: Any = ZSTD_LEVEL if codec == "zstd" else None
    compressed_names = _columns_to_compress(first_rows) if small and codec is not None else None
    if compressed_names is not None:
        compression = dict.fromkeys(compressed_names, codec)
        if level is not None:
            level = dict.fromkeys(compressed_names, level)
    encodings = _encoding_options(first_rows, without_milliseconds=for_table)
    schema = with_field_ids(schema) if for_table else schema
    return pq.ParquetWriter(sink, schema, compression=compression, compression_level=level, **encodings)


def _columns_to_compress(table: pa.Table) -> list[str] | None:
    """Return the columns of a small file to compress, by name; None: all."""
    sizes = [column.nbytes for column in table.columns]
    large_fields = [field for field, size in zip(table.schema, sizes, strict=True) if size >= _COMPRESS_FROM]
    if any(pt.is_nested(field.type) for field in large_fields):  # Parquet has other names for its parts.
        return None
    if sum(size for size in sizes if size < _COMPRESS_FROM) > _UNCOMPRESSED_MAX:
        return None
    return [field.name for field in large_fields]


def _encoding_options(table: pa.Table, *, without_milliseconds: bool) -> dict[str, Any]:
    """Return the encoding options of each column, by its type and a sample of its values.

    ``without_milliseconds``: times in milliseconds get no statistics.
    """
    deltas, dictionaries, statistics = {}, [], []
    has_nested = any(pt.is_nested(field.type) for field in table.schema)
    for column, field in zip(table.columns, table.schema, strict=True):
        name = field.name
        if pt.is_nested(field.type) or (has_nested and "." in name):
            continue  # The name may be the path of a part of a nested column, of another type.
        if pt.is_integer(field.type) or pt.is_timestamp(field.type) or pt.is_date32(field.type):
            deltas[name] = "DELTA_BINARY_PACKED"
        has_dictionary = (
            _is_variable_length(field.type)
            and column.nbytes <= _SHORT_BYTES * max(1, len(column))
            and _has_repetitions(column)
        )
        if has_dictionary:
            dictionaries.append(name)
        if _has_statistics(field.type, has_dictionary) and not (
            without_milliseconds and _is_in_milliseconds(field.type)
        ):
            statistics.append(name)
    return {
        "column_encoding": deltas or None,
        "use_dictionary": dictionaries or False,
        "write_statistics": statistics or False,
    }


def _has_statistics(data_type: pa.DataType, has_dictionary: bool) -> bool:
    """Whether engines may skip row groups by the least and the largest value of a column.

    - Not of floats: NaN is in neither, and engines in which it is larger than all numbers do not find it.
    - Not of text and bytes without a dictionary: DuckDB 2.0.0 takes a row group for constant, nulls included, if both
      are equal.
    """
    if pt.is_floating(data_type):
        return False
    return has_dictionary or not (_is_variable_length(data_type) or pt.is_fixed_size_binary(data_type))


def _is_in_milliseconds(data_type: pa.DataType) -> bool:
    return bool(pt.is_timestamp(data_type)) and data_type.unit == "ms"


def _is_variable_length(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_string(data_type)
        or pt.is_large_string(data_type)
        or pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
    )


def _has_repetitions(column: Any) -> bool:
    """Whether at most half of the values of a sample, spread over the column, are distinct."""
    if len(column) < _DICTIONARY_ROWS:
        return False
    step = max(1, len(column) // _SAMPLE_ROWS)
    sample = column.take(pa.arange(0, len(column), step)) if step > 1 else column
    return bool(pc.count_distinct(sample).as_py() * 2 <= len(sample))
