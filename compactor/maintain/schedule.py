"""Which kind of maintenance is due when: by times, failures and a budget of requests. No I/O and no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
#: How often each kind is looked at, in ms.
EVERY_MS: Mapping[str, int] = {
    "recover": 30_000,
    "retain": 30_000,
    "compact": 5 * _MINUTE_MS,
    "expire": 10 * _MINUTE_MS,
    "checkpoint": 5 * _MINUTE_MS,
    "tables": 30_000,
    "vacuum": 24 * _HOUR_MS,
}
#: The pause after a failure, which doubles with each further one, and for kinds that are more frequent its largest, in
#: ms.
_RETRY_MS, _LATEST_RETRY_MS = 30_000, 5 * _MINUTE_MS
#: The part of the budget of an hour that may be spent at once.
_AT_ONCE = 12


class Schedule:
    """When each kind was done last, and which is due. Times are ms of a clock that never goes back.

    Args:
        every_ms: How often each kind is looked at, in the order in which those that are due are done.
        budget: The requests of any hour, at least 1; None: no limit. A task that has begun is not ended for it, and the
            next one waits longer.
        now: The present time.
    """

    def __init__(self, every_ms: Mapping[str, int], budget: int | None, now: int) -> None:
        self._every_ms, self._budget = dict(every_ms), budget
        self._due_at = dict.fromkeys(every_ms, now)
        self._failures = dict.fromkeys(every_ms, 0)
        #: The requests that may be made now; below 0, none may. It grows up to a part of the budget.
        self._allowed = self._most = math.inf if budget is None else budget / _AT_ONCE
        self._allowed_at = now

    def due(self, now: int) -> list[str]:
        """The kinds that are due, as far as the budget allows anything; with one, those first that wait longest."""
        if not self.may_request(now):
            return []
        kinds = [kind for kind, at in self._due_at.items() if at <= now]
        return kinds if self._budget is None else sorted(kinds, key=self._due_at.__getitem__)

    def may_request(self, now: int) -> bool:
        """Whether the budget allows requests."""
        self._grow(now)
        return self._allowed > 0

    def spend(self, requests: int, now: int) -> None:
        """Count requests that were made."""
        self._grow(now)
        self._allowed -= requests

    def done(self, kind: str, now: int, *, failed: bool = False, again_ms: int | None = None) -> None:
        """Note that a kind was done, had nothing to do, or failed.

        Args:
            again_ms: It is due after so many ms; None: after its interval, or the pause after a failure.
        """
        pause_ms = self._every_ms[kind]
        self._failures[kind] = self._failures[kind] + 1 if failed else 0
        if failed:
            doubled_ms = _RETRY_MS << min(self._failures[kind] - 1, 20)
            pause_ms = min(max(pause_ms, _LATEST_RETRY_MS), doubled_ms)
        self._due_at[kind] = now + (pause_ms if again_ms is None else again_ms)

    def wait(self, now: int) -> int:
        """The time until a kind is due, and the budget allows it; in ms."""
        wait_ms = max(0, min(self._due_at.values()) - now)
        self._grow(now)
        if self._budget is not None and self._allowed <= 0:
            wait_ms = max(wait_ms, math.floor(-self._allowed / self._rate) + 1)
        return wait_ms

    @property
    def _rate(self) -> float:
        """The requests by which the allowance grows in a ms: with what is allowed at once, the budget of an hour."""
        return (self._budget or 0) * (1 - 1 / _AT_ONCE) / _HOUR_MS

    def _grow(self, now: int) -> None:
        if self._budget is not None:
            self._allowed = min(self._most, self._allowed + (now - self._allowed_at) * self._rate)
            self._allowed_at = now
