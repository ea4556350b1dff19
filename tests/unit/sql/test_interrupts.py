"""Ctrl-C while DuckDB runs: it is raised as what it is, not as an error of a query."""

from __future__ import annotations

import duckdb
import pytest

from tests.helpers.connections import connection_of
from txnstore.sql import interrupts_raised, read_table, shared
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on


class Interrupted(MemoryStore):
    """Ctrl-C strikes each read of a segment."""

    armed = False

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.armed and key.startswith("topics/"):
            raise KeyboardInterrupt
        return super().get(key, start, end)


@pytest.mark.usefixtures("own_objects")
def test_interrupt_in_a_read_of_duckdb_is_raised_and_the_query_can_be_repeated() -> None:
    """Else the query would run a second time, or fail with an error that blames the query."""
    objects = Interrupted()
    with create_on(objects) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.send("t", b"x")
        connection = connection_of(store)
        objects.armed = True
        with pytest.raises(KeyboardInterrupt):
            read_table(connection, "SELECT count(DISTINCT value) AS n FROM t")
        objects.armed = False
        assert read_table(connection, "SELECT count(DISTINCT value) AS n FROM t")["n"].to_pylist() == [1]


@pytest.mark.parametrize(
    "error",
    [duckdb.InterruptException("INTERRUPT Error: Interrupted!"), RuntimeError("Query interrupted")],
    ids=["interrupt", "query"],
)
def test_each_error_that_duckdb_raises_for_an_interrupt_is_one(error: Exception) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_raised():
        raise error


def test_other_errors_pass() -> None:
    with pytest.raises(duckdb.ParserException), interrupts_raised():
        duckdb.sql("SELEC")


@pytest.mark.parametrize(
    "query", ["SELECT * FROM KeyboardInterrupt", "SELECT 'KeyboardInterrupt'::INT", "SELECT decode(value)::INT FROM t"]
)
def test_an_error_that_names_an_interrupt_is_none(query: str) -> None:
    """The word may come from the query, or from a record."""
    with create_on(MemoryStore()) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.send("t", b"KeyboardInterrupt")
        with pytest.raises(duckdb.Error, match="KeyboardInterrupt"):
            read_table(connection_of(store), query)
        with pytest.raises(duckdb.Error, match="KeyboardInterrupt"):
            store.sql(query).fetchall()


def test_an_interrupt_leaves_the_state_that_txn_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of the next state were kept, and not shown: a query of the snapshot before reads its own."""
    query = "SELECT (SELECT sequence FROM txn.snapshot), (SELECT sum(records) FROM txn.batches)"

    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    with create_on(MemoryStore()) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.send("t", b"1").result()
            before = store.snapshot()
            expected = store.sql(query, snapshot=before).fetchall()
            producer.send("t", b"2").result()
        with monkeypatch.context() as interrupted:
            interrupted.setattr(shared, "_inspection_variable", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.sql(query)
        assert store.sql(query, snapshot=before).fetchall() == expected
        assert store.sql(query).fetchall() != expected
