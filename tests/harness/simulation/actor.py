"""The base of all actors: a process that works, may die at any request, and restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tests.harness.simulation.creates import Interrupted
from tests.harness.simulation.world import Process, World
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    StorageError,
    StoreNotFoundError,
    TxnStoreError,
)
from txnstore.testing.faults import SimulatedCrash

T = TypeVar("T")

#: The error of an unavailable storage, which every client expects. Other errors are expected by name, or an anomaly.
PATIENCE = 6


class Actor(ABC):
    """Runs ``left`` operations, in one process after the other. ``name`` is ``kind:name/instance``."""

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
        """The operations of a process until it ends by itself; decrements ``left``."""

    def run(self) -> None:
        """One process after the other, until all operations are done."""
        while self.left > 0:
            self.client = ""
            process: Process | None = None
            try:
                process = self.open_process()
                self.client = process.name
                self.live(process)
                self._close(process)
                if self.rng.random() < 0.5:
                    process.storage.crash()  # It ends without waiting for its work in the background.
                process.end()
            except (SimulatedCrash, Interrupted, AuthorizationError, CorruptionError, StoreNotFoundError) as error:
                if isinstance(error, TxnStoreError) and not (self.world.explains(error) or self.is_refusal(error)):
                    raise
                if process is not None:
                    process.storage.crash()
                self._died()
            except StorageError:
                self.pause(1_000)  # The store could not be opened.

    def _close(self, process: Process) -> None:
        """Close the store, as a part of the processes do; that fails only if the process dies."""
        if self.world.rng(f"{process.name}/close").random() < self.world.settings.closes:
            try:
                process.store.close()
            except Exception as error:  # noqa: BLE001 - whatever it is, a close must not raise it
                self.unexpected(process, "close", error)

    def open_process(self) -> Process:
        """A new process. Raises what opening its store raises."""
        return self.world.process(self.name)

    def renamed(self, process: Process) -> Process:
        """The same process under another name in the history, for a new client in it."""
        process = self.world.renamed(process, self.name)
        self.client = process.name
        return process

    def _died(self) -> None:
        if self.client:
            self.world.history.crashed(self.client)
        self.left -= 1
        # Some restart immediately, some after all timeouts.
        self.pause(self.rng.choice((10, 1_000, 300_000)))

    def pause(self, ms: int) -> None:
        """Pause for a random time of at most ``ms`` milliseconds."""
        self.world.scheduler.sleep(self.rng.randint(1, ms))

    def breathe(self) -> None:
        """The time between two operations: mostly short, now and then longer than every timeout."""
        self.pause(self.world.settings.pace_ms if self.rng.random() < 0.97 else 300_000)

    def next_operation(self) -> bool:
        """Whether another operation remains."""
        self.left -= 1
        return self.left >= 0

    def insist(self, call: Callable[[], T]) -> T:
        """The result of a call that may be repeated unchanged."""
        for _ in range(PATIENCE - 1):
            try:
                return call()
            except (StorageError, Interrupted):
                self.pause(500)
        return call()

    def is_refusal(self, error: BaseException) -> bool:
        """Whether a right is missing, which each call may find under rules; the rulebook judges the cause."""
        return self.world.rulebook is not None and isinstance(error, AuthorizationError)

    def check_fresh(self, process: Process, heads: Mapping[int, int]) -> None:
        """Report a chain that its process has read to the end without the entries that existed before that."""
        for chain in process.store._connection.chains:
            if chain.state.sequence < heads.get(chain.number, 0):
                stale = f"{process.name} takes entry {chain.state.sequence} of chain {chain.number} for the head"
                self.world.anomalies.append(f"stale-view: {stale}, after {heads[chain.number]}")

    def unexpected(self, process: Process, step: str, error: BaseException) -> None:
        """Report an error that no client should see."""
        self.world.anomalies.append(f"unexpected-error: {process.name} {step}: {type(error).__name__}: {error}")

    def check_expected(
        self, process: Process, step: str, error: TxnStoreError, expected: Sequence[type[TxnStoreError]]
    ) -> None:
        """Report an error that this call should not raise here. Damage that the world has made ends the process."""
        if self.world.explains(error):
            process.storage.crash()
            raise SimulatedCrash(f"{process.name} ends: {error}") from error
        if self.is_refusal(error):
            return
        if not isinstance(error, (StorageError, *expected)) or isinstance(error, CorruptionError):
            self.unexpected(process, step, error)
