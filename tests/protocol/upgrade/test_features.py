"""Features of later releases: what this release reads, what it refuses, and that nothing is half done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.cli import captured
from tests.helpers.connections import connection_of
from tests.helpers.later import UNKNOWN, append_entry, change
from tests.helpers.refusals import contents, refused
from tests.helpers.rounds import compact_rounds
from tests.helpers.shell import new_store, runtime
from txnstore import TopicPartition
from txnstore.chain.boundary import WAIT_MS
from txnstore.compactor.repair.repair import plan_repairs, repair
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.model import Features
from txnstore.errors import TxnStoreError, UnsupportedFormatError
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

CHAINS = pytest.mark.parametrize("chains", [1, 3])
FEATURE = "sealed-records"
SAYS = f"needs the feature {FEATURE}, which "


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def filled(bucket: MemoryStore, clock: ManualClock, chains: int = 1) -> Store:
    """A store with records, a group, a prepared transaction, a checkpoint and entries after it."""
    store = new_store(bucket, partitions=4, clock=clock, chains=chains)
    store.create_topic("own", 4, config={"inline.bytes": 0, "segment.own.bytes": 0, "cleanup.policy": "compact,delete"})
    for number in range(3):
        with store.producer("writer") as producer, producer.transaction():
            for partition in range(4):
                producer.send("t", b"value %d" % number, partition=partition)
                producer.send("own", b"value %d" % number, b"key", partition=partition)
        store.checkpoint()
    store.create_topic("held")
    producer = store.producer("open", two_phase_commit=True)
    producer.begin_transaction()
    producer.send("held", b"open")
    producer.prepare_transaction()  # So it outlives its producer.
    consumer = store.consumer(["t"], "g")
    consumer.poll()
    consumer.commit()
    consumer.close()
    store.checkpoint()
    with store.producer("writer") as producer, producer.transaction():
        producer.send("t", b"last", partition=0)
    clock.advance(10 * WAIT_MS)  # All is old enough to be deleted.
    return store


def reopened(bucket: MemoryStore, clock: ManualClock, *, read_only: bool = False) -> Store:
    return open_on(bucket, read_only=read_only, runtime=runtime(clock))


def counts(store: Store) -> list[int]:
    return [store.scan(name).to_table().num_rows for name in ("t", "own")]


# Features that readers need -------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Store], Any]] = {
    "topics": lambda store: store.topics(),
    "scan": lambda store: store.scan("t").to_table(),
    "sql": lambda store: store.sql("SELECT count(*) FROM t").fetchall(),
    "consumer": lambda store: _assigned(store).poll(),
    "snapshot": lambda store: store.snapshot(),
    "group": lambda store: store.group("g"),
    "verify": lambda store: store.verify(),
    "recover": lambda store: plan_repairs(connection_of(store)),
    "vacuum": lambda store: store.vacuum(dry_run=True),
    "compact": lambda store: store.compact(dry_run=True),
    "create": lambda store: store.create_topic("u"),
    "produce": lambda store: store.producer("another"),
}


def _assigned(store: Store) -> Any:
    consumer = store.consumer()
    consumer.assign(TopicPartition("t", 0))
    return consumer


@CHAINS
@pytest.mark.parametrize("where", ["entry", "head"])
def test_store_with_an_unknown_read_feature_does_not_open(
    bucket: MemoryStore, clock: ManualClock, chains: int, where: str
) -> None:
    store = filled(bucket, clock, chains)
    if where == "entry":
        key = append_entry(bucket, chain=chains - 1, read=[FEATURE, "more"])
        says = f"needs the features more, {FEATURE}, which {key} requires"
    else:
        store.checkpoint()
        key = [each.key for each in bucket.list(keys.checkpoints(chains - 1)) if each.key.endswith("state.json")][-1]
        change(bucket, key, requires={"read": [FEATURE], "write": []})
        says = f"{SAYS}{key} requires"
    with refused(bucket, UnsupportedFormatError, says):
        reopened(bucket, clock)
    with refused(bucket, UnsupportedFormatError, says):
        reopened(bucket, clock, read_only=True)


@CHAINS
@pytest.mark.parametrize("name", READERS)
def test_process_that_has_the_store_open_stops(bucket: MemoryStore, clock: ManualClock, chains: int, name: str) -> None:
    """The next look at the chain finds the entry, whose events it may not understand."""
    store = filled(bucket, clock, chains)
    for chain in range(chains):
        append_entry(bucket, [UNKNOWN, {"type": "TopicDeleted", "way": "new"}], chain=chain, read=[FEATURE])
    with refused(bucket, UnsupportedFormatError, SAYS):
        READERS[name](store)


def test_feature_of_an_entry_counts_before_its_form(bucket: MemoryStore, clock: ManualClock) -> None:
    """A known event in a form that only the feature explains is no damage."""
    filled(bucket, clock)
    append_entry(bucket, [{"type": "ObjectsDropped", "keys": {"packed": 1}}], read=[FEATURE])
    with refused(bucket, UnsupportedFormatError, SAYS):
        reopened(bucket, clock)


COMMANDS = (
    ("topic", "list"), ("consume", "t", "--max", "1"), ("sql", "SELECT 1 FROM t"), ("verify",), ("recover",),
    ("vacuum", "--yes"), ("compact",), ("log", "show"),
)  # fmt: skip


def test_command_line_names_the_feature(tmp_path: Path) -> None:
    objects = LocalStore(tmp_path)
    new_store(objects).close()
    append_entry(objects, read=[FEATURE])
    for command in COMMANDS:
        result = captured(*command, "--store", str(tmp_path))
        assert result.status != 0, command
        assert FEATURE in result.err, command


# Features that writers need -------------------------------------------------------------------------------------------


def _commit_offsets(store: Store) -> None:
    offset = GroupOffset(topic="t", partition=0, offset=1)
    connection_of(store).submit(CommitOffsets(TxnOffsets("plain", (offset,), -1, "")))


def _repair(store: Store) -> None:
    connection = connection_of(store)
    repair(connection, plan_repairs(connection))


WRITERS: dict[str, Callable[[Store], Any]] = {
    "producer": lambda store: store.producer(),
    "transactional producer": lambda store: store.producer("another"),
    "create topic": lambda store: store.create_topic("u"),
    "alter topic": lambda store: store.alter_topic("t", partitions=9),
    "delete topic": lambda store: store.delete_topic("t"),
    "delete records": lambda store: store.delete_records({TopicPartition("own", 0): 1}),
    "group member": lambda store: store.consumer(["t"], "g").poll(),
    "offsets": _commit_offsets,
    "reset offsets": lambda store: store.reset_offsets("new", {TopicPartition("t", 0): 1}),
    "delete group": lambda store: store.delete_group("g"),
    "abort": lambda store: store.abort_transaction("open"),
    "fence": lambda store: store.fence_producers(["writer"]),
    "compact": lambda store: store.compact(force=True),
    "rounds": lambda store: next(compact_rounds(store)),
    "retain": lambda store: store.retain(),
    "vacuum": lambda store: store.vacuum(older_than=0, history=0),
    "expire": lambda store: store.expire(producer_ids=0, transactional_ids=0, offsets=0),
    "checkpoint": lambda store: store.checkpoint(),
}


@CHAINS
@pytest.mark.parametrize("opened", ["before", "before, unaware", "after"])
@pytest.mark.parametrize("name", WRITERS)
def test_unknown_write_feature_refuses_writers(
    bucket: MemoryStore, clock: ManualClock, chains: int, name: str, opened: str
) -> None:
    """Whichever chain requires it, and also if it does so since the process has opened the store.

    A process that has not read the entry yet finds it before it writes to that chain.
    """
    store = filled(bucket, clock, chains)
    for chain in range(chains) if opened == "before, unaware" else [chains - 1]:
        append_entry(bucket, chain=chain, write=[FEATURE])
    store = reopened(bucket, clock) if opened == "after" else store
    if opened == "before":
        connection_of(store).view()
    with refused(bucket, UnsupportedFormatError, SAYS, "to write this store"):
        WRITERS[name](store)


@pytest.mark.slow
@CHAINS
def test_unknown_write_feature_lets_readers_read(bucket: MemoryStore, clock: ManualClock, chains: int) -> None:
    """Also behind a transaction past its timeout, which this release cannot end."""
    store = filled(bucket, clock, chains)
    abandoned = store.producer("abandoned", transaction_timeout=10)
    abandoned.begin_transaction()
    abandoned.send("t", b"open", partition=0)
    abandoned.flush()
    with store.producer("writer") as producer, producer.transaction():
        producer.send("t", b"behind", partition=0)
    before = counts(store)
    clock.advance(WAIT_MS)
    append_entry(bucket, chain=chains - 1, write=[FEATURE])
    reader = reopened(bucket, clock)
    state = contents(bucket)
    assert counts(reader) == before
    assert reader.sql("SELECT count(*) FROM t").fetchall() == [(before[0],)]
    assert reader.snapshot().entry
    assert reader.group("g").positions
    assert [each.value for each in _assigned(reader).poll()]
    assert reader.verify(deep=True).violations == ()
    assert plan_repairs(connection_of(reader)).repairs == ()
    assert reader.vacuum(older_than=0, dry_run=True).dry_run
    assert reader.doctor().findings
    assert reader.recover().aborted == ()
    assert contents(bucket) == state


@CHAINS
def test_open_producer_is_refused_and_leaves_only_its_upload(
    bucket: MemoryStore, clock: ManualClock, chains: int
) -> None:
    """A transaction that another release's entry overtakes ends nowhere: neither committed, nor half in some chains."""
    store = filled(bucket, clock, chains)
    producer = store.producer("writer")
    producer.begin_transaction()
    for partition in range(4):
        producer.send("own", b"late", b"key", partition=partition)
    append_entry(bucket, chain=chains - 1, write=[FEATURE])
    before = counts(reopened(bucket, clock, read_only=True))
    connection_of(store).view()
    with refused(bucket, UnsupportedFormatError, SAYS, uploads=True):
        producer.commit_transaction()
    assert counts(reopened(bucket, clock, read_only=True)) == before


@CHAINS
def test_checkpoint_keeps_what_a_chain_requires(bucket: MemoryStore, clock: ManualClock, chains: int) -> None:
    """A later release has written a checkpoint: its head says it, the entries before are not read."""
    store = filled(bucket, clock, chains)
    store.checkpoint()
    last = chains - 1
    head = [each.key for each in bucket.list(keys.checkpoints(last)) if each.key.endswith("state.json")][-1]
    change(bucket, head, requires={"read": [], "write": [FEATURE]}, colour="red", future={"a": [1]})
    opened = reopened(bucket, clock)
    assert connection_of(opened).view().states[last].requires == Features((), (FEATURE,))
    assert counts(opened) == counts(store)
    with refused(bucket, UnsupportedFormatError, SAYS):
        opened.create_topic("u")
    with refused(bucket, UnsupportedFormatError, SAYS):
        opened.checkpoint()


def test_requirements_of_a_chain_grow(bucket: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry adds; the state, a checkpoint and a verification have all of them, and a writer needs all."""
    store = filled(bucket, clock)
    append_entry(bucket, write=["b", "c"])
    append_entry(bucket)
    append_entry(bucket, read=["r"], write=["a"])
    monkeypatch.setattr("txnstore.chain.codec.READ_FEATURES", frozenset({"r"}))
    monkeypatch.setattr("txnstore.chain.chain.WRITE_FEATURES", frozenset({"b", "c"}))
    with refused(bucket, UnsupportedFormatError, "needs the feature a, which"):
        reopened(bucket, clock).create_topic("u")
    monkeypatch.setattr("txnstore.chain.chain.WRITE_FEATURES", frozenset({"a", "b", "c"}))
    with reopened(bucket, clock) as writer:
        writer.create_topic("u")
        assert writer.checkpoint()
        (state,) = connection_of(writer).view().states
        assert state.requires == Features(("r",), ("a", "b", "c"))
        assert writer.verify().violations == ()
    (state,) = connection_of(reopened(bucket, clock)).view().states
    assert state.requires == Features(("r",), ("a", "b", "c"))
    monkeypatch.setattr("txnstore.chain.codec.READ_FEATURES", frozenset())
    with refused(bucket, UnsupportedFormatError, "needs the feature r, which"):
        reopened(bucket, clock)
    del store


def test_repairs_need_the_features(bucket: MemoryStore, clock: ManualClock) -> None:
    store = filled(bucket, clock)
    append_entry(bucket, write=[FEATURE])
    head = next(each.key for each in bucket.list(keys.checkpoints(0)) if each.key.endswith("state.json"))
    bucket.put(head, b"damaged")
    del store
    with refused(bucket, UnsupportedFormatError, SAYS):
        _repair(reopened(bucket, clock))


# What no feature covers -----------------------------------------------------------------------------------------------


@CHAINS
def test_unknown_members_and_events_change_nothing(bucket: MemoryStore, clock: ManualClock, chains: int) -> None:
    """Without a feature, this release reads, writes and verifies past them, before a checkpoint and after it."""
    store = filled(bucket, clock, chains)
    before, states = counts(store), connection_of(store).view().states
    for chain in range(chains):
        key = append_entry(bucket, [UNKNOWN, UNKNOWN], chain=chain, colour="red", future={"a": [1]})
        data = bucket.get(key)
    reader = reopened(bucket, clock)
    assert counts(reader) == before
    for old, new in zip(states, connection_of(reader).view().states, strict=True):
        assert (new.partitions, new.topics, new.transactions, new.groups) == (
            old.partitions, old.topics, old.transactions, old.groups,
        )  # fmt: skip
    reader.create_topic("u")
    assert reader.checkpoint()
    assert bucket.get(key) == data
    again = reopened(bucket, clock)
    assert counts(again) == before
    assert again.verify(deep=True).violations == ()
    assert plan_repairs(connection_of(again), deep=True).past == ()
    again.create_topic("v")


def test_known_event_with_unknown_members_is_folded(bucket: MemoryStore, clock: ManualClock) -> None:
    filled(bucket, clock)
    append_entry(bucket, [{"type": "ObjectsForgotten", "keys": [], "entries": [], "colour": "red"}, UNKNOWN])
    assert reopened(bucket, clock).verify().violations == ()


def test_unknown_events_are_shown_by_their_names(tmp_path: Path) -> None:
    objects = LocalStore(tmp_path)
    with new_store(objects) as store:
        number = keys.entry_sequence(append_entry(objects))
        types = store.sql(f"SELECT event_types FROM txn.entries WHERE sequence = {number}").fetchall()
    assert "RecordsSigned" in str(types)
    shown = captured("log", "entry", str(number), "--store", str(tmp_path))
    assert "RecordsSigned  (of a later release; it changes nothing here)" in shown.out
    assert "RecordsSigned" in captured("log", "show", "--store", str(tmp_path)).out


def test_event_without_a_name_is_damage(bucket: MemoryStore, clock: ManualClock) -> None:
    filled(bucket, clock)
    append_entry(bucket, [{"by": "nobody"}])
    with pytest.raises(TxnStoreError, match="is not a valid Entry"):
        reopened(bucket, clock)
