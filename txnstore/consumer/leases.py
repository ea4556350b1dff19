"""The leases that consumers of this process have in their groups, and their end.

A consumer that is closed leaves its group. One that is collected, or exists when the interpreter exits, leaves it too,
so that its partitions do not wait for the end of its lease. Both are best effort; the lease ends in any case.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import math
import os
import weakref
from functools import partial

from txnstore.connection import Connection
from txnstore.core.groups.commands import Heartbeat, LeaveGroup
from txnstore.core.groups.model import Member
from txnstore.core.view import View
from txnstore.errors import (
    FencedInstanceError,
    GroupAuthorizationError,
    StorageError,
    TxnStoreError,
    UnknownMemberError,
)
from txnstore.runtime import Runtime
from txnstore.threads import Timer

_LOG = logging.getLogger("txnstore.consumer")

#: Seconds that the exit of the interpreter waits for the leaving of all groups.
_EXIT_TIMEOUT = 5.0
#: Heartbeats per session timeout that polls send (Kafka's recommendation for ``heartbeat.interval.ms``).
_HEARTBEATS = 3
#: A heartbeat that failed is repeated this often in a session timeout, so twice before the lease ends.
_RETRIES = 6


class MemberLease:
    """The lease of one consumer in its group, and its heartbeats between polls.

    A poll renews the lease after a third of the session timeout (:attr:`is_due`). Without polls, a timer does after
    half of it, so an application that works on its records for longer than the session timeout stays a member, and one
    that polls sends no heartbeat more. A consumer that does not poll for ``max_poll_interval`` leaves the group
    (Kafka: ``HeartbeatThread`` of ``AbstractCoordinator``).

    It does not refer to the consumer, which can therefore be collected; the timer refers to neither.

    Args:
        group: The name of the group.
        instance_id: The name of a static member.
        session_timeout_ms: The length of the lease.
        max_poll_ms: How long the consumer may go without a poll.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        instance_id: str | None,
        session_timeout_ms: int = 45_000,
        max_poll_ms: float = 300_000,
    ) -> None:
        self.connection = connection
        self.group = group
        self.instance_id = instance_id
        self._session_ms = session_timeout_ms
        self._max_poll_ms = max_poll_ms
        runtime = connection.runtime
        # The fields below are written by the consumer's thread and by the timer's, without a lock: each is replaced in
        # one step. At worst a heartbeat is sent that another one has made needless, or the timer looks once more.
        #: The timer; None before the first heartbeat, and after the end.
        self._timer: Timer | None = None
        #: The id of the member, which a reset replaces.
        self.member_id = _new_member_id(runtime)
        #: The process whose member it is: a forked child has no timer, and no member.
        self._pid = os.getpid()
        #: ``seen_at`` of the member in the chain at the last check; -1 after a renewal by this process. Another value
        #: in the chain shows that a commit in a transaction has renewed the lease.
        self._seen_at = -1
        #: When the last command that renewed the lease was submitted, and when the chain's state was last checked for a
        #: renewal, in monotonic ms. The lease lasts at least one session timeout from the first.
        self._renewed_at = self._checked_at = runtime.monotonic()
        #: When the last poll returned, in monotonic ms; None during a poll, and before the first one.
        self._polled_at: int | None = None
        #: Whether the timer is set, so that it renews the lease between polls.
        self._is_timed = False
        #: An error of a heartbeat that cannot be repeated, for the next poll to raise.
        self._failure: Exception | None = None
        #: Whether the consumer did not poll for too long: the member has left, or, a static one, sends no heartbeats.
        #: Set until a member joins or the lease is renewed, so that a commit which fails until then can say why.
        self.overdue = False

    def reset(self) -> None:
        """Drop the membership, if there is one; the next one gets another id."""
        self.end_heartbeats()
        _OPEN.discard(self)
        runtime = self.connection.runtime
        self.member_id, self._pid = _new_member_id(runtime), os.getpid()
        self._seen_at, self._polled_at = -1, None
        self._renewed_at = self._checked_at = runtime.monotonic()
        self._is_timed, self._failure, self.overdue = False, None, False

    def end_heartbeats(self) -> None:
        """Send no more heartbeats; one that is on its way has no effect after the member has left."""
        timer, self._timer = self._timer, None
        if timer is not None and self._pid == os.getpid():
            timer.stop()

    def record_join(self) -> None:
        """Record before a join that this process may have a member, which the exit of the interpreter then removes."""
        _OPEN.add(self)

    @property
    def is_open(self) -> bool:
        """Whether this process may have a member that another process waits for."""
        return self in _OPEN and self._pid == os.getpid()

    # The consumer's thread --------------------------------------------------------------------------------------------

    def begin_poll(self) -> None:
        """Record the begin of a poll; raise the error of a heartbeat that cannot be repeated, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._polled_at = None

    def end_poll(self) -> None:
        """Record that a poll or an iteration returns records, on which the application works from now on."""
        self._polled_at = self.connection.runtime.monotonic()

    def record_renewal(self, submitted_at: int) -> None:
        """Record that a command submitted at this time (ms, monotonic) has renewed the lease, and restart the timer."""
        self._renewed_at = self._checked_at = submitted_at
        self._seen_at = -1
        self.overdue = False
        self._set_timer()

    def record_seen(self, member: Member) -> None:
        """Record the member as the chain has it: a new ``seen_at`` means that a transaction's commit renewed the lease.

        The lease then counts from the last check, since the commit came after it.
        """
        if self._seen_at == -1:
            self._seen_at = member.seen_at
        elif member.seen_at != self._seen_at:
            self._seen_at, self._renewed_at = member.seen_at, max(self._renewed_at, self._checked_at)
        self._checked_at = self.connection.runtime.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a poll has to renew the lease: a third of it has passed, or no timer will renew it after the poll."""
        ms_since_renewal = self.connection.runtime.monotonic() - self._renewed_at
        return not self._is_timed or ms_since_renewal >= self._session_ms / _HEARTBEATS

    # The timer's thread -----------------------------------------------------------------------------------------------

    def _set_timer(self, wait_ms: float = math.inf) -> None:
        """Set the timer to the next renewal, or to the end of the poll interval if that is earlier."""
        now, polled_at = self.connection.runtime.monotonic(), self._polled_at
        if wait_ms == math.inf:
            wait_ms = self._renewed_at + self._session_ms / 2 - now
        # A poll that returns later does not set the timer again, so the timer checks at least that often.
        wait_ms = min(wait_ms, self._max_poll_ms if polled_at is None else polled_at + self._max_poll_ms - now + 1)
        timer = self._timer  # The consumer's thread may end the heartbeats while the timer's thread is here.
        if timer is None:
            timer = self._timer = self.connection.runtime.timer(partial(_on_timer, weakref.ref(self)))
        timer.set(max(wait_ms, 1.0) / 1000)
        self._is_timed = True

    def on_timer(self) -> None:
        """Renew the lease if no poll and no commit has; leave the group if the consumer has not polled for too long.

        Writes nothing after the consumer or the connection is closed. A heartbeat that failed is repeated; the next
        poll sees a removed member in the chain, and raises any other error.
        """
        self._is_timed = False
        member_id, view = self.member_id, self.connection.view_if_open()
        if view is None or not self.is_open:
            return
        now, polled_at = self.connection.runtime.monotonic(), self._polled_at
        try:
            if polled_at is not None and now - polled_at > self._max_poll_ms:
                self._leave_overdue(member_id)
                return
            self._renew_if_due(view, member_id, now)
        except (UnknownMemberError, FencedInstanceError):
            pass  # The next poll sees it in the chain.
        except Exception as error:  # noqa: BLE001 - no caller can handle it
            self._handle_failure(error)

    def _renew_if_due(self, view: View, member_id: str, now: int) -> None:
        """Send a heartbeat if nothing has renewed the lease for half of it, and set the timer again."""
        group = view.groups.get(self.group)
        member = group.members.get(member_id) if group is not None else None
        if member is not None:
            self.record_seen(member)
        if now - self._renewed_at < self._session_ms / 2:
            self._set_timer()
            return
        command = Heartbeat(self.group, member_id, None, instance_id=self.instance_id)
        # Else the store or the consumer was closed meanwhile.
        if self.connection.submit_if_open(command) and member_id == self.member_id:
            self.record_renewal(now)

    def _handle_failure(self, error: Exception) -> None:
        """Log a heartbeat that failed; repeat it soon if that may help, else let the next poll raise the error."""
        _LOG.warning(
            "heartbeat of group %s failed: %s", self.group, error, extra={"group": self.group, "error": str(error)}
        )
        if isinstance(error, TxnStoreError) and error.retriable:
            self._set_timer(self._session_ms / _RETRIES)
        else:
            self._failure = error

    def _leave_overdue(self, member_id: str) -> None:
        """Leave the group; a static member stays until its lease ends, as in Kafka."""
        _LOG.warning(
            "group %s: the consumer leaves, because it did not poll for %g s (max_poll_interval); "
            "poll fewer records at once, or set a longer interval",
            self.group,
            self._max_poll_ms / 1000,
            extra={"group": self.group, "member_id": member_id},
        )
        self.overdue = True
        if self.instance_id is None:
            self.connection.submit_if_open(LeaveGroup(self.group, member_id))

    # The end ----------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the group. If the storage fails, the member stays until its lease expires."""
        self.end_heartbeats()
        try:
            self.connection.submit(LeaveGroup(self.group, self.member_id, self.instance_id))
            _LOG.info("group left", extra={"group": self.group, "member_id": self.member_id})
        except (StorageError, FencedInstanceError, GroupAuthorizationError) as error:
            _LOG.warning(
                "group not left, the lease will run out: %s", error, extra={"group": self.group, "error": str(error)}
            )
        self.reset()

    def abandon(self) -> None:
        """Leave the group of a collected consumer. Called by the garbage collector: takes no locks, does no I/O."""
        self.end_heartbeats()
        if self.is_open and self.instance_id is None:
            self.connection.runtime.spawn(self.leave_quietly)

    def leave_quietly(self) -> None:
        """Leave the group from a thread that no caller waits for."""
        try:
            self.leave()
        except Exception as error:  # noqa: BLE001 - no caller can handle it
            _LOG.warning(
                "group not left, the lease will run out: %s", error, extra={"group": self.group, "error": str(error)}
            )


def _new_member_id(runtime: Runtime) -> str:
    return f"{runtime.new_id()}@{runtime.process()}"


def _on_timer(lease: weakref.ref[MemberLease]) -> None:
    target = lease()
    if target is not None:
        target.on_timer()


#: The leases of this process whose member may be in the group: from before its join until it has left.
_OPEN: weakref.WeakSet[MemberLease] = weakref.WeakSet()


def leave_when_collected(consumer: object, lease: MemberLease) -> None:
    """Leave the group when the consumer is collected."""
    weakref.finalize(consumer, lease.abandon).atexit = False


def _leave_all() -> None:
    """Leave all groups, within a bounded time: the storage may not answer."""
    members = [lease for lease in list(_OPEN) if lease.is_open]
    for lease in members:
        lease.end_heartbeats()
    leases = [lease for lease in members if lease.instance_id is None]
    running = _thread.allocate_lock()

    def leave() -> None:
        for lease in leases:
            lease.leave_quietly()
        running.release()

    if leases:
        running.acquire()
        try:
            _thread.start_new_thread(leave, ())
        except RuntimeError:  # Newer versions of Python start no threads at this point.
            leave()
        running.acquire(timeout=_EXIT_TIMEOUT)


atexit.register(_leave_all)
