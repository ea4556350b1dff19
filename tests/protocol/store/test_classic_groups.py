"""Groups that a gateway keeps, in stores: what is stored and loaded, what operators see and do, and older releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import captured
from tests.helpers.connections import connection_of
from tests.helpers.groups import client, consumer_data, generation
from tests.helpers.reading import another_process, append, new_store
from txnstore import TopicPartition
from txnstore.chain.codec import LONG, Entry, decode, encode
from txnstore.core.groups.commands import CommitOffsets, DeleteOffsets, Heartbeat, JoinGroup, TxnOffsets
from txnstore.core.groups.events import GenerationStored, GroupOffset
from txnstore.core.groups.model import Group, GroupMetadata
from txnstore.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    UnknownMemberError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on

CHAINS = pytest.mark.parametrize("chains", [1, 3])
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: Its bytes are no text, and have both characters in which the alphabets of base64 differ.
A = client("a", assignment=consumer_data("t", partitions=(0, 1)))
BINARY = client("b", instance_id="b", subscription=bytes(range(256)) * 20, assignment=b"\xfb\xff\xfe")


def store_of(clock: ManualClock, chains: int = 1) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", 2)
    return store


def group_of(store: Store) -> Group:
    return connection_of(store).view(refresh=True).groups["g"]


def submit(store: Store, command: Any) -> Any:
    return connection_of(store).submit(command)


def offset(number: int, member_id: str = "", at: int = 1) -> TxnOffsets:
    return TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=at),), number, member_id)


@CHAINS
def test_other_processes_load_a_generation_from_entries_and_from_checkpoints(clock: ManualClock, chains: int) -> None:
    store = store_of(clock, chains)
    submit(store, generation(1, A, BINARY, expected=-1, protocol_type="other"))
    written = group_of(store)
    assert group_of(another_process(store, clock)) == written
    store.checkpoint()
    append(store, "later")
    loaded = another_process(store, clock)
    assert group_of(loaded) == written
    assert loaded.verify().violations == ()
    assert written.classic is not None
    assert written.classic.members == (A, BINARY)


@pytest.mark.parametrize("number", [1, LONG])
def test_an_entry_of_any_length_has_the_bytes_of_members(number: int) -> None:
    """Entries of many events are written in parts."""
    event = GenerationStored(
        group="g", generation=1, protocol_type="x", protocol="y", leader="b", members=[BINARY, replace(BINARY)]
    )
    entry = Entry(
        sequence=1,
        entry_id="e",
        writer_id="w",
        timestamp=1,
        previous="",
        payload=None,
        requires=None,
        principals=None,
        events=[event] * number,
    )
    assert b'"assignment":"-__-"' in encode(entry)
    assert decode(Entry, "key", encode(entry)) == entry


@CHAINS
def test_of_two_processes_one_loses_at_the_head(clock: ManualClock, chains: int) -> None:
    """The loser had not read the generation of the other one."""
    store = store_of(clock, chains)
    other = another_process(store, clock)
    other.groups()
    submit(store, generation(1, A, expected=-1))
    with pytest.raises(IllegalGenerationError, match="another gateway"):
        submit(other, generation(1, BINARY, expected=-1))
    submit(other, generation(1, A, expected=-1))
    submit(other, generation(2, A, BINARY))
    with pytest.raises(IllegalGenerationError):
        submit(store, CommitOffsets(offset(1, "a")))
    submit(store, CommitOffsets(offset(2, "a", 7)))
    assert [position.offset for position in other.group("g").positions if position.tp == T0] == [7]


def test_values_of_a_wrong_type_are_refused_before_they_are_written(clock: ManualClock) -> None:
    store = store_of(clock)
    wrong: Any = "text"
    with pytest.raises(InvalidConfigError, match="wrong type"):
        submit(store, generation(1, replace(A, subscription=wrong), expected=-1))
    assert store.groups() == []


@CHAINS
def test_transactions_are_fenced_by_the_generation(clock: ManualClock, chains: int) -> None:
    """OFF-06, KIP-447: with the metadata that a client sends, and by the commit that brings the offsets."""
    store = store_of(clock, chains)
    submit(store, generation(1, A, expected=-1))
    with store.producer("tx") as producer:
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.send_offsets({T0: 3}, GroupMetadata("g", 1, "a"))
        submit(another_process(store, clock), generation(2, BINARY))
        with pytest.raises((IllegalGenerationError, UnknownMemberError)):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets({T0: 4}, GroupMetadata("g", 2, "b", "b"))
        producer.commit_transaction()
    assert [position.offset for position in store.group("g").positions if position.tp == T0] == [4]


def test_a_native_consumer_learns_that_its_group_is_another_one(clock: ManualClock) -> None:
    store = store_of(clock)
    submit(store, generation(1, A, expected=-1))
    with (
        store.consumer(["t"], group="g") as consumer,
        pytest.raises(InconsistentGroupProtocolError, match="kind classic"),
    ):
        consumer.poll()
    assert store.remove_members("g") == 1
    with store.consumer(["t"], group="g") as consumer:
        consumer.poll()
        assert store.group("g").kind == "native"


# Operators ------------------------------------------------------------------------------------------------------------


def test_a_classic_group_is_described(clock: ManualClock) -> None:
    store = store_of(clock)
    append(store, "x")
    submit(store, generation(1, A, expected=-1))
    stored_at = clock()
    submit(store, CommitOffsets(offset(1, "a")))
    clock.sleep(10_000_000)
    (group,) = store.groups()
    assert (group.kind, group.state, group.generation) == ("classic", "Stable", 1)
    assert (group.protocol_type, group.protocol, group.stored_at) == ("consumer", "range", stored_at)
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("a", "app", "/10.0.0.1")
    assert (member.topics, member.assigned, member.expires_at) == (("t",), (T0, T1), None)
    assert [(position.tp, position.offset, position.member_id) for position in group.positions] == [
        (T0, 1, "a"),
        (T1, None, "a"),
    ]
    rows = store.sql("select group_id, generation, member_id, assignor, seen_at from txn.members").fetchall()
    assert rows == [("g", 1, "a", "range", None)]
    assert store.sql("select count(*) from txn.groups").fetchall() == [(1,)]
    submit(store, generation(2))
    empty = store.group("g")
    assert (empty.kind, empty.state, empty.protocol, empty.members) == ("classic", "Empty", None, ())


def test_members_of_a_dead_gateway_are_removed_by_hand(clock: ManualClock) -> None:
    store = store_of(clock)
    append(store, "x")
    submit(store, generation(3, A, BINARY, expected=-1))
    submit(store, CommitOffsets(offset(3, "a")))
    clock.sleep(1_000_000_000)
    assert store.expire(offsets=1).groups == ()
    for refused in (
        lambda: store.delete_group("g"),
        lambda: store.reset_offsets("g", "earliest"),
        lambda: store.reset_offsets("g", {T0: 0}),
    ):
        with pytest.raises(GroupNotEmptyError, match="2 members that a gateway keeps") as raised:
            refused()
        assert "remove-members" in raised.value.advice
    assert store.remove_members("g") == 2
    assert store.remove_members("g") == 0
    with pytest.raises(IllegalGenerationError):  # The gateway is alive after all.
        submit(store, generation(4, A))
    assert store.reset_offsets("g", "earliest") == {T0: 0}
    store.delete_group("g")
    with pytest.raises(GroupNotFoundError):
        store.remove_members("g")


def test_members_that_only_a_visible_entry_removes_wait_for_the_flush(clock: ManualClock) -> None:
    """A call that is repeated after an unknown outcome answers that the group has no members."""
    objects = FaultStore(MemoryStore())
    store = new_store(clock, objects)
    store.create_topic("t")
    submit(store, generation(1, A, expected=-1))
    objects.plan = on(Fault.UNSYNCED, "put_if_absent", times=None)
    with pytest.raises(UnknownOutcomeError):
        store.remove_members("g")
    assert objects.unsynced
    objects.plan = no_faults
    assert another_process(store, clock).remove_members("g") == 0
    assert objects.unsynced == []


@CHAINS
def test_offsets_are_deleted(clock: ManualClock, chains: int) -> None:
    store = store_of(clock, chains)
    store.create_topic("u")
    store.reset_offsets("g", {T0: 0, TopicPartition("u", 0): 0})
    submit(store, generation(1, A, expected=-1))
    assert submit(store, DeleteOffsets("g", (T0, TopicPartition("u", 0)))) == (T0,)
    assert [position.tp for position in another_process(store, clock).group("g").positions] == [T0, T1]
    assert store.verify().violations == ()


def test_the_command_line_shows_and_removes_members(tmp_path: Path) -> None:
    import txnstore

    url = str(tmp_path / "store")
    with txnstore.create(url) as store:
        store.create_topic("t", 2)
        store.reset_offsets("plain", {T0: 0})
        submit(store, generation(1, A, expected=-1))
    options = ("--store", url)
    listed = captured("group", "list", *options)
    assert "classic" in listed.out
    assert [(row["group"], row.get("kind")) for row in captured("group", "list", *options, "--json").lines] == [
        ("g", "classic"),
        ("plain", None),
    ]
    shown = captured("group", "show", "g", *options)
    assert "/10.0.0.1" in shown.out
    (record,) = captured("group", "show", "g", *options, "--json").lines
    assert (record["kind"], record["protocol"], record["generation"]) == ("classic", "range", 1)
    assert record["members"][0]["client_id"] == "app"
    assert captured("group", "delete", "g", "--yes", *options).status != 0
    removed = captured("group", "remove-members", "g", "--yes", *options)
    assert (removed.status, removed.out.strip()) == (0, "1 members of group 'g' are removed")
    assert captured("group", "delete", "g", "--yes", *options).status == 0


# The kind consumer (KIP-848) ------------------------------------------------------------------------------------------


@CHAINS
def test_members_of_kip_848_have_no_leases(clock: ManualClock, chains: int) -> None:
    """No clock ends their sessions: neither processes that watch leases, nor the clock of the storage."""
    store = store_of(clock, chains)
    other = another_process(store, clock)
    submit(store, JoinGroup("g", "a", (("t", 2),), kind="consumer"))
    submit(store, JoinGroup("g", "b", (("t", 2),), kind="consumer"))
    other.groups()
    clock.sleep(1_000_000_000)
    for process in (other, another_process(store, clock)):
        described = process.group("g")
        assert (described.kind, described.generation, len(described.members)) == ("consumer", 2, 2)
        assert [member.expires_at for member in described.members] == [None, None]
        with pytest.raises(GroupNotEmptyError, match="2 members that a gateway keeps"):
            process.delete_group("g")
        submit(process, Heartbeat("g", "a", (T0, T1)))
    ended = (("b", group_of(store).members["b"].seen_at),)
    submit(store, Heartbeat("g", "a", (T0,), expired=ended))
    store.checkpoint()
    append(store, "later")
    loaded = another_process(store, clock)
    assert group_of(loaded) == group_of(store)
    assert dict((group_of(loaded).epochs or {}).items()) == {"a": 3}
    assert loaded.verify().violations == ()
    assert loaded.remove_members("g") == 1
    loaded.delete_group("g")


# Older releases -------------------------------------------------------------------------------------------------------


@CHAINS
def test_releases_that_do_not_know_generations_read_and_do_not_write(
    clock: ManualClock, chains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(clock, chains)
    append(store, "before")
    submit(store, generation(1, A, expected=-1))
    monkeypatch.setattr("txnstore.chain.chain.WRITE_FEATURES", frozenset({"authorization"}))
    older = another_process(store, clock)
    assert older.scan("t").to_table().num_rows == 1
    with pytest.raises(UnsupportedFormatError, match="feature groups"):
        older.reset_offsets("other", {T0: 0})


def test_a_store_without_gateways_needs_no_feature(clock: ManualClock) -> None:
    store = store_of(clock)
    with store.consumer(["t"], group="g") as consumer:
        consumer.poll()
    store.checkpoint()
    objects = connection_of(store).objects
    for item in objects.list("chains/"):
        assert b'"groups"]' not in objects.get(item.key)
