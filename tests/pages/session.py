"""README.md and the tutorial as sessions: their blocks in order, what they print, and how they run on a store.

``python -m tests.pages.session`` runs both on a folder and writes what the blocks print into the pages.
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
            exec(compile(json.loads(line), "session", "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of a page, and the output that is shown after it (empty if none is)."""

    language: str
    code: str
    output: str


@dataclass(frozen=True)
class Page:
    """A page whose blocks of shell (``sh``) and Python are one session; its blocks of ``bash`` are not run."""

    path: Path
    url: str  # the store of the session, as the page writes it

    @property
    def text(self) -> str:
        """The page as it is."""
        return self.path.read_text(encoding="utf-8")


README = Page(ROOT / "README.md", "/tmp/events")
TUTORIAL = Page(ROOT / "docs" / "tutorial.md", "/tmp/tutorial")


def blocks(text: str) -> list[Block]:
    """The blocks of the session of a page, in order."""
    return [Block(language, code, output) for language, code, output in _BLOCK.findall(text)]


def normalized(output: str) -> str:
    """The output without what differs between two runs: the times of entries, and white space at the ends of lines."""
    lines = _TIME.sub("2026-01-31T12:00:00.000Z", output).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


class Session:
    """One shell and one Python interpreter in one folder, as a user has them open.

    Args:
        page: The page whose blocks it runs.
        folder: The working folder; it is also where Spark keeps its files.
        url: The store, in place of the one that the page names.
        env: Environment variables that the storage needs.
    """

    def __init__(self, page: Page, folder: Path, url: str, env: Mapping[str, str]) -> None:
        self._shown = page.url
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
        """What the block prints; the store is named as on the page.

        Raises:
            AssertionError: The block fails.
        """
        code = block.code.replace(self._shown, self._url)
        output = self._run_shell(code) if block.language == "sh" else self._run_python(code)
        return output.replace(self._url if "://" in self._url else f"file://{self._url}", f"file://{self._shown}")

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


def rewritten(text: str, outputs: list[str]) -> str:
    """The page with these outputs after the blocks of its session."""
    remaining = iter(outputs)

    def shown(match: re.Match[str]) -> str:
        output = "\n".join(line.rstrip() for line in next(remaining).splitlines()).strip("\n")
        code = f"```{match[1]}\n{match[2]}```\n"
        return f"{code}\n```text\n{output}\n```\n" if output else code

    return _BLOCK.sub(shown, text)


def main() -> None:
    """Run the sessions on a folder, and write their output into the pages."""
    for page in (README, TUTORIAL):
        with tempfile.TemporaryDirectory() as folder:
            url = str(Path(folder) / "store")
            with Session(page, Path(folder), url, {}) as session:
                outputs = [session.run(block) for block in blocks(page.text)]
        page.path.write_text(rewritten(page.text, outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
