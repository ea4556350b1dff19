"""A consumer as a member of its group: joins at the first poll, renews its lease at polls, follows what it is given.

Nothing runs in the background, so a consumer that does not poll for longer than its session time-out may lose its
partitions, as one does in Kafka that exceeds ``max.poll.interval.ms``. What a member is to read stands in the group's
chain, which an idle poll reads anyway; a heartbeat is one PUT, made when a third of the time-out is over, or to give
partitions back. An offset commit is a sign of life, too, so who commits often sends none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from txnstore.consumer.subscription import Positions
from txnstore.core.assignors import ASSIGNORS
from txnstore.core.commands import Heartbeat, JoinGroup, LeaveGroup
from txnstore.core.membership import MAX_SESSION_TIMEOUT_MS
from txnstore.core.model import Group, Member, TopicPartition
from txnstore.core.names import check_id
from txnstore.core.view import View
from txnstore.errors import FencedInstanceError, InvalidConfigError, StorageError, UnknownMemberError
from txnstore.read.store import Reads

_LOG = logging.getLogger(__name__)

#: What an application may be told of: the partitions that it has got, or is about to lose.
Callback = Callable[[list[TopicPartition]], None]
#: Heartbeats in a session time-out (Kafka's advice for ``heartbeat.interval.ms``).
_BEATS = 3
#: How often a poll follows the group before it hands out what it has; others may change the group all the time.
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a consumer may choose about its membership; the session time-out in seconds."""

    assignor: str = "cooperative-sticky"
    instance_id: str | None = None
    session_timeout: float = 45.0
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None

    def __post_init__(self) -> None:
        if self.assignor not in ASSIGNORS:
            known = ", ".join(repr(name) for name in ASSIGNORS)
            msg = f"assignor must be one of {known}, not {self.assignor!r}"
            raise InvalidConfigError(msg)
        if self.instance_id is not None:
            check_id("group_instance_id", self.instance_id)
        limit, value = MAX_SESSION_TIMEOUT_MS // 1000, self.session_timeout
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= limit:
            msg = f"session_timeout must be a number of seconds above 0 and up to {limit}, not {value!r}"
            raise InvalidConfigError(msg)


class GroupMembership:
    """The membership of one consumer. ``before_revoked`` commits what was read, if the consumer does that by itself."""

    def __init__(
        self, store: Reads, group: str, positions: Positions, options: MemberOptions, before_revoked: Callable[[], None]
    ) -> None:
        self._store = store
        self._group = group
        self._positions = positions
        self._options = options
        self._before_revoked = before_revoked
        self._timeout_ms = int(options.session_timeout * 1000)
        self.forget()

    def forget(self) -> None:
        """Be no member: another one has this id, such as the process that this one was forked from."""
        self.member_id = self._store.runtime.new_id()
        self.generation = -1
        self._joined: tuple[str, ...] | None = None  # the topics that it joined with
        self._seen_at = -1
        self._renewed_at = self._looked_at = self._store.runtime.clock()

    @property
    def instance_id(self) -> str | None:
        """The name of a static member."""
        return self._options.instance_id

    @property
    def joined(self) -> bool:
        """Whether it is a member, as far as it knows."""
        return self._joined is not None

    # Following the group ----------------------------------------------------------------------------------------------

    def follow(self, state: View) -> View:
        """Join, renew the lease if it is time, take and give back partitions as the group says; the state after that.

        Raises :class:`FencedInstanceError` if another consumer has taken over this one's static name.
        """
        topics = self._positions.topics
        if topics is None or self._store.read_only:
            return state  # assigned by hand, or only looking on
        for _ in range(_ROUNDS):
            if self._joined != topics:
                state = self._join(state, topics)
            group = state.groups.get(self._group, Group())
            member = group.members.get(self.member_id)
            if member is None:
                self._lost(group)
                continue
            self._note_lease(member)
            self.generation = group.generation
            gone = self._give_up(state, member)
            self._take(state, member)
            if not gone and not self._due(state, group, member):
                break
            state = self._beat(state, member)
        return state

    def learn(self) -> bool:
        """Take the newest generation that is known; whether that is another one, and this is still a member."""
        group = self._store.state(refresh=False).groups.get(self._group, Group())
        if self.member_id not in group.members or group.generation == self.generation:
            return False
        self.generation = group.generation
        return True

    def _join(self, state: View, topics: tuple[str, ...]) -> View:
        """Become a member, or tell which other topics it reads now. The same id again if the outcome was unknown."""
        command = JoinGroup(
            self._group,
            self.member_id,
            self._counts(state, topics),
            self._options.assignor,
            self._timeout_ms,
            self._options.instance_id,
        )
        self._submit(command)
        if self._joined is None:
            self._positions.begin_sharing()
        self._joined = topics
        return self._store.state(refresh=False)

    def _beat(self, state: View, member: Member) -> View:
        owned = tuple(sorted(self._positions.assigned))
        counts = self._counts(state, member.topics)
        with suppress(UnknownMemberError, FencedInstanceError):  # The state says so, too.
            self._submit(Heartbeat(self._group, self.member_id, owned, counts, self._options.instance_id))
        return self._store.state(refresh=False)

    def _submit(self, command: JoinGroup | Heartbeat) -> None:
        begun = self._store.runtime.clock()
        self._store.submit(command)
        self._renewed_at = self._looked_at = begun
        self._seen_at = -1

    def _counts(self, state: View, topics: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, state.topics[name].partitions if name in state.topics else 0) for name in sorted(topics))

    def _give_up(self, state: View, member: Member) -> bool:
        """Stop reading what is meant for others; whether the group has still to be told."""
        left = set(self._readable(state, member)).intersection(self._positions.assigned)
        gone = sorted(tp for tp in self._positions.assigned if tp not in left)
        if gone:
            self._before_revoked()
            self._tell(self._options.on_revoked, gone)
            self._positions.share(state, left)
        return any(tp not in member.target for tp in member.held)

    def _take(self, state: View, member: Member) -> None:
        """Read what was given to it."""
        readable = self._readable(state, member)
        new = sorted(tp for tp in readable if tp not in self._positions.assigned)
        if new:
            self._positions.share(state, readable)
            self._tell(self._options.on_assigned, new)

    def _readable(self, state: View, member: Member) -> list[TopicPartition]:
        """What it may read, as far as there is such a partition: others may have seen an older or a newer topic."""
        topics = state.topics
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
        self._looked_at = self._store.runtime.clock()

    def _due(self, state: View, group: Group, member: Member) -> bool:
        """Whether it is time for a sign of life, another one has given none for too long, or there are new partitions.

        The clock may have been set back, so that no time seems to have passed for long: that counts as well.
        """
        now = self._store.runtime.clock()
        passed = now - self._renewed_at
        return (
            not 0 <= passed < self._timeout_ms / _BEATS
            or any(other.expired(now) for other in group.members.values() if other.member_id != self.member_id)
            or dict(self._counts(state, member.topics)) != member.topics
        )

    # The end ----------------------------------------------------------------------------------------------------------

    def leave(self, *, static: bool = False) -> None:
        """Give everything back at once. A static member does not (KIP-345), unless it is to stop being one.

        If the storage fails, the lease runs out instead.
        """
        if self._joined is None or (self._options.instance_id is not None and not static):
            return
        member_id = self.member_id
        self.forget()
        try:
            self._store.submit(LeaveGroup(self._group, member_id, self._options.instance_id))
        except (StorageError, FencedInstanceError) as error:
            _LOG.warning("group not left, the lease will run out", extra={"group": self._group, "error": str(error)})
