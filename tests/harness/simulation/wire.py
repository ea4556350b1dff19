"""Clients of gateways: requests that are lost, given up or late, at one gateway or the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, cast

from kio.index import load_request_schema

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.loops import Waiter
from tests.harness.simulation.nodes import Call, Node
from tests.harness.simulation.storage import Step
from tests.harness.simulation.world import Process, World
from txnstore.gateway.apis import Api
from txnstore.gateway.wire import Request, build

#: How long a client waits for an answer.
_TIMEOUT_MS = 40_000
#: How often a client repeats a request.
ATTEMPTS = 12

NONE, UNKNOWN_SERVER_ERROR = 0, -1
ILLEGAL_GENERATION, INCONSISTENT, UNKNOWN_MEMBER, REBALANCING = 22, 23, 25, 27
NOT_AVAILABLE, NOT_COORDINATOR, LOADING = 15, 16, 14
MEMBER_ID_REQUIRED, FENCED_INSTANCE = 79, 82
FENCED_EPOCH, UNRELEASED, STALE_EPOCH = 110, 111, 113
#: After these a client of a group looks for the coordinator, and repeats the request.
ELSEWHERE = frozenset({NOT_AVAILABLE, NOT_COORDINATOR, LOADING})


class Unanswered(Exception):  # noqa: N818 - what happens to a request
    """There is no answer, and there will be none. The request may have its effect, now or later."""


class _Fate(Enum):
    FINE = auto()
    LOST = auto()
    UNANSWERED = auto()
    GIVEN_UP = auto()
    LATE = auto()


class WireClient(Actor):
    """A program with one of Kafka's clients. It has no process that opens the store."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.waiter = Waiter(world.scheduler)
        #: The gateway that it is connected to; None: any.
        self.node: Node | None = None
        world.clients.add(name)

    def live(self, process: Process) -> None:
        """It has no process."""

    @abstractmethod
    def program(self) -> None:
        """One run of the program; decrements ``left``."""

    def run(self) -> None:
        while self.left > 0:
            self.client = self.world._incarnation(self.name)
            self.node = None
            self.program()
            self.left -= 1
            if self.left > 0:
                self.pause(self.rng.choice((10, 1_000, 60_000)))
        self.world.clients.discard(self.name)
        if not self.world.clients:
            for node in self.world.nodes:
                node.end()

    def breathe(self) -> None:
        self.pause(self.world.settings.pace_ms if self.rng.random() < 0.97 else 120_000)

    # Requests ---------------------------------------------------------------------------------------------------------

    def connect(self, group: str | None = None) -> Node:
        """The gateway to ask: the coordinator of a group as some gateway names it, or the one that was asked before.

        Raises:
            Unanswered: No gateway is there.
        """
        if self.node is not None and self.node.is_up and self.rng.random() < 0.95:
            return self.node
        live = [node for node in self.world.nodes if node.is_up]
        if not live:
            self.pause(2_000)
            raise Unanswered
        node = self.rng.choice(live)
        if group is not None and self.rng.random() < 0.95:
            node = node.leader(group)
        self.node = node
        return node

    def ask(
        self, api: Api, version: int, fields: Mapping[str, Any], *, group: str | None = None, late: bool = True
    ) -> Mapping[str, Any]:
        """Send a request and wait for its answer.

        Args:
            api: The API.
            version: The version of the request.
            fields: Its fields.
            group: The group whose coordinator is asked; None: any gateway.
            late: Whether the request may arrive after its client has given it up and continued.

        Raises:
            Unanswered: There is no answer.
        """
        node = self.connect(group)
        body = build(cast("type", load_request_schema(int(api), version)), fields)
        request = Request(int(api), version, 1, self.label, body)
        fate, scheduler = self._fate(late=late), self.world.scheduler
        call = Call(request, self.waiter)
        began = scheduler.now
        scheduler.sleep(self.rng.randint(1, 10))
        if fate is _Fate.LATE:
            delay, other = self.rng.choice((50, 5_000, 100_000)), self.rng.choice(self.world.nodes)
            scheduler.later(delay, lambda: other.arrive(Call(request, Waiter(scheduler))))
        elif fate is not _Fate.LOST:
            node.arrive(call)
            limit = self.rng.randint(1, 3_000) if fate is _Fate.GIVEN_UP else _TIMEOUT_MS
            until = scheduler.now + limit
            while not call.is_done and scheduler.now < until:
                self.waiter.wait(until - scheduler.now)
        answer = None if fate in (_Fate.UNANSWERED, _Fate.GIVEN_UP) and call.answer is not None else call.answer
        outcome = "no answer" if answer is None else str(answer.get("error_code", "answered"))
        step = Step(began, self.client, api.name.lower(), node.name, "" if fate is _Fate.FINE else fate.name, outcome)
        self.world.trace.append(step)
        if answer is None:
            if not call.is_closed:
                self.node = None
            self.pause(500)
            raise Unanswered
        if answer.get("error_code") == UNKNOWN_SERVER_ERROR:
            self.world.anomalies.append(f"unknown-server-error: {self.client} {api.name}")
        return answer

    def _fate(self, *, late: bool) -> _Fate:
        settings = self.world.settings
        if not settings.mishaps or self.rng.random() >= settings.rate:
            return _Fate.FINE
        fates = [_Fate.LOST, _Fate.UNANSWERED, _Fate.GIVEN_UP]
        return self.rng.choice([*fates, _Fate.LATE] if late else fates)

    def odd(self, what: str, code: int) -> None:
        """Report a code that this request should not get."""
        self.world.anomalies.append(f"unexpected-code: {self.client} {what}: {code}")


def code_of(answer: Mapping[str, Any]) -> int:
    """The code of a response."""
    return int(answer.get("error_code", NONE))
