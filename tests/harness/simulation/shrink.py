"""Shrinks a failing run: fewer actors, fewer kinds of mishaps, fewer operations, as long as it still fails.

Another set of ingredients is another run, so a few seeds are tried with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.harness.simulation.settings import Settings
from tests.harness.simulation.simulation import Run, simulate
from txnstore.chain.context import CHECKPOINT_EVERY

_SEEDS = 8


def shrink(settings: Settings) -> Run:
    """The smallest run found that shows an anomaly; the run of these settings if it shows none."""
    run = simulate(settings)
    if not run.anomalies:
        return run
    smaller: Run | None = run
    while smaller is not None:
        run = smaller
        smaller = next((failing for candidate in _smaller(run.settings) if (failing := _fails(candidate))), None)
    return run


def _fails(settings: Settings) -> Run | None:
    for offset in range(_SEEDS):
        run = simulate(replace(settings, seed=settings.seed + 1_000_003 * offset))
        if run.anomalies:
            return run
    return None


def _smaller(settings: Settings) -> Iterator[Settings]:
    """Variants of the settings, each with one ingredient less."""
    for actor in reversed(settings.actors):
        if len(settings.actors) > 1:
            yield replace(settings, actors=tuple(other for other in settings.actors if other != actor))
    if settings.jumps or settings.skew_ms:
        yield replace(settings, jumps=0.0, skew_ms=0)
    if settings.hidden:
        yield replace(settings, hidden=0.0)
    if settings.lease_ms:
        yield replace(settings, lease_ms=0)
    if settings.interrupts:
        yield replace(settings, interrupts=0.0)
    if settings.checkpoint_every != CHECKPOINT_EVERY:
        yield replace(settings, checkpoint_every=CHECKPOINT_EVERY)
    if settings.closes:
        yield replace(settings, closes=0.0)
    for mishap in settings.mishaps:
        yield replace(settings, mishaps=tuple(other for other in settings.mishaps if other is not mishap))
    if settings.operations > 1:
        yield replace(settings, operations=settings.operations - 1)
    if settings.partitions > 1:
        yield replace(settings, partitions=1)
