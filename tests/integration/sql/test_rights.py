"""SQL shows the topics that the principal may read; the others raise the reason, and hide nothing else."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

import txnstore
from tests.helpers.connections import connection_of
from txnstore.errors import TopicAuthorizationError
from txnstore.sql import emit_views
from txnstore.sql.filesystem import SegmentFileSystem
from txnstore.sql.shared import shared_database
from txnstore.store import Store

ADMIN, ALICE = "User:admin", "User:alice"
READ_OPEN = txnstore.Acl(ALICE, "ALLOW", "READ", "TOPIC", "open")
READ_ALL = txnstore.Acl(ALICE, "ALLOW", "READ", "TOPIC", "*")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The store of the administrator, and the same one of Alice."""
    url = str(tmp_path / "store")
    with txnstore.create(url, principal=ADMIN) as admin:
        for name in ("open", "secret", *(f"other{number}" for number in range(20))):
            admin.create_topic(name)
        with admin.producer() as producer:
            producer.send("open", b"shown")
            producer.send("secret", b"hidden")
        admin.acls.enable(ADMIN)
        admin.acls.create(READ_OPEN)
        with txnstore.open(url, principal=ALICE) as alice:
            yield admin, alice


def test_a_topic_without_the_right_to_read_it_raises_and_others_are_shown(stores: tuple[Store, Store]) -> None:
    _, alice = stores
    assert alice.sql('SELECT value FROM "open"').fetchall() == [(b"shown",)]
    with pytest.raises(TopicAuthorizationError, match="User:alice has no right to READ on topic 'secret'"):
        alice.sql("SELECT * FROM secret").fetchall()
    with pytest.raises(TopicAuthorizationError):
        alice.sql('SELECT o.value FROM "open" o, secret').fetchall()
    database = alice.duckdb()
    assert database.execute('SELECT value FROM "open"').fetchall() == [(b"shown",)]
    assert b"hidden" not in str(database.execute("SELECT * FROM txn.batches").fetchall()).encode()


@pytest.mark.parametrize("sandbox", [False, True])
def test_a_query_of_a_topic_that_is_not_shown_keeps_no_database(stores: tuple[Store, Store], *, sandbox: bool) -> None:
    """DuckDB owns its file system: what that keeps of a query, such as the frames of its error, would keep both."""
    _, alice = stores
    gc.collect()
    before = _file_systems()
    for _ in range(3):
        alice = txnstore.open(alice.url, principal=ALICE)
        with alice, pytest.raises(TopicAuthorizationError):
            alice.sql("SELECT * FROM secret", sandbox=sandbox).fetchall()
    gc.collect()
    assert _file_systems() == before


def _file_systems() -> int:
    return sum(isinstance(each, SegmentFileSystem) for each in gc.get_objects())


def test_a_right_that_comes_or_goes_is_seen_by_the_next_query(stores: tuple[Store, Store]) -> None:
    """The topic has not changed, so its view was planned before."""
    admin, alice = stores
    with pytest.raises(TopicAuthorizationError):
        alice.sql("SELECT value FROM secret").fetchall()
    admin.acls.create(READ_ALL)
    assert alice.sql("SELECT value FROM secret").fetchall() == [(b"hidden",)]
    admin.acls.delete(READ_ALL)
    with pytest.raises(TopicAuthorizationError):
        alice.sql("SELECT value FROM secret").fetchall()
    assert alice.sql('SELECT value FROM "open"').fetchall() == [(b"shown",)]
    admin.acls.create(READ_ALL)
    assert alice.sql("SELECT value FROM secret").fetchall() == [(b"hidden",)]


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("how", ["sql", "sandbox", "read_only"])
def test_a_path_is_no_right(stores: tuple[Store, Store], how: str) -> None:
    """Names, hashes and sizes of segments, as the administrator sees them, do not let another principal read them."""
    admin, alice = stores
    paths, keys = paths_of(admin, "secret")
    assert admin.duckdb().sql(f"FROM read_parquet({paths})").fetchall() != []
    with txnstore.open(alice.url, principal=ALICE, read_only=how == "read_only") as opened:
        database = opened.duckdb(sandbox=how == "sandbox")
        for path in [*paths, *(f"txnseg://{key}" for key in keys)]:
            for function in ("read_parquet", "read_blob", "read_text", "parquet_metadata", "glob"):
                query = f"SELECT * FROM {function}('{path}')"
                for run in (lambda: opened.sql(query, sandbox=how == "sandbox"), lambda: database.sql(query)):  # noqa: B023
                    assert hidden(run)
        for pattern in ("txnseg://*", "txnseg://**", "txnseg://topics/secret/0/*.parquet", "txnseg://*/topics/*/*/*"):
            assert hidden(lambda: database.sql(f"SELECT * FROM glob('{pattern}')"))  # noqa: B023
        assert database.sql('SELECT value FROM "open"').fetchall() == [(b"shown",)]
        assert admin.sql("SELECT value FROM secret").fetchall() == [(b"hidden",)]


def paths_of(store: Store, topic: str) -> tuple[list[str], list[str]]:
    """The paths of the files of a topic's view, and the keys of its objects."""
    segments = [part.batch.segment for part in store.scan(topic).plan()]
    ((text,),) = store.duckdb().sql(f"SELECT sql FROM duckdb_views() WHERE view_name = '{topic}'").fetchall()
    return re.findall(r"txnseg://[^']+", text), [segment.key for segment in segments]


def hidden(run: Callable[[], duckdb.DuckDBPyRelation]) -> bool:
    """Whether the query is refused, or finds nothing."""
    try:
        return run().fetchall() == []
    except duckdb.Error as error:
        return "hidden" not in str(error)


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("sandbox", [False, True])
def test_the_tables_of_objects_show_what_the_principal_may_read(stores: tuple[Store, Store], sandbox: bool) -> None:
    admin, alice = stores
    admin.acls.create(txnstore.Acl(ALICE, "ALLOW", "DESCRIBE", "TOPIC", "*"))
    for table in ("segments", "batches"):
        query = f"SELECT DISTINCT topic FROM txn.{table} ORDER BY topic"
        assert alice.sql(query, sandbox=sandbox).fetchall() == [("open",)]
        assert alice.duckdb(sandbox=sandbox).sql(query).fetchall() == [("open",)]
        assert admin.sql(query, sandbox=sandbox).fetchall() == [("open",), ("secret",)]
    admin.acls.create(READ_ALL)
    assert alice.sql("SELECT count(*) FROM txn.segments", sandbox=sandbox).fetchall() == [(2,)]


def test_a_revoked_right_ends_earlier_views_and_their_files(stores: tuple[Store, Store]) -> None:
    """The shared database has a schema for each state that a topic had; a session has had the files of its topics."""
    admin, alice = stores
    admin.acls.create(READ_ALL)
    assert alice.sql("SELECT value FROM secret").fetchall() == [(b"hidden",)]
    kept = shared_database(connection_of(alice))._database
    assert kept is not None
    old = [f"SELECT value FROM {schema}.secret" for schema in kept._schemas.values()]
    assert not all(hidden(lambda: alice.sql(query)) for query in old)  # noqa: B023
    database, (paths, _) = alice.duckdb(), paths_of(alice, "secret")
    assert database.sql(f"FROM read_parquet({paths})").fetchall() != []
    admin.acls.delete(READ_ALL)
    with pytest.raises(TopicAuthorizationError):
        alice.sql("SELECT value FROM secret").fetchall()
    assert all(hidden(lambda: alice.sql(query)) for query in old)  # noqa: B023
    alice.refresh(database)
    assert hidden(lambda: database.sql(f"FROM read_parquet({paths})"))
    assert alice.sql('SELECT value FROM "open"').fetchall() == [(b"shown",)]


def test_a_snapshot_from_before_a_revocation_shows_nothing_more(stores: tuple[Store, Store]) -> None:
    admin, alice = stores
    admin.acls.create(READ_ALL)
    before = alice.snapshot()
    assert alice.sql("SELECT value FROM secret", snapshot=before).fetchall() == [(b"hidden",)]
    admin.acls.delete(READ_ALL)
    for sandbox in (False, True):
        with pytest.raises(TopicAuthorizationError):
            alice.sql("SELECT value FROM secret", snapshot=before, sandbox=sandbox).fetchall()
        query = "SELECT DISTINCT topic FROM txn.segments"
        assert alice.sql(query, snapshot=before, sandbox=sandbox).fetchall() == [("open",)]


def test_topics_without_the_right_cost_no_request(stores: tuple[Store, Store]) -> None:
    admin, alice = stores
    requests = []
    for store in (admin, alice):
        store.duckdb().close()
        counts = connection_of(store).counts
        counts.reset()
        store.duckdb().close()
        requests.append(counts.snapshot().requests)
    assert requests[0] == requests[1]


def test_emitted_views_leave_out_what_may_not_be_read(stores: tuple[Store, Store]) -> None:
    _, alice = stores
    views = emit_views(connection_of(alice))
    assert '-- "secret" is left out: User:alice has no right to READ' in views
    assert 'VIEW "secret"' not in views
