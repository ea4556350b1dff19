"""The probe lets honest stores pass, whatever goes wrong on the way, and refuses the others (OBJ-01)."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from txnstore.errors import StorageError, StorageRefusedError, UnsafeStorageError
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.probe import probe, probe_once
from txnstore.storage.retry import RetryingStore
from txnstore.testing import Fault, FaultStore, on, seeded

numbers = itertools.count()


def ids() -> str:
    return f"id-{next(numbers)}"


class IgnoresTheCondition(MemoryStore):
    """What many S3 look-alikes do with If-None-Match: nothing."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class ChecksThenCreates(MemoryStore):
    """A server with a race: every writer of the first round looks before any of them writes."""

    def __init__(self, racers: int) -> None:
        super().__init__()
        self.together = threading.Barrier(racers)
        self.looks = itertools.count()
        self.racers = racers

    def put_if_absent(self, key: str, data: bytes) -> bool:
        taken = bool(self.list(key))
        if next(self.looks) < self.racers:
            self.together.wait()
        if taken:
            return False
        self.put(key, data)
        return True


class RefusesButOverwrites(MemoryStore):
    """Answers 412, and writes all the same."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        created = not self.list(key)
        self.put(key, data)
        return created


class Forgets(MemoryStore):
    """Acknowledges a create and keeps nothing."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return key not in self.__dict__.setdefault("seen", {}) and not self.__dict__["seen"].update({key: 1})


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (IgnoresTheCondition(), "let 9 of 9 writers create the same object"),
        (ChecksThenCreates(8), "let 8 of 9 writers create the same object"),
        (RefusesButOverwrites(), "holds the bytes of another"),
        (Forgets(), "could not find it"),
    ],
)
def test_an_unsafe_store_is_refused(store: MemoryStore, words: str) -> None:
    with pytest.raises(UnsafeStorageError, match=words):
        probe(store, ids)
    assert store.list("") == [], "the probe cleans up, whatever it found"


def test_the_requests_of_a_probe(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    probe(store, ids)
    assert (store.snapshot().puts, store.snapshot().get, store.snapshot().delete) == (9, 1, 1)
    assert store.snapshot().requests == 11
    local = CountingStore(RetryingStore(LocalStore(tmp_path)))
    probe_once(local, ids)
    assert (local.snapshot().puts, local.snapshot().requests) == (3, 5)


def test_a_store_is_probed_once_a_process(tmp_path: Path) -> None:
    for expected in (5, 0):
        store = CountingStore(RetryingStore(LocalStore(tmp_path / "a")))
        probe_once(store, ids)
        assert store.snapshot().requests == expected
    other = CountingStore(LocalStore(tmp_path / "b"))
    probe_once(other, ids)
    assert other.snapshot().requests == 5
    for memory in (MemoryStore(), FaultStore(MemoryStore())):
        counted = CountingStore(memory)
        probe_once(counted, ids)
        assert counted.snapshot().requests == 0


def test_a_store_that_failed_the_probe_is_probed_again(tmp_path: Path) -> None:
    class Unsafe(LocalStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    for _ in range(2):
        with pytest.raises(UnsafeStorageError):
            probe_once(Unsafe(tmp_path), ids)


@pytest.mark.parametrize("seed", range(30))
def test_faults_do_not_make_a_safe_store_unsafe(seed: int) -> None:
    """OBJ-02, OBJ-04: lost answers, 409, 503 and late writes may make the probe fail, but never as unsafe."""
    inner = MemoryStore()
    faulty = FaultStore(inner, seeded(seed, 0.3, operations={"put_if_absent"}))
    try:
        probe(RetryingStore(faulty, sleep=lambda _: None), ids)
    except UnsafeStorageError:
        raise
    except StorageError:
        pass


def test_one_fault_does_not_fail_the_probe() -> None:
    for n in range(1, 10):
        for fault in (Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.CONFLICT_409, Fault.EXISTS_412):
            probe(FaultStore(MemoryStore(), on(fault, "put_if_absent", skip=n - 1)), ids)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE_503, Fault.LOST_RESPONSE])
def test_unreachable_store_is_not_reported_as_unsafe(fault: Fault) -> None:
    """Nor as safe, if the object was created, but each answer was lost."""
    faulty = FaultStore(MemoryStore(), on(fault, "put_if_absent", times=None))
    with pytest.raises(StorageError, match="answered none of the writes") as caught:
        probe(faulty, ids)
    assert not isinstance(caught.value, UnsafeStorageError)


def test_refusal_is_raised_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageRefusedError, match="is a file"):
        probe_once(LocalStore(tmp_path / "file"), ids)


def test_probe_passes_without_delete_permission(caplog: pytest.LogCaptureFixture) -> None:
    class Keeps(MemoryStore):
        def delete(self, keys: object) -> None:
            raise StorageRefusedError("access denied")

    store = Keeps()
    probe(store, ids)
    assert len(store.list("_probe/")) == 1
    assert caplog.messages == ["probe object not deleted: access denied"]


def test_refused_probe_has_nothing_to_delete(caplog: pytest.LogCaptureFixture) -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            raise StorageRefusedError("access denied")

    store = CountingStore(ReadOnly())
    with pytest.raises(StorageRefusedError, match=r"^access denied$"):
        probe(store, ids)
    assert store.snapshot().delete == 0
    assert not caplog.messages
