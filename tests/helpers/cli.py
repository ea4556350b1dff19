"""Running the command line: inside this process, where that is enough, and as a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from txnstore.cli.app import run

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class _Stream(io.TextIOWrapper):
    """A text stream over bytes, which may say that it is a terminal."""

    def __init__(self, data: io.BytesIO, *, terminal: bool) -> None:
        super().__init__(data, encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class _Captured(_Stream):
    """The bytes that are written, as standard output is one: data need not be text."""

    def __init__(self, *, terminal: bool) -> None:
        self._written = io.BytesIO()
        super().__init__(self._written, terminal=terminal)

    def text(self) -> str:
        return self._written.getvalue().decode("utf-8", "backslashreplace")


def captured(*arguments: str, terminal: bool = False) -> Result:
    """The result of a command in this process; with ``--debug`` its exception is raised."""
    out, err = _Captured(terminal=terminal), _Captured(terminal=terminal)
    with redirect_stdout(out), redirect_stderr(err):
        status = run(arguments)
    return Result(status, out.text(), err.text())


class Cli:
    """``cli("topic", "list")`` runs a command on a store and returns its :class:`Result`.

    ``ok`` is the same for a command that must succeed, without a word on standard error.
    """

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self._monkeypatch = monkeypatch

    def __call__(
        self, *arguments: str, stdin: str | bytes = "", url: str | None = None, terminal: bool = False
    ) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", _Stream(io.BytesIO(data), terminal=terminal))
        return captured("--store", url or self.url, *arguments, terminal=terminal)

    def ok(self, *arguments: str, stdin: str | bytes = "", warns: str = "") -> Result:
        """The result of a command that succeeds. ``warns``: the beginning of the one warning that it prints."""
        result = self(*arguments, stdin=stdin)
        expected = f"warning: {warns}" if warns else ""
        assert (result.status, result.err[: len(expected)], result.err.count("\n")) == (0, expected, bool(warns)), (
            result
        )
        return result


def process(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """``txnstore`` as a process, with pipes, out of reach of the signals of this one."""
    env = {name: value for name, value in os.environ.items() if name != "TXNSTORE_STORE"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])}
    env |= options.pop("env", {})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "txnstore.cli", *arguments],
        text=True,
        env=env,
        start_new_session=True,
        **(pipes | options),
    )


def finished(*arguments: str, **options: Any) -> Result:
    """The result of such a process."""
    with process(*arguments, **options) as running:
        out, err = running.communicate()
        return Result(running.returncode, out, err)
