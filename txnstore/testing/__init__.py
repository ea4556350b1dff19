"""Public parts for testing code that uses txnstore: faults on purpose, a clock by hand, the storage contract."""

from __future__ import annotations

from txnstore.testing.clock import ManualClock
from txnstore.testing.contract import StorageContract
from txnstore.testing.faults import (
    PASSING_FAULTS,
    Fault,
    FaultStore,
    Plan,
    Request,
    SimulatedCrash,
    crash_at,
    no_faults,
    on,
    script,
    seeded,
)

__all__ = [
    "PASSING_FAULTS",
    "Fault",
    "FaultStore",
    "ManualClock",
    "Plan",
    "Request",
    "SimulatedCrash",
    "StorageContract",
    "crash_at",
    "no_faults",
    "on",
    "script",
    "seeded",
]


def __dir__() -> list[str]:
    return sorted(__all__)
