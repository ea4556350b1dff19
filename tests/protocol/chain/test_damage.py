"""Altered chains are reported with the object, never read silently (OBJ-13, invariant 8)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.shell import a_chain, entries, names_in_bucket, topic
from txnstore.chain.codec import decode, encode
from txnstore.core.catalog.model import CreateTopic, DeleteTopic
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    ObjectNotFoundError,
    StorageError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from txnstore.storage.memory import MemoryStore

ENTRIES = 6


@pytest.fixture
def bucket() -> MemoryStore:
    """Six entries: each creates a topic."""
    objects = MemoryStore()
    with a_chain(objects) as chain:
        for number in range(1, ENTRIES + 1):
            chain.submit(CreateTopic(topic(f"t{number}")))
    return objects


def change(objects: MemoryStore, sequence: int, **members: Any) -> None:
    """Rewrite an entry, with a checksum that fits: as a process that knows the format could."""
    document = json.loads(objects.get(keys.entry(0, sequence)))
    del document["checksum"]
    body = json.dumps(document | members, separators=(",", ":")).encode()
    sealed = body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    objects.put(keys.entry(0, sequence), sealed)


def opened(objects: MemoryStore) -> str:
    """The error of opening the chain."""
    with pytest.raises(CorruptionError) as raised, a_chain(objects):
        pass
    return str(raised.value)


@pytest.mark.parametrize("sequence", [1, 3, ENTRIES])
@pytest.mark.parametrize("length", [0, 1, 50, -1])
def test_a_truncated_entry_is_named(bucket: MemoryStore, sequence: int, length: int) -> None:
    key = keys.entry(0, sequence)
    bucket.put(key, bucket.get(key)[:length])
    assert f"{key} is truncated or altered" in opened(bucket)


@pytest.mark.parametrize("sequence", [1, 3, ENTRIES])
def test_an_altered_byte_in_an_entry_is_named(bucket: MemoryStore, sequence: int) -> None:
    key = keys.entry(0, sequence)
    bucket.put(key, bucket.get(key).replace(b'"partitions":1', b'"partitions":2'))
    assert f"{key} is altered" in opened(bucket)


@pytest.mark.parametrize("sequence", [1, 3, ENTRIES - 1])
def test_an_entry_that_was_rewritten_with_a_good_checksum_breaks_the_hash_chain(
    bucket: MemoryStore, sequence: int
) -> None:
    """The entry after it names the hash of the bytes that were there."""
    change(bucket, sequence, timestamp=1)
    message = opened(bucket)
    assert f"{keys.entry(0, sequence)} was altered" in message
    assert keys.entry(0, sequence + 1) in message


def test_entry_with_a_wrong_previous_hash_is_reported(bucket: MemoryStore) -> None:
    change(bucket, 4, previous="0" * 64)
    message = opened(bucket)
    assert keys.entry(0, 3) in message
    assert keys.entry(0, 4) in message
    assert "0" * 64 in message


def test_entry_in_a_wrong_slot_is_reported(bucket: MemoryStore) -> None:
    bucket.put(keys.entry(0, 4), bucket.get(keys.entry(0, 5)))
    assert f"{keys.entry(0, 4)} contains entry 5; expected 4" in opened(bucket)


def test_entry_of_another_store_is_reported(bucket: MemoryStore) -> None:
    other = MemoryStore()
    with a_chain(other) as chain:
        for number in range(4):
            chain.submit(CreateTopic(topic(f"o{number}")))
    bucket.put(keys.entry(0, 4), other.get(keys.entry(0, 4)))
    assert keys.entry(0, 4) in opened(bucket)


def test_invalid_event_is_reported(bucket: MemoryStore) -> None:
    """The last entry deletes a topic that never was: with a good checksum and the right predecessor."""
    change(bucket, ENTRIES, events=[{"type": "TopicDeleted", "name": "never", "topic_id": "x"}])
    assert f"{keys.entry(0, ENTRIES)} contains an event that is invalid" in opened(bucket)


def test_an_entry_of_a_newer_format_is_refused_and_named(bucket: MemoryStore) -> None:
    """COORD-07."""
    change(bucket, ENTRIES, version=5, weather="fine")
    with pytest.raises(UnsupportedFormatError, match=r"00006\.json has format version 5"), a_chain(bucket):
        pass


@pytest.mark.parametrize("sequence", [1, 3, ENTRIES - 1])
def test_a_missing_entry_in_the_middle_is_named(bucket: MemoryStore, sequence: int) -> None:
    """It is not skipped, nor taken for the end: a commit would write over what happened there."""
    bucket.delete([keys.entry(0, sequence)])
    assert f"{keys.entry(0, sequence)} is missing" in opened(bucket)


def test_entries_written_during_load_are_not_a_gap(bucket: MemoryStore) -> None:
    """The request for entry 3 came before it was written, that for entry 4 after both were."""
    missing_keys = [keys.entry(0, 3)]

    def get(key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key in missing_keys:
            missing_keys.remove(key)
            raise ObjectNotFoundError(key)
        return MemoryStore.get(bucket, key, start, end)

    bucket.get = get  # type: ignore[method-assign]
    with a_chain(bucket) as chain:
        assert chain.state.sequence == ENTRIES
    assert not missing_keys


def test_open_chain_reports_damage_on_its_next_read(bucket: MemoryStore) -> None:
    """What it knows stays; what it cannot trust is not folded, at the first look and at every later one."""
    with a_chain(bucket) as reader, a_chain(bucket) as writer:
        writer.submit(CreateTopic(topic("t7")))
        bucket.put(keys.entry(0, 7), bucket.get(keys.entry(0, 7))[:-9])
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"00007\.json"):
                reader.refresh()
        assert reader.state.sequence == ENTRIES


def test_writer_does_not_append_after_an_unreadable_entry(bucket: MemoryStore) -> None:
    """The slot is taken by something damaged: the commit fails and names it, again and again, and writes nothing.

    The process cannot know whether the entry was its own: a transport that repeats a create gets "exists".
    """
    with a_chain(bucket) as chain:
        bucket.put(keys.entry(0, 7), b"garbage")
        for error in (UnknownOutcomeError, StorageError):  # The second command waits for the first one's outcome.
            with pytest.raises(error, match=r"00007\.json is truncated or altered"):
                chain.submit(CreateTopic(topic("mine")))
        with pytest.raises(CorruptionError, match=r"00007\.json is truncated or altered"):
            chain.refresh()
        assert [item.key for item in bucket.list(keys.entries(0))][-1] == keys.entry(0, 7)
        # Once the object is repaired (here: deleted), the chain continues, with the entry whose outcome was unknown.
        bucket.delete([keys.entry(0, 7)])
        chain.submit(CreateTopic(topic("next")))
        assert names_in_bucket(bucket)[-2:] == ["mine", "next"]


def test_storage_failure_is_not_corruption(bucket: MemoryStore) -> None:
    """An entry that cannot be read now is not the end of the chain, either."""

    def get(key: str, start: int | None = None, end: int | None = None) -> bytes:
        if key == keys.entry(0, 4):
            raise StorageError("503")
        return MemoryStore.get(bucket, key, start, end)

    bucket.get = get  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="503"), a_chain(bucket):
        pass


def test_entries_contain_the_hash_of_their_predecessor(bucket: MemoryStore) -> None:
    previous = ""
    for entry in entries(bucket):
        assert entry.previous == previous
        data = bucket.get(keys.entry(0, entry.sequence))
        previous = hashlib.sha256(data).hexdigest()
        assert encode(decode(type(entry), "key", data)) == data


@pytest.mark.parametrize("chain", [-1, 1, 7])
def test_entry_that_rests_on_a_chain_that_does_not_exist_is_named(bucket: MemoryStore, chain: int) -> None:
    change(bucket, ENTRIES, events=[{"type": "Observed", "chain": chain, "sequence": 1}])
    key = keys.entry(0, ENTRIES)
    message = opened(bucket)
    assert f"{key} contains an event that is invalid in the state before it" in message
    assert f"chain {chain} is named, but the store has chains 0 to 0" in message


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "LogStartMoved", "topic": "nosuch", "partition": 3, "offset": 1}, "there is no nosuch-3"),
        ({"type": "TopicDeleted", "name": "nosuch", "topic_id": "x"}, "there is no 'nosuch'"),
    ],
)
def test_entry_that_is_about_what_does_not_exist_says_so(bucket: MemoryStore, event: dict[str, Any], text: str) -> None:
    """In words, not by the name of an exception."""
    change(bucket, ENTRIES, events=[event])
    key = keys.entry(0, ENTRIES)
    assert opened(bucket) == f"{key} contains an event that is invalid in the state before it: {text}"


def test_command_that_rests_on_a_chain_that_does_not_exist_is_refused(bucket: MemoryStore) -> None:
    with a_chain(bucket) as chain:
        with pytest.raises(InvalidConfigError, match="chain 7 is named"):
            chain.submit(DeleteTopic("t1", after=((7, 1),)))
        assert chain.refresh().sequence == ENTRIES
