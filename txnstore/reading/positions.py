"""Where a consumer stands in each of its partitions, and where it begins: a sought offset, the group's, or a policy.

Nothing here reads the chain or a clock: a state comes in, positions follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from txnstore.catalog.topics import find_topic
from txnstore.core.groups import committed
from txnstore.core.model import (
    Isolation,
    Partition,
    Topic,
    TopicPartition,
)
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition, chain_of_producer
from txnstore.core.view import View
from txnstore.core.visibility import check_offset, read_limit
from txnstore.errors import InvalidConfigError, OffsetOutOfRangeError, UnstableOffsetCommitError
from txnstore.reading.fetcher import Flow
from txnstore.reading.plan import find_partition, find_partitions
from txnstore.reading.reader import Projection


class Reset(StrEnum):
    """Where to begin when nothing says where, or when the offset is gone (CON-13)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


def parse_reset(value: str) -> Reset:
    """The policy of this name. Raises :class:`InvalidConfigError`."""
    try:
        return Reset(value)
    except ValueError:
        known = ", ".join(repr(policy.value) for policy in Reset)
        msg = f"auto_offset_reset must be one of {known}, not {value!r}"
        raise InvalidConfigError(msg) from None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Who commits for a group (KIP-447). ``generation`` -1: a consumer that owns all partitions it was given."""

    group: str
    generation: int = -1
    member_id: str = ""


@dataclass(slots=True)
class Assignment:
    """One partition of a consumer.

    ``flow`` is None until the position is known. ``want`` says where to go then: an offset, an end of the log, or
    None for the group's offset, else the policy. ``origin`` is where it went first or was sought last: a rewind
    without a committed offset leads there. ``late``: the partition is younger than the assignment, so none of its
    records may be skipped.
    """

    tp: TopicPartition
    topic_id: str
    late: bool = False
    want: int | Reset | None = None
    origin: int | None = None
    flow: Flow | None = None
    paused: bool = False

    def move(self, want: int | Reset | None) -> None:
        """Go there when the next state comes; what was fetched is dropped."""
        if self.flow is not None:
            self.flow.drop()
        self.flow, self.want = None, want


class Positions:
    """The partitions of a consumer and its position in each."""

    def __init__(self, isolation: Isolation, group: str | None, reset: Reset) -> None:
        self.isolation = isolation
        self.group = group
        self.reset = reset
        self.assigned: dict[TopicPartition, Assignment] = {}
        self.topics: tuple[str, ...] | None = None
        self._projections: dict[tuple[str, int], Projection] = {}

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, state: View, topics: Sequence[str]) -> None:
        """All partitions of these topics, also those that come later."""
        found = [tp for name in dict.fromkeys(topics) for tp in find_partitions(state, name, None)]
        self._replace(state, found)
        self.topics = tuple(dict.fromkeys(topics))

    def assign(self, state: View, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions. Those that stay keep their positions."""
        found = list(dict.fromkeys(partitions))
        for tp in found:
            find_partition(state, tp)
        self._replace(state, found)
        self.topics = None

    def _replace(self, state: View, tps: list[TopicPartition]) -> None:
        before, self.assigned = self.assigned, {}
        for tp in tps:
            kept = before.pop(tp, None)
            self.assigned[tp] = kept or Assignment(tp, state.topics[tp.topic].topic_id)
        for gone in before.values():
            gone.move(None)

    def _follow_topics(self, state: View) -> None:
        """Take in partitions that the topics have got since."""
        for name in self.topics or ():
            topic = find_topic(state, name)
            for number in range(topic.partitions):
                tp = TopicPartition(name, number)
                if tp not in self.assigned:
                    self.assigned[tp] = Assignment(tp, topic.topic_id, late=True)

    # Where in them ----------------------------------------------------------------------------------------------------

    def chains(self, state: View) -> set[int]:
        """The chains that a poll has to look at: those of its partitions, and who decides about what is open there."""
        found = {CATALOG} if self.topics is not None else set[int]()
        for tp, part in self.assigned.items():
            found.add(chain_of_partition(tp, state.chains))
            if part.flow is None and self.group is not None:
                found.add(chain_of_group(self.group, state.chains))
            log = state.log(tp)
            found |= {chain_of_producer(producer_id) for producer_id in (log.open_txns if log is not None else ())}
        return found

    def blocked(self, state: View) -> list[TopicPartition]:
        """The partitions whose rest is held back by an open transaction."""
        if self.isolation is not Isolation.READ_COMMITTED:
            return []
        return [tp for tp in self.assigned if (log := state.log(tp)) is not None and log.open_txns]

    def needs_head(self, state: View) -> bool:
        """Whether a position is to be found that only the head of the chain can tell.

        The group's offsets and the ends of a log move; a known offset of the log stays one.
        """
        return any(
            part.flow is None
            and not (isinstance(part.want, int) and part.want <= find_partition(state, part.tp).high_watermark)
            for part in self.assigned.values()
        )

    def update(self, state: View) -> UnstableOffsetCommitError | None:
        """Find the positions that are not known, plan what can be read now in all partitions.

        Returns the error of a partition whose group offset an open transaction holds: it has to wait (OFF-09, OFF-10).
        Raises :class:`OffsetOutOfRangeError` where the policy is ``none``, and
        :class:`~txnstore.errors.UnknownTopicOrPartitionError` for a topic that was deleted.
        """
        self._follow_topics(state)
        unstable: UnstableOffsetCommitError | None = None
        for part in self.assigned.values():
            try:
                self.locate(state, part).plan(find_partition(state, part.tp), self.isolation)
            except UnstableOffsetCommitError as error:
                unstable = unstable or error
        return unstable

    def locate(self, state: View, part: Assignment) -> Flow:
        """The flow of a partition, at a position inside the log."""
        topic, partition = find_topic(state, part.tp.topic), find_partition(state, part.tp)
        if topic.topic_id != part.topic_id:
            # The topic was deleted and made anew: all of its records are new.
            part.move(None)
            part.topic_id, part.origin, part.late = topic.topic_id, None, True
        if part.flow is None:
            position = self._beginning(state, part, partition)
            part.flow = Flow(part.tp, self.projection(topic), position)
            part.want = None
            part.origin = position if part.origin is None else part.origin
        elif part.flow.projection.topic.version != topic.version:
            part.flow.drop()
            part.flow.projection = self.projection(topic)
        position = part.flow.position
        if not partition.log_start <= position <= partition.high_watermark:
            if self.reset is Reset.NONE:
                check_offset(part.tp, partition, self.isolation, position)
            part.flow.seek(self._end(part, partition, self.reset))
        return part.flow

    def _beginning(self, state: View, part: Assignment, partition: Partition) -> int:
        if isinstance(part.want, Reset):
            part.origin = self._end(part, partition, part.want)
            return part.origin
        if part.want is not None:
            return part.want
        if self.group is not None:
            value = committed(state, self.group, part.tp)
            if value is not None:
                return value.offset
        if part.origin is not None:
            return part.origin
        if self.reset is Reset.NONE and not part.late:
            who = f"group {self.group!r} has no committed offset" if self.group is not None else "there is no group"
            msg = f"{who} in {part.tp}, and auto_offset_reset is 'none', so nothing says where to begin: seek first"
            raise OffsetOutOfRangeError(msg)
        return self._end(part, partition, Reset.EARLIEST if part.late else self.reset)

    def _end(self, part: Assignment, partition: Partition, which: Reset) -> int:
        return partition.log_start if which is Reset.EARLIEST else read_limit(partition, self.isolation)

    def projection(self, topic: Topic) -> Projection:
        """All columns of a topic, as it is now."""
        key = (topic.topic_id, topic.version)
        if key not in self._projections:
            self._projections[key] = Projection(topic)
        return self._projections[key]
