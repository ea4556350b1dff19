"""Lets Spark write to tables, through a Hadoop catalog and with all rights: ``python -m tests.readers.foreign``.

No statement may change anything of the store outside of its tables. Each is refused, or reported and mended by the
command that the report names. Exit status 1 if that is not so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import txnstore
from tests.helpers.connections import connection_of
from tests.readers.compare import canonical, difference, expected_rows
from tests.readers.engines import ENGINES, EngineError, Worker, running
from tests.readers.history import location_of, newest_version, version_of
from tests.readers.plain import PlainTable
from txnstore.chain import keys
from txnstore.storage.base import read_if_there

_TOPIC = "orders"


@dataclass(frozen=True)
class Statement:
    """A statement that writes.

    Attributes:
        text: The statement, in which ``{catalog}`` is the catalog.
        refused: What the refusal says; empty: it is executed.
    """

    text: str
    refused: str = ""


_TABLE = f"{{catalog}}.tables.{_TOPIC}"
_CALL = "CALL {catalog}.system."
STATEMENTS = (
    Statement(f"INSERT INTO {_TABLE} SELECT * FROM {_TABLE} WHERE _offset < 3"),
    Statement(f"DELETE FROM {_TABLE} WHERE _offset = 1"),
    Statement(f"UPDATE {_TABLE} SET id = -1 WHERE _offset = 2"),
    Statement(f"DELETE FROM {_TABLE}"),
    Statement(f"TRUNCATE TABLE {_TABLE}"),
    Statement(f"ALTER TABLE {_TABLE} ADD COLUMN more INT"),
    Statement(f"ALTER TABLE {_TABLE} DROP COLUMN id"),
    Statement(f"ALTER TABLE {_TABLE} DROP PARTITION FIELD _partition_id"),
    Statement(f"{_CALL}rewrite_data_files(table => 'tables.{_TOPIC}', options => map('rewrite-all', 'true'))"),
    Statement(f"{_CALL}rewrite_manifests('tables.{_TOPIC}')"),
    Statement(
        f"{_CALL}expire_snapshots(table => 'tables.{_TOPIC}', older_than => TIMESTAMP '2100-01-01 00:00:00')",
        "Cannot expire snapshots: GC is disabled",
    ),
    Statement(f"{_CALL}remove_orphan_files(table => 'tables.{_TOPIC}')", "Cannot delete orphan files: GC is disabled"),
    Statement(f"DROP TABLE {_TABLE} PURGE", "Cannot purge table: GC is disabled"),
    Statement(f"DROP TABLE {_TABLE}"),
)


class Foreign:
    """A store whose table an engine writes to.

    Args:
        place: A folder that does not exist.
        spark: Executes statements.
    """

    def __init__(self, place: Path, spark: Worker) -> None:
        self._spark = spark
        self.store = txnstore.create(place)
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        self.store.create_topic(_TOPIC, 2, schema, config={"table.format": "iceberg"})
        for compacts in (True, True, False):
            self.commit()
            if compacts:
                self.store.compact(_TOPIC, force=True)
            self.store.tables.sync()

    def commit(self) -> None:
        """Commit some rows to each partition."""
        with self.store.producer("writer") as producer, producer.transaction():
            for partition in range(2):
                rows = [{"id": number, "name": f"name {number}"} for number in range(10)]
                producer.send_table(_TOPIC, pa.Table.from_pylist(rows), partition)

    def check(self, statement: Statement) -> Iterator[str]:
        """Execute a statement; returns what is wrong."""
        before, tables = self._objects(), self._tables()
        refusal = ""
        try:
            self._spark.execute(self.store.url, statement.text)
        except EngineError as error:
            refusal = str(error)
        if not refusal and statement.refused:
            yield "it was not refused"
        if statement.refused not in refusal or (refusal and not statement.refused):
            yield f"it was refused, but: {refusal}"
        if self._objects() != before:
            yield "it has changed the store outside of its tables"
        if statement.refused:
            if self._tables() != tables:
                yield "it was refused, and has changed the table"
            return
        found = self.store.tables.check().problems
        if not found:
            yield "nothing reports it"
        with txnstore.open(self.store.url) as other:  # As the command does it.
            report = other.tables.sync()
            if rebuilt := [each for each in other.tables.check(deep=True).problems if "--rebuild" in each.message]:
                report = other.tables.sync(rebuild=[_TOPIC])
            yield from (f"after {report}: {each}" for each in other.tables.check(deep=True).problems)
        yield from self._difference("mended" if not rebuilt else "rebuilt")
        self.commit()
        self.store.tables.sync()
        yield from self._difference("after another commit")

    def _difference(self, when: str) -> Iterator[str]:
        """What the plain reader and Spark read other than a scan, at the newest cut."""
        objects, root = connection_of(self.store).objects, location_of(self.store, "")
        number = newest_version(self.store, _TOPIC)
        # As a Hadoop catalog finds it.
        while read_if_there(objects, keys.table_version(_TOPIC, number + 1)) is not None:
            number += 1
        metadata = version_of(self.store, _TOPIC, number)
        table = PlainTable(metadata, lambda location: objects.get(location.removeprefix(root)))
        expected = canonical(table.schema(None), expected_rows(self.store, _TOPIC, self.store.snapshot()))
        for name, rows in (
            ("the plain reader", table.rows()),
            ("Spark", self._spark.execute(self.store.url, f"SELECT * FROM {_TABLE}")),
        ):
            if (problem := difference(expected, canonical(table.schema(None), rows))) is not None:
                yield f"{when}, {name}: {problem}"

    def _objects(self) -> dict[str, bytes]:
        """All objects outside of the tables."""
        return {key: data for key, data in self._all() if not key.startswith(keys.TABLES)}

    def _tables(self) -> dict[str, bytes]:
        """All objects of the tables."""
        return {key: data for key, data in self._all() if key.startswith(keys.TABLES)}

    def _all(self) -> Iterator[tuple[str, bytes]]:
        objects = connection_of(self.store).objects
        return ((each.key, objects.get(each.key)) for each in objects.list(""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute all statements; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers.foreign")
    parser.add_argument("environments", type=Path, metavar="ENVIRONMENTS", help="a folder with that of Spark")
    parser.add_argument("runtime", type=Path, metavar="JAR", help="Iceberg's runtime for Spark")
    options = parser.parse_args(arguments)
    failed = False
    with (
        tempfile.TemporaryDirectory(prefix="readers-") as folder,
        running(ENGINES["spark"], options.environments, Path(folder), [str(options.runtime)], "write") as spark,
    ):
        foreign = Foreign(Path(folder) / "store", spark)
        with foreign.store:
            for statement in STATEMENTS:
                problems = list(foreign.check(statement))
                failed = failed or bool(problems)
                outcome = "wrong" if problems else "refused" if statement.refused else "mended"
                sys.stdout.writelines(f"{line}\n" for line in (f"{outcome}: {statement.text}", *map(repr, problems)))
                sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
