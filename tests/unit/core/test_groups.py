"""Groups as operators see them: described, reset, deleted; in the library and on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.core import T0, T1, World, offsets
from tests.helpers.groups import SESSION, join
from tests.helpers.reading import another_process, append, begin, new_store, read_all, texts
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.core.groups.offsets import OFFSETS_RETENTION_MS, expired_offsets, is_dead
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    for number, value in enumerate("abc"):
        append(store, value, timestamp=1_000 * (number + 1))
    append(store, "d", tp=T1, timestamp=1_500)
    return store


def _committed(store: Store, group: str = "g") -> dict[int, int | None]:
    return {position.tp.partition: position.offset for position in store.group(group).positions}


# Describing -----------------------------------------------------------------------------------------------------------


def test_a_group_is_described(store: Store, clock: ManualClock) -> None:
    assert store.groups() == []
    first = store.consumer(["t"], group="g", group_instance_id="one")
    assert len(first.poll()) == 4
    first.commit({T0: OffsetAndMetadata(2, "note")})
    (description,) = store.groups()
    assert (description.group, description.state, description.generation, description.lag) == ("g", "Stable", 1, 2)
    (member,) = description.members
    assert (member.instance_id, member.topics, member.assigned, member.waits_for) == ("one", ("t",), (T0, T1), ())
    assert member.expires_at == clock() + SESSION
    assert [(p.tp, p.offset, p.metadata, p.end, p.lag, p.pending, p.member_id) for p in description.positions] == [
        (T0, 2, "note", 3, 1, False, member.member_id),
        (T1, None, "", 1, 1, False, member.member_id),
    ]
    second = another_process(store, clock).consumer(["t"], group="g")
    second.poll()
    description = store.group("g")
    assert description.state == "Reconciling"
    assert [member.waits_for for member in description.members if member.instance_id is None] == [(T1,)]
    clock.advance(SESSION + 1)
    description = store.group("g")
    assert (description.state, description.members) == ("Empty", ())


def test_pending_offsets_are_shown(store: Store) -> None:
    """OFF-02: beside the committed value."""
    store.consumer(group="g").commit({T0: 1})
    producer = begin(store, "p", "x")
    producer.send_offsets({T0: 3}, "g")
    producer.send("t", b"y", partition=1)
    producer.flush()
    assert [(position.offset, position.pending) for position in store.group("g").positions] == [(1, True)]
    assert store.group("g").last_transactional_id is None
    producer.commit_transaction()
    assert [(position.offset, position.pending) for position in store.group("g").positions] == [(3, False)]
    assert store.group("g").last_transactional_id == "p", "OFF-23"


def test_an_unknown_group_is_named(store: Store) -> None:
    for call in (store.group, store.delete_group, lambda name: store.reset_offsets(name, "earliest")):
        with pytest.raises(GroupNotFoundError, match="'nobody'"):
            call("nobody")


# D3 -------------------------------------------------------------------------------------------------------------------


def test_off_09_stable_offsets_by_partition_or_by_group(store: Store) -> None:
    """D3: by partition, or strictly by group as the first design had it; without stability the last committed."""
    consumer = store.consumer(group="g")
    consumer.commit({T0: 1, T1: 1})
    producer = begin(store, "p", "x")
    producer.send_offsets({T0: 3}, "g")
    producer.send("t", b"y", partition=1)
    producer.flush()
    with pytest.raises(UnstableOffsetCommitError, match="t-0"):
        consumer.committed(T0, timeout=0)
    assert consumer.committed(T1) == 1
    for tp in (T0, T1):
        with pytest.raises(UnstableOffsetCommitError, match="of a partition in group"):
            consumer.committed(tp, strict=True, timeout=0)
        assert consumer.committed(tp, require_stable=False) == 1
    producer.abort_transaction()
    assert [consumer.committed(tp, strict=True) for tp in (T0, T1)] == [1, 1]


# Resetting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 3, 1: 1}),
        (1_500, {0: 1, 1: 0}),
        (2_500, {0: 2, 1: 1}),
        (datetime.fromtimestamp(2, UTC), {0: 1, 1: 1}),
        ("1970-01-01T00:00:02", {0: 1, 1: 1}),
        ({T0: 2}, {0: 2, 1: 1}),
        ({("t", 1): OffsetAndMetadata(0, "again")}, {0: 3, 1: 0}),
    ],
)
def test_offsets_are_reset(store: Store, to: Any, expected: dict[int, int]) -> None:
    with store.consumer(["t"], group="g") as consumer:
        read_all(consumer)
        consumer.commit()
    before = _committed(store)
    dry = store.reset_offsets("g", to, dry_run=True)
    assert _committed(store) == before
    assert store.reset_offsets("g", to) == dry
    assert _committed(store) == expected
    consumer = store.consumer(["t"], group="g")
    assert len(read_all(consumer)) == 4 - sum(expected.values())


def test_a_group_that_has_committed_nothing_is_reset_by_topic(store: Store) -> None:
    """So a new group can begin where one wants it to."""
    assert store.reset_offsets("new", "latest", topics=["t"]) == {T0: 3, T1: 1}
    append(store, "e")
    assert texts(read_all(store.consumer(["t"], group="new"))) == ["e"]


def test_reset_to_end_stops_at_open_transaction(store: Store) -> None:
    producer = begin(store, "p", "open")
    append(store, "behind")
    assert store.reset_offsets("g", "latest", topics=["t"])[T0] == 3
    producer.commit_transaction()
    assert texts(read_all(store.consumer(["t"], group="g"))) == ["open", "behind"]


def test_group_with_live_members_is_not_reset(store: Store, clock: ManualClock) -> None:
    consumer = store.consumer(["t"], group="g")
    consumer.poll()
    consumer.commit()
    other = another_process(store, clock)
    for call in (lambda: other.reset_offsets("g", "earliest"), lambda: other.delete_group("g")):
        with pytest.raises(GroupNotEmptyError, match="live members"):
            call()
    clock.advance(SESSION + 1)
    other.reset_offsets("g", "earliest")
    assert _committed(store) == {0: 0, 1: 0}
    other.delete_group("g")
    assert store.groups() == []


@pytest.mark.parametrize(
    ("error", "to", "topics"),
    [
        (InvalidConfigError, "middle", ["t"]),
        (InvalidConfigError, True, ["t"]),
        (InvalidConfigError, "yesterday", ["t"]),
        (InvalidConfigError, datetime(2026, 1, 1), ["t"]),  # noqa: DTZ001 - that it has no zone is what is wrong
        (OffsetOutOfRangeError, {T0: 4}, None),
        (UnknownTopicOrPartitionError, {TopicPartition("t", 2): 0}, None),
        (UnknownTopicOrPartitionError, "earliest", ["nope"]),
        (InvalidConfigError, {T0: "1"}, None),
    ],
)
def test_invalid_reset_is_refused(store: Store, error: type[Exception], to: Any, topics: Any) -> None:
    store.consumer(group="g").commit({T0: 1})
    with pytest.raises(error):
        store.reset_offsets("g", to, topics=topics)
    assert _committed(store) == {0: 1}


# Expiry ---------------------------------------------------------------------------------------------------------------


def test_off_16_offsets_expire_a_week_after_the_commit_without_members() -> None:
    """Kafka's ``offsets.retention.minutes``, for a group that never had members."""
    world = World(partitions=2)
    world.commit_offset(1)
    at = world.state.timestamp
    world.now += 1_000
    world.commit_offset(2, T1)
    group = world.state.groups["g"]
    assert expired_offsets(group, at + OFFSETS_RETENTION_MS - 1) == []
    assert expired_offsets(group, at + OFFSETS_RETENTION_MS) == [T0]
    assert expired_offsets(group, at + 2 * OFFSETS_RETENTION_MS) == [T0, T1]
    assert expired_offsets(group, at + 10, retention_ms=10) == [T0]


def test_off_16_offsets_of_a_group_expire_a_week_after_its_last_member() -> None:
    """Not while it has one; a member that died counts until its session was over."""
    world = World(partitions=2)
    member = join(world, "a", partitions=2)
    member.commit({T0: 1})
    joined_at = world.state.timestamp
    for _ in range(20):
        world.now += SESSION // 2
        member.beat()
    late = world.state.timestamp + SESSION
    assert expired_offsets(world.state.groups["g"], late) == []
    assert expired_offsets(world.state.groups["g"], late + OFFSETS_RETENTION_MS - 1) == []
    assert expired_offsets(world.state.groups["g"], late + OFFSETS_RETENTION_MS) == [T0]
    member.leave()
    left_at = world.state.timestamp
    assert left_at > joined_at
    assert expired_offsets(world.state.groups["g"], left_at + OFFSETS_RETENTION_MS - 1) == []
    assert expired_offsets(world.state.groups["g"], left_at + OFFSETS_RETENTION_MS) == [T0]


def test_off_16_pending_offsets_do_not_expire() -> None:
    """Eight days with a pending offset: it is kept; then the commit's own time counts."""
    world = World(partitions=2)
    client = world.client("id")
    world.commit_offset(1)
    world.commit_offset(1, T1)
    world.do(client.append(offsets=offsets({T0: 5})))
    late = world.state.timestamp + OFFSETS_RETENTION_MS + 1
    assert expired_offsets(world.state.groups["g"], late) == [T1]
    assert not is_dead(world.state.groups["g"], late)
    client.commit()
    assert world.offset() == 5


def test_group_without_members_and_offsets_is_dead() -> None:
    world = World(partitions=2)
    member = join(world, "a", partitions=2)
    now = world.state.timestamp
    assert not is_dead(world.state.groups["g"], now)
    assert is_dead(world.state.groups["g"], now + SESSION + 1)
    member.commit({T0: 1})
    member.leave()
    assert not is_dead(world.state.groups["g"], now + 2 * SESSION)


# The command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with a topic of two partitions, four records, and a group that has read two of them."""
    url = (tmp_path / "store").as_uri()
    with txnstore.create(url) as store:
        store.create_topic("t", partitions=2)
        append(store, "a", "b", "c")
        append(store, "d", tp=T1)
        store.consumer(group="g").commit({T0: 2, T1: 0})
    return Cli(url, monkeypatch)


def _cli_offsets(cli: Cli) -> list[int]:
    (shown,) = cli.ok("group", "show", "g", "--json").lines
    return [row["offset"] for row in shown["offsets"]]


def test_groups_are_listed_and_shown(cli: Cli) -> None:
    assert cli.ok("group", "list", "--json").lines == [
        {
            "group": "g", "state": "Empty", "generation": -1, "last_transactional_id": None, "members": 0,
            "partitions": 2, "lag": 2,
        }
    ]  # fmt: skip
    (shown,) = cli.ok("group", "show", "g", "--json").lines
    assert shown["offsets"][0].pop("committed_at").endswith("Z")
    assert shown["offsets"][0] == {
        "topic": "t", "partition": 0, "offset": 2, "end": 3, "lag": 1, "high_watermark": 3, "blocked": 0,
        "pending": False, "metadata": "", "member_id": None,
    }  # fmt: skip
    with txnstore.open(cli.url) as store, store.consumer(["t"], group="g") as consumer:
        consumer.poll()
        text = cli.ok("group", "show", "g").out
        assert "Stable" in text
        assert "t-0, t-1" in text
        result = cli("group", "delete", "g", "--yes")
        assert (result.status, "Stop its consumers" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "earliest"], [0, 0]),
        (["--to", "latest"], [3, 1]),
        (["--to", "1"], [1, 1]),
        (["--to", "2999-01-01"], [3, 1]),
        (["--to", "1970-01-01T00:00:00Z", "--topic", "t"], [0, 0]),
        (["--to", "latest", "--topic", "t", "--partition", "1"], [2, 1]),
        (["--to", "latest", "--dry-run"], [2, 0]),
    ],
)
def test_offsets_are_reset_on_the_command_line(cli: Cli, options: list[str], expected: list[int]) -> None:
    rows = cli.ok("group", "reset-offsets", "g", "--yes", *options, "--json").lines
    assert {row["topic"] for row in rows} == {"t"}
    assert _cli_offsets(cli) == expected


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["g"], 2, "--to"),
        (["g", "--to", "somewhere"], 2, "earliest, latest, an offset, a time"),
        (["g", "--to", "latest", "--partition", "1"], 2, "--partition needs one --topic"),
        (["g", "--to", "latest", "--topic", "t", "--partition", "7"], 2, "no partition 7"),
        (["g", "--to", "2"], 1, "is outside the log"),
        (["g", "--to", "2"], 1, "Give an offset in that range"),
        (["nobody", "--to", "latest"], 1, "no group 'nobody'"),
    ],
)
def test_a_bad_reset_changes_nothing(cli: Cli, options: list[str], status: int, message: str) -> None:
    result = cli("group", "reset-offsets", "--yes", *options)
    assert (result.status, message in result.err) == (status, True), result
    assert _cli_offsets(cli) == [2, 0]


def test_a_group_is_deleted_when_that_is_confirmed(cli: Cli) -> None:
    assert cli("group", "delete", "g").status == 2
    assert cli.ok("group", "delete", "g", "--yes", "--json").lines == [{"group": "g"}]
    assert cli("group", "show", "g").status == 1
    assert cli("group", "list").err == "There are no groups. A consumer with a group id creates one\n"


def test_consume_reports_partitions_of_other_members(cli: Cli) -> None:
    with txnstore.open(cli.url) as store, store.consumer(["t"], group="g") as consumer:
        consumer.poll()
        result = cli("consume", "t", "--group", "g")
        assert (result.status, result.out) == (0, "")
        assert "2 of 2 partitions are assigned to other members" in result.err
    assert sorted(cli("consume", "t", "--group", "g").out.splitlines()) == ["c", "d"]
