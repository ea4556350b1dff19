"""What a store answers in the form of ``expected.json``: asked of txnstore, and of the tests' reader of the format.

docs/format/vectors/README.md describes the form.
"""

from __future__ import annotations

import warnings
from typing import Any

from tests.helpers.connections import connection_of
from tests.helpers.format_reader import Reader, plain, ranges
from tests.helpers.format_reader import View as ReadView
from txnstore.chain.earlier_states import EarlierStates
from txnstore.core.groups.model import CommittedOffset
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, Map, TopicPartition, sorted_items
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.segment.schema import RECORD_SCHEMA
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.store import Store
from txnstore.validation import BlockedReadWarning

ISOLATIONS = tuple(str(isolation) for isolation in Isolation)


def objects_of(objects: ObjectStore) -> dict[str, bytes]:
    """All objects of a store."""
    return {item.key: objects.get(item.key) for item in objects.list("")}


# Of txnstore ----------------------------------------------------------------------------------------------------------


def states_of(store: Store) -> list[dict[int, State]]:
    """The state of each chain after each entry of its history."""
    connection, states = connection_of(store), []
    for chain, head in zip(connection.chains, connection.view().states, strict=True):
        past = EarlierStates(connection.objects, connection.keys, head, connection.pool, chain.boundaries)
        numbers = range(chain.boundaries.last().sequence, head.sequence + 1)
        states.append({number: past.at(number) for number in numbers})
    return states


def answers(store: Store) -> dict[str, Any]:
    """All that a store answers at the heads of its chains, and in the past."""
    states = states_of(store)
    heads, firsts = [max(each) for each in states], [min(each) for each in states]
    view = _view(states, heads)
    return {
        "chains": len(states),
        "firsts": firsts,
        "heads": heads,
        "topics": {
            topic.name: {
                "topic_id": topic.topic_id,
                "partitions": topic.partitions,
                "columns": (store.topic(topic.name).schema or RECORD_SCHEMA).names,
            }
            for topic in view.sorted_topics()
        },
        "records": {
            name: {kind: _rows(store, view, name, kind) for kind in ISOLATIONS} for name in sorted(view.topics)
        },
        **_bounds(view),
        "past": [_past(states, entries) for entries in moments(firsts, heads)],
    }


def moments(firsts: list[int], heads: list[int]) -> list[list[int]]:
    """An entry of one chain, and the others at their first ones: for each entry of each chain. Most are not closed."""
    cuts = [firsts]
    for number, (first, head) in enumerate(zip(firsts, heads, strict=True)):
        cuts += [[*firsts[:number], entry, *firsts[number + 1 :]] for entry in range(first + 1, head + 1)]
    return cuts


def _past(states: list[dict[int, State]], entries: list[int]) -> dict[str, Any]:
    cut = _closed(states, entries)
    return {"entries": entries, "cut": cut, **_bounds(_view(states, cut))}


def _closed(states: list[dict[int, State]], entries: list[int]) -> list[int]:
    cut, before = [*entries], None
    while cut != before:
        before = [*cut]
        for number, entry in enumerate(before):
            for other, sequence in states[number][entry].seen.items():
                cut[other] = max(cut[other], sequence)
    return cut


def _view(states: list[dict[int, State]], cut: list[int]) -> View:
    return View(tuple(states[number][entry] for number, entry in enumerate(cut)))


def _bounds(view: View) -> dict[str, Any]:
    names = sorted(view.topics)
    return {
        "offsets": {
            name: [[log.log_start, log.last_stable_offset, log.high_watermark] for _, log in view.partitions_of(name)]
            for name in names
        },
        "shown": {
            name: {
                isolation: [
                    _joined((part.start, part.limit) for part in visible_slices(tp, log, Isolation(isolation)))
                    for tp, log in view.partitions_of(name)
                ]
                for isolation in ISOLATIONS
            }
            for name in names
        },
        "groups": _with_offsets(
            {
                name: {
                    "committed": _offsets(group.offsets),
                    "pending": {str(producer_id): _offsets(each) for producer_id, each in sorted_items(group.pending)},
                }
                for name, group in sorted_items(view.groups)
            }
        ),
    }


def _with_offsets(groups: dict[str, Any]) -> dict[str, Any]:
    """The groups that have offsets: readers need not know of members, nor of groups that have nothing else."""
    shown = {}
    for name, group in sorted(groups.items()):
        pending = {producer_id: offsets for producer_id, offsets in sorted(group["pending"].items()) if offsets}
        if group["committed"] or pending:
            shown[name] = {"committed": group["committed"], "pending": pending}
    return shown


def _offsets(offsets: Map[TopicPartition, CommittedOffset]) -> list[list[Any]]:
    values = ((tp, offset.value) for tp, offset in sorted_items(offsets))
    return [[*tp, value.offset, value.metadata, value.leader_epoch] for tp, value in values]


def _rows(store: Store, view: View, topic: str, isolation: str) -> list[list[Any]]:
    snapshot = Snapshot(view, store.store_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockedReadWarning)
        table = store.scan(topic, isolation, snapshot=snapshot).to_table()  # type: ignore[arg-type]
    columns = [[plain(value) for value in table[name]] for name in table.column_names if name != "_topic"]
    return sorted((list(row) for row in zip(*columns, strict=True)), key=lambda row: row[:2])


# Of the tests' reader -------------------------------------------------------------------------------------------------


def read_answers(reader: Reader) -> dict[str, Any]:
    """The same, of the reader of the format."""
    firsts, heads, view = reader.firsts, reader.heads, reader.view()
    return {
        "chains": len(heads),
        "firsts": firsts,
        "heads": heads,
        "topics": {
            name: {
                "topic_id": topic["topic_id"],
                "partitions": topic["partitions"],
                "columns": view.schema(name).names,
            }
            for name, topic in sorted(view.topics.items())
        },
        "records": {name: {kind: view.records(name, kind) for kind in ISOLATIONS} for name in sorted(view.topics)},
        **read_bounds(view),
        "past": [read_past(reader, entries) for entries in moments(firsts, heads)],
    }


def read_past(reader: Reader, entries: list[int]) -> dict[str, Any]:
    view = reader.view(entries)
    return {"entries": entries, "cut": view.cut, **read_bounds(view)}


def read_bounds(view: ReadView) -> dict[str, Any]:
    topics = {name: range(topic["partitions"]) for name, topic in sorted(view.topics.items())}
    return {
        "offsets": {name: [view.offsets(name, number) for number in numbers] for name, numbers in topics.items()},
        "shown": {
            name: {
                isolation: [
                    _joined((start, limit) for _, start, limit in view.places(name, number, isolation))
                    for number in numbers
                ]
                for isolation in ISOLATIONS
            }
            for name, numbers in topics.items()
        },
        "groups": _with_offsets(view.groups()),
    }


def _joined(parts: Any) -> list[list[int]]:
    return ranges(offset for start, limit in parts for offset in range(start, limit))
