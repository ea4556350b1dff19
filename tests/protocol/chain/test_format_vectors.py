"""The test vectors of the format: txnstore and the tests' reader answer them, and they cover what they should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import format_reader
from tests.helpers.compaction import runtime
from tests.helpers.format_answers import answers, objects_of, read_answers
from tests.helpers.format_reader import Reader, RefusedError, split
from tests.pages import vectors
from txnstore.core.events import EVENT_TYPES
from txnstore.errors import UnsupportedFormatError
from txnstore.storage.memory import MemoryStore
from txnstore.store import open_on
from txnstore.testing import ManualClock

READABLE = [name for name in vectors.STORIES if name != "refused"]
NOW = ("chains", "heads", "topics", "records", "offsets", "shown", "groups")


def expected(name: str) -> dict[str, Any]:
    answered = vectors.expected(name)
    assert answered.pop("about") == vectors.about(name)
    return answered


def bucket_of(name: str) -> MemoryStore:
    bucket = MemoryStore(clock=ManualClock(vectors.BEGIN_MS))
    for key, data in vectors.unpacked(name).items():
        bucket.put(key, data)
    return bucket


@pytest.mark.parametrize("name", READABLE)
def test_txnstore_answers_the_vectors(name: str) -> None:
    store = open_on(bucket_of(name), read_only=True, runtime=runtime(ManualClock(vectors.BEGIN_MS)))
    assert json.loads(json.dumps(answers(store))) == expected(name)


@pytest.mark.parametrize("name", READABLE)
def test_the_reader_of_the_format_answers_the_vectors(name: str) -> None:
    """With all events, and with those alone that readers need; from the first entries, and from late checkpoints."""
    objects = vectors.unpacked(name)
    for complete in (True, False):
        assert read_answers(Reader(objects, complete=complete)) == expected(name)
    hinted = read_answers(Reader(objects, hints=True))
    assert {part: hinted[part] for part in NOW} == {part: expected(name)[part] for part in NOW}


def test_a_store_with_an_unknown_feature_for_readers_is_refused_by_its_name() -> None:
    feature = expected("refused")["refused"]
    with pytest.raises(RefusedError, match=feature):
        Reader(vectors.unpacked("refused"))
    with pytest.raises(UnsupportedFormatError, match=feature):
        open_on(bucket_of("refused"), read_only=True, runtime=runtime(ManualClock(vectors.BEGIN_MS)))


@pytest.mark.parametrize("name", vectors.STORIES)
def test_vectors_are_what_their_stories_make(name: str) -> None:
    """Compared by what they answer: another release of Arrow writes other bytes."""
    again = json.loads(json.dumps(vectors.expected_of(vectors.make(name))))
    assert again == vectors.expected(name), f"python -m tests.pages.vectors {name}"


def test_the_same_story_makes_the_same_bytes() -> None:
    first, second = (vectors.packed(objects_of(vectors.make("deleted").bucket)) for _ in range(2))
    assert first == second


def test_the_readme_lists_the_vectors() -> None:
    text = vectors.README.read_text(encoding="utf-8")
    assert vectors.with_table(text) == text, "python -m tests.pages.vectors"
    assert {path.parent.name for path in vectors.FOLDER.glob("*/store.tar.gz")} == set(vectors.STORIES)


def test_vectors_are_small() -> None:
    assert sum(path.stat().st_size for path in vectors.FOLDER.glob("*/*")) < 400_000


# What they cover ------------------------------------------------------------------------------------------------------


def batches() -> Iterator[dict[str, Any]]:
    """The batches of all states of all vectors."""
    for name in READABLE:
        for states in Reader(vectors.unpacked(name)).states:
            for state in states.values():
                for log in state.partitions.values():
                    yield from log["batches"].values()


def test_vectors_have_every_kind_of_segment() -> None:
    listed = [*batches()]
    segments = [batch["segment"] for batch in listed]
    assert {segment["format"] for segment in segments} == {"parquet", "arrow", "arrow_stream"}
    assert {segment["explicit_offsets"] for segment in segments} == {True, False}
    assert any(segment["footer_size"] for segment in segments)
    assert any(batch["delete_horizon"] is not None for batch in listed)
    assert {batch["timestamp_type"] for batch in listed} == {"CreateTime", "LogAppendTime"}
    shared = [batch for batch in listed if batch["records"] < batch["segment"]["rows"]]
    assert {batch["segment"]["explicit_offsets"] for batch in shared} == {True, False}
    assert {batch["segment"]["first_byte"] is None for batch in shared} == {True, False}


def test_vectors_have_events_of_all_types_that_readers_need_and_most_others() -> None:
    types = set[str]()
    for name in vectors.STORIES:
        for key, data in vectors.unpacked(name).items():
            if "/entries/" in key:
                types |= {event["type"] for event in json.loads(split(data)[1])["events"]}
    assert set(format_reader.READERS) <= types
    assert len(EVENT_TYPES - types) < 6
    assert types - EVENT_TYPES == {"RecordsSigned"}


@pytest.mark.parametrize("event", format_reader.READERS)
def test_no_vector_is_answered_without_an_event_that_readers_need(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is needed: without it, a reader answers some vector otherwise."""
    monkeypatch.delitem(format_reader.READERS, event)
    assert any(_differs(name) for name in READABLE)


def _differs(name: str) -> bool:
    try:
        return bool(read_answers(Reader(vectors.unpacked(name))) != expected(name))
    except (KeyError, RefusedError):
        return True


@pytest.mark.parametrize("kind", ["store.json", "/entries/", "topics/"])
def test_the_reader_of_the_format_refuses_a_changed_byte(kind: str) -> None:
    """So an equal answer means something."""
    objects = vectors.unpacked("shared")
    changed = [key for key in objects if kind in key]
    assert changed
    for key in changed:
        data = bytearray(objects[key])
        data[len(data) // 2] ^= 1
        with pytest.raises(RefusedError):
            read_answers(Reader({**objects, key: bytes(data)}))
