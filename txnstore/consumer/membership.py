"""A consumer and its group: it commits offsets there, looks them up, and may be a member.

A member joins at its first poll, renews its lease at polls, and reads what it is given. Nothing runs in the background,
so a consumer that does not poll for longer than its session timeout may lose its partitions, as one does in Kafka that
exceeds ``max.poll.interval.ms``. What a member is to read stands in the group's chain, which an idle poll reads anyway;
a heartbeat is one PUT, made when a third of the timeout is over, or to give partitions back. An offset commit is a sign
of life, too, so who commits often sends none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from txnstore.connection import Connection
from txnstore.consumer.subscription import Positions
from txnstore.core.groups.assignors import ASSIGNORS
from txnstore.core.groups.commands import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup, TxnOffsets
from txnstore.core.groups.membership import MAX_SESSION_TIMEOUT_MS
from txnstore.core.groups.model import Group, GroupMetadata, Member, OffsetAndMetadata
from txnstore.core.groups.offsets import committed, group_offset, with_id
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition
from txnstore.core.view import View
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InvalidConfigError,
    StorageError,
    UnknownMemberError,
)
from txnstore.validation import check_choice, check_id, check_seconds

_LOG = logging.getLogger(__name__)

#: What an application may be told of: the partitions that it has got, or is about to lose.
Callback = Callable[[list[TopicPartition]], None]
#: How a group shares its partitions (Kafka: ``partition.assignment.strategy``).
AssignorName = Literal["cooperative-sticky", "range"]
#: Heartbeats in a session timeout (Kafka's advice for ``heartbeat.interval.ms``).
_BEATS = 3
#: How often a commit is tried again because the members have changed, though this one's partitions have not.
_ATTEMPTS = 8
#: How often a poll follows the group before it hands out what it has; others may change the group all the time.
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a consumer may choose about its membership; the session timeout in seconds."""

    assignor: AssignorName = "cooperative-sticky"
    instance_id: str | None = None
    session_timeout: float = 45.0
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None

    def __post_init__(self) -> None:
        check_choice("assignor", self.assignor, ASSIGNORS)
        if self.instance_id is not None:
            check_id("group_instance_id", self.instance_id)
        check_seconds("session_timeout", self.session_timeout, least=0.001, most=MAX_SESSION_TIMEOUT_MS // 1000)


class GroupMembership:
    """The membership of one consumer. ``before_revoked`` commits what was read, if the consumer does that by itself."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        positions: Positions,
        options: MemberOptions,
        before_revoked: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._group = group
        self._positions = positions
        self._options = options
        self._before_revoked = before_revoked
        self._timeout_ms = int(options.session_timeout * 1000)
        self.forget()

    def forget(self) -> None:
        """Be no member: another one has this id, such as the process that this one was forked from."""
        self.member_id = self._connection.runtime.new_id()
        self.generation = -1
        self._joined: tuple[str, ...] | None = None  # the topics that it joined with
        self._seen_at = -1
        self._renewed_at = self._looked_at = self._connection.runtime.clock()

    @property
    def instance_id(self) -> str | None:
        """The name of a static member."""
        return self._options.instance_id

    @property
    def joined(self) -> bool:
        """Whether it is a member, as far as it knows."""
        return self._joined is not None

    # Following the group ----------------------------------------------------------------------------------------------

    def follow(self, view: View) -> View:
        """Join, renew the lease if it is time, take and give back partitions as the group says; the view after that.

        Raises :class:`FencedInstanceError` if another consumer has taken over this one's static name.
        """
        topics = self._positions.topics
        if topics is None or self._connection.read_only:
            return view  # assigned by hand, or only looking on
        for _ in range(_ROUNDS):
            if self._joined != topics:
                view = self._join(view, topics)
            group = view.groups.get(self._group, Group())
            member = group.members.get(self.member_id)
            if member is None:
                self._lost(group)
                continue
            self._note_lease(member)
            self.generation = group.generation
            gone = self._give_up(view, member)
            self._take(view, member)
            if not gone and not self._due(view, group, member):
                break
            view = self._beat(view, member)
        return view

    def learn(self) -> bool:
        """Take the newest generation that is known; whether that is another one, and this is still a member."""
        group = self._connection.view(refresh=False).groups.get(self._group, Group())
        if self.member_id not in group.members or group.generation == self.generation:
            return False
        self.generation = group.generation
        return True

    def _join(self, view: View, topics: tuple[str, ...]) -> View:
        """Become a member, or tell which other topics it reads now. The same id again if the outcome was unknown."""
        command = JoinGroup(
            self._group,
            self.member_id,
            self._counts(view, topics),
            self._options.assignor,
            self._timeout_ms,
            self._options.instance_id,
        )
        self._submit(command)
        if self._joined is None:
            self._positions.begin_sharing()
        self._joined = topics
        return self._connection.view(refresh=False)

    def _beat(self, view: View, member: Member) -> View:
        owned = tuple(sorted(self._positions.assigned))
        counts = self._counts(view, member.topics)
        with suppress(UnknownMemberError, FencedInstanceError):  # The view says so, too.
            self._submit(Heartbeat(self._group, self.member_id, owned, counts, self._options.instance_id))
        return self._connection.view(refresh=False)

    def _submit(self, command: JoinGroup | Heartbeat) -> None:
        begun = self._connection.runtime.clock()
        self._connection.submit(command)
        self._renewed_at = self._looked_at = begun
        self._seen_at = -1

    def _counts(self, view: View, topics: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, view.topics[name].partitions if name in view.topics else 0) for name in sorted(topics))

    def _give_up(self, view: View, member: Member) -> bool:
        """Stop reading what is meant for others; whether the group has still to be told."""
        left = set(self._readable(view, member)).intersection(self._positions.assigned)
        gone = sorted(tp for tp in self._positions.assigned if tp not in left)
        if gone:
            self._before_revoked()
            self._tell(self._options.on_revoked, gone)
            self._positions.share(view, left)
        return any(tp not in member.target for tp in member.held)

    def _take(self, view: View, member: Member) -> None:
        """Read what was given to it."""
        readable = self._readable(view, member)
        new = sorted(tp for tp in readable if tp not in self._positions.assigned)
        if new:
            self._positions.share(view, readable)
            self._tell(self._options.on_assigned, new)

    def _readable(self, view: View, member: Member) -> list[TopicPartition]:
        """What it may read, as far as there is such a partition: others may have seen an older or a newer topic."""
        topics = view.topics
        return [tp for tp in member.assigned if tp.topic in topics and tp.partition < topics[tp.topic].partitions]

    def _lost(self, group: Group) -> None:
        """Others have taken over, and nothing can be committed any more; the next round joins as somebody new.

        But for a static name that another consumer has now: to join again would put that one out in turn.
        """
        instance_id = self._options.instance_id
        fenced = any(member.instance_id == instance_id is not None for member in group.members.values())
        lost = sorted(self._positions.assigned)
        self._positions.share_nothing()
        if not fenced:
            self.forget()
        if lost:
            self._tell(self._options.on_revoked, lost)
        if fenced:
            msg = f"another consumer has taken over the group_instance_id {instance_id!r} in group {self._group!r}"
            raise FencedInstanceError(msg)

    def _tell(self, callback: Callback | None, partitions: list[TopicPartition]) -> None:
        if callback is not None:
            callback(partitions)

    # The lease --------------------------------------------------------------------------------------------------------

    def _note_lease(self, member: Member) -> None:
        """A commit in a transaction renews the lease as well: at some time since the last look, so count from that."""
        if self._seen_at == -1:
            self._seen_at = member.seen_at
        elif member.seen_at != self._seen_at:
            self._seen_at, self._renewed_at = member.seen_at, max(self._renewed_at, self._looked_at)
        self._looked_at = self._connection.runtime.clock()

    def _due(self, view: View, group: Group, member: Member) -> bool:
        """Whether it is time for a sign of life, another one has given none for too long, or there are new partitions.

        The clock may have been set back, so that no time seems to have passed for long: that counts as well.
        """
        now = self._connection.runtime.clock()
        passed = now - self._renewed_at
        return (
            not 0 <= passed < self._timeout_ms / _BEATS
            or any(other.expired(now) for other in group.members.values() if other.member_id != self.member_id)
            or dict(self._counts(view, member.topics)) != member.topics
        )

    # The end ----------------------------------------------------------------------------------------------------------

    def leave(self, *, static: bool = False) -> None:
        """Give everything back. A static member does not (KIP-345), unless it is to stop being one.

        If the storage fails, the lease runs out instead.
        """
        if self._joined is None or (self._options.instance_id is not None and not static):
            return
        member_id = self.member_id
        self.forget()
        try:
            self._connection.submit(LeaveGroup(self._group, member_id, self._options.instance_id))
        except (StorageError, FencedInstanceError) as error:
            _LOG.warning("group not left, the lease will run out", extra={"group": self._group, "error": str(error)})


class ConsumerGroup:
    """The group of one consumer. ``auto_commit_interval``: in seconds; None: it never commits by itself."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        positions: Positions,
        options: MemberOptions,
        auto_commit_interval: float | None,
    ) -> None:
        self.name = name
        self._connection = connection
        self._positions = positions
        self._auto_commit_interval = auto_commit_interval
        self._committed_at = connection.runtime.clock()
        self.membership = GroupMembership(connection, name, positions, options, self._commit_before_revoked)

    def follow(self, view: View) -> View:
        """Be a member, if topics are subscribed to; see :meth:`GroupMembership.follow`."""
        return self.membership.follow(view)

    def metadata(self) -> GroupMetadata:
        """What a producer needs to commit offsets of this consumer. Refused if it commits by itself (OFF-19)."""
        if self._auto_commit_interval is not None:
            msg = (
                f"offsets of group {self.name!r} cannot go into transactions while enable_auto_commit is on: what an "
                "aborted transaction had read would be committed"
            )
            raise InvalidConfigError(msg)
        member, ids = self.membership, self._positions.topic_ids
        if not member.joined:
            return GroupMetadata(self.name, topic_ids=ids)
        return GroupMetadata(self.name, member.generation, member.member_id, member.instance_id, ids)

    # Offsets ----------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions. One PUT.

        If only the generation has changed since the last poll, it is tried again with the new one: what this member
        holds, nobody else has read.
        """
        if offsets is None:
            offsets = {part.tp: part.flow.position for part in self._positions.assigned.values() if part.flow}
        ids = self._positions.topic_ids
        items = tuple(with_id(group_offset(tp, value), ids) for tp, value in offsets.items())
        member = self.membership
        if items and not member.joined:
            self._connection.submit(CommitOffsets(TxnOffsets(self.name, items)))
        elif items:
            for attempt in range(_ATTEMPTS):
                command = CommitOffsets(
                    TxnOffsets(self.name, items, member.generation, member.member_id, member.instance_id)
                )
                try:
                    self._connection.submit(command)
                    break
                except IllegalGenerationError:
                    if not member.learn() or attempt == _ATTEMPTS - 1:
                        raise
        self._committed_at = self._connection.runtime.clock()

    def committed(
        self, tp: TopicPartition, *, require_stable: bool = True, strict: bool = False
    ) -> OffsetAndMetadata | None:
        """The committed position at the head of the chain, or None."""
        chains = self._connection.view(refresh=False).chains
        view = self._connection.view(
            refresh={CATALOG, chain_of_group(self.name, chains), chain_of_partition(tp, chains)}
        )
        view.find_partition(tp)
        return committed(view, self.name, tp, require_stable=require_stable, strict=strict)

    def commit_by_itself(self) -> None:
        """At a poll: commit what earlier ones returned, if it is time."""
        interval = self._auto_commit_interval
        if interval is not None and self._connection.runtime.clock() - self._committed_at >= interval * 1000:
            self._commit_if_member()

    def _commit_before_revoked(self) -> None:
        if self._auto_commit_interval is not None:
            self._commit_if_member()

    def _commit_if_member(self) -> None:
        """Who was put out of the group cannot commit any more; the next poll joins again and begins at what was."""
        try:
            self.commit()
        except (UnknownMemberError, FencedInstanceError, IllegalGenerationError) as error:
            _LOG.warning("not committed: others have taken over", extra={"group": self.name, "error": str(error)})

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit if it commits by itself, then leave."""
        try:
            if self._auto_commit_interval is not None:
                self._commit_if_member()
        finally:
            self.membership.leave()
