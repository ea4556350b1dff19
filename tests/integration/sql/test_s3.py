"""SQL over S3: what goes over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.s3.wire import Break, RequestLog, WireFault, WireRequest
from tests.helpers.connections import connection_of
from tests.helpers.sqlstore import abort, assert_equals_scan, fill, values
from txnstore.core.model import TopicPartition
from txnstore.sql import emit_views, read_table
from txnstore.store import Store, create

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any], request_log: RequestLog) -> Iterator[Store]:
    """A store with committed, aborted and open records, whose requests are logged from here on."""
    with create(f"{s3_bucket_url}/root", storage_options=logged_options) as made:
        made.create_topic("orders", partitions=3)
        fill(made, "orders", transactions=4, records=12)
        abort(made, "orders")
        producer = made.producer("open")
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0)
        producer.flush()
        request_log.clear()
        yield made
        producer.abort_transaction()
        producer.close()


def segments(log: RequestLog) -> list[str]:
    """The keys of the segments that were asked for."""
    return [request.key.removeprefix("root/") for request in log.requests if "/topics/" in f"/{request.key}"]


@pytest.mark.usefixtures("own_objects")
def test_a_query_gets_each_visible_segment_once_and_no_other(store: Store, request_log: RequestLog) -> None:
    """No aborted and no open byte is downloaded; nothing is listed, no HEAD is sent."""
    expected = sorted(part.batch.segment.key for part in store.scan("orders").plan())
    with store.duckdb() as con:
        request_log.clear()
        assert values(con, "SELECT count(*) FROM orders WHERE octet_length(value) > 0") == [48]
        assert sorted(segments(request_log)) == expected
        assert request_log.counts() == {"GET": len(expected)}
        assert values(con, "SELECT max(_offset) - min(_offset) >= 0 FROM orders") == [True]
        assert request_log.counts() == {"GET": len(expected)}


def test_the_view_equals_a_scan(store: Store) -> None:
    with store.duckdb() as con, store.duckdb("read_uncommitted") as uncommitted:
        assert assert_equals_scan(store, con, "orders") == 48
        assert assert_equals_scan(store, uncommitted, "orders", "read_uncommitted") == 57


@pytest.mark.usefixtures("own_objects")
def test_a_filter_on_the_partition_leaves_the_other_partitions_alone(store: Store, request_log: RequestLog) -> None:
    wanted = store.snapshot().view.partitions[TopicPartition("orders", 1)]
    with store.duckdb() as con:
        request_log.clear()
        values(con, "SELECT sum(_offset) FROM orders WHERE _partition = 1 AND value IS NOT NULL")
        assert 0 < len(segments(request_log)) <= len(wanted.batches)
        assert all(key.startswith("topics/orders/1/") for key in segments(request_log))


def test_connecting_and_refreshing_read_the_next_entry_only(store: Store, request_log: RequestLog) -> None:
    with store.duckdb() as con:
        assert request_log.counts() == {"GET": 1}
        store.refresh(con)
        assert request_log.counts() == {"GET": 2}


def test_the_state_is_inspected_without_a_request_and_entries_with_one_each(
    store: Store,
    request_log: RequestLog,
) -> None:
    sequence = store.snapshot().sequence
    with store.duckdb() as con:
        request_log.clear()
        assert values(con, "SELECT count(*) FROM txn.batches WHERE status = 'aborted'") == [3]
        assert values(con, "SELECT sum(open_transactions) FROM txn.partitions") == [1]
        assert request_log.counts() == {}
        assert values(con, "SELECT max(sequence) FROM txn.entries") == [sequence]
        assert values(con, "SELECT count(*) FROM txn.compactions") == [0]
        assert request_log.counts() == {"GET": sequence}


@pytest.mark.usefixtures("own_objects")
def test_a_request_that_fails_in_passing_is_repeated(store: Store, request_log: RequestLog) -> None:
    broken: list[str] = []

    def once(request: WireRequest) -> WireFault | None:
        if "/topics/" in f"/{request.key}" and not broken:
            broken.append(request.key)
            return WireFault(Break.STATUS)
        return None

    request_log.plan = once
    assert read_table(connection_of(store), "SELECT count(*) AS n FROM orders WHERE key IS NOT NULL").to_pylist() == [
        {"n": 48}
    ]
    assert segments(request_log).count(broken[0].removeprefix("root/")) == 2


@pytest.mark.usefixtures("own_objects")
def test_emitted_views_name_s3_urls(store: Store, s3_bucket_url: str) -> None:
    sql = emit_views(connection_of(store))
    plan = store.scan("orders").plan()
    assert all(f"'{s3_bucket_url}/root/{part.batch.segment.key}'" in sql for part in plan)
    assert sql.count(f"'{s3_bucket_url}/root/topics/") == len(plan)
