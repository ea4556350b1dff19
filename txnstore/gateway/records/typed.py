"""Records of topics with a schema: the value of a record is the row as one JSON object.

JSON has fewer types than a topic. Binary is base64, a time or a date is ISO 8601, a decimal is a string; a float may be
``"NaN"``, ``"Infinity"`` or ``"-Infinity"``. A map is an object if its keys are strings, else, and where keys repeat
(which an older release accepted), an array of ``{"key": …, "value": …}``; both are read. The key of a record is that of
:func:`~txnstore.segment.partition.key_bytes`: what Kafka's serializers make of the key column, by which clients choose
the partition, and so do txnstore's producers.

Rows are parsed one by one: ``pyarrow.json`` reads a stream of objects, in which a record could hold two objects, or
the half of one. They are written by column.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.gateway.records.batch import InvalidBatchError, RecordError
from txnstore.segment.maps import wrong_key
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import stored_schema
from txnstore.threads import load
from txnstore.validation import is_unicode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The first moment that Python has.
_FIRST = datetime.min.replace(tzinfo=UTC) - _EPOCH
_UNITS = {"ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
_DECIMAL = re.compile(r"[+-]?\d{1,99}(\.\d{1,99})?([eE][+-]?\d{1,3})?", re.ASCII)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: The least number that is rounded to an infinite float.
_FLOAT32_LIMIT = 2.0**128 - 2.0**103

#: Converts a JSON value that is not null; raises ``ValueError`` with what is wrong with it.
_Reader = Callable[[Any], Any]


# Reading --------------------------------------------------------------------------------------------------------------


def rows_from_json(
    values: pa.Array | pa.ChunkedArray, keys: pa.Array | pa.ChunkedArray, schema: pa.Schema, key_column: str | None
) -> pa.Table:
    """The rows of a batch, as a table of the stored schema.

    A missing field is null, and an unknown one is refused. A record may have a key, which then must be that of its row.

    Args:
        values: The values of the records; null is refused, because typed topics have no tombstones.
        keys: Their keys.
        schema: The schema of the topic.
        key_column: The column that chooses the partition; None if there is none, so that no record has a key.

    Raises:
        InvalidBatchError: A record does not fit; the error lists them.
    """
    load("pandas")  # pa.array imports it, if it is installed.
    errors: dict[int, str] = {}
    names = set(schema.names)
    rows = [_row(number, text, names, errors) for number, text in enumerate(values.to_pylist())]
    columns = [_column(field, [row.get(field.name) for row in rows], errors) for field in schema]
    if not errors:
        table = pa.Table.from_arrays(columns, schema=stored_schema(schema))
        _check_keys(keys, table, key_column, errors)
        if not errors:
            return table
    raise InvalidBatchError.of_records([RecordError(number, errors[number]) for number in sorted(errors)])


def _row(number: int, text: bytes | None, names: set[str], errors: dict[int, str]) -> dict[str, Any]:
    """The object of a record; empty, and its error is set, if there is none with these names."""
    if text is None:
        errors[number] = "it has no value, and a topic with a schema has no tombstones"
        return {}
    try:
        row = _JSON.decode(text.decode())
    except RecursionError:
        errors[number] = "its value is nested too deeply"
        return {}
    except ValueError as error:
        errors[number] = f"its value is no JSON: {error}"
        return {}
    if type(row) is not dict:
        errors[number] = "its value is no JSON object"
        return {}
    if not row.keys() <= names:
        unknown = ", ".join(repr(name) for name in row if name not in names)
        errors[number] = f"the topic has no column {unknown}"
        return {}
    return row


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return members


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)


def _column(field: pa.Field, values: list[Any], errors: dict[int, str]) -> pa.Array:
    """The column of the values of all rows; sets the errors of rows that have none."""
    if field.nullable or None not in values:
        column = _together(field.type, values)
        if column is not None:
            return column
    read = _reader(field.type)
    converted = []
    for number, value in enumerate(values):
        result = None
        if number in errors:
            pass
        elif value is None:
            if not field.nullable:
                errors[number] = f"column {field.name!r} is null or missing, but the topic declares it not null"
        else:
            try:
                result = read(value)
            except ValueError as error:
                errors[number] = f"column {field.name!r}: {error}"
        converted.append(result)
    column = pa.array(converted, field.type)
    wrong = wrong_key(column)
    if wrong is not None:
        errors.setdefault(wrong.row, f"column {field.name!r} has {wrong}")
    return column


def _together(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    """The column, if Arrow takes all values at once as :func:`_reader` takes each; None if it refuses one."""
    if pt.is_integer(kind):
        allowed: type = int
    elif pt.is_boolean(kind):
        allowed = bool
    elif pt.is_string(kind) or pt.is_large_string(kind) or pt.is_timestamp(kind):
        allowed = str
    else:
        return None
    if not set(map(type, values)) <= {allowed, type(None)}:
        return None
    try:
        if not pt.is_timestamp(kind):
            return pa.array(values, kind)
        column = pa.array(values, pa.string()).cast(kind)
        first = pc.min(column.cast(pa.int64())).as_py()
        return column if first is None or first >= _FIRST // _UNITS[kind.unit] else None
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def _check_keys(keys: Any, table: pa.Table, key_column: str | None, errors: dict[int, str]) -> None:
    """Set the errors of the records whose key is not that of their row."""
    if keys.null_count == len(keys):
        return
    if key_column is None:
        given = np.flatnonzero(_flat(keys).is_valid())
        errors.update(dict.fromkeys(given.tolist(), "it has a key, and the topic has no key column"))
        return
    expected = _flat(key_bytes(table[key_column], key_column)).cast(pa.binary())
    same = pc.fill_null(pc.equal(expected, _flat(keys)), False)
    wrong = np.flatnonzero(pc.and_(_flat(keys).is_valid(), pc.invert(same)))
    errors.update(dict.fromkeys(wrong.tolist(), f"its key is not that of its column {key_column!r}"))


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _reader(kind: pa.DataType) -> _Reader:
    """What makes values of a type of JSON values, as :func:`pyarrow.array` takes them."""
    if pt.is_nested(kind):
        return _nested_reader(kind)
    if pt.is_boolean(kind):
        return lambda value: value if type(value) is bool else _refuse(value, kind)
    if pt.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return lambda value: value if type(value) is int and -most <= value < most else _refuse(value, kind)
    if pt.is_floating(kind):
        return lambda value: _float(value, kind)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return lambda value: value if type(value) is str and is_unicode(value) else _refuse(value, kind)
    if pt.is_date(kind):
        return lambda value: _date(value, kind)
    if pt.is_timestamp(kind):
        return lambda value: _time(value, kind)
    if pt.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    return lambda value: _bytes(value, kind)


def _nested_reader(kind: pa.DataType) -> _Reader:
    if pt.is_map(kind):
        return _map_reader(kind)
    if pt.is_struct(kind):
        fields = {field.name: _or_null(_reader(field.type)) for field in kind}

        def read_struct(value: Any) -> Any:
            if type(value) is not dict or not value.keys() <= fields.keys():
                _refuse(value, kind)
            return {name: read(value.get(name)) for name, read in fields.items()}

        return read_struct
    read = _or_null(_reader(kind.value_type))
    return lambda value: [read(item) for item in value] if type(value) is list else _refuse(value, kind)


def _map_reader(kind: pa.DataType) -> _Reader:
    read_key, read_item = _reader(kind.key_type), _or_null(_reader(kind.item_type))
    named = _has_names(kind)

    def read_map(value: Any) -> Any:
        if type(value) is dict and named:
            return [(read_key(name), read_item(item)) for name, item in value.items()]
        if type(value) is not list:
            _refuse(value, kind)
        pairs = []
        for entry in value:
            if type(entry) is not dict or not entry.keys() <= {"key", "value"} or entry.get("key") is None:
                _refuse(entry, kind)
            pairs.append((read_key(entry["key"]), read_item(entry.get("value"))))
        return pairs

    return read_map


def _has_names(kind: pa.DataType) -> bool:
    """Whether the keys of a map can be the names of an object."""
    return bool(pt.is_string(kind.key_type) or pt.is_large_string(kind.key_type))


def _or_null(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _refuse(value: Any, kind: pa.DataType) -> Any:
    text = ascii(value)
    raise ValueError(f"{text if len(text) <= 80 else text[:77] + '...'} is not {kind}")


def _float(value: Any, kind: pa.DataType) -> float:
    if type(value) is str and value in _FLOATS:
        return _FLOATS[value]
    if type(value) not in {int, float}:
        _refuse(value, kind)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if abs(number) >= (_FLOAT32_LIMIT if pt.is_float32(kind) else math.inf):
        _refuse(value, kind)
    return number


def _date(value: Any, kind: pa.DataType) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return _refuse(value, kind)  # type: ignore[no-any-return]


def _time(value: Any, kind: pa.DataType) -> int:
    """The time in units of the column, rounded down. Without a zone it is in UTC, where the column has one."""
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        elif kind.tz is None:
            return _refuse(value, kind)  # type: ignore[no-any-return]
        return (moment - _EPOCH) // _UNITS[kind.unit]
    except (TypeError, ValueError, OverflowError):
        return _refuse(value, kind)  # type: ignore[no-any-return]


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    """The decimal, if the column holds it exactly."""
    if type(value) is int or (type(value) is str and _DECIMAL.fullmatch(value)):
        exact = Context(prec=kind.precision, Emax=9999, Emin=-9999, traps=[Inexact, InvalidOperation])
        try:
            return Decimal(value).quantize(Decimal((0, (1,), -kind.scale)), context=exact)
        except (Inexact, InvalidOperation):
            pass
    return _refuse(value, kind)  # type: ignore[no-any-return]


def _bytes(value: Any, kind: pa.DataType) -> bytes:
    try:
        data = base64.b64decode(value, validate=True) if type(value) is str else None
    except (binascii.Error, ValueError):
        data = None
    if data is None or (pt.is_fixed_size_binary(kind) and len(data) != kind.byte_width):
        return _refuse(value, kind)  # type: ignore[no-any-return]
    return data


# Writing --------------------------------------------------------------------------------------------------------------


def json_rows(table: pa.Table, key_column: str | None) -> tuple[pa.Array, pa.Array]:
    """The keys and values of records for the rows: two binary arrays. :func:`rows_from_json` is the inverse.

    Args:
        table: The columns of the topic.
        key_column: The column that chooses the partition; None for null keys.
    """
    columns = [_flat(column) for column in table.columns]
    values = _objects(table.column_names, columns, table.num_rows).cast(pa.binary())
    if key_column is None:
        return pa.nulls(table.num_rows, pa.binary()), values
    return key_bytes(_flat(table[key_column]), key_column).cast(pa.binary()), values


def _objects(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """The text of an object of each row."""
    pieces: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:", _texts(column)]
    return pc.binary_join_element_wise(*pieces, "}", "") if pieces else pa.array(["{}"] * rows, pa.string())


def _texts(array: pa.Array) -> pa.Array:
    """The JSON of each value of a column."""
    kind = array.type
    if pt.is_struct(kind):
        texts = _objects([field.name for field in kind], array.flatten(), len(array))
    elif pt.is_map(kind):
        texts = _map_texts(array)
    elif pt.is_list(kind):
        texts = _in_brackets(array, _texts(array.flatten()), "[]")
    elif pt.is_integer(kind) or pt.is_boolean(kind):
        texts = array.cast(pa.string())
    elif pt.is_floating(kind):
        texts = _float_texts(array)
    elif pt.is_string(kind) or pt.is_large_string(kind):
        texts = _string_texts(array.cast(pa.string()))
    elif pt.is_timestamp(kind):
        # Without the zone, which is UTC: Arrow takes 40 times as long to write times with one.
        plain = array.cast(pa.timestamp(kind.unit)).cast(pa.string())
        texts = _quoted(pc.replace_substring(plain, " ", "T"), "Z" if kind.tz else "")
    elif pt.is_date(kind) or pt.is_decimal(kind):
        texts = _quoted(array.cast(pa.string()))
    else:
        encoded = [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
        texts = _quoted(pa.array(encoded, pa.string()))
    if array.null_count:
        texts = pc.if_else(array.is_valid(), texts, "null")
    return texts


def _quoted(texts: pa.Array, suffix: str = "") -> pa.Array:
    return pc.binary_join_element_wise('"', texts, f'{suffix}"', "")


def _string_texts(texts: pa.Array) -> pa.Array:
    escaped = _quoted(pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"'))
    controls = pc.fill_null(pc.match_substring_regex(texts, "[\\x00-\\x1f]"), False)
    return _replaced(
        escaped, controls, [json.dumps(text, ensure_ascii=False) for text in texts.filter(controls).to_pylist()]
    )


def _float_texts(array: pa.Array) -> pa.Array:
    """Arrow's texts are the shortest that are read back; JSON has none for these values, and reads -0 as an integer."""
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    special = ~np.isfinite(numbers) | ((numbers == 0) & np.signbit(numbers))
    names = ["-0.0" if number == 0 else f'"{_name(number)}"' for number in numbers[special].tolist()]
    return _replaced(array.cast(pa.string()), pa.array(special), names)


def _name(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _replaced(texts: pa.Array, where: pa.Array, replacements: list[str]) -> pa.Array:
    if not replacements:
        return texts
    return pc.replace_with_mask(texts, where, pa.array(replacements, pa.string()))


def _map_texts(array: pa.Array) -> pa.Array:
    entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    lists = array.cast(pa.list_(entry))
    entries = lists.flatten()
    keys, items = entries.flatten()
    if _has_names(array.type) and not _repeat(keys, _list_lengths(lists)):
        return _in_brackets(lists, pc.binary_join_element_wise(_texts(keys), _texts(items), ":"), "{}")
    return _in_brackets(lists, _texts(entries), "[]")


def _repeat(keys: pa.Array, lengths: Any) -> bool:
    """Whether a map of a column has a key twice."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = np.repeat(np.arange(len(lengths)), lengths) * (len(keys) + 1) + codes
    return len(np.unique(pairs)) < len(pairs)


def _list_lengths(array: pa.Array) -> Any:
    return pc.fill_null(pc.list_value_length(array), 0).to_numpy()


def _in_brackets(array: pa.Array, entries: pa.Array, brackets: str) -> pa.Array:
    """The texts of the entries of each list, joined."""
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(_list_lengths(array), out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), entries), ",")
    return pc.binary_join_element_wise(brackets[0], joined, brackets[1], "")
