"""Where a consumer stands in each of its partitions, and where it begins: a sought offset, the group's, or a policy.

Nothing here reads the chain or a clock: a state comes in, positions follow from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from txnstore.catalog.topics import find_topic
from txnstore.consumer.fetcher import Flow
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
from txnstore.read.plan import find_partition, find_partitions
from txnstore.read.reader import Projection


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
    """Who commits for a group (KIP-447). ``generation`` -1: a consumer that is no member, its partitions given by hand.

    ``topic_ids``: the topics that it reads. An offset of one that was created again meanwhile is refused (OFF-18).
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Assignment:
    """One partition of a consumer.

    ``flow`` is None until the position is known. ``want`` says where to go then: an offset, an end of the log, or
    None for the group's offset, else the policy. ``origin`` is where it went first or was sought last: a rewind
    without a committed offset leads there. ``late``: the partition is younger than the assignment, so none of its
    records may be skipped. ``sought``: the application chose the position.
    """

    tp: TopicPartition
    topic_id: str
    late: bool = False
    want: int | Reset | None = None
    origin: int | None = None
    flow: Flow | None = None
    paused: bool = False
    sought: bool = False

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
        self.shared = False
        self._prepared: dict[TopicPartition, Assignment] = {}
        self._counts: dict[str, int] = {}
        self._projections: dict[tuple[str, int], Projection] = {}

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, state: View, topics: Sequence[str]) -> None:
        """All partitions of these topics, also those that come later; of a member of a group, what it is given."""
        found = [tp for name in dict.fromkeys(topics) for tp in find_partitions(state, name, None)]
        self.topics = tuple(dict.fromkeys(topics))
        self._counts = {name: state.topics[name].partitions for name in self.topics}
        if not self.shared:
            self._replace(state, found)

    def assign(self, state: View, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions. Those that stay keep their positions."""
        found = list(dict.fromkeys(partitions))
        for tp in found:
            find_partition(state, tp)
        self._replace(state, found)
        self.topics, self.shared, self._prepared = None, False, {}

    def begin_sharing(self) -> None:
        """From now on the group says what to read, and nothing until then.

        Positions that were sought stay for when their partition comes; others are found again, because who had the
        partition may have committed meanwhile.
        """
        for part in self.assigned.values():
            if not part.sought:
                part.move(None)
        self._prepared, self.assigned, self.shared = self.assigned, {}, True

    def share(self, state: View, partitions: Collection[TopicPartition]) -> None:
        """Exactly these partitions of the group. Those that stay keep their positions."""
        self._replace(state, sorted(partitions))
        for tp, part in self.assigned.items():
            part.late = part.late or tp.partition >= self._counts.get(tp.topic, 0)

    def share_nothing(self) -> None:
        """Read nothing until the group gives something."""
        for part in self.assigned.values():
            part.move(None)
        self.assigned, self._prepared = {}, {}

    @property
    def topic_ids(self) -> dict[str, str]:
        """The topics that are read, by name."""
        return {tp.topic: part.topic_id for tp, part in self.assigned.items()}

    def _replace(self, state: View, tps: list[TopicPartition]) -> None:
        before, self.assigned = self.assigned, {}
        for tp in tps:
            kept = before.pop(tp, None) or self._prepared.pop(tp, None)
            self.assigned[tp] = kept or Assignment(tp, state.topics[tp.topic].topic_id)
        for gone in before.values():
            gone.move(None)

    def _follow_topics(self, state: View) -> None:
        """Take in partitions that the topics have got since, unless a group says what to read."""
        for name in self.topics or ():
            topic = find_topic(state, name)
            for number in range(topic.partitions if not self.shared else 0):
                tp = TopicPartition(name, number)
                if tp not in self.assigned:
                    self.assigned[tp] = Assignment(tp, topic.topic_id, late=True)

    # Where in them ----------------------------------------------------------------------------------------------------

    def chains(self, state: View) -> set[int]:
        """The chains that a poll has to look at: those of its partitions, and who decides about what is open there."""
        found = {CATALOG} if self.topics is not None else set[int]()
        if self.group is not None and (self.shared or self._unknown()):
            found.add(chain_of_group(self.group, state.chains))
        for tp in self.assigned:
            found.add(chain_of_partition(tp, state.chains))
            log = state.log(tp)
            found |= {chain_of_producer(producer_id) for producer_id in (log.open_txns if log is not None else ())}
        return found | {chain_of_producer(producer_id) for producer_id in self._pending(state)}

    def _unknown(self) -> list[TopicPartition]:
        """The partitions in which a position is to be found."""
        return [tp for tp, part in self.assigned.items() if part.flow is None]

    def _pending(self, state: View) -> set[int]:
        """The producers whose open transactions hold the group's offsets at which to begin (OFF-10)."""
        group = state.groups.get(self.group) if self.group is not None else None
        if group is None or not group.pending:
            return set()
        unknown = self._unknown()
        return {producer_id for producer_id in group.pending if any(tp in group.pending[producer_id] for tp in unknown)}

    def blocked_by(self, state: View) -> set[int]:
        """The producers whose open transactions hold back what is to be read, or where to begin."""
        found = self._pending(state)
        if self.isolation is Isolation.READ_COMMITTED:
            for tp in self.assigned:
                log = state.log(tp)
                found |= set(log.open_txns) if log is not None else set()
        return found

    def needs_head(self, state: View) -> bool:
        """Whether a position is to be found that only the head of the chain can tell.

        The group's offsets and the ends of a log move; a known offset of the log stays one.
        """
        return any(
            part.flow is None
            and not (isinstance(part.want, int) and part.want <= find_partition(state, part.tp).high_watermark)
            for part in self.assigned.values()
        )

    def outrun(self, state: View) -> dict[TopicPartition, int]:
        """The group's offsets at which to begin that are past the end of their log, as far as this state tells.

        No chain rests on another for what was read in it: the group's was looked at after an offset had been committed,
        the partition's before its records were appended.
        """
        found: dict[TopicPartition, int] = {}
        if self.group is None or state.chains == 1:
            return found
        for tp, part in self.assigned.items():
            log = state.partition(tp) if part.flow is None and part.want is None else None
            value = committed(state, self.group, tp, require_stable=False) if log is not None else None
            if log is not None and value is not None and value.offset > log.high_watermark:
                found[tp] = value.offset
        return found

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
