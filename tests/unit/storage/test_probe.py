"""The probe lets honest stores pass, whatever goes wrong on the way, and refuses the others (OBJ-01)."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tests.helpers.connections import connection_of
from txnstore.errors import StorageError, StorageRefusedError, UnsafeStorageError
from txnstore.storage import probe as probe_module
from txnstore.storage import proofs
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.probe import probe, probe_once
from txnstore.storage.retry import RetryingStore
from txnstore.store import create_on
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


class Remote(MemoryStore):
    """Storage of another machine."""

    identity = "remote:bucket by user"
    remote = True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.creates = getattr(self, "creates", 0) + 1
        return super().put_if_absent(key, data)


def opened(storage: Remote, store_id: str = "id", now: int = 0) -> int:
    """A process of its own checks the storage; the number of its creates."""
    storage.creates = 0
    probe_module._proven.discard(storage.identity)
    probe_once(storage, ids, store_id=store_id, now=now)
    probe_once(storage, ids, store_id=store_id, now=now)
    return int(storage.creates)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(probe_module, "_proven", {*probe_module._proven})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "txnstore" / "probed"


def test_what_one_process_has_probed_another_one_does_not(cache: Path) -> None:
    """For one store, one user and a week of the clock, which may also have been set back."""
    storage = Remote()
    assert [opened(storage, now=1_000), opened(storage, now=1_000 + proofs.VALID_MS - 1)] == [9, 0]
    assert opened(storage, "another id", now=1_000) == 9
    assert opened(storage, now=1_000 + proofs.VALID_MS) == 9
    assert opened(storage, now=2_000) == 9, "the proof is of later"

    class OfAnother(Remote):
        identity = "remote:bucket by another user"

    assert opened(OfAnother(), now=2_000) == 9
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", ["", "soon", "\u00e9"])
def test_damaged_proof_is_none(cache: Path, damage: str) -> None:
    storage = Remote()
    opened(storage)
    proofs.proof_of(storage.identity, "id").write_text(damage, "utf-8")
    assert [opened(storage), opened(storage)] == [9, 0]


def test_create_remembers_its_probe_for_the_store_that_it_makes(cache: Path) -> None:
    """The first open of another process needs none; another store at that place has another id."""
    storage = Remote()
    probe_module._proven.discard(storage.identity)
    with create_on(storage) as store:
        store_id, now = store.store_id, connection_of(store).runtime.clock()
        assert storage.creates == 10, "those of the probe, and store.json"
    assert [opened(storage, store_id, now), opened(storage, "another id", now)] == [0, 9]


def test_create_remembers_no_probe_that_it_has_not_made(cache: Path) -> None:
    """The process has probed the storage at some earlier time."""
    storage = Remote()
    opened(storage, "")
    create_on(storage).close()
    assert not cache.exists()


def test_storage_without_a_store_is_always_probed(cache: Path) -> None:
    """What is said of a bucket would also count for another store that is made there later."""
    storage = Remote()
    assert [opened(storage, ""), opened(storage, "")] == [9, 9]
    assert not cache.exists()


def test_a_process_without_a_cache_probes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is a file, and a user without a home."""
    storage = Remote()
    cache.parent.write_text("a file")
    assert [opened(storage), opened(storage)] == [9, 9]
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert [opened(storage), opened(storage)] == [9, 9]


def test_unsafe_storage_is_not_remembered(cache: Path) -> None:
    class Unsafe(Remote):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    for _ in range(2):
        with pytest.raises(UnsafeStorageError):
            probe_once(Unsafe(), ids, store_id="id")
    assert not cache.exists()


def test_faulty_wrapper_of_a_folder_is_always_probed(cache: Path, tmp_path: Path) -> None:
    """It passes on the identity of what it wraps, and is no storage that another process has seen."""
    folder = FaultStore(LocalStore(tmp_path / "store"), on(Fault.LOST_RESPONSE, "delete", times=0))
    assert folder.identity == LocalStore(tmp_path / "store").identity
    probe_once(folder, ids, store_id="id")
    assert not cache.exists()


def test_relative_cache_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert proofs.proof_of("a", "b").parent == tmp_path / ".cache" / "txnstore" / "probed"
