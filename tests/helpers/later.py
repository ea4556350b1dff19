"""What a later release of txnstore writes: entries and heads with features, members and events that this one lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.helpers import keys
from tests.helpers.damage import sealed
from txnstore.chain.codec import FORMAT_VERSION
from txnstore.chain.payload import entry_hash, line_of
from txnstore.storage.base import ObjectStore

#: An event that this release does not have.
UNKNOWN: dict[str, Any] = {"type": "RecordsSigned", "by": "someone", "parts": [1, {"deep": None}]}


def text(document: dict[str, Any]) -> bytes:
    """A document with its checksum."""
    document.pop("checksum", None)
    return sealed(json.dumps(document, separators=(",", ":")).encode())


def append_entry(
    objects: ObjectStore,
    events: Sequence[dict[str, Any]] = (UNKNOWN,),
    *,
    chain: int = 0,
    read: Sequence[str] = (),
    write: Sequence[str] = (),
    **members: Any,
) -> str:
    """The next entry of a chain, as a later release writes it; returns its key."""
    last = list(objects.list(keys.entries(chain)))[-1].key
    before = objects.get(last)
    sequence = (keys.entry_sequence(last) or 0) + 1
    document = {
        "version": FORMAT_VERSION,
        "sequence": sequence,
        "entry_id": f"later-{sequence}",
        "writer_id": "later",
        "timestamp": json.loads(line_of(before))["timestamp"] + 1,
        "previous": entry_hash(before),
        "payload": None,
        "requires": {"read": list(read), "write": list(write)} if read or write else None,
        "principals": None,
        **members,
        "events": list(events),
    }
    key = keys.entry(chain, sequence)
    assert objects.put_if_absent(key, text(document))
    return key


def change(objects: ObjectStore, key: str, **members: Any) -> None:
    """Add members to a document that exists, or replace them."""
    objects.put(key, text({**json.loads(objects.get(key)), **members}))
