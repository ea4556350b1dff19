"""Each sealed batch is uploaded by one thread: that of a pool, or the one that waits, alone or with others."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers.shell import GatedStore, new_store, values
from txnstore.core.log.model import NewBatch
from txnstore.errors import StorageError
from txnstore.producer import Producer
from txnstore.producer.upload import deliver
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.threads import Workers

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")


class Segments(MemoryStore):
    """Remembers the values of each segment that is written, and may fail a write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[list[bytes]] = []
        self.threads: list[int] = []
        self.error: BaseException | None = None

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("topics/"):
            error, self.error = self.error, None
            if error is not None:
                raise error
            self.threads.append(threading.get_ident())
            self.written.append(pq.read_table(pa.BufferReader(data))["value"].to_pylist())
        super().put(key, data)

    def counts(self) -> Counter[bytes]:
        return Counter(value for segment in self.written for value in segment)


@contextmanager
def with_pool(store: Store, pool: object) -> Iterator[None]:
    """The store has this pool, while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store._connection), "pool", property(lambda _: pool))
        yield


def send(producer: Producer, count: int, name: bytes = b"") -> set[bytes]:
    sent = {b"%s%d" % (name, number) for number in range(count)}
    for number, value in enumerate(sorted(sent)):
        producer.send("t", value, partition=number % 3)
    return sent


def test_a_flush_takes_what_a_full_pool_has_not_begun() -> None:
    """Six sealed batches wait in a pool whose threads are busy: the flush writes them as one segment."""
    objects, pool = Segments(), DeferredExecutor()
    store = new_store(objects)
    store.alter_topic("t", config={"segment.own.bytes": 100_000})
    with with_pool(store, pool):
        producer = store.producer(batch_bytes=1, linger=None)
        sent = send(producer, 6)
        producer.flush()
        assert [set(segment) for segment in objects.written] == [sent]
        assert pool.run_all() == 6
    assert len(objects.written) == 1
    assert sorted(values(store)) == sorted(sent)
    producer.close()


def test_the_waiting_thread_uploads_what_no_thread_has_begun() -> None:
    """Large batches have segments of their own, which the pool never begins."""
    objects, pool = Segments(), DeferredExecutor()
    store = new_store(objects)
    with with_pool(store, pool):
        producer = store.producer("id")
        producer.begin_transaction()
        sent = send(producer, 3)
        producer.commit_transaction()
        assert objects.counts() == Counter(sent)
        assert set(objects.threads) == {threading.get_ident()}
        pool.run_all()
    assert len(objects.written) == 3
    producer.close()


@pytest.mark.parametrize("call", ["send", "flush"])
def test_an_interrupted_upload_is_repeated_by_the_next_flush(call: str) -> None:
    """In the thread that waits, or in a send whose pool is closed."""
    objects, pool = Segments(), Workers(1)
    store = new_store(objects)
    pool.shutdown()
    with with_pool(store, pool):
        producer = store.producer(batch_bytes=1 if call == "send" else 1_000, linger=None)
        objects.error = KeyboardInterrupt()
        if call == "flush":
            producer.send("t", b"a", partition=0)
        with pytest.raises(KeyboardInterrupt):
            producer.flush() if call == "flush" else producer.send("t", b"a", partition=0)
        assert objects.written == []
        producer.flush()
        assert objects.written == [[b"a"]]
    assert values(store) == [b"a"]
    producer.close()


def test_threads_that_send_and_flush_upload_each_batch_once() -> None:
    """Sends hand batches to the pool while flushes group them."""
    objects = Segments()
    store = new_store(objects)
    store.alter_topic("t", config={"segment.own.bytes": 500})
    producer = store.producer(batch_bytes=200, linger=None)

    def work(number: int) -> set[bytes]:
        sent = set[bytes]()
        for step in range(20):
            sent |= send(producer, 6, b"%d/%d/" % (number, step))
            if step % 4 == number:
                producer.flush()
        return sent

    with ThreadPoolExecutor(4) as pool:
        sent = set[bytes]().union(*pool.map(work, range(4)))
    producer.flush()
    assert objects.counts() == Counter(sent)
    assert sorted(values(store)) == sorted(sent)
    producer.close()


@pytest.mark.parametrize("last", [b"a", b"b"])
def test_a_flush_of_two_topics_uploads_both_at_once(last: bytes) -> None:
    """The calling thread takes a segment that the pool does not, also where a batch of the other one is sealed last."""
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    for topic in "ab":
        store.create_topic(topic, partitions=2)
        store.alter_topic(topic, config={"segment.own.bytes": 100_000})
    producer = store.producer(linger=None)
    for topic in "ab":
        producer.send(topic, b"0", partition=0)
    producer.send(last.decode(), b"1", partition=1)
    gate = gated.hold("put", "topics/")
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(producer.flush)
        gate.wait_for(2)
        gate.open()
        flush.result(240)
    producer.close()


def test_a_batch_in_the_log_keeps_no_description_of_its_segment() -> None:
    """A future keeps its batch; the description of an inlined segment has its bytes."""
    producer = new_store().producer(linger=None)
    future = producer.send("t", b"a")
    producer.flush()
    kept = gc.get_referents(*future._batches())
    assert not [each for each in kept if isinstance(each, NewBatch)]
    producer.close()


def test_the_error_of_a_repeated_upload_does_not_keep_its_bytes() -> None:
    """It must not refer to itself: a gateway, which has to bound the bytes, seldom looks for cycles."""

    class NotNowError(StorageError):
        pass

    class Unavailable(MemoryStore):
        def put(self, key: str, data: bytes) -> None:
            raise NotNowError

    gc.disable()
    try:
        with suppress(StorageError):
            deliver(Unavailable(), Runtime(), "topics/t", b"", "a segment", 0.0, lambda: False, lambda: None)
        assert not [each for each in gc.get_objects() if isinstance(each, NotNowError)]
    finally:
        gc.enable()
