"""A short run of the fuzzer; ``python -m tests.harness fuzz-gateway`` runs it for as long as one likes."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.harness.gateway_fuzz import run


def test_a_gateway_survives_frames_that_are_nearly_valid(tmp_path: Path) -> None:
    rounds = itertools.count()
    outcome = run(tmp_path, 7, lambda: next(rounds) < 400)
    assert not outcome.findings, "\n".join(outcome.findings)
    assert outcome.frames["answered"] > 50
    assert outcome.frames["decoded"] > 50
    assert outcome.frames["closed"] > 50
    assert outcome.frames["refused"] > 1000, "each length and count of each request, and some again"
