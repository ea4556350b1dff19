"""For whom a member waits, and consumers that end without a close: they leave their group."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.members import PARTS, SESSION, _fill, _group, _member, _settle
from tests.helpers.reading import another_process, new_store, texts
from txnstore import PartitionHolder
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition
from txnstore.read.records import Record
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create, create_on, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=4)
    return store


# For whom a member waits ----------------------------------------------------------------------------------------------


def test_empty_poll_names_the_member_that_it_waits_for(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txnstore.consumer")
    killed = _member(another_process(store, clock), group_instance_id="one")
    killed.poll()
    begun = clock()
    clock.advance(1_000)
    consumer = _member(store)
    assert not consumer.waiting_for
    for _ in range(3):
        assert consumer.poll() == []
    member_id = killed.group_metadata().member_id
    assert consumer.waiting_for == (PartitionHolder(member_id, "one", tuple(PARTS[2:]), begun + SESSION),)
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    lines = [record.getMessage() for record in caplog.records if "waits for" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("group g: this consumer waits for t-2, t-3, which member one ")
    assert f"{member_id} holds until 2023-11-14T22:14:05Z unless" in lines[0]
    (waiting,) = [member for member in store.group("g").members if member.member_id != member_id]
    assert waiting.holders == consumer.waiting_for
    clock.advance(SESSION)
    while not consumer.assignment():
        consumer.poll(timeout=1.0)
    consumer.poll()
    assert not consumer.waiting_for


def test_member_without_any_partition_waits_for_all_others(store: Store, clock: ManualClock) -> None:
    members = [_member(another_process(store, clock)) for _ in range(5)]
    _settle(*members)
    (idle,) = [member for member in members if not member.assignment()]
    held = {holder.member_id: holder.partitions for holder in idle.waiting_for}
    assert held == {
        member.group_metadata().member_id: tuple(member.assignment()) for member in members if member is not idle
    }


def test_consumer_that_is_no_member_waits_for_none(store: Store) -> None:
    alone, assigned = store.consumer("t"), store.consumer(group="g")
    assigned.assign(PARTS)
    assert (alone.poll(), assigned.poll()) == ([], [])
    assert alone.waiting_for == assigned.waiting_for == ()


def test_member_id_names_host_and_process(store: Store) -> None:
    consumer = _member(store)
    consumer.poll()
    assert consumer.group_metadata().member_id.endswith(f"-{os.getpid()}")


# Consumers without a close --------------------------------------------------------------------------------------------


def spawning(clock: ManualClock, tasks: list[Callable[[], object]]) -> Store:
    """A store whose abandoned tasks a test runs."""
    runtime = FixedRuntime(clock, clock.sleep, random.Random(1), background=InlineExecutor, spawn=tasks.append)
    store = create_on(MemoryStore(clock=clock), runtime=runtime)
    store.create_topic("t", partitions=4)
    return store


@pytest.mark.slow
def test_collected_consumer_leaves_its_group(clock: ManualClock) -> None:
    """The collection itself sends no request: the thread that runs it may hold any lock."""
    tasks: list[Callable[[], object]] = []
    store = spawning(clock, tasks)
    consumer = _member(store)
    consumer.poll()
    del consumer
    gc.collect()
    assert len(_group(store).members) == len(tasks) == 1
    tasks.pop()()
    assert not _group(store).members
    clock.advance(1)
    closed = _member(store)
    closed.poll()
    closed.close()
    del closed
    gc.collect()
    assert tasks == []


def test_collected_consumer_with_a_callback_that_refers_to_it_leaves(clock: ManualClock) -> None:
    tasks: list[Callable[[], object]] = []
    store = spawning(clock, tasks)

    def use() -> None:
        consumer: Consumer = _member(store, on_revoked=lambda _: consumer.commit())
        consumer.poll()

    use()
    gc.collect()
    assert len(tasks) == 1


def test_collected_static_member_stays(clock: ManualClock) -> None:
    """KIP-345: it is expected back."""
    tasks: list[Callable[[], object]] = []
    store = spawning(clock, tasks)
    _member(store, group_instance_id="one").poll()
    gc.collect()
    assert tasks == []


def test_cell_of_a_notebook_reads_everything_when_it_runs_again(tmp_path: Path) -> None:
    """Without ``with``: the second run replaces the consumer of the first, and reads what is new."""
    with create(tmp_path / "store") as store:
        store.create_topic("t", partitions=4)
        consumer: Consumer | None = None
        for value in ("a", "b", "c"):
            _fill(store, value)
            consumer = store.consumer(["t"], group="g")
            records: list[Record] = []
            while len(records) < 4:  # With an expired member in the group this would last for the rest of its lease.
                records += consumer.poll(timeout=1.0)
            assert sorted(texts(records)) == [f"{number}.{value}" for number in range(4)]
            consumer.commit()
        assert consumer is not None
        consumer.close()


SCRIPT = """
import sys, txnstore
store = txnstore.open(sys.argv[1])
consumer = store.consumer(["t"], group="g")
consumer.poll()
assert len(store.group("g").members) == 1
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "sys.exit(3)", "store.close()"])
def test_consumer_leaves_its_group_when_the_interpreter_exits(tmp_path: Path, end: str) -> None:
    with create(tmp_path / "store") as store:
        store.create_topic("t")
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(end=end), str(tmp_path / "store")],
            check=False, capture_output=True, timeout=300,
        )  # fmt: skip
        assert store.group("g").members == ()
        assert store.group("g").generation == 2


def test_forked_child_does_not_leave_for_its_parent(tmp_path: Path) -> None:
    with create(tmp_path / "store") as store:
        store.create_topic("t")
        consumer = store.consumer(["t"], group="g")
        consumer.poll()
        child = os.fork()
        if child == 0:
            try:
                del consumer
                gc.collect()
                from txnstore.consumer import leases

                leases._leave_all()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert len(store.group("g").members) == 1
        consumer.close()


def test_exit_is_not_delayed_by_members_of_other_processes(clock: ManualClock) -> None:
    store = create_on(MemoryStore(clock=clock), runtime=FixedRuntime(clock, clock.sleep))
    store.create_topic("t")
    other = open_on(connection_of(store).counts.inner, runtime=FixedRuntime(clock, clock.sleep))
    consumer = other.consumer(["t"], group="g")
    consumer.poll()
    assert consumer.assignment() == [TopicPartition("t", 0)]
    consumer.close()
    assert store.group("g").members == ()
