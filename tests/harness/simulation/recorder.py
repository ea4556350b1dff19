"""Records the observations of clients as Jepsen does: an operation is invoked, and completed as ok, fail or info.

The format is that of ``jepsen.tests.kafka``. A key is a partition, ``"topic-0"``. The value of ``txn``, ``send`` and
``poll`` is a list of micro-operations: ``("send", key, value)``, completed as ``("send", key, (offset, value))``, and
``("poll", {key: [(offset, value), …]})``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Transactional id, producer id and epoch of a transaction.
Txn = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a history. ``time`` is in milliseconds of the true clock; ``txn`` identifies its transaction."""

    index: int
    time: int
    process: str
    type: str
    f: str
    value: Any
    error: str | None = None
    txn: Txn | None = None


class Recorder:
    """Collects a history. A process has one operation at a time; one that is open at a crash stays ``info``."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self._clock = clock
        self._open: dict[str, tuple[str, Any, Txn | None]] = {}

    def invoke(self, process: str, f: str, value: Any = None, txn: Txn | None = None) -> None:
        """The process begins an operation."""
        assert process not in self._open, f"{process} has two operations in progress"
        self._open[process] = (f, value, txn)
        self._add(process, "invoke", f, value, txn=txn)

    def committing(self, process: str) -> None:
        """From here on its transaction may be committed."""
        f, value, txn = self._open[process]
        self._add(process, "committing", f, value, txn=txn)

    def ok(self, process: str, value: Any = None) -> None:
        """It has happened; ``value`` with its result, or as invoked."""
        f, invoked, txn = self._open.pop(process)
        self._add(process, "ok", f, invoked if value is None else value, txn=txn)

    def fail(self, process: str, error: object) -> None:
        """It has not happened, and will not."""
        f, value, txn = self._open.pop(process)
        self._add(process, "fail", f, value, error, txn)

    def info(self, process: str, error: object) -> None:
        """The outcome is unknown."""
        f, value, txn = self._open.pop(process)
        self._add(process, "info", f, value, error, txn)

    def crashed(self, process: str) -> None:
        """The process has ended; its open operation stays unknown."""
        if process in self._open:
            self.info(process, "crashed")
        self._add(process, "info", "crash", None)

    def _add(self, process: str, kind: str, f: str, value: Any, error: object = None, txn: Txn | None = None) -> None:
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error or "") or None
        at = len(self.operations)
        self.operations.append(Operation(at, self._clock(), process, kind, f, value, text, txn))
