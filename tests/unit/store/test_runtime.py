"""The clocks of a runtime: one that is given replaces those that would disagree with it."""

from __future__ import annotations

import random
import uuid

from txnstore import Runtime
from txnstore.runtime import monotonic_ms, thread_timer, uptime_ms, uuid7


def test_default_clocks_are_those_of_the_machine() -> None:
    runtime = Runtime()
    assert (runtime.monotonic, runtime.uptime, runtime.timer) == (monotonic_ms, uptime_ms, thread_timer)


def test_given_clock_is_the_monotonic_one_too() -> None:
    runtime = Runtime(clock=lambda: 5)
    assert (runtime.monotonic(), runtime.uptime()) == (5, 5)
    assert runtime.timer is not thread_timer


def test_given_monotonic_clock_counts_the_time_of_a_suspension() -> None:
    runtime = Runtime(clock=lambda: 5, monotonic=lambda: 7)
    assert (runtime.monotonic(), runtime.uptime()) == (7, 7)


def test_given_uptime_is_kept() -> None:
    assert Runtime(clock=lambda: 5, uptime=lambda: 9).uptime() == 9


def test_ids_are_uuids_of_version_7_in_the_order_of_their_times() -> None:
    """RFC 9562."""
    made = [uuid.UUID(uuid7(at, random.Random(at))) for at in (1, 2, 1_700_000_000_000)]
    assert [(each.version, each.variant) for each in made] == [(7, uuid.RFC_4122)] * 3
    assert [each.int >> 80 for each in made] == [1, 2, 1_700_000_000_000]
