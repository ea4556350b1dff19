"""Times that a reader could not show are refused where they are written, each alone."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import txnstore
from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import TIMESTAMP

YEAR_10000 = 253_402_300_800_000
NANOSECONDS = 1_795_000_000_000_000_000


@pytest.mark.parametrize("timestamp", [YEAR_10000, NANOSECONDS, 2**63 - 1])
def test_a_record_beyond_the_year_9999_fails_alone(memory_store_url: str, timestamp: int) -> None:
    with txnstore.create(memory_store_url) as store, store.producer() as producer:
        store.create_topic("t")
        last = producer.send("t", b"a", timestamp=YEAR_10000 - 1)
        with pytest.raises(SchemaMismatchError, match="before the year 10000"):
            producer.send("t", b"b", timestamp=timestamp)
        assert last.result().offset == 0
        latest = dt.datetime.max.replace(microsecond=999_000, tzinfo=dt.UTC)
        assert store.sql("SELECT _timestamp FROM t").fetchall() == [(latest,)]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.timestamp("ms"), YEAR_10000 - 1, YEAR_10000),
        (TIMESTAMP, YEAR_10000 - 1, YEAR_10000),
        (TIMESTAMP, -62_135_596_800_000, -62_135_596_800_001),
        (pa.timestamp("us", "UTC"), YEAR_10000 * 1000 - 1, YEAR_10000 * 1000),
        (pa.int64(), YEAR_10000 - 1, NANOSECONDS),
    ],
    ids=str,
)
def test_time_outside_readable_range_is_refused(memory_store_url: str, kind: pa.DataType, good: int, bad: int) -> None:
    """One such row would make the whole topic unreadable for SQL and for consumers. It is refused alone."""
    # A column is checked also where it is not the event time.
    event_time = None if kind == pa.timestamp("ms") else "at"
    fine, wrong = (pa.table({"at": pa.array([value], kind)}) for value in (good, bad))
    with txnstore.create(memory_store_url) as store, store.producer() as producer:
        store.create_topic("typed", schema=pa.schema([("at", kind)]), timestamp=event_time)
        producer.send_table("typed", fine)
        with pytest.raises(SchemaMismatchError, match="'at' of topic 'typed' holds a time outside the years"):
            producer.send_table("typed", wrong)
        if kind in (pa.int64(), TIMESTAMP):
            with pytest.raises(SchemaMismatchError, match=str(bad)):
                producer.send("typed", {"at": bad})
        producer.flush()
        [(at,)] = store.sql('SELECT "at" FROM typed').fetchall()
        assert at == fine["at"][0].as_py()
        with store.consumer("typed") as consumer:
            assert len(consumer.poll()) == 1
