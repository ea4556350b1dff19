"""The group of a consumer: its membership, and its committed offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from txnstore.connection import Connection
from txnstore.consumer.membership import GroupMembership, MemberOptions
from txnstore.consumer.subscription import Positions
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import committed, group_offset, with_topic_id
from txnstore.core.model import TopicPartition
from txnstore.core.routing import CATALOG, chain_of_group, chain_of_producer
from txnstore.core.view import View
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InvalidConfigError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from txnstore.validation import check_mapping

_LOG = logging.getLogger("txnstore.consumer")

#: Attempts of a commit whose generation is outdated although the partitions of this member are unchanged.
_MAX_ATTEMPTS = 8


class ConsumerGroup:
    """The group of one consumer. ``auto_commit_interval``: seconds between auto-commits; None: no auto-commit."""

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
        #: When offsets were committed last, in monotonic ms: the auto-commit counts from there.
        self._committed_at = connection.runtime.monotonic()
        self.membership = GroupMembership(connection, name, positions, options, self._commit_before_revoked)

    def follow(self, view: View) -> View:
        """Follow the group, if topics are subscribed; see :meth:`GroupMembership.follow`."""
        return self.membership.follow(view)

    def metadata(self) -> GroupMetadata:
        """Return what a producer needs to commit offsets of this consumer. Refused with auto-commit (OFF-19)."""
        if self._auto_commit_interval is not None:
            msg = (
                f"offsets of group {self.name!r} cannot go into transactions while enable_auto_commit is on: the "
                "offsets of aborted transactions would be committed"
            )
            raise InvalidConfigError(msg)
        member, ids = self.membership, self._positions.topic_ids
        if not member.has_joined:
            return GroupMetadata(self.name, topic_ids=ids)
        return GroupMetadata(self.name, member.generation, member.member_id, member.instance_id, ids)

    # Offsets ----------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions. One PUT.

        If only the generation has changed since the last poll, the commit is repeated with the new one: no other member
        has read the partitions that this one holds.
        """
        chosen_offsets = (
            self._positions.positions(self._connection.view) if offsets is None else check_mapping("offsets", offsets)
        )
        ids = self._positions.topic_ids
        items = tuple(with_topic_id(group_offset(tp, value), ids) for tp, value in chosen_offsets.items())
        try:
            self._commit(items)
        except UnknownTopicOrPartitionError:
            existing_items = self._drop_deleted_topics(items)
            if offsets is not None or len(existing_items) in {0, len(items)}:
                raise
            self._commit(existing_items)
        self._committed_at = self._connection.runtime.monotonic()

    def _drop_deleted_topics(self, items: tuple[GroupOffset, ...]) -> tuple[GroupOffset, ...]:
        """Leave out offsets of deleted topics, so that the other positions are committed."""
        view = self._connection.view()
        existing_items = tuple(
            offset
            for offset in items
            if view.partition(offset.tp) is not None and view.topics[offset.topic].topic_id == offset.topic_id
        )
        for offset in items:
            if offset not in existing_items:
                _LOG.warning(
                    "offset %d of %s is not committed: the topic was deleted",
                    offset.offset,
                    offset.tp,
                    extra={"group": self.name, "topic": offset.topic},
                )
        return existing_items

    def _commit(self, items: tuple[GroupOffset, ...]) -> None:
        """Commit offsets with the membership, if there is one; without offsets only check the membership."""
        if self.membership.has_joined:
            if items:
                self._commit_as_member(items)
            else:
                self.membership.check()
        elif items:
            self._connection.submit(CommitOffsets(TxnOffsets(self.name, items)))

    def _commit_as_member(self, items: tuple[GroupOffset, ...]) -> None:
        """Commit offsets in the generation of the member, and renew its lease; repeat it if the group has a newer one.

        Raises:
            IllegalGenerationError: The generation is still refused after some attempts.
        """
        member = self.membership
        for attempt in range(_MAX_ATTEMPTS):
            offsets = TxnOffsets(self.name, items, member.generation, member.member_id, member.instance_id)
            began_at = self._connection.runtime.monotonic()
            try:
                self._connection.submit(CommitOffsets(offsets))
                member.lease.record_renewal(began_at)
                return
            except IllegalGenerationError:
                if not member.adopt_generation() or attempt == _MAX_ATTEMPTS - 1:
                    raise
            except UnknownMemberError as error:
                raise member.explain_removal(error) from error

    def committed(
        self, tp: TopicPartition, *, require_stable: bool = True, strict: bool = False
    ) -> OffsetAndMetadata | None:
        """Return the committed position at the head of the chain, or None.

        Abandoned transactions with pending offsets are ended, as Kafka's coordinator does.

        Raises:
            UnstableOffsetCommitError: An open transaction has a pending offset.
        """
        chains = self._connection.view(refresh=False).chains
        view = self._connection.view(refresh={CATALOG, chain_of_group(self.name, chains)})
        group = view.groups.get(self.name)
        pending_producers = (
            {producer_id for producer_id, offsets in group.pending.items() if strict or tp in offsets}
            if group
            else set[int]()
        )
        if require_stable and pending_producers:
            view = self._connection.view(refresh={chain_of_producer(producer_id) for producer_id in pending_producers})
            if self._connection.end_abandoned(pending_producers):
                view = self._connection.view(refresh=False)
        return committed(view, self.name, tp, require_stable=require_stable, strict=strict)

    def auto_commit_if_due(self) -> None:
        """Commit the records of earlier polls, if the auto-commit is due. Called by each poll."""
        interval = self._auto_commit_interval
        if interval is not None and self._connection.runtime.monotonic() - self._committed_at >= interval * 1000:
            self._commit_if_member()

    def _commit_before_revoked(self) -> None:
        if self._auto_commit_interval is not None:
            self._commit_if_member()

    def _commit_if_member(self) -> None:
        """Commit, unless all topics were deleted, or the group has removed this member.

        Then the next poll joins again at the committed offsets.
        """
        try:
            self.commit()
        except (UnknownMemberError, FencedInstanceError, IllegalGenerationError) as error:
            _LOG.warning(
                "not committed: others have taken over: %s", error, extra={"group": self.name, "error": str(error)}
            )
        except UnknownTopicOrPartitionError as error:
            _LOG.warning(
                "not committed: the topics were deleted: %s", error, extra={"group": self.name, "error": str(error)}
            )

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit, with auto-commit, call ``on_revoked``, then leave the group."""
        try:
            if self._auto_commit_interval is not None:
                self._commit_if_member()
            self.membership.call_revoked()
        finally:
            self.membership.leave()
