"""Random histories of a classic group: clients with lost and late requests, coordinators that die, move and disagree.

Each seed is one history. What must hold in all of them:

* A generation is stored once; only the member ids of static members that return change in it.
* What a SyncGroup answers is stored, and is what one SyncGroup of the leader of that generation gave.
* Every request is answered; no client is fenced, because no two have the same instance id.
* When the faults end, the living members share one generation; when they leave, the group is empty.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from operator import methodcaller
from typing import Any, TypeVar

import pytest

from tests.helpers.virtual_loop import run
from tests.unit.gateway.generations import Chain
from txnstore.errors import StorageError, UnknownOutcomeError
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.model import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    StoredGeneration,
    SyncRequest,
    SyncResponse,
)
from txnstore.gateway.properties import Properties
from txnstore.runtime import Runtime

T = TypeVar("T")
SESSION, REBALANCE = 6_000, 10_000
#: No request waits longer than for two phases of a rebalance, and the slow storage.
PATIENCE = (3 * REBALANCE + 30_000) / 1000
CHAOS = 60.0
CALM = 45.0


class Closed(Exception):  # noqa: N818 - what happens to a connection
    """The connection is closed, or the client has given up."""


class Again(Exception):  # noqa: N818 - what the client does
    """The client joins again."""


@dataclass(eq=False)
class Node:
    """One process of a gateway."""

    groups: GroupCoordinator
    died: asyncio.Future[None]

    def kill(self) -> None:
        for task in [*self.groups._tasks, *self.groups._loads.values()]:
            task.cancel()
        for live in [*self.groups._groups.values()]:
            self.groups._forget(live)
        self.died.set_result(None)


async def first_of(one: asyncio.Future[Any], other: asyncio.Future[Any], seconds: float | None) -> None:
    """Wait until one of them is done, or the time is over."""
    await asyncio.wait({one, other}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


@dataclass
class World:
    """What the clients and the coordinators of one history share."""

    rng: random.Random
    chain: Chain
    nodes: list[Node] = field(default_factory=list)
    owner: int = 0
    #: The owner that each node believes in.
    beliefs: list[int] = field(default_factory=lambda: [0, 0])
    chaos: bool = True
    #: How often the storage takes seconds.
    slow: float = 0.01
    #: What leaders have sent: by the text that their assignments begin with.
    sent: dict[str, tuple[int, str, dict[str, bytes]]] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=count)
    late: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(self, place: int) -> Node:
        properties = Properties(group_initial_rebalance_delay_ms=1_000)
        loop, error = asyncio.get_running_loop(), self.rng.randrange(500)
        runtime = Runtime(clock=lambda: int(loop.time() * 1000) + error, rng=self.rng)
        groups = GroupCoordinator(self.chain, properties, runtime, lambda _group: self.beliefs[place] == place)
        return Node(groups, asyncio.get_running_loop().create_future())

    def often(self, probability: float) -> bool:
        return self.chaos and self.rng.random() < probability

    def seconds(self) -> float:
        return self.rng.choice([0.0, 0.01, 0.05, 0.3]) + (self.rng.uniform(2, 8) if self.often(self.slow) else 0.0)

    def fail(self, when: str) -> None:
        if self.often(0.04):
            raise UnknownOutcomeError("lost") if when == "stored" else StorageError("refused")

    def find(self) -> Node:
        return self.nodes[self.rng.randrange(2) if self.often(0.25) else self.owner]

    async def ask(self, node: Node, request: Callable[[GroupCoordinator], Awaitable[T]], *, late: bool = True) -> T:
        """Send a request; it or its answer may be lost, or ``late``, and the process may die."""
        handled = asyncio.create_task(self._handle(node, request))
        self.late.add(handled)
        handled.add_done_callback(self.late.discard)
        limit = self.rng.uniform(0.0, 2.0) if self.often(0.05) else None
        if self.often(0.02):
            handled.cancel()  # the connection is closed while the request is handled
        await first_of(handled, node.died, limit)
        if not handled.done() and not late:
            handled.cancel()
        if not handled.done() or handled.cancelled() or self.often(0.03):
            raise Closed
        return handled.result()

    async def _handle(self, node: Node, request: Callable[[GroupCoordinator], Awaitable[T]]) -> T:
        await asyncio.sleep(self.rng.choice([0.0, 0.001, 0.1]) + (3.0 if self.often(0.03) else 0.0))
        if node.died.done():
            raise asyncio.CancelledError
        answer = asyncio.ensure_future(request(node.groups))
        try:
            await first_of(answer, node.died, PATIENCE)
            assert answer.done() or node.died.done(), "a request is never answered"
            if not answer.done():
                raise asyncio.CancelledError
            return answer.result()
        finally:
            answer.cancel()

    async def disturb(self) -> None:
        """Kill coordinators, and move the group; the coordinators notice it sooner or later."""
        while self.chaos:
            await asyncio.sleep(self.rng.uniform(1, 20))
            place = self.rng.randrange(2)
            if self.rng.random() < 0.5:
                self.nodes[place].kill()
                self.nodes[place] = self.start(place)
            else:
                self.owner = self.beliefs[place] = place
            if self.rng.random() < 0.6:
                self.beliefs[1 - self.owner] = self.owner  # until then, both coordinate the group
                self.nodes[1 - self.owner].groups.release()
        self.beliefs = [self.owner, self.owner]
        for node in self.nodes:
            node.groups.release()


class Client:
    """A consumer that behaves as Kafka's does: one request at a time, and heartbeats between rebalances."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self._world = world
        self._name = name
        self._instance_id = instance_id
        self._member_id = ""
        self._subscription = 0
        self._version = world.rng.choice([3, 4, 8, 9, 9])
        self.generation = -1
        self.leaves = False
        self.left = False

    @property
    def member_id(self) -> str:
        return self._member_id

    async def run(self) -> None:
        while not self.left:
            try:
                node = self._world.find()
                await self._join_and_sync(node)
                await self._beat(node)
            except (Closed, Again):
                await asyncio.sleep(self._world.rng.uniform(0.0, 1.0))

    async def _join_and_sync(self, node: Node) -> None:
        self.generation = -1
        request = JoinRequest(
            "g",
            self._member_id,
            self._instance_id,
            "consumer",
            (("range", f"{self._subscription}".encode()),),
            SESSION,
            REBALANCE,
            self._name,
            "host",
            self._version,
        )
        answer: JoinResponse = await self._world.ask(
            node,
            methodcaller("join", request),
            # A late one without a member id is a second client of its name, before which the living one is fenced. A
            # gateway begins no request of a closed connection.
            late=bool(self._member_id),
        )
        if answer.error is Code.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        self._check(answer.error)
        self._member_id = answer.member_id
        leads = answer.leader == self._member_id and not answer.skip_assignment
        given = self._assign(answer) if leads else {}
        sync = SyncRequest(
            "g", answer.generation, self._member_id, self._instance_id, "consumer", "range", tuple(given.items())
        )
        synced: SyncResponse = await self._world.ask(node, methodcaller("sync", sync))
        self._check(synced.error)
        self._verify(answer.generation, synced.assignment)
        self.generation = answer.generation

    def _assign(self, answer: JoinResponse) -> dict[str, bytes]:
        text = f"{next(self._world.numbers)}"
        given = {member.member_id: f"{text}:{place}".encode() for place, member in enumerate(answer.members)}
        self._world.sent[text] = (answer.generation, self._member_id, given)
        return given

    def _verify(self, number: int, assignment: bytes) -> None:
        """The assignment is stored for this member; an overtaken answer may be of an earlier entry of the number."""
        stored = [generation for _, generation in self._world.chain.history if generation.generation == number]
        assert stored, "an assignment is answered that is not stored"
        ours = [member.assignment for each in stored for member in each.members if member.member_id == self._member_id]
        assert ours, "a member has an assignment of a generation without it"
        assert set(ours) == {assignment}

    async def _beat(self, node: Node) -> None:
        rng = self._world.rng
        while True:
            await asyncio.sleep(rng.uniform(1.0, 2.0))
            if self.leaves:
                await self._leave(node)
            if self._world.often(0.06):
                self._mishap()
            request = HeartbeatRequest("g", self.generation, self._member_id, self._instance_id)
            answer: HeartbeatResponse = await self._world.ask(node, methodcaller("heartbeat", request))
            self._check(answer.error)

    def _mishap(self) -> None:
        """The client restarts without leaving, subscribes to something else, or asks for a rebalance."""
        match self._world.rng.randrange(3):
            case 0:
                self._restart()
            case 1:
                self._subscription += 1
        raise Again

    def _restart(self) -> None:
        self._member_id = ""
        self.generation = -1

    async def _leave(self, node: Node) -> None:
        request = LeaveRequest("g", (LeavingMember(self._member_id, self._instance_id, "close"),))
        answer: LeaveResponse = await self._world.ask(node, methodcaller("leave", request))
        self._check(answer.error)
        self.left = True
        self.generation = -1
        raise Again

    def _check(self, code: Code) -> None:
        match code:
            case Code.NONE:
                return
            case Code.UNKNOWN_MEMBER_ID:
                self._restart()
        assert code in _EXPECTED, code
        raise Again


_EXPECTED = {
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.ILLEGAL_GENERATION,
    Code.UNKNOWN_MEMBER_ID,
    Code.REBALANCE_IN_PROGRESS,
    Code.MEMBER_ID_REQUIRED,
}


def check_history(world: World) -> None:
    """Generations only grow, and each has the assignment that one request of its leader gave."""
    first: dict[int, StoredGeneration] = {}
    last = -1
    for _, stored in world.chain.history:
        assert stored.generation >= last
        last = stored.generation
        before = first.setdefault(last, stored)
        assert [member.assignment for member in _ordered(before)] == [
            member.assignment for member in _ordered(stored)
        ], "two generations of one number"
        if stored is before and stored.members:
            texts = {member.assignment.partition(b":")[0].decode() for member in stored.members}
            assert len(texts) == 1
            number, leader, given = world.sent[texts.pop()]
            assert (number, leader) == (stored.generation, stored.leader)
            assert {member.member_id: member.assignment for member in stored.members}.items() <= given.items()


def _ordered(stored: StoredGeneration) -> list[Any]:
    return sorted(stored.members, key=lambda member: member.assignment)


async def scenario(seed: int) -> None:
    rng = random.Random(seed)
    chain = Chain()
    world = World(rng, chain, slow=0.3 if seed % 4 > 1 else 0.01)
    chain.seconds, chain.fail = world.seconds, world.fail
    world.nodes = [world.start(0), world.start(1)]
    clients = [Client(world, f"c{number}", f"i{number}" if number < 2 else None) for number in range(5)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    disturbing = asyncio.create_task(world.disturb())
    await asyncio.sleep(CHAOS)
    world.chaos = False
    await disturbing
    leaving = rng.sample(clients, rng.randrange(len(clients)))
    for client in leaving:
        client.leaves = True
    await asyncio.sleep(CALM)
    check_history(world)
    stayed = [client for client in clients if client not in leaving]
    stored = chain.stored()
    assert stored is not None
    assert {client.generation for client in stayed} == {stored.generation}
    assert sorted(client.member_id for client in stayed) == sorted(member.member_id for member in stored.members)
    for client in stayed:
        client.leaves = True
    await asyncio.sleep(CALM)
    for task in tasks:
        assert task.done()
        task.result()
    check_history(world)
    stored = chain.stored()
    assert stored is not None
    assert stored.members == ()
    assert all(not node.groups.list() for node in world.nodes)
    assert not world.late


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 10))])
def test_random_histories(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        try:
            run(scenario(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
