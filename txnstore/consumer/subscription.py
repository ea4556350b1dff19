"""The partitions of a consumer, its position in each, and where it begins: a sought offset, the group's, or a policy.

No function here reads the chain or a clock: they derive positions from a view. Only the policy ``by_duration`` needs
both, and gets them from the consumer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from txnstore.consumer.flow import Flow
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.groups.offsets import committed
from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import check_offset
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition, chain_of_producer
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, OffsetOutOfRangeError, UnstableOffsetCommitError
from txnstore.read.plan import find_partitions
from txnstore.read.rows import Columns
from txnstore.validation import check_choice

_LOG = logging.getLogger("txnstore.consumer")


class Reset(StrEnum):
    """The policy where to begin without an offset, or with one outside the log (CON-13)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


#: A policy, its name, or ``"by_duration:PT24H"``: the first record of the last 24 hours (KIP-1106).
ResetPolicy = Reset | str

_BY_DURATION = "by_duration:"
#: What Java's ``Duration.parse`` accepts, without signs: the policy refuses negative durations.
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d{0,9})?)S)?)?", re.IGNORECASE)


def parse_reset(value: object) -> Reset | timedelta:
    """The value of ``auto_offset_reset``.

    Raises:
        InvalidConfigError: It is no policy, and no duration of ISO 8601.
    """
    if not isinstance(value, str) or isinstance(value, Reset) or not value.startswith(_BY_DURATION):
        return check_choice("auto_offset_reset", value, Reset)
    text = value.removeprefix(_BY_DURATION)
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        msg = f"auto_offset_reset must end with a duration of ISO 8601, such as by_duration:PT24H, not {text!r}"
        raise InvalidConfigError(msg)
    days, hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in match.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        msg = f"auto_offset_reset: {text!r} is too long"
        raise InvalidConfigError(msg) from None


@dataclass(slots=True)
class AssignedPartition:
    """A partition of a consumer.

    Attributes:
        topic_id: The id of the topic; None until the topic exists.
        late: Whether the partition is newer than the subscription, so that none of its records may be skipped.
        begin: Where to begin as long as ``flow`` is None: an offset, an end of the log, or None for the group's
            committed offset, else the reset policy.
        origin: Where it began, or was last sought to: the target of a rewind without a committed offset.
        flow: Its records on their way to the application; None until the position is looked up.
        paused: Whether polls return none of its records.
        sought: Whether the application chose the position.
    """

    tp: TopicPartition
    topic_id: str | None
    late: bool = False
    begin: int | Reset | None = None
    origin: int | None = None
    flow: Flow | None = None
    paused: bool = False
    sought: bool = False

    def move(self, begin: int | Reset | None) -> None:
        """Drop fetched rows, and let the next update look the position up from ``begin``."""
        flow, self.begin, self.flow = self.flow, begin, None
        if flow is not None:
            flow.drop()

    def stop(self) -> None:
        """Drop fetched rows and keep the position."""
        if self.flow is not None:
            self.move(self.flow.position)

    @property
    def position(self) -> int | None:
        """The next offset to read, or the offset sought; None until it is looked up."""
        if self.flow is not None:
            return self.flow.position
        return self.begin if isinstance(self.begin, int) else None


class Positions:
    """The partitions of a consumer and its position in each.

    Args:
        isolation: Which records are visible.
        group: The group at whose committed offsets to begin.
        reset: Where to begin without one, or outside the log.
        first_since: Finds the offset of the first visible record that is at most this old, for such a ``reset``.

    No lock guards it: a consumer is used in one thread at a time.

    Attributes:
        assigned: The partitions that polls read.
        assignment_number: How often ``assigned`` has changed; never decreases.
        topics: The subscribed topics, in the order of the call; None if partitions are assigned by hand, or none.
        shared: Whether the group assigns the partitions.
    """

    def __init__(
        self,
        isolation: Isolation,
        group: str | None,
        reset: Reset | timedelta,
        first_since: Callable[[View, TopicPartition, timedelta], int | None],
    ) -> None:
        self._first_offset_since = first_since
        self.isolation = isolation
        self.group = group
        self.reset = reset
        self.assigned: dict[TopicPartition, AssignedPartition] = {}
        self.assignment_number = 0
        self.topics: tuple[str, ...] | None = None
        self.shared = False
        #: Partitions with a position that polls read when the group assigns them (again); none is in ``assigned``.
        self._suspended_parts: dict[TopicPartition, AssignedPartition] = {}
        #: The number of partitions of each subscribed topic when it was subscribed to: later partitions are ``late``.
        self._subscribed_counts: dict[str, int] = {}
        #: Id and number of partitions of each existing topic of ``topics``, when ``assigned`` was last computed.
        self._topic_shapes: list[tuple[str, int]] = []
        #: Topics, and partitions of existing topics, that do not exist in the last view, which was logged.
        self._missing_topics: set[str] = set()
        self._missing_partitions: set[TopicPartition] = set()
        #: The columns to read, by id and version of the topic.
        self._columns: dict[tuple[str, int], Columns] = {}

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, view: View, topics: Sequence[str]) -> None:
        """Read all partitions of these topics, including later ones; as a member of a group, the assigned ones.

        A topic that does not exist is read from its beginning as soon as it is created.
        """
        self._subscribed_counts = {name: view.topics[name].partitions for name in topics if name in view.topics}
        self.topics = tuple(dict.fromkeys(topics))
        if not self.shared:
            self._assign_exactly(view, _existing_partitions(view, self.topics))
        self._log_missing(view)

    def assign(self, view: View, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Those that were read before keep their positions.

        One that does not exist is read from its beginning as soon as it does.
        """
        self._assign_exactly(view, list(dict.fromkeys(partitions)))
        for tp, part in self.assigned.items():
            part.late = part.late or view.partition(tp) is None
        self.topics, self.shared, self._suspended_parts = None, False, {}
        self._log_missing(view)

    def begin_sharing(self) -> None:
        """Switch to the partitions that the group assigns; none until then.

        Positions that were sought are kept until their partition is assigned; others are looked up again, because the
        member that had the partition may have committed in between.
        """
        for part in self.assigned.values():
            if not part.sought:
                part.move(None)
        self._suspended_parts, self.assigned, self.shared = {**self._suspended_parts, **self.assigned}, {}, True
        self.assignment_number += 1

    def share(self, view: View, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, as the group assigns. Those that were read before keep their positions."""
        self._assign_exactly(view, sorted(partitions))
        for tp, part in self.assigned.items():
            part.late = part.late or tp.partition >= self._subscribed_counts.get(tp.topic, 0)

    def suspend(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions only when the group assigns them again; their positions are kept until then."""
        for tp in partitions:
            if tp in self.assigned:
                self._suspended_parts[tp] = self.assigned[tp]
                del self.assigned[tp]
                self.assignment_number += 1

    def share_nothing(self) -> None:
        """Read no partitions until the group assigns some."""
        for part in self.assigned.values():
            part.move(None)
        self.assigned, self._suspended_parts = {}, {}
        self.assignment_number += 1

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that are read, by name."""
        return {tp.topic: part.topic_id for tp, part in self.assigned.items() if part.topic_id is not None}

    def _assign_exactly(self, view: View, tps: list[TopicPartition]) -> None:
        """Assign exactly these partitions. Those that were assigned or suspended keep their positions."""
        previous_parts = {**self._suspended_parts, **self.assigned}
        assigned = {tp: previous_parts[tp] if tp in previous_parts else _new_assignment(view, tp) for tp in tps}
        revoked_parts = [part for tp, part in self.assigned.items() if tp not in assigned]
        self.assigned = assigned
        self.assignment_number += 1
        for tp in assigned:
            self._suspended_parts.pop(tp, None)
        for part in revoked_parts:
            part.move(None)  # Cancels its fetches.

    def _follow_topics(self, view: View) -> None:
        """Add new partitions of the topics and drop deleted ones, unless a group assigns partitions.

        A partition that was assigned by hand stays assigned after its deletion, and is read again if it is recreated.
        """
        if self.topics is not None and not self.shared:
            topics = (view.topics.get(name) for name in self.topics)
            shapes = [(topic.topic_id, topic.partitions) for topic in topics if topic is not None]
            if shapes != self._topic_shapes:
                assigned_before = set(self.assigned)
                self._assign_exactly(view, _existing_partitions(view, self.topics))
                for tp in self.assigned.keys() - assigned_before:
                    self.assigned[tp].late = True
                self._topic_shapes = shapes
        self._log_missing(view)

    def _log_missing(self, view: View) -> None:
        """Log the topics and partitions that do not exist, once for each time that they are missing."""
        names = self.topics if self.topics is not None else dict.fromkeys(tp.topic for tp in self.assigned)
        missing_topics = {name for name in names if name not in view.topics}
        for name in sorted(missing_topics - self._missing_topics):
            existing_text = ", ".join(sorted(view.topics)[:10]) or "none"
            _LOG.warning(
                "there is no topic %r: the consumer waits until it is created; the store has %s",
                name,
                existing_text,
                extra={"topic": name, "group": self.group},
            )
        self._missing_topics = missing_topics
        assigned_by_hand = self.assigned if self.topics is None else ()
        missing_tps = {tp for tp in assigned_by_hand if tp.topic in view.topics and view.partition(tp) is None}
        for tp in sorted(missing_tps - self._missing_partitions):
            _LOG.warning(
                "there is no partition %s: the consumer waits until it is added; the topic has %d",
                tp,
                view.topics[tp.topic].partitions,
                extra={"topic": tp.topic, "group": self.group},
            )
        self._missing_partitions = missing_tps

    # Where in them ----------------------------------------------------------------------------------------------------

    def chains(self, view: View) -> set[int]:
        """Return the chains that a poll has to read: of the partitions, the group, and open transactions in them."""
        chains = set[int]()
        if self.topics is not None or self._missing_topics or self._missing_partitions:
            chains.add(CATALOG)
        if self.group is not None and (self.shared or self._tps_without_position()):
            chains.add(chain_of_group(self.group, view.chains))
        for tp in self.assigned:
            chains.add(chain_of_partition(tp, view.chains))
            log = view.log(tp)
            if log is not None:
                chains |= {chain_of_producer(producer_id) for producer_id in log.open_txns}
        return chains | {chain_of_producer(producer_id) for producer_id in self.pending_producers(view)}

    def _tps_without_position(self) -> list[TopicPartition]:
        """Return the partitions whose position has to be looked up."""
        return [tp for tp, part in self.assigned.items() if part.flow is None]

    def pending_producers(self, view: View) -> set[int]:
        """Return the producers whose pending offsets decide where partitions begin (OFF-10)."""
        group = view.groups.get(self.group) if self.group is not None else None
        if group is None or not group.pending:
            return set()
        tps = self._tps_without_position()
        return {producer_id for producer_id in group.pending if any(tp in group.pending[producer_id] for tp in tps)}

    def blocking_producers(self, view: View) -> set[int]:
        """Return the producers whose open transactions block records, or offsets at which to begin."""
        producer_ids = self.pending_producers(view)
        if self.isolation is Isolation.READ_COMMITTED:
            for tp in self.assigned:
                log = view.log(tp)
                producer_ids |= set(log.open_txns) if log is not None else set()
        return producer_ids

    def needs_head(self, view: View) -> bool:
        """Whether a position has to be looked up at the head of the chain.

        Committed offsets and the ends of a log move; an offset within the log of this view stays valid.
        """
        return any(
            part.flow is None
            and (log := view.partition(tp)) is not None
            and not (isinstance(part.begin, int) and part.begin <= log.high_watermark)
            for tp, part in self.assigned.items()
        )

    def committed_past_end(self, view: View) -> dict[TopicPartition, int]:
        """Return the group's committed offsets at which to begin that are past the end of their log in this view.

        A closed cut does not exclude this: the group's chain may be read after the commit of the offset, and the
        partition's chain before the append of its records.
        """
        offsets: dict[TopicPartition, int] = {}
        if self.group is None or view.chains == 1:
            return offsets
        for tp, part in self.assigned.items():
            if part.flow is not None or part.begin is not None:
                continue
            log = view.partition(tp)
            value = committed(view, self.group, tp, require_stable=False) if log is not None else None
            if log is not None and value is not None and value.offset > log.high_watermark:
                offsets[tp] = value.offset
        return offsets

    def update(self, view: View) -> list[TopicPartition]:
        """Look up missing positions, and plan the readable records of all partitions that are not paused.

        A deleted partition has none, and does not keep the others from being read.

        Returns:
            The partitions whose committed offset is pending in an open transaction, so that they have no position yet
            (OFF-09, OFF-10).

        Raises:
            OffsetOutOfRangeError: A position is out of range, and the reset policy is ``none``.
        """
        self._follow_topics(view)
        pending_tps = []
        for tp, part in self.assigned.items():
            log = view.partitions.get(tp)
            if log is None:
                part.stop()
                continue
            topic = view.topics[tp.topic]
            if part.paused and part.position is not None and part.topic_id == topic.topic_id:
                continue  # The position stays, even outside the log.
            try:
                flow = self._locate(view, part, topic, log)
                if not part.paused:
                    flow.plan(log, self.isolation)
            except UnstableOffsetCommitError:
                pending_tps.append(tp)
        return pending_tps

    def locate(self, view: View, part: AssignedPartition) -> Flow:
        """Return the flow of a partition, at a position inside the log.

        Raises:
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        return self._locate(view, part, view.find_topic(part.tp.topic), view.find_partition(part.tp))

    def _locate(self, view: View, part: AssignedPartition, topic: CatalogTopic, partition: Partition) -> Flow:
        """Return the flow of an existing partition; a recreated topic is read from its beginning."""
        if part.topic_id is None:
            part.topic_id = topic.topic_id
        elif topic.topic_id != part.topic_id:
            # The topic was deleted and created again: all of its records are new.
            part.move(None)
            part.topic_id, part.origin, part.late = topic.topic_id, None, True
        if part.flow is None:
            position = self._start_offset(view, part, partition)
            part.origin = position if part.origin is None else part.origin
            part.flow, part.begin = Flow(part.tp, self.columns(topic), position), None
        elif part.flow.columns.topic.version != topic.version:
            part.flow.drop()
            part.flow.columns = self.columns(topic)
        position = part.flow.position
        if not partition.log_start <= position <= partition.high_watermark:
            if self.reset is Reset.NONE:
                check_offset(part.tp, partition, self.isolation, position)
            part.flow.seek(self._reset_offset(view, part, partition, self.reset))
        return part.flow

    def _start_offset(self, view: View, part: AssignedPartition, partition: Partition) -> int:
        """Return where to begin: a sought end or offset, the committed offset, the origin, else the reset policy."""
        if isinstance(part.begin, Reset):
            part.origin = self._reset_offset(view, part, partition, part.begin)
            return part.origin
        if part.begin is not None:
            return part.begin
        if self.group is not None:
            value = committed(view, self.group, part.tp)
            if value is not None:
                return value.offset
        if part.origin is not None:
            return part.origin
        if self.reset is Reset.NONE and not part.late:
            reader = "a consumer without a group" if self.group is None else f"group {self.group!r}"
            msg = f"{reader} has no committed offset in {part.tp}"
            msg = f"{msg}, and auto_offset_reset is 'none', so no position is known: call seek() first"
            raise OffsetOutOfRangeError(msg)
        return self._reset_offset(view, part, partition, Reset.EARLIEST if part.late else self.reset)

    def _reset_offset(self, view: View, part: AssignedPartition, partition: Partition, reset: Reset | timedelta) -> int:
        if isinstance(reset, timedelta):
            offset = self._first_offset_since(view, part.tp, reset)
            return offset if offset is not None else partition.read_limit(self.isolation)
        return partition.log_start if reset is Reset.EARLIEST else partition.read_limit(self.isolation)

    def positions(self, view: Callable[[], View]) -> dict[TopicPartition, int]:
        """Return the positions, including sought ones; a sought end of a log is looked up (one GET).

        Partitions that the group's committed offset decides have none before the next poll.
        """
        sought_parts = [part for part in self.assigned.values() if part.flow is None and isinstance(part.begin, Reset)]
        if sought_parts:
            head = view()
            for part in sought_parts:
                if head.partition(part.tp) is not None:
                    self.locate(head, part)
        return {
            tp: part.position
            for tp, part in self.assigned.items()
            if part.position is not None and tp.topic not in self._missing_topics
        }

    def columns(self, topic: CatalogTopic) -> Columns:
        """Return all columns of a topic in its current version."""
        key = (topic.topic_id, topic.version)
        if key not in self._columns:
            self._columns[key] = Columns(topic)
        return self._columns[key]


def _new_assignment(view: View, tp: TopicPartition) -> AssignedPartition:
    topic = view.topics.get(tp.topic)
    return AssignedPartition(tp, topic.topic_id if topic is not None else None)


def _existing_partitions(view: View, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of those of the topics that exist."""
    return [tp for name in topics if name in view.topics for tp in find_partitions(view, name, None)]
