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
from txnstore.testing.servers import S3Server
from txnstore.testing.wire import Break, RequestLog, WireFault, WireRequest

__all__ = [
    "PASSING_FAULTS",
    "Break",
    "Fault",
    "FaultStore",
    "ManualClock",
    "Plan",
    "Request",
    "RequestLog",
    "S3Server",
    "SimulatedCrash",
    "StorageContract",
    "WireFault",
    "WireRequest",
    "crash_at",
    "no_faults",
    "on",
    "script",
    "seeded",
]


def __dir__() -> list[str]:
    return sorted(__all__)
