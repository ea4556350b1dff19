"""The log of a partition with its markers, as Kafka's DumpLogSegments shows it: the library and SQL."""

from __future__ import annotations

import pytest

from tests.helpers.compaction import abort, commit, new_store, runtime
from tests.helpers.history import pass_days
from tests.helpers.shell import ONE_CHAIN
from txnstore import LogLine
from txnstore.errors import TopicAuthorizationError, UnknownTopicOrPartitionError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", config={"inline.bytes": 0})
    return store


def _filled(store: Store) -> None:
    """A plain batch, a committed and an aborted transaction, and an open one."""
    with store.producer() as producer:
        producer.send("t", b"plain").result()
    commit(store, [b"1", b"2"])
    abort(store, [b"x"])
    producer = store.producer("open")
    producer.begin_transaction()
    producer.send("t", b"o")
    producer.flush()


def _short(line: LogLine) -> tuple[object, ...]:
    return line.kind, line.base_offset, line.last_offset, line.outcome, line.transactional_id


LINES = [
    ("batch", 0, 0, "committed", None),
    ("batch", 1, 2, "committed", "writer"),
    ("marker", 3, 3, "COMMIT", "writer"),
    ("batch", 4, 4, "aborted", "aborter"),
    ("marker", 5, 5, "ABORT", "aborter"),
    ("batch", 6, 6, "open", "open"),
]


def test_a_log_is_shown_with_its_markers_in_order(store: Store) -> None:
    """CTL-09: with producer, epoch, sequence, outcome, entry; the marker has the next epoch (KIP-890)."""
    _filled(store)
    dumped = store.dump_log("t", 0)
    assert [_short(line) for line in dumped.lines] == LINES
    assert (dumped.log_start, dumped.last_stable, dumped.high_watermark) == (0, 6, 7)
    assert (dumped.limited, dumped.deleted) == (False, 0)
    batch, marker = dumped.lines[1:3]
    assert batch.appended_at is not None
    assert [marker.min_timestamp, marker.max_timestamp, marker.appended_at] == [batch.appended_at] * 3
    assert (marker.producer_id, marker.epoch) == (batch.producer_id, (batch.epoch or 0) + 1)
    assert (batch.base_sequence, batch.last_sequence, batch.records) == (0, 1, 2)
    assert marker.coordinator == batch.coordinator is not None
    entries = [line.entry for line in dumped.lines]
    assert None not in entries
    assert entries == sorted(entries, key=lambda entry: entry or 0)
    assert batch.segment is not None
    assert batch.segment.startswith("topics/t/")
    assert [_short(line) for line in store.dump_log("t", 0, 2, 4).lines] == LINES[1:3]
    store.create_topic("other")
    commit(store, [b"1"], topic="other")
    assert store.dump_log("t", 0).lines == dumped.lines


@ONE_CHAIN
def test_a_range_reads_the_entries_back_to_its_first_offset(store: Store) -> None:
    """What is not read is not known; of an aborted transaction the state has the offset of the marker."""
    _filled(store)
    assert [line.kind for line in store.dump_log("t", 0, 4, entries=3).lines] == ["batch", "marker", "batch"]
    unread = store.dump_log("t", 0, entries=0)
    assert unread.limited
    assert [line.kind for line in unread.lines] == ["batch", "batch", "unknown", "batch", "marker", "batch"]
    assert [line.entry for line in unread.lines] == [None] * 6
    assert (unread.lines[4].outcome, unread.lines[4].epoch) == ("ABORT", None)


@pytest.mark.slow
@ONE_CHAIN
def test_what_was_compacted_or_deleted_is_not_invented(store: Store, clock: ManualClock) -> None:
    """A merged batch has no producer; of markers whose entries are deleted only the offsets are left."""
    for value in (b"1", b"2", b"3"):
        commit(store, [value])
    store.compact()
    merged, *markers = store.dump_log("t", 0).lines
    assert (merged.outcome, merged.producer_id, merged.transactional, merged.records) == ("compacted", None, None, 3)
    assert {line.outcome for line in markers} == {"COMMIT"}
    pass_days(store, clock)
    dumped = store.dump_log("t", 0)
    assert dumped.deleted > 0
    assert dumped.lines[0].outcome == "compacted"
    assert dumped.lines[-1].outcome == "COMMIT"
    covered = {offset for line in dumped.lines for offset in range(line.base_offset, line.last_offset + 1)}
    assert covered == set(range(dumped.high_watermark))


def test_the_log_of_an_earlier_topic_of_the_name_is_not_shown(store: Store) -> None:
    _filled(store)
    store.abort_transaction("open")
    store.delete_topic("t")
    store.create_topic("t")
    commit(store, [b"new"])
    assert [_short(line)[:4] for line in store.dump_log("t", 0).lines] == [
        ("batch", 0, 0, "committed"),
        ("marker", 1, 1, "COMMIT"),
    ]
    with pytest.raises(UnknownTopicOrPartitionError, match="t-9"):
        store.dump_log("t", 9)


def test_sql_shows_the_same_log(store: Store) -> None:
    _filled(store)
    with store.duckdb() as con:
        rows = con.execute(
            "select kind, base_offset, last_offset, outcome, transactional_id from txn.log where topic = 't' "
            "order by base_offset"
        ).fetchall()
    assert rows == LINES


@ONE_CHAIN
def test_a_log_is_shown_to_those_who_may_read_the_topic(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """Its keys and hashes lead to records."""
    commit(store, [b"secret"])
    store.acls.enable(super_users=["User:ANONYMOUS"])
    with open_on(objects, runtime=runtime(clock), principal="User:other") as other:
        with pytest.raises(TopicAuthorizationError):
            other.dump_log("t", 0)
        with other.duckdb() as con:
            assert con.execute("select * from txn.log").fetchall() == []
