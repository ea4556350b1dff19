"""Runs in which small segments are read like large ones: by parts, with checksums of their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from txnstore.read import ranged
from txnstore.segment import codec

#: The limits from which segments are large, and the bytes of a row group: a few records.
_SMALL: tuple[tuple[ModuleType, str, int], ...] = (
    (codec, "BLOCKS_FROM_BYTES", 1),
    (codec, "ROW_GROUP_BYTES", 100),
    (ranged, "SMALL_BYTES", 0),
    (ranged, "WHOLE_BYTES", 0),
)


@contextmanager
def reading_parts(parts: bool) -> Iterator[None]:
    """Inside the block, each Parquet segment is a large one, if ``parts``. No footer of another run is known."""
    ranged.forget_footers()
    before = [getattr(module, name) for module, name, _ in _SMALL]
    try:
        for module, name, value in _SMALL if parts else ():
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(_SMALL, before, strict=True):
            setattr(module, name, value)
