"""Columns of Arrow as JSON, by column: the rows of typed topics for clients of Kafka.

Binary is base64, a time or a date is ISO 8601, a decimal is a string; a float may be ``"NaN"``, ``"Infinity"`` or
``"-Infinity"``. A map is an object if its keys are strings, else, and where keys repeat, an array of ``{"key": …,
"value": …}``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.values.json_text import float_name
from txnstore.values.kinds import is_text


def json_texts(table: pa.Table) -> pa.Array:
    """Format each row as a JSON object."""
    columns = [column.combine_chunks() for column in table.columns]
    return _object_texts(table.column_names, columns, table.num_rows)


def _object_texts(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Format the values of each row as a JSON object."""
    pieces: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:", _value_texts(column)]
    return pc.binary_join_element_wise(*pieces, "}", "") if pieces else pa.array(["{}"] * rows, pa.string())


def _value_texts(array: pa.Array) -> pa.Array:
    """Format each value of a column as JSON."""
    kind = array.type
    if pt.is_struct(kind):
        texts = _object_texts([field.name for field in kind], array.flatten(), len(array))
    elif pt.is_map(kind):
        texts = _map_texts(array)
    elif pt.is_list(kind):
        texts = _join_lists(array, _value_texts(array.flatten()), "[]")
    elif pt.is_integer(kind) or pt.is_boolean(kind):
        texts = array.cast(pa.string())
    elif pt.is_floating(kind):
        texts = _float_texts(array)
    elif is_text(kind):
        texts = _string_texts(array.cast(pa.string()))
    elif pt.is_timestamp(kind):
        # Without the zone, which is UTC: Arrow takes 40 times as long to write times with one.
        plain = array.cast(pa.timestamp(kind.unit)).cast(pa.string())
        texts = _quote_texts(pc.replace_substring(plain, " ", "T"), "Z" if kind.tz else "")
    elif pt.is_date(kind) or pt.is_decimal(kind):
        texts = _quote_texts(array.cast(pa.string()))
    else:
        encoded = [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
        texts = _quote_texts(pa.array(encoded, pa.string()))
    if array.null_count:
        texts = pc.if_else(array.is_valid(), texts, "null")
    return texts


def _quote_texts(texts: pa.Array, suffix: str = "") -> pa.Array:
    return pc.binary_join_element_wise('"', texts, f'{suffix}"', "")


def _string_texts(texts: pa.Array) -> pa.Array:
    escaped = _quote_texts(pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"'))
    has_controls = pc.fill_null(pc.match_substring_regex(texts, "[\\x00-\\x1f]"), False)
    return _replace_where(
        escaped, has_controls, [json.dumps(text, ensure_ascii=False) for text in texts.filter(has_controls).to_pylist()]
    )


def _float_texts(array: pa.Array) -> pa.Array:
    """Format floats by Arrow's shortest texts, but those that JSON lacks, and -0, which it reads as an integer."""
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    is_special = ~np.isfinite(numbers) | ((numbers == 0) & np.signbit(numbers))
    names = ["-0.0" if number == 0 else f'"{float_name(number)}"' for number in numbers[is_special].tolist()]
    return _replace_where(array.cast(pa.string()), pa.array(is_special), names)


def _replace_where(texts: pa.Array, where: pa.Array, replacements: list[str]) -> pa.Array:
    if not replacements:
        return texts
    return pc.replace_with_mask(texts, where, pa.array(replacements, pa.string()))


def _map_texts(array: pa.Array) -> pa.Array:
    """Return maps as JSON texts: objects if their keys are distinct texts, else lists of entries."""
    entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    lists = array.cast(pa.list_(entry))
    entries = lists.flatten()
    keys, items = entries.flatten()
    if is_text(array.type.key_type) and not _has_repeated_keys(keys, _list_lengths(lists)):
        return _join_lists(lists, pc.binary_join_element_wise(_value_texts(keys), _value_texts(items), ":"), "{}")
    return _join_lists(lists, _value_texts(entries), "[]")


def _has_repeated_keys(keys: pa.Array, lengths: Any) -> bool:
    """Whether any map of a column has a key twice."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = np.repeat(np.arange(len(lengths)), lengths) * (len(keys) + 1) + codes
    return len(np.unique(pairs)) < len(pairs)


def _list_lengths(array: pa.Array) -> Any:
    return pc.fill_null(pc.list_value_length(array), 0).to_numpy()


def _join_lists(array: pa.Array, entries: pa.Array, brackets: str) -> pa.Array:
    """Join the texts of each list's entries, in brackets."""
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(_list_lengths(array), out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), entries), ",")
    return pc.binary_join_element_wise(brackets[0], joined, brackets[1], "")
