"""Deterministic simulation: the real code, many processes, every fault, one seed.

The clients of a run are real ones (producers, consumers, scans, compactions), each in a process of its own, with a
wrong clock. A seeded scheduler interleaves them at every request to a storage in memory that fails in every way.
Afterwards the observations are compared with the entries in the bucket. One seed is one run, bit for bit.

    python -m tests.harness.simulation --seed 42 --trace
"""

from __future__ import annotations

from tests.harness.simulation.recorder import Operation
from tests.harness.simulation.settings import EVERYBODY, Settings, settings_of
from tests.harness.simulation.simulation import Run, simulate
from tests.harness.simulation.storage import Mishap, Step

__all__ = ["EVERYBODY", "Mishap", "Operation", "Run", "Settings", "Step", "settings_of", "simulate"]
