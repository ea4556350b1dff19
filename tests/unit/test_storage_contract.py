"""The storage contract, for the backends that need no server. S3 has its turn in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

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
