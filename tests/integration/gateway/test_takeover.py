"""The groups that a gateway takes over from another one."""

from __future__ import annotations

import asyncio
import socket

from tests.helpers.chains import process
from tests.helpers.connections import connection_of
from tests.helpers.groups import client, generation
from txnstore.gateway.gateway import Gateway
from txnstore.gateway.properties import Properties
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


def test_gateway_takes_over_what_the_one_before_has_stored_last() -> None:
    """Though it has not read the chain since: no other gateway would time the members, whose clients may have ended."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    before = connection_of(process(bucket, clock, chains=1))
    connection = connection_of(process(bucket, clock))

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            gateway = Gateway(connection, Properties(), bound)
            before.chain.submit(generation(1, client("a"), expected=-1))
            gateway._on_peer_change()
            first = gateway._taking_over
            gateway._on_peer_change()  # Another peer has ended meanwhile.
            assert first is not None
            assert gateway._taking_over is not None
            await asyncio.wait({first, gateway._taking_over})
            assert first.cancelled()
            classic, _ = gateway._coordinators
            await asyncio.gather(*classic._tasks)
            assert list(classic.live_groups()) == ["g"]
            await gateway.close()

    asyncio.run(main())
