"""The scheduler and its locks: one task at a time, in the order of a virtual clock, and none waits without end."""

from __future__ import annotations

import random

import pytest

from tests.harness.simulation.locks import SimulatedLock
from tests.harness.simulation.scheduler import Deadlock, Scheduler, TooManySteps


def scheduler(**options: int) -> Scheduler:
    return Scheduler(random.Random(1), **options)


def test_tasks_take_turns_on_a_virtual_clock() -> None:
    world, steps = scheduler(), list[tuple[int, str]]()

    def work(name: str, pause: int) -> None:
        for _ in range(3):
            world.sleep(pause)
            steps.append((world.now, name))

    world.spawn("slow", lambda: work("slow", 1000))
    world.spawn("fast", lambda: work("fast", 400))
    world.later(1100, lambda: steps.append((world.now, "action")))
    world.run()
    assert steps == [
        (400, "fast"), (800, "fast"), (1000, "slow"), (1100, "action"), (1200, "fast"), (2000, "slow"), (3000, "slow"),
    ]  # fmt: skip


def test_an_error_of_a_task_ends_the_run_and_unwinds_the_others() -> None:
    world, unwound = scheduler(), list[str]()

    def waits() -> None:
        try:
            world.sleep(10_000)
        finally:
            unwound.append("waits")

    def fails() -> None:
        world.sleep(5)
        raise ValueError("wrong")

    world.spawn("waits", waits)
    world.spawn("fails", fails)
    with pytest.raises(ValueError, match="wrong"):
        world.run()
    assert unwound == ["waits"]


def test_a_lock_that_is_held_lets_others_run() -> None:
    world, order = scheduler(), list[str]()
    lock = SimulatedLock(world)

    def holds() -> None:
        with lock, lock:
            world.sleep(100)
            order.append("holder")

    def wants() -> None:
        world.sleep(10)
        assert not lock.acquire(blocking=False)
        with lock:
            order.append("second")

    def other() -> None:
        world.sleep(50)
        order.append("other")

    world.spawn("holds", holds)
    world.spawn("wants", wants)
    world.spawn("other", other)
    world.run()
    assert order == ["other", "holder", "second"]


def test_lock_knows_whether_running_task_holds_it() -> None:
    """``txnstore.threads.ForkLock`` asks it."""
    world, owned = scheduler(), list[tuple[str, bool]]()
    lock = SimulatedLock(world)

    def holds() -> None:
        with lock:
            owned.append(("holder", lock._is_owned()))
            world.sleep(100)

    def looks() -> None:
        world.sleep(10)
        owned.append(("other", lock._is_owned()))

    world.spawn("holds", holds)
    world.spawn("looks", looks)
    world.run()
    assert owned == [("holder", True), ("other", False)]
    assert not lock._is_owned()


def test_deadlock_is_reported() -> None:
    world = scheduler()
    first, second = SimulatedLock(world), SimulatedLock(world)

    def take(one: SimulatedLock, other: SimulatedLock) -> None:
        with one:
            world.sleep(10)
            with other:
                pass

    world.spawn("a", lambda: take(first, second))
    world.spawn("b", lambda: take(second, first))
    with pytest.raises(Deadlock, match="a, b"):
        world.run()


def test_a_run_without_end_is_ended() -> None:
    world = scheduler(max_steps=100)

    def runs() -> None:
        while True:
            world.sleep(1)

    world.spawn("runs", runs)
    world.spawn("too", runs)
    with pytest.raises(TooManySteps):
        world.run()
