"""``store.sql`` on a store of 3,000 small segments: what a call costs beside what DuckDB itself needs.

Compared in turns: a query without a topic; a query over one topic that has not changed, against the same files in a
plain DuckDB connection; and the same after each commit to another topic. A database of its own for the call, with
views of all topics, is shown beside them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from benchmarks.measure import Result, interleaved, median_ms
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

TOPICS, SEGMENTS = 10, 300
ROUNDS = 15
QUERY = "SELECT count(*), max(value) FROM topic_3"


def run() -> Iterator[Result]:
    """The milliseconds of ``SELECT 1``, and a query over one topic against plain DuckDB."""
    with tempfile.TemporaryDirectory() as folder:
        _fill(folder)
        with open_on(LocalStore(folder)) as store, duckdb.connect() as plain:
            yield from _measure(store, plain, folder)


def _fill(folder: str) -> None:
    """Make the store in memory and copy its objects, which takes less time than a sync for each commit."""
    objects = MemoryStore()
    with create_on(objects) as store:
        for topic in range(TOPICS):
            store.create_topic(f"topic_{topic}", config={"inline.bytes": 0})  # Files that DuckDB reads, too.
        with store.producer() as producer:
            for number in range(SEGMENTS * TOPICS):
                producer.send(f"topic_{number % TOPICS}", b"value").result()
        store.checkpoint()
    for item in objects.list(""):
        path = Path(folder, item.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(objects.get(item.key))


def _measure(store: Store, plain: duckdb.DuckDBPyConnection, folder: str) -> Iterator[Result]:
    files = sorted(str(path) for path in Path(folder, "topics", "topic_3").rglob("*.parquet"))
    raw = QUERY.replace(
        "topic_3",
        f"read_parquet({files!r}, schema = MAP {{'value': {{name: 'value', type: 'BLOB', default_value: NULL}}}})",
    )

    def alone(query: str) -> None:
        with store.duckdb() as connection:
            connection.sql(query).fetchall()

    def after_a_commit() -> None:
        store.sql(QUERY).fetchall()

    producer = store.producer()

    def commit() -> None:
        producer.send("topic_7", b"value").result()

    runs: dict[str, Callable[[], object]] = {
        "one": lambda: store.sql("SELECT 1").fetchall(),
        "one alone": lambda: alone("SELECT 1"),
        "topic": lambda: store.sql(QUERY).fetchall(),
        "topic alone": lambda: alone(QUERY),
        "plain": lambda: plain.sql(raw).fetchall(),
        "commit": commit,
        "after a commit": after_a_commit,
    }
    for name in ("one", "topic", "plain"):
        runs[name]()
    times = interleaved(runs, ROUNDS)
    medians = {name: median_ms(taken) for name, taken in times.items()}
    producer.close()
    cpu = time.process_time()
    for _ in range(ROUNDS):
        store.sql("SELECT 1").fetchall()
    cpu = (time.process_time() - cpu) / ROUNDS * 1000
    detail = f"CPU {cpu:.1f} ms; in a database of its own {medians['one alone']:.0f} ms"
    yield Result("store.sql('SELECT 1'), 3,000 segments: ms", medians["one"], 5.0, at_most=True, detail=detail)
    detail = f"{medians['topic']:.1f} ms / {medians['plain']:.1f} ms; "
    detail += f"in a database of its own {medians['topic alone']:.0f} ms"
    yield Result(
        "store.sql of a topic of 300 segments / DuckDB", medians["topic"] / medians["plain"], 3.0, True, detail
    )
    detail = f"{medians['after a commit']:.1f} ms / {medians['topic']:.1f} ms"
    name = "the same after a commit to another topic / before"
    yield Result(name, medians["after a commit"] / medians["topic"], 3.0, at_most=True, detail=detail)
