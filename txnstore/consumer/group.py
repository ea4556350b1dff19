"""What a consumer has to do with its group: it commits offsets there, looks them up, and may be a member."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from txnstore.consumer.membership import GroupMembership, MemberOptions
from txnstore.consumer.subscription import GroupMetadata, Positions
from txnstore.core.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups import committed, group_offset, with_id
from txnstore.core.model import OffsetAndMetadata, TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_partition
from txnstore.core.view import View
from txnstore.errors import FencedInstanceError, IllegalGenerationError, InvalidConfigError, UnknownMemberError
from txnstore.read.plan import find_partition
from txnstore.read.store import Reads

_LOG = logging.getLogger(__name__)

#: How often a commit is tried again because the members have changed, though this one's partitions have not.
_ATTEMPTS = 8


class ConsumerGroup:
    """The group of one consumer. ``auto_commit_interval``: in seconds; None: it never commits by itself."""

    def __init__(
        self,
        store: Reads,
        name: str,
        positions: Positions,
        options: MemberOptions,
        auto_commit_interval: float | None,
    ) -> None:
        self.name = name
        self._store = store
        self._positions = positions
        self._auto_commit_interval = auto_commit_interval
        self._committed_at = store.runtime.clock()
        self.membership = GroupMembership(store, name, positions, options, self._commit_before_revoked)

    def follow(self, state: View) -> View:
        """Be a member, if topics are subscribed to; see :meth:`GroupMembership.follow`."""
        return self.membership.follow(state)

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
            self._store.submit(CommitOffsets(TxnOffsets(self.name, items)))
        elif items:
            for attempt in range(_ATTEMPTS):
                command = CommitOffsets(
                    TxnOffsets(self.name, items, member.generation, member.member_id, member.instance_id)
                )
                try:
                    self._store.submit(command)
                    break
                except IllegalGenerationError:
                    if not member.learn() or attempt == _ATTEMPTS - 1:
                        raise
        self._committed_at = self._store.runtime.clock()

    def committed(
        self, tp: TopicPartition, *, require_stable: bool = True, strict: bool = False
    ) -> OffsetAndMetadata | None:
        """The committed position at the head of the chain, or None."""
        chains = self._store.state(refresh=False).chains
        state = self._store.state(refresh={CATALOG, chain_of_group(self.name, chains), chain_of_partition(tp, chains)})
        find_partition(state, tp)
        return committed(state, self.name, tp, require_stable=require_stable, strict=strict)

    def commit_by_itself(self) -> None:
        """At a poll: commit what earlier ones returned, if it is time."""
        interval = self._auto_commit_interval
        if interval is not None and self._store.runtime.clock() - self._committed_at >= interval * 1000:
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
