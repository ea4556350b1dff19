"""The files that DuckDB is given: loaded once, bounded in memory, honest about what went wrong."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from txnstore.errors import StorageError
from txnstore.sql.access import Access
from txnstore.sql.content import ContentCache
from txnstore.sql.filesystem import GENERATIONS, SegmentFileSystem
from txnstore.storage.memory import MemoryStore


@dataclass
class Loads:
    """A file that counts how often it is loaded, and fails as often as it is told to."""

    data: bytes
    size: int | None = None
    failures: int = 0
    loads: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def load(self) -> bytes:
        self.loads += 1
        self.gate.wait(240)
        if self.failures:
            self.failures -= 1
            raise StorageError("the storage is away")
        return self.data


def ready(data: bytes, size: int | None = None, failures: int = 0) -> Loads:
    file = Loads(data, size, failures)
    file.gate.set()
    return file


def test_threads_that_ask_at_once_wait_for_one_load() -> None:
    file, cache = Loads(b"bytes"), ContentCache()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cache.get, "a", file.load) for _ in range(8)]
        file.gate.set()
        assert {future.result().data for future in asked} == {b"bytes"}
    assert file.loads == 1


def test_least_recently_used_content_is_evicted_above_bound() -> None:
    cache = ContentCache(bound=10)
    files = {name: ready(name.encode() * 4) for name in "abc"}
    for name in "abac":  # b is the oldest when c does not fit
        cache.get(name, files[name].load)
    for name in "ca":
        cache.get(name, files[name].load)
    assert [file.loads for file in files.values()] == [1, 1, 1]
    cache.get("b", files["b"].load)
    assert files["b"].loads == 2


def test_content_in_use_is_never_loaded_again() -> None:
    cache, file = ContentCache(bound=1), ready(b"large")
    held = cache.get("a", file.load)
    assert cache.get("a", file.load) is held
    assert file.loads == 1
    del held
    cache.get("a", file.load)
    assert file.loads == 2


def test_a_failed_load_is_tried_again_and_remembered_as_damage() -> None:
    files = SegmentFileSystem(MemoryStore(), Access())
    files.add({"a": ready(b"bytes", size=5, failures=1)})
    with pytest.raises(StorageError):
        files.open("txnseg://a").read()
    assert isinstance(files.damage, StorageError)
    assert files.open("txnseg://a").read() == b"bytes"


def test_a_file_is_loaded_when_it_is_read_and_not_before() -> None:
    files, file = SegmentFileSystem(MemoryStore(), Access()), ready(b"0123456789", size=10)
    files.add({"topics/a": file})
    opened = files.open("txnseg://topics/a")
    assert files.info("txnseg://topics/a") == {"name": "topics/a", "size": 10, "type": "file"}
    assert files.glob("txnseg://topics/a") == ["topics/a"]
    assert file.loads == 0
    assert opened.seek(-4, io.SEEK_END) == 6
    assert opened.read(2) == b"67"
    assert opened.seek(1, io.SEEK_CUR) == 9
    assert (opened.read(), opened.read(), opened.tell()) == (b"9", b"", 10)
    assert file.loads == 1
    opened.close()


def test_tables_of_earlier_snapshots_stay_for_queries_that_run() -> None:
    files = SegmentFileSystem(MemoryStore(), Access())
    for number in range(GENERATIONS + 1):
        files.add({str(number): ready(b"%d" % number, size=1)})
    assert [files.exists(f"txnseg://{name}") for name in (0, 1, GENERATIONS)] == [False, True, True]
    assert files.open("txnseg://1").read() == b"1"
    with pytest.raises(FileNotFoundError, match="not a file of this connection"):
        files.info("txnseg://0")


def test_a_file_is_loaded_again_after_the_loading_thread_was_interrupted() -> None:
    cache = ContentCache()
    loading, waiting = threading.Event(), threading.Event()

    def interrupted() -> bytes:
        loading.set()
        waiting.wait(240)
        raise KeyboardInterrupt

    def load() -> None:
        with pytest.raises(KeyboardInterrupt):
            cache.get("a", interrupted)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load)
        loading.wait(240)
        second = pool.submit(cache.get, "a", ready(b"bytes").load)
        waiting.set()
        first.result()
        assert second.result().data == b"bytes"
    assert cache.get("a", ready(b"never").load).data == b"bytes"


def test_nothing_can_be_written() -> None:
    files = SegmentFileSystem(MemoryStore(), Access())
    files.add({"a": ready(b"")})
    with pytest.raises(PermissionError):
        files.open("txnseg://a", "wb")
