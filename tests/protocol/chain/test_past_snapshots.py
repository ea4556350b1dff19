"""Snapshots of earlier entries: equal to what was pinned then, at the documented cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.compaction import DAY_MS, HOUR_MS, T0, abort, begin, commit, new_store, reopen, rows, values
from tests.helpers.connections import connection_of
from txnstore.errors import CorruptionError, InvalidConfigError, SnapshotExpiredError
from txnstore.runtime import instant
from txnstore.snapshot import Moment, Snapshot, parse_moment
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock
from txnstore.times import Time
from txnstore.validation import BlockedReadWarning


@pytest.fixture(params=[1, 3], ids=["1 chain", "3 chains"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    return _new(clock, request.param)


@pytest.fixture
def one(clock: ManualClock) -> Store:
    return _new(clock, 1)


def _new(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, MemoryStore(clock=clock), chains)
    store.create_topic("t", partitions=2)
    return store


def _grow(store: Store, clock: ManualClock, commits: int) -> list[Snapshot]:
    """Commit so often; the snapshot after each commit, a second after the one before it."""
    snapshots = []
    for number in range(commits):
        clock.advance(1_000)
        commit(store, [b"%d" % number], partition=number % 2)
        snapshots.append(store.snapshot())
    return snapshots


def _history(store: Store, clock: ManualClock, rng: random.Random) -> Iterator[Snapshot]:
    """Snapshots after all kinds of steps: transactions of each fate, created and deleted topics, compactions."""
    open_since: Any = None
    for number in range(40):
        clock.advance(rng.randrange(1_400))
        step = rng.randrange(9)
        if step == 0:
            abort(store, [b"aborted"], partition=rng.randrange(2))
        elif step == 1 and open_since is None:
            open_since = begin(store, [b"open %d" % number], partition=rng.randrange(2))
        elif step == 2 and open_since is not None:
            open_since.commit_transaction()
            open_since = None
        elif step == 3:
            store.compact()
        elif step == 4:
            store.delete_records({T0: store.offsets("t", 0).last_stable})
        elif step == 5:
            if any(topic.name == "u" for topic in store.topics()):
                store.delete_topic("u")
            else:
                store.create_topic("u")
        elif step == 6:
            store.checkpoint()
        else:
            commit(store, [b"%d" % number], partition=rng.randrange(2))
        yield connection_of(store).snapshot()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_an_earlier_snapshot_equals_the_one_that_was_pinned_then(store: Store, clock: ManualClock, seed: int) -> None:
    """By its heads and by its time, in a new process, for both isolation levels."""
    pinned = list(_history(store, clock, random.Random(seed)))
    last = {snapshot.timestamp: snapshot for snapshot in pinned}
    reader = reopen(store, clock)
    for number, snapshot in enumerate(pinned):
        past = reader.snapshot(entry=snapshot.heads)
        assert past == snapshot
        assert reader.snapshot(timestamp=snapshot.timestamp) == last[snapshot.timestamp]
        if number % 4 == seed:
            assert rows(reader, snapshot=past) == rows(store, snapshot=snapshot)
            assert rows(reader, "t", "read_uncommitted", past) == rows(store, "t", "read_uncommitted", snapshot)
            assert past.blocked() == snapshot.blocked()


def test_a_time_between_two_commits_is_that_of_the_first(store: Store, clock: ManualClock) -> None:
    pinned = _grow(store, clock, 5)
    for snapshot, after in itertools.pairwise(pinned):
        assert snapshot.timestamp < after.timestamp
        past = store.snapshot(timestamp=snapshot.timestamp + 999)
        assert rows(store, snapshot=past) == rows(store, snapshot=snapshot)


def test_sql_shows_an_earlier_snapshot(store: Store, clock: ManualClock) -> None:
    """Topics that are deleted by now, too; and the schema ``txn`` of then."""
    pinned = _grow(store, clock, 3)[1]
    store.delete_topic("t")
    past = store.snapshot(entry=pinned.heads)
    assert store.sql("SELECT count(*) FROM t", snapshot=past).fetchall() == [(2,)]
    pins = store.sql("SELECT heads, sequence FROM txn.snapshot", snapshot=past).fetchall()
    assert pins == [(list(pinned.heads), pinned.sequence)]
    connection = store.duckdb(snapshot=past)
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(2,)]
    store.refresh(connection)
    assert connection.sql("SELECT count(*) FROM txn.topics").fetchall() == [(0,)]


def test_nothing_is_aborted_for_an_earlier_snapshot(store: Store, clock: ManualClock) -> None:
    """Its warning does not ask for what cannot change it, and later ones of the same producer are not left out."""
    writer = begin(store, [b"open"])
    commit(store, [b"behind"])
    past = store.snapshot()
    writer.commit_transaction()
    clock.advance(DAY_MS)
    for read in (
        lambda: rows(store, snapshot=past),
        lambda: reopen(store, clock).sql("SELECT value FROM t", snapshot=past).fetchall(),
    ):
        with pytest.warns(BlockedReadWarning) as caught:
            assert read() == []
        (warning,) = caught
        assert "1 committed record of t-0 cannot be read in this snapshot: waiting since 2023-" in str(warning.message)
        assert "behind the open transaction of 'open'. A snapshot after the end of this" in str(warning.message)
    head = store.snapshot().sequence
    assert len(rows(store)) == 2
    assert store.snapshot().sequence == head
    writer.begin_transaction()
    writer.send("t", b"again", partition=0)
    writer.flush()
    commit(store, [b"behind"])
    with pytest.warns(BlockedReadWarning, match="cannot be read yet.*a reader that may write aborts it after"):
        rows(store)


def test_requests_of_an_earlier_snapshot(one: Store, clock: ManualClock) -> None:
    """A look at the head, a list, a checkpoint, and the entries after it; at the head only the look."""
    pinned = _grow(one, clock, 100)
    reader = reopen(one, clock)
    for snapshot in (pinned[10], pinned[70], pinned[-1]):
        reader.snapshot()
        before = connection_of(reader).counts.snapshot()
        reader.snapshot(entry=snapshot.heads)
        requests = connection_of(reader).counts.snapshot() - before
        head, sequence = pinned[-1].sequence, snapshot.sequence
        checkpoint = sequence - sequence % 64
        if sequence == head:
            assert (requests.get, requests.list, requests.puts) == (1, 0, 0)
        else:
            assert (requests.get, requests.list, requests.puts) == (
                1 + (2 if checkpoint else 0) + sequence - checkpoint,
                1,
                0,
            )


def test_requests_to_find_a_time(one: Store, clock: ManualClock) -> None:
    """One GET for each halving of the chain."""
    pinned = _grow(one, clock, 120)
    head = pinned[-1].sequence
    for snapshot in pinned[:-1:17]:
        before = connection_of(one).counts.snapshot()
        one.snapshot(entry=snapshot.heads)
        by_entry = connection_of(one).counts.snapshot() - before
        before = connection_of(one).counts.snapshot()
        one.snapshot(timestamp=snapshot.timestamp)
        by_time = connection_of(one).counts.snapshot() - before
        assert 0 < by_time.get - by_entry.get <= head.bit_length()


def test_the_ways_to_write_a_time(one: Store, clock: ManualClock) -> None:
    """Milliseconds, ISO 8601 in any zone (UTC without one), and a datetime with a zone, whatever that zone is."""
    pinned = _grow(one, clock, 9)
    for snapshot in pinned[1:]:
        moment = datetime.fromtimestamp(snapshot.timestamp / 1000, UTC)
        east = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
        until = one.snapshot(timestamp=snapshot.timestamp)
        texts = [moment.isoformat(), moment.replace(tzinfo=None).isoformat(), east.isoformat()]
        times: list[Time] = [moment, east, *texts]
        for timestamp in times:
            assert one.snapshot(timestamp=timestamp) == until
        # Between two milliseconds: what was written until then.
        assert one.snapshot(timestamp=moment + timedelta(microseconds=999)) == until


def test_the_entry_of_a_snapshot_leads_back_to_it(clock: ManualClock) -> None:
    """The word is that of the argument: a number for one chain, a number of each for several."""
    for chains in (1, 3):
        store = _new(clock, chains)
        commit(store, [b"a"])
        snapshot = store.snapshot()
        assert store.snapshot(entry=snapshot.entry) == snapshot
        assert snapshot.entry == (snapshot.heads if chains > 1 else snapshot.heads[0])
        assert repr(snapshot) == f"Snapshot(entry={snapshot.entry}, timestamp={instant(snapshot.timestamp)!r})"


# What is not there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"entry": 4}, "entry of chain 0 must be an integer from 0 to 3, not 4"),
        ({"entry": -1}, "entry of chain 0 must be an integer from 0 to 3, not -1"),
        ({"entry": "3"}, "entry must be a number from 0 to 3, not '3'"),
        ({"entry": b"3"}, "entry must be a number from 0 to 3, not b'3'"),
        ({"entry": True}, "entry must be a number from 0 to 3, not True"),
        ({"entry": (1, 2)}, r"entry must be a number from 0 to 3, not \(1, 2\)"),
        ({"entry": ("1",)}, "entry of chain 0 must be an integer from 0 to 3, not '1'"),
        ({"entry": 1, "timestamp": 1}, "give entry or timestamp, not both"),
        (
            {"timestamp": 1.5},
            "timestamp must be an integer of milliseconds since the epoch, a time such as '20.*not 1.5",
        ),
        ({"timestamp": "yesterday"}, "or a datetime with a time zone, not 'yesterday'"),
        ({"timestamp": True}, "or a datetime with a time zone, not True"),
        (
            {"timestamp": datetime(2026, 1, 31, 12)},  # noqa: DTZ001 - that it has no zone is what is wrong
            r"timestamp is datetime\(2026, 1, 31, 12, 0\), which has no time zone: write .*, tzinfo=UTC\) for a",
        ),
        ({"timestamp": -1}, "the store had no entry yet at 1969-12-31T23:59:59Z"),
        ({"timestamp": 0}, r"no entry yet at 1970-01-01T00:00:00Z \(.*\): its first entry is of 20\d\d-.*Z$"),
        ({"timestamp": 1 << 41}, "must not be in the future: 2199023255552 ms since the epoch is 2039-09-07T15:47:35Z"),
        ({"timestamp": 1 << 62}, "must not be in the future: 4611686018427387904 ms since the epoch is 46116860184273"),
    ],
)
def test_snapshots_that_do_not_exist(one: Store, arguments: dict[str, Any], text: str) -> None:
    commit(one, [b"a"])
    assert one.snapshot().sequence == 3
    with pytest.raises(InvalidConfigError, match=text):
        one.snapshot(**arguments)


def test_empty_store_has_no_first_entry(clock: ManualClock) -> None:
    with pytest.raises(InvalidConfigError, match=r"no entry yet at .*: it has none yet$"):
        new_store(clock, chains=3).snapshot(timestamp=0)


def test_first_entry_of_several_chains_is_the_earliest(clock: ManualClock) -> None:
    store = new_store(clock, chains=3)
    first = instant(clock())
    store.create_topic("t", partitions=9)
    clock.advance(1_000_000)
    for number in range(9):
        commit(store, [b"a"], partition=number)
    with pytest.raises(InvalidConfigError, match=f"its first entry is of {first}$"):
        store.snapshot(timestamp=0)


def test_the_snapshot_of_another_store_is_refused(one: Store) -> None:
    with create_on(MemoryStore()) as other:
        other.create_topic("t")
        snapshot = other.snapshot()
    with pytest.raises(InvalidConfigError, match=f"one of the store with the id {snapshot.store_id}; this store has"):
        one.scan("t", snapshot=snapshot)
    with pytest.raises(InvalidConfigError, match="one of the store with the id"):
        one.sql("select 1", snapshot=snapshot)


@pytest.mark.parametrize("snapshot", [4, (4,), "4"])
def test_the_number_of_an_entry_is_no_snapshot(one: Store, snapshot: Any) -> None:
    for read in (one.scan, one.sql):
        with pytest.raises(InvalidConfigError, match=r"snapshot must come from store\.snapshot\(\), not"):
            read("t", snapshot=snapshot)


def test_entries_of_several_chains(clock: ManualClock) -> None:
    """One number does not name a moment, and entries that depend on others are not read without them."""
    store = _new(clock, 3)
    commit(store, [b"a"], partition=0)
    commit(store, [b"b"], partition=1)
    heads = store.snapshot().heads
    says = r"entry must be a number for each of the 3 chains, such as \(.*\) for now, not 1; or give a timestamp"
    for one in (1, (1,)):  # The latter is what "1" is as text.
        with pytest.raises(InvalidConfigError, match=says):
            store.snapshot(entry=one)
    partial = [(*heads[:number], 0, *heads[number + 1 :]) for number in range(3)]
    for cut in partial:
        with pytest.raises(InvalidConfigError, match="are no consistent view: they depend on entry"):
            store.snapshot(entry=cut)
    assert store.snapshot(entry=[*heads]).heads == heads


@pytest.mark.parametrize("lost", [keys.checkpoint_state, keys.checkpoint_index], ids=["head", "index"])
def test_a_damaged_checkpoint_costs_requests_only(
    one: Store, clock: ManualClock, lost: Callable[[int, int], str], caplog: pytest.LogCaptureFixture
) -> None:
    pinned = _grow(one, clock, 70)
    objects = connection_of(one).objects
    assert [*objects.list(lost(0, 128))]
    objects.put(lost(0, 128), b"damaged")
    assert one.snapshot(entry=pinned[-2].heads) == pinned[-2]
    assert "checkpoint ignored" in caplog.text


def test_a_missing_entry_is_named(one: Store, clock: ManualClock) -> None:
    pinned = _grow(one, clock, 10)
    objects = connection_of(one).objects
    objects.delete([keys.entry(0, 4)])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, 4)} is missing"):
        one.snapshot(entry=pinned[-2].heads)
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, 4)} is missing"):
        one.snapshot(entry=4)
    objects.delete([keys.entry(0, 11)])
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, 11)} is missing, but entry 21 exists"):
        one.snapshot(timestamp=pinned[1].timestamp)


def test_an_entry_under_the_name_of_another_is_named(one: Store, clock: ManualClock) -> None:
    """The time in it would cut the chain at a wrong place."""
    pinned = _grow(one, clock, 10)
    objects = connection_of(one).objects
    objects.put(keys.entry(0, 11), objects.get(keys.entry(0, 20)))
    with pytest.raises(CorruptionError, match=f"{keys.entry(0, 11)} contains entry 20; expected 11"):
        one.snapshot(timestamp=pinned[6].timestamp)


# Vacuum ---------------------------------------------------------------------------------------------------------------


def test_records_stay_for_the_grace_period(store: Store, clock: ManualClock) -> None:
    """RET-09: of replaced segments, too. Later the error says why they are missing; the state can still be read."""
    pinned = _grow(store, clock, 6)[-1]
    store.compact()
    store.delete_records({T0: 2})
    clock.advance(DAY_MS - HOUR_MS)
    store.vacuum()
    reader = reopen(store, clock)
    past = reader.snapshot(entry=pinned.heads)
    assert sorted(row["value"] for row in rows(reader, snapshot=past)) == [b"%d" % number for number in range(6)]
    clock.advance(2 * HOUR_MS)
    store.vacuum()
    reader = reopen(store, clock)
    past = reader.snapshot(entry=pinned.heads)
    assert past == pinned
    with pytest.raises(SnapshotExpiredError, match="was deleted by a vacuum"):
        rows(reader, snapshot=past)
    assert len(values(reader)) == 5


@pytest.mark.slow
@pytest.mark.usefixtures("unmerged")
def test_a_vacuum_keeps_the_checkpoint_before_the_grace_period(one: Store, clock: ManualClock) -> None:
    """So that any snapshot of the grace period costs few entries, however long the chain is."""
    old = _grow(one, clock, 200)
    clock.advance(HOUR_MS)
    young = _grow(one, clock, 200)
    report = one.vacuum(HOUR_MS / 1000)
    listed = _checkpoints(one)
    assert old[-1].sequence - 64 < min(listed) <= old[-1].sequence
    assert report.kept_young == len(listed) - 1 - 2 > 0, "neither this one nor the two newest"
    for snapshot in young[::40]:
        before = connection_of(one).counts.snapshot()
        assert one.snapshot(entry=snapshot.heads) == snapshot
        assert (connection_of(one).counts.snapshot() - before).get <= 3 + 63
    assert one.snapshot(entry=old[0].heads) == old[0]


@pytest.mark.slow
def test_a_vacuum_without_a_grace_period_keeps_two_checkpoints(one: Store, clock: ManualClock) -> None:
    _grow(one, clock, 300)
    one.vacuum(0)
    assert len(_checkpoints(one)) == 2


def _checkpoints(store: Store) -> set[int]:
    sequences = (keys.checkpoint_sequence(item.key) for item in connection_of(store).objects.list(keys.checkpoints(0)))
    return {sequence for sequence in sequences if sequence is not None}


# Text -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("42", Moment(entry=(42,))),
        (" 21, 40 ,21 ", Moment(entry=(21, 40, 21))),
        ("0", Moment(entry=(0,))),
        ("1970-01-01T00:00:01Z", Moment(timestamp=1_000)),
        ("1970-01-01 00:00:01", Moment(timestamp=1_000)),
        ("1970-01-01T01:00:00.0019+01:00", Moment(timestamp=1)),
        ("1970-01-02", Moment(timestamp=DAY_MS)),
    ],
)
def test_moments_as_text(text: str, moment: Moment) -> None:
    assert parse_moment("at", text) == moment


@pytest.mark.parametrize("text", ["", "x", "-1", "1,", ",", "1.5", "latest", "٣", "9" * 20, "2026-13-01"])
def test_text_that_is_no_moment(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="at must be an entry such as 42"):
        parse_moment("at", text)
