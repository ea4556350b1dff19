"""Starts a job of the demo as a process, reads its events, and kills it with all that it started."""

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


def report(event: str, **values: Any) -> None:
    """Report an event, in a job, to the process that started it."""
    print(json.dumps({"event": event, **values}), flush=True)


class JobProcess:
    """A running job of the demo; leaving the ``with`` block ends it.

    A job reads its configuration, one JSON object, from standard input, and reports its progress as JSON lines on
    standard output. The configuration may contain credentials: command lines are visible to other users.

    Args:
        module: A module of ``txnstore.cli.demo``.
        config: The configuration of the job.
        log: The file for its standard error.
    """

    def __init__(self, module: str, config: Mapping[str, Any], log: Path) -> None:
        import txnstore.errors

        root = str(Path(txnstore.errors.__file__).parent.parent)
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._module, self._log = module, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"txnstore.cli.demo.{module}"],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # An interrupt from the terminal ends the job through us, with its JVM.
            )
        self._send_line(json.dumps(config))

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait_for_event(self, *events: str, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Wait for one of these events; ``progress`` is called with the records of each commit before it.

        Raises:
            CommandError: The job ended before, or printed something else than events.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = _event_of(line)
            if event is None:
                msg = f"{self._module} (process {self.pid}) printed {line.rstrip()!r}, which is not an event"
                raise CommandError(msg, self._last_output())
            if event["event"] == "committed" and progress is not None:
                progress(event["records"])
            if event["event"] in events:
                return event
        status, awaited_text = self._process.wait(), " or ".join(events)
        msg = f"{self._module} (process {self.pid}) ended with status {status} before it reported {awaited_text}"
        raise CommandError(msg, self._last_output())

    def resume(self) -> None:
        """Resume a paused job."""
        self._send_line("")

    def end(self) -> None:
        """Close the job's standard input, which ends a job that would run on, and wait until it has finished."""
        self._close_input()
        self.wait_for_event("finished")

    def kill(self) -> int:
        """Kill the process and its JVM with SIGKILL, which simulates a crash; returns its exit status.

        Spark's Python processes end when their JVM does.
        """
        if self._process.returncode is None:  # Until it is waited for, its id is that of its group.
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.read()  # The JVM has this pipe, too: waits for its end.
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self._close_input()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The process has ended; `wait_for_event` reports that.
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _last_output(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"Its last output: {lines[-1]}" if lines else "It wrote no output."


def _event_of(line: str) -> dict[str, Any] | None:
    """Return the event that a job reported in this line; None if it is another text, as of a library."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
