"""Threads, callbacks and forks around one producer: each record counts once, in one transaction (API-06, 10, 19)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txnstore
from tests.helpers.producers import after_next_turn, locked, sender_of
from tests.helpers.producing import Bench
from tests.helpers.shell import T0, GatedStore, another_process, entries, in_threads, new_store, rows, sound, values
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerError,
    StorageRefusedError,
    TransactionAbortedError,
)
from txnstore.producer.futures import RecordFuture
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")

# While a transaction ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_record_that_is_sent_while_its_transaction_ends_is_refused(end: str) -> None:
    """It came too late for this one, and it must not slip into the next."""
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"in time", partition=0)
    producer.flush()
    gate = gated.hold("put_if_absent")
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(getattr(producer, end))
        gate.wait_for()
        for call in (
            lambda: producer.send("t", b"too late", partition=0),
            lambda: producer.send_table("t", [{"value": b"too late"}], partition=0),
            lambda: producer.send_offsets({T0: 1}, "group"),
        ):
            with pytest.raises(InvalidTxnStateError, match="being committed or aborted; wait for that call to return"):
                call()
        gate.open()
        ending.result(240)
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(store) == ([b"in time", b"next"] if end == "commit_transaction" else [b"next"])


@pytest.mark.slow
def test_16_threads_send_while_another_commits() -> None:
    """API-19: every record that was accepted is committed, or its future says that it is not. Nothing is in between."""
    store = new_store(partitions=2)
    producer = store.producer("id", batch_bytes=400)
    stop, turns = threading.Event(), threading.Semaphore(0)  # A turn is one record: uploads are slower than sends.
    accepted: list[list[tuple[bytes, RecordFuture]]] = [[] for _ in range(16)]

    def work(number: int) -> None:
        if number == 16:
            try:
                for _ in range(12):
                    with producer.transaction() as txn:
                        txn.send("t", b"committer", partition=0)
                        turns.release(800)
                        txn.flush()
            finally:
                stop.set()
            return
        step = 0
        while not stop.is_set():
            if not turns.acquire(timeout=0.05):
                continue
            value = b"%d/%d" % (number, step)
            try:
                accepted[number].append((value, producer.send("t", value, partition=number % 2)))
                step += 1
            except InvalidTxnStateError:
                turns.release()

    answers = in_threads(17, work)
    assert answers == [None] * 17
    producer.close()
    committed = rows(store)
    places = {value: (partition, offset) for partition, offset, value in committed if value != b"committer"}
    reported = {}
    for sent in accepted:
        for value, future in sent:
            assert future.done()
            metadata = future.result()
            reported[value] = (metadata.partition, metadata.offset)
    assert places == reported
    assert len(committed) == len(reported) + 12
    for number, sent in enumerate(accepted):
        offsets = [reported[value][1] for value, _ in sent]
        assert offsets == sorted(offsets), number
    sound(store)


def test_threads_of_an_idempotent_producer_lose_nothing() -> None:
    store = new_store(partitions=1)
    with store.producer(batch_bytes=500, buffer_bytes=2_000, linger=0.001) as producer:

        def work(number: int) -> list[int]:
            futures = [producer.send("t", b"%d/%d" % (number, step)) for step in range(50)]
            return [future.result().offset for future in futures]

        answers = in_threads(8, work)
    offsets = [offset for answer in answers if isinstance(answer, list) for offset in answer]
    assert sorted(offsets) == list(range(400))
    assert len(values(store)) == 400


def test_abort_drops_unsent_batches_and_waits_for_uploads() -> None:
    """API-06: an upload under way ends first; nothing is appended after the abort."""
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    producer = store.producer("id", batch_bytes=100)
    producer.begin_transaction()
    gate = gated.hold("put", "topics/")
    under_way = [producer.send("t", b"x" * 100, partition=number) for number in range(3)]
    gate.wait_for(3)
    waiting = [producer.send("t", b"small", partition=0) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        aborting = pool.submit(producer.abort_transaction)
        assert not any(future.done() for future in (*under_way, *waiting))
        gate.open()
        aborting.result(240)
    assert all(isinstance(future.exception(), TransactionAbortedError) for future in (*under_way, *waiting))
    assert values(store, isolation="read_uncommitted") == []
    assert len(entries(gated.inner)) == 2  # the topic and the producer: nothing had been registered


def test_a_close_waits_for_a_commit_of_another_thread() -> None:
    gated = GatedStore(MemoryStore())
    store = new_store(gated)
    producer = store.producer("id")
    producer.begin_transaction()
    future = producer.send("t", b"x", partition=0)
    gate = gated.hold("put_if_absent")
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(producer.commit_transaction)
        gate.wait_for()
        closing = pool.submit(producer.close)
        gate.open()
        committing.result(240)
        closing.result(240)
    assert future.result().offset == 0
    assert repr(producer).endswith("CLOSED>")
    assert values(store) == [b"x"]


# Callbacks ------------------------------------------------------------------------------------------------------------


def test_callbacks_have_run_before_commit_returns_and_cannot_break_it(caplog: pytest.LogCaptureFixture) -> None:
    """API-10."""
    bench = Bench()
    offsets: list[int] = []

    def broken(future: RecordFuture) -> None:
        offsets.append(future.result().offset)
        raise ValueError("in the callback")

    with bench.store.producer("id") as producer, producer.transaction() as txn:
        for number in range(5):
            txn.send("t", b"%d" % number, partition=0).add_done_callback(broken)
    assert offsets == [0, 1, 2, 3, 4]
    assert caplog.text.count("a done callback failed") == 5
    assert len(values(bench.store)) == 5


def test_callbacks_of_an_abort_get_the_error() -> None:
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    errors: list[BaseException | None] = []
    producer.send("t", b"x").add_done_callback(lambda future: errors.append(future.exception()))
    producer.abort_transaction()
    assert [type(error) for error in errors] == [TransactionAbortedError]


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "idempotent"])
def test_callback_that_waits_for_later_record_writes_no_duplicate(*, transactional: bool) -> None:
    """Seven batches of one partition are two rounds; the callback of the first asks for the last, which flushes it."""
    bench = Bench()
    producer = bench.store.producer("id" if transactional else None, batch_bytes=1, linger=None)
    if transactional:
        producer.begin_transaction()
    futures = [producer.send("t", b"%d" % number, partition=0) for number in range(7)]
    offsets: list[int] = []
    futures[0].add_done_callback(lambda _: offsets.append(futures[6].result(240).offset))
    producer.flush()
    if transactional:
        producer.commit_transaction()
    assert offsets == [6]
    assert values(bench.store) == [b"%d" % number for number in range(7)]
    assert [future.result().offset for future in futures] == list(range(7))
    sound(bench.store)


def test_a_callback_that_waits_for_a_later_record_of_the_commit_gets_its_offset() -> None:
    """Callbacks run after the commit has settled all of its records, so none waits for what it holds up itself."""
    bench = Bench()
    producer = bench.store.producer("id", batch_bytes=1)
    producer.begin_transaction()
    futures = [producer.send("t", b"%d" % number, partition=0) for number in range(7)]
    offsets: list[int] = []
    futures[0].add_done_callback(lambda _: offsets.append(futures[6].result(240).offset))
    producer.commit_transaction()
    assert offsets == [6]
    assert values(bench.store) == [b"%d" % number for number in range(7)]


def test_a_callback_may_send_into_the_same_transaction() -> None:
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"a", partition=0).add_done_callback(lambda _: producer.send("t", b"b", partition=0))
    producer.flush()
    producer.commit_transaction()
    assert values(bench.store) == [b"a", b"b"]


def test_a_callback_cannot_send_into_a_transaction_that_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    producer = bench.store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"a", partition=0).add_done_callback(lambda _: producer.send("t", b"late", partition=0))
    producer.commit_transaction()
    assert "cannot send: no transaction is open" in caplog.text
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == [b"a", b"next"]


def test_a_callback_may_commit_and_close() -> None:
    bench = Bench()
    producer = bench.store.producer("id", batch_bytes=1)
    producer.begin_transaction()
    futures = [producer.send("t", b"%d" % number, partition=0) for number in range(7)]

    def end(future: RecordFuture) -> None:
        producer.commit_transaction()
        producer.close()

    futures[0].add_done_callback(end)
    producer.flush()
    assert repr(producer).endswith("CLOSED>")
    assert values(bench.store) == [b"%d" % number for number in range(7)]


# Fork -----------------------------------------------------------------------------------------------------------------


def in_a_child(work: object) -> int:
    """The exit code of a forked child that does this."""
    assert callable(work)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def local(local_store_url: str) -> Store:
    store = txnstore.create(local_store_url)
    store.create_topic("t", partitions=3)
    return store


@pytest.mark.slow
def test_forked_producer_refuses_every_call_and_parent_continues(local: Store) -> None:
    """OBJ-18: a child must not share producer id and sequence."""
    producer = local.producer("id", buffer_bytes=64)
    producer.begin_transaction()
    future = producer.send("t", b"x" * 100, partition=0)  # The buffer is full now: the next send would flush.

    def child() -> None:
        for call in (
            lambda: producer.send("t", b"child"),
            lambda: producer.send_table("t", [{"value": b"child"}]),
            lambda: producer.send_offsets({T0: 1}, "group"),
            producer.flush,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.begin_transaction,
            lambda: future.result(240),
        ):
            with pytest.raises(ProducerClosedError, match="made in the parent process"):
                call()
        producer.close()

    assert in_a_child(child) == 0
    producer.send("t", b"parent", partition=0)
    producer.commit_transaction()
    assert [value for _, _, value in rows(local)] == [b"x" * 100, b"parent"]
    local.close()


def test_a_fork_while_another_thread_flushes_does_not_block_the_child(local: Store) -> None:
    """The child inherits a lock that no thread of it will release."""
    producer = local.producer("id")
    producer.begin_transaction()
    future = producer.send("t", b"x", partition=0)
    with locked(producer):

        def child() -> None:
            def use() -> None:
                with pytest.raises(ProducerError):
                    future.result(240)
                producer.close()

            # Another thread than the one that holds the locks.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(use).result(240)

        assert in_a_child(child) == 0
    producer.commit_transaction()
    assert [value for _, _, value in rows(local)] == [b"x"]
    local.close()


def test_two_processes_alternate_with_one_transactional_id() -> None:
    """OBJ-17: two processes alternate with one id; the one that is fenced notices with its next call."""
    bench = Bench()
    for step in range(4):
        with another_process(bench.store, bench.inner) as store, store.producer("id") as producer:
            producer.begin_transaction()
            producer.send("t", b"%d" % step, partition=0)
            producer.commit_transaction()
    assert values(bench.store) == [b"0", b"1", b"2", b"3"]


class _Refusing(GatedStore):
    """Refuses the segments of one partition."""

    refused = "none"

    def put(self, key: str, data: bytes) -> None:
        if self.refused in key:
            msg = "refused"
            raise StorageRefusedError(msg)
        super().put(key, data)


def test_flush_keeps_error_of_later_background_flush() -> None:
    """ERR-05: a flush raises the errors of its own batches; later failures are reported by later calls."""
    objects = _Refusing(MemoryStore())
    store = new_store(objects)
    producer = store.producer(linger=None)
    sender, topic = sender_of(producer), "t"
    with ThreadPoolExecutor(1) as pool:

        def another() -> None:
            objects.refused = "topics/t/0/"
            producer.send(topic, b"lost", partition=0)
            producer.send(topic, b"good", partition=1)
            background.append((objects.hold("put_if_absent", "entries/"), pool.submit(sender.flush_for, None)))
            background[0][0].wait_for()

        background: list[Any] = []
        after_next_turn(producer, another)
        producer.flush()
        gate, flushing = background[0]
        gate.open()
        assert isinstance(flushing.result(timeout=300), StorageRefusedError)
    with pytest.raises(StorageRefusedError):
        producer.send(topic, b"next")
