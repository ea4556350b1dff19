"""Finds maps with equal keys or a null key, which Arrow stores and DuckDB refuses: one makes its column unreadable."""

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
    """Refuse a column in which a map has equal keys or a null key; maps in lists, structs and maps count, too.

    Raises:
        SchemaMismatchError: There is one; the message names the column and the first such row.
    """
    if not has_maps(column.type):
        return
    first = 0
    for chunk in column.chunks:
        found = _find(chunk, np.arange(first, first + len(chunk)))
        if found is not None:
            msg = f"column {name!r} has {found} in row {found.row}; the keys of a map must be unique and not null"
            raise SchemaMismatchError(msg)
        first += len(chunk)


@lru_cache(maxsize=1024)
def has_maps(data_type: pa.DataType) -> bool:
    """Whether values of the type are, or contain, maps."""
    return bool(pt.is_map(data_type)) or (pt.is_nested(data_type) and any(map(has_maps, children(data_type))))


def wrong_key(array: pa.Array) -> WrongKey | None:
    """The first row with a map that has equal keys or a null key; None if there is none."""
    return _find(array, np.arange(len(array))) if has_maps(array.type) else None


def _find(array: Any, rows: npt.NDArray[np.int64]) -> WrongKey | None:
    """The first row with a wrong key; ``rows`` has the row of each element of the array."""
    if not has_maps(array.type):
        return None
    if array.null_count:  # What is behind a null is no value.
        valid = array.is_valid()
        array, rows = array.filter(valid), rows[valid.to_numpy(zero_copy_only=False)]
    if pt.is_struct(array.type):
        return _first(_find(field, rows) for field in array.flatten())
    offsets = array.offsets.to_numpy()
    inner = np.repeat(np.arange(len(array)), np.diff(offsets))
    start, limit = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    if pt.is_list(array.type):
        return _find(array.values.slice(start, limit - start), rows[inner])
    keys, items = (part.slice(start, limit - start) for part in (array.keys, array.items))
    found = _wrong_key(keys, inner)
    own = None if found is None else WrongKey(int(rows[inner[found]]), keys[found].as_py())
    return _first([own, _find(keys, rows[inner]), _find(items, rows[inner])])


def _first(found: Any) -> WrongKey | None:
    return min((each for each in found if each is not None), key=lambda each: each.row, default=None)


def _wrong_key(keys: Any, maps: npt.NDArray[np.int64]) -> int | None:
    """The place of the first key that is null, or that its map had before; ``maps`` has the map of each key."""
    if keys.null_count:
        return int(np.argmin(keys.is_valid().to_numpy(zero_copy_only=False)))
    if pt.is_nested(keys.type):
        places: dict[tuple[int, str], int] = {}
        each = zip(maps.tolist(), map(repr, keys.to_pylist()), strict=True)
        return next((place for place, key in enumerate(each) if places.setdefault(key, place) != place), None)
    if pt.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0, keys.type))  # -0.0 and 0.0 are equal keys.
    codes = keys.dictionary_encode()
    pairs = maps * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    order = np.argsort(pairs, kind="stable")
    again = order[1:][np.diff(pairs[order]) == 0]
    return int(again.min()) if len(again) else None
