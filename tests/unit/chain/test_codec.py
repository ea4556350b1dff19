"""Entries and other small documents: exact, versioned, and every damage is detected (OBJ-13)."""

from __future__ import annotations

import hashlib
import json
import sys
from types import FrameType
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.documents import hint, members_of, store_document
from txnstore.chain.codec import (
    FORMAT_VERSION,
    LONG,
    Entry,
    LatestDocument,
    StoreDocument,
    content_hash,
    decode,
    encode,
    entry_json,
    json_values,
)
from txnstore.chain.rules import serializer_of
from txnstore.core.catalog.model import CatalogTopic, TopicCreated
from txnstore.core.groups.events import GroupOffset, OffsetsCommitted
from txnstore.core.log.events import AppendedRows, BatchesAppended, MarkerWritten
from txnstore.core.log.model import Segment
from txnstore.core.model import Outcome, TopicPartition
from txnstore.core.routing import MAX_CHAINS
from txnstore.core.transactions.events import PartitionsAdded, TxnCompleted
from txnstore.errors import CorruptionError, InvalidConfigError, UnsupportedFormatError

KEY = keys.entry(0, 7)


def entry(**changes: Any) -> Entry:
    values: dict[str, Any] = {
        "sequence": 7,
        "entry_id": "id",
        "writer_id": "writer",
        "timestamp": 1_700_000_000_000,
        "previous": "ab" * 32,
        "payload": None,
        "requires": None,
        "principals": None,
        "events": [
            TopicCreated(topic=CatalogTopic("t", "topic-id", 2, config={"segment.format": "arrow"})),
            PartitionsAdded(transactional_id="ä", producer_id=3, epoch=4, partitions=[TopicPartition("t", 1)]),
            TxnCompleted(
                transactional_id="ä", producer_id=3, epoch=4, outcome=Outcome.ABORT, next_producer_id=3, next_epoch=5
            ),
        ],
    }
    return Entry(**values | changes)


def sealed(body: bytes) -> bytes:
    """Any JSON object with a checksum that fits."""
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def document(**changes: Any) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(encode(entry()))
    del members["checksum"]
    return members | changes


def rewritten(value: object) -> bytes:
    return sealed(json.dumps(value, separators=(",", ":")).encode())


def test_encoding_runs_no_python_code() -> None:
    """An interrupt is raised in the next Python code; in code that pydantic calls, it would drop the interrupt."""
    called: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    document, write = entry(), serializer_of(Entry).to_json
    write(document)
    entry_json(document)
    sys.setprofile(profile)
    try:
        write(document, warnings="error")
        entry_json(document)
    finally:
        sys.setprofile(None)
    assert [name for name in called if not name.startswith("entry_json")] == []


def test_events_of_partitions_are_written_together_as_pydantic_writes_them_one_by_one() -> None:
    segment = Segment("k", "parquet", 1, "", 1)
    batches = [
        BatchesAppended("t", segment, -1, -1, False, "CreateTime", [AppendedRows(number, 0, 1, 0, -1, 5, 6)])
        for number in range(3)
    ]
    markers = [MarkerWritten("t", number, 3, 5, Outcome.COMMIT, 1) for number in range(3)]
    for events in ([*batches, *entry().events, *markers, *entry().events], batches, entry().events, []):
        document = entry(events=events)
        assert entry_json(document) == serializer_of(Entry).to_json(document)


def test_only_events_are_written() -> None:
    for count in (1, LONG):
        document = entry(events=[CatalogTopic("t", "topic-id", 2)] * count)
        with pytest.raises(InvalidConfigError, match="wrong type"):
            encode(document)


def test_encode_decode_round_trip() -> None:
    again = decode(Entry, KEY, encode(entry()))
    assert again == entry()
    assert type(again.events[1].partitions[0]) is TopicPartition  # type: ignore[union-attr]
    assert again.events[2].outcome is Outcome.ABORT  # type: ignore[union-attr]


def test_encoding_is_json_with_version_and_checksum() -> None:
    data = encode(entry())
    read = json.loads(data)
    assert read["version"] == FORMAT_VERSION
    assert list(read)[-1] == "checksum"
    body = data[: data.rindex(b',"checksum"')] + b"}"
    assert read["checksum"] == hashlib.sha256(body).hexdigest()


def test_equal_documents_have_equal_bytes() -> None:
    assert encode(entry()) == encode(entry())
    assert encode(entry()) != encode(entry(entry_id="other"))


def test_the_hash_of_the_content_is_the_sha256_of_all_bytes() -> None:
    assert content_hash(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_every_truncation_is_detected() -> None:
    data = encode(store_document())
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match=r"store\.json.*truncated or altered"):
            decode(StoreDocument, "store.json", data[:length])


def test_every_altered_byte_is_detected() -> None:
    """Whatever it hits, an altered entry is never taken for a good one; its name is in the message."""
    data = encode(store_document())
    for at in range(len(data)):
        for bit in (0x01, 0x80):
            altered = bytearray(data)
            altered[at] ^= bit
            with pytest.raises(CorruptionError, match=r"store\.json"):
                decode(StoreDocument, "store.json", bytes(altered))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"null", b"[]", b"\xff\xfe", b"PAR1", b"<html>not found</html>", b"[" * 100_000, b'{"version":"1"}'],
    ids=["empty", "object", "null", "array", "binary", "parquet", "html", "deep", "version-of-text"],
)
def test_other_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"00007\.json is truncated or altered"):
        decode(Entry, KEY, data)


def test_appended_bytes_are_detected() -> None:
    with pytest.raises(CorruptionError):
        decode(Entry, KEY, encode(entry()) + b" ")


def test_another_version_is_unsupported_with_any_content() -> None:
    """The version is compared before the content is validated: another format may have other members and events."""
    for other in (
        rewritten(document(version=FORMAT_VERSION - 1)),
        rewritten(document(version=FORMAT_VERSION + 1)),
        rewritten(document(version=FORMAT_VERSION + 1, colour="red")),
        sealed(b'{"version": 7, "all": "different"}'),
    ):
        with pytest.raises(UnsupportedFormatError, match=r"00007\.json has format version \d; .* reads version 4$"):
            decode(Entry, KEY, other)


def test_damaged_digit_of_the_version_is_corruption() -> None:
    """A flipped bit makes "version":4 a "version":5; the checksum, which all versions share, tells them apart."""
    data = encode(hint(64)).replace(b'"version":4', b'"version":5')
    with pytest.raises(CorruptionError, match=r"00007\.json is altered, or of format version 5"):
        decode(LatestDocument, KEY, data)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"sequence": "7"}, "sequence"),
        ({"sequence": 7.0}, "sequence"),
        ({"timestamp": None}, "timestamp"),
        ({"events": {}}, "events"),
        ({"events": [{"kind": "TopicVanished"}]}, "events.0"),
        ({"requires": {"read": "all"}}, "requires"),
        ({"events": [{"type": "TopicCreated"}]}, "events.0.TopicCreated.topic"),
    ],
    ids=str,
)
def test_invalid_document_error_names_the_member(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(CorruptionError, match=f"00007.json is not a valid Entry: {where}"):
        decode(Entry, KEY, rewritten(document(**changes)))


@pytest.mark.parametrize("missing", [name for name in members_of(Entry)[1:] if name != "carried"])
def test_a_document_without_a_member_is_corrupt(missing: str) -> None:
    members = document()
    del members[missing]
    with pytest.raises(CorruptionError, match=f"Entry: {missing}: Field required"):
        decode(Entry, KEY, rewritten(members))


def test_document_that_is_nested_too_deeply_is_damage() -> None:
    body = b'{"version":%d,"events":' % FORMAT_VERSION + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(CorruptionError, match=r"00007\.json is not a valid Entry"):
        decode(Entry, KEY, sealed(body))


def test_document_of_another_kind_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="StoreDocument"):
        decode(StoreDocument, "store.json", encode(hint(4)))


@pytest.mark.parametrize("chains", [-1, 0, MAX_CHAINS + 1, 2**70])
def test_number_of_chains_that_no_store_has_is_damage(chains: int) -> None:
    """Opening the store would start workers for each of them, until there is no memory left."""
    data = rewritten({**json_values(store_document()), "chains": chains})
    with pytest.raises(CorruptionError, match=r"store\.json is not a valid StoreDocument: chains"):
        decode(StoreDocument, "store.json", data)


@pytest.mark.parametrize("offset", [1.5, "1", object()], ids=["float", "text", "object"])
def test_a_value_of_a_wrong_type_is_not_written(offset: Any) -> None:
    """An entry that no reader accepts would make the store unreadable; ``test_wrong_types.py`` has all places."""
    events = [OffsetsCommitted(group="g", offsets=[GroupOffset(topic="t", partition=0, offset=offset)])]
    for count in (1, LONG):
        with pytest.raises(InvalidConfigError, match="wrong type"):
            encode(entry(events=events * count))


def test_text_with_surrogates_is_not_written() -> None:
    with pytest.raises(InvalidConfigError, match="wrong type"):
        encode(StoreDocument(store_id="\ud800", chains=1, created_at=5, transaction_max_timeout_ms=1))


@pytest.mark.parametrize("body", [b'{"checkpoint":1}', b'{"checkpoint":1,"version":99}', b'{"version":"x"}'])
def test_document_that_does_not_begin_with_its_version_is_invalid(body: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"chains/latest/0000\.json is not a valid LatestDocument"):
        decode(LatestDocument, "chains/latest/0000.json", sealed(body))
