"""The command line as a process: how fast it answers, pipes that break, interrupts, and its exit status."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txnstore
from tests.harness.exits import PROGRAMS, STATUS, exits
from tests.helpers.cli import ROOT, finished, process
from tests.helpers.connections import connection_of
from txnstore.runtime import Runtime

ENGINES = ["boto3", "botocore", "duckdb", "fsspec", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "s3fs"]


@pytest.fixture
def url(local_store_url: str) -> str:
    """A store with a topic of 20,000 records: more than a pipe holds."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            producer.send_table("orders", [{"value": b"x" * 100} for _ in range(20_000)])
    return local_store_url


@pytest.mark.parametrize("arguments", [["--help"], ["consume", "--help"], ["demo", "--help"], ["--version"], ["wrong"]])
def test_help_and_usage_errors_import_no_engine(arguments: list[str]) -> None:
    """Importing them takes seconds; a help screen is there in a fraction of one, without the states of chains."""
    heavy = [*ENGINES, "txnstore.core.state"]
    code = (
        "import sys; from txnstore.cli.app import run; status = run(sys.argv[1:]);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["info"],
        ["txn", "list"],
        ["txn", "show", "job"],
        ["group", "list"],
        ["group", "show", "readers"],
    ],
)
def test_metadata_of_a_small_store_is_shown_without_an_engine(url: str, arguments: list[str]) -> None:
    """Arrow is needed for checkpoints and records; importing it takes longer than all that these commands do."""
    with txnstore.open(url) as store, store.producer("job") as producer, producer.transaction() as txn:
        txn.send_offsets({txnstore.TopicPartition("orders", 0): 7}, "readers")
    code = (
        "import sys; from txnstore.cli.app import run; assert run(sys.argv[1:]) == 0;"
        f"print([name for name in {ENGINES!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--store", url, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_shell_completes_commands_and_options() -> None:
    """As ``docs/howto/command-line.md`` sets it up; no store is needed."""
    script = finished(env={"_TXNSTORE_COMPLETE": "bash_source"})
    assert (script.status, "complete -o nosort -F" in script.out) == (0, True), script

    def completed(words: str) -> list[str]:
        env = {"_TXNSTORE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return [line.removeprefix("plain,") for line in finished(env=env).out.splitlines()]

    assert completed("txnstore top") == ["topic"]
    assert completed("txnstore group re") == ["remove-members", "reset-offsets"]
    assert "--dry-run" in completed("txnstore vacuum --")


def test_the_status_is_that_of_the_command(url: str) -> None:
    assert finished("--version").out == f"txnstore {txnstore.__version__}\n"
    assert finished("--store", url, "info", "--json").status == 0
    assert finished("--store", url, "topic", "show", "nothing").status == 1
    assert finished("--store", url, "topic", "nothing").status == 2


def test_closed_output_pipe_is_not_an_error(url: str) -> None:
    with process("--store", url, "consume", "orders") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "x" * 100 + "\n"
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


def test_read_only_commands_write_nothing(url: str) -> None:
    """A reader without a group needs no right to write: not even the check of the storage is made."""
    check = Path(url.removeprefix("file://"), "_probe")
    shutil.rmtree(check)
    assert finished("--store", url, "consume", "orders", "--max", "1").status == 0
    assert not check.exists()
    assert finished("--store", url, "consume", "orders", "--max", "1", "--group", "readers").status == 0
    assert check.exists()


def test_group_commits_only_printed_records(url: str) -> None:
    with process("--store", url, "consume", "orders", "--group", "readers") as running:
        assert running.stdout is not None
        running.stdout.close()
    assert running.returncode == 0
    assert finished("--store", url, "consume", "orders", "--group", "readers").out.count("\n") == 20_000


def test_interrupt_prints_one_line(url: str) -> None:
    with process("--store", url, "consume", "orders", "--follow") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for _ in range(20_000):
            running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == ""
        assert running.stderr.read().split() == ["interrupted"]
    assert running.returncode == 130


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_consumer_of_a_group_leaves_it_by_a_signal(url: str, ending: signal.Signals) -> None:
    """Its partitions do not wait for the end of its lease. A second signal does not end the leaving."""
    with process("--store", url, "consume", "orders", "--follow", "--group", "readers") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for _ in range(20_000):
            running.stdout.readline()
        with txnstore.open(url) as store:
            while store.group("readers").positions[0].lag:
                pass
        running.send_signal(ending)
        if ending is signal.SIGTERM:
            running.send_signal(ending)
        assert running.stdout.read() == ""
        assert running.stderr.read().split() == ["terminated" if ending is signal.SIGTERM else "interrupted"]
    assert running.returncode == 128 + ending
    with txnstore.open(url) as store:
        assert store.group("readers").members == ()


def test_sql_is_ended_by_a_signal(url: str) -> None:
    """In the middle of a query of DuckDB."""
    query = "SELECT 'begun' UNION ALL SELECT count(*)::VARCHAR FROM range(1000000) a, range(1000000) b"
    with process("--store", url, "sql", "--json", query) as running:
        assert running.stderr is not None
        _wait_for_query(running.pid)
        running.send_signal(signal.SIGTERM)
        assert running.stderr.read().split() == ["terminated"]
    assert running.returncode == 143


def _wait_for_query(pid: int) -> None:
    """Wait until the process has used three seconds of processor time, which only the query needs."""
    ticks = os.sysconf("SC_CLK_TCK")
    while sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) < 3 * ticks:
        pass


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_transaction_leaves_nothing_behind(url: str, ending: signal.Signals) -> None:
    with process("--store", url, "produce", "orders", "--transactional-id", "job", bufsize=0) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        running.stdin.write("a\n")
        _wait_for_producer(url)
        _wait_until_read(running.stdin)  # An interrupt before the transaction begins has nothing to abort.
        running.send_signal(ending)
        lines = [line for line in running.stderr.read().splitlines() if line]
    end = "terminated" if ending is signal.SIGTERM else "interrupted"
    assert lines == ["the transaction of 'job' was aborted: none of its records is visible", end]
    assert running.returncode == 128 + ending
    with txnstore.open(url) as store:
        assert store.offsets("orders", 0).last_stable == store.offsets("orders", 0).high_watermark
        assert store.sql("SELECT count(*) FROM orders").fetchall() == [(20_000,)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", "orders"],
        ["produce", "orders", "--file", "records.parquet"],
        ["sql", "SELECT * FROM orders LIMIT 3"],
        ["sql", "SELECT [_timestamp] AS times, {'at': _timestamp} AS nested FROM orders LIMIT 3"],
    ],
    ids=["lines", "file", "times", "nested times"],
)
def test_the_main_thread_does_not_import_pandas(url: str, tmp_path: Path, arguments: list[str]) -> None:
    """It imports ``numpy.random``, which loses an interrupt that comes meanwhile: the command would continue."""
    pq.write_table(pa.table({"value": [b"record"]}), tmp_path / "records.parquet")
    code = """
import sys, threading
imports = 0
def note(event, given):
    global imports
    if event == "import" and given[0] == "pandas" and threading.current_thread() is threading.main_thread():
        imports += 1
sys.addaudithook(note)
from txnstore.cli.app import run
status = run(sys.argv[1:])
print("status", status, "imports", imports, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "--store", url, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="line\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "status 0 imports 0"


def _wait_for_producer(url: str) -> None:
    """Return when the process has begun: its transactional id is there."""
    with txnstore.open(url, read_only=True) as store:
        while "job" not in connection_of(store).view().transactions:
            connection_of(store).runtime.sleep(0.01)


def _wait_until_read(pipe: IO[str]) -> None:
    """Return when the process has read all that was written to its standard input."""
    unread, runtime = bytearray(b"?"), Runtime()
    while any(unread):
        runtime.sleep(0.01)
        unread = bytearray(4)
        fcntl.ioctl(pipe, termios.FIONREAD, unread)


def test_records_are_sent_as_they_arrive(url: str) -> None:
    """A pipe that stays open holds nothing back."""
    with process("--store", url, "produce", "orders") as running:
        assert running.stdin is not None
        running.stdin.write("early\n")
        running.stdin.flush()
        with (
            txnstore.open(url, read_only=True) as store,
            store.consumer(["orders"], auto_offset_reset="none") as consumer,
        ):
            consumer.seek(txnstore.TopicPartition("orders", 0), 20_000)
            records = consumer.poll(timeout=60.0)
        assert [record.value for record in records] == [b"early"]
        running.stdin.close()
        running.wait()


def test_an_interrupted_produce_reports_how_many_records_were_sent(url: str) -> None:
    """Without a transaction they stay: a caller who sends the rest must know where to continue."""
    with process("--store", url, "produce", "orders") as running:
        assert running.stdin is not None
        assert running.stderr is not None
        running.stdin.write("a\nb\nc\nunfinished")
        running.stdin.flush()
        with (
            txnstore.open(url, read_only=True) as store,
            store.consumer(["orders"], auto_offset_reset="none") as consumer,
        ):
            consumer.seek(txnstore.TopicPartition("orders", 0), 20_000)
            records: list[txnstore.Record] = []
            while len(records) < 3:
                records += consumer.poll(timeout=60.0)
        running.send_signal(signal.SIGINT)
        lines = running.stderr.read().splitlines()
    assert [record.value for record in records] == [b"a", b"b", b"c"]
    assert [line for line in lines if line] == ["3 records sent to 'orders' before the interrupt", "interrupted"]
    assert running.returncode == 130


def test_full_disk_of_the_output_is_one_line(url: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = finished("--store", url, "consume", "orders", stdout=full)
    assert result.status == 1
    assert result.err == "error: No space left on device\n"


def test_closed_standard_input_is_reported(url: str) -> None:
    command = f'"{sys.executable}" -m txnstore.cli --store "{url}" produce orders <&-'
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "standard input is closed" in done.stderr


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        (">&-", (1, "", "error: standard output is closed. Send it somewhere, such as to /dev/null.\n")),
        ("2>&-", (0, '{"topic":"orders"}\n', "")),
        ("orders 2>&-", (2, "", "")),
    ],
)
def test_closed_standard_output_is_reported(url: str, closed: str, expected: tuple[int, str, str]) -> None:
    command = f'"{sys.executable}" -m txnstore.cli --store "{url}" sql "SELECT topic FROM txn.topics" --json {closed}'
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_terminal_gets_progress_bar_and_confirmation(url: str) -> None:
    """Bars and questions go to a terminal, on standard error."""
    main, side = pty.openpty()
    try:
        with process("--store", url, "topic", "delete", "orders", stdin=side, stderr=side) as running:
            os.write(main, b"n\n")
            assert running.stdout is not None
            assert running.stdout.read() == ""
        assert running.returncode == 1
        shown = ""
        with process("--store", url, "produce", "orders", stderr=side) as running:
            while "to orders" not in shown:  # The bar appears while the command waits for more records.
                shown += os.read(main, 65536).decode()
            out, _ = running.communicate("a\n")
        assert out == "1 record sent to 'orders'\n"
        with process("--store", url, "produce", "orders", "--json", stderr=side) as running:
            out, _ = running.communicate("a\n")
        assert out == '{"topic":"orders","records":1,"transactional_id":null}\n'
    finally:
        os.close(side)
        os.close(main)
    assert "Delete topic 'orders'" in shown


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["no-store", "damaged"])
def test_process_leaves_with_its_own_status_after_an_error_at_open(program: str, kind: str) -> None:
    """The long form is ``python -m tests.harness exits``; before the fix, a fifth of them ended by a signal."""
    assert exits(program, kind, "obstore", 8) == {STATUS[program]: 8}
