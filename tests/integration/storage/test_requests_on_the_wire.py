"""What each operation costs, counted in front of an S3 server (OBJ-14, ADD-08, performance budgets)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import txnstore
from tests.harness.s3.wire import RequestLog, WireRequest
from tests.helpers.connections import connection_of
from txnstore.chain.checkpoints.index import edge_numbers
from txnstore.runtime import Runtime
from txnstore.storage import probe
from txnstore.storage.base import unwrapped
from txnstore.storage.proofs import proof_of
from txnstore.store import Store

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any]) -> Iterator[Store]:
    # Its clocks stand still: no request is due because a test takes long on a busy machine.
    now = Runtime().clock()
    standing = Runtime(clock=lambda: now, monotonic=lambda: 0)
    with txnstore.create(f"{s3_bucket_url}/events", storage_options=logged_options, runtime=standing) as store:
        store.create_topic("in")
        store.create_topic("out", partitions=4)
        yield store


def _kinds(log: RequestLog) -> dict[str, int]:
    """Requests by kind: entry and segment PUTs, GETs, LISTs, others."""
    kinds = {"segment": 0, "entry": 0, "get": 0, "list": 0, "other": 0}
    for request in log.requests:
        kinds[_kind(request)] += 1
    return kinds


def _kind(request: WireRequest) -> str:
    if request.method == "PUT" and "/entries/" in request.key:
        assert request.conditional
        return "entry"
    if request.method == "PUT" and "/topics/" in f"/{request.key}":
        return "segment"
    if request.method == "GET":
        return "list" if "list-type" in request.query else "get"
    return "other"


def _transact(producer: txnstore.Producer, number: int) -> None:
    with producer.transaction() as txn:
        for partition in range(4):
            txn.send("out", b"%d" % number, partition=partition)
        txn.send_offsets({txnstore.TopicPartition("in", 0): number}, "group")


@pytest.mark.usefixtures("own_objects")
def test_a_transaction_costs_a_put_a_partition_and_one_entry(store: Store, request_log: RequestLog) -> None:
    """P segment PUTs and 1 entry PUT, no GET, no LIST, whatever the groups."""
    with store.producer(transactional_id="t") as producer:
        request_log.clear()
        _transact(producer, 1)
        assert _kinds(request_log) == {"segment": 4, "entry": 1, "get": 0, "list": 0, "other": 0}


def test_a_small_transaction_costs_one_put(store: Store, request_log: RequestLog) -> None:
    """The entry contains the records, whatever the partitions and the groups; another process reads them there."""
    with store.producer(transactional_id="t") as producer:
        request_log.clear()
        _transact(producer, 1)
        assert _kinds(request_log) == {"segment": 0, "entry": 1, "get": 0, "list": 0, "other": 0}


@pytest.mark.usefixtures("own_objects")
def test_the_segments_of_a_transaction_are_put_at_the_same_time(store: Store, request_log: RequestLog) -> None:
    """All four uploads wait for each other before the first is let through, so they must be under way together."""
    together = threading.Barrier(4, timeout=240)
    inner = connection_of(store).objects.put

    def put(key: str, data: bytes) -> None:
        if key.startswith("topics/"):
            together.wait()
        inner(key, data)

    connection_of(store).objects.put = put  # type: ignore[method-assign]
    with store.producer(transactional_id="t") as producer:
        _transact(producer, 1)
    assert _kinds(request_log)["segment"] == 4


@pytest.mark.usefixtures("own_objects")
def test_an_idempotent_append_costs_two_puts(store: Store, request_log: RequestLog) -> None:
    """One segment, one entry."""
    with store.producer() as producer:
        request_log.clear()
        producer.send("out", b"x").result()
        assert _kinds(request_log) == {"segment": 1, "entry": 1, "get": 0, "list": 0, "other": 0}


def test_init_costs_one_put_also_when_it_recovers(store: Store, request_log: RequestLog) -> None:
    """INIT-03: fence, abort and grant are one entry."""
    zombie = store.producer(transactional_id="t")
    zombie.begin_transaction()
    zombie.send("out", b"x", partition=0)
    zombie.flush()
    request_log.clear()
    store.producer(transactional_id="t").close()
    assert _kinds(request_log) == {"segment": 0, "entry": 1, "get": 0, "list": 0, "other": 0}


@pytest.mark.parametrize("commits", [10, 1000])
def test_an_open_takes_the_same_few_requests_after_10_and_1000_commits(
    store: Store,
    request_log: RequestLog,
    s3_bucket_url: str,
    logged_options: dict[str, Any],
    commits: int,
) -> None:
    """DIF-16: identity, hint, head, index files and next boundary, entries after them, some far ahead; then the rest.

    And a list of later checkpoints, next to the first round of entries.
    """
    with store.producer(transactional_id="t") as producer:
        for number in range(commits):
            producer.begin_transaction()
            producer.send_offsets({txnstore.TopicPartition("in", 0): number}, "group")
            producer.commit_transaction()
    files = len(edge_numbers(store.checkpoint()))
    with store.producer(transactional_id="t") as producer:
        for number in range(8):
            producer.begin_transaction()
            producer.send_offsets({txnstore.TopicPartition("in", 0): number}, "group")
            producer.commit_transaction()
    request_log.clear()
    with txnstore.open(f"{s3_bucket_url}/events", storage_options=logged_options) as again:
        assert connection_of(again).chain.state == connection_of(store).chain.state
    assert _kinds(request_log) == {"segment": 0, "entry": 0, "get": 4 + files + 8 + 12, "list": 1, "other": 0}


@pytest.mark.parametrize(("sequence", "puts"), [(7, 0), (8, 3), (54, 3)])
def test_a_writer_that_closes_leaves_a_checkpoint_and_few_entries_to_read(
    store: Store,
    s3_bucket_url: str,
    logged_options: dict[str, Any],
    request_log: RequestLog,
    sequence: int,
    puts: int,
) -> None:
    """From eight entries on: a GET, an index file, the state by a conditional create, the hint; 19 GETs for an open."""
    while connection_of(store).chain.state.sequence < sequence:
        store.create_topic(f"t{connection_of(store).chain.state.sequence}")
    state = connection_of(store).chain.state
    request_log.clear()
    store.close()
    kinds = [request.kind for request in request_log.requests]
    assert (kinds.count("GET"), kinds.count("PUT"), len(kinds)) == (min(puts, 1), puts, min(puts, 1) + puts)
    assert [request.key.rpartition("/")[2] for request in request_log.requests if request.conditional] == (
        ["state.json"] if puts else []
    )
    request_log.clear()
    with txnstore.open(f"{s3_bucket_url}/events", storage_options=logged_options) as again:
        assert connection_of(again).chain.state == state
    gets = 5 + sequence % 8 + 8 if puts else 24
    assert _kinds(request_log) == {"segment": 0, "entry": 0, "get": gets, "list": 1, "other": 0}


def test_a_second_process_opens_without_a_put(
    store: Store,
    s3_bucket_url: str,
    logged_options: dict[str, Any],
    request_log: RequestLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that created the store has probed the storage; without its proof the first one to open it does."""
    backend = unwrapped(connection_of(store).objects)
    for expected in (0, 9, 0):
        if expected:
            proof_of(backend.identity, store.store_id).unlink()  # type: ignore[attr-defined]
        monkeypatch.setattr(probe, "_proven", set())
        request_log.clear()
        txnstore.open(f"{s3_bucket_url}/events", storage_options=logged_options).close()
        assert sum(request.method == "PUT" for request in request_log.requests) == expected
        assert request_log.counts()["DELETE"] == min(expected, 1)


def test_an_idle_poll_is_one_get(store: Store, request_log: RequestLog) -> None:
    """Budget: 1 GET, no LIST."""
    with store.consumer(topics=["out"], group="g") as consumer:
        consumer.poll(timeout=0)
        request_log.clear()
        assert consumer.poll(timeout=0) == []
        assert _kinds(request_log) == {"segment": 0, "entry": 0, "get": 1, "list": 0, "other": 0}


def test_a_group_commit_is_one_put(store: Store, request_log: RequestLog) -> None:
    """Budget: 1 PUT."""
    with store.producer() as producer:
        producer.send("in", b"x").result()
    with store.consumer(topics=["in"], group="g") as consumer:
        assert len(consumer.poll(timeout=0)) == 1
        request_log.clear()
        consumer.commit()
        assert _kinds(request_log) == {"segment": 0, "entry": 1, "get": 0, "list": 0, "other": 0}


@pytest.mark.usefixtures("own_objects")
def test_a_scan_gets_each_visible_segment_once_and_no_aborted_one(store: Store, request_log: RequestLog) -> None:
    """CON-02: no aborted byte is downloaded; a snapshot with nothing new is one GET."""
    with store.producer(transactional_id="t") as producer:
        _transact(producer, 1)
        producer.begin_transaction()
        producer.send("out", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    request_log.clear()
    assert store.scan("out").to_table().num_rows == 4
    segments = [request.key for request in request_log.requests if "/topics/" in f"/{request.key}"]
    assert len(segments) == len(set(segments)) == 4
    assert _kinds(request_log) == {"segment": 0, "entry": 0, "get": 5, "list": 0, "other": 0}
