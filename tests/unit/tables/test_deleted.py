"""All objects below ``tables/`` are deleted while a publisher remembers them: the tables are rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.table_stores import runtime, send, store_with_tables
from txnstore.chain import keys
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, unmerged: None) -> Iterator[Store]:
    with store_with_tables(tmp_path / "store", clock, {"a": 1, "b": 1}) as store:
        yield store


def write(store: Store, *topics: str) -> None:
    with store.producer("p") as producer, producer.transaction():
        for topic in topics:
            send(producer, topic, [(1, 1)])


def delete(store: Store) -> None:
    objects = connection_of(store).objects
    objects.delete([item.key for item in objects.list(keys.TABLES)])


@pytest.mark.parametrize("changed", [(), ("a",)])
def test_the_same_publisher_publishes_all_of_them_again(store: Store, changed: tuple[str, ...]) -> None:
    write(store, "a", "b")
    store.tables.sync()
    delete(store)
    if changed:
        write(store, *changed)
    report = store.tables.sync()
    assert (report.cut, [change.topic for change in report.changes]) == (1, ["a", "b"])
    assert [store.tables.show(topic).rows for topic in ("a", "b")] == [1 + len(changed), 1]
    assert store.tables.sync().changes == ()


def test_a_publisher_continues_from_what_another_one_has_published_again(store: Store, clock: ManualClock) -> None:
    """The cut that it remembers exists again under its number, and is another one."""
    write(store, "a", "b")
    store.tables.sync()
    delete(store)
    with open_on(connection_of(store).counts.inner, runtime=runtime(clock, seed=1)) as other:
        other.tables.sync()
    assert store.tables.sync().changes == ()
    write(store, "a")
    report = store.tables.sync()
    assert (report.cut, [change.topic for change in report.changes]) == (2, ["a"])
    assert [store.tables.show(topic).rows for topic in ("a", "b")] == [2, 1]
