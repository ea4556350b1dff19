"""Every deliberate fault in the protocol is noticed: one that lives would be a missing test.

The names of what killed them are in the output of ``pytest -s tests/mutants``.
"""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, passes, recorded
from tests.mutants.of_fences import _FENCES, FENCES


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_killed(mutant: Mutant) -> None:
    killer = mutant.killed_by()
    assert killer is not None, f"nothing notices that {mutant.name}"
    print(f"{mutant.name}: {killer}")  # noqa: T201 - what pytest -s is asked for


@pytest.mark.slow
def test_what_kills_a_mutant_passes_without_it() -> None:
    """The simulated seeds do (:mod:`tests.simulation`), and so do the tests that are named here."""
    assert passes(sorted({mutant.test for mutant in MUTANTS if mutant.test is not None}))


@pytest.mark.slow
def test_two_rules_keep_a_late_batch_out_of_the_next_topic() -> None:
    """Either of them is enough: the fence of the chain, or the marker that goes into the topic of its transaction."""
    test = _FENCES + "test_fen_02_a_late_batch_of_the_next_topic_is_refused_where_its_markers_came_first"
    names = (
        "a late batch is not compared with the fence of its chain",
        "a marker goes into whatever topic has the name",
    )
    first, second = (next(mutant for mutant in FENCES if mutant.name == name) for name in names)
    with first.alive():
        assert passes([test])
        with second.alive():
            assert not passes([test])
    with second.alive():
        assert passes([test])


def test_there_are_enough_and_each_has_its_own_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_a_seed_is_recorded_only_for_mutants_that_the_simulation_kills() -> None:
    assert recorded().keys() <= {mutant.name for mutant in MUTANTS if mutant.test is None}


def test_a_mutant_leaves_nothing_behind() -> None:
    mutant = MUTANTS[0]
    before = mutant.function.__code__
    with mutant.alive():
        assert mutant.function.__code__ is not before
    assert mutant.function.__code__ is before
