"""The examples, each run as its docstring says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnstore
from tests.helpers.gateway import serving
from tests.helpers.spark_home import environment, link_spark_home

ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
_ENVIRONMENT = {**os.environ, "PYTHONPATH": _PATH}


def ran(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """An example, run as a process."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    return subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, check=False)


def run(name: str, *arguments: str | Path) -> str:
    """What an example prints. Spark logs to standard error, others print nothing there."""
    done = ran(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or name.startswith("spark_")
    return done.stdout


#: What examples print that run without arguments.
ALONE = {
    "quickstart.py": ["aborted: there are no pears", "read_committed: [{'_partition':", "read_uncommitted: ["],
    "sql.py": ["before the refresh: 30 orders", "after the refresh: 31 orders"],
    "tables.py": [
        "cut 1: 100 orders, 70 changes",
        "cut 2: 200 orders, 140 changes",
        "cut 3, after a compaction: 0 copies left",
        "pyiceberg: ",
    ],
    "consume_transform_produce.py": ["first run: 1000 readings", "second run: 0 readings", "99 alarms"],
}
ON_SPARK = {
    "spark_batch.py": ["records: 100000", "sum of amounts: 2450000"],
    "spark_streaming.py": ["│         1200 │", "│ 294000 │"],
    "spark_stateful.py": [
        "run 1: 0 late; silent, with readings and last minute: []",
        "run 2: 0 late; silent, with readings and last minute: [('b', 2, 3)]",
        "run 3: 1 late; silent, with readings and last minute: [('a', 3, 5), ('b', 2, 3), ('c', 2, 11)]",
    ],
}
#: The examples that a harness runs, since they need a broker of Kafka.
WITH_A_BROKER = {"spark_migrate_kafka.py": "python -m tests.harness migration"}
NO_FOLDER = "it is a file, not a folder. Choose another folder."
PYTHON = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_every_example_is_on_the_page_and_runs_in_a_test(request: pytest.FixtureRequest) -> None:
    """Each has its output in a table of this module, or the test of its name."""
    page = (ROOT / "docs" / "howto" / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_file())
    assert [name for name in files if f"(../../examples/{name})" not in page] == []
    own = {
        "migrate_parquet.py": test_a_parquet_folder_is_migrated_once,
        "migrate_kafka.py": test_files_of_a_kafka_connector_are_migrated_once,
        "gateway_transactions.py": test_kafkas_client_processes_each_record_once_through_a_gateway,
        "gateway_typed.py": test_typed_rows_come_from_kafkas_client,
        "analysis.ipynb": test_the_notebook_runs,
    }
    assert sorted([*ALONE, *ON_SPARK, *WITH_A_BROKER, *own]) == files
    assert all(command in page for command in WITH_A_BROKER.values())


@pytest.mark.parametrize("name", ALONE)
def test_an_example_runs_with_and_without_a_url(name: str, tmp_path: Path) -> None:
    for arguments in ([], [tmp_path / "store"]):
        output = run(name, *arguments)
        assert [text for text in ALONE[name] if text not in output] == [], output


@pytest.mark.spark
@pytest.mark.parametrize("name", ON_SPARK)
def test_an_example_of_spark_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment(link_spark_home(tmp_path)).items():
        monkeypatch.setitem(_ENVIRONMENT, variable, value)
    output = run(name)
    assert [text for text in ON_SPARK[name] if text not in output] == [], output


@pytest.mark.parametrize("name", PYTHON)
def test_an_example_says_how_to_run_it(name: str) -> None:
    done = ran(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name} [-h]")


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        *(
            (name, ["FILE"], "it is a file, not a folder. Choose another folder.")
            for name in [*ALONE, "gateway_typed.py"]
        ),
        ("migrate_parquet.py", ["FOLDER", "FILE", "t"], "it is a file, not a folder. Choose another folder."),
        ("migrate_parquet.py", ["FOLDER", "STORE", "t"], "there are no Parquet files in FOLDER"),
        ("migrate_kafka.py", ["FOLDER", "STORE", "t"], "there are no files of a connector in FOLDER/t"),
        *((name, ["1", "2", "3", "4"], "error: unrecognized arguments: ") for name in PYTHON),
    ],
)
def test_an_example_with_wrong_arguments_ends_with_a_sentence(
    name: str, arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    places = {"FILE": tmp_path / "file", "FOLDER": tmp_path / "folder", "STORE": tmp_path / "store"}
    places["FILE"].write_text("no store")
    places["FOLDER"].mkdir()
    done = ran(name, *[places.get(argument, argument) for argument in arguments])
    assert done.returncode != 0
    assert sentence.replace("FOLDER", str(places["FOLDER"])) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_kafkas_client_processes_each_record_once_through_a_gateway(tmp_path: Path) -> None:
    """Through the gateway that the example starts, and through one that runs."""
    expected = "first run: 1000 readings\nsecond run: 0 readings\n"
    assert run("gateway_transactions.py") == f"{expected}alarms: 99\n"
    with txnstore.create(tmp_path / "store") as store:
        with serving(store) as gateway:
            assert run("gateway_transactions.py", gateway.bootstrap) == expected
        assert store.sql("select count(*) from alarms").fetchall() == [(99,)]


def test_typed_rows_come_from_kafkas_client(tmp_path: Path) -> None:
    for arguments in ([], [tmp_path / "store"]):
        assert run("gateway_typed.py", *arguments).splitlines() == [
            "refused: [Error 87] InvalidRecordError: record 0: column 'celsius': 'warm' is not double",
            "first row: {'sensor': 's0', 'celsius': 0.5}",
            "[('s0', 100, 30.5), ('s1', 100, 31.5)]",
        ]


def rows(path: Path, first: int, count: int) -> None:
    """A Parquet file with these ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = list(range(first, first + count))
    pq.write_table(pa.table({"id": ids, "name": [f"n{number}" for number in ids]}), path, row_group_size=10)


def test_a_parquet_folder_is_migrated_once(tmp_path: Path) -> None:
    """Each file is one transaction: repeated runs add nothing, and later files come with the next run."""
    folder, url = tmp_path / "in", str(tmp_path / "store")
    rows(folder / "a.parquet", 0, 25)
    rows(folder / "day=2" / "b.parquet", 25, 5)
    assert run("migrate_parquet.py", folder, url, "people", "--key", "id") == "30 rows migrated\n"
    assert run("migrate_parquet.py", folder, url, "people", "--key", "id") == "0 rows migrated\n"
    rows(folder / "c.parquet", 30, 10)
    assert run("migrate_parquet.py", folder, url, "people", "--key", "id") == "10 rows migrated\n"
    with txnstore.open(url) as store:
        totals = store.sql("select count(*), count(distinct id), sum(id), min(name) from people").fetchall()
        files = store.sql("select file, rows from migrated_files order by file").fetchall()
    assert totals == [(40, 40, sum(range(40)), "n0")]
    assert files == [("a.parquet", 25), ("c.parquet", 10), ("day=2/b.parquet", 5)]


def test_a_file_that_cannot_be_read_is_not_in_the_topic(tmp_path: Path) -> None:
    """The run fails, and nothing of the file is visible; when it is whole, the next run migrates it."""
    folder, url = tmp_path / "in", str(tmp_path / "store")
    rows(folder / "a.parquet", 0, 10)
    rows(folder / "b.parquet", 10, 10_000)
    whole = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(whole[:100] + b"\0" * 400 + whole[500:])
    with pytest.raises(AssertionError):
        run("migrate_parquet.py", folder, url, "people")
    with txnstore.open(url) as store:
        assert store.sql("select count(*) from people").fetchall() == [(10,)]
    (folder / "b.parquet").write_bytes(whole)
    assert run("migrate_parquet.py", folder, url, "people") == "10000 rows migrated\n"


def records(partition: int, first: int, count: int) -> list[dict[str, Any]]:
    """Records of a Kafka topic as a connector writes them."""
    return [
        {
            "key": f"k{partition}",
            "value": f"{partition}/{offset}",
            "headers": [{"key": "h", "value": "x"}] if offset % 2 else None,
            "timestamp": 1_700_000_000_000 + offset,
        }
        for offset in range(first, first + count)
    ]


def write_parquet(path: Path, contents: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("value", pa.string()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
            ("timestamp", pa.timestamp("ms", "UTC")),
        ]
    )
    pq.write_table(pa.Table.from_pylist(contents, schema), path)


def write_json(path: Path, contents: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in contents))


@pytest.mark.parametrize(("ending", "write"), [("parquet", write_parquet), ("json", write_json)])
def test_files_of_a_kafka_connector_are_migrated_once(
    ending: str, write: Callable[[Path, list[dict[str, Any]]], None], tmp_path: Path
) -> None:
    """Keys, headers, timestamps and partitions are kept, and the order of each partition."""
    topics, url = tmp_path / "topics", str(tmp_path / "store")

    def file(partition: int, first: int, count: int) -> None:
        path = topics / "orders" / f"partition={partition}" / f"orders+{partition}+{first:010d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, records(partition, first, count))

    file(0, 0, 7)
    file(0, 7, 5)
    file(2, 100, 4)
    assert run("migrate_kafka.py", topics, url, "orders") == "16 records migrated\n"
    file(0, 12, 3)
    assert run("migrate_kafka.py", topics, url, "orders") == "3 records migrated\n"
    assert run("migrate_kafka.py", topics, url, "orders") == "0 records migrated\n"
    with txnstore.open(url) as store:
        assert store.topic("orders").partitions == 3
        table = store.scan("orders").to_table().to_pylist()
    for partition, expected in ((0, records(0, 0, 15)), (1, []), (2, records(2, 100, 4))):
        actual = [
            {
                "key": row["key"].decode(),
                "value": row["value"].decode(),
                "headers": [{"key": each["key"], "value": each["value"].decode()} for each in row["headers"] or []]
                or None,
                "timestamp": round(row["_timestamp"].timestamp() * 1000),
            }
            for row in sorted(table, key=lambda row: row["_offset"])
            if row["_partition"] == partition
        ]
        assert actual == expected


def test_a_file_of_bare_values_is_refused(tmp_path: Path) -> None:
    """A connector without that setting writes only values, which would become records without any."""
    path = tmp_path / "topics" / "orders" / "partition=0" / "orders+0+0000000000.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"amount": 3}\n')
    with pytest.raises(AssertionError, match="a record without the field value"):
        run("migrate_kafka.py", tmp_path / "topics", tmp_path / "store", "orders")
    with txnstore.open(tmp_path / "store", read_only=True) as store:
        assert store.sql("select count(*) from orders").fetchall() == [(0,)]
        assert store.snapshot().blocked() == ()


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells, in a kernel; it is stored without outputs, so that each run shows what it finds."""
    import nbformat
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # They are in the home of the user by default.
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(ROOT / "examples" / "analysis.ipynb", as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs")] == []
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text_of_outputs = "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)
    assert "before [(1000, 40)], after [(1001, 240)]" in text_of_outputs
    for text in ("American", "COMPLETE_COMMIT"):
        assert text in text_of_outputs
