"""The counters of a maintenance as metric families of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from txnstore.compactor.maintain.maintenance import MaintenanceCounts

#: The name of each family, its kind, its help and its label or None, in the order of :func:`rows_of`.
FAMILIES: tuple[tuple[str, str, str, str | None], ...] = (
    ("maintenance_rounds", "counter", "Rounds of maintenance of this process.", None),
    ("maintenance_done", "counter", "Times that a kind of maintenance found something to do, and did it.", "kind"),
    ("maintenance_failures", "counter", "Times that a kind of maintenance failed.", "kind"),
    ("maintenance_requests", "counter", "Requests to the storage in these rounds.", None),
)


def rows_of(counts: MaintenanceCounts) -> list[tuple[str, str, str, str | None, int | Mapping[str, int]]]:
    """The families with their values."""
    values: list[int | Mapping[str, int]] = [counts.rounds, dict(counts.done), dict(counts.failures), counts.requests]
    return [(*family, value) for family, value in zip(FAMILIES, values, strict=True)]
