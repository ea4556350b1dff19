"""The membership of a consumer in its group.

A member joins at its first poll, renews its lease, and reads its assigned partitions. The assignment is in the group's
chain, which an idle poll reads anyway; only polls take partitions and give them back. A heartbeat is one PUT, sent by a
poll when a third of the session timeout has passed, or to give partitions back, and between polls by a timer
(:mod:`~txnstore.consumer.leases`). An offset commit renews the lease too, so a consumer that commits often sends no
heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from txnstore.connection import Connection
from txnstore.consumer.leases import MemberLease
from txnstore.consumer.subscription import Positions
from txnstore.core.groups.assignors import ASSIGNORS
from txnstore.core.groups.commands import Heartbeat, JoinGroup
from txnstore.core.groups.membership import MAX_SESSION_TIMEOUT_MS, holders, require_member
from txnstore.core.groups.model import Group, Member, PartitionHolder
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.errors import (
    FencedInstanceError,
    UnknownMemberError,
)
from txnstore.runtime import instant
from txnstore.validation import check_callable, check_choice, check_id, check_seconds

_LOG = logging.getLogger("txnstore.consumer")

#: Called with the partitions that a consumer was assigned, or is about to lose.
Callback = Callable[[list[TopicPartition]], None]
#: How a group shares its partitions (Kafka: ``partition.assignment.strategy``).
AssignorName = Literal["cooperative-sticky", "range"]
#: How often one poll follows the group; a bound, since other members may change the group all the time.
_MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Options of a membership; ``session_timeout`` and ``max_poll_interval`` in seconds."""

    assignor: AssignorName = "cooperative-sticky"
    instance_id: str | None = None
    session_timeout: float = 45.0
    max_poll_interval: float = 300.0
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None

    def __post_init__(self) -> None:
        check_choice("assignor", self.assignor, ASSIGNORS)
        if self.instance_id is not None:
            check_id("group_instance_id", self.instance_id)
        check_callable("on_assigned", self.on_assigned, optional=True)
        check_callable("on_revoked", self.on_revoked, optional=True)
        check_seconds("session_timeout", self.session_timeout, least=0.001, most=MAX_SESSION_TIMEOUT_MS // 1000)
        check_seconds("max_poll_interval", self.max_poll_interval, least=0.001)


class GroupMembership:
    """The membership of one consumer. ``before_revoked`` is called before it gives partitions back: the auto-commit."""

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
        #: The members that this one waits for, with their partitions, that were logged last.
        self._logged_holders: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self._session_timeout_ms = int(options.session_timeout * 1000)
        self.lease = MemberLease(
            connection, group, options.instance_id, self._session_timeout_ms, options.max_poll_interval * 1000
        )
        self._reset()

    def reset(self) -> None:
        """Drop the membership, which belongs to another consumer, such as that of the parent after a fork."""
        self.lease.reset()
        self._reset()

    def _reset(self) -> None:
        #: The generation of the group that this member has applied; -1 before it has joined.
        self.generation = -1
        #: The ids of the members in that generation.
        self._members = frozenset[str]()
        #: The topics that it joined with; None before.
        self._joined_topics: tuple[str, ...] | None = None

    @property
    def member_id(self) -> str:
        """The id of the member: unique, with host and process id."""
        return self.lease.member_id

    @property
    def instance_id(self) -> str | None:
        """The name of a static member."""
        return self._options.instance_id

    @property
    def has_joined(self) -> bool:
        """Whether this member has joined the group, as far as the process knows."""
        return self._joined_topics is not None

    # Following the group ----------------------------------------------------------------------------------------------

    def follow(self, view: View) -> View:
        """Join, renew the lease if it is due, and apply the group's assignment.

        Returns:
            The view after the commands of this call.

        Raises:
            FencedInstanceError: Another consumer has taken over the ``group_instance_id``.
        """
        topics = self._positions.topics
        if topics is None or self._connection.read_only:
            return view  # assigned by hand, or read-only
        for _ in range(_MAX_ROUNDS):
            if self._joined_topics != topics:
                view = self._join(view, topics)
            group = view.groups.get(self._group, Group())
            member = group.members.get(self.member_id)
            if member is None:
                self._handle_removal(group)
                continue
            self.lease.record_seen(member)
            if group.generation != self.generation:
                self._adopt_group(group)
            must_give_back = self._revoke(view, member)
            self._assign(view, member)
            if not must_give_back and not self._heartbeat_due(view, member):
                break
            view = self._heartbeat(view, member)
        return view

    def _adopt_group(self, group: Group) -> None:
        """Adopt the generation, and log which members have joined or left since the last one."""
        earlier_members, self._members = self._members, frozenset(group.members)
        extra = {"group": self._group, "member_id": self.member_id, "generation": group.generation}
        joined_ids, left_ids = sorted(self._members - earlier_members), sorted(earlier_members - self._members)
        _LOG.info("group rebalanced", extra={**extra, "joined": joined_ids, "left": left_ids})
        self.generation = group.generation

    @property
    def waiting_for(self) -> tuple[PartitionHolder, ...]:
        """The members that hold the partitions that this one waits for, in the cached view."""
        group = self._connection.view(refresh=False).groups.get(self._group, Group())
        member = group.members.get(self.member_id)
        return holders(group, member) if member is not None and self.has_joined else ()

    def log_waiting(self) -> None:
        """Log for whom this member waits, once for each change of them or of the partitions."""
        waiting_for = self.waiting_for
        current_holders = [(holder.member_id, holder.partitions) for holder in waiting_for]
        if current_holders and current_holders != self._logged_holders:
            _LOG.info(
                "group %s: this consumer waits for %s",
                self._group,
                "; ".join(map(describe_holder, waiting_for)),
                extra={"group": self._group, "member_id": self.member_id},
            )
        self._logged_holders = current_holders

    def check(self) -> None:
        """Check that the group has this member, as far as this process knows.

        A poll that finds that the member was fenced drops its partitions, so that a commit has nothing to send; it must
        not return as if it had committed.

        Raises:
            FencedInstanceError: Another consumer has taken over the ``group_instance_id``.
            UnknownMemberError: The group has removed the member.
        """
        group = self._connection.view(refresh=False).groups.get(self._group, Group())
        require_member(group, self._group, self.member_id, self.instance_id)

    def explain_removal(self, error: UnknownMemberError) -> UnknownMemberError:
        """Return the error for a commit of a removed member; it says so if the consumer did not poll in time."""
        if not self.lease.overdue:
            return error
        return UnknownMemberError(
            f"the commit is refused, because this consumer has left group {self._group!r}: it did not poll for "
            f"{self._options.max_poll_interval:g} s (max_poll_interval). Others may have read its records; the next "
            "poll joins again, at the committed offsets"
        )

    def adopt_generation(self) -> bool:
        """Adopt the generation of the cached view; return whether it is new and this is still a member."""
        group = self._connection.view(refresh=False).groups.get(self._group, Group())
        if self.member_id not in group.members or group.generation == self.generation:
            return False
        self.generation = group.generation
        return True

    def _join(self, view: View, topics: tuple[str, ...]) -> View:
        """Join, or change the topics. After an unknown outcome the repeated command has the same member id."""
        command = JoinGroup(
            self._group,
            self.member_id,
            self._partition_counts(view, topics),
            self._options.assignor,
            self._session_timeout_ms,
            self._options.instance_id,
        )
        self.lease.record_join()
        self._submit(command)
        if self._joined_topics is None:
            self._positions.begin_sharing()
        self._joined_topics = topics
        return self._connection.view(refresh=False)

    def _heartbeat(self, view: View, member: Member) -> View:
        owned_tps = tuple(sorted(self._positions.assigned))
        counts = self._partition_counts(view, member.topics)
        with suppress(UnknownMemberError, FencedInstanceError):  # The view shows it, too.
            self._submit(Heartbeat(self._group, self.member_id, owned_tps, counts, self._options.instance_id))
        return self._connection.view(refresh=False)

    def _submit(self, command: JoinGroup | Heartbeat) -> None:
        began_at = self._connection.runtime.monotonic()
        self._connection.submit(command)
        self.lease.record_renewal(began_at)

    def _partition_counts(self, view: View, topics: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, view.topics[name].partitions if name in view.topics else 0) for name in sorted(topics))

    def _revoke(self, view: View, member: Member) -> bool:
        """Stop reading partitions outside the target; return whether partitions are still to be given back."""
        remaining_tps = set(self._existing_assigned(view, member)).intersection(self._positions.assigned)
        revoked_tps = sorted(tp for tp in self._positions.assigned if tp not in remaining_tps)
        if revoked_tps:
            self._before_revoked()
            self._call_back(self._options.on_revoked, revoked_tps)
            self._positions.share(view, remaining_tps)
        return any(tp not in member.target for tp in member.held)

    def _assign(self, view: View, member: Member) -> None:
        """Start reading newly assigned partitions."""
        readable_tps = self._existing_assigned(view, member)
        new_tps = sorted(tp for tp in readable_tps if tp not in self._positions.assigned)
        if new_tps:
            try:
                self._positions.share(view, readable_tps)
                self._call_back(self._options.on_assigned, new_tps)
            except BaseException:
                self._positions.suspend(new_tps)  # The next poll assigns them, and calls back, again.
                raise

    def _existing_assigned(self, view: View, member: Member) -> list[TopicPartition]:
        """Return the member's assigned partitions that the view has: another member may know a newer topic."""
        topics = view.topics
        return [tp for tp in member.assigned if tp.topic in topics and tp.partition < topics[tp.topic].partitions]

    def _handle_removal(self, group: Group) -> None:
        """Drop the partitions of a removed member; the next round joins with a new member id.

        If another consumer has its static name, it does not join again, because that would fence the other one.
        """
        instance_id = self._options.instance_id
        # This member is not in the group, so one with its static name is another consumer.
        names = {member.instance_id for member in group.members.values()}
        is_fenced = instance_id is not None and instance_id in names
        lost_tps = sorted(self._positions.assigned)
        self._positions.share_nothing()
        extra = {"group": self._group, "member_id": self.member_id, "partitions": list(map(str, lost_tps))}
        _LOG.warning("member removed from the group; others have its partitions", extra=extra)
        if not is_fenced:
            self.reset()
        if lost_tps:
            self._call_back(self._options.on_revoked, lost_tps)
        if is_fenced:
            msg = f"another consumer has taken over the group_instance_id {instance_id!r} in group {self._group!r}"
            raise FencedInstanceError(msg)

    def _call_back(self, callback: Callback | None, partitions: list[TopicPartition]) -> None:
        if callback is not None:
            callback(partitions)

    # The lease --------------------------------------------------------------------------------------------------------

    def _heartbeat_due(self, view: View, member: Member) -> bool:
        """Whether a heartbeat is due, the lease of another member has expired, or topics have new partitions."""
        expired_members = self._connection.chains.ages.expired_members(view.states, self._group)
        return (
            self.lease.is_due
            or any(member_id != self.member_id for member_id, _ in expired_members)
            or dict(self._partition_counts(view, member.topics)) != member.topics
        )

    # The end ----------------------------------------------------------------------------------------------------------

    def call_revoked(self) -> None:
        """Call ``on_revoked`` with all partitions, which can still be committed; :meth:`leave` gives them back."""
        if self.has_joined and self._positions.assigned:
            self._call_back(self._options.on_revoked, sorted(self._positions.assigned))

    def leave(self) -> None:
        """Leave the group. A static member stays in it (KIP-345).

        If the storage fails, the member stays until its lease expires. After an interrupt the call can be repeated.
        """
        if self._options.instance_id is not None:
            self.reset()
        elif self.lease.is_open:
            self.lease.leave()
            self._reset()


def describe_holder(holder: PartitionHolder) -> str:
    """A member that others wait for, as a line of text."""
    name = f"{holder.instance_id} " if holder.instance_id is not None else ""
    partitions, until = ", ".join(map(str, holder.partitions)), instant(holder.expires_at)
    return f"{partitions}, which member {name}{holder.member_id} holds until {until} unless it renews its lease"
