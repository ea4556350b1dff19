"""Starts the job of the demo as a process, reads its events, and kills it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from txnstore.cli.context import CommandError


class JobProcess:
    """A running ``txnstore.cli.demo_job``; leaving the ``with`` block ends it.

    The configuration may contain credentials, so it is passed through standard input: command lines are visible to
    other users.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any],
        log: Path,
        *,
        batch: int,
        pause_after: int | None = None,
    ) -> None:
        import txnstore.errors

        root = str(Path(txnstore.errors.__file__).parent.parent)
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "txnstore.cli.demo_job"],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        config = {"url": url, "storage_options": dict(storage_options), "batch": batch, "pause_after": pause_after}
        self._send_line(json.dumps(config))

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def until(self, *events: str, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Wait for one of these events; ``progress`` is called with the records of each commit before it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "committed" and progress is not None:
                progress(event["records"])
            if event["event"] in events:
                return event
        msg = (
            f"the job (process {self.pid}) ended with status {self._process.wait()} before it was {' or '.join(events)}"
        )
        raise CommandError(msg, self._last_output())

    def resume(self) -> None:
        """Resume a paused job."""
        self._send_line("")

    def kill(self) -> int:
        """Kill the process with SIGKILL, which simulates a crash; returns its exit status."""
        os.kill(self.pid, signal.SIGKILL)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The process has ended; `until` reports that.
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _last_output(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"Its last output: {lines[-1]}" if lines else "It wrote no output."
