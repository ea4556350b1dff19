"""The storage of a simulated process: every request is a turn of the scheduler, and may go wrong in every way.

All processes share one :class:`Bucket`. A request takes virtual time before and after it takes effect; between the
two, other processes see an effect that its caller does not know yet.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from tests.harness.simulation.checkpoints import Written
from tests.harness.simulation.creates import Creates, Interrupted
from tests.harness.simulation.durability import Change, Content, Unsynced
from tests.harness.simulation.scheduler import Scheduler
from tests.helpers import keys
from txnstore.chain import boundary
from txnstore.chain.codec import decode
from txnstore.chain.keys import LATEST_CUT
from txnstore.chain.payload import line_of
from txnstore.errors import ObjectNotFoundError, StorageError, UnknownOutcomeError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.memory import MemoryStore
from txnstore.testing.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.harness.simulation.stale_absence import HiddenEntries

T = TypeVar("T")

#: Milliseconds that a request takes before it has its effect, and then until its answer is there.
_LATENCY = 20


class Mishap(StrEnum):
    """The faults of a request. "Unknown" is :class:`~txnstore.errors.UnknownOutcomeError`."""

    ERROR = "error"
    """It never arrives: StorageError; a conditional put raises Unknown, because its outcome is unknown."""
    LOST = "lost"
    """It is done, and its answer is lost: a write raises Unknown, a read StorageError."""
    LATE = "late"
    """The caller of a write gets a timeout (Unknown); the write arrives later, perhaps much later."""
    TWICE = "twice"
    """A write is done and answered, and a copy of it arrives later."""
    CONFLICT = "409"
    """Answered 409, nothing done."""
    EXISTS = "412"
    """A conditional put is done, its repetition by the transport is answered 412: False for one's own object."""
    BUSY = "503"
    """Answered 503, nothing done."""
    SLOW = "slow"
    """It takes seconds, before or after its effect."""
    OUTAGE = "outage"
    """From now on all requests, or all of one chain, fail for a while; this request may have been done."""
    PAUSE = "pause"
    """The process pauses for longer than every timeout, before or after the effect, and continues without noticing."""
    CRASH = "crash"
    """The process dies, before or after the effect."""
    SYNC = "sync"
    """A write is done, and the sync of its folder fails (Unknown): it is visible, and a loss of power takes it back.
    Sometimes no sync of the process succeeds for a while."""
    ELSEWHERE = "elsewhere"
    """Something else answers: a create is refused, or of unknown outcome, and not done; a GET returns garbage."""
    OLD = "old"
    """A GET of a hint returns an earlier version of it."""


#: The faults that settings draw together; those after them have settings of their own.
COMMON = tuple(mishap for mishap in Mishap if mishap not in (Mishap.SYNC, Mishap.ELSEWHERE, Mishap.OLD))

#: The answers in a trace for an entry that was not found although it exists, and to a caller that Ctrl-C interrupts.
HIDDEN, INTERRUPTED = "hidden", "interrupted"
#: What a trace has for a loss of power, an object that is lost, and a mistake of the operator, which are no requests.
POWER_LOST, OBJECT_LOST, OPERATED = "power lost", "object lost", "operated"

WRITES = frozenset({"put", "put_if_absent", "delete", "sync"})
_FAILED_WRITES = frozenset({Mishap.ERROR, Mishap.CONFLICT, Mishap.BUSY, Mishap.OUTAGE})
_FAILED_READS = _FAILED_WRITES | {Mishap.LOST, Mishap.LATE, Mishap.TWICE}


@dataclass(frozen=True, slots=True)
class Step:
    """One request in a trace: its start, process, operation, key, mishap and answer."""

    at: int
    process: str
    operation: str
    key: str
    mishap: str
    answer: str

    def __str__(self) -> str:
        mishap = f"  !{self.mishap}" if self.mishap else ""
        return f"{self.at:>9} {self.process:<14} {self.operation:<13} {self.key}{mishap} -> {self.answer}"


class Bucket(MemoryStore):
    """The objects of all processes; it keeps every segment ever written, for the checks afterwards."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock=clock)
        self.archive: dict[str, bytes] = {}
        #: When each entry was created.
        self.created: dict[str, int] = {}
        #: Whether the store in it is never deleted.
        self.lasting = True
        #: The newest entry of each chain.
        self.heads: dict[int, int] = {}
        self.anomalies: list[str] = []
        #: Where it is, as its URL says; empty: in memory.
        self.root = ""
        self._checkpoints = Written()
        self.power_losses = 0
        self._unsynced = Unsynced()
        self._syncs = True
        #: Called with the name and the bytes of each new entry, and when a loss of power has taken entries back.
        self.entered: Callable[[str, bytes], object] = lambda *_: None
        self.receded: Callable[[], object] = bool
        #: All versions of each hint.
        self.hints: dict[str, list[bytes]] = {}
        #: The objects that were lost, and not put back yet.
        self.lost: dict[str, tuple[bytes, int]] = {}

    @property
    def url(self) -> str:
        return self.root or super().url

    def put_if_absent(self, key: str, data: bytes) -> bool:
        created = super().put_if_absent(key, data)
        sequence = keys.entry_sequence(key) if created else None
        is_entry = sequence is not None and key not in self.archive
        if is_entry:  # Else it has the name of an entry that was deleted.
            self.heads[keys.chain_number(key) or 0] = sequence or 0
            self.archive[key] = data
            self.created[key] = self.now_ms()
            self.entered(key, data)
        elif created:
            self.anomalies += self._checkpoints.add(key, data)
        self._changed(key, None, changed=created, is_entry=is_entry)
        return created

    def delete(self, names: Sequence[str]) -> None:
        if self.lasting:
            self.anomalies += [f"deleted-entry: {key} is needed" for key in names if not self._may_go(key)]
        before = {key: self._objects.get(key) for key in names}
        super().delete(names)
        for key in names:
            if before[key] is not None:  # Else its folder is not touched.
                self._changed(key, before[key])

    def sync(self, names: Sequence[str]) -> None:
        """Sync the folders of these names, if that succeeds."""
        for key in names:
            self._changed(key, None, changed=False)

    @contextmanager
    def syncs_fail(self) -> Iterator[None]:
        """The writes inside the block are visible, and not synced."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def _changed(self, key: str, before: Content, *, changed: bool = True, is_entry: bool = False) -> None:
        if self._syncs:
            self._unsynced.sync(key)
        elif changed:
            self._unsynced.add(key, before, self.now_ms(), is_entry=is_entry)

    def is_unsynced(self, key: str) -> bool:
        """Whether a loss of power would take back what the name has now."""
        return key in self._unsynced

    def lose(self, key: str) -> None:
        """The object is lost; no process has deleted it."""
        self.lost[key] = self._objects[key]
        super().delete([key])

    def put_back(self, key: str) -> None:
        """Put the lost object back from a copy, whatever has its name now."""
        content = self.lost.pop(key)
        self._insert(key, content[0])
        self._objects[key] = content

    def has(self, key: str) -> bool:
        """Whether the object exists."""
        return key in self._objects

    def place(self, files: Mapping[str, bytes]) -> None:
        """An operator puts files there; they are durable, and no object that a process has written."""
        for key, data in files.items():
            self._insert(key, data)
            self._checkpoints.place(key)

    def remove(self, names: Sequence[str]) -> None:
        """An operator removes files."""
        super().delete(names)

    def lose_power(self) -> dict[str, Change]:
        """Take back what was not synced; returns that, by name."""
        self.power_losses += 1
        changes = self._unsynced.take()
        for key, change in changes.items():
            super().delete([key])
            if change.before is not None:
                self._insert(key, change.before[0])
                self._objects[key] = change.before
                continue
            self._checkpoints.forget(key)
            if change.is_entry:
                del self.archive[key]
        for chain in {keys.chain_number(key) or 0 for key, change in changes.items() if change.is_entry}:
            remaining = (key for key in self.archive if keys.chain_number(key) == chain)
            self.heads[chain] = max((keys.entry_sequence(key) or 0 for key in remaining), default=0)
        self.receded()
        return changes

    def _may_go(self, key: str) -> bool:
        """Whether the key is not an entry, or a boundary after it is old enough and checkpoints after it are left."""
        sequence = keys.entry_sequence(key)
        if sequence is None:
            return True
        chain = key.rpartition("entries/")[0]
        limit = self.now_ms() - boundary.WAIT_MS
        boundaries = [
            decode(boundary.BoundaryDocument, item.key, self.get(item.key)).sequence
            for item in self.list(f"{chain}boundaries/")
            if item.modified_ms <= limit
        ]
        saved = [item.key for item in self.list(f"{chain}checkpoints/")]
        saved += [key for key in self.lost if key.startswith(f"{chain}checkpoints/")]  # Lost after the vacuum's list.
        heads = [keys.checkpoint_sequence(key) or 0 for key in saved]
        return sequence <= max(boundaries, default=0) and sum(head >= sequence for head in heads) > 1

    def put(self, key: str, data: bytes) -> None:
        if keys.has_segments(key):
            self.archive.setdefault(key, data)
        elif keys.entry_sequence(key) is not None:
            if data != line_of(self.archive[key]):
                self.anomalies.append(f"rewritten-entry: {key} is no longer what its writer created")
        else:
            self.anomalies += self._checkpoints.add(key, data)
        before = self._objects.get(key)
        super().put(key, data)
        self._changed(key, before)
        if is_hint(key):
            self.hints.setdefault(key, []).append(data)


class Copies(Bucket):
    """A backup: its entries are copies, which no process creates."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.lasting = False
        self.root = "memory://copies"

    def put(self, key: str, data: bytes) -> None:
        before = self._objects.get(key)
        MemoryStore.put(self, key, data)
        self._changed(key, before)

    def clear(self) -> None:
        """An operator empties the place."""
        self.remove([*self._objects])


class SimulatedStorage:
    """An :class:`~txnstore.storage.base.ObjectStore` for one process. After its crash every request raises that."""

    identity = MemoryStore.identity

    def __init__(
        self,
        bucket: Bucket,
        scheduler: Scheduler,
        process: str,
        rng: random.Random,
        mishap: Callable[[str, str], Mishap | None],
        trace: list[Step],
        creates: Creates,
    ) -> None:
        self.bucket = bucket
        self.dead = False
        self.creates = creates
        #: Set by the world, in a part of the runs.
        self.hidden_entries: HiddenEntries | None = None
        #: Called when a sync has failed.
        self.sync_failed: Callable[[], object] = bool
        #: Called when the process dies.
        self.on_crash: Callable[[], object] = bool
        #: Gets the keys that were answered with garbage.
        self.garbled: set[str] = set()
        #: Called with the name of each object that the process is about to write, other than an entry.
        self.wrote: Callable[[str], object] = bool
        self._outage_until = 0
        self._outage_prefix = ""
        self._no_sync_until = 0
        self._scheduler = scheduler
        self._process = process
        self._rng = rng
        self._mishap = mishap
        self._trace = trace

    @property
    def url(self) -> str:
        return self.bucket.url

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.hidden_entries is not None:
            self.hidden_entries.get_begins(key)
        data = self._read("get", key, lambda: self._get(key, start, end))
        self.creates.settle(key)
        return data

    def _get(self, key: str, start: int | None, end: int | None) -> bytes:
        if self.hidden_entries is not None and self.hidden_entries.hides(key):
            raise _HiddenError(f"simulated absence of {key}")
        return self.bucket.get(key, start, end)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._read("list", prefix, lambda: self.bucket.list(prefix, start_after, limit))

    def stat(self, key: str) -> ObjectInfo:
        return self._read("stat", key, lambda: self.bucket.stat(key))

    def now_ms(self) -> int:
        return self._read("now_ms", "", self.bucket.now_ms)

    def put(self, key: str, data: bytes) -> None:
        self.wrote(key)
        self._write("put", key, lambda: self.bucket.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.wrote(key)
        if self.hidden_entries is not None:
            self.hidden_entries.offered(key)
        return self.creates.create(
            self._process,
            key,
            data,
            lambda: self._write("put_if_absent", key, lambda: self.bucket.put_if_absent(key, data)),
        )

    def delete(self, keys: Sequence[str]) -> None:
        self._write("delete", " ".join(keys), lambda: self.bucket.delete(keys))

    def close(self) -> None:
        """Nothing to close."""

    def crash(self) -> None:
        """Kill the process, with all its threads."""
        self.dead = True
        self.on_crash()

    def _read(self, operation: str, key: str, call: Callable[[], T]) -> T:
        step, mishap = self._begin(operation, key)
        self._before(mishap)
        if mishap in _FAILED_READS:
            self._end(step, mishap, "failed")
            raise StorageError(f"simulated {mishap.value} of {operation} {key}")
        try:
            answer = call()
        except ObjectNotFoundError as error:
            self._end(step, mishap, HIDDEN if isinstance(error, _HiddenError) else "nothing")
            raise
        if mishap in (Mishap.OLD, Mishap.ELSEWHERE) and isinstance(answer, bytes):
            answer = self._other(key, answer, mishap)
        self._end(step, mishap, _in_trace(answer))
        return answer

    def _other(self, key: str, answer: bytes, mishap: Mishap) -> Any:
        """Other bytes than those that the object has."""
        if mishap is Mishap.OLD:
            return self._rng.choice(self.bucket.hints.get(key) or [answer])
        self.garbled.add(key)
        place = self._rng.randrange(len(answer) or 1)
        flipped = answer[:place] + bytes([answer[place] ^ 1]) + answer[place + 1 :] if answer else b"?"
        return self._rng.choice((b"<html>Sign in to the network</html>", answer[:place], flipped))

    def _write(self, operation: str, key: str, call: Callable[[], T]) -> T:
        step, mishap = self._begin(operation, key)
        self._before(mishap)
        if mishap in _FAILED_WRITES:
            self._end(step, mishap, "failed")
            # A create cannot distinguish a lost request from a lost answer; other requests are just repeated.
            certain = operation != "put_if_absent" or (self.creates.share and mishap is Mishap.BUSY)
            kind = StorageError if certain else UnknownOutcomeError
            raise kind(f"simulated {mishap.value} of {operation} {key}")
        if operation == "put_if_absent" and self.creates.interrupt(call, self._later):
            self._end(step, mishap, INTERRUPTED)
            raise Interrupted(f"simulated interrupt of {operation} {key}")
        if mishap is Mishap.ELSEWHERE:
            self._end(step, mishap, "elsewhere")
            if self._rng.random() < 0.5:
                return False  # type: ignore[return-value]
            raise UnknownOutcomeError(f"simulated answer of something else to {operation} {key}")
        if mishap is Mishap.SYNC:
            with self.bucket.syncs_fail():
                call()
            self.sync_failed()
            self._end(step, mishap, "unknown")
            raise UnknownOutcomeError(f"simulated failure of the sync after {operation} {key}")
        if mishap is Mishap.LATE:
            self._later(self._rng.choice((50, 5_000, 200_000)), call)
            self._end(step, mishap, "unknown")
            raise UnknownOutcomeError(f"simulated timeout of {operation} {key}")
        answer = call()
        if mishap is Mishap.TWICE:
            self._later(self._rng.choice((50, 5_000, 200_000)), call)
        if mishap is Mishap.EXISTS and answer is True:
            answer = call()
        self._end(step, mishap, "unknown" if mishap is Mishap.LOST else _in_trace(answer))
        if mishap is Mishap.LOST:
            raise UnknownOutcomeError(f"simulated loss of the answer to {operation} {key}")
        return answer

    def _later(self, delay: int, call: Callable[[], object]) -> None:
        """A write, or a copy of it, arrives later, unless the power is lost before: it is on its way in one machine."""
        losses = self.bucket.power_losses

        def arrive() -> None:
            if self.bucket.power_losses == losses:
                call()

        self._scheduler.later(delay, arrive)

    def _begin(self, operation: str, key: str) -> tuple[tuple[int, str, str], Mishap | None]:
        self._check_alive()
        return (self._scheduler.now, operation, key), self._failing(operation, key)

    def _failing(self, operation: str, key: str) -> Mishap | None:
        """The mishap of this request: the one drawn for it, or a current outage."""
        if self._scheduler.now < self._outage_until and key.startswith(self._outage_prefix):
            return Mishap.OUTAGE
        if self._scheduler.now < self._no_sync_until and operation in WRITES:
            return Mishap.SYNC
        mishap = self._mishap(operation, key)
        if mishap is Mishap.SYNC and self._rng.random() < 0.3:
            self._no_sync_until = self._scheduler.now + self._rng.choice((1_000, 5_000, 40_000))
        if mishap is Mishap.OUTAGE:
            if operation != "put_if_absent":
                return None  # Otherwise a store of many chains could never be opened.
            self._outage_until = self._scheduler.now + self._rng.choice((1_000, 5_000, 40_000))
            chain, _, _ = key.partition("/entries/")
            self._outage_prefix = chain if chain != key and self._rng.random() < 0.5 else ""
            return self._rng.choice((Mishap.LOST, Mishap.LATE, Mishap.OUTAGE))
        return mishap

    def _before(self, mishap: Mishap | None) -> None:
        self._wait(mishap, first=True)

    def _wait(self, mishap: Mishap | None, *, first: bool) -> None:
        rng, ms = self._rng, 0
        if mishap is None or mishap not in (Mishap.SLOW, Mishap.PAUSE, Mishap.CRASH):
            # Most answers take no time, so that a run takes half of the turns.
            ms = rng.randrange(1, _LATENCY) if first or rng.random() < 0.3 else 0
        elif rng.random() < 0.5 or not first:
            if mishap is Mishap.SLOW:
                ms = rng.randrange(500, 8_000)
            elif mishap is Mishap.PAUSE:
                ms = rng.randrange(100_000, 2_000_000)
            else:
                self.crash()
        if ms:
            self._scheduler.sleep(ms)
        self._check_alive()

    def _end(self, begun: tuple[int, str, str], mishap: Mishap | None, answer: str) -> None:
        at, operation, key = begun
        self._trace.append(Step(at, self._process, operation, key, mishap.value if mishap else "", answer))
        self._wait(mishap, first=False)

    def _check_alive(self) -> None:
        if self.dead:
            raise SimulatedCrash(f"{self._process} died")


class SimulatedFolder(SimulatedStorage):
    """A storage that can be asked to sync objects, as a folder can: :func:`txnstore.storage.base.make_durable` does."""

    def sync(self, keys: Sequence[str]) -> None:
        """Sync the folders of objects; those that do not exist are ignored."""
        self._write("sync", " ".join(keys), lambda: self.bucket.sync(keys))


class _HiddenError(ObjectNotFoundError):
    """The entry exists."""


def is_hint(key: str) -> bool:
    """Whether the object is a hint, of a chain or to the cuts of tables: what it says may be old."""
    return key.startswith(keys.HINTS) or key == LATEST_CUT


def _in_trace(answer: object) -> str:
    """An answer in a trace: with enough detail that two runs with equal traces are equal."""
    if isinstance(answer, bytes):
        return f"{len(answer)} bytes {hash_of(answer)}"
    if isinstance(answer, bool | int):
        return str(answer)
    if isinstance(answer, ObjectInfo):
        return f"{answer.size} bytes"
    return f"{len(answer)} keys" if isinstance(answer, Sequence) else "done"


def hash_of(data: bytes) -> str:
    """A short name for some bytes."""
    return f"{zlib.crc32(data):08x}"
