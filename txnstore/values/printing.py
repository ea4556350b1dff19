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
    """The text of an object for each row."""
    columns = [column.combine_chunks() for column in table.columns]
    return _objects(table.column_names, columns, table.num_rows)


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
    elif is_text(kind):
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
    names = ["-0.0" if number == 0 else f'"{float_name(number)}"' for number in numbers[special].tolist()]
    return _replaced(array.cast(pa.string()), pa.array(special), names)


def _replaced(texts: pa.Array, where: pa.Array, replacements: list[str]) -> pa.Array:
    if not replacements:
        return texts
    return pc.replace_with_mask(texts, where, pa.array(replacements, pa.string()))


def _map_texts(array: pa.Array) -> pa.Array:
    entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    lists = array.cast(pa.list_(entry))
    entries = lists.flatten()
    keys, items = entries.flatten()
    if is_text(array.type.key_type) and not _repeat(keys, _list_lengths(lists)):
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
