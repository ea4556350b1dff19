"""What the README shows runs as it stands there, but for the place of the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import txnstore

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
URL = "s3://bucket/events"


def _block(title: str, language: str) -> str:
    found = re.search(rf"^## {title}\n.*?^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no {language} under '{title}'"
    assert URL in found[1]
    return found[1]


def test_the_command_line(local_store_url: str) -> None:
    """From ``init`` to ``verify --deep``, in one shell that stops at the first failure."""
    script = _block("Command line", "sh").replace(URL, local_store_url)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    # The line was a record, not a value.
    with txnstore.open(local_store_url) as store:
        [record] = store.scan("orders").to_table().to_pylist()
    assert (record["key"], record["value"]) == (b"42", b"hello")
    assert "No violations found" in done.stdout


def test_python(memory_store_url: str) -> None:
    """The transaction of the first example, with one order to bill."""
    lines = _block("Python", "python").splitlines(keepends=True)
    [after] = [number for number, line in enumerate(lines) if "create_topic" in line and "invoices" in line]
    with txnstore.create(memory_store_url) as store:
        store.create_topic("orders", partitions=4)
        with store.producer() as producer:
            producer.send("orders", key=b"7", value=b"apples")
        store.create_topic("invoices", partitions=4)
        exec(compile("".join(lines[after + 1 :]), "README.md", "exec"), {"store": store})  # noqa: S102
        assert store.scan("invoices", columns=["key", "value"]).to_table().to_pylist() == [
            {"key": b"7", "value": b"invoice for apples"},
        ]
