"""The storage contract, for the backends that need no server. S3 has its turn in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.interrupts import Interrupter, everywhere, places
from txnstore.errors import ObjectNotFoundError
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.registry import open_store
from txnstore.testing import FaultStore, StorageContract


class TestLocal(StorageContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "store")


class TestMemory(StorageContract):
    races = 200

    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore("contract")


class TestWrapped(StorageContract):
    """The wrappers change nothing when nothing goes wrong."""

    @pytest.fixture
    def store(self, memory_store_url: str) -> ObjectStore:
        return CountingStore(FaultStore(open_store(memory_store_url)))


def test_interrupted_write_leaves_the_memory_store_whole() -> None:
    """Wherever a put or a delete is interrupted, the listing agrees with the objects that can be read."""

    def attempt(interrupter: Interrupter) -> bool:
        store = MemoryStore()
        for key in ("a", "c", "d"):
            store.put(key, b"before")

        def change() -> None:
            store.put("b", b"new")
            store.delete(["c"])

        interrupted = interrupter.run(change)
        listed = [info.key for info in store.list("")]
        assert listed == sorted(key for key in "abcd" if _readable(store, key))
        store.put("b", b"again")
        store.delete(["c"])
        assert [info.key for info in store.list("")] == ["a", "b", "d"]
        return interrupted

    assert len(list(everywhere(places(MemoryStore._insert, MemoryStore.delete), attempt))) > 5


def _readable(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except ObjectNotFoundError:
        return False
    return True
