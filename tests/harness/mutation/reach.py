"""Which tests reach which lines of the product, measured once for a state of the code and kept in ``build/``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[3]
#: The folders of the product. ``txnstore/testing`` is for tests.
PRODUCT = ("txnstore", "catalog", "compactor", "cli")
TESTS = ("tests/unit", "tests/protocol", "tests/kafka")
_KEPT = ROOT / "build" / "mutation"
#: A statement of more lines than this is reached where its first line is.
_LONGEST = 12


def product_files() -> list[Path]:
    """The source files of the product, without the symbolic links from one folder to another."""
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    return sorted({path.resolve() for path in files if "testing" not in path.relative_to(ROOT).parts})


@dataclass(frozen=True)
class Reach:
    """The tests that reach each line.

    Attributes:
        data: What coverage.py has measured, with a context for each test.
    """

    data: CoverageData

    def tests(self, file: Path, line: int) -> list[str]:
        """The tests that reach a line, those first that reach the fewest lines of the product.

        A line that runs when its module is imported belongs to all tests that reach the module.
        """
        contexts = self._contexts.get(str(file), {})
        for reached in range(line, max(0, line - _LONGEST), -1):
            if reached in contexts:
                tests = _tests_of(contexts[reached]) or {test for each in contexts.values() for test in _tests_of(each)}
                return sorted(tests, key=lambda test: (self._sizes[test], test))
        return []

    @cached_property
    def _contexts(self) -> dict[str, dict[int, list[str]]]:
        """The contexts of each line of each file."""
        return {file: self.data.contexts_by_lineno(file) for file in self.data.measured_files()}

    @cached_property
    def _sizes(self) -> Counter[str]:
        """The number of lines that each test reaches."""
        lines = (contexts for file in self._contexts.values() for contexts in file.values())
        return Counter(test for contexts in lines for test in _tests_of(contexts))


def _tests_of(contexts: Sequence[str]) -> set[str]:
    """The tests in contexts such as ``tests/unit/catalog/test_topics.py::test_name|run``."""
    return {test for context in contexts if (test := context.rpartition("|")[0])}


def measured(jobs: int) -> Reach:
    """Run all tests under coverage.py, unless that was done for these sources."""
    digest = hashlib.sha256()
    for path in [*product_files(), *sorted((ROOT / "tests").rglob("*.py"))]:
        digest.update(path.read_bytes())
    file = _KEPT / f"reach-{digest.hexdigest()[:16]}"
    if not file.exists():
        _KEPT.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        options = ["-q", "-n", str(jobs), "--dist", "loadgroup", "-m", "not slow"]
        coverage = ["--cov=txnstore", "--cov-context=test", "--cov-report=", "--cov-config=pyproject.toml"]
        command = [sys.executable, "-m", "pytest", *options, *coverage, *TESTS]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"COVERAGE_FILE": str(partial)}, check=True)
        partial.rename(file)
    data = CoverageData(str(file))
    data.read()
    return Reach(data)
