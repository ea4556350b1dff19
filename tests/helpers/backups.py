"""Backups in tests: what a copy shows, compared with the original at the same cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore.chain.backups import newest_backup
from txnstore.compactor import BackupReport, RestoreReport, backup, restore
from txnstore.connection import open_connection
from txnstore.core.model import TopicPartition
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

PARTITIONS = 2


class Watched:
    """A storage in which something happens before a request: ``before`` is called once, at a key with this text."""

    def __init__(
        self,
        inner: Any,
        at: str = "",
        before: Callable[[], object] | None = None,
        *,
        operation: str = "get",
        skip: int = 0,
    ) -> None:
        self.inner, self._at, self._operation, self._skip = inner, at, operation, skip
        self.before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def watch(self, at: str, before: Callable[[], object], *, skip: int = 0) -> None:
        """Do something before a read of an object, after others of it."""
        self._at, self._operation, self._skip, self.before = at, "get", skip, before

    def _look(self, operation: str, key: str) -> None:
        if operation == self._operation and self._at in key and self.before is not None:
            self._skip -= 1
            if self._skip < 0:
                before, self.before = self.before, None
                before()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._look("get", key)
        return bytes(self.inner.get(key, start, end))

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._look("list", prefix)
        found: Sequence[ObjectInfo] = self.inner.list(prefix, start_after, limit)
        return found

    def put(self, key: str, data: bytes) -> None:
        self._look("put", key)
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._look("put_if_absent", key)
        return bool(self.inner.put_if_absent(key, data))


def one_thread(clock: ManualClock, seed: int = 0) -> Runtime:
    """A runtime whose requests are in one order, so that the n-th of them is the same in each run."""
    return FixedRuntime(
        clock, clock.sleep, random.Random(seed), executor=InlineExecutor, background=InlineExecutor, spawn=never
    )


def back_up(source: ObjectStore, target: ObjectStore, clock: ManualClock, *, verify: bool = False) -> BackupReport:
    """Back a store up, as a new process that may not write to it."""
    with open_connection(source, read_only=True, runtime=one_thread(clock)) as connection:
        return backup(connection, target, verify=verify)


def restore_from(source: ObjectStore, target: ObjectStore, clock: ManualClock, **options: Any) -> RestoreReport:
    """Make a store of a copy of a backup, as a new process, whose new identities are no fixed ones."""
    rng, inline = random.Random(1), InlineExecutor
    real = Runtime(clock, clock.sleep, rng, executor=inline, background=inline, spawn=never)
    with open_connection(source, read_only=True, runtime=real) as connection:
        return restore(connection, target, **options)


def everywhere(store: Store, value: bytes, transactional_id: str = "writer", *, commits: bool = True) -> None:
    """One transaction with a record in each partition of two topics, and an offset of a group."""
    with store.producer(transactional_id) as producer:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send("t", value, key=b"k", partition=partition)
            producer.send("own", value * 20, partition=partition)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "group")
        producer.commit_transaction() if commits else producer.abort_transaction()
    store.recover()  # The markers of other chains are written now, not in the background.


def shown(store: Store, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """What readers see of a store, all of it: records by scans and SQL, both isolation levels, offsets of groups."""
    at = snapshot if snapshot is not None else store.snapshot()
    topics = [topic.name for topic in at.view.sorted_topics()]
    answers: dict[str, Any] = {"topics": topics, "heads": at.heads, "groups": [*at.view.groups]}
    for topic in topics:
        for isolation in ("read_committed", "read_uncommitted"):
            answers[f"{topic} {isolation}"] = store.scan(topic, isolation, snapshot=at).to_table().to_pylist()
    answers["sql"] = store.sql('select * from "t" order by all', snapshot=at).fetchall()
    answers["transactions"] = {name: txn.state for name, txn in at.view.transactions.items()}
    answers["hashes"] = [state.entry_hash for state in at.view.states]
    return answers


def check_copy(original: Store, copy: ObjectStore, clock: ManualClock) -> Store:
    """A copy is sound, and shows what the original had at the same cut, if that can be read still; it is returned."""
    store = open_on(copy, read_only=True, runtime=one_thread(clock))
    report = store.verify(deep=True)
    assert report.ok, report.violations
    heads = store.snapshot().heads
    assert heads == tuple(getattr(newest_backup(copy), "heads", heads))
    then = original.snapshot(heads if len(heads) > 1 else heads[0])
    assert connection_of(store).view().states == then.view.states
    assert shown(store) == shown(original, then)
    return store


def check_opens(original: Store, copy: ObjectStore, clock: ManualClock) -> None:
    """A copy opens at a cut of the original."""
    with open_on(copy, read_only=True, runtime=one_thread(clock)) as store:
        heads = store.snapshot().heads
        then = original.snapshot(heads if len(heads) > 1 else heads[0])
        assert connection_of(store).view().states == then.view.states


def keys_of(objects: MemoryStore, prefix: str = "") -> list[str]:
    """The keys of all objects with a prefix."""
    return [item.key for item in objects.list(prefix)]
