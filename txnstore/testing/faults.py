"""A store that fails on purpose, exactly where a plan says so."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from txnstore.errors import StorageError, UnknownOutcomeError
from txnstore.storage.base import ObjectInfo, ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """What may go wrong with one request. "Unknown" is :class:`~txnstore.errors.UnknownOutcomeError`."""

    ERROR_BEFORE = "error-before"
    """Never reaches the store: StorageError. A conditional put raises Unknown, as its caller cannot tell."""
    LOST_RESPONSE = "lost-response"
    """The store does it, but the answer is lost: writes raise Unknown, reads StorageError."""
    LATE = "late"
    """A write raises Unknown now and reaches the store only at :meth:`FaultStore.release`. A read: as ERROR_BEFORE."""
    CONFLICT_409 = "409"
    """The store answers 409 and does nothing (S3: a concurrent request for the same key is under way)."""
    EXISTS_412 = "412"
    """A conditional put is done, its repetition answered 412: False for one's own object. Others: no fault."""
    UNAVAILABLE_503 = "503"
    """The store answers 503 and does nothing."""
    SLOW = "slow"
    """The request waits (with the injected sleep) and then succeeds."""
    CRASH_BEFORE = "crash-before"
    """The process dies before the request leaves."""
    CRASH_AFTER = "crash-after"
    """The process dies after the store has done it."""


class SimulatedCrash(BaseException):
    """The process died here. No ``except Exception`` below catches it, as none would catch a SIGKILL."""


Plan = Callable[[int, str, str], "Fault | None"]
"""``plan(n, operation, key)`` decides on the n-th request (from 1) of a :class:`FaultStore`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that went through a :class:`FaultStore`: its number from 1, what, on which key, with which fault."""

    n: int
    operation: str
    key: str
    fault: Fault | None


def no_faults(n: int, operation: str, key: str) -> Fault | None:
    """The plan under which nothing goes wrong: to count the requests of an operation."""
    return None


def crash_at(n: int, *, after: bool = False) -> Plan:
    """The process dies at the n-th request: before the store sees it, or after the store has done it."""
    return script({n: Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE})


def script(faults: Mapping[int, Fault]) -> Plan:
    """Exactly these requests, by number from 1, go wrong."""
    chosen = dict(faults)
    return lambda n, operation, key: chosen.get(n)


def on(
    fault: Fault, operation: str | None = None, *, key_contains: str = "", times: int | None = 1, skip: int = 0
) -> Plan:
    """The first ``times`` requests that match go wrong (None: all), after ``skip`` that match and pass.

    They match if the operation is this one (``"put_if_absent"``, ``"get"``, …; None: any) and the key contains
    the text.
    """
    lock = threading.Lock()
    seen = 0

    def plan(n: int, op: str, key: str) -> Fault | None:
        nonlocal seen
        if (operation is not None and op != operation) or key_contains not in key:
            return None
        with lock:
            seen += 1
            position = seen - skip
        return fault if position >= 1 and (times is None or position <= times) else None

    return plan


PASSING_FAULTS: tuple[Fault, ...] = (
    Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.EXISTS_412, Fault.UNAVAILABLE_503,
)  # fmt: skip
"""Every fault that a correct caller survives without a restart."""


def seeded(
    seed: int, rate: float, *, faults: Sequence[Fault] = PASSING_FAULTS, operations: Collection[str] | None = None
) -> Plan:
    """A share of ``rate`` of the requests goes wrong, each with one of ``faults``.

    The n-th request meets the same fate in every run with the same seed, whatever came before.
    """

    def plan(n: int, operation: str, key: str) -> Fault | None:
        rng = random.Random(f"{seed}/{n}")
        if (operations is not None and operation not in operations) or rng.random() >= rate:
            return None
        return rng.choice(list(faults))

    return plan


class FaultStore:
    """An :class:`~txnstore.storage.base.ObjectStore` around another one, whose requests fail as ``plan`` says.

    Requests are numbered from 1 in the order of their arrival. After a crash every request through this wrapper
    raises :class:`SimulatedCrash`, as the process is dead; open ``inner`` anew to see what it left. Wrap it in a
    :class:`~txnstore.storage.retry.RetryingStore` to have reads and plain puts repeated, as they are in production.
    """

    def __init__(
        self,
        inner: ObjectStore,
        plan: Plan = no_faults,
        *,
        sleep: Callable[[float], None] = time.sleep,
        slow_s: float = 0.03,
    ) -> None:
        self.inner = inner
        self.plan = plan
        self._sleep = sleep
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._late: list[Callable[[], object]] = []
        self._crashed = False

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def identity(self) -> str | None:
        """That of the store below: faults do not make it another store."""
        return getattr(self.inner, "identity", None)

    @property
    def requests(self) -> Sequence[Request]:
        """Everything that was asked so far, in order, with its fault."""
        with self._lock:
            return list(self._requests)

    @property
    def crashed(self) -> bool:
        """Whether the simulated process is dead."""
        with self._lock:
            return self._crashed

    @property
    def pending(self) -> int:
        """How many late writes are still under way."""
        with self._lock:
            return len(self._late)

    def release(self) -> int:
        """Let the late writes arrive, in their order, also after a crash; returns how many. Their answers are lost."""
        with self._lock:
            late, self._late = self._late, []
        for arrive in late:
            arrive()
        return len(late)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._read("get", key, lambda: self.inner.get(key, start, end))

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, lambda: self.inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._write("put_if_absent", key, lambda: self.inner.put_if_absent(key, data), exists=lambda: False)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._read("list", prefix, lambda: self.inner.list(prefix, start_after, limit))

    def delete(self, keys: Sequence[str]) -> None:
        self._write("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    def stat(self, key: str) -> ObjectInfo:
        return self._read("stat", key, lambda: self.inner.stat(key))

    def now_ms(self) -> int:
        return self._read("now_ms", "", self.inner.now_ms)

    def close(self) -> None:
        self.inner.close()

    def __repr__(self) -> str:
        return f"FaultStore({self.inner!r})"

    def _read(self, operation: str, key: str, call: Callable[[], T]) -> T:
        n, fault = self._admit(operation, key)
        if fault in (Fault.ERROR_BEFORE, Fault.LATE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503):
            raise StorageError(self._message(n, operation, key, fault))
        answer = call()
        if fault is Fault.LOST_RESPONSE:
            raise StorageError(self._message(n, operation, key, fault))
        self._crash_after(n, operation, key, fault)
        return answer

    def _write(self, operation: str, key: str, call: Callable[[], T], exists: Callable[[], T] | None = None) -> T:
        n, fault = self._admit(operation, key)
        if fault in (Fault.ERROR_BEFORE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503):
            kind = UnknownOutcomeError if operation == "put_if_absent" else StorageError
            raise kind(self._message(n, operation, key, fault))
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(call)
            raise UnknownOutcomeError(self._message(n, operation, key, fault))
        answer = call()
        if fault is Fault.LOST_RESPONSE:
            raise UnknownOutcomeError(self._message(n, operation, key, fault))
        self._crash_after(n, operation, key, fault)
        return exists() if fault is Fault.EXISTS_412 and exists is not None else answer

    def _admit(self, operation: str, key: str) -> tuple[int, Fault | None]:
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{operation} {key}: the process died earlier")
            n = len(self._requests) + 1
            fault = self.plan(n, operation, key)
            self._requests.append(Request(n, operation, key, fault))
            if fault is Fault.CRASH_BEFORE:
                self._crashed = True
                raise SimulatedCrash(self._message(n, operation, key, fault))
        if fault is Fault.SLOW:
            self._sleep(self._slow_s)
        return n, fault

    def _crash_after(self, n: int, operation: str, key: str, fault: Fault | None) -> None:
        if fault is Fault.CRASH_AFTER:
            with self._lock:
                self._crashed = True
            raise SimulatedCrash(self._message(n, operation, key, fault))

    def _message(self, n: int, operation: str, key: str, fault: Fault | None) -> str:
        return f"Injected fault {fault.value if fault else ''} at request {n}: {operation} {key!r} in {self.url}."
