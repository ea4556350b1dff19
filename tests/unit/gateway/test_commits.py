"""The order of commits in a store with several chains, which run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from tests.helpers.core import T0, T1, World
from txnstore.connection import Connection
from txnstore.core.commands import Command
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch
from txnstore.core.model import ProducerIdentity
from txnstore.gateway.commits import Commits


class Chains:
    """A connection to a store with several chains, whose commits end when the test says so."""

    several_chains = True

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun: asyncio.Queue[tuple[Command, asyncio.Future[Any]]] = asyncio.Queue()

    def submit_all(self, asked: Sequence[tuple[Command, str | None]]) -> list[Any]:
        async def end(command: Command) -> Any:
            ended = self.loop.create_future()
            self.begun.put_nowait((command, ended))
            return await ended

        return [asyncio.run_coroutine_threadsafe(end(command), self.loop).result() for command, _ in asked]


def _append(batch: NewBatch, producer_id: int = 7) -> Append:
    return Append(ProducerIdentity(producer_id, 0, None), (batch,))


def test_batches_of_a_producer_for_a_partition_wait_for_each_other() -> None:
    """With sequences the later one would be refused, and without them it would be written before the earlier one."""
    world = World()
    first, second, third = (_append(world.batch(1, T0, number)) for number in range(3))
    elsewhere = _append(world.batch(1, T1, 0))
    of_another = _append(world.batch(1, T0, 0), producer_id=8)
    joins = replace(first, batches=(), partitions=(T0,))

    async def run() -> None:
        chains = Chains()
        with ThreadPoolExecutor(8) as threads:
            commits = Commits(cast("Connection", chains), threads, lambda: None)
            answers = {
                command: commits.submit(command, None)
                for command in (first, second, third, elsewhere, of_another, joins)
            }
            begun = dict([await chains.begun.get() for _ in range(4)])
            assert set(begun) == {first, elsewhere, of_another, joins}
            for last, following in ((first, second), (second, third)):
                assert not answers[following].done()
                begun[last].set_result("done" if last is first else ValueError("refused"))
                await asyncio.wait({answers[last]})
                command, begun[following] = await chains.begun.get()
                assert command == following
            assert isinstance(answers[second].exception(), ValueError)
            for ended in begun.values():
                if not ended.done():
                    ended.set_result("done")
            await asyncio.wait(answers.values())
            again = commits.submit(first, None)
            (await chains.begun.get())[1].set_result("again")
            assert await again == "again"

    asyncio.run(run())
