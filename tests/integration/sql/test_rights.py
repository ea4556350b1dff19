"""SQL shows the topics that the principal may read; the others raise the reason, and hide nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txnstore
from tests.helpers.connections import connection_of
from txnstore.errors import TopicAuthorizationError
from txnstore.sql import emit_views
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
