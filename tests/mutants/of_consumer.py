"""Mutants of groups of KIP-848 at a gateway: epochs, sessions, static members, what becomes a command."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.gateway.groups import consumer
from txnstore.gateway.groups.consumer import KeptGroup, KeptMember
from txnstore.gateway.groups.consumer_handlers import ConsumerGroups
from txnstore.gateway.groups.offsets import GroupOffsets

_UNIT = "unit/gateway/test_consumer.py::"

CONSUMER = (
    Mutant(
        "any older epoch is taken",
        consumer._check_epoch,
        "and $kept.previous in (None, $request.epoch)",
        "",
        test=_UNIT + "test_another_epoch_is_fenced_but_for_the_one_before",
    ),
    Mutant(
        "an older epoch is taken of who owns more than it has in the newer one",
        consumer._check_epoch,
        "set($request.owned) <= set($member.assigned)",
        "True",
        test=_UNIT + "test_another_epoch_is_fenced_but_for_the_one_before",
    ),
    Mutant(
        "a member that is removed while it joins again gets UNKNOWN_MEMBER_ID",
        ConsumerGroups._heartbeat,
        "if $asked.epoch != JOINING:",
        "if True:",
        test=_UNIT + "test_a_member_is_removed_while_it_joins_again",
    ),
    Mutant(
        "a response that is lost with its gateway fences the member",
        KeptGroup.follow,
        "= $epoch, None, None",
        "= $epoch, 0, None",
        test=_UNIT + "test_a_response_is_lost_with_its_gateway",
    ),
    Mutant(
        "a static name is taken from a member that is alive",
        consumer._check_released,
        "if $holder.is_heard and not $holder.is_away:",
        "if False:",
        test=_UNIT + "test_a_static_member_leaves_for_now_and_comes_back",
    ),
    Mutant(
        "a static member cannot come back at another gateway",
        consumer._check_released,
        "if $holder.is_heard and not $holder.is_away:",
        "if not $holder.is_away:",
        test=_UNIT + "test_a_static_member_comes_back_at_another_gateway",
    ),
    Mutant(
        "a member that joins again keeps what it has given up",
        ConsumerGroups._heartbeat,
        "$asked.owned is not None if $membership is not None else",
        "False if $membership is not None else",
        test=_UNIT + "test_a_fenced_member_joins_again_without_its_partitions",
    ),
    Mutant(
        "each heartbeat is a command",
        consumer.would_change,
        "return not $leaving and",
        "return True or",
        test=_UNIT + "test_partitions_go_over_when_their_member_has_given_them_up",
    ),
    Mutant(
        "a member may take any time to give up partitions",
        KeptMember.await_release,
        "self.revoke_by = $now + self.rebalance_timeout_ms",
        "pass",
        test=_UNIT + "test_a_member_that_does_not_give_up_partitions_is_removed",
    ),
    Mutant(
        "a member that is told no partitions anew is not told them",
        KeptMember.tell,
        "$is_new = self.told != $assignment",
        "$is_new = False",
        test=_UNIT + "test_partitions_go_over_when_their_member_has_given_them_up",
    ),
    Mutant(
        "a pause of the gateway ends sessions",
        ConsumerGroups._tick,
        "if $now - $live.at > _PAUSE_MS:",
        "if False:",
        test=_UNIT + "test_a_pause_of_the_gateway_ends_no_session",
    ),
    Mutant(
        "a failed removal is not repeated",
        ConsumerGroups._remove,
        "self._rest($name, $live, self._now() + _RETRY_MS)",
        "pass",
        test=_UNIT + "test_a_removal_is_repeated_until_the_storage_answers",
    ),
    Mutant(
        "a join without an answer is not timed",
        ConsumerGroups.take_over,
        "self._sweep = asyncio.get_running_loop().call_later($seconds, self.take_over)",
        "pass",
        test=_UNIT + "test_a_join_without_an_answer_is_timed_all_the_same",
    ),
    Mutant(
        "an expression matches parts of names",
        consumer.matching.__wrapped__,
        r'pattern=rf"\A(?:{$regex})\z"',
        "pattern=$regex",
        test=_UNIT + "test_an_expression_matches_whole_names",
    ),
    Mutant(
        "who asks for offsets names any epoch",
        consumer.check_epoch_of_fetch,
        "if $epoch != _epoch($group, $member_id):",
        "if False:",
        test=_UNIT + "test_the_membership_of_who_asks_for_offsets",
    ),
    Mutant(
        "a stale epoch is told as an illegal generation",
        GroupOffsets._illegal_generation,
        'if $stored is not None and $stored.kind == "consumer":',
        "if False:",
        test="integration/gateway/test_consumer_groups.py::test_commits_name_the_epoch_of_the_member",
    ),
)
