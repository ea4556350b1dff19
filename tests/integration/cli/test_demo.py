"""``txnstore demo --streaming`` as a process: its checks hold, and it ends all processes that it starts."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import txnstore
from tests.harness.s3.servers import S3Server
from tests.helpers.cli import process
from tests.helpers.s3_servers import fresh_bucket
from tests.helpers.spark_home import environment, link_spark_home
from txnstore.cli.context import App
from txnstore.cli.demo.command import _demo_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 2_000


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment for Spark, with a variable that the processes of this test inherit, and only they."""
    home = tmp_path / "spark"
    home.mkdir()
    return environment(link_spark_home(home)) | {"TXNSTORE_TEST_MARK": str(tmp_path)}


def marked(tmp_path: Path) -> Iterator[str]:
    """The commands of the running processes of this test, the demo itself included."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and f"TXNSTORE_TEST_MARK={tmp_path}".encode() in (entry / "environ").read_bytes():
                yield (entry / "cmdline").read_text().replace("\0", " ")


def demo(*arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    return process("demo", "--streaming", "--limit", str(LIMIT), *arguments, env=env)


@pytest.mark.spark
@pytest.mark.s3
def test_numbers_add_up_after_a_kill_in_a_micro_batch(s3_server: S3Server, env: dict[str, str]) -> None:
    """OFF-04: the next driver repeats the micro-batch, and each flight has one delay."""
    url = fresh_bucket(s3_server) + "/demo"
    texts = {
        name: text if isinstance(text, str) else json.dumps(text) for name, text in s3_server.storage_options.items()
    }
    options = [option for name, text in texts.items() for option in ("--storage-option", f"{name}={text}")]
    with demo("--store", url, *options, "--json", env=env) as running:
        out, err = running.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    assert (running.returncode, err) == (0, ""), lines
    assert lines[-1]["failed"] == 0
    values = {line["check"]: line["found"] for line in lines if line["type"] == "check"}
    assert values["first micro-batch of the new driver"] == 4
    assert values["delays under read_committed"] == LIMIT
    with txnstore.open(url, s3_server.storage_options, read_only=True) as store:
        assert store.sql("select count(distinct (flights_partition, flights_offset)) from delays").fetchall() == [
            (LIMIT,)
        ]


@pytest.mark.spark
def test_an_interrupt_ends_the_driver_and_its_jvm(tmp_path: Path, env: dict[str, str]) -> None:
    with demo("--store", str(tmp_path / "store"), env=env) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        while "January" not in running.stdout.readline():  # The driver is starting.
            pass
        while not any("SparkSubmit" in command for command in marked(tmp_path)):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.stderr.read().split() == ["interrupted"]
    assert running.returncode == 130
    assert list(marked(tmp_path)) == []


def test_a_driver_that_fails_is_reported(tmp_path: Path, env: dict[str, str]) -> None:
    """A Java that only tells its version: the message has the end of the driver's output, and no process is left."""
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2\n')
    java.chmod(0o755)
    with demo(env={**env, "JAVA_HOME": str(java.parents[1])}) as running:
        _, err = running.communicate()
    assert running.returncode == 1
    assert "ended with status 1 before it reported committed or uploaded" in err
    assert "JAVA_GATEWAY_EXITED" in err
    assert list(marked(tmp_path)) == []


@pytest.mark.parametrize("keep", [False, True])
def test_a_store_that_is_deleted_names_what_keeps_one(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _demo_run(App(), keep=keep) as run:
        assert Path(run.folder).exists()
    output = capsys.readouterr().err
    assert Path(run.folder).exists() is keep
    assert ("txnstore demo --keep" in output) is not keep
    assert (f"txnstore --store {run.store.url} topic list" in output) is keep
