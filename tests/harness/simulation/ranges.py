"""The result of one seed of a range, small enough to be sent from a worker process."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness.simulation.settings import drawn
from tests.harness.simulation.simulation import simulate
from tests.harness.simulation.storage import HIDDEN, INTERRUPTED, OBJECT_LOST, OPERATED, POWER_LOST
from txnstore import BlockedReadWarning, UnmaintainedStoreWarning

#: Faults that a trace has as an answer.
_TOLD = frozenset({HIDDEN, INTERRUPTED, POWER_LOST, OBJECT_LOST, OPERATED})


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one seed of a range."""

    seed: int
    anomalies: tuple[str, ...]
    requests: int
    mishaps: dict[str, int]
    operations: dict[str, int]
    carried: int = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of the library, which reports the injected faults, and its warnings of what runs on purpose."""
    logger = logging.getLogger("txnstore")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            for category in (BlockedReadWarning, UnmaintainedStoreWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.setLevel(level)


def one(seed: int, chains: int | None, **worlds: bool) -> Result:
    """Run a seed; the arguments as in :func:`~tests.harness.simulation.settings.drawn`."""
    with quiet():
        run = simulate(drawn(seed, chains, **worlds))
    mishaps = Counter(step.mishap for step in run.trace if step.mishap)
    mishaps.update(step.answer for step in run.trace if step.answer in _TOLD)
    operations = Counter(f"{o.f} {o.type}" for o in run.history if o.type != "invoke")
    return Result(seed, run.anomalies, len(run.trace), dict(mishaps), dict(operations), run.carried)
