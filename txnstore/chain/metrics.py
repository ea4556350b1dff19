"""The counters of a chain in one process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ChainMetrics:
    """Counters of the commits of a chain in this process.

    Attributes:
        commits: Entries written.
        commands: Commands in these entries, including refused ones.
        conflicts: Slots that another process took first.
        unknown_outcomes: Conditional creates whose outcome was unknown at first.
        retries: Repetitions of conditional creates.
        checkpoints: Checkpoints written.
        checkpoint_failures: Checkpoints after a commit that could not be written.
    """

    commits: int = 0
    commands: int = 0
    conflicts: int = 0
    unknown_outcomes: int = 0
    retries: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
