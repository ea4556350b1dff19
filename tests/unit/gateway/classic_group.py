"""A classic group under test: its requests by short names, its clock, and what it stores."""

from __future__ import annotations

from itertools import count
from typing import Any

from txnstore.core.groups.model import ClassicMember
from txnstore.gateway.groups.classic import Action, Answer, ClassicGroup, Store
from txnstore.gateway.groups.model import (
    Code,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    State,
    StoredGeneration,
    SyncRequest,
    SyncResponse,
)
from txnstore.gateway.properties import Properties

RANGE = (("range", b"subscription"),)
#: Of a wall clock that is wrong: member ids of static members are numbered from 1.
EPOCH = -(10**9)
SESSION, REBALANCE, DELAY = 10_000, 30_000, 3_000


class Group:
    """A machine whose generations are stored at once, unless ``slow``."""

    def __init__(self, stored: StoredGeneration | None = None, *, slow: bool = False, **properties: Any) -> None:
        ids = count(1)
        self.now = 1_000_000
        self.slow = slow
        self.stores: list[Store] = []
        self.chain: list[StoredGeneration] = []
        self._answers: dict[int, JoinResponse | SyncResponse | LeaveResponse] = {}
        self._tokens = count(1)
        self.machine = ClassicGroup(
            "g", Properties(**properties), lambda: f"id{next(ids)}", stored, self.now, epoch=EPOCH
        )

    # --- requests: each returns a token, by which `joined`, `synced` and `left` find the answer

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        *,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session: int = SESSION,
        rebalance: int = REBALANCE,
        version: int = 3,
        client: str = "client",
    ) -> int:
        token = next(self._tokens)
        request = JoinRequest(
            "g", member_id, instance_id, protocol_type, protocols, session, rebalance, client, "host", version, "test"
        )
        self._do(self.machine.join(request, token, self.now))
        return token

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
        **names: Any,
    ) -> int:
        token = next(self._tokens)
        of = self.machine.generation if generation is None else generation
        names = {"protocol_type": "consumer", "protocol": "range", **names}
        request = SyncRequest("g", of, member_id, instance_id, assignments=tuple((assignments or {}).items()), **names)
        self._do(self.machine.sync(request, token, self.now))
        return token

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> Code:
        of = self.machine.generation if generation is None else generation
        return self.machine.heartbeat(HeartbeatRequest("g", of, member_id, instance_id), self.now).error

    def leave(self, *members: str | tuple[str, str | None]) -> int:
        token = next(self._tokens)
        leaving = tuple(LeavingMember(*((name, None) if isinstance(name, str) else name)) for name in members)
        self._do(self.machine.leave(LeaveRequest("g", leaving), token, self.now))
        return token

    # --- answers

    def waits(self, token: int) -> bool:
        return token not in self._answers

    def joined(self, token: int) -> JoinResponse:
        answer = self._answers[token]
        assert isinstance(answer, JoinResponse)
        return answer

    def synced(self, token: int) -> SyncResponse:
        answer = self._answers[token]
        assert isinstance(answer, SyncResponse)
        return answer

    def left(self, token: int) -> LeaveResponse:
        answer = self._answers[token]
        assert isinstance(answer, LeaveResponse)
        return answer

    def errors_of_leave(self, token: int) -> list[Code]:
        return [member.error for member in self.left(token).members]

    # --- time and the chain

    def advance(self, ms: int, *, beating: tuple[str, ...] = ()) -> None:
        """Let time pass; members in ``beating`` send heartbeats every second."""
        end = self.now + ms
        while self.now < end:
            deadline = self.machine.deadline
            self.now = min(end, self.now + 1000 if beating else end, end if deadline is None else deadline)
            for member_id in beating:
                self.heartbeat(member_id)
            self._do(self.machine.tick(self.now))

    def store(self) -> None:
        """Finish the generation that is being stored."""
        store = self.stores.pop(0)
        self.chain.append(store.generation)
        self._do(self.machine.stored(self.now))

    def end(self, code: Code) -> None:
        self._do(self.machine.end(code))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                assert isinstance(action.token, int)
                assert action.token not in self._answers, "a request is answered twice"
                self._answers[action.token] = action.response
            else:
                assert not self.stores, "two generations are being stored at the same time"
                assert action.expected == (self.chain[-1] if self.chain else action.expected)
                self.stores.append(action)
        if not self.slow and self.stores:
            self.store()

    # --- states: methods, because a type checker takes a property for constant

    def state(self) -> State:
        return self.machine.state

    def idle(self) -> bool:
        return self.machine.idle

    def deadline(self) -> int | None:
        return self.machine.deadline

    def members(self) -> list[str]:
        return [member.member_id for member in self.machine.describe().members]

    def completing(self, *instances: str | None, **options: Any) -> list[str]:
        """Let members join, after which the leader's SyncGroup is awaited; the first one leads."""
        tokens = [self.join("", instance_id, **options) for instance_id in instances]
        self.advance(2 * DELAY)
        assert self.state() is State.COMPLETING_REBALANCE
        return [self.joined(token).member_id for token in tokens]

    def stable(self, *instances: str | None, **options: Any) -> list[str]:
        """Let members join and sync; each is assigned its member id."""
        ids = self.completing(*instances, **options)
        self.assign(ids)
        assert self.state() is State.STABLE
        return ids

    def assign(self, ids: list[str]) -> list[int]:
        tokens = [self.sync(member_id) for member_id in ids[1:]]
        return [self.sync(ids[0], assignments={member_id: member_id.encode() for member_id in ids}), *tokens]


def generation(number: int, *ids: str, protocol: str = "range", instances: bool = False) -> StoredGeneration:
    """A stored generation; each member is assigned its member id."""
    members = tuple(
        ClassicMember(
            name, f"of-{name}" if instances else None, "client", "host", SESSION, REBALANCE, b"sub", name.encode()
        )
        for name in ids
    )
    return StoredGeneration(number, "consumer", protocol if ids else "", ids[0] if ids else "", members)
