"""The readers: each compares what it finds with what the model shows."""

from __future__ import annotations

import operator
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb as duckdb_of
import pyarrow as pa

from tests.harness.readers import filters, values
from tests.harness.readers.history import READS, DifferenceError, History, Reading
from tests.harness.readers.model import ISOLATIONS, Placed, Rec, Shown
from tests.helpers import format_reader
from tests.helpers.connections import connection_of
from tests.helpers.format_answers import objects_of
from tests.readers.plain import PlainTable
from txnstore import compute as pc
from txnstore.chain import keys
from txnstore.core.model import TopicPartition
from txnstore.errors import TopicAuthorizationError
from txnstore.read.plan import IsolationLevel
from txnstore.read.records import Record
from txnstore.segment.schema import stored_schema
from txnstore.sql import emit_views
from txnstore.store import Store

#: A row as a reader returns it, and in canonical form.
Row = Mapping[str, Any]
COMMITTED = "read_committed"
_OWN = ("_topic", "_partition", "_offset", "_timestamp")


# Comparing ------------------------------------------------------------------------------------------------------------


def row_of(shown: Shown, placed: Placed, names: Iterable[str] | None = None) -> dict[str, Any]:
    """A row as a reader must show it, in canonical form."""
    partition, offset, rec = placed
    own = {"_topic": shown.name, "_partition": partition, "_offset": offset, "_timestamp": _micros(rec)}
    row = {**own, **{name: values.canonical(raw(rec, name)) for name in shown.names}}
    return row if names is None else {name: row[name] for name in names}


def raw(rec: Rec, name: str) -> Any:
    """A value of a record; null if it was sent without the column."""
    return rec.values.get(name)


def _micros(rec: Rec) -> int | None:
    return None if rec.timestamp is None else rec.timestamp * 1000


def canonical(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows in canonical form, by partition and offset."""
    listed = [{name: values.canonical(value) for name, value in row.items()} for row in rows]
    return sorted(listed, key=lambda row: (row.get("_partition", 0), row.get("_offset", 0)))


def difference(expected: Sequence[Row], found: Sequence[Row]) -> str | None:
    """The first difference; None if there is none."""
    for mine, theirs in zip(expected, found, strict=False):
        if mine != theirs:
            if _place(mine) != _place(theirs):
                break
            names = [name for name in {**mine, **theirs} if mine.get(name, ...) != theirs.get(name, ...)]
            parts = (f"{name}: {mine.get(name, '-')!r} expected, {theirs.get(name, '-')!r} found" for name in names)
            return f"the row at {_place(mine)} differs: {'; '.join(parts)}"
    if len(expected) != len(found) or [*map(_place, expected)] != [*map(_place, found)]:
        here, there = [_place(row) for row in expected], [_place(row) for row in found]
        missing = [place for place in here if place not in there]
        more = [place for place in there if place not in here]
        return f"{len(found)} rows instead of {len(expected)}; missing: {missing[:5]}; too many: {more[:5]}"
    return None


def _place(row: Row) -> tuple[Any, Any]:
    return row.get("_partition"), row.get("_offset")


def compare(history: History, who: str, what: str, candidates: Sequence[Sequence[Row]], found: Sequence[Row]) -> None:
    """Raise if what a reader has found is none of what it may find."""
    problems = [difference(expected, found) for expected in candidates]
    history.coverage.reads[who] += 1
    history.coverage.rows[who] += len(found)
    if None in problems:
        return
    reading = history.reading
    if reading is not None and reading.mixed and len(candidates) > 1 and between(candidates, found):
        return
    raise DifferenceError(who, f"{what}: {problems[0]}" + "".join(f"; or: {problem}" for problem in problems[1:]))


def between(candidates: Sequence[Sequence[Row]], found: Sequence[Row]) -> bool:
    """Whether the rows may be of a moment between two entries of the injected step."""
    before, after = ([(*_place(row), str(row)) for row in rows] for rows in (candidates[0], candidates[-1]))
    there = [(*_place(row), str(row)) for row in found]
    return set(before) & set(after) <= set(there) <= set(before) | set(after) and len(set(there)) == len(there)


def shown_in(reading: Reading, name: str) -> list[Shown]:
    """The topic in each of the moments that has it."""
    return [moment[name] for moment in reading.moments if name in moment]


def _any(history: History, rng: random.Random) -> Shown | None:
    """Any topic."""
    assert history.reading is not None
    moment = history.reading.moments[0]
    return moment[rng.choice(sorted(moment))] if moment else None


# Scans ----------------------------------------------------------------------------------------------------------------


def scan(history: History, store: Store, rng: random.Random) -> None:
    """A scan of a topic, or of a part of it."""
    shown = _any(history, rng)
    if shown is None:
        return
    isolation = history.isolation(rng)
    form = rng.choice(["all", "columns", "ranges", "filter", "stream"])
    names: list[str] | None = None
    bounds: dict[str, Any] = {}
    chosen: Callable[[Placed], bool] = lambda _: True  # noqa: E731 - what the next lines narrow.
    if form == "columns":
        names = ["_partition", "_offset", *rng.sample(shown.names, rng.randint(1, len(shown.names)))]
    elif form == "ranges":
        partitions = sorted(rng.sample(range(len(shown.starts)), rng.randint(1, len(shown.starts))))
        first = {number: rng.randint(shown.starts[number], shown.ends[number]) for number in partitions}
        last = {number: rng.randint(first[number], shown.ends[number] + 1) for number in partitions}
        bounds = {"partitions": partitions, "start": first, "end": last}
        chosen = lambda placed: placed[0] in first and first[placed[0]] <= placed[1] < last[placed[0]]  # noqa: E731
    elif form == "filter":
        offset = rng.randrange(max(shown.ends) + 1)
        if rng.random() < 0.5:
            bounds = {"filter": pc.field("_offset") >= offset}
            chosen = lambda placed: placed[1] >= offset  # noqa: E731
        else:
            at = rng.choice([rec.timestamp or 0 for _, _, rec in shown.rows[isolation]] or [0]) + rng.choice([0, 0, 1])
            sign = rng.choice([operator.ge, operator.lt, operator.le, operator.gt, operator.eq])
            bounds = {"filter": sign(pc.field("_timestamp"), pa.scalar(at, pa.timestamp("ms", "UTC")))}
            chosen = lambda placed: sign(placed[2].timestamp or 0, at)  # noqa: E731
    assert history.reading is not None
    read = store.scan(shown.name, isolation, columns=names, **bounds)
    table = pa.Table.from_batches([*read.to_reader()], read.schema) if form == "stream" else read.to_table()
    candidates = [
        [row_of(each, placed, names) for placed in each.rows[isolation] if chosen(placed)]
        for each in shown_in(history.reading, shown.name)
        if names is None or set(names) <= {*_OWN, *each.names}
    ]
    compare(
        history, "scan", f"{shown.name}, {form} {names or ''} {isolation}", candidates, canonical(table.to_pylist())
    )
    if names is None and all(
        _schema(each) != [*zip(table.schema.names, table.schema.types, strict=True)][4:]
        for each in shown_in(history.reading, shown.name)
    ):
        raise DifferenceError("scan", f"{shown.name} has the schema {table.schema}")


def _schema(shown: Shown) -> list[tuple[str, pa.DataType]]:
    schema = stored_schema(shown.schema)
    return [*zip(schema.names, schema.types, strict=True)]


def past(history: History, store: Store, rng: random.Random) -> None:
    """A scan, or a query, of a snapshot that was kept, or of the entry that it was made at."""
    if not history.kept:
        return
    kept = rng.choice(history.kept)
    snapshot = kept.snapshot if rng.random() < 0.5 else store.snapshot(kept.snapshot.entry)
    if not kept.moment:
        return
    shown = kept.moment[rng.choice(sorted(kept.moment))]
    isolation = history.isolation(rng)
    if rng.random() < 0.5:
        table = store.scan(shown.name, isolation, snapshot=snapshot).to_table()
    else:
        table = store.sql(f"select * from {_quoted(shown.name)}", isolation, snapshot).to_arrow_table()
    expected = [row_of(shown, placed) for placed in shown.rows[isolation]]
    compare(history, "past", f"{shown.name} at {kept.snapshot}", [expected], canonical(table.to_pylist()))


# SQL ------------------------------------------------------------------------------------------------------------------


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def sql(history: History, store: Store, rng: random.Random) -> None:
    """A query with a random filter and projection."""
    shown = _any(history, rng)
    if shown is None:
        return
    isolation = history.isolation(rng)
    query, expect = query_of(rng, shown, isolation, _quoted(shown.name))
    table = store.sql(query, isolation).to_arrow_table()
    _compare_sql(history, "sql", shown, isolation, query, expect, table)


def duckdb(history: History, store: Store, rng: random.Random) -> None:
    """Queries over a connection, whose views show one snapshot."""
    assert history.reading is not None
    shown = _any(history, rng)
    if shown is None:
        return
    isolation = history.isolation(rng)
    with store.duckdb(isolation) as connection:
        for _ in range(2):
            query, expect = query_of(rng, shown, isolation, _quoted(shown.name))
            table = connection.sql(query).to_arrow_table()
            _compare_sql(history, "duckdb", shown, isolation, query, expect, table)


def _compare_sql(
    history: History, who: str, shown: Shown, isolation: str, query: str, expect: Expect, table: pa.Table
) -> None:
    assert history.reading is not None
    candidates = [
        rows for each in shown_in(history.reading, shown.name) if (rows := expect(each, isolation)) is not None
    ]
    compare(history, who, f"{query} ({isolation})", candidates, canonical(table.to_pylist()))


#: What a query must return of a topic; None if it does not have the columns.
Expect = Callable[[Shown, str], "list[dict[str, Any]] | None"]


def query_of(rng: random.Random, shown: Shown, isolation: str, source: str) -> tuple[str, Expect]:
    """A query over a view, and what it must return."""
    if rng.random() < 0.15:
        return (
            f"select * from {source}",
            lambda each, level: [row_of(each, placed) for placed in each.rows[level]],
        )
    there = [_raw_row(shown, placed) for placed in shown.rows[isolation]]
    condition = filters.draw(rng, _schema_with_place(shown), there)
    names = ["_partition", "_offset", *rng.sample(shown.names, rng.randint(0, len(shown.names)))]
    columns = ", ".join(map(_quoted, names))

    def expect(each: Shown, level: str) -> list[dict[str, Any]] | None:
        if not {*names, *condition.names} <= {*_OWN, *each.names}:
            return None
        return [
            row_of(each, placed, names)
            for placed in each.rows[level]
            if condition.holds(_raw_row(each, placed)) is True
        ]

    return f"select {columns} from {source} where {condition.sql}", expect


def _raw_row(shown: Shown, placed: Placed) -> dict[str, Any]:
    partition, offset, rec = placed
    return {**{name: raw(rec, name) for name in shown.names}, "_partition": partition, "_offset": offset}


def emitted(history: History, store: Store, rng: random.Random) -> None:
    """The views as SQL, for a DuckDB without txnstore that has a copy of the objects."""
    assert history.reading is not None
    if not history.objects.url.startswith("s3://"):  # Beside engines of Iceberg: views are for local folders and S3.
        return
    isolation = history.isolation(rng)
    moments = history.reading.moments
    text, root = emit_views(connection_of(store), isolation), connection_of(store).objects.url
    with tempfile.TemporaryDirectory() as folder, duckdb_of.connect() as connection:
        for key in sorted(set(re.findall(f"'{re.escape(root)}/([^']*)'", text))):
            file = Path(folder) / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(history.objects.get(key))
        connection.execute(text.replace(f"'{root}/", f"'{folder}/"))
        views = connection.sql("select view_name from duckdb_views() where not internal").fetchall()
        for name in sorted({name for (name,) in views} & set(moments[0])):
            query, expect = query_of(rng, moments[0][name], isolation, _quoted(name))
            table = connection.sql(query).to_arrow_table()
            _compare_sql(history, "emitted", moments[0][name], isolation, query, expect, table)


def inspect(history: History, store: Store, rng: random.Random) -> None:
    """Views of the catalog and of the logs."""
    assert history.reading is not None
    shown = history.reading.moments[0]
    logs = store.sql("select topic, partition, log_start, high_watermark from txn.partitions").fetchall()
    expected = [
        [name, number, start] for name, each in sorted(shown.items()) for number, start in enumerate(each.starts)
    ]
    ends = {(name, number): end for name, each in shown.items() for number, end in enumerate(each.ends)}
    topics = store.sql("select topic, partitions from txn.topics order by topic").fetchall()
    history.coverage.reads["inspect"] += 1
    history.coverage.rows["inspect"] += len(logs) + len(topics)
    if sorted([*row[:3]] for row in logs) != expected or any(row[3] < ends[row[0], row[1]] for row in logs):
        raise DifferenceError("inspect", f"txn.partitions has {logs} instead of {expected}, with the ends {ends}")
    if [*map(tuple, topics)] != [(name, len(each.starts)) for name, each in sorted(shown.items())]:
        raise DifferenceError("inspect", f"txn.topics has {topics}")


# Consumers ------------------------------------------------------------------------------------------------------------


def consume(history: History, store: Store, rng: random.Random) -> None:
    """A consumer that reads from a position to the end."""
    shown = _any(history, rng)
    if shown is None:
        return
    isolation = history.isolation(rng)
    fresh = rng.random() < 0.5
    if fresh:
        store.topics()
    with store.consumer(isolation=isolation, max_poll_records=rng.choice([1, 7, 500])) as consumer:
        first = dict.fromkeys(range(len(shown.starts)), 0)
        if rng.random() < 0.4:
            consumer.subscribe(shown.name)
        else:
            tps = [TopicPartition(shown.name, number) for number in first]
            consumer.assign(tps)
            if rng.random() < 0.5:
                first = {tp.partition: rng.randint(shown.starts[tp.partition], shown.ends[tp.partition]) for tp in tps}
                for tp in tps:
                    consumer.seek(tp, first[tp.partition])
        found: list[Record] = []
        empty = 0
        while empty < 3:
            records = consumer.poll(0)
            empty = 0 if records else empty + 1
            found += records
    rows = [_consumed(record) for record in found]
    history.coverage.reads["consume"] += 1
    history.coverage.rows["consume"] += len(rows)
    _compare_consumed(history, shown, isolation, first if fresh else None, rows)


def _consumed(record: Record) -> dict[str, Any]:
    row = {"_topic": record.topic, "_partition": record.partition, "_offset": record.offset}
    row["_timestamp"] = record.timestamp * 1000
    if isinstance(record.value, Mapping):
        return {**row, **{name: values.canonical(value) for name, value in record.value.items()}}
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {**row, "key": record.key, "value": record.value, "headers": headers}


def _compare_consumed(
    history: History, shown: Shown, isolation: str, first: Mapping[int, int] | None, rows: list[dict[str, Any]]
) -> None:
    """A consumer sees each record in order, as it was at one of the moments, and none twice.

    ``first`` is None if its process may begin with what it knew some time before: records that are deleted now.
    """
    assert history.reading is not None
    moments = shown_in(history.reading, shown.name)
    may: dict[tuple[int, int], list[Any]] = {}
    for each in moments:
        for placed in each.rows[isolation]:
            expected = row_of(each, placed)
            may.setdefault(placed[:2], []).append((expected, placed[2]))
    places = [(row["_partition"], row["_offset"]) for row in rows]
    for partition in {place[0] for place in places}:
        offsets = [offset for number, offset in places if number == partition]
        several = len({each.life for each in moments}) > 1 or (first is None and history.has_deleted)
        if offsets != sorted(set(offsets)) and not several:
            raise DifferenceError("consume", f"{shown.name}-{partition}: the offsets {offsets} are out of order")
    for row, place in zip(rows, places, strict=True):
        forms = may.get(place)
        if first is None and (forms is None or not any(_same_record(row, expected, rec) for expected, rec in forms)):
            forms = _of_the_past(history, shown.name, isolation, row)
        if forms is None:
            raise DifferenceError("consume", f"{shown.name} ({isolation}): a record that is not there: {row}")
        if not any(_same_record(row, expected, rec) for expected, rec in forms):
            raise DifferenceError("consume", f"{shown.name}: {difference([forms[-1][0]], [row])}")
    if first is None or len({each.life for each in moments}) > 1 or len(moments) < len(history.reading.moments):
        return
    must = set.intersection(*({placed[:2] for placed in each.rows[isolation]} for each in moments))
    if {"compact", "retain", "delete_records", "merge"}.isdisjoint(history.reading.injected):
        must = {placed[:2] for placed in moments[-1].rows[isolation]}
    missing = sorted(place for place in must - set(places) if place[0] in first and place[1] >= first[place[0]])
    if missing:
        raise DifferenceError("consume", f"{shown.name} ({isolation}): {missing[:5]} were never returned")


def _of_the_past(history: History, topic: str, isolation: str, row: Row) -> list[tuple[Row, Rec]] | None:
    """The record that was at a place of a topic at any time."""
    uid = int(row["headers"][0]["value"]) if "headers" in row else row["id"]
    rec = history.model.sent.get(uid)
    if rec is None or rec.place != (topic, row["_partition"], row["_offset"]):
        return None
    if isolation == "read_committed" and not rec.committed:
        return None
    own = {name: row[name] for name in ("_topic", "_partition", "_offset")}
    names = {*row, *rec.values} - {*_OWN}
    return [({**own, "_timestamp": _micros(rec), **{name: values.canonical(raw(rec, name)) for name in names}}, rec)]


def _same_record(row: Row, expected: Row, rec: Rec) -> bool:
    """Whether a row is the record; columns that it was sent without may be left out, if they are newer."""
    lacking = set(expected) - set(row) - ({"timestamp"} if "headers" in row else set())  # Consumers show one time.
    return all(name not in rec.values for name in lacking) and all(
        name in expected and expected[name] == value for name, value in row.items()
    )


# Rights ---------------------------------------------------------------------------------------------------------------


def rights(history: History, _store: Store, rng: random.Random) -> None:
    """A reader that may read some topics only, before and after a change of its rights."""
    assert history.reading is not None
    store, moment = history.bob.store, history.reading.moments[0]
    for again in (False, True):
        if again and rng.random() < 0.5:
            history.acl(history.eye, rng)
        for name in rng.sample(sorted(moment), min(2, len(moment))):
            isolation = history.isolation(rng)
            _compare_rights(history, store, moment[name], isolation, by_sql=rng.random() < 0.5)


def _compare_rights(history: History, store: Store, shown: Shown, isolation: IsolationLevel, *, by_sql: bool) -> None:
    allowed = not history.rights or shown.name in history.permitted
    who = f"{'sql' if by_sql else 'scan'} as Bob"
    try:
        if by_sql:
            table = store.sql(f"select * from {_quoted(shown.name)}", isolation).to_arrow_table()
        else:
            table = store.scan(shown.name, isolation).to_table()
    except TopicAuthorizationError as error:
        if allowed:
            raise DifferenceError(who, f"{shown.name} is not shown: {error}") from error
        return
    if not allowed:
        raise DifferenceError(who, f"{shown.name} is shown")
    expected = [row_of(shown, placed) for placed in shown.rows[isolation]]
    compare(history, who, shown.name, [expected], canonical(table.to_pylist()))


# Tables, and the format -----------------------------------------------------------------------------------------------


def table(history: History, store: Store, rng: random.Random) -> None:
    """A published table, by a reader that knows Iceberg's specification; or its files, by DuckDB with a filter."""
    moments = history.published
    if moments is None:
        return
    names = [name for name in moments[0] if all(name in each and each[name].has_table for each in moments)]
    if not names:
        return
    shown = moments[0][rng.choice(sorted(names))]
    objects, root = connection_of(store).objects, f"{store.url.rstrip('/')}/"
    number = int(objects.get(keys.table_hint(shown.name)))
    plain_table = PlainTable(
        f"{root}{keys.table_version(shown.name, number)}", lambda location: objects.get(location.removeprefix(root))
    )
    condition = filters.draw(rng, _schema_with_place(shown), [_raw_row(shown, each) for each in shown.rows[COMMITTED]])
    by_files = rng.random() < 0.6
    rows = _files_by_duckdb(plain_table, condition) if by_files else plain_table.rows()
    later = history.published or []  # Another process may have published beside this.
    moments = [*moments, *(moment for moment in later if shown.name in moment and moment not in moments)]
    found = canonical({**row, "_partition": row["_partition_id"]} for row in rows)
    who = "files of tables by DuckDB" if by_files else "table"
    answers: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []
    for each in (moment[shown.name] for moment in moments):
        if by_files and not condition.names <= {*_OWN, *each.names}:
            return
        wanted = ["_partition", "_offset", "_timestamp", *each.names]
        placed = each.rows[COMMITTED]
        chosen = [one for one in placed if not by_files or condition.holds(_raw_row(each, one)) is True]
        expected = [row_of(each, one, wanted) for one in chosen]
        answers.append((expected, [{name: row.get(name) for name in wanted} for row in found]))
    if history.publications[-1].mixed and between([expected for expected, _ in answers], answers[-1][1]):
        answers.append((answers[-1][1], answers[-1][1]))
    equal = next((pair for pair in answers if pair[0] == pair[1]), answers[-1])
    compare(history, who, f"{shown.name}, {condition.sql if by_files else ''}", [equal[0]], equal[1])


def _files_by_duckdb(plain_table: PlainTable, condition: filters.Filter) -> list[Row]:
    """The rows of a table, each of whose files DuckDB reads with a filter, which it decides by their statistics."""
    if plain_table.current is None:
        return []
    live = [entry for entry in plain_table.entries(plain_table.current) if entry.live]
    deletes = [entry for entry in live if entry.deletes]
    rows: list[Row] = []
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file, duckdb_of.connect() as connection:
        for entry in live:
            if entry.deletes:
                continue
            Path(file.name).write_bytes(plain_table.bytes_of(entry))
            source = f"(select *, file_row_number as position, {entry.partition}::int as _partition"
            source = f"{source} from read_parquet('{file.name}', file_row_number = true))"
            try:
                found = connection.sql(f"select * from {source} where {condition.sql}").to_arrow_table().to_pylist()
            except duckdb_of.BinderException:  # A column is newer than the file.
                everything = connection.sql(f"select * from {source}").to_arrow_table().to_pylist()
                found = [row for row in everything if condition.holds(dict.fromkeys(condition.names) | row) is True]
            deleted = plain_table.positions(entry, deletes)
            rows += [{**row, "_partition_id": entry.partition} for row in found if row["position"] not in deleted]
    return rows


def _schema_with_place(shown: Shown) -> pa.Schema:
    """The columns of a topic, and the places of its rows."""
    return pa.schema(
        [*stored_schema(shown.schema), pa.field("_offset", pa.int64()), pa.field("_partition", pa.int32())]
    )


def format_(history: History, store: Store, rng: random.Random) -> None:
    """A reader of the format that shares no code with the library."""
    assert history.reading is not None
    view = format_reader.Reader(objects_of(history.objects), hints=True).view()
    for name, shown in history.reading.moments[-1].items():
        schema = stored_schema(shown.schema)
        for isolation in ISOLATIONS:
            placed = shown.rows[isolation]
            columns = [
                [
                    format_reader.plain(each)
                    for each in pa.array([raw(rec, field.name) for _, _, rec in placed], field.type)
                ]
                for field in schema
            ]
            expected = [
                [partition, offset, rec.timestamp, *(column[at] for column in columns)]
                for at, (partition, offset, rec) in enumerate(placed)
            ]
            found = view.records(name, isolation)
            history.coverage.reads["format"] += 1
            history.coverage.rows["format"] += len(found)
            if expected != found:
                wrong = next(
                    (pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]), (expected, found)
                )
                raise DifferenceError("format", f"{name} ({isolation}): {wrong[1]} instead of {wrong[0]}")


READS.update(
    {
        "scan": scan,
        "past": past,
        "sql": sql,
        "duckdb": duckdb,
        "emitted": emitted,
        "consume": consume,
        "rights": rights,
        "inspect": inspect,
        "table": table,
        "format": format_,
    }
)
