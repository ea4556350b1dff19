"""Draws faults, puts each into a copy of the tree, and runs the tests that reach it there."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.harness.mutation.faults import Fault, faults_of
from tests.harness.mutation.reach import ROOT, Reach, product_files

#: A test that takes longer, in seconds, hangs; and so does a run that takes longer, and a second more for each test.
_TEST_TIMEOUT, _RUN_TIMEOUT = 120, 900
#: Where the tests of a mutant are divided: most faults die by the first tests, and collecting thousands takes long.
_PARTS = (30, 300)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a test noticed the fault, and which one; or the exit status of a process that hung or was ended."""

    killed: bool
    by: str


@dataclass(frozen=True)
class Mutant:
    """A fault in a file, and the tests that reach it."""

    file: Path
    fault: Fault
    tests: list[str]

    @property
    def name(self) -> str:
        """What no other mutant of the same sources has."""
        return f"{self.file.relative_to(ROOT)}:{self.fault.line}:{self.fault.start}-{self.fault.end} {self.fault.after}"

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.fault.before, self.fault.after))
        where = f"{self.file.relative_to(ROOT)}:{self.fault.line}"
        return f"{where} {self.fault.kind} [{len(self.tests)} tests]\n    - {before}\n    + {after}"


def drawn(seed: int, count: int, reach: Reach) -> tuple[list[Mutant], int]:
    """Mutants drawn by a seed: first the kind of the fault, then one of all faults of this kind in the product.

    Returns:
        The mutants, and how many others were drawn that no test reaches.
    """
    rng = random.Random(seed)
    by_kind: dict[str, list[tuple[Path, Fault]]] = defaultdict(list)
    for file in product_files():
        for fault in faults_of(file.read_text(encoding="utf-8")):
            by_kind[fault.kind].append((file, fault))
    for kind in sorted(by_kind):
        rng.shuffle(by_kind[kind])
    mutants: list[Mutant] = []
    unreached = 0
    while len(mutants) < count and (kinds := [kind for kind in sorted(by_kind) if by_kind[kind]]):
        file, fault = by_kind[rng.choice(kinds)].pop()
        tests = reach.tests(file, fault)
        if tests:
            mutants.append(Mutant(file, fault, tests))
        else:
            unreached += 1
    return mutants, unreached


def outcomes(mutants: list[Mutant], jobs: int, kept: Path) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the mutants, ``jobs`` at a time, each in a copy of the tree; yields them in order.

    The file ``kept`` has a line for each outcome: what it has already does not run again.
    """
    known = {}
    if kept.exists():
        lines = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
        known = {line["fault"]: Outcome(line["killed"], line["by"]) for line in lines}
    trees: queue.SimpleQueue[_Tree] = queue.SimpleQueue()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        for number in range(jobs):
            trees.put(stack.enter_context(closing(_Tree(folder / str(number)))))
        lines_of = stack.enter_context(kept.open("a", encoding="utf-8"))

        def run(mutant: Mutant) -> Outcome:
            if mutant.name in known:
                return known[mutant.name]
            tree = trees.get()
            try:
                outcome = tree.outcome(mutant)
            finally:
                trees.put(tree)
            line = {"fault": mutant.name, "killed": outcome.killed, "by": outcome.by}
            lines_of.write(json.dumps(line) + "\n")
            lines_of.flush()
            return outcome

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        noticed_by = set()
        for mutant, outcome in zip(mutants, pool.map(run, mutants), strict=True):
            noticed_by.add(outcome.by)
            yield mutant, outcome
        # Such a test may need what the copy of the tree lacks.
        if (test := trees.get().fails(sorted(by for by in noticed_by if "::" in by))) is not None:
            msg = f"{test} fails without a fault, too"
            raise RuntimeError(msg)


class _Tree:
    """A copy of the tree, and a process there whose forks run tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._temporary = root.with_suffix(".tmp")
        self._output = root.with_suffix(".txt")
        # With the bytecode of the product and the tests, which the measurement has left.
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist"))
        # What the tests start imports the mutant, too, and no bytecode of the tree without it.
        environment = os.environ | {"PYTHONPATH": str(root), "TMPDIR": str(self._temporary)}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        forks = [sys.executable, "-P", str(root / Path(__file__).with_name("forks.py").relative_to(ROOT))]
        pipe = subprocess.PIPE
        self._forks = subprocess.Popen(forks, cwd=root, env=environment, text=True, stdin=pipe, stdout=pipe)

    def close(self) -> None:
        """End the process."""
        self._forks.communicate()

    def outcome(self, mutant: Mutant) -> Outcome:
        """Whether one of the tests fails. The tree has the fault only meanwhile."""
        target = self._root / mutant.file.relative_to(ROOT)
        source, at = target.read_text(encoding="utf-8"), target.stat()
        target.write_text(mutant.fault.put_into(source), encoding="utf-8")
        try:
            for first, end in pairwise([0, *_PARTS, len(mutant.tests)]):
                if (tests := mutant.tests[first:end]) and (by := self.fails(tests)) is not None:
                    return Outcome(killed=True, by=by)
            return Outcome(killed=False, by="")
        finally:
            target.write_text(source, encoding="utf-8")
            os.utime(target, ns=(at.st_atime_ns, at.st_mtime_ns))  # by which Python knows its bytecode

    def fails(self, tests: list[str]) -> str | None:
        """What failed; None if all tests pass."""
        names = self._root.with_suffix(".tests")
        names.write_text("\n".join(tests), encoding="utf-8")
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        # By a thread, which ends the process: an exception in a test that hangs would leave its threads, and pytest.
        timeout = [f"--timeout={_TEST_TIMEOUT}", "--timeout-method=thread"]
        # The process imports hypothesis before its plugin asks pytest to rewrite the assertions there.
        warning = "-Wignore::pytest.PytestAssertRewriteWarning"
        options = [warning, "-q", "-x", "--tb=no", "-rfE", "-n0", "-pno:cacheprovider", *timeout, f"@{names}"]
        request = [options, _RUN_TIMEOUT + len(tests), str(self._output)]
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(request) + "\n")
        self._forks.stdin.flush()
        status = int(self._forks.stdout.readline())
        output = self._output.read_text(encoding="utf-8", errors="replace")
        if status == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        # A fault that keeps a module from being imported ends the collection: exit status 2; or 4, because the tests of
        # a module that is not collected are not found, or because a conftest.py is not imported.
        not_collected = re.search(r"^\d+ errors? in", output, re.MULTILINE) or "while loading conftest" in output
        if status in (1, 2) or status < 0 or (status == 4 and not_collected):
            return failed[1] if failed else f"exit status {status}"
        msg = f"pytest left with {status}:\n{output}"
        raise RuntimeError(msg)
