"""Looks for what was erased in every object of a store, without what the erasure knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from txnstore.chain import keys
from txnstore.chain.codec import segments_of
from txnstore.chain.payload import decode_entry, payload_of
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.erase.predicate import Predicate
from txnstore.compactor.erase.report import Trace
from txnstore.compactor.erase.search import Search, look_unleased
from txnstore.connection import Connection
from txnstore.core.view import View
from txnstore.errors import ObjectNotFoundError, TxnStoreError
from txnstore.segment.pieces import SegmentFile, open_segment
from txnstore.storage.base import iterate_objects


def prove_erased(connection: Connection, topic: str, predicate: Predicate, memory: Memory) -> Iterator[Trace]:
    """Yield the traces of what was erased.

    Rows that the predicate chooses, in all objects that may have rows of the topic; and, if all of them have known
    bytes, these bytes in any object: as they are, and in the values of text and bytes of what is compressed.
    """

    def search_in(view: View) -> Search:
        return Search(connection, view.find_topic(topic), predicate, memory)

    with_rows = {item.key for item in look_unleased(connection, topic, search_in)[-1]}
    yield from (Trace(key, "rows") for key in sorted(with_rows))
    if not predicate.needle:
        return
    sought = _Sought(predicate.needle)
    for item in iterate_objects(connection.objects, ""):
        if item.key not in with_rows and _has_bytes(connection, item.key, sought):
            yield Trace(item.key, "bytes")


class _Sought:
    """Bytes that are sought, as a word of their own: ``customer-7`` is not in ``customer-77``."""

    def __init__(self, needle: bytes) -> None:
        self.needle = needle
        self._word = re.compile(rb"(?<![0-9A-Za-z])" + re.escape(needle) + rb"(?![0-9A-Za-z])")

    def is_in(self, data: bytes) -> bool:
        """Whether data has them."""
        return self._word.search(data) is not None

    def is_in_values(self, array: Any) -> bool:
        """Whether a value of text or bytes has them."""
        candidates = array.filter(pc.match_substring(array, self.needle))
        return any(self.is_in(value.encode() if isinstance(value, str) else value) for value in candidates.to_pylist())


def _has_bytes(connection: Connection, key: str, sought: _Sought) -> bool:
    """Whether an object has these bytes, also where they are compressed."""
    try:
        data = connection.objects.get(key)
    except ObjectNotFoundError:
        return False
    return sought.is_in(data) or any(
        _array_has(chunk, sought)
        for file in _files(key, data)
        for piece in range(len(file.rows))
        for name in file.columns
        for chunk in file.read(piece, [name]).column(0).chunks
    )


def _files(key: str, data: bytes) -> Iterator[SegmentFile]:
    """The files with rows that an object consists of; none of what is no file, or cannot be read."""
    try:
        if keys.entry_sequence(key) is not None:
            payload = payload_of(data)
            for segment in segments_of(decode_entry(key, data)) if payload else ():
                if segment.object == key:
                    first = segment.first_byte or 0
                    yield open_segment(payload[first : first + segment.size], segment.format)
        elif key.endswith((".parquet", ".arrow")):
            yield open_segment(data, key.rpartition(".")[2])
    except (TxnStoreError, pa.ArrowException, OSError):
        return


def _array_has(array: Any, sought: _Sought) -> bool:
    """Whether a value of text or bytes in an array, at any depth, has these bytes."""
    kind = array.type
    if pt.is_struct(kind):
        return any(_array_has(array.field(index), sought) for index in range(kind.num_fields))
    if pt.is_map(kind):
        return _array_has(array.keys, sought) or _array_has(array.items, sought)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _array_has(array.flatten(), sought)
    if pt.is_dictionary(kind):
        return _array_has(array.dictionary, sought)
    if pt.is_fixed_size_binary(kind):
        return sought.is_in_values(array.cast(pa.binary()))
    is_text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)
    return is_text and sought.is_in_values(array)
