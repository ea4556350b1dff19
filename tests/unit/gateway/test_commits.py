"""Commits of several chains: the order of batches, and who waits for whom. Threads are steps of the test."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, cast

from tests.helpers.core import T0, T1
from txnstore.connection import Connection
from txnstore.core.commands import Command
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.gateway.commits import Commits

SEGMENT = Segment("k", "parquet", 1, "0" * 64, 1)
OTHER = CommitOffsets(TxnOffsets("g", ()))


class Steps(Executor):
    """Runs nothing on its own."""

    def __init__(self) -> None:
        self.begun: deque[tuple[Future[Any], Sequence[tuple[Command, str | None]]]] = deque()

    def submit(self, call: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.begun.append((future, args[0]))
        return future

    async def end(self) -> None:
        """End the commit that has begun first."""
        future, asked = self.begun.popleft()
        future.set_result([None] * len(asked))
        await settle()

    @property
    def sequences(self) -> list[list[int]]:
        """The sequences of the batches in each commit that has begun."""
        return [[command.batches[0].base_sequence for command, _ in asked] for _, asked in self.begun]  # type: ignore[union-attr]


class Several:
    """A connection to a store with several chains."""

    several_chains = True

    def submit_all(self, asked: Sequence[tuple[Command, str | None]]) -> list[Any]:
        raise NotImplementedError


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Commits, Steps], Awaitable[None]]) -> None:
    async def with_commits() -> None:
        steps = Steps()
        async with asyncio.timeout(10):
            await scenario(Commits(cast("Connection", Several()), steps, lambda: None), steps)
            while steps.begun:
                await steps.end()

    asyncio.run(with_commits())


def batch(sequence: int, tp: TopicPartition = T0, producer: int = -1) -> Append:
    new = NewBatch(tp.topic, tp.partition, SEGMENT, 1, 1, sequence)
    return Append(ProducerIdentity(producer, 0), (new,))


def test_batches_follow_those_of_their_producer_and_partition_that_are_under_way() -> None:
    async def scenario(commits: Commits, steps: Steps) -> None:
        commits.submit(batch(0), None)
        commits.submit(batch(100, T1), None)
        commits.submit(batch(200, producer=7), None)
        await settle()
        for sequence in (1, 2):
            commits.submit(batch(sequence), None)
        await settle()
        assert steps.sequences == [[0], [100], [200]]
        await steps.end()
        assert steps.sequences == [[100], [200], [1, 2]]
        for _ in range(3):
            await steps.end()
        commits.submit(batch(3), None)
        await settle()
        assert steps.sequences == [[3]]

    run(scenario)


def test_a_batch_waits_only_for_the_commands_before_it() -> None:
    """Where commands come as fast as they are committed, some always wait."""

    async def scenario(commits: Commits, steps: Steps) -> None:
        for _ in range(40):
            commits.submit(OTHER, None)
        await settle()
        taken = asyncio.create_task(commits.taken())
        await settle()
        for _ in range(8):
            assert not taken.done()
            commits.submit(OTHER, None)
            await steps.end()
        assert taken.done()

    run(scenario)
