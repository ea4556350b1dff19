"""The test vectors of the format: txnstore and the tests' reader answer them, and they cover what they should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import format_reader, keys
from tests.helpers.compaction import runtime
from tests.helpers.format_answers import answers, objects_of, read_answers
from tests.helpers.format_reader import Reader, RefusedError, split
from tests.helpers.later import change
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert sum(path.stat().st_size for path in vectors.FOLDER.glob("*/*")) < 1_000_000


# What they cover ------------------------------------------------------------------------------------------------------


def batches() -> Iterator[dict[str, Any]]:
    """The batches of all states of all vectors."""
    for name in READABLE:
        for states in Reader(vectors.unpacked(name)).states:
            for state in states.values():
                for log in state.partitions.values():
                    yield from log["batches"].values()


@pytest.mark.slow
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


def test_vectors_have_events_of_all_types() -> None:
    types = set[str]()
    for name in vectors.STORIES:
        for key, data in vectors.unpacked(name).items():
            if "/entries/" in key:
                types |= {event["type"] for event in json.loads(split(data)[1])["events"]}
    assert types >= EVENT_TYPES
    assert types - EVENT_TYPES == {"RecordsSigned"}


@pytest.mark.slow
@pytest.mark.parametrize("event", format_reader.READERS)
def test_no_vector_is_answered_without_an_event_that_readers_need(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is needed: without it, a reader answers some vector otherwise."""
    monkeypatch.delitem(format_reader.READERS, event)
    assert any(_differs(name) for name in READABLE)


@pytest.mark.slow
@pytest.mark.parametrize("event", format_reader.WRITERS)
def test_no_checkpoint_is_that_of_a_fold_without_an_event_that_writers_need(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(format_reader.WRITERS, event)
    assert any(_differs(name, complete=True) for name in reversed(READABLE))


#: Rules as a reader may have misread them: the vector that shows it, what the tests' reader says, and the wrong rule.
WRONG: dict[str, tuple[str, str, str]] = {
    "the last stable offset may be below the log start": (
        "unusual",
        'stable = max(log["log_start"], min(log["open_txns"].values(), default=log["high_watermark"]))',
        'stable = min(log["open_txns"].values(), default=log["high_watermark"])',
    ),
    "a batch is not cut at the last stable offset": (
        "unusual",
        '(batch, max(start, base), min(limit, batch["limit"]))',
        '(batch, max(start, base), min(end, batch["limit"]))',
    ),
    "a column of the topic replaces a stored time": (
        "unusual",
        'if "_timestamp" in table.column_names:',
        'if "_timestamp" in table.column_names and time_column not in table.column_names:',
    ),
    "a decided abort hides all batches of its producer": (
        "identities",
        '"first_offset": first, "last_offset": log["high_watermark"] - 1',
        '"first_offset": 0, "last_offset": log["high_watermark"] - 1',
    ),
    **{
        f"pending offsets replace later ones when {where}": (
            name,
            'if tp not in group["offsets"] or group["offsets"][tp]["commit_position"] < offset["commit_position"]:',
            "if offset:",
        )
        for where, name in (("a marker ends them", "takeovers"), ("they are decided", "identities"))
    },
    "a state is older than the one before it": (
        "unusual",
        'entry["sequence"], max(entry["timestamp"], state.timestamp)',
        'entry["sequence"], entry["timestamp"]',
    ),
    "a window continues in a new epoch": ("unusual", ' and before["epoch"] == event["epoch"] else []', " else []"),
    "an older epoch replaces a fence": (
        "unusual",
        "if before is not None and epoch < before[0]:",
        "if prepared is None:",
    ),
    "an older epoch changes nothing of a fence": ("unusual", "before[1] = state.timestamp", "pass"),
    "an older epoch sets prepared of a fence": (
        "unusual",
        "before[1] = state.timestamp",
        "before[1:] = [state.timestamp, prepared or before[2]]",
    ),
    "the same epoch changes only the time of a fence": ("unusual", "and epoch < before[0]:", "and epoch <= before[0]:"),
    "a kept transaction begins again": ("identities", 'if event["keeps"] and before is not None:', "if name is None:"),
    "a new instance has no versions": (
        "identities",
        '"versions": before["versions"] if before is not None else {}',
        '"versions": {}',
    ),
    "a partition that joins restarts the timeout": ("identities", 'if txn["state"] != "ONGOING":', "if txn:"),
    "any batch of its producer keeps an aborted transaction": (
        "unusual",
        'batch["transactional"]\n        and batch["producer_id"] == entry["producer_id"]\n        and',
        'batch["producer_id"] == entry["producer_id"]\n        and',
    ),
    "offsets without the id of a topic stay when it is deleted": (
        "unusual",
        'offsets[tp]["topic_id"] in (None, event["topic_id"])',
        'offsets[tp]["topic_id"] == event["topic_id"]',
    ),
    "offsets of another topic of the name go when one is deleted": (
        "unusual",
        'if tp in offsets and offsets[tp]["topic_id"] in (None, event["topic_id"]):',
        "if tp in offsets:",
    ),
    "a static member begins with nothing": (
        "takeovers",
        'members.get(event["replaces"] or event["member_id"], ',
        'members.get(event["member_id"], ',
    ),
    "a fence ends a transaction": (
        "unusual",
        'for tp in event["partitions"]:\n        set_producer(',
        'for tp in event["partitions"]:\n        state.partitions[tuple(tp)]["open_txns"] = {}\n        set_producer(',
    ),
    "an object that is announced stays released": (
        "vacuumed",
        "state.dropped[key] = state.timestamp\n        state.released.pop(key, None)",
        "state.dropped[key] = state.timestamp",
    ),
    "spans of entries are not forgotten": ("vacuumed", 'if span not in event.get("entries", [])', "if span"),
    "a part of an object is dropped": (
        "vacuumed",
        'or batch["first_row"] or batch["records"] != segment["rows"]:',
        "and segment:",
    ),
    "an index file removes one range": ("wide", 'in item["removed"]:', 'in item["removed"][:1]:'),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_vector_shows_a_wrong_rule(rule: str) -> None:
    name, right, wrong = WRONG[rule]
    source = Path(format_reader.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1
    mutant = ModuleType(format_reader.__name__)
    exec(source.replace(right, wrong), mutant.__dict__)  # noqa: S102
    assert _differs(name, complete=True, reader=mutant.Reader)


def _differs(name: str, *, complete: bool = False, reader: type[Reader] = Reader) -> bool:
    """Whether a reader answers a vector otherwise, or finds another state than a checkpoint has."""
    try:
        return bool(read_answers(reader(vectors.unpacked(name), complete=complete)) != expected(name))
    except (AssertionError, KeyError, RefusedError):
        return True


@pytest.mark.slow
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


def test_a_head_under_another_name_is_damaged() -> None:
    """The checkpoint before it is used."""
    bucket = bucket_of("groups")
    (number,) = [number for item in bucket.list("") if (number := keys.checkpoint_sequence(item.key))]
    head = bucket.get(keys.checkpoint_state(0, number))
    bucket.put(keys.checkpoint_state(0, number + 1), head)
    answered = read_answers(Reader(objects_of(bucket), hints=True))
    assert {part: answered[part] for part in NOW} == {part: expected("groups")[part] for part in NOW}
    store = open_on(bucket, read_only=True, runtime=runtime(ManualClock(vectors.BEGIN_MS)))
    assert store.snapshot().heads == (*answered["heads"],)


def test_a_head_of_another_store_is_not_used() -> None:
    bucket = bucket_of("groups")
    (number,) = [number for item in bucket.list("") if (number := keys.checkpoint_sequence(item.key))]
    change(bucket, keys.checkpoint_state(0, number), chains=2)
    with pytest.raises(RefusedError, match="another chain or store"):
        Reader(objects_of(bucket), hints=True)
    store = open_on(bucket, read_only=True, runtime=runtime(ManualClock(vectors.BEGIN_MS)))
    assert json.loads(json.dumps(answers(store))) == expected("groups")
