"""What the entries say of groups and transactions, read without the rules under test, entry by entry as they appear.

Clients compare with it what gateways tell them, at the time of the answer. It has rules of its own, which hold for
any group, whatever gateways, members and the storage do (``docs/internals/design/groups.md``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from txnstore.chain.payload import decode_entry
from txnstore.core.groups.events import (
    GenerationStored,
    GroupDeleted,
    GroupRebalanced,
    MemberJoined,
    MemberLeft,
    MemberReconciled,
    OffsetsCommitted,
)
from txnstore.core.model import NO_PRODUCER, TopicPartition
from txnstore.core.transactions.events import ProducerInitialized, SessionContinued, TxnDecided

Kind = Literal["native", "classic", "consumer"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a client says of an offset that it commits, in its metadata.

    Attributes:
        number: The number of the commit; no other one has it.
        member_id: The member that the client takes itself for; empty: none.
        generation: The generation, or the epoch, that it names.
    """

    number: int
    member_id: str = ""
    generation: int = -1

    def __str__(self) -> str:
        return f"{self.number} {self.generation} {self.member_id}"

    @classmethod
    def read(cls, text: str) -> Mark | None:
        """The mark in metadata; None: another client has committed."""
        number, _, rest = text.partition(" ")
        generation, _, member_id = rest.partition(" ")
        return cls(int(number), member_id, int(generation)) if number.isdecimal() else None


@dataclass(slots=True)
class _Group:
    """A group as the entries say.

    Attributes:
        kind: Whose members it had last.
        generation: The newest one.
        members: The ids of its members, with their lasting names and, of a classic group, their assignments.
        held: The partitions that each member of a group that the chain assigns to holds.
        targets: Those that it is to read.
        epochs: The epoch of each member of KIP-848.
    """

    kind: Kind = "native"
    generation: int = -1
    members: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    held: dict[str, set[TopicPartition]] = field(default_factory=dict)
    targets: dict[str, set[TopicPartition]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)


class Ledger:
    """All chains together; an entry is read when it is created.

    Attributes:
        commits: The numbers of the commits of offsets in entries, in the order of each group.
        plain: Those outside of transactions, by group and partition.
        identities: The newest (producer id, epoch) that was granted to a transactional id.
        clients: The one that its client of transactions v1 has; none if another process has ended its transaction.
    """

    def __init__(self, anomalies: list[str]) -> None:
        self.commits: dict[str, list[int]] = {}
        self.plain: dict[tuple[str, TopicPartition], list[int]] = {}
        self.identities: dict[str, tuple[int, int]] = {}
        self.clients: dict[str, tuple[int, int]] = {}
        self._decided: tuple[str, int, int] | None = None
        self._anomalies = anomalies
        self._groups: dict[str, _Group] = {}
        #: All assignments that were ever stored: by group, generation and member id.
        self._assigned: dict[tuple[str, int, str], bytes] = {}

    def entered(self, key: str, data: bytes) -> None:
        """An entry was created."""
        self._decided = None  # What continues a session stands in the entry of the decision, and in others later.
        for event in decode_entry(key, data).events:
            self._anomalies += self._follow(event)

    # For clients ------------------------------------------------------------------------------------------------------

    def assignment(self, group: str, generation: int, member_id: str) -> bytes | None:
        """What is stored as the assignment of a member in a generation; None: nothing is."""
        return self._assigned.get((group, generation, member_id))

    def may_read(self, group: str, member_id: str, tp: TopicPartition) -> bool:
        """Whether the chain lets this member of KIP-848 read a partition."""
        return tp in self._group(group).held.get(member_id, ())

    def is_member(self, group: str, member_id: str) -> bool:
        """Whether the group has the member."""
        return member_id in self._group(group).members

    def epoch(self, group: str, member_id: str) -> int | None:
        """The epoch of a member of KIP-848; None: it is none."""
        return self._group(group).epochs.get(member_id)

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    # Entries ----------------------------------------------------------------------------------------------------------

    def _follow(self, event: object) -> Iterator[str]:
        match event:
            case ProducerInitialized(transactional_id=str(name)):
                self.identities[name] = self.clients[name] = event.producer_id, event.epoch
            case TxnDecided():
                self._decided = event.transactional_id, event.producer_id, event.epoch
                self.identities[event.transactional_id] = event.next_producer_id, event.next_epoch
                self.clients.pop(event.transactional_id, None)
            case SessionContinued() if self._decided == (event.transactional_id, event.producer_id, event.epoch):
                self.clients[event.transactional_id] = event.producer_id, event.session_epoch
            case GenerationStored():
                yield from self._stored(event)
            case OffsetsCommitted():
                yield from self._committed(event)
            case GroupDeleted():
                if self._group(event.group).members:
                    yield f"deleted-with-members: {event.group} with {sorted(self._group(event.group).members)}"
                self._groups.pop(event.group)
                self.commits.pop(event.group, None)
                self.plain = {key: numbers for key, numbers in self.plain.items() if key[0] != event.group}
            case MemberJoined():
                yield from self._joined(event)
            case MemberLeft() | GroupRebalanced() | MemberReconciled():
                yield from self._member(event)

    def _stored(self, event: GenerationStored) -> Iterator[str]:
        group = self._group(event.group)
        members = {
            member.member_id: (f"={member.instance_id}" if member.instance_id else member.member_id, member.assignment)
            for member in event.members
        }
        if group.members and group.kind != "classic":
            yield f"kind-changes-with-members: {event.group} from {group.kind} with {sorted(group.members)}"
        if event.generation < group.generation:
            yield f"generation-regression: {event.group} from {group.generation} to {event.generation}"
        is_same = event.generation == group.generation and group.kind == "classic"
        if is_same and sorted(members.values()) != sorted(group.members.values()):
            yield f"second-assignment: generation {event.generation} of {event.group}: {members} after {group.members}"
        # Between two names of generations the chain knows that another coordinator has moved the group on.
        group.kind, group.generation, group.members = "classic", event.generation, members
        group.held, group.targets, group.epochs = {}, {}, {}
        for member_id, (_, assignment) in members.items():
            self._assigned[event.group, event.generation, member_id] = assignment

    def _joined(self, event: MemberJoined) -> Iterator[str]:
        group = self._group(event.group)
        if group.members and group.kind == "classic":
            yield f"kind-changes-with-members: {event.group} from classic with {sorted(group.members)}"
        if not group.members:
            group.kind, group.held, group.targets, group.epochs = "native", {}, {}, {}
        name = f"={event.instance_id}" if event.instance_id else event.member_id
        for member_id, (other, _) in group.members.items():
            if other == name and member_id not in (event.member_id, event.replaces):
                yield f"two-of-one-name: {event.member_id} joins {event.group} beside {member_id}"
        if event.replaces:
            del group.members[event.replaces]
            group.held[event.member_id] = group.held.pop(event.replaces, set())
            group.targets[event.member_id] = group.targets.pop(event.replaces, set())
            group.epochs.pop(event.replaces, None)
        group.members[event.member_id] = name, b""

    def _member(self, event: MemberLeft | GroupRebalanced | MemberReconciled) -> Iterator[str]:
        group = self._group(event.group)
        match event:
            case MemberLeft():
                del group.members[event.member_id]
                for values in (group.held, group.targets, group.epochs):
                    values.pop(event.member_id, None)
            case GroupRebalanced():
                if event.generation < group.generation:
                    yield f"generation-regression: {event.group} from {group.generation} to {event.generation}"
                group.generation = event.generation
                group.held |= {item.member_id: set(item.held) for item in event.members}
                group.targets |= {item.member_id: set(item.target) for item in event.members}
                yield from self._held_twice(event.group)
            case MemberReconciled():
                group.kind = "consumer"
                before = group.epochs.get(event.member_id, -1)
                if not before <= event.epoch <= group.generation:
                    yield f"wrong-epoch: {event.member_id} of {event.group} from {before} to {event.epoch}"
                kept = group.held.get(event.member_id, set()) - group.targets.get(event.member_id, set())
                if event.epoch > before >= 0 and kept:
                    yield f"unreleased: {event.member_id} of {event.group} gets epoch {event.epoch} with {kept}"
                group.epochs[event.member_id] = event.epoch

    def _held_twice(self, name: str) -> Iterator[str]:
        holders: dict[TopicPartition, str] = {}
        for member_id, tps in sorted(self._group(name).held.items()):
            for tp in sorted(tps):
                if tp in holders:
                    yield f"held-twice: {tp} of {name} by {holders[tp]} and {member_id}"
                holders[tp] = member_id

    def _committed(self, event: OffsetsCommitted) -> Iterator[str]:
        """OFF-06, OFF-07: who commits is a member, in its generation, and no other member holds the partition."""
        group = self._group(event.group)
        is_anonymous = not event.member_id
        for item in event.offsets:
            mark = Mark.read(item.metadata)
            if mark is None:
                continue
            self.commits.setdefault(event.group, []).append(mark.number)
            if event.producer_id == NO_PRODUCER:
                self.plain.setdefault((event.group, item.tp), []).append(mark.number)
            where = f"{item.tp} of {event.group} by {mark}"
            if is_anonymous:
                if group.members and event.producer_id == NO_PRODUCER:
                    yield f"zombie-commit: {where}, without a membership, beside {sorted(group.members)}"
            elif mark.member_id not in group.members:
                yield f"zombie-commit: {where}, beside {sorted(group.members)}"
            elif mark.generation != group.epochs.get(mark.member_id, group.generation):
                current = group.epochs.get(mark.member_id, group.generation)
                yield f"stale-commit: {where}, which is at {current}"
            else:
                others = [each for each, tps in group.held.items() if item.tp in tps and each != mark.member_id]
                if others:
                    yield f"commit-of-another: {where}, held by {others}"
