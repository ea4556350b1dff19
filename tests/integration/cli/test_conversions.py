"""``consume | produce`` is the identity: of rows of every type, and of records with all that a record may be."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txnstore
from tests.helpers.arrow_values import TYPES, bits
from tests.helpers.cli import Cli

_SCHEMA = pa.schema([pa.field(f"column {number}", kind) for number, (kind, _) in enumerate(TYPES)])
_ROWS = st.lists(
    st.fixed_dictionaries({f"column {number}": st.none() | values for number, (_, values) in enumerate(TYPES)}),
    min_size=1,
    max_size=3,
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_BYTES = st.none() | st.binary(max_size=5) | _TEXT.map(str.encode) | st.just(b'{"base64":"AA=="}') | st.just(b"null")
_RECORDS = st.lists(
    st.tuples(_BYTES, _BYTES, st.lists(st.tuples(_TEXT, _BYTES), max_size=2), st.integers(0, 10**12)),
    min_size=1,
    max_size=6,
)


@pytest.fixture
def cli(local_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    txnstore.create(local_store_url).close()
    monkeypatch.delenv("TXNSTORE_STORE", raising=False)
    return Cli(local_store_url, monkeypatch)


def test_rows_of_every_type(cli: Cli) -> None:
    numbers = itertools.count()

    @given(_ROWS)
    @settings(max_examples=8)
    def check(rows: list[dict[str, Any]]) -> None:
        one, two = (f"{name}-{next(numbers)}" for name in ("from", "to"))
        with txnstore.open(cli.url) as store:
            for name in (one, two):
                store.create_topic(name, schema=_SCHEMA)
            with store.producer() as producer:
                producer.send_table(one, rows)
        printed = cli("consume", one).out
        cli.ok("produce", two, stdin=printed.encode())
        with txnstore.open(cli.url) as store:
            before, after = (store.scan(name).to_table().select(_SCHEMA.names) for name in (one, two))
        assert bits(after.to_pylist()) == bits(before.to_pylist()) == bits(rows)

    check()


def test_records_with_all_that_they_may_be(cli: Cli) -> None:
    """Tombstones and empty values, bytes that are no text, repeated headers, texts that look like JSON's forms."""
    numbers = itertools.count()

    @given(_RECORDS)
    @settings(max_examples=12)
    def check(records: list[tuple[Any, Any, Any, int]]) -> None:
        one, two = (f"{name}-{next(numbers)}" for name in ("from", "to"))
        with txnstore.open(cli.url) as store:
            for name in (one, two):
                store.create_topic(name)
            with store.producer() as producer:
                for key, value, headers, timestamp in records:
                    producer.send(one, value, key, headers=headers, timestamp=timestamp)
        printed = cli.ok("consume", one, "--json").out
        cli.ok("produce", two, "--format", "json", stdin=printed.encode())
        with txnstore.open(cli.url) as store:
            before, after = (store.scan(name).to_table().drop_columns("_topic").to_pylist() for name in (one, two))
        assert after == before
        assert [(row["key"], row["value"], row["timestamp"].timestamp()) for row in after] == [
            (key, value, timestamp / 1_000) for key, value, _, timestamp in records
        ]

    check()


def test_what_sql_prints_as_json_is_read_back(cli: Cli) -> None:
    """cli_04: NaN and infinity became null."""
    schema = pa.schema([("x", pa.float64()), ("m", pa.map_(pa.int64(), pa.float32()))])
    with txnstore.open(cli.url) as store:
        for name in ("a", "b"):
            store.create_topic(name, schema=schema)
        with store.producer() as producer:
            numbers = [math.nan, math.inf, -math.inf, -0.0, 1e23, None]
            producer.send_table("a", [{"x": number, "m": [(1, number)]} for number in numbers[:4]])
            producer.send_table("a", [{"x": number} for number in numbers[4:]])
    printed = cli.ok("sql", "select x, m from a", "--json").out
    assert [json.loads(line)["x"] for line in printed.splitlines()] == ["NaN", "Infinity", "-Infinity", 0, 1e23, None]
    cli.ok("produce", "b", stdin=printed.encode())
    with txnstore.open(cli.url) as store:
        before, after = (store.scan(name).to_table().select(["x", "m"]).to_pylist() for name in ("a", "b"))
    assert bits(after) == bits(before)
