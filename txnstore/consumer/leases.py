"""The leases that consumers of this process have in their groups, and their end.

A consumer that is closed leaves its group. One that is collected, or exists when the interpreter exits, leaves it too,
so that its partitions do not wait for the end of its lease. Both are best effort; the lease ends in any case.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import weakref

from txnstore.connection import Connection
from txnstore.core.groups.commands import LeaveGroup
from txnstore.errors import FencedInstanceError, StorageError

_LOG = logging.getLogger("txnstore.consumer")

#: Seconds that the exit of the interpreter waits for the leaving of all groups.
_PATIENCE = 5.0


class Lease:
    """The lease of one consumer in its group. It does not refer to the consumer, which can therefore be collected.

    Args:
        connection: The connection to the store.
        group: The name of the group.
        instance_id: The name of a static member.
    """

    def __init__(self, connection: Connection, group: str, instance_id: str | None) -> None:
        self.connection = connection
        self.group = group
        self.instance_id = instance_id
        self.forget()

    def forget(self) -> None:
        """Drop the membership, if there is one; the next one gets another id."""
        _OPEN.discard(self)
        runtime = self.connection.runtime
        self.member_id = f"{runtime.new_id()}@{runtime.process()}"
        self._pid = os.getpid()

    def enter(self) -> None:
        """The member is about to join."""
        _OPEN.add(self)

    @property
    def is_open(self) -> bool:
        """Whether this process may have a member that another process waits for."""
        return self in _OPEN and self._pid == os.getpid()

    def leave(self) -> None:
        """Leave the group. If the storage fails, the member stays until its lease expires."""
        try:
            self.connection.submit(LeaveGroup(self.group, self.member_id, self.instance_id))
            _LOG.info("group left", extra={"group": self.group, "member_id": self.member_id})
        except (StorageError, FencedInstanceError) as error:
            _LOG.warning(
                "group not left, the lease will run out: %s", error, extra={"group": self.group, "error": str(error)}
            )
        self.forget()

    def abandon(self) -> None:
        """The consumer was collected without a close. Called by the garbage collector: takes no locks, does no I/O."""
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


_OPEN: weakref.WeakSet[Lease] = weakref.WeakSet()


def leave_when_collected(consumer: object, lease: Lease) -> None:
    """Leave the group when the consumer is collected."""
    weakref.finalize(consumer, lease.abandon).atexit = False


def _leave_all() -> None:
    """Leave all groups, within a bounded time: the storage may not answer."""
    leases = [lease for lease in list(_OPEN) if lease.is_open and lease.instance_id is None]
    done = _thread.allocate_lock()

    def leave() -> None:
        for lease in leases:
            lease.leave_quietly()
        done.release()

    if leases:
        done.acquire()
        try:
            _thread.start_new_thread(leave, ())
        except RuntimeError:  # Newer versions of Python start no threads at this point.
            leave()
        done.acquire(timeout=_PATIENCE)


atexit.register(_leave_all)
