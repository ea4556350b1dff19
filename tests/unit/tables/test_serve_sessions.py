"""Sessions of the catalog on a store that is written to: what they load is of one cut, or of the newest one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.cuts import ask, document
from tests.helpers.table_stores import rows_of, runtime, send, store_with_tables
from txnstore.catalog.iceberg.location import location_of
from txnstore.chain import keys
from txnstore.store import Store, open_on
from txnstore.tables.serve.cuts import Freshness, StoredCuts
from txnstore.tables.serve.routes import Router
from txnstore.testing import ManualClock

TOPICS = {"debits": 2, "credits.eu": 3}


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, unmerged: None) -> Iterator[Store]:
    with store_with_tables(tmp_path / "store", clock, TOPICS) as store:
        yield store


def router_of(store: Store, fresh_ms: int | None = None, limits: Mapping[str, Any] | None = None) -> Router:
    """A router on the store as another process sees it; ``limits``: the arguments of its publications."""
    connection = connection_of(store)
    clock = connection.runtime.clock
    assert isinstance(clock, ManualClock)
    other = open_on(connection.counts.inner, runtime=runtime(clock, seed=1))
    location = location_of(connection.objects)
    freshness = None
    if fresh_ms is not None:
        freshness = Freshness(lambda: other.tables.sync(**limits or {}), clock, fresh_ms)
    return Router(StoredCuts(connection_of(other), location, freshness), location)


def transfer(producer: Any, rng: random.Random) -> None:
    """Move amounts between accounts, in one transaction over both topics."""
    amounts = [rng.randrange(1, 100) for _ in range(rng.randrange(1, 4))]
    with producer.transaction():
        send(producer, "debits", [(rng.randrange(8), -amount) for amount in amounts])
        send(producer, "credits.eu", [(rng.randrange(8), amount) for amount in amounts])


@dataclass
class Session:
    """A session of an engine, which loads the two tables one after the other, with other work between."""

    router: Router
    prefix: str
    loaded: list[int]

    @classmethod
    def begin(cls, router: Router, warehouse: str) -> Session:
        config = document(ask(router, f"/v1/config?warehouse={warehouse}"))
        return cls(router, config["overrides"]["prefix"], [])

    def load(self, topic: str) -> list[dict[str, Any]]:
        target = f"/v1/{self.prefix}/namespaces/tables/tables/{topic}"
        return rows_of(document(ask(self.router, target))["metadata"])

    def step(self) -> None:
        """Load the next table, and keep the sum of its amounts."""
        topic = list(TOPICS)[len(self.loaded)]
        self.loaded.append(sum(row["amount"] for row in self.load(topic)))

    @property
    def ended(self) -> bool:
        return len(self.loaded) == len(TOPICS)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "chains"), [(0, 1), (1, 1), (2, 3)])
@pytest.mark.usefixtures("unmerged")
def test_pinned_sessions_never_see_the_topics_of_a_transaction_apart(
    tmp_path: Path, clock: ManualClock, seed: int, chains: int
) -> None:
    """Those of ``live`` do: their two loads are of different cuts, so the same check fails for them."""
    rng, store = random.Random(seed), store_with_tables(tmp_path / "store", clock, TOPICS, chains)
    router = router_of(store)
    sums: dict[str, list[int]] = {"pinned": [], "live": []}
    sessions: list[tuple[str, Session]] = []
    with store, store.producer("bank") as producer:
        store.tables.sync()
        for _ in range(80):
            transfer(producer, rng)
            action = rng.choice(["sync", "sync", "begin", "load", "load", "compact"])
            if action == "sync":
                store.tables.sync()
            elif action == "compact":
                store.compact()
            elif action == "begin":
                sessions += [(name, Session.begin(router, name)) for name in sums]
            for each in rng.sample(sessions, min(4, len(sessions))) if action == "load" else []:
                each[1].step()
                if each[1].ended:
                    sessions.remove(each)
                    sums[each[0]].append(sum(each[1].loaded))
    assert len(sums["pinned"]) > 2
    assert sums["pinned"] == [0] * len(sums["pinned"])
    assert any(sums["live"])


def test_a_session_shows_exactly_what_is_committed(store: Store) -> None:
    """Offsets and rows of each table are those of a scan at the entry of the cut; an open transaction is in neither."""
    router, rng = router_of(store), random.Random(7)
    with store.producer("bank") as producer, store.producer("other") as other:
        for _ in range(5):
            transfer(producer, rng)
        other.begin_transaction()
        send(other, "debits", [(1, -1)])
        other.flush()
        store.tables.sync()
        session = Session.begin(router, "pinned")
        other.abort_transaction()
        transfer(producer, rng)
        store.tables.sync()
        for topic in TOPICS:
            expected = store.scan(topic, snapshot=store.snapshot(_entry(router, session))).to_table().to_pylist()
            shown = session.load(topic)
            assert len(shown) == len(expected) > 0
            values = [sorted((row["account"], row["amount"]) for row in rows) for rows in (shown, expected)]
            assert values[0] == values[1]


def _entry(router: Router, session: Session) -> int:
    namespace = document(ask(router, f"/v1/{session.prefix}/namespaces/tables"))
    return int(namespace["properties"]["txnstore.heads"])


def test_a_load_that_finds_an_old_cut_publishes_first(store: Store, clock: ManualClock) -> None:
    router, rng = router_of(store, fresh_ms=5_000), random.Random(1)
    live = Session.begin(router, "live")
    with store.producer("bank") as producer:
        transfer(producer, rng)
        assert len(live.load("debits")) > 0  # The first look publishes.
        first = len(live.load("debits"))
        transfer(producer, rng)
        clock.advance(4_000)
        assert len(live.load("debits")) == first
        clock.advance(1_000)
        assert len(live.load("debits")) > first
        transfer(producer, rng)
        clock.advance(5_000)
        pinned = Session.begin(router, "pinned")
        assert sum(row["amount"] for topic in TOPICS for row in pinned.load(topic)) == 0
        assert len(pinned.load("debits")) == len(live.load("debits"))


def test_an_idle_store_gets_no_further_cut(store: Store, clock: ManualClock) -> None:
    """A publication that finds nothing to publish counts: the age of a cut is not that of its newest entry."""
    router = router_of(store, fresh_ms=5_000)
    prefixes = []
    for _ in range(3):
        clock.advance(60_000)
        prefixes.append(Session.begin(router, "pinned").prefix)
    assert prefixes == ["cut-1"] * 3


def test_a_publication_that_fails_leaves_the_older_cut(store: Store) -> None:
    """Its tables are served, and a header says that they may be old."""
    limits = {"tail_bytes": 0}
    router = router_of(store, fresh_ms=0, limits=limits)
    target = "/v1/live/namespaces/tables/tables/debits"
    assert "X-Txnstore-Stale" not in dict(ask(router, target).headers)
    with store.producer("bank") as producer:
        transfer(producer, random.Random(1))
    answer = ask(router, target)
    assert dict(answer.headers)["X-Txnstore-Stale"] == "CopiesTooLargeError"
    assert rows_of(document(answer)["metadata"]) == []
    limits["tail_bytes"] = 1 << 20
    answer = ask(router, target)
    assert "X-Txnstore-Stale" not in dict(answer.headers)
    assert len(rows_of(document(answer)["metadata"])) > 0


def test_requests_to_the_storage(store: Store) -> None:
    """Each is a GET: the cut, or the one after the newest, and the metadata. See docs/tables.md."""
    store.tables.sync()
    connection = connection_of(store)
    location = location_of(connection.objects)
    router = Router(StoredCuts(connection, location), location)
    load = "/namespaces/tables/tables/debits"
    ask(router, f"/v1/live{load}")  # What is the newest one?
    targets = {
        "/v1/config": 0,
        "/v1/config?warehouse=pinned": 1,
        "/v1/config?warehouse=1": 1,
        "/v1/live/namespaces/tables": 1,
        f"/v1/live{load}": 2,
        f"/v1/cut-1{load}": 2,
        f"/v1/live{load}/metrics": 0,
        "/v1/cut-1/namespaces/other": 0,
        "/v1/health": 0,
    }
    for target, expected in targets.items():
        before = connection.counts.snapshot()
        ask(router, target)
        counts = connection.counts.snapshot() - before
        assert (counts.requests, counts.get) == (expected, expected), target


def test_disabled_tables_disappear_from_later_cuts_only(store: Store) -> None:
    store.tables.sync()
    router = router_of(store)
    before, live = Session.begin(router, "pinned"), Session.begin(router, "live")
    store.tables.disable("debits")
    store.tables.sync()
    listed = [
        [each["name"] for each in document(ask(router, f"/v1/{prefix}/namespaces/tables/tables"))["identifiers"]]
        for prefix in (before.prefix, live.prefix)
    ]
    assert listed == [["credits.eu", "debits"], ["credits.eu"]]
    assert ask(router, f"/v1/{live.prefix}/namespaces/tables/tables/debits").status == 404
    assert before.load("debits") == []


def test_tables_that_are_deleted_and_published_again_are_served_by_the_same_server(store: Store) -> None:
    with store.producer("bank") as producer:
        transfer(producer, random.Random(1))
    for _ in range(2):
        store.tables.sync()
        store.tables.disable("credits.eu")
    store.tables.sync()
    router = router_of(store)
    live = Session.begin(router, "live")
    amounts = live.load("debits")
    objects = connection_of(store).objects
    objects.delete([item.key for item in objects.list(keys.TABLES)])
    with open_on(connection_of(store).counts.inner, runtime=runtime(ManualClock(), seed=2)) as reopened:
        reopened.tables.sync()
    assert live.load("debits") == amounts
    assert Session.begin(router, "pinned").prefix == "cut-1"


def test_damaged_metadata_is_an_error_of_the_server(store: Store) -> None:
    store.tables.sync()
    objects = connection_of(store).objects
    (key,) = [item.key for item in objects.list(keys.table("debits")) if "/00001-" in item.key]
    objects.put(key, objects.get(key).replace(b"debits", b"credit"))
    answer = ask(router_of(store), "/v1/live/namespaces/tables/tables/debits")
    assert (answer.status, b"is altered" in answer.body) == (500, True)
