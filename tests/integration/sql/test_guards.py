"""What SQL refuses: damaged files, topics that it cannot show, other files, and statements without effect."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.cli import Cli
from tests.helpers.connections import connection_of
from tests.helpers.interrupts import Interrupter, everywhere, places
from tests.helpers.sqlstore import fill
from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.errors import CorruptionError, InvalidConfigError, UnsupportedFormatError
from txnstore.producer.upload import upload
from txnstore.segment.schema import schema_to_text
from txnstore.sql import emit_views, read_table
from txnstore.sql.local import is_intact
from txnstore.sql.session import errors_of
from txnstore.store import Store, create
from txnstore.store import open as open_store

COUNT = "SELECT count(*), max(value) FROM orders"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with create(tmp_path / "store") as made:
        for name in ("orders", "payments"):
            made.create_topic(name)
            fill(made, name, transactions=2)
        yield made


def segments(store: Store, topic: str = "orders") -> list[Path]:
    folder = Path(store.url.removeprefix("file://").replace("%25", "%"))
    return [folder / part.batch.segment.key for part in store.scan(topic).plan()]


# Checksums ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("position", [0, 4, 40, 200, -9])
def test_flipped_bit_in_a_local_segment_is_an_error_that_names_it(store: Store, position: int) -> None:
    damaged = segments(store)[1]
    data = bytearray(damaged.read_bytes())
    data[position] ^= 0x10
    damaged.write_bytes(data)
    connection = connection_of(store)
    with pytest.raises(CorruptionError, match=f"{damaged.name} of orders-0 was altered"):
        store.sql(COUNT)
    with pytest.raises(CorruptionError, match=damaged.name):
        store.sql(COUNT, sandbox=True)
    with pytest.raises(CorruptionError, match=damaged.name):
        read_table(connection, COUNT)
    with store.duckdb() as database:
        assert database.sql("SELECT count(*) FROM payments").fetchall() == [(16,)]
        with pytest.raises(duckdb.Error, match=damaged.name):
            database.sql(COUNT)
    assert store.sql("SELECT count(*) FROM payments").fetchall() == [(16,)]


@pytest.mark.usefixtures("own_objects")
def test_checksums_are_compared_once_per_file_and_state_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    digest = hashlib.file_digest

    def counting(file: Any, name: str) -> Any:
        hashed.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    files = segments(store)
    assert store.sql(COUNT, checksums=False).fetchall()[0][0] == 16
    assert hashed == []
    for _ in range(3):
        assert store.sql(COUNT).fetchall()[0][0] == 16
        with store.duckdb() as database:
            assert database.sql(COUNT).fetchall()[0][0] == 16
    assert sorted(hashed) == sorted(file.name for file in files)
    hashed.clear()
    files[0].write_bytes(files[0].read_bytes())
    assert store.sql(COUNT).fetchall()[0][0] == 16
    assert hashed == [files[0].name]
    fill(store, "orders", transactions=1, first=2)
    assert store.sql(COUNT).fetchall()[0][0] == 24
    assert len(hashed) == 2


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("name", ["100%25 of it", "a*b[1]{x}?", 'it\'s; "quoted"'])
def test_any_folder_name_is_read_in_place_and_emitted(tmp_path: Path, name: str) -> None:
    with create(tmp_path / name) as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=1)
        assert store.sql(COUNT).fetchall()[0][0] == 8
        with duckdb.connect() as other:
            other.execute(emit_views(connection_of(store)))
            assert other.sql(COUNT).fetchall()[0][0] == 8


@pytest.mark.usefixtures("own_objects")
def test_damaged_copy_of_a_file_with_its_times_is_found(store: Store) -> None:
    """Such as one that ``cp -p`` has restored from a damaged backup, after the file was read."""
    assert store.sql(COUNT).fetchall()[0][0] == 16
    damaged = segments(store)[0]
    data, times = bytearray(damaged.read_bytes()), damaged.stat()
    data[10] ^= 1
    damaged.write_bytes(data)
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CorruptionError, match=damaged.name):
        read_table(connection_of(store), COUNT)


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize(
    "error",
    [
        duckdb.Error("don't know what type: \x0e"),
        duckdb.InvalidInputException("The width (211) of the bitpacked data exceeds the supported max width (65)"),
        duckdb.InvalidInputException("Parquet file has invalid block sizes for DELTA_BINARY_PACKED"),
        duckdb.NotImplementedException("Unimplemented TIMESTAMP encoding - missing UNIT"),
    ],
    ids=["thrift", "width", "block", "encoding"],
)
def test_a_damaged_file_is_found_of_which_duckdb_says_no_name(store: Store, error: duckdb.Error) -> None:
    """What altered bytes make it raise, if no checksum is compared."""
    damaged = segments(store)[1]
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" * 9)
    with (
        store.duckdb(checksums=False) as database,
        pytest.raises(CorruptionError, match=damaged.name),
        errors_of(database),
    ):
        raise error


@pytest.mark.usefixtures("own_objects")
def test_what_duckdb_reads_through_txnstore_is_always_compared(store: Store) -> None:
    """As on other storage: in a sandbox, and of a read-only store."""
    damaged = segments(store)[0]
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    assert store.sql(COUNT, checksums=False).fetchall()[0][0] == 16
    with open_store(store.url, read_only=True) as reader:
        for opened, sandbox in ((store, True), (reader, False)):
            with pytest.raises(CorruptionError, match=damaged.name):
                read_table(connection_of(opened), COUNT, sandbox=sandbox, checksums=False)


@pytest.mark.usefixtures("own_objects")
def test_interrupt_of_a_check_is_an_interrupt(store: Store) -> None:
    """DuckDB reports an interrupt in a file system as an error of its own."""

    def attempt(interrupter: Interrupter) -> bool:
        for path in segments(store):
            path.write_bytes(path.read_bytes())
        return interrupter.run(lambda: store.sql(COUNT))

    assert len(list(everywhere(places(is_intact), attempt))) > 3
    assert store.sql(COUNT).fetchall()[0][0] == 16


# Files of running queries ---------------------------------------------------------------------------------------------


def test_result_half_read_is_finished_after_compactions_and_refreshes(memory_store_url: str) -> None:
    with create(memory_store_url) as store:
        store.create_topic("orders")
        fill(store, "orders", transactions=30)
        with store.duckdb() as database:
            database.execute("SET threads = 1")
            result = database.cursor().execute("SELECT value FROM orders")
            inspected = database.cursor().execute("SELECT * FROM txn.segments")
            first = result.fetchone()
            for _ in range(3):
                store.compact()
                fill(store, "orders", transactions=1)
                store.refresh(database)
            assert first is not None
            assert len(result.fetchall()) == 239
            assert len(inspected.fetchall()) == 30


# Topics that cannot be shown ------------------------------------------------------------------------------------------


def deep(levels: int) -> pa.DataType:
    data_type: pa.DataType = pa.int64()
    for _ in range(levels):
        data_type = pa.list_(data_type)
    return data_type


def old_topic(store: Store, name: str, schema: str) -> None:
    """A topic as an earlier version, with fewer checks, created it."""
    connection = connection_of(store)
    connection.submit(CreateTopic(CatalogTopic(name, connection.runtime.new_id(), 1, schema=schema)))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (schema_to_text(pa.schema([("x", deep(24))])), "16 levels deep"),
        (schema_to_text(pa.schema([("x", deep(200))])), "cannot read the schema"),
        (schema_to_text(pa.schema([("x", pa.decimal128(5, -2))])), "no type"),
        (schema_to_text(pa.schema([("x", pa.list_(pa.decimal128(2, 4)))])), "no type"),
    ],
)
def test_topic_that_cannot_be_shown_raises_why_and_hides_no_other(store: Store, schema: str, reason: str) -> None:
    old_topic(store, "odd", schema)
    assert store.sql(COUNT).fetchall()[0][0] == 16
    kind = CorruptionError if reason.startswith("cannot read") else UnsupportedFormatError
    for query in ("SELECT count(*) FROM odd", "SELECT x FROM odd", "SELECT 1 FROM odd WHERE false"):
        with pytest.raises(kind, match=f"topic 'odd' cannot be shown in SQL: .*{reason}"):
            store.sql(query)
    with store.duckdb() as database:
        assert database.sql(COUNT).fetchall()[0][0] == 16
        with pytest.raises(duckdb.Error, match=reason):
            database.sql("SELECT x FROM odd")
        store.refresh(database)
        assert database.sql("SELECT count(*) FROM txn.topics").fetchall() == [(3,)]
        with pytest.raises(duckdb.Error, match=reason):
            database.sql("FROM odd")
    assert '-- "odd" is left out' in emit_views(connection_of(store))


#: Names that DuckDB's reader uses itself, and those that its views once gave to such columns.
INNER = ["filename", "filename of the topic", "File_Index", "file_index of the topic", "FILE_ROW_NUMBER", "rowid",
         "a'b", 'a"b', "--", "x\ny"]  # fmt: skip


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("inlined", [0, 65536])
def test_a_column_may_have_any_name(store: Store, inlined: int) -> None:
    store.create_topic(
        "odd", schema=pa.schema([(name, pa.int64()) for name in INNER]), config={"inline.bytes": inlined}
    )
    rows = [{name: 100 * row + number for number, name in enumerate(INNER)} for row in range(3)]
    for row in rows:
        with store.producer() as producer:
            producer.send("odd", row)
    for _ in ("fresh", "compacted"):
        for sandbox in (False, True):
            table = store.sql('SELECT * FROM odd WHERE "filename" >= 0 ORDER BY _offset', sandbox=sandbox)
            assert table.to_arrow_table().select(INNER).to_pylist() == rows
        assert [name for (name,) in store.sql("SHOW TABLES").fetchall()] == ["odd", "orders", "payments"]
        store.compact("odd", force=True)


def test_views_that_duckdb_refuses_raise_why_and_hide_no_other(store: Store) -> None:
    """Schemas that no release should have accepted: DuckDB, and not txnstore, finds out."""
    odd = {
        "twice": (pa.field("x", pa.struct([("a", pa.int64()), ("A", pa.int64())])), "Duplicate type parameter"),
        "unnamed": (pa.field("", pa.int64()), "zero-length"),
    }
    with store.duckdb() as database:
        for name, (field, _) in odd.items():
            old_topic(store, name, schema_to_text(pa.schema([field])))
        store.refresh(database)
        assert database.sql(COUNT).fetchall()[0][0] == 16
        assert len(database.sql("SHOW TABLES").fetchall()) == 4
        for name, (_, reason) in odd.items():
            with pytest.raises(UnsupportedFormatError, match=f"topic '{name}' cannot be shown in SQL: .*{reason}"):
                store.sql(f"FROM {name}")
            with pytest.raises(duckdb.Error, match=f"topic '{name}' cannot be shown in SQL: .*{reason}"):
                database.sql(f"FROM {name}")
        store.refresh(database)
        assert database.sql(COUNT).fetchall()[0][0] == 16
    assert store.sql(COUNT, sandbox=True).fetchall()[0][0] == 16


def test_a_topic_with_the_name_of_a_view_of_duckdb_hides_nothing(store: Store) -> None:
    store.create_topic("duckdb_tables")
    fill(store, "duckdb_tables", transactions=1)
    names = [name for (name,) in store.sql("SHOW TABLES").fetchall()]
    assert names == ["duckdb_tables#2", "orders", "payments"]
    assert store.sql('SELECT count(*) FROM "duckdb_tables#2"').fetchall() == [(8,)]


def test_a_map_with_equal_keys_of_an_earlier_release_fails_for_its_column_alone(store: Store) -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("n", pa.int64())])
    store.create_topic("maps", schema=schema)
    connection, tp = connection_of(store), TopicPartition("maps", 0)
    writer = topic_writer(connection.view().find_topic("maps"))
    rows = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], schema.field("m").type), "n": [1]}).cast(writer.stored)
    connection.submit(Append(ProducerIdentity(), (upload(connection.objects, connection.runtime, writer, tp, rows),)))
    assert store.sql(f"SELECT n FROM maps, ({COUNT})").fetchall() == [(1,)]
    with pytest.raises(duckdb.Error, match="Map keys must be unique"):
        store.sql("SELECT m FROM maps").fetchall()
    with pytest.raises(duckdb.Error, match="Map keys must be unique") as caught:
        read_table(connection, "SELECT map_from_entries(map_entries(m)) FROM maps")
    assert "column 'm' of topic 'maps'" in caught.value.__notes__[-1]
    assert read_table(connection, "SELECT m FROM maps")["m"].to_pylist() == [[("a", 1), ("a", 2)]]
    assert store.scan("maps", columns=["m"]).to_table()["m"].to_pylist() == [[("a", 1), ("a", 2)]]


# The sandbox ----------------------------------------------------------------------------------------------------------


def escapes(folder: Path) -> list[str]:
    """Statements that reach something besides the store."""
    return [
        f"COPY (SELECT 1) TO '{folder}/store.json'",
        f"COPY (SELECT 1) TO '{folder}/new.parquet'",
        f"ATTACH '{folder}/x.db'; SELECT 1",
        f"EXPORT DATABASE '{folder}/export'",
        "COPY (SELECT 1) TO 'txnseg://state/x.parquet'",
        "SELECT * FROM read_text('/etc/hostname')",
        f"SELECT * FROM glob('{folder}/*')",
        f"SELECT * FROM '{folder}/store.json'",
        "SET enable_external_access = true; SELECT 1",
        f"SET temp_directory = '{folder}'; SELECT 1",
        f"SET log_query_path = '{folder}/log'; SELECT 1",
        f"CALL enable_logging(storage = 'file', storage_path = '{folder}/logs'); SELECT 1; SELECT 2",
        f"SELECT * FROM enable_logging(storage = 'file', storage_path = '{folder}/logs')",
        "LOAD httpfs; SELECT 1",
        "SELECT * FROM outside",
    ]


@pytest.mark.parametrize("number", range(15))
@pytest.mark.parametrize("how", ["sandbox", "read_only"])
def test_sandbox_and_read_only_store_reach_nothing_else(store: Store, tmp_path: Path, how: str, number: int) -> None:
    outside = pa.table({"x": [1]})
    assert outside.num_rows == 1
    folder = tmp_path / "store"
    statement = escapes(folder)[number]
    before = sorted(path for path in folder.rglob("*") if "chains" not in path.parts)
    content = (folder / "store.json").read_bytes()
    with open_store(folder, read_only=how == "read_only") as opened:
        sandbox = how == "sandbox"
        with pytest.raises((duckdb.Error, PermissionError)):
            opened.sql(statement, sandbox=sandbox)
        with opened.duckdb(sandbox=sandbox) as database, pytest.raises(duckdb.Error):
            database.sql(statement).fetchall()
        assert opened.sql(COUNT, sandbox=sandbox).fetchall()[0][0] == 16
    assert (folder / "store.json").read_bytes() == content
    assert sorted(path for path in folder.rglob("*") if "chains" not in path.parts) == before


@pytest.mark.parametrize("how", ["sandbox", "read_only"])
def test_sandbox_and_read_only_store_have_no_temporary_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """DuckDB allows all access below it, and by default it is a folder in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".tmp"
    folder.mkdir()
    (folder / "private.csv").write_text("a\n1\n")
    with open_store(store.url, read_only=how == "read_only") as opened:
        for statement in (
            "SELECT * FROM '.tmp/private.csv'",
            f"SELECT * FROM glob('{folder}/*')",
            "COPY (SELECT 1) TO '.tmp/x.parquet'",
            f"ATTACH '{folder}/x.db' AS x; SELECT 1",
        ):
            with pytest.raises(duckdb.PermissionException):
                opened.sql(statement, sandbox=how == "sandbox")
    assert [path.name for path in folder.iterdir()] == ["private.csv"]


def test_sandbox_and_read_only_store_lock_settings(store: Store) -> None:
    with pytest.raises(duckdb.Error, match="locked"):
        store.sql("SET threads = 1; SELECT 1", sandbox=True)
    with store.duckdb(sandbox=True) as database:
        fill(store, "orders", transactions=1, first=2)
        store.refresh(database)
        assert database.sql(COUNT).fetchall()[0][0] == 24
        with pytest.raises(duckdb.Error, match="locked"):
            database.execute("SET lock_configuration = false")
    with open_store(store.url, read_only=True) as opened:
        with pytest.raises(duckdb.Error, match="locked"):
            opened.sql(f"SET threads = 1; {COUNT}")
        assert opened.sql(COUNT).fetchall()[0][0] == 24
    with pytest.raises(InvalidConfigError, match="sandbox must be True or False"):
        store.sql(COUNT, sandbox=1)  # type: ignore[arg-type]


# Statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "create table mine as from orders", "create view v as from orders", "create macro m() as 1",
        "insert into orders values (1)", "delete from orders", "update orders set value = 'x'", "drop view orders",
        "set threads = 1", "set variable x = 1", "attach ':memory:' as x", "begin", "select 1; create schema s",
    ],
)  # fmt: skip
def test_statement_without_lasting_effect_is_refused(store: Store, statement: str) -> None:
    with pytest.raises(InvalidConfigError, match="only the database of this call"):
        store.sql(statement)
    with pytest.raises(InvalidConfigError):
        read_table(connection_of(store), statement)


@pytest.mark.parametrize("how", ["sql", "read_table"])
def test_records_can_be_written_to_an_attached_database(store: Store, tmp_path: Path, how: str) -> None:
    """That database lasts, so its statements have an effect, whichever is the last one."""
    path = tmp_path / "out.duckdb"
    for statements in ("CREATE TABLE o.mine AS FROM orders", "INSERT INTO o.mine FROM orders; DETACH o"):
        query = f"ATTACH '{path}' AS o; {statements}"
        store.sql(query) if how == "sql" else read_table(connection_of(store), query)
    with duckdb.connect(str(path), read_only=True) as database:
        assert database.sql("SELECT count(*) FROM mine").fetchall() == [(32,)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [("", "empty"), (" \n", "empty"), (None, "not None"), (5, "not 5"), (b"SELECT 1", "not b'"),
     ("-- x", "no statement"), (";", "no statement"),
     ("install httpfs", "INSTALL is refused"), ("/* x */ force install httpfs", "INSTALL is")],
)  # fmt: skip
def test_query_without_a_statement_is_refused(store: Store, query: Any, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        store.sql(query)
    with pytest.raises(InvalidConfigError, match=reason):
        store.sql(query, sandbox=True)


def test_parameters_are_values(store: Store) -> None:
    assert store.sql("SELECT count(*) FROM orders WHERE _offset < ?", params=[3]).fetchall() == [(3,)]
    assert store.sql("SELECT $a || $b AS x", params={"a": "x'", "b": ";"}).fetchall() == [("x';",)]
    assert store.sql("CREATE TABLE t AS FROM orders; SELECT count(*) FROM t").fetchall() == [(16,)]
    table = read_table(connection_of(store), "SELECT max(_offset) AS o FROM orders WHERE _offset < ?", params=[3])
    assert table.to_pylist() == [{"o": 2}]


@pytest.mark.usefixtures("own_objects")
def test_sandbox_and_checksums_on_the_command_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store.url.removeprefix("file://")
    cli, count = Cli(folder, monkeypatch), "SELECT count(*) AS n FROM orders"
    assert cli.ok("sql", "--json", "--sandbox", count).lines == [{"n": 16}]
    refused = cli("sql", "--sandbox", f"COPY (SELECT 1) TO '{folder}/store.json'")
    assert refused.status != 0
    assert "disabled by configuration" in refused.err
    assert "only the database of this call" in cli("sql", "create table x (y int)").err
    damaged = segments(store)[0]
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    assert damaged.name in cli("sql", COUNT).err
    assert cli.ok("sql", "--json", "--no-checksums", count).lines == [{"n": 16}]
