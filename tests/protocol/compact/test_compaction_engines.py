"""Compactions whose jobs are executed elsewhere: what the log may look like when their results come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import txnstore
from tests.helpers.compaction import abort, batches, commit, lose_leases, rows
from tests.helpers.connections import connection_of
from txnstore.compactor import CompactionReport, compact, verify
from txnstore.errors import CorruptionError
from txnstore.spark.engine import _decode_outcome, _return_or_raise, execute
from txnstore.store import Store


@dataclass
class Elsewhere:
    """Executes jobs as a worker of Spark does, from bytes, and all of them before it returns the first result.

    Attributes:
        store: The store.
        before: Called before the jobs are executed.
        after: Called when they have ended.
    """

    store: Store
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def run(self, jobs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Callable[[], Any]]]:
        """Yield the value and the result of each job."""
        objects = pickle.dumps(connection_of(self.store).objects)
        sent = [(value, pickle.dumps(job)) for value, job in jobs]
        if not sent:
            return
        self.before()
        done = [(value, _decode_outcome(None, execute(objects, job))) for value, job in sent]
        self.after()
        for value, ended in done:
            yield value, partial(_return_or_raise, *ended)


@pytest.fixture(params=["delete", "compact"])
def store(request: pytest.FixtureRequest, local_store_url: str) -> Iterator[Store]:
    """A log of four segments, one of them of an aborted transaction."""
    with txnstore.create(local_store_url) as created:
        created.create_topic("t", config={"cleanup.policy": request.param})
        for values in ([b"1", b"2"], [b"3", b"4"]):
            commit(created, values)
        abort(created, [b"5"])
        commit(created, [b"6"])
        yield created


def _compacted(store: Store, engine: Elsewhere) -> CompactionReport:
    return compact(connection_of(store), engine=engine, force=True)


def _compact_too(store: Store) -> None:
    lose_leases(connection_of(store).objects)
    store.compact(force=True)


def test_jobs_that_are_executed_elsewhere_compact_alike(store: Store) -> None:
    expected = [row["value"] for row in rows(store)]
    report = _compacted(store, Elsewhere(store))
    assert (len(batches(store)), report.conflicts) == (1, 0)
    left = [row["value"] for row in rows(store)]
    assert left == (expected if report.merges else [b"4", b"6"])
    assert store.verify(deep=True).ok


def test_a_compaction_that_was_faster_makes_the_results_of_jobs_void(store: Store) -> None:
    """CMP-22: the uploads are left to the vacuum."""
    report = _compacted(store, Elsewhere(store, after=lambda: _compact_too(store)))
    assert report.conflicts == 1
    assert len(batches(store)) == 1
    assert store.verify(deep=True).ok


def test_a_source_that_was_replaced_and_vacuumed_before_its_job_is_no_damage(store: Store) -> None:
    def replace_and_vacuum() -> None:
        _compact_too(store)
        assert store.vacuum(older_than=0).objects > 0

    report = _compacted(store, Elsewhere(store, before=replace_and_vacuum))
    assert report.conflicts == 1
    assert len(batches(store)) == 1


def test_records_that_are_appended_meanwhile_stay(store: Store) -> None:
    report = _compacted(store, Elsewhere(store, after=lambda: commit(store, [b"7"])))
    assert (len(batches(store)), report.conflicts) == (2, 0)
    assert rows(store)[-1]["value"] == b"7"


@pytest.mark.usefixtures("own_objects")
def test_a_lost_source_is_damage_wherever_its_job_is_executed(store: Store) -> None:
    key = batches(store)[0].segment.key
    connection_of(store).objects.delete([key])
    with pytest.raises(CorruptionError, match=key):
        _compacted(store, Elsewhere(store))
    assert len(batches(store)) == 4
    report = verify(connection_of(store), deep=True, engine=Elsewhere(store))
    assert report == store.verify(deep=True)
    assert [each.subject for each in report.violations] == [key]
