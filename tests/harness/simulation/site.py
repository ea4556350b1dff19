"""A URL whose store is deleted, and created again, while processes have it open."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.harness.simulation.storage import Bucket


@dataclass(slots=True)
class Site:
    """What was at the URL, by the id of the store.

    ``deleted``: when it was deleted. ``sent`` and ``acknowledged``: the values of its records.
    """

    bucket: Bucket
    deleted: dict[str, int] = field(default_factory=dict)
    sent: dict[str, set[int]] = field(default_factory=dict)
    acknowledged: dict[str, list[int]] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether there is a store: the newest one was not deleted."""
        return bool(self.sent) and max(self.sent) not in self.deleted
