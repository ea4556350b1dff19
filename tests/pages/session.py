"""README.md as one session: its blocks in order, what they print, and how they run on a store.

``python -m tests.pages.session`` runs it on a folder and writes what the blocks print into the README.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers.spark_home import environment, link_spark_home

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

#: The store of the session, as the README writes it.
URL = "/tmp/events"

#: The session begins after the first heading and ends before the second one.
FIRST, AFTER = "## A first session", "## In production"

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

#: Runs Python blocks in one namespace. What they print is their output; what Spark's JVM prints is not.
_PYTHON = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "README.md", "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of the README, and the output that is shown after it (empty if none is)."""

    language: str
    code: str
    output: str


def session_of(readme: str) -> str:
    """The part of the README that is the session."""
    return readme[readme.index(f"\n{FIRST}\n") : readme.index(f"\n{AFTER}\n")]


def blocks(text: str) -> list[Block]:
    """The blocks of shell and Python in a part of the README, in order."""
    return [Block(language, code, output) for language, code, output in _BLOCK.findall(text)]


def normalized(output: str) -> str:
    """The output without what differs between two runs: the times of entries, and white space at the ends of lines."""
    lines = _TIME.sub("2026-01-31T12:00:00.000Z", output).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


class Session:
    """One shell and one Python interpreter in one folder, as a user has them open.

    Args:
        folder: The working folder; it is also where Spark keeps its files.
        url: The store, in place of the one that the README names.
        env: Environment variables that the storage needs.
    """

    def __init__(self, folder: Path, url: str, env: Mapping[str, str]) -> None:
        self._url = url
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        spark = environment(link_spark_home(folder / "spark-home"))
        given = {**os.environ, **spark, "PYTHONUNBUFFERED": "1", "PATH": path, **env}
        self._shell = self._start(["bash", "-eu", "-o", "pipefail"], folder, given, subprocess.STDOUT)
        self._python = self._start([sys.executable, "-c", _PYTHON], folder, given, None)

    def _start(self, command: list[str], folder: Path, env: dict[str, str], errors: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in (self._shell, self._python):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def run(self, block: Block) -> str:
        """What the block prints; the store is named as in the README.

        Raises:
            AssertionError: The block fails.
        """
        code = block.code.replace(URL, self._url)
        output = self._run_shell(code) if block.language == "sh" else self._run_python(code)
        return output.replace(self._url if "://" in self._url else f"file://{self._url}", f"file://{URL}")

    def _run_shell(self, code: str) -> str:
        shell = self._shell
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{code}\necho; echo '# end'\n")
        shell.stdin.flush()
        printed = ""
        for line in shell.stdout:
            if line == "# end\n":
                return printed
            printed += line
        message = f"the shell ended with status {shell.wait()}:\n{code}\n{printed}"
        raise AssertionError(message)

    def _run_python(self, code: str) -> str:
        python = self._python
        assert python.stdin is not None
        assert python.stdout is not None
        python.stdin.write(json.dumps(code) + "\n")
        python.stdin.flush()
        printed, error = json.loads(python.stdout.readline())
        assert not error, f"{code}\n{printed}{error}"
        return str(printed)


def rewritten(readme: str, outputs: list[str]) -> str:
    """The README with these outputs after the blocks of its session."""
    part = session_of(readme)
    remaining = iter(outputs)

    def shown(match: re.Match[str]) -> str:
        output = "\n".join(line.rstrip() for line in next(remaining).splitlines()).strip("\n")
        code = f"```{match[1]}\n{match[2]}```\n"
        return f"{code}\n```text\n{output}\n```\n" if output else code

    return readme.replace(part, _BLOCK.sub(shown, part))


def main() -> None:
    """Run the session on a folder, and write its output into the README."""
    readme = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "events")
        with Session(Path(folder), url, {}) as session:
            outputs = [session.run(block) for block in blocks(session_of(readme))]
    README.write_text(rewritten(readme, outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
