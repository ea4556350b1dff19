"""The Makefile: what it can make, it can make in a clean clone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_each_target_has_rules_for_all_that_it_needs() -> None:
    """A variable that is defined below a rule is empty among the prerequisites of the rule."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [name for names in re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE) for name in names.split()]
    assert "nightly" in targets
    assert [failure for target in targets if (failure := _failure(target))] == []


def _failure(target: str) -> str:
    """What make says when it cannot plan the target."""
    planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    return planned.stderr if planned.returncode else ""
