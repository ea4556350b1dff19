"""Engines of Iceberg as readers: pyiceberg, and DuckDB's extension, each a process with an environment of its own.

They read published tables, the newest versions and earlier snapshots, with random columns and random conditions, by
which they leave out files by the bounds of manifests, and row groups by the statistics of Parquet.
"""

from __future__ import annotations

import base64
import pickle
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tests.harness.readers import conditions, filters
from tests.harness.readers.answers import COMMITTED, between, canonical, compare, raw, row_of
from tests.harness.readers.history import READS, History, Publication
from tests.harness.readers.model import Placed, Rec, Shown
from tests.helpers.tables import EngineObjects
from tests.readers.engines import ENGINES, Worker, running
from tests.readers.plain import PlainTable
from txnstore.chain import keys
from txnstore.segment.schema import stored_schema
from txnstore.store import Store
from txnstore.testing import ManualClock

#: The engines that can read so, by the name that each has as a reader.
READERS = {"pyiceberg": "pyiceberg", "iceberg_scan": "duckdb"}
#: How many times a table is read in one step.
_READS_OF_A_STEP = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FolderObjects(EngineObjects):
    """Objects in memory that engines find in a folder, as soon as they were written there."""

    def __init__(self, clock: ManualClock, folder: Path) -> None:
        super().__init__(clock)
        self._folder = folder

    @property
    def url(self) -> str:
        return f"file://{self._folder}"

    def write(self) -> None:
        """Write what engines read into the folder, instead of all that was there."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for each in (*self.list(keys.TOPICS), *self.list(keys.TABLES)):
            path = self._folder / each.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.get(each.key))


@contextmanager
def reading_with(
    engines: Sequence[str], environments: Path
) -> Iterator[tuple[list[str], Callable[[ManualClock], FolderObjects]]]:
    """Add engines to the readers, each with one process for all histories.

    Args:
        engines: Their names, of the values of :data:`READERS`.
        environments: A folder with an environment for each engine, of its name.

    Yields:
        The names of the readers, and what makes the storage of a history, in a folder that no history had before:
        engines remember files by their paths.
    """
    names = [name for name, engine in READERS.items() if engine in engines]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="iceberg-")))
        made: list[Path] = []

        def objects(clock: ManualClock) -> FolderObjects:
            if made:
                shutil.rmtree(made[-1], ignore_errors=True)
            made.append(folder / f"store-{len(made)}")
            return FolderObjects(clock, made[-1])

        for name in names:
            worker = stack.enter_context(running(ENGINES[READERS[name]], environments, folder))
            READS[name] = _reader(name, worker)
            stack.callback(READS.pop, name)
        yield names, objects


def _reader(name: str, worker: Worker) -> Callable[[History, Store, random.Random], None]:
    """A reader that reads a table several times: of the newest publication, or of an earlier one."""

    def read(history: History, _store: Store, rng: random.Random) -> None:
        found = [(each, topic) for each in history.publications for topic in each.versions]
        if not found:
            return
        assert isinstance(history.objects, FolderObjects)
        history.objects.write()
        for _ in range(_READS_OF_A_STEP):
            publication, topic = (
                rng.choice(found) if rng.random() < 0.4 else found[-1 - rng.randrange(min(2, len(found)))]
            )
            _read(name, worker, history, rng, publication, topic)

    return read


def _read(
    name: str, worker: Worker, history: History, rng: random.Random, publication: Publication, topic: str
) -> None:
    moments = [moment[topic] for moment in publication.moments]
    shown = moments[0]
    metadata, snapshot = _place(history, rng, publication, shown)
    condition, request = (_for_pyiceberg if name == "pyiceberg" else _for_duckdb)(rng, shown)
    selected = rng.sample(shown.names, rng.randint(0, len(shown.names))) if rng.random() < 0.5 else [*shown.names]
    wanted = ["_partition_id", "_offset", "_timestamp", *selected]
    request = {"metadata": metadata, "snapshot": snapshot, "columns": wanted, **request}
    moments = [each for each in moments if {*selected, *condition.names} <= {*_OWN, *each.names}]
    if len(moments) < len(publication.moments):
        return  # The columns are those of a moment that was not published, perhaps.
    rows = worker.ask({"where": None, "after": None, "s3": None, **request})
    found = canonical({**row, "_partition": row["_partition_id"]} for row in rows)
    places = {(row["_partition"], row["_offset"]) for row in found}
    names = ["_partition", "_offset", "_timestamp", *selected]
    answers = []
    for each in moments:
        chosen = [
            one
            for one in each.rows[COMMITTED]
            if condition.chooses(raw_row(each, one), _lacking(each, one[2]), one[:2] in places)
        ]
        expected = [_without_lost_nulls(name, each, row_of(each, one, names)) for one in chosen]
        answers.append(
            (expected, [_without_lost_nulls(name, each, {of: row.get(of) for of in names}) for row in found])
        )
    if publication.mixed and between([expected for expected, _ in answers], answers[-1][1]):
        answers.append((answers[-1][1], answers[-1][1]))
    equal = next((pair for pair in answers if pair[0] == pair[1]), answers[-1])
    at = f"{metadata.rpartition('/')[2]}{'' if snapshot is None else f' at {snapshot}'}"
    compare(history, name, f"{topic}, {at}, {selected}, {condition}", [equal[0]], equal[1])


_OWN = ("_partition_id", "_offset", "_timestamp")


def _place(history: History, rng: random.Random, publication: Publication, shown: Shown) -> tuple[str, int | None]:
    """The location of metadata, and a snapshot in it: those of the publication, or the newest with that snapshot."""
    root, objects = f"{history.objects.url}/", history.objects

    def table(number: int) -> tuple[str, PlainTable]:
        location = f"{root}{keys.table_version(shown.name, number)}"
        return location, PlainTable(location, lambda path: bytes(objects.get(path.removeprefix(root))))

    location, own = table(publication.versions[shown.name])
    newest, last = table(int(objects.get(keys.table_hint(shown.name))))
    if rng.random() < 0.5 or own.current not in last.snapshots:
        return location, None
    columns = {field["name"] for field in own.schema(own.current)["fields"]}
    if not columns.issuperset(shown.names):  # A version with new columns has no snapshot of its own without new rows.
        return location, None
    return newest, own.current


# Rows -----------------------------------------------------------------------------------------------------------------


def raw_row(shown: Shown, placed: Placed) -> dict[str, Any]:
    """The values that a condition is evaluated with."""
    partition, offset, rec = placed
    moment = None if rec.timestamp is None else _EPOCH + timedelta(milliseconds=rec.timestamp)
    own = {"_partition_id": partition, "_offset": offset, "_timestamp": moment}
    return {**own, **{name: raw(rec, name) for name in shown.names}}


def _lacking(shown: Shown, rec: Rec) -> set[str]:
    """The columns without which a record was sent."""
    return {*shown.names} - {*rec.values}


def _without_lost_nulls(engine: str, shown: Shown, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as its engine can show it: pyiceberg makes an empty list of a null of lists or maps of structs."""
    kinds = {field.name: field.type for field in stored_schema(shown.schema)}
    return {
        name: [] if value is None and engine == "pyiceberg" and name in kinds and _holds_structs(kinds[name]) else value
        for name, value in row.items()
    }


def _holds_structs(data_type: pa.DataType) -> bool:
    if pt.is_map(data_type):
        return bool(pt.is_struct(data_type.item_type))
    return bool(pt.is_list(data_type) and pt.is_struct(data_type.value_type))


# Conditions -----------------------------------------------------------------------------------------------------------


def _columns(shown: Shown) -> pa.Schema:
    own = [pa.int32(), pa.int64(), pa.timestamp("us", "UTC")]
    return pa.schema([*map(pa.field, _OWN, own), *stored_schema(shown.schema)])


def _for_pyiceberg(rng: random.Random, shown: Shown) -> tuple[conditions.Condition, dict[str, Any]]:
    condition = conditions.draw(rng, _columns(shown), [raw_row(shown, each) for each in shown.rows[COMMITTED]])
    return condition, {"filter": base64.b64encode(pickle.dumps(condition.tree)).decode()}


def _for_duckdb(rng: random.Random, shown: Shown) -> tuple[_Sql, dict[str, Any]]:
    """A condition in SQL; DuckDB 1.5 misses nulls where ``is distinct from`` is a part of a disjunction."""
    rows = [raw_row(shown, each) for each in shown.rows[COMMITTED]]
    while True:
        drawn = filters.draw(rng, _columns(shown), rows)
        if "distinct" not in drawn.sql or not (" or " in drawn.sql or "not (" in drawn.sql):
            break
    return _Sql(drawn), {"sql": drawn.sql}


class _Sql:
    """A condition in SQL, which is true, false or unknown of each row."""

    def __init__(self, drawn: filters.Filter) -> None:
        self._drawn, self.names = drawn, drawn.names

    def chooses(self, row: Mapping[str, Any], lacking: Collection[str], found: bool) -> bool:
        return self._drawn.holds(row) is True

    def __str__(self) -> str:
        return self._drawn.sql
