"""Assignors: compute the target partitions of each member of a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from txnstore.core.groups.model import Member
from txnstore.core.model import TopicPartition

#: The target partitions of each member, sorted.
Assignment = dict[str, tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The input of an assignor: the topics of each member, and the number of partitions of each topic."""

    topics: Mapping[str, frozenset[str]]
    partitions: Mapping[str, int]

    @classmethod
    def of(cls, members: Iterable[Member]) -> Subscriptions:
        """The subscriptions of members; if they have seen different partition counts of a topic, the largest is used.

        An added partition is therefore assigned as soon as one member has seen it. A deleted one stays assigned, with
        nothing to read, until all members have seen the deletion.
        """
        topics, partitions = dict[str, frozenset[str]](), dict[str, int]()
        for member in members:
            topics[member.member_id] = frozenset(member.topics)
            for name, count in member.topics.items():
                partitions[name] = max(count, partitions.get(name, 0))
        return cls(topics, partitions)

    def all_partitions(self) -> list[TopicPartition]:
        """All partitions of all subscribed topics, in order."""
        return [TopicPartition(name, number) for name in sorted(self.partitions) for number in self._numbers(name)]

    def readers(self, topic: str) -> list[str]:
        """The ids of the members that read a topic, in order."""
        return sorted(member_id for member_id, topics in self.topics.items() if topic in topics)

    def _numbers(self, topic: str) -> range:
        return range(self.partitions[topic])


def range_assignor(members: list[Member], _previous: Mapping[TopicPartition, str]) -> Assignment:
    """Kafka's ``RangeAssignor``: each reader of a topic gets a contiguous range of its partitions.

    If the partitions do not divide evenly, the first readers get one more. Static members come first, by instance id,
    so that a restart does not change the assignment; then the others, by member id.
    """
    wanted = Subscriptions.of(members)
    found: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    ordered = sorted(members, key=_static_first)
    for name in sorted(wanted.partitions):
        readers = [member.member_id for member in ordered if name in member.topics]
        each, more = divmod(wanted.partitions[name], len(readers))
        first = 0
        for place, member_id in enumerate(readers):
            limit = first + each + (1 if place < more else 0)
            found[member_id] += [TopicPartition(name, number) for number in range(first, limit)]
            first = limit
    return {member_id: tuple(sorted(tps)) for member_id, tps in found.items()}


def _static_first(member: Member) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member.member_id


def sticky_assignor(members: list[Member], previous: Mapping[TopicPartition, str]) -> Assignment:
    """Kafka's ``CooperativeStickyAssignor``: balanced as far as the subscriptions allow, with the fewest moves.

    A member keeps its partitions while it reads their topics. An unowned partition goes to the reader with the fewest.
    Then partitions move from a member to one that has at least two fewer, through other members if necessary.
    """
    return _Sticky(Subscriptions.of(members), previous).assign()


class _Sticky:
    def __init__(self, wanted: Subscriptions, previous: Mapping[TopicPartition, str]) -> None:
        self._wanted = wanted
        self._readers = {name: wanted.readers(name) for name in wanted.partitions}
        self._held: dict[str, set[TopicPartition]] = {member_id: set() for member_id in wanted.topics}
        self._free: list[TopicPartition] = []
        for tp in wanted.all_partitions():
            owner = previous.get(tp)
            if owner in self._held and tp.topic in wanted.topics[owner]:
                self._held[owner].add(tp)
            else:
                self._free.append(tp)

    def assign(self) -> Assignment:
        for tp in sorted(self._free, key=lambda tp: (len(self._readers[tp.topic]), tp)):
            self._held[min(self._readers[tp.topic], key=self._load)].add(tp)
        while any(self._relieve(member_id) for member_id in sorted(self._held, key=self._load, reverse=True)):
            pass
        return {member_id: tuple(sorted(tps)) for member_id, tps in self._held.items()}

    def _load(self, member_id: str) -> tuple[int, str]:
        return len(self._held[member_id]), member_id

    def _relieve(self, member_id: str) -> bool:
        """Move a partition along a path to the nearest member that has at least two fewer; whether there is one.

        Breadth-first search: each member on the path passes one partition to the next one. Each move reduces the sum
        of the squared loads, so the search ends; without such a path no assignment is more balanced.
        """
        limit = len(self._held[member_id]) - 2
        if limit < 0:
            return False
        came: dict[str, tuple[str, TopicPartition]] = {}
        waiting = deque([member_id])
        while waiting:
            giver = waiting.popleft()
            for taker, tp in sorted(self._takers(giver).items(), key=lambda item: self._load(item[0])):
                if taker == member_id or taker in came:
                    continue
                came[taker] = (giver, tp)
                if len(self._held[taker]) <= limit:
                    self._hand_on(taker, member_id, came)
                    return True
                waiting.append(taker)
        return False

    def _takers(self, giver: str) -> dict[str, TopicPartition]:
        """The members that could take a partition of ``giver``, each with the last partition that it could take."""
        last: dict[str, TopicPartition] = {}
        for tp in self._held[giver]:
            last[tp.topic] = max(tp, last.get(tp.topic, tp))
        found: dict[str, TopicPartition] = {}
        for topic, tp in last.items():
            for taker in self._readers[topic]:
                found[taker] = max(tp, found.get(taker, tp))
        found.pop(giver, None)
        return found

    def _hand_on(self, taker: str, first: str, came: Mapping[str, tuple[str, TopicPartition]]) -> None:
        while taker != first:
            giver, tp = came[taker]
            self._held[giver].remove(tp)
            self._held[taker].add(tp)
            taker = giver


Assignor = Callable[[list[Member], Mapping[TopicPartition, str]], Assignment]

#: The assignors by their names in Kafka.
ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "cooperative-sticky": sticky_assignor}


def assignor_of(members: Iterable[Member]) -> Assignor:
    """The assignor that most members ask for, so that it can be changed one member at a time (KIP-848)."""
    votes: dict[str, int] = {}
    for member in members:
        votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return ASSIGNORS[min(votes, key=lambda name: (-votes[name], name))]
