"""A classic group under test: its requests by short names, its clock, and what it stores."""

from __future__ import annotations

from itertools import count
from typing import Any

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.sync_group.v5.response import SyncGroupResponse

from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import ClassicGeneration, ClassicMember
from txnstore.core.groups.model import Group as StoredGroup
from txnstore.gateway.apis import Api
from txnstore.gateway.groups.classic.group import Action, Answer, ClassicGroup, State
from txnstore.gateway.properties import Properties
from txnstore.gateway.wire import build

RANGE = (("range", b"subscription"),)
#: Of a wall clock that is wrong: member ids of static members are numbered from 1.
EPOCH = -(10**9)
SESSION, REBALANCE, DELAY = 10_000, 30_000, 3_000


def message(api: Api, version: int, **fields: Any) -> Any:
    """A request to the group ``g``."""
    schema: Any = load_request_schema(int(api), version)
    return build(schema, {"group_id": "g", **fields})


def join_request(
    member_id: str = "",
    instance_id: str | None = None,
    *,
    protocols: tuple[tuple[str, bytes], ...] = RANGE,
    session: int = SESSION,
    rebalance: int = REBALANCE,
    version: int | None = None,
    **fields: Any,
) -> Any:
    """A JoinGroup; of a version before KIP-394 unless it has an instance id."""
    return message(
        Api.JOIN_GROUP,
        (3 if instance_id is None else 8) if version is None else version,
        member_id=member_id,
        group_instance_id=instance_id,
        protocols=[{"name": name, "metadata": subscription} for name, subscription in protocols],
        session_timeout=session,
        rebalance_timeout=rebalance,
        **{"protocol_type": "consumer", "reason": "test", **fields},
    )


def sync_request(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    instance_id: str | None = None,
    version: int = 5,
    **fields: Any,
) -> Any:
    return message(
        Api.SYNC_GROUP,
        version,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance_id,
        assignments=[{"member_id": name, "assignment": given} for name, given in (assignments or {}).items()],
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def heartbeat_request(member_id: str, generation: int, instance_id: str | None = None, version: int = 4) -> Any:
    fields = {"member_id": member_id, "generation_id": generation, "group_instance_id": instance_id}
    return message(Api.HEARTBEAT, version, **fields)


def leave_request(*members: str | tuple[str, str | None]) -> Any:
    named = [(each, None) if isinstance(each, str) else each for each in members]
    leaving = [{"member_id": member_id, "group_instance_id": instance_id} for member_id, instance_id in named]
    return message(Api.LEAVE_GROUP, 5, members=leaving)


class Group:
    """A machine whose generations are stored at once, unless ``slow``."""

    def __init__(self, stored: StoredGroup | None = None, *, slow: bool = False, **properties: Any) -> None:
        ids = count(1)
        self.now = 1_000_000
        self.slow = slow
        self.stores: list[StoreGeneration] = []
        self.chain: list[StoreGeneration] = []
        self._answers: dict[int, Any] = {}
        self._tokens = count(1)
        self.machine = ClassicGroup(
            "g", Properties(**properties), lambda: f"id{next(ids)}", stored, self.now, epoch=EPOCH
        )

    # --- requests: each returns a token, by which `joined`, `synced` and `left` find the answer

    def join(
        self, member_id: str = "", instance_id: str | None = None, *, client: str = "client", **fields: Any
    ) -> int:
        token = next(self._tokens)
        request = join_request(member_id, instance_id, **fields)
        self._do(self.machine.join(request, client, "host", token, self.now))
        return token

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
        **fields: Any,
    ) -> int:
        token = next(self._tokens)
        of = self.machine.generation if generation is None else generation
        request = sync_request(member_id, of, assignments, instance_id, **fields)
        self._do(self.machine.sync(request, token, self.now))
        return token

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        of = self.machine.generation if generation is None else generation
        return self.machine.heartbeat(heartbeat_request(member_id, of, instance_id), self.now)

    def leave(self, *members: str | tuple[str, str | None]) -> int:
        token = next(self._tokens)
        self._do(self.machine.leave(leave_request(*members), token, self.now))
        return token

    # --- answers

    def waits(self, token: int) -> bool:
        return token not in self._answers

    def joined(self, token: int) -> JoinGroupResponse:
        answer: JoinGroupResponse = build(JoinGroupResponse, self._answers[token])
        return answer

    def synced(self, token: int) -> SyncGroupResponse:
        answer: SyncGroupResponse = build(SyncGroupResponse, self._answers[token])
        return answer

    def left(self, token: int) -> LeaveGroupResponse:
        answer: LeaveGroupResponse = build(LeaveGroupResponse, self._answers[token])
        return answer

    def errors_of_leave(self, token: int) -> list[ErrorCode]:
        return [member.error_code for member in self.left(token).members]

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
        self.chain.append(store)
        self._do(self.machine.stored(self.now))

    def end(self, code: ErrorCode) -> None:
        self._do(self.machine.end(code))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Answer):
                assert isinstance(action.token, int)
                assert action.token not in self._answers, "a request is answered twice"
                self._answers[action.token] = action.response
            else:
                assert not self.stores, "two generations are being stored at the same time"
                assert action.expected == (self.chain[-1].generation if self.chain else action.expected)
                self.stores.append(action)
        if not self.slow and self.stores:
            self.store()

    # --- states: methods, because a type checker takes a property for constant

    def state(self) -> State:
        return self.machine.state

    def idle(self) -> bool:
        return self.machine.is_idle

    def deadline(self) -> int | None:
        return self.machine.deadline

    def members(self) -> list[str]:
        return [member["member_id"] for member in self.machine.describe()["members"]]

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


def generation(number: int, *ids: str, protocol: str = "range", instances: bool = False) -> StoredGroup:
    """A group in the chain; each member is assigned its member id."""
    members = tuple(
        ClassicMember(
            name, f"of-{name}" if instances else None, "client", "host", SESSION, REBALANCE, b"sub", name.encode()
        )
        for name in ids
    )
    classic = ClassicGeneration("consumer", protocol if ids else None, ids[0] if ids else None, members)
    return StoredGroup(generation=number, classic=classic)


def emptied(expected: int, generation: int) -> StoreGeneration:
    """The command that stores a group without members."""
    return StoreGeneration("g", expected, generation, "consumer", None, None, ())


def in_chain(command: StoreGeneration) -> StoredGroup:
    """The group after a command."""
    classic = ClassicGeneration(command.protocol_type, command.protocol, command.leader, command.members)
    return StoredGroup(generation=command.generation, classic=classic)
