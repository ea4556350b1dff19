"""Timing two or more ways of doing the same thing in turns, and comparing them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Result:
    """A ratio and the target that it has to meet."""

    name: str
    ratio: float
    target: float
    at_most: bool
    detail: str

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def line(self) -> str:
        """One readable line."""
        sign = "≤" if self.at_most else "≥"
        verdict = "ok  " if self.met else "MISS"
        return f"{verdict} {self.name:<58} {self.ratio:6.2f}  (target {sign} {self.target})  {self.detail}"


def seconds(run: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The times of all runs, taken in turns, so that a busy neighbour disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def median_ms(times: list[float]) -> float:
    """The median in milliseconds."""
    return statistics.median(times) * 1000


def processor_seconds() -> float:
    """The processor time of this process and of all that it has started, and they, until now: Linux only.

    On a shared machine it says what a run costs, where its duration says what the neighbours did.
    """
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # It has just ended; its parent has its time if it waited for it.
            continue
        number = int(stat.parent.name)
        parents[number] = int(fields[1])
        spent[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(time for number, time in spent.items() if _descends(number, os.getpid(), parents))


def _descends(number: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while number and number != ancestor:
        number = parents.get(number, 0)
    return number == ancestor
