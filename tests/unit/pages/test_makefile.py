"""The Makefile and the instruments: what they can make, they can make in a clean clone; pages name what exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.__main__ import INSTRUMENTS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = [name for names in re.findall(r"^\.PHONY: (.+)$", TEXT, re.MULTILINE) for name in names.split()]


@pytest.mark.slow
def test_each_target_has_rules_for_all_that_it_needs() -> None:
    """A variable that is defined below a rule is empty among the prerequisites of the rule."""
    assert "nightly" in TARGETS
    assert [failure for target in TARGETS if (failure := _failure(target))] == []


def _failure(target: str) -> str:
    """What make says when it cannot plan the target."""
    planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    return planned.stderr if planned.returncode else ""


def test_pages_name_targets_and_instruments_that_exist() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    unknown = []
    for page in listed.stdout.splitlines():
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = re.findall(r"(?:`|^ *)make ([a-z][a-z-]*)", text, re.MULTILINE)
        instruments = re.findall(r"tests\.harness ([a-z][a-z0-9-]*)", text)
        unknown += [f"{page}: make {name}" for name in targets if name not in TARGETS]
        unknown += [f"{page}: {name}" for name in instruments if name not in {*INSTRUMENTS, "nightly"}]
    assert unknown == []
