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
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.virtual_loop import run
from tests.unit.gateway.classic_group import heartbeat_request, join_request, leave_request, sync_request
from tests.unit.gateway.gateways import Chain, Gateway
from txnstore.core.groups.commands import StoreGeneration
from txnstore.errors import StorageError, UnknownOutcomeError
from txnstore.runtime import Runtime

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

    gateway: Gateway
    died: asyncio.Future[None]

    def kill(self) -> None:
        groups = self.gateway.classic
        for task in [*groups._tasks]:
            task.cancel()
        for live in [*groups._groups.values()]:
            groups._forget(live)
        self.died.set_result(None)


async def first_of(one: asyncio.Future[Any], other: asyncio.Future[Any], seconds: float | None) -> None:
    """Wait until one of them is done, or the time has passed."""
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
        loop, error = asyncio.get_running_loop(), self.rng.randrange(500)
        runtime = Runtime(clock=lambda: int(loop.time() * 1000) + error, rng=self.rng)
        gateway = Gateway(
            self.chain, lambda: self.beliefs[place] == place, runtime, group_initial_rebalance_delay_ms=1_000
        )
        return Node(gateway, loop.create_future())

    def often(self, probability: float) -> bool:
        return self.chaos and self.rng.random() < probability

    def seconds(self) -> float:
        return self.rng.choice([0.0, 0.01, 0.05, 0.3]) + (self.rng.uniform(2, 8) if self.often(self.slow) else 0.0)

    def fail(self, when: str) -> None:
        if self.often(0.04):
            raise UnknownOutcomeError("lost") if when == "committed" else StorageError("refused")

    def find(self) -> Node:
        return self.nodes[self.rng.randrange(2) if self.often(0.25) else self.owner]

    async def ask(self, node: Node, request: Any, *, late: bool = True) -> Mapping[str, Any]:
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

    async def _handle(self, node: Node, request: Any) -> Mapping[str, Any]:
        await asyncio.sleep(self.rng.choice([0.0, 0.001, 0.1]) + (3.0 if self.often(0.03) else 0.0))
        if node.died.done():
            raise asyncio.CancelledError
        answer = asyncio.ensure_future(node.gateway.send(request))
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
                self.nodes[1 - self.owner].gateway.classic.release()
        self.beliefs = [self.owner, self.owner]
        for node in self.nodes:
            node.gateway.classic.release()


class Client:
    """A consumer that behaves as Kafka's does: one request at a time, and heartbeats between rebalances."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self._world = world
        self._name = name
        self._instance_id = instance_id
        self._member_id = ""
        self._subscription = 0
        self._version = world.rng.choice([3, 4, 8, 9, 9] if instance_id is None else [5, 8, 9, 9])
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
        request = join_request(
            self._member_id,
            self._instance_id,
            protocols=(("range", f"{self._subscription}".encode()),),
            session=SESSION,
            rebalance=REBALANCE,
            version=self._version,
        )
        # A late one without a member id is a second client of its name, before which the living one is fenced. A
        # gateway begins no request of a closed connection.
        answer = await self._world.ask(node, request, late=bool(self._member_id))
        if answer["error_code"] is ErrorCode.member_id_required:
            self._member_id = answer["member_id"]
        self._check(answer["error_code"])
        self._member_id = answer["member_id"]
        leads = answer["leader"] == self._member_id and not answer.get("skip_assignment", False)
        given = self._assign(answer) if leads else {}
        generation = answer["generation_id"]
        synced = await self._world.ask(node, sync_request(self._member_id, generation, given, self._instance_id))
        self._check(synced["error_code"])
        self._verify(generation, synced["assignment"])
        self.generation = generation

    def _assign(self, answer: Mapping[str, Any]) -> dict[str, bytes]:
        text = f"{next(self._world.numbers)}"
        members = enumerate(answer["members"])
        given = {member["member_id"]: f"{text}:{place}".encode() for place, member in members}
        self._world.sent[text] = (answer["generation_id"], self._member_id, given)
        return given

    def _verify(self, number: int, assignment: bytes) -> None:
        """The assignment is stored for this member; an overtaken answer may be of an earlier entry of the number."""
        stored = [generation for generation in self._world.chain.generations if generation.generation == number]
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
            request = heartbeat_request(self._member_id, self.generation, self._instance_id)
            self._check((await self._world.ask(node, request))["error_code"])

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
        request = leave_request((self._member_id, self._instance_id))
        self._check((await self._world.ask(node, request))["error_code"])
        self.left = True
        self.generation = -1
        raise Again

    def _check(self, code: ErrorCode) -> None:
        match code:
            case ErrorCode.none:
                return
            case ErrorCode.unknown_member_id:
                self._restart()
        assert code in _EXPECTED, code
        raise Again


_EXPECTED = {
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.member_id_required,
}


def check_history(world: World) -> None:
    """Generations only grow, and each has the assignment that one request of its leader gave."""
    first: dict[int, StoreGeneration] = {}
    last = -1
    for stored in world.chain.generations:
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


def _ordered(stored: StoreGeneration) -> list[Any]:
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
    stored = chain.group()
    assert {client.generation for client in stayed} == {stored.generation}
    assert sorted(client.member_id for client in stayed) == [member.member_id for member in stored.classic_members]
    for client in stayed:
        client.leaves = True
    await asyncio.sleep(CALM)
    for task in tasks:
        assert task.done()
        task.result()
    check_history(world)
    assert chain.group().classic_members == ()
    assert all(not node.gateway.classic.live_groups() for node in world.nodes)
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
