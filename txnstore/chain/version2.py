"""Objects of format version 2, as the JSON of version 3: what stores of earlier releases contain.

Version 2 named the place of a segment in its key: ``<object>#<topic>/<partition>/<entry>-<first byte>.<format>``. It
had an event for each batch, kept one list of objects that batches were removed from and that a vacuum had announced,
and compactors wrote claims on partitions into the chain, which are advice and have no effect here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txnstore.core.log.released import joined
from txnstore.core.model import EntrySpan

Json = dict[str, Any]

VERSION = 2

#: The members that a batch of version 2 could lack, and their values then.
_BATCH: Json = {"first_row": 0, "producer_id": -1, "epoch": -1, "base_sequence": -1, "transactional": False}
#: The members of a batch that became those of its rows.
_ROWS = ("first_row", "base_offset", "records", "base_sequence", "min_timestamp", "max_timestamp")


def place_of(key: str) -> tuple[str, int | None]:
    """The object and the first byte that the key of a segment names; None for a whole object."""
    object_key, separator, name = key.partition("#")
    return object_key, int(name.rpartition("-")[2].partition(".")[0]) if separator else None


def entry(document: Json) -> Json:
    """An entry. The batches of an event of version 2 were appended at the time of their entry."""
    events = [_EVENTS.get(event.get("type"), _same)(event) for event in document.get("events", ())]
    return {**document, "events": events}


def head(document: Json) -> Json:
    """The head of a checkpoint."""
    dropped: dict[str, int] = document.get("dropped", {})
    spans: tuple[EntrySpan, ...] = ()
    for at, number in sorted((at, int(name.partition("/")[2])) for name, at in dropped.items() if _is_entry(name)):
        spans = joined(spans, EntrySpan(number, number, at))
    return {
        **{name: value for name, value in document.items() if name != "claims"},
        "dropped": {name: at for name, at in dropped.items() if not name.startswith("#")},
        "released": {name[1:]: at for name, at in dropped.items() if name.startswith("#topics/")},
        "released_entries": spans,
    }


def _is_entry(name: str) -> bool:
    return name.startswith("#") and not name.startswith("#topics/")


def _same(event: Json) -> Json:
    return event


def _advice(event: Json) -> Json:
    return {"type": "UnknownEvent", "name": event["type"]}


def _batch_appended(event: Json) -> Json:
    batch = {**_BATCH, **event["batch"]}
    rows = {name: batch[name] for name in _ROWS}
    return {
        "type": "BatchesAppended",
        "topic": event["topic"],
        "segment": _segment(batch["segment"]),
        **{name: batch[name] for name in ("producer_id", "epoch", "transactional")},
        "timestamp_type": None,
        "batches": [{"partition": event["partition"], **rows}],
    }


def _segments_replaced(event: Json) -> Json:
    added = [{**batch, "segment": _segment(batch["segment"]), "timestamp_type": None} for batch in event["added"]]
    return {**event, "added": added}


def _objects_forgotten(event: Json) -> Json:
    """Entries that are forgotten one by one stay in their spans, which costs nothing but a look at them."""
    return {**event, "keys": [*_without_entries(event["keys"])]}


def _without_entries(names: Iterable[str]) -> Iterable[str]:
    return (name.removeprefix("#") for name in names if not _is_entry(name))


def _segment(segment: Json) -> Json:
    object_key, first_byte = place_of(segment["key"])
    same = {name: value for name, value in segment.items() if name != "key"}
    return {**same, "object": object_key, "first_byte": first_byte}


_EVENTS: dict[Any, Callable[[Json], Json]] = {
    "BatchAppended": _batch_appended,
    "SegmentsReplaced": _segments_replaced,
    "ObjectsForgotten": _objects_forgotten,
    "PartitionsClaimed": _advice,
    "PartitionsReleased": _advice,
}
