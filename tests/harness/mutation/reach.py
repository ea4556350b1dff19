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

from tests.harness.mutation.faults import Fault

ROOT = Path(__file__).resolve().parents[3]
#: The folders of the product. ``txnstore/testing`` is for tests.
PRODUCT = ("txnstore", "catalog", "compactor", "cli")
TESTS = ("tests/unit", "tests/protocol", "tests/kafka")
_KEPT = ROOT / "build" / "mutation"


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

    def tests(self, file: Path, fault: Fault) -> list[str]:
        """The tests that reach the line of a fault, or else its statement, the most likely to notice it first.

        These are the tests in files of the module's name; then one test of each file, another of each, and so on, and
        those first that reach the fewest lines of the product. A line that runs when its module is imported belongs to
        all tests that reach the module.
        """
        contexts = self._contexts.get(str(file), {})
        for reached in (fault.line, *range(fault.first, fault.last + 1)):
            if reached in contexts:
                tests = _tests_of(contexts[reached]) or {test for each in contexts.values() for test in _tests_of(each)}
                return self._in_order(tests, file)
        return []

    def _in_order(self, tests: set[str], file: Path) -> list[str]:
        name = file.parent.name if file.stem == "__init__" else file.stem.strip("_")
        places: Counter[str] = Counter()
        keys: dict[str, tuple[bool, int, int, str]] = {}
        for test in sorted(tests, key=lambda test: (self._sizes[test], test)):
            test_file = test.partition("::")[0]
            keys[test] = (name not in Path(test_file).stem, places[test_file], self._sizes[test], test)
            places[test_file] += 1
        return sorted(tests, key=keys.__getitem__)

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


def measured(jobs: int) -> tuple[Reach, Path]:
    """Run all tests under coverage.py, unless that was done for these sources.

    Returns:
        What they reach, and the file for what becomes of the mutants of these sources.
    """
    digest = hashlib.sha256()
    for path in [*product_files(), *sorted((ROOT / "tests").rglob("*.py"))]:
        digest.update(path.read_bytes())
    file = _KEPT / f"reach-{digest.hexdigest()[:16]}"
    if not file.exists():
        _KEPT.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        options = ["-q", "-n", str(jobs), "--dist", "loadgroup", "-m", "not slow"]
        # Lines without branches, which would be a hundred times the data: each test has a context.
        coverage = [*(f"--cov={folder}" for folder in PRODUCT), f"--cov-config={os.devnull}"]
        contexts = ["--cov-context=test", "--cov-report="]
        command = [sys.executable, "-m", "pytest", *options, *coverage, *contexts, *TESTS]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"COVERAGE_FILE": str(partial)}, check=True)
        partial.rename(file)
    data = CoverageData(str(file))
    data.read()
    return Reach(data), file.with_suffix(".outcomes")
