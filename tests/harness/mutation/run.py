"""Draws faults, puts each into a copy of the tree, and runs the tests that reach it there."""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.harness.mutation.faults import Fault, faults_of
from tests.harness.mutation.reach import ROOT, Reach, product_files

#: A test that takes longer, in seconds, hangs; the whole run of a mutant ends after the second number.
_TEST_TIMEOUT, _RUN_TIMEOUT = 120, 900

Outcome = Literal["killed", "survived"]


@dataclass(frozen=True)
class Mutant:
    """A fault in a file, and the tests that reach it."""

    file: Path
    fault: Fault
    tests: list[str]

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
        tests = reach.tests(file, fault.line)
        if tests:
            mutants.append(Mutant(file, fault, tests))
        else:
            unreached += 1
    return mutants, unreached


def outcomes(mutants: list[Mutant], jobs: int, most: int | None = None) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the mutants, ``jobs`` at a time, each in a copy of the tree; yields them in order.

    ``most``: the number of tests for each mutant; None: all that reach it.
    """
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            trees.put(_copied(Path(folder) / str(number)))

        def run(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                return _outcome(mutant, mutant.tests[:most], tree)
            finally:
                trees.put(tree)

        yield from zip(mutants, pool.map(run, mutants), strict=True)


def _copied(tree: Path) -> Path:
    """A copy of the files that git knows or would take, with its symbolic links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return tree


def _outcome(mutant: Mutant, tests: list[str], tree: Path) -> Outcome:
    """Whether one of the tests fails. The tree has the fault only meanwhile."""
    target = tree / mutant.file.relative_to(ROOT)
    source = target.read_text(encoding="utf-8")
    names = tree / "tests.txt"
    names.write_text("\n".join(tests), encoding="utf-8")
    target.write_text(mutant.fault.put_into(source), encoding="utf-8")
    options = ["-q", "-x", "--tb=no", "-n", "0", "-pno:cacheprovider"]
    # By a thread, which ends the process: an exception in a test that hangs would leave its threads, and pytest there.
    timeout = [f"--timeout={_TEST_TIMEOUT}", "--timeout-method=thread"]
    command = [sys.executable, "-m", "pytest", *options, *timeout, f"@{names}"]
    # What the tests start imports the mutant, too, and no bytecode of the tree without it.
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_RUN_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        target.write_text(source, encoding="utf-8")
    if done.returncode == 0:
        return "survived"
    # A fault that keeps a module from being imported ends the collection: exit status 2; or 4, because the tests of a
    # module that is not collected are not found, or because a conftest.py is not imported.
    not_collected = re.search(r"^\d+ errors? in", done.stdout, re.MULTILINE) or "while loading conftest" in done.stderr
    if done.returncode in (1, 2) or done.returncode < 0 or (done.returncode == 4 and not_collected):
        return "killed"
    msg = f"pytest left with {done.returncode} for {mutant}:\n{done.stdout}\n{done.stderr}"
    raise RuntimeError(msg)
