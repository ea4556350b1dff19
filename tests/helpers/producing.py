"""Producers brought into a state, and storage that loses answers: for tests of what a client sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.shell import another_process, new_store
from txnstore.errors import (
    StorageRefusedError,
)
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, on
from txnstore.testing.faults import Plan, no_faults


class Bench:
    """A store whose storage does what a test says."""

    def __init__(self, partitions: int = 3, chains: int = 1) -> None:
        self.inner = MemoryStore()
        self.faults = FaultStore(self.inner)
        self.store: Store = new_store(self.faults, partitions=partitions, chains=chains)
        connection_of(self.store).counts.reset()

    def log(self) -> list[tuple[str, str]]:
        """The requests since the last reset of the counters."""
        requests: list[tuple[str, str]] = list(connection_of(self.store).counts.log)
        return requests

    def kinds(self) -> list[str]:
        """Their kinds."""
        return [kind for kind, _ in self.log()]

    @contextmanager
    def silent(self, *, applied: bool) -> Iterator[None]:
        """The outcome of an entry is unknown: it is written, or the write waits for ``faults.release()``."""
        write = on(Fault.LOST_RESPONSE if applied else Fault.LATE, "put_if_absent", key_contains="entries", times=None)
        read = on(Fault.ERROR_BEFORE, "get", key_contains="entries", times=None)
        with self.plan(write, read):
            yield

    @contextmanager
    def away(self, key_contains: str = "entries") -> Iterator[None]:
        """The storage refuses these writes for good: certainly nothing happens."""
        real = self.inner.put, self.inner.put_if_absent

        def refuse(key: str, data: bytes) -> bool:
            if key_contains in key:
                raise StorageRefusedError(f"403 for {key}")
            return real[1](key, data)

        def refuse_put(key: str, data: bytes) -> None:
            if key_contains in key:
                refuse(key, data)
            real[0](key, data)

        self.inner.put, self.inner.put_if_absent = refuse_put, refuse  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.inner.put, self.inner.put_if_absent = real  # type: ignore[method-assign]

    @contextmanager
    def plan(self, *plans: Plan) -> Iterator[None]:
        """These faults, while the block runs."""
        self.faults.plan = lambda n, operation, key: next(
            (fault for plan in plans if (fault := plan(n, operation, key)) is not None), None
        )
        try:
            yield
        finally:
            self.faults.plan = no_faults


APPLIED = pytest.mark.parametrize("applied", [True, False], ids=["applied", "not yet applied"])


def begun(bench: Bench, *written: bytes) -> Producer:
    """A producer in a transaction that has these records in the log."""
    producer = bench.store.producer("id")
    producer.begin_transaction()
    for value in written:
        producer.send("t", value, partition=0)
        producer.flush()
    return producer


TYPED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("ms", "UTC"))])


def read(bench: Bench, topic: str = "t", **options: Any) -> list[dict[str, Any]]:
    """All rows as a new process reads them."""
    rows: list[dict[str, Any]] = another_process(bench.store, bench.inner).scan(topic, **options).to_table().to_pylist()
    return rows
