"""Members of a group on the pure core: each keeps its assignment, as a consumer does."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tests.helpers.core import World
from txnstore.core.groups.commands import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Membership,
    StoreGeneration,
    TxnOffsets,
)
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import ClassicMember, Group
from txnstore.core.model import TopicPartition

SESSION = 45_000


@dataclass
class Peer:
    """A member of group ``g`` that has joined; ``membership`` is the last answer to it."""

    world: World
    command: JoinGroup
    membership: Membership

    @property
    def member_id(self) -> str:
        return self.command.member_id

    @property
    def numbers(self) -> list[int]:
        """The partitions that it is to read."""
        return [tp.partition for tp in self.membership.assigned]

    def look(self) -> Peer:
        """Read the chain, as an idle poll does; costs no entry."""
        current = group(self.world)
        self.membership = Membership(self.member_id, current.generation, current.members[self.member_id].assigned)
        return self

    def beat(self, topics: tuple[tuple[str, int], ...] | None = None) -> Peer:
        """Renew the lease, and release the partitions that it is no longer to read."""
        self.look()
        self.membership = self.world.do(self.heartbeat(topics))
        return self

    def heartbeat(self, topics: tuple[tuple[str, int], ...] | None = None) -> Heartbeat:
        return Heartbeat("g", self.member_id, self.membership.assigned, topics, self.command.instance_id)

    def leave(self) -> None:
        self.world.do(LeaveGroup("g", self.member_id))

    def offsets(self, positions: dict[TopicPartition, int], generation: int | None = None) -> TxnOffsets:
        """Positions with its membership."""
        items = (GroupOffset(topic=tp.topic, partition=tp.partition, offset=at) for tp, at in positions.items())
        number = self.membership.generation if generation is None else generation
        return TxnOffsets("g", tuple(items), number, self.member_id, self.command.instance_id)

    def commit(self, positions: dict[TopicPartition, int]) -> None:
        self.world.do(CommitOffsets(self.offsets(positions)))


def join(world: World, member_id: str, partitions: int = 4, topic: str = "t", **options: Any) -> Peer:
    """A new member of group ``g``."""
    command = JoinGroup("g", member_id, ((topic, partitions),), session_timeout_ms=SESSION, **options)
    return Peer(world, command, world.do(command))


def group(world: World, name: str = "g") -> Group:
    return world.state.groups[name]


def client(
    member_id: str,
    topics: tuple[str, ...] = ("t",),
    instance_id: str | None = None,
    assignment: bytes = b"",
    subscription: bytes | None = None,
) -> ClassicMember:
    """A Kafka client that reads these topics."""
    data = consumer_data(*topics) if subscription is None else subscription
    return ClassicMember(member_id, instance_id, "app", "/10.0.0.1", SESSION, 300_000, data, assignment)


def consumer_data(*topics: str, partitions: tuple[int, ...] | None = None) -> bytes:
    """A subscription of Kafka's consumer protocol, or an assignment of these partitions of each topic; version 1."""
    numbers = b"" if partitions is None else struct.pack(f">{len(partitions) + 1}i", len(partitions), *partitions)
    items = b"".join(struct.pack(">h", len(name.encode())) + name.encode() + numbers for name in topics)
    return struct.pack(">hi", 1, len(topics)) + items + struct.pack(">i", -1)


def generation(number: int, *members: ClassicMember, expected: int | None = None, **options: Any) -> StoreGeneration:
    """The command that stores a generation of group ``g``, after the one before it; the first member leads."""
    leader = members[0].member_id if members else None
    options = {"protocol_type": "consumer", "protocol": "range", "leader": leader, **options}
    return StoreGeneration("g", number - 1 if expected is None else expected, number, members=members, **options)


def settle(*peers: Peer) -> list[list[int]]:
    """All members beat until none has a partition to give back; the numbers of the partitions of each."""
    for _ in range(2):
        for peer in peers:
            peer.beat()
    return [peer.look().numbers for peer in peers]
