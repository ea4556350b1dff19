"""Clients of transactions v1 at a gateway: for which transaction a request is, whatever its look at the heads finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.helpers.core import T0, World, offsets
from tests.helpers.sessions import SessionClient, session
from txnstore.core.log.commands import Append
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import InvalidTxnStateError, ProducerFencedError
from txnstore.gateway.errors import EndedMeanwhileError
from txnstore.gateway.sessions import Sessions

T1 = TopicPartition("t", 1)


class Gateway:
    """What a gateway knows of a world; the heads, and commits, find what a client does ``meanwhile``."""

    def __init__(self, world: World, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.world = world
        self.meanwhile = meanwhile
        self.before_commit: Callable[[], Any] = lambda: None
        self.view_at_arrival = self.view = world.state
        self.sessions = Sessions(cast("Any", self), cast("Any", self))

    async def head(self) -> Any:
        self.meanwhile()
        self.view = self.world.state
        return self.view

    def submit(self, command: Command, _principal: str | None) -> asyncio.Future[Any]:
        self.before_commit()
        answer = asyncio.get_running_loop().create_future()
        try:
            answer.set_result(self.world.do(command))
        except Exception as error:  # noqa: BLE001 - The caller of this command gets it.
            answer.set_exception(error)
        return answer

    def identity(self, client: SessionClient) -> ProducerIdentity:
        return asyncio.run(self.sessions.identity(client.client))

    def end(self, client: SessionClient, outcome: Outcome = Outcome.COMMIT) -> None:
        asyncio.run(self.sessions.end(client.client, outcome, None))

    def commit_offsets(self, client: SessionClient, positions: dict[TopicPartition, int]) -> None:
        append = Append(client.client, offsets=(offsets(positions),), added_only=True)
        asyncio.run(self.sessions.commit(client.client, lambda identity: replace(append, producer=identity), None))


def _world() -> tuple[World, SessionClient]:
    world = World(partitions=2)
    return world, session(world)


def _next(client: SessionClient) -> None:
    """The client has repeated the end at another gateway, and continues: its next transaction is open."""
    client.finish(Outcome.COMMIT)
    _begin(client)


def _begin(client: SessionClient) -> None:
    client.send()
    client.send_offsets({T0: 1})


def _is_open(world: World, client: SessionClient) -> bool:
    return world.state.transactions[client.client.transactional_id or ""].state is TxnState.ONGOING


# Ends -----------------------------------------------------------------------------------------------------------------


def test_an_end_that_its_client_has_repeated_elsewhere_does_not_end_the_next_transaction() -> None:
    """TV2-02: its look at the heads takes so long that it finds the next one."""
    world, client = _world()
    _begin(client)
    with pytest.raises(EndedMeanwhileError):
        Gateway(world, lambda: _next(client)).end(client)
    assert _is_open(world, client)
    Gateway(world).end(client)
    assert not _is_open(world, client)


def test_a_repeated_end_does_not_end_the_next_transaction() -> None:
    """It arrives when the transaction has ended, and the next one begins while it looks at the heads."""
    world, client = _world()
    client.transact()
    with pytest.raises(EndedMeanwhileError):
        Gateway(world, lambda: _begin(client)).end(client)
    assert _is_open(world, client)


def test_a_repeated_end_does_not_end_a_transaction_that_begins_before_its_commit() -> None:
    world, client = _world()
    client.transact()
    gateway = Gateway(world)
    gateway.before_commit = lambda: _begin(client)
    with pytest.raises(EndedMeanwhileError):
        gateway.end(client)
    assert _is_open(world, client)


def test_an_end_at_a_gateway_that_does_not_know_the_client_does_not_end_the_next_transaction() -> None:
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    _begin(client)
    gateway.meanwhile = lambda: _next(client)
    with pytest.raises(EndedMeanwhileError):
        gateway.end(client)
    assert _is_open(world, client)


def test_a_repeated_end_is_answered_as_the_first_one_at_once() -> None:
    """Also at a gateway that knows the transaction as open."""
    world, client = _world()
    _begin(client)
    Gateway(world, lambda: client.finish(Outcome.COMMIT) if _is_open(world, client) else None).end(client)
    Gateway(world).end(client)
    with pytest.raises(InvalidTxnStateError):
        Gateway(world).end(client, Outcome.ABORT)


def test_an_end_without_a_transaction_is_refused() -> None:
    world, client = _world()
    with pytest.raises(InvalidTxnStateError):
        Gateway(world).end(client)


# Offsets --------------------------------------------------------------------------------------------------------------


def test_offsets_get_into_the_transaction_that_was_known_when_they_arrived() -> None:
    world, client = _world()
    _begin(client)
    Gateway(world).commit_offsets(client, {T1: 7})
    client.finish(Outcome.COMMIT)
    assert world.state.groups["g"].offsets[T1].value.offset == 7


@pytest.mark.parametrize("is_known", [True, False])
def test_offsets_that_their_client_has_given_up_do_not_get_into_the_next_transaction(is_known: bool) -> None:
    """OFF-02: the request waits, for the rules or a topic or the client, until the next one has the group as well."""
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    _begin(client)
    if is_known:
        gateway = Gateway(world)
        _next(client)
        gateway.view = world.state  # Read while the request waited.
    else:
        gateway.meanwhile = lambda: _next(client)
    with pytest.raises(EndedMeanwhileError):
        gateway.commit_offsets(client, {T1: 7})
    gateway.meanwhile = lambda: None
    client.finish(Outcome.COMMIT)
    assert T1 not in world.state.groups["g"].offsets


def test_offsets_get_into_the_first_transaction_at_a_gateway_that_does_not_know_the_client() -> None:
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    _begin(client)
    gateway.commit_offsets(client, {T1: 7})
    client.finish(Outcome.COMMIT)
    assert world.state.groups["g"].offsets[T1].value.offset == 7


# Batches --------------------------------------------------------------------------------------------------------------


def test_a_batch_that_its_client_has_given_up_does_not_get_into_the_next_transaction() -> None:
    """SEQ-03: the next one would have its records, and the client's own would be taken for the repetition."""
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    client.send()
    gateway.meanwhile = lambda: (client.finish(Outcome.ABORT), client.send())
    with pytest.raises(EndedMeanwhileError):
        gateway.identity(client)
    assert Gateway(world).identity(client) == client.identity


def test_a_batch_of_the_first_transaction_of_a_client_that_is_not_known_is_not_repeated() -> None:
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    client.send()
    assert gateway.identity(client) == client.client


def test_a_batch_of_a_fenced_client_is_refused_at_a_gateway_that_does_not_know_it() -> None:
    world = World(partitions=2)
    gateway = Gateway(world)
    client = session(world)
    gateway.meanwhile = lambda: session(world)
    with pytest.raises(ProducerFencedError):
        gateway.identity(client)
