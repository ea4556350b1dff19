"""Histories as JSON lines, and the recorder that writes them while a client works."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from tests.harness.history.format import (
    Assign,
    Bounds,
    Decision,
    Event,
    History,
    MicroOp,
    Offsets,
    Poll,
    Records,
    Send,
    Snapshot,
    Type,
    history_of,
)

_DEFAULTS = {item.name: item.default for item in fields(Event)}


def to_line(event: Event | Decision) -> str:
    """One line of JSON, without the line's end."""
    if isinstance(event, Decision):
        document = {"decided": event.what, **asdict(event)}
        del document["what"]
    else:
        values = {name: getattr(event, name) for name in _DEFAULTS if name != "value"}
        document = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
        if event.value:
            document["value"] = [_micro_op(item) for item in event.value]
    return json.dumps(document, separators=(",", ":"))


def from_line(line: str) -> Event | Decision:
    """The event, or the decision, of a line."""
    document = json.loads(line)
    if "decided" in document:
        return Decision(document.pop("decided"), **document)
    document["type"] = Type(document["type"])
    document["value"] = tuple(_parse(item) for item in document.get("value", ()))
    document["rebalanced"] = tuple(document.get("rebalanced", ()))
    return Event(**document)


def read_history(paths: Iterable[Path], compacted: Iterable[str] = ()) -> History:
    """The history in these files, one per process. An incomplete last line is ignored."""
    events: list[Event] = []
    decisions: list[Decision] = []
    decided = False
    for path in paths:
        for item in _items(path):
            if isinstance(item, Event):
                events.append(item)
            else:
                decided = True
                decisions.append(item)
    return history_of(events, decisions if decided else None, compacted)


def write_history(path: Path, items: Iterable[Event | Decision]) -> None:
    """Write events and decisions to a file."""
    path.write_text("".join(to_line(item) + "\n" for item in items))


def _items(path: Path) -> Iterator[Event | Decision]:
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        if number == len(lines) - 1:
            return  # Empty, or incomplete because the process was killed.
        yield from_line(line)


def _micro_op(item: MicroOp) -> list[Any]:
    match item:
        case Send():
            rest = [item.offset, item.source, item.record_key]
            while rest and rest[-1] is None:
                rest.pop()
            return ["send", item.key, item.value, *rest]
        case Poll():
            return ["poll", item.records]
        case Offsets():
            return ["offsets", item.group, item.offsets]
        case Assign():
            return ["assign", item.keys, item.moved]
        case Snapshot():
            return [
                "snapshot",
                {
                    "bounds": {key: [it.log_start, it.lso, it.hw] for key, it in item.bounds.items()},
                    "records": item.records,
                    "groups": item.groups,
                    "unstable": item.unstable,
                },
            ]


def _parse(item: list[Any]) -> MicroOp:
    match item:
        case ["send", key, value, *rest]:
            offset, source, record_key = [*rest, None, None, None][:3]
            return Send(key, value, offset, None if source is None else (source[0], source[1]), record_key)
        case ["poll", records]:
            return Poll(_records(records))
        case ["offsets", group, offsets]:
            return Offsets(group, offsets)
        case ["assign", keys, moved]:
            return Assign(tuple(keys), tuple(moved))
        case ["snapshot", parts]:
            return Snapshot(
                {key: Bounds(*ends) for key, ends in parts["bounds"].items()},
                _records(parts["records"]),
                parts["groups"],
                tuple(parts["unstable"]),
            )
    msg = f"this is no part of an operation: {item!r}"
    raise ValueError(msg)


def _records(records: Mapping[str, list[list[Any]]]) -> dict[str, Records]:
    return {key: tuple((offset, value) for offset, value in pairs) for key, pairs in records.items()}


class Recorder:
    """Records the operations of one process: each event is passed to ``sink`` immediately, before the next call.

    ``clock`` returns the time of an event. The end of an operation contains only the fields that differ from its
    invocation.
    """

    def __init__(self, process: str, clock: Callable[[], int], sink: Callable[[Event], object]) -> None:
        self.process = process
        self._clock = clock
        self._sink = sink
        self._running: str = ""

    def invoke(self, f: str, value: Iterable[MicroOp] = (), **details: Any) -> None:
        """An operation begins. ``details``: fields of :class:`Event`."""
        self._running = f
        self._write(Type.INVOKE, value, details)

    def committing(self) -> None:
        """From here on the transaction may be committed."""
        self._write(Type.COMMITTING, (), {})

    def complete(self, kind: Type, value: Iterable[MicroOp] = (), **details: Any) -> None:
        """The operation ended. Without a ``value`` it keeps that of its invocation."""
        self._write(kind, value, details)

    def _write(self, kind: Type, value: Iterable[MicroOp], details: dict[str, Any]) -> None:
        self._sink(Event(self.process, kind, self._running, self._clock(), tuple(value), **details))


def to_file(file: TextIO) -> Callable[[Event], None]:
    """A sink that appends to an open file, and passes every line to the operating system immediately."""

    def sink(event: Event) -> None:
        file.write(to_line(event) + "\n")
        file.flush()

    return sink
