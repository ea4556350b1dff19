"""Ctrl-C at random instants in a real process, with all clients; see ``tests.harness.interrupts``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("interrupts", "chains", "store"),
    [
        pytest.param(40, 1, "memory", id="short"),
        pytest.param(300, 1, "local", id="local", marks=pytest.mark.slow),
        pytest.param(300, 3, "memory", id="chains", marks=pytest.mark.slow),
    ],
)
def test_interrupts_of_all_clients_lose_and_double_nothing(interrupts: int, chains: int, store: str) -> None:
    """API-08: nothing hangs, nothing acknowledged is lost, nothing is doubled, and ``verify`` finds nothing."""
    options = ["--interrupts", interrupts, "--chains", chains, "--store", store, "--seed", chains]
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.interrupts", *map(str, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "problems: none" in done.stdout
