"""Finds maps with equal keys or a null key: Arrow stores them, but DuckDB cannot read a column that has one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.errors import SchemaMismatchError
from txnstore.values.kinds import children


class WrongKey(NamedTuple):
    """A key that a map has twice, or a null, and the row of the map."""

    row: int
    key: object

    def __str__(self) -> str:
        return "a map with a null key" if self.key is None else f"a map with the key {self.key!r} twice"


def check_maps(column: pa.ChunkedArray, name: str) -> None:
    """Refuse a column in which a map, at any level, has equal keys or a null key.

    Raises:
        SchemaMismatchError: The message names the column and the first such row.
    """
    if not has_maps(column.type):
        return
    first_row = 0
    for chunk in column.chunks:
        wrong_key = _find_wrong_key(chunk, np.arange(first_row, first_row + len(chunk)))
        if wrong_key is not None:
            msg = (
                f"column {name!r} has {wrong_key} in row {wrong_key.row}; the keys of a map must be unique and not null"
            )
            raise SchemaMismatchError(msg)
        first_row += len(chunk)


@lru_cache(maxsize=1024)
def has_maps(data_type: pa.DataType) -> bool:
    """Whether values of the type are, or contain, maps."""
    return bool(pt.is_map(data_type)) or (pt.is_nested(data_type) and any(map(has_maps, children(data_type))))


def first_wrong_key(array: pa.Array) -> WrongKey | None:
    """The first row with a map that has equal keys or a null key; None if there is none."""
    return _find_wrong_key(array, np.arange(len(array))) if has_maps(array.type) else None


def _find_wrong_key(array: Any, rows: npt.NDArray[np.int64]) -> WrongKey | None:
    """The first row with a wrong key; ``rows`` has the row of each element of the array."""
    if not has_maps(array.type):
        return None
    if array.null_count:  # The items behind a null are no values.
        valid = array.is_valid()
        array, rows = array.filter(valid), rows[valid.to_numpy(zero_copy_only=False)]
    if pt.is_struct(array.type):
        return _in_first_row(_find_wrong_key(field, rows) for field in array.flatten())
    offsets = array.offsets.to_numpy()
    element_of_item = np.repeat(np.arange(len(array)), np.diff(offsets))
    start, limit = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    if pt.is_list(array.type):
        return _find_wrong_key(array.values.slice(start, limit - start), rows[element_of_item])
    keys, items = (part.slice(start, limit - start) for part in (array.keys, array.items))
    index = _wrong_key_index(keys, element_of_item)
    own_wrong_key = None if index is None else WrongKey(int(rows[element_of_item[index]]), keys[index].as_py())
    return _in_first_row(
        [own_wrong_key, _find_wrong_key(keys, rows[element_of_item]), _find_wrong_key(items, rows[element_of_item])]
    )


def _in_first_row(candidates: Any) -> WrongKey | None:
    """The wrong key in the first row; None without one."""
    return min(
        (candidate for candidate in candidates if candidate is not None),
        key=lambda candidate: candidate.row,
        default=None,
    )


def _wrong_key_index(keys: Any, maps: npt.NDArray[np.int64]) -> int | None:
    """The index of the first key that is null or repeated; ``maps`` has the map of each key."""
    if keys.null_count:
        return int(np.argmin(keys.is_valid().to_numpy(zero_copy_only=False)))
    if pt.is_nested(keys.type):
        first_indexes: dict[tuple[int, str], int] = {}
        keys_of_maps = zip(maps.tolist(), map(repr, keys.to_pylist()), strict=True)
        return next(
            (index for index, key in enumerate(keys_of_maps) if first_indexes.setdefault(key, index) != index), None
        )
    if pt.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0, keys.type))  # -0.0 and 0.0 are equal keys.
    codes = keys.dictionary_encode()
    pairs = maps * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    order = np.argsort(pairs, kind="stable")
    repeated_indexes = order[1:][np.diff(pairs[order]) == 0]
    return int(repeated_indexes.min()) if len(repeated_indexes) else None
