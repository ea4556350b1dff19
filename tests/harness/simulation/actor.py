"""The base of all actors: a process that works, may die at any request, and restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.harness.simulation.world import Process, World
from txnstore.errors import CorruptionError, StorageError, TxnStoreError
from txnstore.testing.faults import SimulatedCrash

T = TypeVar("T")

#: What a client is ready to see: the storage is away. Every other error is expected by name, or an anomaly.
PATIENCE = 6


class Actor(ABC):
    """Does ``left`` operations, in as many processes as that takes. ``name`` is ``kind:name/instance``."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.label = name.partition(":")[2]
        self.rng = world.rng(name)
        self.left = world.settings.operations
        #: The name of its client in the history; empty before its store is open.
        self.client = ""

    @abstractmethod
    def live(self, process: Process) -> None:
        """What a process does until it ends by itself; counts ``left`` down."""

    def run(self) -> None:
        """One process after the other, until everything is done."""
        while self.left > 0:
            self.client = ""
            try:
                process = self.world.process(self.name)
                self.client = process.name
                self.live(process)
            except SimulatedCrash:
                self._died()
            except StorageError:
                self.pause(1_000)  # It could not even open the store.

    def renamed(self, process: Process) -> Process:
        """The same process under another name in the history, for a new client in it."""
        process = self.world.renamed(process, self.name)
        self.client = process.name
        return process

    def _died(self) -> None:
        if self.client:
            self.world.history.crashed(self.client)
        self.left -= 1
        # Some come back at once, some after every time-out.
        self.pause(self.rng.choice((10, 1_000, 300_000)))

    def pause(self, ms: int) -> None:
        """Do nothing for up to so many milliseconds."""
        self.world.scheduler.sleep(self.rng.randint(1, ms))

    def breathe(self) -> None:
        """The time between two operations: mostly short, now and then longer than every time-out."""
        self.pause(self.world.settings.pace_ms if self.rng.random() < 0.97 else 300_000)

    def next_operation(self) -> bool:
        """Whether there is one more to do."""
        self.left -= 1
        return self.left >= 0

    def insist(self, call: Callable[[], T]) -> T:
        """The answer of a call that may be repeated as it is."""
        for _ in range(PATIENCE - 1):
            try:
                return call()
            except StorageError:
                self.pause(500)
        return call()

    def unexpected(self, process: Process, what: str, error: BaseException) -> None:
        """An error that no client should ever see."""
        self.world.anomalies.append(f"unexpected-error: {process.name} {what}: {type(error).__name__}: {error}")

    def check_expected(
        self, process: Process, what: str, error: TxnStoreError, expected: Sequence[type[TxnStoreError]]
    ) -> None:
        """Report an error that this call should not raise here."""
        if not isinstance(error, (StorageError, *expected)) or isinstance(error, CorruptionError):
            self.unexpected(process, what, error)
