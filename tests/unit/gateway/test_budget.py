"""The bytes of requests and responses in memory: bounded, without requests that wait for each other without end."""

from __future__ import annotations

import asyncio
import random

from txnstore.gateway.budget import Budget, ResponseBudget


def test_bytes_count_until_they_are_released() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        one, two = budget.new_reservation(), budget.new_reservation()
        await one.add(60)
        await two.add(40)
        assert (budget.used, budget.preferred) == (100, None)
        one.release()
        one.release()
        assert budget.used == 40

    asyncio.run(scenario())


def test_parts_of_requests_that_fill_the_budget_do_not_wait_for_each_other() -> None:
    """The first one that waits is received to its end; then the next one."""

    async def scenario() -> list[str]:
        budget, ended = Budget(100), list[str]()

        async def receive(name: str) -> None:
            held = budget.new_reservation()
            for _ in range(10):
                await held.add(20)
                await asyncio.sleep(0)
            ended.append(name)
            held.release()

        await asyncio.gather(*(receive(name) for name in "abcdefgh"))
        assert (budget.used, budget.preferred, budget.has_waiters) == (0, None, False)
        return ended

    assert sorted(asyncio.run(scenario())) == list("abcdefgh")


def test_at_most_one_request_is_in_memory_beyond_the_budget() -> None:
    async def scenario() -> None:
        rng, budget, most = random.Random(7), Budget(1000), 0

        async def receive() -> None:
            nonlocal most
            held = budget.new_reservation()
            try:
                for _ in range(rng.randrange(1, 40)):
                    await held.add(rng.randrange(1, 64))
                    most = max(most, budget.used)
                    await asyncio.sleep(0)
            finally:
                held.release()

        tasks = [asyncio.create_task(receive()) for _ in range(200)]
        for task in tasks[::7]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used == 0
        assert 1000 < most <= 1000 + 39 * 63

    asyncio.run(scenario())


def test_a_request_that_waits_and_is_cancelled_is_passed_over() -> None:
    async def scenario() -> None:
        budget = Budget(10)
        first, preferred, third, fourth = (budget.new_reservation() for _ in range(4))
        await first.add(10)
        await preferred.add(5)  # Beyond the budget, as nothing else is preferred.
        assert budget.preferred is preferred
        waits = [asyncio.create_task(held.add(5)) for held in (third, fourth)]
        await asyncio.sleep(0)
        assert preferred.exceeds_share
        waits[0].cancel()
        await asyncio.sleep(0)
        first.release()
        await waits[1]
        assert (third.size, fourth.size, budget.used) == (0, 5, 10)
        assert not preferred.exceeds_share

    asyncio.run(scenario())


def test_a_later_request_does_not_overtake_one_that_waits() -> None:
    async def scenario() -> None:
        budget = Budget(10)
        first, preferred, large, small = (budget.new_reservation() for _ in range(4))
        await first.add(8)
        await preferred.add(8)
        wait = asyncio.create_task(large.add(8))
        await asyncio.sleep(0)
        preferred.release()
        first_size = asyncio.create_task(small.add(1))
        await asyncio.sleep(0)
        assert (large.size, small.size) == (8, 0)  # It is preferred now.
        first.release()
        await asyncio.gather(wait, first_size)
        assert small.size == 1

    asyncio.run(scenario())


def test_a_fetch_may_read_a_part_of_the_room_that_is_left() -> None:
    async def scenario() -> None:
        room = ResponseBudget(64 << 20)
        async with room.grant(50 << 20) as first:
            assert first == 16 << 20
            async with room.grant(50 << 20) as second:
                assert second == 12 << 20
                async with room.grant(100) as third:
                    assert third == 100
        assert room.used == 0

    asyncio.run(scenario())


def test_fetches_wait_while_the_room_is_used_up() -> None:
    async def scenario() -> None:
        room, order = ResponseBudget(4 << 20), list[int]()
        room.add(5 << 20)

        async def fetch(number: int) -> None:
            async with room.grant(1 << 20):
                order.append(number)

        waits = [asyncio.create_task(fetch(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert room.has_waiters
        assert not order
        await room.wait(2)  # Small responses do not wait.
        waits[1].cancel()
        await asyncio.sleep(0)
        room.remove(5 << 20)
        await asyncio.gather(*waits, return_exceptions=True)
        assert order == [0, 2]
        assert (room.used, room.has_waiters) == (0, False)

    asyncio.run(scenario())


def test_a_fetch_that_ends_as_it_is_woken_wakes_the_next_one() -> None:
    """Its connection ended meanwhile: nothing would wake the others before the next response."""

    async def scenario() -> None:
        room, order = ResponseBudget(4 << 20), list[int]()
        room.add(4 << 20)

        async def fetch(number: int) -> None:
            async with room.grant(1 << 20):
                order.append(number)

        waits = [asyncio.create_task(fetch(number)) for number in range(2)]
        await asyncio.sleep(0)
        room.remove(4 << 20)
        waits[0].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == [1]

    asyncio.run(scenario())
