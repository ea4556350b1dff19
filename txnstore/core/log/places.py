"""Where the bytes of a segment lie, as a value; and the names under which a state remembers dropped segments.

The key of a segment is a text on storage and in events (docs/format.md). This module is the only one that parses what
it says about the place; :mod:`txnstore.chain.keys` builds it, and builds and parses the keys of objects.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

#: Separates the key of an object from the name of a segment in it; no key of an object contains it.
PLACE = "#"
#: The ending of the key of a pack.
PACK = ".pack"
_TOPICS = "topics/"


class InObject(NamedTuple):
    """The segment is the object ``object``."""

    object: str

    @property
    def first_byte(self) -> int:
        """Its first byte in the object."""
        return 0

    @property
    def dropped_as(self) -> str:
        """The name that a state remembers when no batch names the segment any more."""
        return self.object


class InPack(NamedTuple):
    """The segment is a range of bytes of the pack ``object``."""

    object: str
    first_byte: int

    @property
    def dropped_as(self) -> str:
        """The name that a state remembers: one for all segments of the pack."""
        return f"{PLACE}{self.object}"


class InEntry(NamedTuple):
    """The segment is *inlined*: a range of bytes of entry ``sequence`` of ``chain``, whose key is ``object``."""

    object: str
    chain: int
    sequence: int
    first_byte: int

    @property
    def dropped_as(self) -> str:
        """The name that a state remembers, one for all segments of the entry.

        It is short, because all checkpoints of a day have the small commits that compactions have moved.
        """
        return f"{PLACE}{self.chain}/{self.sequence}"


Place: TypeAlias = InObject | InPack | InEntry


class DroppedEntry(NamedTuple):
    """An entry of which a state has dropped inlined segments."""

    chain: int
    sequence: int


def place_of(key: str) -> Place:
    """The place of the segment ``key``.

    Raises:
        ValueError: The key has ``#``, and not the form of the key of a range.
    """
    object_key, separator, name = key.partition(PLACE)
    if not separator:
        return InObject(key)
    first_byte = int(name.rpartition("-")[2].partition(".")[0])
    if object_key.endswith(PACK):
        return InPack(object_key, first_byte)
    _, chain, _, entry = object_key.rsplit("/", 3)
    return InEntry(object_key, int(chain), int(entry.partition(".")[0]), first_byte)


def object_of(key: str) -> str:
    """The key of the object that has the bytes of the segment ``key``."""
    return key.partition(PLACE)[0]


def is_range(key: str) -> bool:
    """Whether the segment ``key`` is a range of the bytes of an object, which may have other segments.

    As :func:`object_of` and :func:`is_inlined`, it does not parse the key: an append asks it of each batch.
    """
    return PLACE in key


def is_inlined(key: str) -> bool:
    """Whether the bytes of the segment ``key`` are in the entry that committed it."""
    return PLACE in key and not object_of(key).endswith(PACK)


def dropped_entry(name: str) -> DroppedEntry | None:
    """The entry that a state remembers as ``name``; None if that is the name of an object or a pack."""
    if not name.startswith(PLACE) or name.startswith(f"{PLACE}{_TOPICS}"):
        return None
    chain, _, sequence = name[1:].partition("/")
    return DroppedEntry(int(chain), int(sequence))


def dropped_pack(name: str) -> str | None:
    """The key of the pack that a state remembers as ``name``; None if that is the name of an object or an entry."""
    return name[1:] if name.startswith(f"{PLACE}{_TOPICS}") else None
