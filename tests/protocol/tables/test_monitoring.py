"""What the metrics and the doctor say of tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.compaction import HOUR_MS, commit, new_store
from tests.helpers.connections import connection_of
from tests.helpers.tables import EngineObjects, newest
from txnstore.chain import keys
from txnstore.chain.codec import encode
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.compactor.doctor.tables import table_findings
from txnstore.metrics import TableStatus
from txnstore.monitoring.catalogue import STATUS
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def objects(clock: ManualClock) -> EngineObjects:
    return EngineObjects(clock)


@pytest.fixture
def store(clock: ManualClock, objects: EngineObjects, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def _findings(store: Store) -> dict[str, Finding]:
    return {item.name: item for item in store.doctor().findings if item.section == "tables"}


def _tables(store: Store) -> tuple[TableStatus, ...]:
    status = store.metrics(status=True).status
    assert status is not None
    return status.tables


def test_a_store_without_tables_has_nothing_to_say(store: Store) -> None:
    assert _tables(store) == ()
    assert _findings(store) == {}
    assert "txnstore_table_version" not in store.prometheus()


def test_a_table_that_is_not_published_is_a_note(store: Store) -> None:
    store.tables.enable("t")
    assert [(table.topic, table.version) for table in _tables(store)] == [("t", 0)]
    assert _findings(store)["published"].severity is Severity.NOTE
    assert _findings(store)["published"].command == "txnstore table sync"


def test_the_table_of_a_deleted_topic_is_not_that_of_one_with_its_name(store: Store) -> None:
    store.tables.enable("t")
    commit(store, [b"a"])
    store.tables.sync()
    store.delete_topic("t")
    store.create_topic("t", config={"table.format": "iceberg"})
    assert [table.published for table in store.tables.list()] == [False]
    assert [(table.version, table.rows) for table in _tables(store)] == [(0, 0)]
    assert _findings(store)["published"].severity is Severity.NOTE


def test_the_lag_of_the_tables_is_measured_and_warned_of(store: Store, clock: ManualClock) -> None:
    store.tables.enable("t")
    commit(store, [b"a", b"b"])
    store.tables.sync()
    (table,) = _tables(store)
    assert (table.version, table.rows, table.behind, table.lag) == (1, 2, 0, 0)
    assert table.copied_bytes > 0
    assert _findings(store)["lag"].severity is Severity.OK
    clock.advance(2 * HOUR_MS)
    commit(store, [b"c"])
    (table,) = _tables(store)
    assert table.behind > 0
    assert 7200 <= table.lag < 7201
    assert _findings(store)["lag"].severity is Severity.WARN
    for metric in STATUS:
        if metric.name.startswith("table_"):
            assert f"txnstore_{metric.name}" in store.prometheus()
    store.compact()
    store.tables.sync()
    (table,) = _tables(store)
    assert (table.rows, table.copied_bytes, table.behind, table.lag) == (3, 0, 0, 0)


def test_a_version_of_an_engine_and_a_lost_hint_are_warned_of(store: Store, objects: EngineObjects) -> None:
    store.tables.enable("t")
    store.tables.sync()
    assert "names" not in _findings(store)
    objects.put(keys.table_version("t", 2), b"{}")
    assert "v2.metadata.json is in no cut: an engine wrote it" in _findings(store)["names"].message
    objects.delete([keys.table_version("t", 2), keys.table_hint("t")])
    assert "does not name version 1" in _findings(store)["names"].message


def test_a_damaged_cut_is_bad(store: Store, objects: EngineObjects) -> None:
    store.tables.enable("t")
    store.tables.sync()
    objects.put(keys.cut(newest(store).number), b"{}")
    assert _findings(store)["published"].severity is Severity.BAD


def test_metadata_that_is_missing_is_warned_of(store: Store, objects: EngineObjects) -> None:
    store.tables.enable("t")
    store.tables.sync()
    objects.delete([newest(store).tables["t"].metadata])
    assert "rebuilds the table" in _findings(store)["names"].message
    assert len(store.tables.check().problems) == 1


def test_a_cut_with_entries_that_the_store_has_lost_is_bad(store: Store, objects: EngineObjects) -> None:
    store.tables.enable("t")
    store.tables.sync()
    cut = newest(store)
    other = replace(cut, hashes=["0" * 64] * len(cut.heads))
    objects.put(keys.cut(cut.number), encode(other))
    finding = _findings(store)["lag"]
    assert finding.severity is Severity.BAD
    assert "was another entry" in finding.message
    assert finding.command == "txnstore table sync --rebuild '*'"


def test_a_doctor_that_began_before_a_publication_calls_nothing_lost(store: Store) -> None:
    store.tables.enable("t")
    store.tables.sync()
    connection = connection_of(store)
    before = connection.view()
    commit(store, [b"a"])
    store.tables.sync()
    findings = list(table_findings(connection, before))
    assert [(each.name, each.severity) for each in findings] == [("lag", Severity.OK)]


def test_a_damaged_entry_after_the_cut_is_a_finding(store: Store, objects: EngineObjects) -> None:
    store.tables.enable("t")
    commit(store, [b"a"])
    store.tables.sync()
    heads = newest(store).heads
    commit(store, [b"b"])
    chain = next(state.chain for state in connection_of(store).view().states if state.sequence > heads[state.chain])
    objects.put(connection_of(store).keys.entry(chain, heads[chain] + 1), b"{}")
    [finding] = table_findings(connection_of(store), connection_of(store).view())
    assert finding.severity is Severity.BAD
    assert f"{heads[chain] + 1}.json" in finding.message
