"""Producers that are not closed when the interpreter exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txnstore.core.transactions.model import TxnState
from txnstore.store import create
from txnstore.store import open as open_store

LOST = "a producer was not closed, and records of it were not written: "
ABORTED = "a producer was not closed: its open transaction was aborted, with all records that were sent in it"
NOT_ABORTED = "a producer was not closed, and its open transaction could not be aborted, which its timeout does: "
SCRIPT = """
import sys, txnstore
store = txnstore.open(sys.argv[1])
store.sql("SELECT count(*) FROM t").fetchall()
producer = store.producer({arguments})
{begin}
for number in range(5):
    producer.send("t", b"%d" % number)
{end}
"""


def _run(folder: Path, arguments: str = "", begin: str = "", end: str = "", chains: int = 1) -> str:
    """What the script prints to standard error."""
    with create(folder / "store", chains) as store:
        store.create_topic("t")
    script = SCRIPT.format(arguments=arguments, begin=begin, end=end)
    command = [sys.executable, "-c", script, str(folder / "store")]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300).stderr


def _stored(folder: Path) -> list[bytes]:
    with open_store(folder / "store") as store:
        return sorted(store.scan("t").to_table()["value"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "store.close()"])
@pytest.mark.parametrize("linger", ["0.1", "3600"])
def test_lingering_records_are_written_when_the_interpreter_exits(tmp_path: Path, linger: str, end: str) -> None:
    """A thread that is stopped in a flush would also keep the database of ``sql``, which DuckDB reports as leaked."""
    assert _run(tmp_path, f"linger={linger}", end=end) == ""
    assert _stored(tmp_path) == [b"%d" % number for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "begin"), [("linger=None", ""), ("'id'", "producer.begin_transaction()")])
def test_records_that_are_lost_at_exit_are_reported(tmp_path: Path, arguments: str, begin: str) -> None:
    """Without a linger time nothing promised to write them."""
    assert _run(tmp_path, arguments, begin) == f"{LOST}flush, commit or close it before the process ends\n"
    assert _stored(tmp_path) == []


@pytest.mark.slow
def test_records_that_the_storage_refuses_at_exit_are_reported(tmp_path: Path) -> None:
    output = _run(tmp_path, "linger=3600", end="import shutil; shutil.rmtree(sys.argv[1])")
    assert output.startswith(LOST)
    assert "was deleted while it was in use" in output


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("end", ["producer.flush()", "producer.flush(); producer.send('t', b'x'); sys.exit(3)"])
def test_open_transaction_is_aborted_when_the_interpreter_exits(tmp_path: Path, chains: int, end: str) -> None:
    """API-11: it would block readers until its timeout; another process reads what was committed after it at once."""
    output = _run(tmp_path, "'id'", "producer.begin_transaction()", end, chains=chains)
    assert output == f"{ABORTED}\n"
    with open_store(tmp_path / "store") as store:
        assert store.transaction("id").state is TxnState.COMPLETE_ABORT
        store.producer().send("t", b"next").result()
        assert _stored(tmp_path) == [b"next"]


@pytest.mark.slow
def test_abort_that_fails_at_exit_is_no_loss_of_records_that_were_flushed(tmp_path: Path) -> None:
    end = "producer.flush(); import shutil; shutil.rmtree(sys.argv[1])"
    output = _run(tmp_path, "'id'", "producer.begin_transaction()", end)
    assert output.startswith(NOT_ABORTED)
    assert "were not written" not in output


@pytest.mark.slow
@pytest.mark.parametrize("end", ["producer.flush(); producer.prepare_transaction()", "producer.commit_transaction()"])
def test_exit_leaves_prepared_and_ended_transactions_alone(tmp_path: Path, end: str) -> None:
    """TPC-02: an external coordinator decides a prepared one."""
    assert _run(tmp_path, "'id'", "producer.begin_transaction()", end) == ""
    with open_store(tmp_path / "store") as store:
        expected = TxnState.ONGOING if "prepare" in end else TxnState.COMPLETE_COMMIT
        assert store.transaction("id").state is expected
