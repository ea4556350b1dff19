"""The report of a verification by invariant: which rules were checked, for how many objects, and which failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import keys
from tests.helpers.compaction import commit, new_store
from tests.helpers.connections import connection_of
from tests.helpers.verification import sample_store
from txnstore import compactor
from txnstore.compactor import VerifyReport
from txnstore.compactor.verify.rules import _BY_MODULE, _BY_RULE, STORE_INVARIANTS, rule_reports
from txnstore.core.invariants.check import ACROSS, EVENTS, INVARIANTS, STEPS
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return sample_store(clock)


def _checked(report: VerifyReport) -> dict[str, int]:
    return {item.objects: item.checked for item in report.rules}


def _failed(report: VerifyReport) -> dict[str, int]:
    return {item.rule: item.failed for item in report.rules if item.failed}


def test_every_rule_belongs_to_an_invariant() -> None:
    """A new rule of a module that has no default, or a violation of another name, would be missing in the report."""
    rules = [item.rule for item in rule_reports({}, [])]
    assert len(set(rules)) == len(rules)
    assert {rule.__name__ for rule in (*INVARIANTS, *STEPS, *EVENTS, *ACROSS)} <= set(rules)
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (Path(compactor.__file__).parent / "verify").glob("*.py")
    )
    named = set(re.findall(r'(?:Violation|_report)\(\s*"([a-z_]+)"', sources))
    assert len(named) >= 5
    assert named - set(rules) == set()
    assert set(_BY_RULE) - set(rules) == set(), "a rule that was renamed"
    assert {*_BY_RULE.values(), *_BY_MODULE.values()} <= set(STORE_INVARIANTS)


def test_every_invariant_has_rules() -> None:
    assert {item.invariant for item in rule_reports({}, [])} == set(STORE_INVARIANTS)


@pytest.mark.parametrize("deep", [False, True])
def test_rules_are_counted(store: Store, *, deep: bool) -> None:
    report = store.verify(deep=deep)
    assert _checked(report) == {
        "stores": 1, "chains": 1, "entries": report.entries, "states": report.entries + 1, "steps": report.entries,
        "compactions": 2, "checkpoints": 1, "views": 0, "topics": 1, "segments": 3, "contents": 3 if deep else 0,
    }  # fmt: skip
    assert _failed(report) == {}


def test_chains_are_checked_together(clock: ManualClock) -> None:
    store = new_store(clock, chains=3)
    store.create_topic("t", partitions=3)
    commit(store, [b"a"])
    report = store.verify()
    assert (_checked(report)["views"], _checked(report)["chains"]) == (1, 3)


def test_failed_rule_is_named_with_its_invariant(store: Store) -> None:
    connection_of(store).objects.delete([keys.entry(0, 3)])
    report = store.verify()
    (failed,) = [item for item in report.rules if item.failed]
    assert (failed.invariant, failed.rule, failed.failed) == ("objects-intact", "entry_present", 1)
    assert sum(item.failed for item in report.rules) == len(report.violations)


def test_checkpoint_is_compared_with_the_fold(store: Store) -> None:
    connection = connection_of(store)
    (head,) = [item.key for item in connection.objects.list(keys.checkpoints(0)) if item.key.endswith("state.json")]
    connection.objects.put(head, connection.objects.get(head)[:-9])
    report = store.verify()
    assert _failed(report) == {"checkpoint_intact": 1}
    assert [(item.name, item.subject) for item in report.violations] == [("checkpoint_intact", head)]


def test_page_lists_the_invariants() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "maintenance.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \| ", page, re.MULTILINE)) >= set(STORE_INVARIANTS)
