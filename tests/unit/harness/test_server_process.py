"""The command line of the process that serves S3."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--help"], 0, "minio"),
        ([], 2, "KIND"),
        (["nosuch"], 2, "invalid choice: 'nosuch'"),
        (["moto", "http"], 2, "invalid int value: 'http'"),
    ],
)
def test_wrong_arguments_end_it_with_a_sentence(arguments: list[str], status: int, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.s3.server_process", *arguments],
        check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, says in done.stdout + done.stderr) == (status, True)
    assert "Traceback" not in done.stderr
