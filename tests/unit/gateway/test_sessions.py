"""Clients of transactions v1 at a gateway: whose transaction a request ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.core import World
from tests.helpers.sessions import session
from txnstore.core.model import Outcome
from txnstore.gateway.commits import Commits
from txnstore.gateway.errors import EndedMeanwhileError
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.sessions import Sessions


def test_an_end_that_its_client_has_repeated_elsewhere_does_not_end_the_next_transaction() -> None:
    """TV2-02: its look at the head takes so long that it finds the next one."""
    world = World(partitions=1)
    client = session(world)
    client.send()
    freshness: Any = SimpleNamespace(view=world.state)

    async def head() -> Any:
        client.finish(Outcome.COMMIT)  # Another gateway has ended it, and the client goes on.
        client.send()
        freshness.view = world.state
        return world.state

    freshness.head = head
    sessions = Sessions(cast("Freshness", freshness), cast("Commits", None))
    with pytest.raises(EndedMeanwhileError):
        asyncio.run(sessions.to_end(client.client))
    head_now = SimpleNamespace(view=world.state, head=lambda: asyncio.sleep(0, world.state))
    again = Sessions(cast("Freshness", head_now), cast("Commits", None))
    assert asyncio.run(again.to_end(client.client)) == client.identity


def test_a_gateway_that_does_not_know_the_client_takes_what_it_finds() -> None:
    world = World(partitions=1)
    before = world.state
    client = session(world)
    client.send()
    freshness = SimpleNamespace(view=before, head=lambda: asyncio.sleep(0, world.state))
    sessions = Sessions(cast("Freshness", freshness), cast("Commits", None))
    assert asyncio.run(sessions.to_end(client.client)) == client.identity
