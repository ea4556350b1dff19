"""A store from its creation to its close: identity, reopening, processes, metrics, and what it must not tell."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.shell import T0, another_process, backend, in_threads, new_store, sound, values
from txnstore.connection import Connection
from txnstore.errors import (
    InvalidConfigError,
    ReadOnlyError,
    StorageRefusedError,
    StoreExistsError,
    StoreNotFoundError,
    UnknownOutcomeError,
)
from txnstore.runtime import Runtime
from txnstore.storage.counting import CountingStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on


def runtime() -> Runtime:
    """A runtime that never pauses; each store that it creates has an id of its own."""
    return Runtime(ManualClock(), lambda _: None)


# Create ---------------------------------------------------------------------------------------------------------------


def test_refused_open_names_read_only(tmp_path: Path) -> None:
    class Reads(LocalStore):
        identity = "another user"

        def put_if_absent(self, key: str, data: bytes) -> bool:
            raise StorageRefusedError("Cannot create x: access denied.")

    create_on(LocalStore(tmp_path), runtime=runtime()).close()
    with pytest.raises(StorageRefusedError, match=r"access denied\. .*read_only=True"):
        open_on(Reads(tmp_path))
    assert open_on(Reads(tmp_path), read_only=True).topics() == []


def test_a_new_store_is_one_object() -> None:
    objects = MemoryStore()
    store = create_on(objects, runtime=runtime())
    assert [item.key for item in objects.list("")] == [keys.STORE]
    document = json.loads(objects.get(keys.STORE))
    assert (document["version"], document["chains"], document["store_id"]) == (4, 1, store.store_id)
    assert store.topics() == []


def test_a_store_that_is_there_is_not_created_again() -> None:
    objects = MemoryStore()
    first = create_on(objects, runtime=runtime())
    first.create_topic("t")
    before = [(item.key, objects.get(item.key)) for item in objects.list("")]
    with pytest.raises(StoreExistsError, match=r"there is a store at memory:// already: it has a store\.json"):
        create_on(objects, runtime=runtime())
    again = create_on(objects, exist_ok=True, runtime=runtime())
    assert again.store_id == first.store_id
    assert [topic.name for topic in again.topics()] == ["t"]
    assert [(item.key, objects.get(item.key)) for item in objects.list("")] == before


def test_one_of_many_threads_creates_the_store_and_the_others_raise() -> None:
    objects = MemoryStore()
    answers = in_threads(12, lambda _: create_on(objects, runtime=runtime()))
    created = [answer for answer in answers if isinstance(answer, Store)]
    assert len(created) == 1
    assert all(isinstance(answer, StoreExistsError) for answer in answers if answer not in created)


def test_with_exist_ok_many_threads_get_one_store(local_store_url: str) -> None:
    answers = in_threads(8, lambda _: txnstore.create(local_store_url, exist_ok=True))
    assert all(isinstance(answer, Store) for answer in answers)
    assert len({answer.store_id for answer in answers if isinstance(answer, Store)}) == 1


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.EXISTS_412])
def test_create_without_answer_reads_back(fault: Fault) -> None:
    """It is ours if the bytes are ours, and it is created if nothing is there."""
    faults = FaultStore(MemoryStore(), on(fault, "put_if_absent", key_contains=keys.STORE))
    store = create_on(faults, runtime=runtime())
    faults.release()
    assert open_on(faults.inner, runtime=runtime()).store_id == store.store_id


def test_create_without_an_answer_has_an_unknown_outcome() -> None:
    faults = FaultStore(MemoryStore(), on(Fault.LATE, "put_if_absent", key_contains=keys.STORE, times=None))
    with pytest.raises(UnknownOutcomeError, match=r"store\.json on memory"):
        create_on(faults, runtime=runtime())


@pytest.mark.parametrize("chains", [0, 257, -1, "1", True, 1.5], ids=repr)
def test_store_refuses_invalid_number_of_chains(chains: Any) -> None:
    objects = MemoryStore()
    with pytest.raises(InvalidConfigError, match="chains must be an integer from 1 to 256"):
        create_on(objects, chains, runtime=runtime())
    assert objects.list("") == []


def test_coord_02_the_number_of_chains_never_changes() -> None:
    """COORD-02: the chain of a key depends on the number of chains."""
    objects = MemoryStore()
    assert len(connection_of(create_on(objects, 4, runtime=runtime())).chains) == 4
    with pytest.raises(InvalidConfigError, match="has 4 chains, not 8"):
        create_on(objects, 8, exist_ok=True, runtime=runtime())
    assert len(connection_of(create_on(objects, 4, exist_ok=True, runtime=runtime())).chains) == 4
    assert len(connection_of(create_on(objects, exist_ok=True, runtime=runtime())).chains) == 4
    assert len(connection_of(open_on(objects, runtime=runtime())).chains) == 4


# Open -----------------------------------------------------------------------------------------------------------------


def test_a_store_is_found_again(local_store_url: str) -> None:
    with txnstore.create(local_store_url) as store:
        store.create_topic("t")
        store_id = store.store_id
    with txnstore.open(local_store_url) as again:
        assert again.store_id == store_id
        assert again.url == local_store_url
        assert [topic.name for topic in again.topics()] == ["t"]


def test_path_is_accepted_as_url(tmp_path: Path) -> None:
    txnstore.create(tmp_path / "store").close()
    assert txnstore.open(str(tmp_path / "store")).topics() == []


def test_open_of_missing_store_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"there is no txnstore at file://.*: it has no store\.json"):
        txnstore.open(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_read_only_writes_nothing_at_all() -> None:
    """No PUT, no DELETE, not even a probe; every door that writes is closed."""
    bench = Bench()
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"x", partition=0)
    before = [(item.key, bench.inner.get(item.key)) for item in bench.inner.list("")]
    store = open_on(CountingStore(bench.faults, log=True), read_only=True, runtime=runtime())
    consumer = store.consumer(["t"], "g")
    for call in (
        lambda: store.create_topic("u"),
        lambda: store.alter_topic("t", partitions=4),
        lambda: store.delete_topic("t"),
        store.producer,
        lambda: store.producer("id"),
        lambda: consumer.commit({T0: 1}),
        store.checkpoint,
        store.compact,
        lambda: store.vacuum(older_than=0.0),
    ):
        with pytest.raises(ReadOnlyError, match="read_only"):
            call()
    assert [record.value for record in consumer.poll()] == [b"x"]
    assert store.scan("t").to_table().num_rows == 1
    assert store.offsets("t", 0).high_watermark == 2
    assert store.verify(deep=True).ok
    assert store.metrics().puts == store.metrics().deletes == 0
    consumer.close()
    assert [(item.key, bench.inner.get(item.key)) for item in bench.inner.list("")] == before


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    """Also for root, to whom no folder is read-only: the store itself must not try."""
    with txnstore.create(tmp_path / "store") as store:
        store.create_topic("t")
    objects = LocalStore(tmp_path / "store")
    counted = CountingStore(objects, log=True)
    assert [topic.name for topic in open_on(counted, read_only=True).topics()] == ["t"]
    assert {kind for kind, _ in counted.log} == {"get", "list"}


# Close, fork, pickle --------------------------------------------------------------------------------------------------


def test_a_store_that_was_closed_connects_again() -> None:
    store = new_store()
    pool = connection_of(store).pool
    store.close()
    store.close()
    assert [topic.name for topic in store.topics()] == ["t"]
    assert connection_of(store).pool is not pool
    with store.producer(linger=None) as producer:
        assert producer.send("t", b"x", partition=0).result().offset == 0


def test_a_producer_survives_that_its_store_is_closed() -> None:
    store = new_store()
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"a", partition=0)
    store.close()
    producer.send("t", b"b", partition=0)
    producer.commit_transaction()
    assert values(store) == [b"a", b"b"]


def test_leaving_the_block_closes_the_store() -> None:
    with new_store() as store:
        assert connection_of(store).pool is not None
    assert connection_of(store)._pools == {}


def test_a_pickled_store_is_the_same_store(local_store_url: str) -> None:
    with txnstore.create(local_store_url) as store:
        store.create_topic("t")
        again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
        assert again.store_id == store.store_id
        with again.producer(linger=None) as producer:
            producer.send("t", b"x").result()
        assert store.scan("t").to_table().num_rows == 1
        assert again.read_only is False
    with txnstore.open(local_store_url, read_only=True) as reader:
        copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
        with pytest.raises(ReadOnlyError):
            copy.create_topic("u")


def test_a_store_in_nameless_memory_cannot_be_pickled() -> None:
    with pytest.raises(StorageRefusedError, match="cannot be pickled"):
        pickle.dumps(new_store())


def test_a_forked_child_reads_and_writes_on_its_own(local_store_url: str) -> None:
    with txnstore.create(local_store_url) as store:
        store.create_topic("t")
        assert connection_of(store).pool.submit(lambda: 1).result() == 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with store.producer("child") as producer, producer.transaction() as txn:
                    txn.send("t", b"child")
                code = 0 if store.metrics().commits == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.scan("t").to_table()["value"].to_pylist() == [b"child"]


# What it tells --------------------------------------------------------------------------------------------------------


def test_the_metrics_count_requests_commits_and_bytes() -> None:
    store = new_store()
    with store.producer("id") as producer:
        before = store.metrics()
        with producer.transaction() as txn:
            txn.send("t", b"x" * 1_000, partition=0)
            txn.send("t", b"x", partition=1)
        after = store.metrics()
    assert after.puts - before.puts == 1, "the entry has the records"
    assert after.gets == before.gets
    assert after.commits - before.commits == after.commands - before.commands == 1
    assert after.bytes_out - before.bytes_out > 1_000
    with another_process(store) as other:
        other.create_topic("u")
        store.create_topic("v")
    assert store.metrics().conflicts == 1
    assert (after.unknown_outcomes, after.checkpoints, after.deletes) == (0, 0, 0)


def test_transactions_are_listed_by_state_and_age() -> None:
    bench = Bench()
    clock: Any = connection_of(bench.store).runtime.clock
    for name in ("b", "a"):
        producer = bench.store.producer(name)
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.flush()
        clock.advance(10_000)
    bench.store.producer("empty")
    assert [txn.transactional_id for txn in bench.store.transactions()] == ["a", "b", "empty"]
    assert [txn.transactional_id for txn in bench.store.transactions("ONGOING")] == ["a", "b"]
    assert [txn.transactional_id for txn in bench.store.transactions("ongoing", older_than=15)] == ["b"]
    assert [txn.transactional_id for txn in bench.store.transactions(older_than=25)] == []
    assert [txn.transactional_id for txn in bench.store.transactions("EMPTY")] == ["empty"]


@pytest.mark.parametrize("state", ["OPEN", "", 5])
def test_invalid_transaction_state_is_refused_with_valid_ones(state: Any) -> None:
    with pytest.raises(InvalidConfigError, match="one of 'EMPTY', 'ONGOING'"):
        new_store().transactions(state)


def test_snapshot_does_not_change() -> None:
    store = new_store()
    snapshot = store.snapshot()
    store.create_topic("u")
    assert "u" not in snapshot.view.topics
    assert snapshot.sequence + 1 == store.snapshot().sequence
    assert repr(snapshot).startswith(f"Snapshot(entry={snapshot.entry}, timestamp='")


def test_a_state_as_last_known_costs_nothing() -> None:
    store = new_store()
    with another_process(store) as other:
        other.create_topic("u")
    connection_of(store).counts.reset()
    assert "u" not in connection_of(store).view(refresh=False).topics
    assert connection_of(store).counts.log == []
    assert "u" in connection_of(store).view().topics


def test_a_store_with_everything_is_sound() -> None:
    store = new_store()
    with store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"x")
    sound(store)
    assert backend(store) is connection_of(store).counts.inner


# Secrets --------------------------------------------------------------------------------------------------------------

SECRET = "correct-horse-battery-staple"


def test_no_secret_is_shown_by_an_s3_store() -> None:
    """In no repr, no URL, and no error, however the store is looked at."""
    from txnstore.storage.registry import open_store

    options = {"key": "AKIA", "secret": SECRET, "token": SECRET + "2", "endpoint_url": "http://127.0.0.1:9"}
    objects = open_store("s3://bucket/prefix", options)
    store = Store(Connection(objects))
    shown = [repr(store), str(store), store.url, repr(connection_of(store).objects), repr(objects), str(vars(store))]
    with pytest.raises(txnstore.StorageError) as raised:
        txnstore.open("s3://bucket/prefix", options)
    error: BaseException | None = raised.value
    while error is not None:
        shown += [str(error), repr(error)]
        error = error.__cause__
    for text in shown:
        assert SECRET not in text


@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret={SECRET}", f"gs://{SECRET}@b/x"])
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        txnstore.open(url)
    assert SECRET not in str(raised.value)
