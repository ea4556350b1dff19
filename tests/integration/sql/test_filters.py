"""Every kind of filter against a scan, over every type, encoding, pattern of nulls, and state of segments.

DuckDB decides filters by the statistics of the files, where it can. The reference does not: it is Python, over the rows
of a scan. Segments of releases that wrote statistics of floats and of all text are read, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.merging import merge_now
from txnstore.segment import parquet
from txnstore.store import Store, create

NAN, INF = math.nan, math.inf
#: Each has its own segment, before a compaction.
_BATCHES = 3


class Kind(NamedTuple):
    """A type: its name in SQL, and values in ascending order."""

    arrow: pa.DataType
    sql: str
    values: Sequence[Any]


def _times(zone: Any) -> list[datetime]:
    before = datetime(1969, 12, 31, 23, 59, 59, 999000, zone)
    return [datetime(1, 1, 1, tzinfo=zone), before, datetime(2026, 2, 3, tzinfo=zone)]


KINDS = {
    "b": Kind(pa.bool_(), "BOOLEAN", [False, True]),
    "i8": Kind(pa.int8(), "TINYINT", [-128, 0, 127]),
    "i16": Kind(pa.int16(), "SMALLINT", [-(2**15), 7, 2**15 - 1]),
    "i32": Kind(pa.int32(), "INTEGER", [-(2**31), 7, 2**31 - 1]),
    "i64": Kind(pa.int64(), "BIGINT", [-(2**63), 7, 2**63 - 1]),
    "f": Kind(pa.float32(), "FLOAT", [-INF, -0.0, 0.0, 1.5, INF, NAN]),
    "d": Kind(pa.float64(), "DOUBLE", [-INF, -0.0, 0.0, 1.5, INF, NAN]),
    "t": Kind(pa.string(), "VARCHAR", ["", "a", "ab", "\U0001f600"]),
    "lt": Kind(pa.large_string(), "VARCHAR", ["", "paid", "é", "￿"]),
    "y": Kind(pa.binary(), "BLOB", [b"", b"a", b"\x7f\xff", b"\xff"]),
    "ly": Kind(pa.large_binary(), "BLOB", [b"", b"a", b"\x7f\xff", b"\xff"]),
    "fy": Kind(pa.binary(2), "BLOB", [b"\x00a", b"ab", b"\xff\xff"]),
    "day": Kind(pa.date32(), "DATE", [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    "ms": Kind(pa.timestamp("ms"), "TIMESTAMP", _times(None)),
    "us": Kind(pa.timestamp("us"), "TIMESTAMP", _times(None)),
    "msz": Kind(pa.timestamp("ms", "UTC"), "TIMESTAMPTZ", _times(UTC)),
    "usz": Kind(pa.timestamp("us", "UTC"), "TIMESTAMPTZ", _times(UTC)),
    "n5": Kind(pa.decimal128(5, 2), "DECIMAL(5,2)", [Decimal("-999.99"), Decimal(0), Decimal("1.50")]),
    "n18": Kind(pa.decimal128(18, 0), "DECIMAL(18,0)", [Decimal(-(10**17)), Decimal(-1), Decimal(10**17)]),
    "n38": Kind(pa.decimal128(38, 2), "DECIMAL(38,2)", [Decimal(-(10**35)), Decimal("-0.01"), Decimal(10**35)]),
}
#: The rows of a batch by the pattern; ``values`` are those of the type.
PATTERNS: dict[str, Callable[[Sequence[Any], int], list[Any]]] = {
    "mixed": lambda values, batch: [*values, None],
    "rising": lambda values, batch: [values[batch % len(values)], None, values[batch % len(values)]],
    "outer": lambda values, batch: [values[1], values[-1], None],
    "last": lambda values, batch: [values[-1], None],
    "same": lambda values, batch: [values[0]],
    "null": lambda values, batch: [None],
}


def _rank(value: Any) -> Any:
    """A float as DuckDB orders it: NaN is equal to itself, and larger than all numbers."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


class Filter(NamedTuple):
    """A filter: as SQL, and whether it takes a value that is not null; then whether it takes a null."""

    sql: str
    takes: Callable[[Any, Any, Any], bool]
    null: bool = False


FILTERS = [
    Filter("{c} = {v}", lambda x, v, w: x == v),
    Filter("{c} <> {v}", lambda x, v, w: x != v),
    Filter("{c} < {v}", lambda x, v, w: x < v),
    Filter("{c} <= {v}", lambda x, v, w: x <= v),
    Filter("{c} > {v}", lambda x, v, w: x > v),
    Filter("{c} >= {v}", lambda x, v, w: x >= v),
    Filter("{c} between {v} and {w}", lambda x, v, w: v <= x <= w),
    Filter("{c} in ({v}, {w})", lambda x, v, w: x in (v, w)),
    Filter("{c} not in ({v}, {w})", lambda x, v, w: x not in (v, w)),
    Filter("{c} is null", lambda x, v, w: False, null=True),
    Filter("{c} is not null", lambda x, v, w: True),
    Filter("{c} is distinct from {v}", lambda x, v, w: x != v, null=True),
    Filter("{c} is not distinct from {v}", lambda x, v, w: x == v),
    Filter("{c} is null or {c} > {v}", lambda x, v, w: x > v, null=True),
    Filter("not ({c} <= {v})", lambda x, v, w: x > v),
    Filter("coalesce({c}, {v}) = {v}", lambda x, v, w: x == v, null=True),
]
FLOATS = [
    Filter("isnan({c})", lambda x, v, w: x[0]),
    Filter("not isnan({c})", lambda x, v, w: not x[0]),
    Filter("isfinite({c})", lambda x, v, w: not x[0] and math.isfinite(x[1])),
]
TEXTS = [
    Filter("{c} like 'a%'", lambda x, v, w: x.startswith("a")),
    Filter("{c} not like 'a%'", lambda x, v, w: not x.startswith("a")),
    Filter("starts_with({c}, {v})", lambda x, v, w: x.startswith(v)),
    Filter("{c} ilike '%A'", lambda x, v, w: x.lower().endswith("a")),
]


def filters_of(kind: Kind) -> list[Filter]:
    if pa.types.is_floating(kind.arrow):
        return FILTERS + FLOATS
    return FILTERS + (TEXTS if kind.sql == "VARCHAR" else [])


def literal(value: Any, kind: Kind) -> str:
    text = "".join(f"\\x{byte:02x}" for byte in value) if isinstance(value, bytes) else str(value)
    return f"'{text}'::{kind.sql}"


NESTED = {"st.d": KINDS["d"], "st.t": KINDS["t"], "li[1]": KINDS["d"], "ma['k']": KINDS["d"]}


def columns() -> dict[str, tuple[Kind, str]]:
    """Each plain column: a type and a pattern."""
    return {f"{name}_{pattern}": (kind, pattern) for name, kind in KINDS.items() for pattern in PATTERNS}


def batch_of(batch: int, rows: int, names: Sequence[str]) -> pa.Table:
    """The rows of one batch, with these plain columns and the nested ones."""
    made: dict[str, pa.Array] = {}

    def cycled(values: Sequence[Any]) -> list[Any]:
        return [values[row % len(values)] for row in range(rows)]

    plain = columns()
    for column in (name for name in names if name in plain):
        kind, pattern = plain[column]
        made[column] = pa.array(cycled(PATTERNS[pattern](kind.values, batch)), kind.arrow)
    doubles = cycled(PATTERNS["mixed"](KINDS["d"].values, batch))
    texts = cycled(PATTERNS["mixed"](KINDS["t"].values, batch))
    made["st"] = pa.array(
        [{"d": one, "t": other} for one, other in zip(doubles, texts, strict=True)],
        pa.struct([("d", pa.float64()), ("t", pa.string())]),
    )
    made["li"] = pa.array([[value] for value in doubles], pa.list_(pa.float64()))
    made["ma"] = pa.array([[("k", value)] for value in doubles], pa.map_(pa.string(), pa.float64()))
    # A plain column may have the path of a part of a nested one, which then has its options.
    made["st.d"] = pa.array(range(rows), pa.int64())
    return pa.table(made)


def fill(store: Store, rows: int, names: Sequence[str], **config: Any) -> None:
    batches = [batch_of(batch, rows, names) for batch in range(_BATCHES)]
    store.create_topic("t", schema=batches[0].schema, config=config or {"inline.bytes": 0})
    with store.producer() as producer:
        for batch in batches:
            producer.send_table("t", batch)
            producer.flush()


def compact(store: Store) -> None:
    store.compact("t", force=True)


def compare(database: duckdb.DuckDBPyConnection, store: Store, names: Sequence[str], ends: int) -> int:
    """Compares every filter on these columns with the rows of a scan.

    Args:
        database: Shows the store.
        store: The store.
        names: The columns.
        ends: How many pairs of values are compared with.

    Returns:
        How many filters were compared.
    """
    table = store.scan("t").to_table()
    offsets = table["_offset"].to_pylist()
    compared = 0
    for name in names:
        kind, values = _values(table, name)
        column = f'"{name}"' if name in columns() else name
        first, second, last = kind.values[0], kind.values[1], kind.values[-1]
        asked = [
            (each, v, w) for v, w in ((second, last), (last, first), (first, last))[:ends] for each in filters_of(kind)
        ]
        queries = [
            f"SELECT {number} AS q, list(_offset ORDER BY _offset) FROM t WHERE "
            + each.sql.format(c=column, v=literal(v, kind), w=literal(w, kind))
            for number, (each, v, w) in enumerate(asked)
        ]
        found = dict(database.execute("\nUNION ALL\n".join(queries)).fetchall())
        for number, (each, v, w) in enumerate(asked):
            low, high = _rank(v), _rank(w)
            expected = [
                offset
                for offset, value in zip(offsets, values, strict=True)
                if (each.null if value is None else each.takes(_rank(value), low, high))
            ]
            assert (found[number] or []) == expected, (name, queries[number])
        extremes = database.execute(f"SELECT min({column}), max({column}), count({column}) FROM t").fetchone()
        present = sorted((value for value in values if value is not None), key=_rank)
        assert extremes is not None
        assert extremes[2] == len(present)
        if present:
            assert (_rank(extremes[0]), _rank(extremes[1])) == (_rank(present[0]), _rank(present[-1])), name
        compared += len(asked)
    return compared


def _values(table: pa.Table, name: str) -> tuple[Kind, list[Any]]:
    if name in columns():
        return columns()[name][0], table[name].to_pylist()
    kind = NESTED[name]
    values = table[name[:2]].to_pylist()
    if name.startswith("st"):
        return kind, [value[name[3:]] for value in values]
    return kind, [value[0] if name.startswith("li") else value[0][1] for value in values]


def prepare(store: Store, state: str, rows: int, names: Sequence[str]) -> None:
    """Writes the rows, and brings their segments into a state."""
    if state in ("entries", "merged"):
        fill(store, rows, names, **{"inline.bytes": 1 << 20})
    else:
        fill(store, rows, names)
    if state == "compacted":
        compact(store)
    elif state == "merged":
        merge_now(store)


STATES = ["objects", "compacted", "entries", "merged"]


def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are written as by releases that wrote statistics of all plain columns."""
    monkeypatch.setattr(parquet, "_has_statistics", lambda data_type, dictionary: True)


#: Of each type the pattern with all values, those that statistics mislead about, and the parts of nested columns.
SOME = [*(f"{name}_mixed" for name in KINDS), "t_last", "y_last", "fy_last", "d_outer", "d_same", "t_null", *NESTED]


@pytest.mark.parametrize("state", STATES)
def test_filters_find_the_rows_of_a_scan(state: str, tmp_path: Path) -> None:
    with create(tmp_path / "store") as store:
        prepare(store, state, 7, SOME)
        with store.duckdb() as database:
            assert compare(database, store, SOME, ends=1) > 500


@pytest.mark.parametrize("state", ["objects", "compacted"])
def test_filters_find_the_rows_of_a_scan_in_segments_of_older_releases(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have statistics of floats, which do not count NaN."""
    older(monkeypatch)
    names = ["d_mixed", "d_outer", "f_outer", "d_rising", "t_last"]
    with create(tmp_path / "store") as store:
        prepare(store, state, 7, names)
        with store.duckdb() as database:
            compare(database, store, names, ends=3)


def test_filters_find_the_rows_of_a_scan_in_dictionaries(tmp_path: Path) -> None:
    names = ["t_mixed", "t_last", "y_mixed", "y_last"]
    with create(tmp_path / "store") as store:
        prepare(store, "compacted", 1001, names)
        with store.duckdb() as database:
            compare(database, store, names, ends=1)


@pytest.mark.slow
@pytest.mark.one_in(32)
@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("rows", [7, 1001])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("statistics", ["today's", "older"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_filter_finds_the_rows_of_a_scan(
    kind: str, state: str, rows: int, statistics: str, optimizer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if statistics == "older":
        older(monkeypatch)
    names = [f"{kind}_{pattern}" for pattern in PATTERNS] + (list(NESTED) if kind == "d" else [])
    with create(tmp_path / "store") as store:
        prepare(store, state, rows, names)
        with store.duckdb() as database:
            if not optimizer:
                database.execute("PRAGMA disable_optimizer")
            compare(database, store, names, ends=3)
