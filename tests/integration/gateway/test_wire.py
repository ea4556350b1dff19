"""Responses of a gateway, field by field, compared with recorded ones of a broker of Kafka 4.4.

``tests/compat/wire`` has the scenarios, whose docstrings cite the items of the list of conformance, and the
differences that are allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from functools import cache

import pytest

from tests.compat.wire.connection import Wire
from tests.compat.wire.differences import ALLOWED, Difference, differences
from tests.compat.wire.scenarios import SCENARIOS
from tests.harness.traces import FOLDER, responses, responses_text
from tests.helpers.gateway import serving
from txnstore.gateway import server
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

Different = Callable[[str], tuple[Difference, ...]]


@pytest.fixture(scope="module")
def different() -> Different:
    """What differs in a scenario, played once in a run of tests: a mutant that is alive in the next is played again."""
    return cache(_different)


def _different(name: str) -> tuple[Difference, ...]:
    """The differences between the responses of a new gateway and those of the broker."""
    with create_on(MemoryStore()) as store, serving(store) as gateway, closing(Wire(*gateway.address)) as wire:
        SCENARIOS[name](wire)
    rows = [(label, value) for label, value in json.loads(responses_text(wire.rows))]
    return tuple(differences(responses(name), rows))


@pytest.fixture(autouse=True)
def _busy_machine_is_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else changes would be given up when the test does not get its turn."""
    monkeypatch.setattr(server, "_SUSPENSION", math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_gateway_answers_as_a_broker_does(name: str, different: Different) -> None:
    left = [str(each) for each in different(name) if not any(allowed.allows(name, each) for allowed in ALLOWED)]
    assert not left, "\n".join(left)


@pytest.mark.slow
def test_each_allowed_difference_occurs(different: Different) -> None:
    """One that no scenario needs would only hide something."""
    occurring = [(name, each) for name in SCENARIOS for each in different(name)]
    unused = [each.why for each in ALLOWED if not any(each.allows(*pair) for pair in occurring)]
    assert not unused


def test_each_scenario_is_recorded() -> None:
    assert {path.stem for path in (FOLDER / "wire").glob("*.json")} == set(SCENARIOS)
