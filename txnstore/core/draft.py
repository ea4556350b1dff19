"""The entry that is being decided: its events so far, and the state that they lead to."""

from __future__ import annotations

from txnstore.core.events import Event
from txnstore.core.evolve import evolve
from txnstore.core.model import State


class Draft:
    """Collects events and folds each at once, so that the next rule sees what the last one decided."""

    __slots__ = ("events", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)
        self.state = evolve(self.state, event)
