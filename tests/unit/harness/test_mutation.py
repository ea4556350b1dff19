"""The instrument that draws random mutants: which faults it knows, and that it puts in nothing else."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.harness.mutation.faults import Fault, faults_of
from tests.harness.mutation.reach import ROOT, Reach, product_files
from tests.harness.mutation.run import Mutant, drawn, outcomes

SOURCE = '''"""A text, é, that is no code."""

def f(a: int = 0, *, b: bool = False) -> int:
    """Nor is this."""
    _LOG.info("said", extra={"a": a})
    if a < 10 and not b:
        state.total += g(a + 1, key=max(a, 2))
    raise ValueError(f"{a + 1} is too much")
'''


def test_each_kind_of_fault_is_found() -> None:
    faults = {(fault.kind, fault.before, fault.after) for fault in faults_of(SOURCE)}
    assert {
        ("bound", "0", "(-1)"),
        ("condition", "False", "(True)"),
        ("condition", "a < 10 and not b", "(not (a < 10 and (not b)))"),
        ("condition", "a < 10 and not b", "(a < 10)"),
        ("operator", "a < 10 and not b", "(a < 10 or not b)"),
        ("operator", "a < 10", "(a <= 10)"),
        ("operator", "a + 1", "(a - 1)"),
        ("operator", "max", "(min)"),
        ("argument", "g(a + 1, key=max(a, 2))", "(g(a + 1))"),
        ("statement", "state.total += g(a + 1, key=max(a, 2))", "pass"),
        ("statement", 'raise ValueError(f"{a + 1} is too much")', "pass"),
    } <= faults
    assert not any("said" in before or "Nor" in before for _, before, _ in faults)


def test_what_only_guards_against_wrong_code_is_left_alone() -> None:
    source = "@dataclass(frozen=True, slots=True, order=True)\nclass A:\n    pairs = list(zip(a, b, strict=True))\n"
    assert {fault.after for fault in faults_of(source)} == {"(dataclass(frozen=True, slots=True))", "(False)"}


def test_a_fault_knows_the_lines_of_its_statement() -> None:
    source = "if (\n    a\n    and b\n):\n    c(\n        1,\n    )\n"
    lines = {(fault.before, fault.line, fault.first, fault.last) for fault in faults_of(source)}
    assert {("a\n    and b", 2, 1, 4), ("1", 6, 5, 7)} <= lines


def test_a_fault_changes_its_text_and_nothing_else() -> None:
    for fault in faults_of(SOURCE):
        changed = fault.put_into(SOURCE)
        assert SOURCE[fault.start : fault.end] == fault.before
        assert changed == SOURCE[: fault.start] + fault.after + SOURCE[fault.end :]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE)), fault


@pytest.mark.slow
def test_every_fault_of_the_product_is_python() -> None:
    counts: Counter[str] = Counter()
    for file in product_files():
        source = file.read_text(encoding="utf-8")
        for fault in faults_of(source)[::40]:
            ast.parse(fault.put_into(source))
            counts[fault.kind] += 1
    assert min(counts[kind] for kind in ("operator", "condition", "bound", "statement", "argument")) > 20


@pytest.mark.slow
def test_a_seed_draws_the_same_mutants_and_the_tests_that_reach_them() -> None:
    data = CoverageData(no_disk=True)
    for test in ("tests/unit/test_a.py::test_wide", "tests/unit/test_b.py::test_narrow"):
        data.set_context(f"{test}|run")
        lines = range(1, 3000) if "wide" in test else range(1, 30)
        data.add_lines({str(file): list(lines) for file in product_files()})
    reach = Reach(data)
    mutants, unreached = drawn(7, 30, reach)
    assert (len(mutants), unreached) == (30, 0)
    assert drawn(7, 30, reach)[0] == mutants
    assert drawn(8, 30, reach)[0] != mutants
    wide, narrow = "tests/unit/test_a.py::test_wide", "tests/unit/test_b.py::test_narrow"
    names: set[str] = set()
    for mutant in mutants:
        assert mutant.tests == ([narrow, wide] if mutant.fault.line < 30 else [wide])
        assert mutant.file.is_relative_to(ROOT)
        assert mutant.name not in names
        names.add(mutant.name)
    mutants, unreached = drawn(7, 10**9, Reach(CoverageData(no_disk=True)))
    assert mutants == []
    assert unreached == sum(len(faults_of(file.read_text(encoding="utf-8"))) for file in product_files())


def test_tests_of_the_module_are_first_and_then_some_of_each_file() -> None:
    file = ROOT / "txnstore" / "validation.py"
    sizes = {"test_a.py::test_1": 2, "test_a.py::test_2": 3, "test_b.py::test_1": 4, "test_validation_b.py::test_1": 5}
    data = CoverageData(no_disk=True)
    for test, size in sizes.items():
        data.set_context(f"tests/unit/{test}|run")
        data.add_lines({str(file): list(range(10, 10 + size))})
    tests = [
        test.removeprefix("tests/unit/")
        for test in Reach(data).tests(file, Fault("bound", 11, 10, 12, 0, 1, "0", "(1)"))
    ]
    assert tests == ["test_validation_b.py::test_1", "test_a.py::test_1", "test_b.py::test_1", "test_a.py::test_2"]


def test_a_statement_that_no_test_reaches_has_none() -> None:
    """The one before it, such as the head of its function, is another one."""
    file = ROOT / "txnstore" / "validation.py"
    data = CoverageData(no_disk=True)
    data.set_context("tests/unit/test_a.py::test_1|run")
    data.add_lines({str(file): [10, 12]})
    for first, last, reached in ((11, 11, []), (11, 12, ["tests/unit/test_a.py::test_1"])):
        fault = Fault("bound", 11, first, last, 0, 1, "0", "(1)")
        assert Reach(data).tests(file, fault) == reached


@pytest.mark.slow
def test_a_mutant_runs_in_a_copy_of_the_tree_and_only_once(tmp_path: Path) -> None:
    file = ROOT / "txnstore" / "validation.py"
    source = file.read_text(encoding="utf-8")
    fault = next(fault for fault in faults_of(source) if fault.kind == "statement" and fault.before.startswith("raise"))
    noticed = Mutant(file, fault, ["tests/unit/store/test_validation.py"])
    unnoticed = Mutant(file, replace(fault, after=fault.before), noticed.tests)
    kept = tmp_path / "outcomes"
    first = list(outcomes([noticed, unnoticed], 1, kept))
    assert [outcome.killed for _, outcome in first] == [True, False]
    assert first[0][1].by.startswith("tests/unit/store/test_validation.py::test_")
    assert file.read_text(encoding="utf-8") == source
    assert list(outcomes([replace(noticed, tests=[]), unnoticed], 1, kept)) == [
        (replace(noticed, tests=[]), first[0][1]),
        first[1],
    ]
