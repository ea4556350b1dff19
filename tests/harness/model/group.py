"""The offsets of one consumer group: a log of writes and markers, like Kafka's offsets topic.

The offset of a partition is that of the last write in the log that took effect: a plain one
immediately, one of a transaction with its commit marker. So log order decides, not the order of commits (OFF-11).
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.harness.model.log import RefusedError


@dataclass
class Write:
    """A position, of a transaction if there is a producer id."""

    partition: str
    offset: int
    producer_id: int | None


@dataclass
class Marker:
    """How the transaction of a producer id ended."""

    producer_id: int
    outcome: str


@dataclass(frozen=True)
class Claim:
    """The membership that a commit carries; ``instance`` is the name of a static member."""

    member: str = ""
    generation: int = -1
    instance: str | None = None


#: The membership of a commit that names no member.
NO_MEMBER = Claim()


class Group:
    """The offsets of a group, and its members, each with its static name or None.

    A change of the members takes one step: all members have the new generation afterwards.
    """

    def __init__(self) -> None:
        self.log: list[Write | Marker] = []
        self.members: dict[str, str | None] = {}
        self.generation = 0

    def join(self, member: str, instance: str | None) -> None:
        """A new member, and a new generation; one that takes the place of a static member changes nothing (KIP-345)."""
        before = self._static(instance)
        if before is not None:
            del self.members[before]
        else:
            self.generation += 1
        self.members[member] = instance

    def leave(self, claim: Claim) -> None:
        """Remove a member; one that was replaced cannot leave."""
        self._check_member(claim)
        del self.members[claim.member]
        self.generation += 1

    def heartbeat(self, claim: Claim) -> None:
        """A member shows that it is alive; it learns so that it was replaced, or has missed a change."""
        self._check_member(claim)
        if claim.generation != self.generation:
            raise RefusedError("ILLEGAL_GENERATION")

    def check(self, claim: Claim, *, transactional: bool) -> None:
        """Fence a commit by member, static name and generation (OFF-06, OFF-08).

        Without a generation a commit is accepted while the group is empty; without any membership a transaction's
        commit always is.
        """
        if claim.generation < 0 and not self.members:
            return
        if claim == NO_MEMBER:
            if not transactional:
                raise RefusedError("UNKNOWN_MEMBER_ID")
            return
        self._check_member(claim)
        if claim.generation != self.generation:
            raise RefusedError("ILLEGAL_GENERATION")

    def _check_member(self, claim: Claim) -> None:
        static = self._static(claim.instance)
        if static is not None and static != claim.member:
            raise RefusedError("FENCED_INSTANCE_ID")
        if claim.member not in self.members or (claim.instance is not None and static is None):
            raise RefusedError("UNKNOWN_MEMBER_ID")

    def _static(self, instance: str | None) -> str | None:
        return next(
            (
                name
                for name, member_instance in self.members.items()
                if instance is not None and member_instance == instance
            ),
            None,
        )

    def outcome(self, place: int) -> str | None:
        """The outcome of the write at this index of the log; None while it is undecided."""
        write = self.log[place]
        assert isinstance(write, Write)
        if write.producer_id is None:
            return "COMMIT"
        return next(
            (
                later.outcome
                for later in self.log[place:]
                if isinstance(later, Marker) and later.producer_id == write.producer_id
            ),
            None,
        )

    def committed(self, partition: str) -> int | None:
        """The committed offset."""
        for place in reversed(range(len(self.log))):
            write = self.log[place]
            if isinstance(write, Write) and write.partition == partition and self.outcome(place) == "COMMIT":
                return write.offset
        return None

    def unstable(self, partition: str) -> bool:
        """Whether an open transaction holds an offset of the partition (OFF-09)."""
        return any(write.partition == partition for write in self.pending())

    def pending(self) -> list[Write]:
        """The writes of open transactions."""
        writes = ((place, write) for place, write in enumerate(self.log) if isinstance(write, Write))
        return [write for place, write in writes if self.outcome(place) is None]

    def partitions(self) -> list[str]:
        """The partitions that have a committed offset or an undecided one."""
        return sorted({write.partition for write in self.log if isinstance(write, Write)})
