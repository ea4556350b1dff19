"""Small histories for tests of the checker: operations one after the other, each taking one unit of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.harness.history import Decision, Event, History, Poll, Send, Type, check, find, history_of
from tests.harness.history.format import MicroOp


class Story:
    """Collects operations; each begins when the one before has ended, unless ``at`` and ``until`` say otherwise."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.time = 0

    def op(
        self,
        process: str,
        f: str,
        value: MicroOp | Iterable[MicroOp] = (),
        kind: str = "ok",
        *,
        at: int | None = None,
        until: int | None = None,
        committing: int | None = None,
        **details: Any,
    ) -> None:
        """An operation; ``kind`` is how it ended, or ``lost`` if it never did."""
        items = tuple(value) if isinstance(value, Iterable) else (value,)
        begin = self.time + 1 if at is None else at
        end = begin + 1 if until is None else until
        self.time = max(self.time, end)
        self._add(Event(process, Type.INVOKE, f, begin, items, **details))
        if committing is not None:
            self._add(Event(process, Type.COMMITTING, f, committing))
        if kind != "lost":
            self._add(Event(process, Type(kind), f, end, items, **details))

    def _add(self, event: Event) -> None:
        self.events.append((event.time, event))

    def history(self, decisions: Sequence[Decision] | None = None, compacted: Iterable[str] = ()) -> History:
        """The narrative so far."""
        ordered = [event for _, event in sorted(self.events, key=lambda pair: pair[0])]
        return history_of(ordered, decisions, compacted)

    def kinds(self, decisions: Sequence[Decision] | None = None, *, allowed: bool = False) -> set[str]:
        """The kinds of the anomalies that are found; with ``allowed`` also those that are legal."""
        history = self.history(decisions)
        return {item.kind for item in (find(history) if allowed else check(history))}


def poll(key: str = "k", *records: tuple[int, str]) -> Poll:
    """Records read from one key."""
    return Poll({key: records})


def send(value: str, offset: int | None = None, key: str = "k", **more: Any) -> Send:
    """A record sent."""
    return Send(key, value, offset, **more)
