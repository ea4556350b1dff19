"""A vacuum in pages: as safe as with one list, however many objects there are, with memory for one page."""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Sequence

import pytest

from tests.helpers.compaction import (
    DAY_MS,
    HookStore,
    abort,
    begin,
    commit,
    named_keys,
    new_store,
    runtime,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from txnstore.compactor import VacuumReport, vacuum
from txnstore.storage import base
from txnstore.storage.base import ObjectInfo
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

PAGE = 3
_MODULE = importlib.import_module("txnstore.compactor.vacuum.vacuum")


@pytest.fixture
def objects(clock: ManualClock) -> HookStore:
    return HookStore(clock=clock)


@pytest.fixture
def store(clock: ManualClock, objects: HookStore, chains: int) -> Store:
    """Segments in use, of aborted, open and prepared transactions, replaced ones, and orphans in between."""
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=3)
    for number in range(4):
        commit(store, [b"%d" % number], partition=number % 3)
    abort(store, [b"aborted"], partition=1)
    for number in range(4):
        commit(store, [b"%d" % number], partition=0)
    store.compact()
    begin(store, [b"open"], partition=1, writer="open")
    begin(store, [b"prepared"], partition=2, writer="prepared").prepare_transaction()
    commit(store, [b"behind"], partition=2)
    for number in range(8):
        connection_of(store).objects.put(_orphan(number), b"abandoned")
    return store


def _orphan(number: int) -> str:
    return f"topics/t/{number % 3}/{'048c'[number // 3]}18bcfe5-6800-7259-8652-237b4f65d4d{number}.parquet"


def _small(monkeypatch: pytest.MonkeyPatch, size: int = PAGE) -> None:
    """Pages of a few segments."""
    monkeypatch.setattr(base, "PAGE", size)


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("size", [1, PAGE, 7])
def test_pages_delete_what_one_list_deletes(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """OBJ-16, RET-09: pages of any size; what open and prepared transactions registered stays, however old."""
    clock.advance(2 * DAY_MS)
    # Nothing is expired, so that the open transaction stays open.
    whole = store.vacuum(dry_run=True, expire=False)
    _small(monkeypatch, size)
    assert store.vacuum(dry_run=True, expire=False) == whole
    done = store.vacuum(expire=False)
    assert (done.deleted, done.objects, done.bytes) == (whole.deleted, whole.objects, whole.bytes)
    assert (done.referenced, done.kept_young, done.kinds) == (whole.referenced, whole.kept_young, whole.kinds)
    assert {_orphan(number) for number in range(8)} < set(done.deleted)
    assert segment_keys(store) == named_keys(store)
    assert store.verify(deep=True).ok
    assert b"open" in values(store, isolation="read_uncommitted")
    assert b"prepared" in values(store, isolation="read_uncommitted")


def test_page_is_deleted_before_the_next_one_is_listed(
    store: Store, objects: HookStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RET-10: after each list the state is read, then the deletion is announced, then the objects are deleted."""
    clock.advance(2 * DAY_MS)
    counting = CountingStore(objects, log=True)
    with open_on(counting, runtime=runtime(clock)) as again:
        _small(monkeypatch, 4)
        counting.reset()
        again.vacuum(expire=False)
    log = [
        "list" if (kind, key) == ("list", "topics/") else "delete"
        for kind, key in counting.log
        if (kind, key) == ("list", "topics/") or (kind == "delete" and key.startswith("topics/"))
    ]
    first = log.index("delete")  # The check that the store is sound has listed all pages before.
    assert log[first:].count("list") > 1
    assert all(log[place - 1] == "list" for place, what in enumerate(log) if what == "delete")


@pytest.mark.usefixtures("own_objects")
def test_segment_that_is_registered_between_two_pages_is_kept(
    store: Store, objects: HookStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RET-10: its page is listed after the first view of the store was read."""
    clock.advance(2 * DAY_MS)
    lists = iter(range(100))

    def register() -> None:
        if next(lists) == 1:
            commit(store, [b"meanwhile"], partition=2)
        objects.after_list = register

    objects.after_list = register
    _small(monkeypatch)
    # Grace period 0: the age of the upload does not protect it.
    assert store.vacuum(0, expire=False).objects > 0
    objects.after_list = None
    assert segment_keys(store) == named_keys(store)
    assert b"meanwhile" in values(store, isolation="read_uncommitted")


def test_keys_deleted_long_ago_are_looked_for_in_all_pages(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch)
    clock.advance(2 * DAY_MS)
    store.vacuum(expire=False)
    clock.advance(10 * DAY_MS)
    commit(store, [b"late"])
    store.vacuum(expire=False)
    assert not connection_of(store).view().removals


@pytest.mark.usefixtures("own_objects")
def test_report_has_the_first_keys_and_counts_all(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(2 * DAY_MS)
    whole = store.vacuum(dry_run=True)
    monkeypatch.setattr(_MODULE, "_MAX_NAMED_KEYS", 2)
    report = store.vacuum(dry_run=True)
    assert (report.deleted, report.objects, report.bytes) == (whole.deleted[:2], whole.objects, whole.bytes)
    assert sum(kind.objects for kind in report.kinds) == report.objects
    assert {kind.kind for kind in report.kinds} == {"topics/t"}


class _Endless(MemoryStore):
    """Lists a number of orphans that exist nowhere."""

    orphans = 0

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        if prefix != "topics/":
            return super().list(prefix, start_after, limit)
        assert limit is not None
        first = int(start_after[-20:-8]) + 1 if start_after else 0
        numbers = range(first, min(first + limit, self.orphans))
        return [ObjectInfo(f"topics/t/0/{number:012d}.parquet", 1, 0) for number in numbers]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_objects(clock: ManualClock) -> None:
    objects = _Endless(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t")
    peaks = [_peak(store, objects, orphans) for orphans in (20_000, 60_000)]
    assert peaks[1] < 1.5 * peaks[0], peaks


def _peak(store: Store, objects: _Endless, orphans: int) -> int:
    objects.orphans = orphans
    tracemalloc.start()
    try:
        report: VacuumReport = vacuum(connection_of(store), dry_run=True)
        assert (report.objects, len(report.deleted)) == (orphans, 10_000)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
