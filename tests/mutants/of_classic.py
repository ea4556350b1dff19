"""Mutants of classic groups, which a gateway coordinates: sessions, static members, what is stored and what waits."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.gateway.gateway import Gateway
from txnstore.gateway.groups.classic import ClassicGroup, code_of_member
from txnstore.gateway.groups.coordinator import GroupCoordinator

_CLASSIC = "unit/gateway/test_classic.py::"
_COORDINATOR = "unit/gateway/test_coordinator.py::"
_RANDOM = "unit/gateway/test_classic_random.py::test_random_histories[0]"

CLASSIC = (
    Mutant(
        "an assignment is answered before its generation is stored",
        ClassicGroup.sync,
        "if self.state is State.STABLE:",
        "if self.state is State.STABLE or self._assigned:",
        test=_RANDOM,
    ),
    Mutant(
        "a repeated assignment of the leader changes what is being stored",
        ClassicGroup.sync,
        "== self._leader and not self._assigned:",
        "== self._leader:",
        test=_CLASSIC + "test_second_assignment_of_the_leader_changes_nothing",
    ),
    Mutant(
        "an assignment of another generation is accepted",
        ClassicGroup._sync_error,
        "if $request.generation != self.generation:",
        "if False:",
        test=_CLASSIC + "test_sync_of_unknown_member_or_generation",
    ),
    Mutant(
        "members of a newer generation get the assignment of the one that is stored",
        ClassicGroup.stored,
        "and self._stored.generation == self.generation:",
        "and True:",
        test=_CLASSIC + "test_rebalance_that_begins_while_the_generation_is_being_stored",
    ),
    Mutant(
        "two generations of a group are stored at the same time",
        ClassicGroup._store_if_due,
        "if self._storing is not None:",
        "if False:",
        test=_CLASSIC + "test_rebalance_that_begins_while_the_generation_is_being_stored",
    ),
    Mutant(
        "a group that is empty is not stored as empty",
        ClassicGroup._store_if_due,
        "self._stored is not None and bool(self._stored.members)",
        "False",
        test=_CLASSIC + "test_last_member_leaves",
    ),
    Mutant(
        "the last member has left before the group is stored as empty",
        ClassicGroup.leave,
        "if self.state is State.EMPTY and self._storing is not None:",
        "if False:",
        test=_CLASSIC + "test_last_member_leaves",
    ),
    Mutant(
        "a static member gets a member id that is not stored yet",
        ClassicGroup.stored,
        "for $stored in self._stored.members:",
        "for $stored in self._members.values():",
        test=_CLASSIC + "test_replacement_is_answered_when_its_member_id_is_stored",
    ),
    Mutant(
        "a former client of a static member is not fenced",
        ClassicGroup._member_error,
        "_turn($member_id, $instance_id) < _turn($current, $instance_id)",
        "False",
        test=_CLASSIC + "test_former_member_id_of_a_static_member_is_fenced",
    ),
    Mutant(
        "a static member whose newer member id was lost is fenced",
        ClassicGroup._member_error,
        " and _turn($member_id, $instance_id) < _turn($current, $instance_id)",
        " and $current",
        test=_CLASSIC + "test_static_member_whose_newer_id_was_lost_with_its_coordinator_is_not_fenced",
    ),
    Mutant(
        "the session of a loaded member is over",
        ClassicGroup._restore,
        "expires_at=self._now + $member.session_timeout_ms",
        "expires_at=self._now",
        test=_CLASSIC + "test_loaded_members_have_their_full_session_timeout",
    ),
    Mutant(
        "a member expires while its request waits",
        ClassicGroup.tick,
        " and not $member.waits",
        "",
        test=_CLASSIC + "test_member_whose_join_waits_does_not_expire",
    ),
    Mutant(
        "a request that its client repeats is forgotten",
        ClassicGroup._update,
        "self._answer_join($member, JoinResponse(Code.REBALANCE_IN_PROGRESS, $member.member_id))",
        "pass",
        test=_CLASSIC + "test_repeated_join_answers_the_request_that_the_client_gave_up",
    ),
    Mutant(
        "a member that is removed leaves a request without an answer",
        ClassicGroup._remove,
        "self._answer_sync($member, SyncResponse(Code.UNKNOWN_MEMBER_ID))",
        "pass",
        test=_CLASSIC + "test_leaving_member_whose_requests_wait_gets_answers",
    ),
    Mutant(
        "a group that is loaded again begins a generation for the second time",
        ClassicGroup._complete,
        "self.used + 1",
        "self.generation + 1",
        test=_COORDINATOR + "test_late_assignment_of_a_generation_that_was_lost_is_not_taken_for_that_of_a_newer_one",
    ),
    Mutant(
        "a group that is loaded twice begins a generation for the second time",
        GroupCoordinator._drop,
        "$live.machine.used",
        "$live.machine.generation",
        test=_COORDINATOR + "test_generation_that_was_lost_is_not_begun_again_after_the_group_was_loaded_twice",
    ),
    Mutant(
        "an empty group is never forgotten if those that asked for it have gone",
        GroupCoordinator._load,
        "if $machine.idle:",
        "if False:",
        test=_COORDINATOR + "test_empty_group_is_forgotten_though_nobody_waits_for_it_any_more",
    ),
    Mutant(
        "a group that cannot be loaded is not taken over",
        GroupCoordinator.take_over,
        "self._spawn(self._reload($group))",
        "pass",
        test=_COORDINATOR + "test_group_that_cannot_be_loaded_is_taken_over_later",
    ),
    Mutant(
        "a gateway takes over the groups that it has known before",
        Gateway._take_over,
        "await self._freshness.head()",
        "self._freshness.view",
        test="integration/gateway/test_takeover.py::test_gateway_takes_over_what_the_one_before_has_stored_last",
    ),
    Mutant(
        "a member of before the group changed its kind is told more than that it is none",
        code_of_member,
        "Code.UNKNOWN_MEMBER_ID if $code is Code.INCONSISTENT_GROUP_PROTOCOL else $code",
        "$code",
        test=_COORDINATOR + "test_who_was_a_member_before_the_group_had_members_of_another_kind_is_none",
    ),
    Mutant(
        "a group that gets members of another kind while it is stored ends its classic members with an error",
        ClassicGroup.end,
        "SyncResponse(code_of_member($code) if",
        "SyncResponse($code if",
        test=_COORDINATOR + "test_group_that_gets_members_of_another_kind_while_it_is_stored_has_no_classic_member",
    ),
    Mutant(
        "a static member goes to another coordinator with an id that is not stored",
        ClassicGroup.end,
        "if $is_known else Code.UNKNOWN_MEMBER_ID",
        "if True else Code.UNKNOWN_MEMBER_ID",
        test=_CLASSIC + "test_end_takes_back_the_id_of_a_static_member_that_is_not_stored",
    ),
    Mutant(
        "a last member that leaves a group of another kind ends with an error",
        ClassicGroup.end,
        "LeaveResponse(code_of_member($code))",
        "LeaveResponse($code)",
        test=_COORDINATOR + "test_last_member_that_leaves_a_group_of_another_kind_is_none",
    ),
    Mutant(
        "a coordinator whose generation was refused goes on",
        GroupCoordinator._store,
        "    self._drop($live, $code)\n",
        "    self._act($live, $live.machine.stored(self._now()))\n",
        test=_COORDINATOR + "test_coordinator_that_lost_the_group_answers_not_coordinator",
    ),
    Mutant(
        "a group is not loaded again after a failure",
        GroupCoordinator._store,
        "if $code is not Code.NOT_COORDINATOR:",
        "if False:",
        test=_COORDINATOR + "test_group_that_could_not_be_emptied_is_loaded_again_and_emptied_later",
    ),
    Mutant(
        "a group that another gateway coordinates now is emptied",
        GroupCoordinator._tick,
        "if not self._coordinates($group):",
        "if False:",
        test=_COORDINATOR + "test_group_that_has_moved_unnoticed_is_not_emptied",
    ),
    Mutant(
        "members expire while their coordinator is paused",
        GroupCoordinator._tick,
        "$now - $live.at > _PAUSE_MS",
        "False",
        test=_COORDINATOR + "test_paused_coordinator_does_not_expire_members_that_could_not_reach_it",
    ),
)
