"""Assignors: which member of a group reads which partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from txnstore.core.groups.model import Member
from txnstore.core.model import TopicPartition

#: The partitions of each member, in order.
Assignment = dict[str, tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """What is to be assigned: the topics of each member, and how many partitions each topic has."""

    topics: Mapping[str, frozenset[str]]
    partitions: Mapping[str, int]

    @classmethod
    def of(cls, members: Iterable[Member]) -> Subscriptions:
        """Of members that may have seen different numbers of partitions: the largest counts.

        So a partition that was added is read once somebody has seen it. One that is gone is assigned until all have
        seen that, and there is nothing to read in it.
        """
        topics, partitions = dict[str, frozenset[str]](), dict[str, int]()
        for member in members:
            topics[member.member_id] = frozenset(member.topics)
            for name, count in member.topics.items():
                partitions[name] = max(count, partitions.get(name, 0))
        return cls(topics, partitions)

    def all_partitions(self) -> list[TopicPartition]:
        """Every partition that somebody reads, in order."""
        return [TopicPartition(name, number) for name in sorted(self.partitions) for number in self._numbers(name)]

    def readers(self, topic: str) -> list[str]:
        """The members that read a topic, in order."""
        return sorted(member_id for member_id, topics in self.topics.items() if topic in topics)

    def _numbers(self, topic: str) -> range:
        return range(self.partitions[topic])


def range_assignor(members: list[Member], _previous: Mapping[TopicPartition, str]) -> Assignment:
    """Kafka's ``RangeAssignor``: of each topic, neighbouring partitions to each of its readers.

    The first readers get one more if it does not come out even. Static members come first, by their instance id, so
    that a restart changes nothing; then the others by member id.
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
    """Kafka's ``CooperativeStickyAssignor``: as even as the subscriptions allow, with as few moves as that takes.

    What a member had stays with it, as long as it reads the topic. What nobody has goes to the reader with the fewest.
    Then partitions move from those that have more to those that have two less, over others if it must be.
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
        """Hand a partition on to the nearest member that has at least two less; the chain to it hands on as well.

        Each time the sum of the squares of the loads falls, so it ends, and then nothing more even is possible.
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
        """Who could take a partition of a member: of each one's choice the last."""
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

#: By the names that Kafka's consumers know.
ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "cooperative-sticky": sticky_assignor}


def assignor_of(members: Iterable[Member]) -> Assignor:
    """The one that most members ask for, so that it can be changed one member at a time (KIP-848)."""
    votes: dict[str, int] = {}
    for member in members:
        votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return ASSIGNORS[min(votes, key=lambda name: (-votes[name], name))]
