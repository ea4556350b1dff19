"""Where the bytes of a segment lie: the key is parsed to a value, and the names of dropped segments are read back."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest

from txnstore.chain.keys import Keys, inlined, packed
from txnstore.core.log.model import Segment
from txnstore.core.log.places import (
    DroppedEntry,
    InEntry,
    InObject,
    InPack,
    Place,
    dropped_entry,
    dropped_pack,
    object_of,
    place_of,
)

KEYS = Keys("0000aaaa-0000-7000-8000-00000000cafe")
ENTRY = KEYS.entry(3, 12)
PLACES = [
    ("topics/t/0/a.parquet", InObject("topics/t/0/a.parquet")),
    (packed("topics/t/0/a.pack", "t", 5, 7, "arrow"), InPack("topics/t/0/a.pack", 7)),
    (inlined(ENTRY, "t-1", 0, "12-34", "parquet"), InEntry(ENTRY, 3, 12, 34)),
]


@pytest.mark.parametrize(("key", "place"), PLACES, ids=lambda value: type(value).__name__)
def test_key_of_a_segment_is_parsed_to_its_place(key: str, place: Place) -> None:
    assert place_of(key) == place
    assert type(place_of(key)) is type(place)
    segment = Segment(key, "arrow", 1, "", 1)
    assert segment.place is segment.place
    assert (segment.object, object_of(key)) == (place.object, place.object)
    assert (segment.is_range, segment.inlined) == (not isinstance(place, InObject), isinstance(place, InEntry))


@pytest.mark.parametrize(("key", "place"), PLACES, ids=lambda value: type(value).__name__)
def test_name_of_a_dropped_segment_leads_to_its_object(key: str, place: Place) -> None:
    name = place_of(key).dropped_as
    assert dropped_entry(name) == (DroppedEntry(3, 12) if isinstance(place, InEntry) else None)
    assert dropped_pack(name) == (place.object if isinstance(place, InPack) else None)
    assert KEYS.emptied(name) == (None if isinstance(place, InObject) else place.object)


def test_parsed_place_is_no_field_of_a_segment() -> None:
    """It is not stored, and an equal segment whose key was not parsed stays equal."""
    segment = Segment(PLACES[2][0], "arrow", 1, "", 1)
    fresh = replace(segment)
    assert segment.place.first_byte == 34
    assert (segment, hash(segment)) == (fresh, hash(fresh))
    assert "_place" not in {field.name for field in fields(segment)}
    assert replace(segment, key="topics/t/0/a.arrow").place == InObject("topics/t/0/a.arrow")
    assert pickle.loads(pickle.dumps(segment)).place == fresh.place  # noqa: S301 - our own bytes
