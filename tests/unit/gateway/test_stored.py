"""What a gateway loads of the generations in the chain."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tests.helpers.chains import process
from tests.helpers.connections import connection_of
from tests.helpers.groups import client, generation
from txnstore.gateway.commits import Commits
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.stored import ChainGenerations
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


def test_what_another_gateway_has_stored_is_loaded() -> None:
    """Its members would be told that they are none, and a leader's assignment be refused."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    before = connection_of(process(bucket, clock, chains=1))
    connection = connection_of(process(bucket, clock))

    async def main() -> None:
        with ThreadPoolExecutor() as threads:
            freshness = Freshness(connection, threads)
            generations = ChainGenerations(connection, freshness, Commits(connection, threads, freshness.note))
            assert await generations.load("g") is None
            before.chain.submit(generation(1, client("a"), expected=-1))
            stored = await generations.load("g")
            assert stored is not None
            assert (stored.generation, [member.member_id for member in stored.members]) == (1, ["a"])

    asyncio.run(main())
