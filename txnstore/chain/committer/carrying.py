"""The rules by which an entry carries the commands of another process, and by which that process finds the answers.

A process that hands over a command is not told the outcome. It reads it from the entries, as everything else: an entry
names the process and the number of each command that it carries. So no message is needed to be correct, and an entry
that was written while the connection broke is no special case. See docs/internals/design/committer.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from txnstore.chain.codec import Entry
from txnstore.chain.group_commit import Origin, QueuedCommand
from txnstore.chain.payload import Payload
from txnstore.core.authorization.rules import Authorization
from txnstore.core.decide import decide
from txnstore.core.model import value_class
from txnstore.core.state import State
from txnstore.errors import UnknownOutcomeError

#: Whether a principal has a right is decided by the process that writes the entry, before it carries the command.
_CHECKED_BEFORE = Authorization()


class Horizons:
    """The newest entry of each process that hands over commands. Knows no process that has not joined.

    Rule: an entry carries a command that was handed over after entry ``after`` only if no later entry is of that
    process, or carries a command of it. So a process may commit a command itself at any time, without an answer from
    those that it has handed it to: once its own entry is stored, no later one carries the command.
    """

    def __init__(self) -> None:
        #: For each process its entries, ascending but for those that two threads read at a time; the largest counts.
        #: Any thread, or signal handler, that folds an entry appends it, without a lock.
        self._entries: dict[str, deque[int]] = {}
        #: The newest entry that was recorded or skipped, also while no process had joined. Under `_lock`, which is
        #: re-entrant: what a signal handler records in the midst of it is published before the handler returns.
        self._newest = 0
        self._lock = threading.RLock()

    def join(self, writer_id: str, sequence: int) -> int:
        """Begin with a process; returns the entry up to which its entries are not known, at least ``sequence``.

        An entry is recorded before the state that includes it is published. So those that were recorded until now may
        be newer than the state that ``sequence`` is of.
        """
        entries = self._entries.setdefault(writer_id, deque([sequence]))  # From now on its entries are recorded.
        with self._lock:
            sequence = max(sequence, self._newest)
        entries.append(sequence)
        return sequence

    def leave(self, writer_id: str) -> None:
        """Carry nothing more of this process."""
        self._entries.pop(writer_id, None)

    def record(self, entry: Entry) -> None:
        """Record an entry that was read or written."""
        self._reach(entry.sequence)
        if self._entries:
            for writer_id in {entry.writer_id, *(each[0] for each in entry.carried or ())}:
                self._append(writer_id, entry.sequence)

    def skip(self, sequence: int) -> None:
        """Record that the chain was loaded again up to ``sequence``: not all entries before that were read."""
        self._reach(sequence)
        for writer_id in list(self._entries):
            self._append(writer_id, sequence)

    def _reach(self, sequence: int) -> None:
        with self._lock:
            self._newest = max(self._newest, sequence)

    def _append(self, writer_id: str, sequence: int) -> None:
        entries = self._entries.get(writer_id)
        if entries is not None:
            entries.append(sequence)

    def allow(self, origin: Origin) -> bool:
        """Whether the next entry may carry a command; called by one thread at a time."""
        entries = self._entries.get(origin.writer_id)
        if entries is None:
            return False
        newest = max(entries)
        while entries[0] < newest:
            entries.popleft()
        return origin.after >= newest


@value_class()
class Found:
    """The answer to a command that an entry carries; ``error``: it is stored, and its answer cannot be computed."""

    sequence: int
    result: Any = None
    error: UnknownOutcomeError | None = None


def places_of(entry: Entry, writer_id: str) -> list[int]:
    """Return after how many events of an entry each command of a process follows."""
    return [first for carrier, _, first, _ in entry.carried or () if carrier == writer_id]


def find_answers(
    inside: Mapping[int, State], entry: Entry, writer_id: str, commands: Mapping[int, QueuedCommand]
) -> dict[int, Found]:
    """Return the answers to those commands of this process that an entry carries, by number.

    The rules are pure: the answer is what they give in the state that the command met inside the entry.

    Args:
        inside: The states at :func:`places_of`.
        commands: What this process has handed over, by number.
    """
    found: dict[int, Found] = {}
    for carrier, number, first, _ in entry.carried or ():
        if carrier != writer_id or number not in commands:
            continue
        handed = commands[number]
        try:
            placed = Payload(f"entry {entry.sequence}").place(handed.command)
            found[number] = Found(
                entry.sequence, decide(inside[first], placed, handed.principal, _CHECKED_BEFORE).result
            )
        except Exception as cause:  # noqa: BLE001 - the entry is valid: its fold must not fail
            msg = f"the command is in entry {entry.sequence}, and this process does not understand why: {cause!r}"
            found[number] = Found(entry.sequence, error=UnknownOutcomeError(msg))
    return found
