"""Gateways that coordinate one classic group at the same time, and the check of what they have stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.harness.simulation.actor import Actor
from tests.harness.simulation.journal import events_of
from tests.harness.simulation.world import SOURCE, Process, World
from tests.helpers.connections import connection_of
from txnstore.core.groups.commands import CommitOffsets, DeleteGroup, DeleteOffsets, StoreGeneration, TxnOffsets
from txnstore.core.groups.events import GenerationStored, GroupDeleted, GroupOffset, OffsetsCommitted
from txnstore.core.groups.model import ClassicMember
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.errors import (
    FencedInstanceError,
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    StorageError,
    TxnStoreError,
    UnknownMemberError,
)

#: The group; its coordinators are all actors of this kind.
GROUP = "gateways"
_PARTITION = TopicPartition(SOURCE, 0)
#: A generation: its number and the ids of its members, which no later life of the group has.
Stored = tuple[int, frozenset[str]]


class Gateway(Actor):
    """Loads the group, stores generations after the one that it knows, and passes on commits of its members.

    It also passes on commits of members of earlier generations. It forgets what it knows when it is refused or dies.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.generation = -1
        self.members: tuple[ClassicMember, ...] = ()
        self.earlier: list[tuple[int, str]] = []
        self.ids = 0

    def live(self, process: Process) -> None:
        self._load(process)
        while self.next_operation():
            step = self.rng.random()
            try:
                if step < 0.4:
                    self._rebalance(process)
                elif step < 0.5 and any(member.instance_id is not None for member in self.members):
                    self._replace(process)
                elif step < 0.85:
                    self._commit(process)
                elif step < 0.95:
                    self._empty(process)
                else:
                    self._load(process)
            except TxnStoreError as error:
                self.check_expected(process, "gateway", error, (IllegalGenerationError,))
                self._load(process)  # Another gateway has the group, or the outcome is unknown.
            self.breathe()

    def _load(self, process: Process) -> None:
        """A new coordinator: what is stored is what it knows."""
        self.generation, self.members = -1, ()
        try:
            group = connection_of(process.store).view(refresh=True).groups.get(GROUP)
        except TxnStoreError as error:
            self.check_expected(process, "state", error, ())
            return
        if group is not None:
            self.generation, self.members = group.generation, group.classic_members

    def _member(self, process: Process, instance_id: str | None, assignment: bytes) -> ClassicMember:
        self.ids += 1
        return ClassicMember(f"{process.name}/{self.ids}", instance_id, "app", "/host", 45_000, 60_000, b"", assignment)

    def _rebalance(self, process: Process) -> None:
        number = max(self.generation, 0) + self.rng.choice((1, 1, 2))
        members = [member for member in self.members if self.rng.random() < 0.6]
        members += [self._member(process, None, b"") for _ in range(self.rng.randint(0 if members else 1, 2))]
        if self.rng.random() < 0.5 and not any(member.instance_id is not None for member in members):
            members.append(self._member(process, "static", b""))
        members = [replace(member, assignment=b"%d" % self.rng.randrange(99)) for member in members]
        self._store(process, number, tuple(members))

    def _replace(self, process: Process) -> None:
        old = next(member for member in self.members if member.instance_id is not None)
        new = self._member(process, old.instance_id, old.assignment)
        others = tuple(member for member in self.members if member is not old)
        self._store(process, self.generation, (*others, new), (old.member_id,))

    def _empty(self, process: Process) -> None:
        """The last member leaves; then, sometimes, an administrator deletes the group, or an offset of it."""
        if self.generation > 0 and self.members:
            self._store(process, self.generation + 1, ())
        store, drawn = connection_of(process.store), self.rng.random()
        command = DeleteGroup(GROUP) if drawn < 0.5 else DeleteOffsets(GROUP, (_PARTITION,))
        try:
            store.submit(command)
        except TxnStoreError as error:
            self.check_expected(process, "delete", error, (GroupNotEmptyError, GroupNotFoundError))
        self._load(process)

    def _store(
        self, process: Process, number: int, members: tuple[ClassicMember, ...], replaces: tuple[str, ...] = ()
    ) -> None:
        leader = members[0].member_id if members else None
        command = StoreGeneration(GROUP, self.generation, number, "connect", "v1", leader, members, replaces)
        self.insist(lambda: connection_of(process.store).submit(command))
        ids = frozenset(member.member_id for member in members)
        before = {(self.generation, member.member_id) for member in self.members}
        ended = before - {(number, member_id) for member_id in ids}
        self.earlier += sorted(ended)
        self.generation, self.members = number, members
        self.world.generations.add((number, ids))
        self.world.fenced |= ended

    def _commit(self, process: Process) -> None:
        """Of a member, or of one that was a member in an earlier generation: that may be refused only as such."""
        current = [(self.generation, member) for member in (each.member_id for each in self.members)]
        number, member_id = self.rng.choice([*current, *self.earlier[-4:], (-1, "")])
        fenced_before = (number, member_id) in self.world.fenced
        item = GroupOffset(topic=_PARTITION.topic, partition=_PARTITION.partition, offset=self.rng.randrange(100))
        try:
            connection_of(process.store).submit(CommitOffsets(TxnOffsets(GROUP, (item,), number, member_id)))
        except StorageError as error:
            self.check_expected(process, "commit", error, ())
        except TxnStoreError as error:
            fenced = (IllegalGenerationError, UnknownMemberError, FencedInstanceError)
            self.check_expected(process, "commit", error, fenced)
        else:
            if fenced_before:
                self.world.anomalies.append(f"zombie-commit: {member_id!r} of generation {number}, by {process.name}")


def kept(world: World) -> Iterator[str]:
    """OFF-06: generations follow each other, each has one assignment, and only its members commit offsets in it."""
    number, members = -1, dict[str, tuple[str, bytes]]()
    written = set[Stored]()
    for event in events_of(world.bucket.archive, chain_of_group(GROUP, world.settings.chains)):
        match event:
            case GroupDeleted(group=name) if name == GROUP:
                if members:
                    yield f"deleted-with-members: generation {number} has {sorted(members)}"
                number, members = -1, {}
            case GenerationStored(group=name) if name == GROUP:
                new = {item.member_id: (item.instance_id or item.member_id, item.assignment) for item in event.members}
                if event.generation < number:
                    yield f"generation-regression: {event.generation} after {number}"
                if event.generation == number and sorted(new.values()) != sorted(members.values()):
                    yield f"second-assignment: generation {number} has {new}, and had {members}"
                number, members = event.generation, new
                written.add((number, frozenset(members)))
            case OffsetsCommitted(group=name) if name == GROUP:
                if members and event.member_id not in members:
                    yield f"zombie-commit: {event.member_id!r} in generation {number} of {sorted(members)}"
    for lost in sorted(world.generations - written, key=str):
        yield f"lost-generation: {lost} was acknowledged"
