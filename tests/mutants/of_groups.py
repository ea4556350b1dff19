"""Mutants of the rules of groups: members, leases, rebalances, fencing, recreated topics."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.connection import Connection
from txnstore.consumer.fetcher import Poller
from txnstore.consumer.group import ConsumerGroup
from txnstore.consumer.leases import MemberLease
from txnstore.consumer.membership import GroupMembership
from txnstore.consumer.subscription import Positions
from txnstore.core.groups import fold as groups_fold
from txnstore.core.groups import membership as groups_membership
from txnstore.core.groups import offsets as groups_offsets
from txnstore.producer import offsets as producer_offsets

_STALE = "protocol/chains/test_stale_catalogs.py::"
_MEMBERSHIP = "protocol/consumer/test_group_membership.py::"
_HEARTBEATS = "protocol/consumer/test_group_heartbeats.py::"
_GENERATIONS = "protocol/consumer/test_group_generations.py::"
_CONSUMERS = "protocol/consumer/test_group_consumers.py::"
_LISTS_NONE = "test_off_18_group_of_another_chain_lists_no_offsets_of_a_deleted_topic"
_SUBSCRIPTIONS = "protocol/consumer/test_group_subscriptions.py::"

GROUPS = (
    Mutant(
        "an offset commit skips the check of the generation",
        groups_membership.check_membership,
        "if $offsets.generation != $generation:",
        "if False:",
        test=_GENERATIONS + "test_off_06_membership_change_fences_members_with_old_generation",
    ),
    Mutant(
        "an offset commit of an expired member is accepted",
        groups_membership.check_membership,
        "    require_any_member($group, $name, $offsets.member_id, $offsets.instance_id)\n",
        "",
        test=_MEMBERSHIP + "test_expired_member_is_replaced",
    ),
    Mutant(
        "a member commits for a partition that another member holds",
        groups_membership.check_membership,
        ".intersection($other.held)",
        ".intersection(())",
        test=_GENERATIONS + "test_member_cannot_commit_partition_held_by_another",
    ),
    Mutant(
        "a commit without membership is accepted while a group has members",
        groups_membership.check_offset_commit,
        "or expire_if_none_live($draft, $name, $offsets.expired)):",
        "or True):",
        test=_GENERATIONS + "test_off_08_commit_without_membership",
    ),
    Mutant(
        "two members share a static name",
        groups_membership._required,
        "if $static is not None and $static.member_id != $member_id:",
        "if False:",
        test=_MEMBERSHIP + "test_static_member_gets_its_partitions_back",
    ),
    Mutant(
        "a partition moves before its owner releases it",
        groups_membership._emit_rebalance,
        "or $tp in $owned.get($member.member_id, $member.held)",
        "",
        test=_MEMBERSHIP + "test_partition_moves_after_owner_releases_it",
    ),
    Mutant(
        "leases never expire",
        groups_membership.expire,
        "if ($member.member_id, $member.seen_at) in $watched and $member.member_id != $caller",
        "if False",
        test=_MEMBERSHIP + "test_expired_member_is_replaced",
    ),
    Mutant(
        "a commit does not renew the lease",
        groups_fold.with_lease,
        "replace($member, seen_at=$now)",
        "$member",
        test=_MEMBERSHIP + "test_an_offset_commit_renews_the_lease",
    ),
    Mutant(
        "the generation of a group does not grow",
        groups_membership._rebalance,
        "max($group.generation, 0) + 1",
        "max($group.generation, 1)",
        test=_GENERATIONS + "test_con_17_the_generation_only_grows",
    ),
    Mutant(
        "the generation of an empty group starts again",
        groups_membership._rebalance,
        "max($group.generation, 0) + 1",
        "max($group.generation if len(members) > 1 else 0, 0) + 1",
        test=_GENERATIONS + "test_con_17_the_generation_only_grows",
    ),
    Mutant(
        "an offset of a recreated topic is committed",
        groups_offsets._check_same_topic,
        "if $item.topic_id is not None and $item.topic_id != $topic.topic_id:",
        "if False:",
        test=_MEMBERSHIP + "test_off_18_offset_of_recreated_topic_is_refused",
    ),
    Mutant(
        "an offset that was checked in an old catalog is committed",
        groups_offsets._check_catalog,
        "if $replacing and $offsets.catalog < $state.seen.get(CATALOG, 0):",
        "if False:",
        test=_STALE + "test_off_18_offset_of_the_old_topic_replaces_none_of_the_new_one",
    ),
    Mutant(
        "the first offset of a topic does not follow from the catalog",
        groups_offsets._check_catalog,
        "    if $new:\n        observe(",
        "    if False:\n        observe(",
        test=_STALE + "test_delayed_commit_that_was_checked_at_the_head_is_refused",
    ),
    Mutant(
        "offsets of a deleted topic are listed",
        groups_fold._of_topics,
        "if $topic is None or $offset",
        "if $topic is not None and $offset",
        test=_STALE + _LISTS_NONE,
    ),
    Mutant(
        "offsets of a recreated topic's predecessor are listed",
        groups_fold._of_topics,
        "or $offset.topic_id not in (None, $topic.topic_id)",
        "",
        test=_STALE + _LISTS_NONE,
    ),
    Mutant(
        "pending offsets of a deleted topic are listed",
        groups_fold.existing_offsets,
        "_of_topics($offsets, $topics)",
        "$offsets",
        test=_STALE + _LISTS_NONE,
    ),
    Mutant(
        "the position of a paused partition moves",
        Positions.update,
        "if not $part.paused:",
        "if True:",
        test="unit/consumer/test_positions.py::test_position_of_paused_partition_stays",
    ),
    Mutant(
        "a consumer that has read all rests through new entries",
        Poller._is_idle,
        "$state is $idle_state for",
        "True for",
        test="protocol/consumer/test_idle.py::test_records_that_come_after_an_idle_poll_are_returned",
    ),
    Mutant(
        "a consumer that has read all rests through a seek",
        Poller.end_idle,
        "self._idle = None",
        "pass",
        test="protocol/consumer/test_idle.py::test_a_seek_after_an_idle_poll_is_followed",
    ),
    Mutant(
        "a consumer rests behind an open transaction",
        Poller._idle_in,
        " or self._positions.blocked_by($view)",
        "",
        test="protocol/consumer/test_idle.py::test_an_open_transaction_is_no_rest",
    ),
    Mutant(
        "an interrupted poll keeps rows that it has taken from a queue",
        Poller.restore,
        "if $flow.position != $position or $whole:",
        "if $flow.position != $position:",
        test="protocol/consumer/test_interrupts.py::test_poll_interrupted_anywhere_skips_no_record",
    ),
    Mutant(
        "the offsets of a group with members are reset",
        groups_offsets._require_no_live_member,
        "if not expire_if_none_live($draft, $name, $expired):",
        "if False:",
        test=_MEMBERSHIP + "test_offsets_can_be_reset_only_without_members",
    ),
    Mutant(
        "offsets expire while they are pending",
        groups_offsets.expired_offsets,
        "and $tp not in $pending",
        "",
        test="unit/core/test_groups.py::test_off_16_pending_offsets_do_not_expire",
    ),
    Mutant(
        "a position looked up before joining is kept",
        Positions.begin_sharing,
        "if not $part.sought:",
        "if False:",
        test=_SUBSCRIPTIONS + "test_position_read_before_first_poll_is_not_kept",
    ),
    Mutant(
        "a consumer sends no heartbeats",
        GroupMembership._heartbeat_due,
        "self.lease.due",
        "False",
        test=_CONSUMERS + "test_heartbeats_come_with_polls_three_in_a_session",
    ),
    Mutant(
        "partitions are revoked without a callback",
        GroupMembership._revoke,
        "self._call(self._options.on_revoked, $revoked)",
        "pass",
        test=_SUBSCRIPTIONS + "test_offsets_can_be_committed_in_revocation_callback",
    ),
    Mutant(
        "a commit of a fenced member that has lost its partitions returns",
        ConsumerGroup._commit,
        "$member.check()",
        "pass",
        test="protocol/consumer/test_group_fencing.py::test_every_call_of_a_fenced_static_member_raises",
    ),
    Mutant(
        "a heartbeat between polls releases partitions",
        MemberLease.on_timer,
        "Heartbeat(self.group, $member_id, None, instance_id=self.instance_id)",
        "Heartbeat(self.group, $member_id, (), instance_id=self.instance_id)",
        test=_HEARTBEATS + "test_heartbeat_of_a_busy_member_keeps_the_partitions_that_others_wait_for",
    ),
    Mutant(
        "a consumer that does not poll stays in its group",
        MemberLease.on_timer,
        "$polled_at is not None and $began - $polled_at > self._max_poll_ms",
        "False",
        test=_HEARTBEATS + "test_consumer_that_does_not_poll_leaves_after_the_interval",
    ),
    Mutant(
        "a static member that does not poll leaves its group",
        MemberLease._leave_overdue,
        "if self.instance_id is None:",
        "if True:",
        test=_HEARTBEATS + "test_static_member_that_does_not_poll_stays_until_its_lease_ends",
    ),
    Mutant(
        "a static member that polls again sends no heartbeats",
        MemberLease.due,
        "not self._is_timed or",
        "",
        test=_HEARTBEATS + "test_heartbeats_begin_again_with_a_poll_after_the_interval",
    ),
    Mutant(
        "a timer renews the lease beside the polls",
        MemberLease.on_timer,
        "if $began - self._renewed_at >= self._session_ms / 2:",
        "if True:",
        test=_HEARTBEATS + "test_commits_replace_heartbeats",
    ),
    Mutant(
        "a heartbeat connects to a closed store",
        Connection.submit_if_open,
        "$opened = self._opened if self._pid == os.getpid() else None",
        "$opened = self._open()",
        test=_HEARTBEATS + "test_heartbeat_to_a_store_that_closes_meanwhile_is_not_sent",
    ),
    Mutant(
        "a timer of a closed store looks at it",
        Connection.view_if_open,
        "$opened = self._opened if self._pid == os.getpid() else None",
        "$opened = self._open()",
        test=_HEARTBEATS + "test_heartbeat_does_not_open_a_closed_store",
    ),
    Mutant(
        "a poll raises for a pending offset instead of waiting",
        Positions.update,
        "$pending.append($tp)",
        "raise",
        test="unit/consumer/test_groups.py::test_poll_waits_for_pending_offset",
    ),
    Mutant(
        "send_offsets trusts a known state that is behind the consumer",
        producer_offsets.check_member,
        "except GroupError:",
        "except ZeroDivisionError:",
        test="protocol/producer/test_offsets.py::test_membership_that_is_newer_than_the_known_state_is_looked_up",
    ),
)
