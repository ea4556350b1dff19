"""Fault injection: an object store whose requests fail according to a plan."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from txnstore.errors import StorageError, UnknownOutcomeError
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore, read_if_there

T = TypeVar("T")


class Fault(Enum):
    """A fault of one request. "Unknown" stands for :class:`~txnstore.errors.UnknownOutcomeError`."""

    ERROR_BEFORE = "error-before"
    """The request never reaches the store: StorageError; a conditional put raises Unknown."""
    LOST_RESPONSE = "lost-response"
    """The store executes the request, but the response is lost: writes raise Unknown, reads StorageError."""
    LATE = "late"
    """A write raises Unknown now and reaches the store at :meth:`FaultStore.release`. For a read as ERROR_BEFORE."""
    CONFLICT_409 = "409"
    """The store answers 409 without effect (S3: a concurrent request for the same key)."""
    EXISTS_412 = "412"
    """A conditional put is executed, but returns False, as if repeated by the transport. Others: no fault."""
    UNAVAILABLE_503 = "503"
    """The store answers 503 without effect."""
    UNSYNCED = "unsynced"
    """A write has its effect, which everybody sees, but the disk fails to flush it: it raises Unknown.
    :meth:`FaultStore.power_loss` takes it back, unless it was flushed since. For a read as ERROR_BEFORE."""
    SLOW = "slow"
    """The request succeeds after a delay (with the injected sleep)."""
    CRASH_BEFORE = "crash-before"
    """The process crashes before it sends the request."""
    CRASH_AFTER = "crash-after"
    """The process crashes after the store has executed the request."""


class SimulatedCrash(BaseException):
    """A simulated crash of the process. A ``BaseException``, so that no ``except Exception`` handles it."""


Plan = Callable[[int, str, str], "Fault | None"]
"""``plan(n, operation, key)`` returns the fault of the n-th request (from 1) of a :class:`FaultStore`, or None."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a :class:`FaultStore`.

    Attributes:
        n: Its number, from 1.
        operation: The method: ``"get"``, ``"put_if_absent"``, …
        key: The key or prefix; the first one of a delete.
        fault: The injected fault, if any.
    """

    n: int
    operation: str
    key: str
    fault: Fault | None


def no_faults(n: int, operation: str, key: str) -> Fault | None:
    """A plan without faults, for example to count requests."""
    return None


def crash_at(n: int, *, after: bool = False) -> Plan:
    """A plan in which the process crashes at the n-th request: before it, or after the store has executed it."""
    return script({n: Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE})


def script(faults: Mapping[int, Fault]) -> Plan:
    """A plan with exactly these faults, by request number from 1."""
    fault_by_number = dict(faults)
    return lambda n, operation, key: fault_by_number.get(n)


def on(
    fault: Fault, operation: str | None = None, *, key_contains: str = "", times: int | None = 1, skip: int = 0
) -> Plan:
    """A plan with a fault for matching requests.

    Args:
        fault: The fault.
        operation: The method to match, such as ``"put_if_absent"``; None for any.
        key_contains: A text that the key must contain.
        times: The number of faults; None for all matching requests.
        skip: The number of matching requests that succeed first.
    """
    lock = threading.Lock()
    matching_requests = 0

    def plan(_request: int, requested: str, key: str) -> Fault | None:
        nonlocal matching_requests
        if operation not in {None, requested} or key_contains not in key:
            return None
        with lock:
            matching_requests += 1
            number = matching_requests - skip
        return fault if number >= 1 and (times is None or number <= times) else None

    return plan


PASSING_FAULTS: tuple[Fault, ...] = (
    Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.EXISTS_412, Fault.UNAVAILABLE_503,
    Fault.UNSYNCED,
)  # fmt: skip
"""The faults that a correct caller handles without a restart."""


def seeded(
    seed: int, rate: float, *, faults: Sequence[Fault] = PASSING_FAULTS, operations: Collection[str] | None = None
) -> Plan:
    """A plan with random faults. The fault of the n-th request depends only on the seed and n.

    Args:
        seed: The seed.
        rate: The probability of a fault, from 0 to 1.
        faults: The faults to choose from.
        operations: The methods that may fail; None for all.
    """

    def plan(n: int, operation: str, key: str) -> Fault | None:
        rng = random.Random(f"{seed}/{n}")
        if (operations is not None and operation not in operations) or rng.random() >= rate:
            return None
        return rng.choice(list(faults))

    return plan


class FaultStore(ForwardingStore):
    """An :class:`~txnstore.storage.base.ObjectStore` that forwards requests to another one and injects faults.

    After a simulated crash, every request raises :class:`SimulatedCrash`; use ``inner`` to examine the objects. Wrap
    it in a :class:`~txnstore.storage.retry.RetryingStore` to retry reads and plain puts, as in production.

    A write that is answered is flushed, and so is an object of which ``put_if_absent`` answers that it exists, as
    on a local folder (``put_if_absent`` of a local store).

    Args:
        inner: The store that requests are forwarded to.
        plan: Chooses the fault of each request.
        sleep: Pauses for a number of seconds.
        slow_s: The delay of :attr:`Fault.SLOW` in seconds.
    """

    def __init__(
        self,
        inner: ObjectStore,
        plan: Plan = no_faults,
        *,
        sleep: Callable[[float], None] = time.sleep,
        slow_s: float = 0.03,
    ) -> None:
        super().__init__(inner)
        self.plan = plan
        self._sleep = sleep
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._late: list[Callable[[], object]] = []
        #: What was at the names of unsynced writes before: the content; None for no object.
        self._unsynced: dict[str, bytes | None] = {}
        self._crashed = False

    @property
    def identity(self) -> str | None:
        """The identity of the wrapped store."""
        return getattr(self.inner, "identity", None)

    @property
    def requests(self) -> Sequence[Request]:
        """All requests so far, in order."""
        with self._lock:
            return list(self._requests)

    @property
    def crashed(self) -> bool:
        """Whether the simulated process has crashed."""
        with self._lock:
            return self._crashed

    @property
    def pending(self) -> int:
        """The number of late writes that have not been released."""
        with self._lock:
            return len(self._late)

    def release(self) -> int:
        """Execute the late writes in order, also after a crash, and drop their results; returns their number."""
        with self._lock:
            late_writes, self._late = self._late, []
        for arrive in late_writes:
            arrive()
        return len(late_writes)

    @property
    def unsynced(self) -> Sequence[str]:
        """The keys whose last write is visible and not flushed."""
        with self._lock:
            return sorted(self._unsynced)

    def sync(self, keys: Sequence[str]) -> None:
        """Flush these objects, as ``make_durable`` asks for it; a request like others."""
        self._write("sync", keys, lambda: None)

    def power_loss(self) -> int:
        """Take back all writes that are not flushed; returns their number. Wrap ``inner`` again to start again."""
        with self._lock:
            lost_writes, self._unsynced = self._unsynced, {}
        for key, content in lost_writes.items():
            if content is None:
                self.inner.delete([key])
            else:
                self.inner.put(key, content)
        return len(lost_writes)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._read("get", key, lambda: self.inner.get(key, start, end))

    def put(self, key: str, data: bytes) -> None:
        self._write("put", [key], lambda: self.inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._write("put_if_absent", [key], lambda: self.inner.put_if_absent(key, data), exists=lambda: False)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._read("list", prefix, lambda: self.inner.list(prefix, start_after, limit))

    def delete(self, keys: Sequence[str]) -> None:
        self._write("delete", keys, lambda: self.inner.delete(keys))

    def stat(self, key: str) -> ObjectInfo:
        return self._read("stat", key, lambda: self.inner.stat(key))

    def now_ms(self) -> int:
        return self._read("now_ms", "", self.inner.now_ms)

    def _read(self, operation: str, key: str, call: Callable[[], T]) -> T:
        """Make a read, before or after which the planned fault happens."""
        n, fault = self._admit(operation, key)
        if fault in (Fault.ERROR_BEFORE, Fault.LATE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503, Fault.UNSYNCED):
            raise StorageError(self._message(n, operation, key, fault))
        answer = call()
        if fault is Fault.LOST_RESPONSE:
            raise StorageError(self._message(n, operation, key, fault))
        self._crash_after(n, operation, key, fault)
        return answer

    def _write(
        self, operation: str, keys: Sequence[str], call: Callable[[], T], exists: Callable[[], T] | None = None
    ) -> T:
        """Make a write, before, after or instead of which the planned fault happens."""
        key = keys[0] if keys else ""
        n, fault = self._admit(operation, key)
        if fault in (Fault.ERROR_BEFORE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503):
            kind = UnknownOutcomeError if operation == "put_if_absent" else StorageError
            raise kind(self._message(n, operation, key, fault))
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(call)
            raise UnknownOutcomeError(self._message(n, operation, key, fault))
        if fault is Fault.UNSYNCED:
            contents_before = {name: read_if_there(self.inner, name) for name in keys}
            call()
            with self._lock:
                for name in keys:
                    if read_if_there(self.inner, name) != contents_before[name]:
                        self._unsynced.setdefault(name, contents_before[name])
            raise UnknownOutcomeError(self._message(n, operation, key, fault))
        answer = call()
        with self._lock:
            for name in keys:
                self._unsynced.pop(name, None)
        if fault is Fault.LOST_RESPONSE:
            raise UnknownOutcomeError(self._message(n, operation, key, fault))
        self._crash_after(n, operation, key, fault)
        return exists() if fault is Fault.EXISTS_412 and exists is not None else answer

    def _admit(self, operation: str, key: str) -> tuple[int, Fault | None]:
        """Number a request, record it with its planned fault, and crash if that is due."""
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{operation} {key}: the process has crashed before")
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
