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
from txnstore.core.catalog.model import Topic
from txnstore.core.groups.offsets import committed
from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import check_offset
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition, chain_of_producer
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, OffsetOutOfRangeError, UnstableOffsetCommitError
from txnstore.read.plan import find_partitions
from txnstore.read.reader import Projection
from txnstore.validation import check_choice

_LOG = logging.getLogger("txnstore.consumer")


class Reset(StrEnum):
    """Where to begin when nothing says where, or when the offset is gone (CON-13)."""

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
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        msg = f"auto_offset_reset must end with a duration of ISO 8601, such as by_duration:PT24H, not {text!r}"
        raise InvalidConfigError(msg)
    days, hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        msg = f"auto_offset_reset: {text!r} is too long"
        raise InvalidConfigError(msg) from None


@dataclass(slots=True)
class Assignment:
    """One partition of a consumer.

    ``topic_id`` is None until the topic exists, ``flow`` until the position is known. ``want``: where to begin then: an
    offset, an end of the log, or None for the group's committed offset, else the reset policy. ``origin``: where it
    began, or was last sought to: the target of a rewind without a committed offset. ``late``: the partition is newer
    than the subscription, so none of its records may be skipped. ``sought``: the application chose the position.
    """

    tp: TopicPartition
    topic_id: str | None
    late: bool = False
    want: int | Reset | None = None
    origin: int | None = None
    flow: Flow | None = None
    paused: bool = False
    sought: bool = False

    def move(self, want: int | Reset | None) -> None:
        """Drop fetched rows; the next update looks the position up."""
        flow, self.want, self.flow = self.flow, want, None
        if flow is not None:
            flow.drop()

    def stop(self) -> None:
        """Drop fetched rows and keep the position."""
        if self.flow is not None:
            self.move(self.flow.position)

    @property
    def position(self) -> int | None:
        """The next offset to read: after the last returned record, or where it was sought; None if not known."""
        return self.flow.position if self.flow is not None else self.want if isinstance(self.want, int) else None


class Positions:
    """The partitions of a consumer and its position in each.

    Args:
        isolation: Which records are visible.
        group: The group at whose committed offsets to begin.
        reset: Where to begin without one, or outside the log.
        first_since: Finds the offset of the first visible record that is at most this old, for such a ``reset``.
    """

    def __init__(
        self,
        isolation: Isolation,
        group: str | None,
        reset: Reset | timedelta,
        first_since: Callable[[View, TopicPartition, timedelta], int | None],
    ) -> None:
        self._first_since = first_since
        self.isolation = isolation
        self.group = group
        self.reset = reset
        self.assigned: dict[TopicPartition, Assignment] = {}
        self.changes = 0  # of the assignment
        self.topics: tuple[str, ...] | None = None
        self.shared = False
        self._prepared: dict[TopicPartition, Assignment] = {}
        self._counts: dict[str, int] = {}
        self._shape: list[tuple[str, int]] = []
        self._missing: set[str] = set()
        self._beyond: set[TopicPartition] = set()
        self._projections: dict[tuple[str, int], Projection] = {}

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, view: View, topics: Sequence[str]) -> None:
        """Read all partitions of these topics, also later ones; as a member of a group, the assigned ones.

        A topic that does not exist is read from its beginning as soon as it is created.
        """
        self._counts = {name: view.topics[name].partitions for name in topics if name in view.topics}
        self.topics = tuple(dict.fromkeys(topics))
        if not self.shared:
            self._replace(view, _partitions(view, self.topics))
        self._note_missing(view)

    def assign(self, view: View, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Those that were read before keep their positions.

        One that does not exist is read from its beginning as soon as it does.
        """
        self._replace(view, list(dict.fromkeys(partitions)))
        for tp, part in self.assigned.items():
            part.late = part.late or view.partition(tp) is None
        self.topics, self.shared, self._prepared = None, False, {}
        self._note_missing(view)

    def begin_sharing(self) -> None:
        """From now on read the partitions that the group assigns; none until then.

        Positions that were sought are kept until their partition is assigned; others are looked up again, because the
        member that had the partition may have committed in between.
        """
        for part in self.assigned.values():
            if not part.sought:
                part.move(None)
        self._prepared, self.assigned, self.shared = {**self._prepared, **self.assigned}, {}, True
        self.changes += 1

    def share(self, view: View, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, as the group assigns. Those that were read before keep their positions."""
        self._replace(view, sorted(partitions))
        for tp, part in self.assigned.items():
            part.late = part.late or tp.partition >= self._counts.get(tp.topic, 0)

    def prepare(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions only when the group assigns them again; their positions are kept until then."""
        for tp in partitions:
            if tp in self.assigned:
                self._prepared[tp] = self.assigned[tp]
                del self.assigned[tp]
                self.changes += 1

    def share_nothing(self) -> None:
        """Read no partitions until the group assigns some."""
        for part in self.assigned.values():
            part.move(None)
        self.assigned, self._prepared = {}, {}
        self.changes += 1

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that are read, by name."""
        return {tp.topic: part.topic_id for tp, part in self.assigned.items() if part.topic_id is not None}

    def _replace(self, view: View, tps: list[TopicPartition]) -> None:
        found = {tp: self.assigned.get(tp) or self._prepared.get(tp) or _assignment(view, tp) for tp in tps}
        before, self.assigned = self.assigned, found
        self.changes += 1
        for tp in found:
            self._prepared.pop(tp, None)
        for tp, part in before.items():
            if tp not in found:
                part.move(None)

    def _follow_topics(self, view: View) -> None:
        """Add new partitions of the topics and drop deleted ones, unless a group assigns partitions.

        A partition that was assigned by hand stays assigned after its deletion, and is read again if it is recreated.
        """
        if self.topics is not None and not self.shared:
            found = (view.topics.get(name) for name in self.topics)
            shape = [(topic.topic_id, topic.partitions) for topic in found if topic is not None]
            if shape != self._shape:
                before = set(self.assigned)
                self._replace(view, _partitions(view, self.topics))
                for tp in self.assigned.keys() - before:
                    self.assigned[tp].late = True
                self._shape = shape
        self._note_missing(view)

    def _note_missing(self, view: View) -> None:
        """Log the topics and partitions that do not exist, once for each time that they are missing."""
        names = self.topics if self.topics is not None else dict.fromkeys(tp.topic for tp in self.assigned)
        missing = {name for name in names if name not in view.topics}
        for name in sorted(missing - self._missing):
            known = ", ".join(sorted(view.topics)[:10]) or "none"
            _LOG.warning(
                "there is no topic %r: the consumer waits until it is created; the store has %s",
                name,
                known,
                extra={"topic": name, "group": self.group},
            )
        self._missing = missing
        by_hand = self.assigned if self.topics is None else ()
        beyond = {tp for tp in by_hand if tp.topic in view.topics and view.partition(tp) is None}
        for tp in sorted(beyond - self._beyond):
            _LOG.warning(
                "there is no partition %s: the consumer waits until it is added; the topic has %d",
                tp,
                view.topics[tp.topic].partitions,
                extra={"topic": tp.topic, "group": self.group},
            )
        self._beyond = beyond

    # Where in them ----------------------------------------------------------------------------------------------------

    def chains(self, view: View) -> set[int]:
        """The chains that a poll has to read: of its partitions, its group, and of open transactions in them."""
        found = {CATALOG} if self.topics is not None or self._missing or self._beyond else set[int]()
        if self.group is not None and (self.shared or self._unknown()):
            found.add(chain_of_group(self.group, view.chains))
        for tp in self.assigned:
            found.add(chain_of_partition(tp, view.chains))
            log = view.log(tp)
            found |= {chain_of_producer(producer_id) for producer_id in (log.open_txns if log is not None else ())}
        return found | {chain_of_producer(producer_id) for producer_id in self.pending(view)}

    def _unknown(self) -> list[TopicPartition]:
        """The partitions whose position has to be looked up."""
        return [tp for tp, part in self.assigned.items() if part.flow is None]

    def pending(self, view: View) -> set[int]:
        """The producers with pending offsets of the group at which to begin (OFF-10)."""
        group = view.groups.get(self.group) if self.group is not None else None
        if group is None or not group.pending:
            return set()
        unknown = self._unknown()
        return {producer_id for producer_id in group.pending if any(tp in group.pending[producer_id] for tp in unknown)}

    def blocked_by(self, view: View) -> set[int]:
        """The producers whose open transactions block records to read, or offsets at which to begin."""
        found = self.pending(view)
        if self.isolation is Isolation.READ_COMMITTED:
            for tp in self.assigned:
                log = view.log(tp)
                found |= set(log.open_txns) if log is not None else set()
        return found

    def needs_head(self, view: View) -> bool:
        """Whether a position has to be looked up at the head of the chain.

        Committed offsets and the ends of a log move; an offset within the known log stays valid.
        """
        return any(
            part.flow is None
            and (log := view.partition(tp)) is not None
            and not (isinstance(part.want, int) and part.want <= log.high_watermark)
            for tp, part in self.assigned.items()
        )

    def outrun(self, view: View) -> dict[TopicPartition, int]:
        """The group's committed offsets at which to begin that are past the end of their log in this view.

        A closed cut does not exclude this: the group's chain may be read after the commit of the offset, and the
        partition's chain before the append of its records.
        """
        found: dict[TopicPartition, int] = {}
        if self.group is None or view.chains == 1:
            return found
        for tp, part in self.assigned.items():
            log = view.partition(tp) if part.flow is None and part.want is None else None
            value = committed(view, self.group, tp, require_stable=False) if log is not None else None
            if log is not None and value is not None and value.offset > log.high_watermark:
                found[tp] = value.offset
        return found

    def update(self, view: View) -> list[TopicPartition]:
        """Look up unknown positions, and plan the records that can be read now in all partitions that are not paused.

        A deleted partition has none, and does not keep the others from being read.

        Returns:
            The partitions whose committed offset is pending in an open transaction, so that they have no position yet
            (OFF-09, OFF-10).

        Raises:
            OffsetOutOfRangeError: A position is out of range, and the reset policy is ``none``.
        """
        self._follow_topics(view)
        pending = []
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
                pending.append(tp)
        return pending

    def locate(self, view: View, part: Assignment) -> Flow:
        """The flow of a partition, at a position inside the log.

        Raises:
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        return self._locate(view, part, view.find_topic(part.tp.topic), view.find_partition(part.tp))

    def _locate(self, view: View, part: Assignment, topic: Topic, partition: Partition) -> Flow:
        if part.topic_id is None:
            part.topic_id = topic.topic_id
        elif topic.topic_id != part.topic_id:
            # The topic was deleted and created again: all of its records are new.
            part.move(None)
            part.topic_id, part.origin, part.late = topic.topic_id, None, True
        if part.flow is None:
            position = self._beginning(view, part, partition)
            part.origin = position if part.origin is None else part.origin
            part.flow, part.want = Flow(part.tp, self.projection(topic), position), None
        elif part.flow.projection.topic.version != topic.version:
            part.flow.drop()
            part.flow.projection = self.projection(topic)
        position = part.flow.position
        if not partition.log_start <= position <= partition.high_watermark:
            if self.reset is Reset.NONE:
                check_offset(part.tp, partition, self.isolation, position)
            part.flow.seek(self._end(view, part, partition, self.reset))
        return part.flow

    def _beginning(self, view: View, part: Assignment, partition: Partition) -> int:
        if isinstance(part.want, Reset):
            part.origin = self._end(view, part, partition, part.want)
            return part.origin
        if part.want is not None:
            return part.want
        if self.group is not None:
            value = committed(view, self.group, part.tp)
            if value is not None:
                return value.offset
        if part.origin is not None:
            return part.origin
        if self.reset is Reset.NONE and not part.late:
            who = "a consumer without a group" if self.group is None else f"group {self.group!r}"
            msg = f"{who} has no committed offset in {part.tp}"
            msg = f"{msg}, and auto_offset_reset is 'none', so no position is known: call seek() first"
            raise OffsetOutOfRangeError(msg)
        return self._end(view, part, partition, Reset.EARLIEST if part.late else self.reset)

    def _end(self, view: View, part: Assignment, partition: Partition, which: Reset | timedelta) -> int:
        if isinstance(which, timedelta):
            found = self._first_since(view, part.tp, which)
            return found if found is not None else partition.read_limit(self.isolation)
        return partition.log_start if which is Reset.EARLIEST else partition.read_limit(self.isolation)

    def positions(self, view: Callable[[], View]) -> dict[TopicPartition, int]:
        """The known positions, those after a seek included; a sought end of a log is looked up (one GET).

        Partitions that the group's committed offset decides have none before the next poll.
        """
        sought = [part for part in self.assigned.values() if part.flow is None and isinstance(part.want, Reset)]
        if sought:
            head = view()
            for part in sought:
                if head.partition(part.tp) is not None:
                    self.locate(head, part)
        return {
            tp: part.position
            for tp, part in self.assigned.items()
            if part.position is not None and tp.topic not in self._missing
        }

    def projection(self, topic: Topic) -> Projection:
        """All columns of a topic, as it is now."""
        key = (topic.topic_id, topic.version)
        if key not in self._projections:
            self._projections[key] = Projection(topic)
        return self._projections[key]


def _assignment(view: View, tp: TopicPartition) -> Assignment:
    topic = view.topics.get(tp.topic)
    return Assignment(tp, topic.topic_id if topic is not None else None)


def _partitions(view: View, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of those of the topics that exist."""
    return [tp for name in topics if name in view.topics for tp in find_partitions(view, name, None)]
