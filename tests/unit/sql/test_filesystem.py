"""The files that DuckDB is given: loaded once, bounded in memory, honest about what went wrong."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.connections import batches_of
from txnstore.errors import CorruptionError, StorageError
from txnstore.segment.blocks import BLOCK_BYTES
from txnstore.segment.codec import encode
from txnstore.sql.access import Access
from txnstore.sql.content import ContentCache
from txnstore.sql.filesystem import GENERATIONS, SegmentFileSystem, SegmentObject, segment_path
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on


@dataclass
class Loads:
    """A file that counts how often it is loaded, and fails as often as a test sets."""

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
        futures = [pool.submit(cache.get, "a", file.load) for _ in range(8)]
        file.gate.set()
        assert {future.result().data for future in futures} == {b"bytes"}
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
    assert isinstance(files.take_damage(), StorageError)
    assert files.take_damage() is None
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


def test_a_segment_that_was_not_added_is_no_file_whatever_names_it(tmp_path: Path) -> None:
    """Its path is made of what others may know, too: the key, the hash and the size."""
    encoded = encode(pa.table({"n": [1]}))
    key = "topics/secret/0/00000000-0000-7000-8000-000000000000.parquet"
    objects = LocalStore(str(tmp_path))
    objects.put(key, encoded.data)
    path, added = segment_path(encoded.segment(key)), SegmentFileSystem(objects, Access())
    added.add({path: SegmentObject(objects, encoded.segment(key))})
    assert added.exists(f"txnseg://{path}")
    files = SegmentFileSystem(objects, Access())
    for name in (path, f"txnseg://{path}", key, "*", "topics/**", "topics/secret/0/*.parquet"):
        assert not files.exists(name)
        with pytest.raises(FileNotFoundError):
            files.open(name).read()
    added.add({})
    assert added.exists(path), "for queries that still run"
    added.forget_earlier()
    assert not added.exists(path)


@pytest.mark.parametrize(
    "key", ["../secret", "chains/x/0000/entries/1.json", "topics/t/../../store.json", "topics/t/x/a"]
)
def test_an_object_that_is_no_segment_has_no_path(key: str) -> None:
    with pytest.raises(CorruptionError, match="is not the key of a segment"):
        segment_path(encode(pa.table({"n": [1]})).segment(key))


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


@pytest.mark.parametrize("kind", ["whole", "local", "parts"])
def test_threads_that_share_a_file_have_positions_of_their_own(tmp_path: Path, small_ranges: None, kind: str) -> None:
    """Threads of a query share files: one seeks between the seek and the read of another."""
    encoded = encode(pa.table({"n": random.Random(1).randbytes(4 * BLOCK_BYTES).split(b"0")}))
    data, key = bytes(encoded.data), "topics/t/0/00000000-0000-7000-8000-000000000000.parquet"
    objects: ObjectStore = LocalStore(str(tmp_path)) if kind == "local" else MemoryStore()
    objects.put(key, data)
    segment = encoded.segment(key)
    if kind == "whole":
        segment = replace(segment, footer_size=None, footer_sha256=None)
    files = SegmentFileSystem(objects, Access())
    files.add({segment_path(segment): SegmentObject(objects, segment)})
    with files.open(segment_path(segment)) as file, ThreadPoolExecutor(1) as other:
        for mine, others in ((10, 300_000), (400_000, 5), (len(data) - 8, 200_000), (0, len(data) - 100)):
            file.seek(mine)
            other.submit(file.seek, others).result()
            assert file.tell() == mine
            assert file.read(50) == data[mine : mine + 50]
            assert other.submit(file.read, 50).result() == data[others : others + 50]
        assert file.seek(-8, io.SEEK_END) == len(data) - 8
        assert file.seek(3, io.SEEK_CUR) == len(data) - 5
        assert file.read() == data[-5:]


@pytest.mark.slow
def test_a_query_moves_only_the_columns_that_it_reads(small_ranges: None) -> None:
    """Of a large segment: the footer once, then the blocks of the columns. What was read is kept."""
    objects = CountingStore(MemoryStore(), log=True)
    names, numbers = [f"c{number}" for number in range(20)], random.Random(1)
    with create_on(objects) as store:
        store.create_topic("wide", schema=pa.schema([(name, pa.int64()) for name in names]))
        columns = {name: [numbers.randrange(2**62) for _ in range(60_000)] for name in names}
        with store.producer(batch_bytes=16 << 20) as producer:
            producer.send_table("wide", pa.table(columns))
        whole = sum(batch.segment.size for batch in batches_of(store, "wide"))

        def moved(query: str) -> tuple[int, int]:
            before = objects.snapshot()
            assert store.sql(query).fetchall() == [(sum(columns["c7"]),)]
            after = objects.snapshot()
            return after.get - before.get, after.bytes_in - before.bytes_in

        gets, size = moved("select sum(c7) from wide")
        assert size < whole / 20 + 4 * BLOCK_BYTES
        assert gets <= 3, (list(objects.log)[-6:], len(batches_of(store, "wide")))
        assert moved("select sum(c7) from wide") == (1, 0), "only the chain is read"


def test_damage_in_a_part_that_a_query_reads_is_named(small_ranges: None) -> None:
    objects, numbers = MemoryStore(), random.Random(1)
    with create_on(objects) as store:
        store.create_topic("t", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
        with store.producer() as producer:
            producer.send_table(
                "t", pa.table({name: [numbers.randrange(2**62) for _ in range(60_000)] for name in "ab"})
            )
        [batch] = batches_of(store, "t")
        data = bytearray(objects.get(batch.segment.key))
        data[len(data) * 3 // 4] ^= 1  # in the column b
        objects.put(batch.segment.key, bytes(data))
        assert store.sql("select count(a) from t").fetchall() == [(60_000,)]
        with pytest.raises(
            duckdb.Error, match=f"CorruptionError: segment {batch.segment.key} of t-0 was altered: its bytes"
        ):
            store.sql("select sum(b) from t").fetchall()
