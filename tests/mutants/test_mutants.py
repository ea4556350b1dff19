"""Every mutant must be detected: one that survives shows a missing test.

``pytest -s tests/mutants`` prints what killed each of them.
"""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.fences import FENCES
from tests.mutants.mutant import Mutant, collected, passes, recorded


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    killer = mutant.killed_by()
    assert killer is not None, f"no test or seed detects: {mutant.name}"
    print(f"{mutant.name}: {killer}")  # noqa: T201 - for pytest -s


def test_killing_tests_are_collected() -> None:
    """Each of them is a test of these folders, which all run without a mutant, too; a typing error would kill any."""
    named = {mutant.test for mutant in MUTANTS if mutant.test is not None}
    files = sorted({test.partition("::")[0] for test in named})
    tests = {test.partition("[")[0] for test in collected(files)} | set(files)
    assert sorted(test for test in named if test.partition("[")[0] not in tests) == []


@pytest.mark.slow
def test_late_batch_in_recreated_topic_is_refused_by_either_rule() -> None:
    """Each rule suffices: the fence of the chain, or markers only in the topic of the transaction."""
    test = "protocol/chains/test_fences.py::test_fen_02_late_batch_is_refused_in_recreated_topic_with_markers"
    names = (
        "a late batch is not compared with the fence of its chain",
        "a marker is written to a recreated topic",
    )
    first, second = (next(mutant for mutant in FENCES if mutant.name == name) for name in names)
    with first.alive():
        assert passes([test])
        with second.alive():
            assert not passes([test])
    with second.alive():
        assert passes([test])


def test_mutants_replace_existing_code_by_known_names() -> None:
    """A mutant that raises ``NameError`` would be detected by any test."""
    for mutant in MUTANTS:
        with mutant.alive():
            pass


def test_mutant_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_seeds_are_recorded_only_for_mutants_of_simulation() -> None:
    assert recorded().keys() <= {mutant.name for mutant in MUTANTS if mutant.test is None}


def test_mutant_restores_function() -> None:
    mutant = MUTANTS[0]
    before = mutant.function.__code__
    with mutant.alive():
        assert mutant.function.__code__ is not before
    assert mutant.function.__code__ is before


def _rename(pairs: dict[str, int]) -> list[str]:
    """A function to change."""
    return [name for name, number in pairs.items() if number > 0]


def test_quotes_stand_for_local_variables_of_any_name() -> None:
    mutant = Mutant(
        "", _rename, "for $key, $value in $items.items() if $value > 0", "for $key, $value in $items.items()"
    )
    with mutant.alive():
        assert _rename({"a": 0, "b": 1}) == ["a", "b"]
    assert _rename({"a": 0, "b": 1}) == ["b"]


@pytest.mark.parametrize("quote", ["$key, $key in $items", "pairs.$items()", "[$name for name, $name in"])
def test_one_name_in_a_quote_stands_for_one_variable_and_for_no_attribute(quote: str) -> None:
    with pytest.raises(AssertionError, match="occurs 0 times"), Mutant("", _rename, quote, "").alive():
        pass
