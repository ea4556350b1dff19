"""Stores of format version 2 as this release opens them: what readers get, what writers add, what a vacuum removes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.cli import captured
from tests.helpers.connections import connection_of
from tests.helpers.later import change
from tests.protocol.upgrade.version2 import ISOLATIONS, STORES, answers, plain, rows, runtime, stored
from txnstore import TopicPartition
from txnstore.chain.codec import FORMAT_VERSION
from txnstore.chain.payload import line_of
from txnstore.compactor.repair.repair import plan_repairs
from txnstore.core.invariants.check import check_view
from txnstore.core.model import Map
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

#: What is committed or aborted of the transactions that the old release left open.
OPEN = ("inlined", "packed", "own", "appendtime", "arrow", "wastimed")
DAY_MS = 86_400_000
HOUR = 3_600


class Upgrade:
    """A store of version 2 in memory, as its storage has it, and what the old release answered."""

    def __init__(self, name: str) -> None:
        self.name, self.clock = name, ManualClock(0)
        self.objects = MemoryStore(clock=self.clock)
        self.files = stored(name)
        text, end = self.files.pop("answers.json")
        self.answers: dict[str, Any] = json.loads(text)
        for key, (data, modified_ms) in self.files.items():
            self.clock.set(modified_ms)
            self.objects.put(key, data)
        self.clock.set(end)
        self.processes = 0

    def process(self, *, read_only: bool = False) -> Store:
        """The store as another process opens it."""
        self.processes += 1
        seed = f"new/{self.name}/{self.processes}"
        return open_on(self.objects, read_only=read_only, runtime=runtime(self.clock, seed))

    def reader(self) -> Store:
        return self.process(read_only=True)

    def written(self) -> list[str]:
        """The objects that version 2 did not have, or had with other bytes."""
        listed = [item.key for item in self.objects.list("")]
        return [key for key in listed if key not in self.files or self.objects.get(key) != self.files[key][0]]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def states(store: Store) -> tuple[State, ...]:
    return connection_of(store).view().states


@pytest.fixture(params=STORES)
def old(request: pytest.FixtureRequest) -> Upgrade:
    return Upgrade(request.param)


@pytest.fixture(params=["one-aged", "three"])
def either(request: pytest.FixtureRequest) -> Upgrade:
    """Of the four stores two that have all between them, for what takes seconds."""
    return Upgrade(request.param)


@pytest.fixture
def one() -> Upgrade:
    return Upgrade("one")


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readers_get_what_the_old_release_gave_them(old: Upgrade) -> None:
    """All records under both isolations, offsets, times, groups, transactions, producers, earlier snapshots."""
    found = as_json(answers(old.reader()))
    assert found.keys() == old.answers.keys()
    for part, expected in old.answers.items():
        assert found[part] == expected, part
    assert old.written() == []


@pytest.mark.slow
def test_sql_shows_the_same(either: Upgrade) -> None:
    store = either.reader()
    for name, by_isolation in either.answers["records"].items():
        columns = sorted(store.scan(name).to_table().column_names)
        listed = ", ".join(f'"{column}"' for column in columns)
        for isolation in ISOLATIONS:
            query = f'SELECT {listed} FROM "{name}" ORDER BY _partition, _offset'
            table = store.sql(query, isolation).to_arrow_table()  # type: ignore[arg-type]
            shown = [list(row) for row in zip(*(plain(table[column].to_pylist()) for column in columns), strict=True)]
            assert as_json(shown) == by_isolation[isolation], (name, isolation)


@pytest.mark.slow
def test_consumers_poll_the_same(either: Upgrade) -> None:
    store = either.reader()
    for name, by_isolation in either.answers["records"].items():
        for isolation in ISOLATIONS:
            consumer = store.consumer(isolation=isolation)  # type: ignore[arg-type]
            consumer.assign([TopicPartition(name, number) for number in range(store.topic(name).partitions)])
            polled = []
            while batch := consumer.poll(max_records=10_000):
                polled += [(record.partition, record.offset, record.timestamp) for record in batch]
            # The columns are recorded in the order of their names: _offset, _partition, _timestamp, …
            expected = [(partition, offset, at) for offset, partition, at, *_ in by_isolation[isolation]]
            assert sorted(polled) == expected, (name, isolation)


@pytest.mark.slow
def test_the_store_verifies(old: Upgrade) -> None:
    report = old.reader().verify(deep=True)
    assert report.violations == ()
    assert report.checkpoints >= 2
    assert check_view(connection_of(old.reader()).view()) == []


@pytest.mark.slow
def test_nothing_is_to_be_repaired(either: Upgrade) -> None:
    plan = plan_repairs(connection_of(either.reader()), deep=True)
    assert (plan.repairs, plan.lost, plan.past) == ((), (), ())


@pytest.mark.slow
def test_fold_from_the_first_entry_is_what_a_checkpoint_holds(old: Upgrade) -> None:
    """All but the released objects, of which version 2 kept one list with those that are announced.

    And but the first entries of open transactions, which only the entries have.
    """
    if STORES[old.name][1]:
        pytest.skip("the history begins at a checkpoint")
    opened = states(old.reader())
    old.objects.delete([item.key for item in old.objects.list("chains/") if "checkpoints" in item.key])
    old.objects.delete([item.key for item in old.objects.list(keys.HINTS)])
    for folded, saved in zip(states(old.reader()), opened, strict=True):
        for field in State.__dataclass_fields__:
            if field == "transactions":
                assert _without_first_entries(folded.transactions) == _without_first_entries(saved.transactions)
            elif field not in {"released", "released_entries", "dropped"}:
                assert getattr(folded, field) == getattr(saved, field), field


def _without_first_entries(transactions: Map[str, Transaction]) -> dict[str, Transaction]:
    return {name: replace(txn, first_entry=0) for name, txn in transactions.items()}


@pytest.mark.slow
def test_command_line_reads_it(tmp_path: Path, either: Upgrade) -> None:
    for key, (data, modified_ms) in either.files.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (modified_ms / 1000, modified_ms / 1000))
    shown = captured("topic", "list", "--json", "--store", str(tmp_path))
    assert {line["topic"] for line in shown.lines} == either.answers["records"].keys()
    assert captured("verify", "--deep", "--store", str(tmp_path)).status == 0
    assert captured("recover", "--dry-run", "--store", str(tmp_path)).status == 0


def test_released_and_dropped_objects_of_version_3_are_compared() -> None:
    """Of a chain without version 2, a checkpoint must have what the entries have announced."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    with create_on(objects, 1, runtime=runtime(clock, "new")) as store:
        store.create_topic("t", config={"inline.bytes": 0})
        for _ in range(3):
            with store.producer("writer") as producer, producer.transaction():
                producer.send("t", b"value")
        store.compact(force=True)
        clock.advance(DAY_MS)
        store.vacuum(older_than=0)
        head = keys.checkpoint_head(0, store.checkpoint())
        assert store.verify().violations == ()
    assert json.loads(objects.get(head))["dropped"]
    change(objects, head, dropped={})
    with open_on(objects, read_only=True, runtime=runtime(clock, "reader")) as reader:
        (violation,) = reader.verify().violations
    assert (violation.name, violation.subject) == ("checkpoint_equals_fold", head)


# Going on -------------------------------------------------------------------------------------------------------------


def go_on(old: Upgrade) -> None:
    """Complete what was open, and write to all topics."""
    store = old.process()
    store.abort_transaction("open")
    prepared = store.producer("prepared", keep_prepared=True)
    txn = connection_of(store).view().transactions["prepared"]
    assert prepared.complete_transaction(f"{txn.producer_id}:{txn.held}")
    prepared.close()
    store.recover()
    with store.producer("writer") as producer, producer.transaction():
        for name in old.answers["records"]:
            if store.topic(name).schema is None:
                for partition in range(store.topic(name).partitions):
                    producer.send(name, b"new", b"k9", partition, timestamp=5_000)
    with store.producer() as producer:
        producer.send_table("typed", [{"id": 99, "at": None, "note": "new"}], 0)
    store.close()


def is_new(row: list[Any]) -> bool:
    return "new" in row


@pytest.mark.slow
def test_writers_go_on_in_version_3(old: Upgrade) -> None:
    """What was open ends, all reads as before plus the new, and all that is written is of version 3."""
    ended = {
        name: [row for row in by_isolation["read_uncommitted"] if not _is_aborted(row)]
        for name, by_isolation in old.answers["records"].items()
    }
    go_on(old)
    store = old.reader()
    for name, before in ended.items():
        after = as_json(rows(store, name, "read_committed"))
        committed = [row for row in after if not is_new(row)]
        if name in OPEN or name in {"arrowpacked", "nowtimed"}:
            assert committed == before, name
        else:
            assert committed == old.answers["records"][name]["read_committed"], name
        if store.topic(name).schema is None:
            assert len(after) - len(committed) == store.topic(name).partitions
    assert store.group("pending-prepared").positions[0].offset is not None
    _all_of_version_3(old)
    assert store.verify(deep=True).violations == ()


def _is_aborted(row: list[Any]) -> bool:
    """Whether it is a record of a transaction that is aborted, or will be."""
    value = next((str(item) for item in row if isinstance(item, str) and " " in item), "")
    return value.startswith(("open ", "decided-abort ", "single1 "))


def _all_of_version_3(old: Upgrade) -> None:
    written = [key for key in old.written() if key.startswith("chains/")]
    assert written
    for key in written:
        assert json.loads(line_of(old.objects.get(key)))["version"] == FORMAT_VERSION, key
    assert not [key for key in old.written() if key.endswith(".pack")]


@pytest.mark.slow
def test_maintenance_goes_on(either: Upgrade) -> None:
    """Compactions, retention, checkpoints and vacuums: the same records, and then none of the old packs is there."""
    go_on(either)
    expected = {name: as_json(rows(either.reader(), name, "read_committed")) for name in either.answers["records"]}
    kept = {name: found for name, found in expected.items() if name not in {"table", "kept", "retained"}}
    with either.process() as store:
        store.compact(force=True)
        store.retain()
        store.checkpoint()
    for name, found in kept.items():
        assert as_json(rows(either.reader(), name, "read_committed")) == found, name
    assert either.reader().verify(deep=True).violations == ()
    for _ in range(4):
        either.clock.advance(2 * DAY_MS)
        with either.process() as store:
            store.vacuum(older_than=HOUR, history=HOUR)
            store.checkpoint()
            with store.producer("writer") as producer, producer.transaction():
                producer.send("own", b"newer", partition=0)
        assert either.reader().verify(deep=True).violations == ()
    for name, found in kept.items():
        if name != "own":
            assert as_json(rows(either.reader(), name, "read_committed")) == found, name
    remaining = [item.key for item in either.objects.list("")]
    assert [key for key in remaining if key.endswith(".pack")] == []
    of_version_2 = [key for key in remaining if "/entries/" in key and key not in either.written()]
    assert of_version_2 == []  # With their payloads.
    _all_of_version_3(either)


@pytest.mark.slow
def test_packs_and_payloads_in_use_stay(either: Upgrade) -> None:
    """A vacuum without a compaction: what a batch names is needed, wherever version 2 has put it."""
    for _ in range(3):
        either.clock.advance(2 * DAY_MS)
        with either.process() as store:
            store.vacuum(older_than=HOUR, history=HOUR)
            store.checkpoint()
    assert any(item.key.endswith(".pack") for item in either.objects.list("topics/"))
    store = either.reader()
    for name, by_isolation in either.answers["records"].items():
        found = as_json(rows(store, name, "read_uncommitted"))
        assert found == by_isolation["read_uncommitted"], name
    assert store.verify(deep=True).violations == ()


@pytest.mark.slow
def test_checkpoints_of_both_versions_give_the_same_state(old: Upgrade) -> None:
    """The states of processes that begin at a checkpoint of version 2, and at one of version 3."""
    go_on(old)
    from_version_2 = states(old.reader())
    old.process().checkpoint()
    from_version_3 = states(old.reader())
    assert [state.sequence for state in from_version_2] == [state.sequence for state in from_version_3]
    assert from_version_2 == from_version_3


def test_altering_the_timestamp_type_changes_only_what_version_2_has_appended(one: Upgrade) -> None:
    """Version 2 left the event time to the topic; version 3 decides it when a record is appended."""
    with one.process() as store:
        with store.producer() as producer:
            producer.send("nowtimed", b"new", partition=0, timestamp=5_000)
            producer.send("wastimed", b"new", partition=0, timestamp=5_000)
        at = one.clock()
        new = {name: [row[2] for row in rows(store, name, "read_uncommitted") if is_new(row)] for name in TIMED}
        assert new == {"nowtimed": [at], "wastimed": [5_000]}
        store.alter_topic("nowtimed", config={"message.timestamp.type": "CreateTime"})
        store.alter_topic("wastimed", config={"message.timestamp.type": "LogAppendTime"})
        after = {name: [row[2] for row in rows(store, name, "read_uncommitted") if is_new(row)] for name in TIMED}
        assert after == new


TIMED = ("nowtimed", "wastimed")
