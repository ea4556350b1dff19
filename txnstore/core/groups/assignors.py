"""Assignors: compute the target partitions of each member of a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapreplace

from txnstore.core.groups.model import Member
from txnstore.core.model import TopicPartition, value_class

#: The target partitions of each member, sorted.
Assignment = dict[str, tuple[TopicPartition, ...]]


@value_class()
class Subscriptions:
    """The input of an assignor: the topics of each member, and the number of partitions of each topic."""

    topics: Mapping[str, frozenset[str]]
    partitions: Mapping[str, int]

    @classmethod
    def of(cls, members: Iterable[Member]) -> Subscriptions:
        """Return the subscriptions of members; of different partition counts of a topic, the largest is used.

        An added partition is therefore assigned as soon as one member has seen it. A deleted one stays assigned, with
        nothing to read, until all members have seen the deletion.
        """
        topics, partitions = dict[str, frozenset[str]](), dict[str, int]()
        counts, names = dict[str, int](), frozenset[str]()
        for member in members:
            if member.topics != counts:  # Most members of a group have seen the same.
                counts, names = member.topics, frozenset(member.topics)
                for name, count in counts.items():
                    partitions[name] = max(count, partitions.get(name, 0))
            topics[member.member_id] = names
        return cls(topics, partitions)

    def all_partitions(self) -> list[TopicPartition]:
        """All partitions of all subscribed topics, in order."""
        return [
            TopicPartition(name, number) for name in sorted(self.partitions) for number in self._partition_numbers(name)
        ]

    def readers_of_topics(self) -> dict[str, frozenset[str]]:
        """Return the ids of the members that read each topic; topics with equal readers share one set."""
        members_by_topics: dict[frozenset[str], list[str]] = {}
        for member_id, topics in self.topics.items():
            members_by_topics.setdefault(topics, []).append(member_id)
        kinds_by_topic: dict[str, list[int]] = {name: [] for name in self.partitions}
        for kind, topics in enumerate(members_by_topics):
            for name in topics:
                kinds_by_topic[name].append(kind)
        members_of_kinds = list(members_by_topics.values())
        readers = dict[tuple[int, ...], frozenset[str]]()
        for kinds in map(tuple, kinds_by_topic.values()):
            if kinds not in readers:
                readers[kinds] = frozenset(member_id for kind in kinds for member_id in members_of_kinds[kind])
        return {name: readers[tuple(kinds)] for name, kinds in kinds_by_topic.items()}

    def _partition_numbers(self, topic: str) -> range:
        return range(self.partitions[topic])


def range_assignor(members: list[Member], _previous: Mapping[TopicPartition, str]) -> Assignment:
    """Kafka's ``RangeAssignor``: each reader of a topic gets a contiguous range of its partitions.

    If the partitions do not divide evenly, the first readers get one more. Static members come first, by instance id,
    so that a restart does not change the assignment; then the others, by member id.
    """
    subscriptions = Subscriptions.of(members)
    targets: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    ordered_ids = [member.member_id for member in sorted(members, key=_static_first)]
    ordered_readers: dict[frozenset[str], list[str]] = {}
    for name, readers in subscriptions.readers_of_topics().items():
        if readers not in ordered_readers:
            ordered_readers[readers] = [member_id for member_id in ordered_ids if member_id in readers]
        count, next_number = subscriptions.partitions[name], 0
        share, remainder = divmod(count, len(readers))
        for position, member_id in enumerate(ordered_readers[readers][:count]):
            limit = next_number + share + (1 if position < remainder else 0)
            targets[member_id] += [TopicPartition(name, number) for number in range(next_number, limit)]
            next_number = limit
    return {member_id: tuple(sorted(tps)) for member_id, tps in targets.items()}


def _static_first(member: Member) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member.member_id


def sticky_assignor(members: list[Member], previous_owners: Mapping[TopicPartition, str]) -> Assignment:
    """Kafka's ``CooperativeStickyAssignor``: balanced as far as the subscriptions allow, with the fewest moves.

    A member keeps its partitions while it reads their topics. An unowned partition goes to the reader with the fewest.
    Then partitions move from a member to one that has at least two fewer, through other members if necessary.
    """
    return _Sticky(Subscriptions.of(members), previous_owners).assign()


class _Sticky:
    """A computation of the sticky assignor."""

    def __init__(self, subscriptions: Subscriptions, previous_owners: Mapping[TopicPartition, str]) -> None:
        self._readers = subscriptions.readers_of_topics()
        #: The targets of each member so far, by member id.
        self._targets: dict[str, set[TopicPartition]] = {member_id: set() for member_id in subscriptions.topics}
        #: The partitions that have no owner, or one that no longer reads their topic.
        self._free_tps: list[TopicPartition] = []
        #: The owner of each other partition, before this computation moves any.
        self._kept_by: dict[TopicPartition, str] = {}
        for tp in subscriptions.all_partitions():
            owner = previous_owners.get(tp)
            if owner in self._targets and tp.topic in subscriptions.topics[owner]:
                self._targets[owner].add(tp)
                self._kept_by[tp] = owner
            else:
                self._free_tps.append(tp)

    def assign(self) -> Assignment:
        self._assign_free()
        while self._move_one():
            pass
        return {member_id: tuple(sorted(tps)) for member_id, tps in self._targets.items()}

    def _load(self, member_id: str) -> tuple[int, str]:
        return len(self._targets[member_id]), member_id

    def _assign_free(self) -> None:
        """Give each unowned partition to the reader with the fewest; those with the fewest readers first."""
        # Loads only grow here, so an entry of a heap that is too low is corrected when it comes to the top.
        heaps: dict[frozenset[str], list[tuple[int, str]]] = {}
        for tp in sorted(self._free_tps, key=lambda tp: (len(self._readers[tp.topic]), tp)):
            readers = self._readers[tp.topic]
            heap = heaps.get(readers)
            if heap is None:
                heap = heaps[readers] = sorted(map(self._load, readers))
            while heap[0] != (least_load := self._load(heap[0][1])):
                heapreplace(heap, least_load)
            self._targets[heap[0][1]].add(tp)

    def _move_one(self) -> bool:
        """Move a partition from the member with the most to one with fewer, along a path of subscriptions."""
        loads = sorted(map(self._load, self._targets), reverse=True)
        return any(self._move_along_path(member_id, load - 2) for load, member_id in loads if load - 2 >= loads[-1][0])

    def _move_along_path(self, member_id: str, limit: int) -> bool:
        """Move a partition along a path to the nearest member with at most ``limit``; return whether there is one.

        Breadth-first search: each member on the path passes one partition to the next one. ``givers`` has for each
        member that was reached the one before it on the path, and the partition that it would pass on. Each move
        reduces the sum of the squared loads, so the search ends; without such a path no assignment is more balanced.
        """
        givers: dict[str, tuple[str, TopicPartition]] = {}
        unseen_ids = set(self._targets)
        unseen_ids.remove(member_id)
        waiting_ids = deque([member_id])
        while waiting_ids and unseen_ids:
            giver = waiting_ids.popleft()
            for _, taker in sorted(map(self._load, self._find_takers(giver, unseen_ids, givers))):
                if len(self._targets[taker]) <= limit:
                    self._pass_along_path(taker, member_id, givers)
                    return True
                waiting_ids.append(taker)
        return False

    def _find_takers(
        self, giver: str, unseen_ids: set[str], givers: dict[str, tuple[str, TopicPartition]]
    ) -> list[str]:
        """Return the unseen members that could take a partition of ``giver``, each noted with the best such partition.

        The best is one that ``giver`` did not have before, since that one moves in any case; of these the last.
        """
        best_by_topic: dict[str, tuple[bool, TopicPartition]] = {}
        for tp in self._targets[giver]:
            candidate = (self._kept_by.get(tp) != giver, tp)
            best_by_topic[tp.topic] = max(candidate, best_by_topic.get(tp.topic, candidate))
        all_takers: list[str] = []
        for _, tp in sorted(best_by_topic.values(), reverse=True):
            takers = unseen_ids & self._readers[tp.topic]
            givers.update(dict.fromkeys(takers, (giver, tp)))
            unseen_ids -= takers
            all_takers += takers
            if not unseen_ids:
                break
        return all_takers

    def _pass_along_path(self, taker: str, first_giver: str, givers: Mapping[str, tuple[str, TopicPartition]]) -> None:
        while taker != first_giver:
            giver, tp = givers[taker]
            self._targets[giver].remove(tp)
            self._targets[taker].add(tp)
            taker = giver


Assignor = Callable[[list[Member], Mapping[TopicPartition, str]], Assignment]

#: The assignors by their names in Kafka.
ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "cooperative-sticky": sticky_assignor}


def assignor_of(members: Iterable[Member]) -> Assignor:
    """Return the assignor that most members ask for, so that it can be changed one member at a time (KIP-848)."""
    votes: dict[str, int] = {}
    for member in members:
        votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return ASSIGNORS[min(votes, key=lambda name: (-votes[name], name))]
