"""A job of the demo whose output is not what it should be: one clear error, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnstore.cli.context import CommandError
from txnstore.cli.demo.process import JobProcess

#: A module of the demo that ends at once, without an event.
MODULE = "process"


def _print_at_start(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each Python process print a line, as a library may that the job imports."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nprint('out of memory', file=sys.stderr, flush=True)\nprint({text!r}, flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize("text", ["a warning", '{"event": "comm', "1", '"event"', '{"records": 1}'])
def test_a_line_that_is_no_event_is_named_with_the_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    _print_at_start(text, tmp_path, monkeypatch)
    with (
        pytest.raises(CommandError) as caught,
        JobProcess(MODULE, {}, tmp_path / "log") as job,
    ):
        job.wait_for_event("finished")
    assert f"printed {text!r}, which is not an event" in str(caught.value)
    assert caught.value.advice == "Its last output: out of memory"


def test_the_end_of_a_job_before_its_event_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(CommandError, match="ended with status 0 before it reported started or finished"),
        JobProcess(MODULE, {}, tmp_path / "log") as job,
    ):
        job.wait_for_event("started", "finished")
