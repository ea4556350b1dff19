"""Classic groups, in the cases of Kafka's GroupMetadataManagerTest, GroupCoordinatorTest and ClassicGroupTest."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.classic_group import DELAY, RANGE, REBALANCE, SESSION, Group, emptied, generation, in_chain
from txnstore.gateway.groups.classic.group import State

ROUND_ROBIN = (("roundrobin", b"other"),)
BOTH = (*RANGE, *ROUND_ROBIN)


# --- the first rebalance of a group -----------------------------------------------------------------------------------


def test_new_member_creates_group() -> None:
    group = Group()
    token = group.join()
    assert group.waits(token)
    assert group.state() is State.PREPARING_REBALANCE
    group.advance(DELAY)
    answer = group.joined(token)
    assert (answer.error_code, answer.generation_id, answer.protocol_type, answer.protocol_name) == (
        0,
        1,
        "consumer",
        "range",
    )
    assert answer.member_id == answer.leader == "client-id1"
    assert [(member.member_id, member.metadata) for member in answer.members] == [("client-id1", b"subscription")]
    assert not answer.skip_assignment


def test_join_of_unknown_member_id_is_refused() -> None:
    group = Group()
    assert group.joined(group.join("nobody")).error_code is ErrorCode.unknown_member_id
    group.stable(None)
    assert group.joined(group.join("nobody")).error_code is ErrorCode.unknown_member_id
    assert group.state() is State.STABLE


@pytest.mark.parametrize("session", [5_999, 1_800_001])
def test_session_timeout_out_of_range(session: int) -> None:
    group = Group()
    answer = group.joined(group.join(session=session))
    assert (answer.error_code, answer.member_id) == (ErrorCode.invalid_session_timeout, "")
    assert group.idle()


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", RANGE), ("consumer", ())])
def test_join_without_protocol_is_refused(protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
    group = Group()
    answer = group.joined(group.join(protocol_type=protocol_type, protocols=protocols))
    assert (answer.error_code, answer.protocol_name, answer.protocol_type) == (
        ErrorCode.inconsistent_group_protocol,
        None,
        None,
    )


def test_initial_delay_elapses_once_for_a_single_member() -> None:
    group = Group()
    token = group.join()
    group.advance(DELAY - 1)
    assert group.waits(token)
    group.advance(1)
    assert not group.waits(token)


def test_each_new_member_extends_the_initial_delay() -> None:
    group = Group()
    first = group.join()
    group.advance(DELAY - 1)
    second = group.join()
    group.advance(DELAY)
    assert group.waits(first)
    group.advance(1)
    assert group.joined(first).generation_id == group.joined(second).generation_id == 1


def test_initial_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    group = Group()
    first = group.join(rebalance=7_000)
    for _ in range(3):
        group.advance(2_000)
        group.join(rebalance=7_000)
    assert group.waits(first)
    group.advance(999)
    assert group.waits(first)
    group.advance(1)
    assert not group.waits(first)


def test_without_initial_delay_a_group_is_complete_at_once() -> None:
    group = Group(group_initial_rebalance_delay_ms=0)
    token = group.join()
    assert group.deadline() == group.now
    group.machine.tick(group.now)
    assert group.state() is State.COMPLETING_REBALANCE
    assert group.waits(token)  # the actions of the line above were not carried out


def test_only_the_leader_gets_the_members() -> None:
    group = Group()
    first, second = group.join(), group.join(client="other")
    group.advance(2 * DELAY)
    assert [member.member_id for member in group.joined(first).members] == ["client-id1", "other-id2"]
    assert group.joined(second).members == ()
    assert group.joined(second).leader == "client-id1"


def test_member_that_leaves_in_the_initial_delay() -> None:
    group = Group()
    token = group.join()
    left = group.leave("client-id1")
    assert group.joined(token).error_code is ErrorCode.unknown_member_id
    assert group.errors_of_leave(left) == [ErrorCode.none]
    group.advance(DELAY)
    assert group.state() is State.EMPTY
    assert group.chain == []  # nothing was stored, so there is nothing to empty
    assert group.idle()


def test_join_in_the_initial_delay_after_all_have_left_may_be_of_another_type() -> None:
    group = Group()
    group.join()
    group.leave("client-id1")
    token = group.join(protocol_type="connect")
    group.advance(2 * DELAY)
    assert group.joined(token).protocol_type == "connect"


def test_generation_increments_on_each_rebalance() -> None:
    group = Group()
    (member,) = group.stable(None)
    token = group.join(member)
    assert group.joined(token).generation_id == 2


def test_version_0_has_the_session_timeout_as_rebalance_timeout() -> None:
    group = Group()
    (first,) = group.stable(None, version=0, rebalance=0, session=SESSION)
    waiting = group.join(version=0, rebalance=0)
    group.advance(SESSION - 1, beating=(first,))
    assert group.waits(waiting)
    group.advance(1, beating=(first,))
    assert group.joined(waiting).generation_id == 2


# --- member ids that are required first (KIP-394) ---------------------------------------------------------------------


def test_new_dynamic_member_gets_its_id_first() -> None:
    group = Group()
    answer = group.joined(group.join(version=4))
    assert (answer.error_code, answer.member_id) == (ErrorCode.member_id_required, "client-id1")
    assert group.state() is State.EMPTY
    assert not group.idle()
    token = group.join("client-id1", version=4)
    group.advance(DELAY)
    assert group.joined(token).generation_id == 1


def test_new_static_member_needs_no_second_request() -> None:
    group = Group()
    token = group.join("", "i", version=9)
    group.advance(DELAY)
    assert group.joined(token).member_id == "i-1-id1"


def test_pending_member_expires() -> None:
    group = Group()
    group.join(version=4)
    group.advance(SESSION - 1)
    assert not group.idle()
    group.advance(1)
    assert group.idle()
    assert group.joined(group.join("client-id1", version=4)).error_code is ErrorCode.unknown_member_id


def test_rebalance_waits_for_pending_member() -> None:
    group = Group()
    (first,) = group.stable(None)
    pending = group.joined(group.join(version=4)).member_id
    first_token = group.join(first)
    assert group.waits(first_token)
    second_token = group.join(pending, version=4)
    assert group.joined(first_token).generation_id == group.joined(second_token).generation_id == 2


def test_rebalance_completes_when_pending_member_expires() -> None:
    group = Group()
    (first,) = group.stable(None)
    group.join(version=4)
    token = group.join(first)
    group.advance(SESSION)
    assert group.joined(token).generation_id == 2
    assert group.members() == [first]


def test_rebalance_completes_when_pending_member_leaves() -> None:
    group = Group()
    (first,) = group.stable(None)
    pending = group.joined(group.join(version=4)).member_id
    token = group.join(first)
    assert group.errors_of_leave(group.leave(pending)) == [ErrorCode.none]
    assert group.joined(token).generation_id == 2


def test_pending_member_that_leaves_a_stable_group_disturbs_no_member() -> None:
    group = Group()
    (first,) = group.stable(None)
    pending = group.joined(group.join(version=4)).member_id
    assert group.errors_of_leave(group.leave(pending)) == [ErrorCode.none]
    assert group.state() is State.STABLE
    assert group.heartbeat(first) is ErrorCode.none


def test_pending_member_with_instance_id_is_refused() -> None:
    group = Group()
    pending = group.joined(group.join(version=4)).member_id
    token = group.join(pending, "i", version=5)
    assert group.joined(token).error_code is ErrorCode.unknown_member_id


def test_pending_member_cannot_heartbeat_or_sync() -> None:
    group = Group()
    group.stable(None)
    pending = group.joined(group.join(version=4)).member_id
    assert group.heartbeat(pending) is ErrorCode.unknown_member_id
    assert group.synced(group.sync(pending)).error_code is ErrorCode.unknown_member_id


def test_member_ids_are_short_and_printable() -> None:
    """As ids in the chain must be; else one client could keep the others from their assignment."""
    group = Group()
    answer = group.joined(group.join(client="ä\n" + 1_000 * "x", version=4))
    assert answer.member_id.startswith("äxxx")
    assert answer.member_id.isprintable()
    assert len(answer.member_id) < 200
    ids = group.stable("i" * 249)
    assert len(ids[0]) < 200
    returned = group.joined(group.join("", "i" * 249)).member_id
    assert group.heartbeat(ids[0], instance_id="i" * 249) is ErrorCode.fenced_instance_id
    assert group.heartbeat(returned, instance_id="i" * 249) is ErrorCode.none


@pytest.mark.parametrize("instance_id", ["", "i" * 250, "i\n"])
def test_instance_id_that_cannot_be_stored_is_refused(instance_id: str) -> None:
    group = Group()
    assert group.joined(group.join("", instance_id)).error_code is ErrorCode.invalid_request
    assert group.idle()


# --- the largest number of members ------------------------------------------------------------------------------------


def test_full_group_refuses_new_members() -> None:
    group = Group(group_max_size=2)
    group.join()
    group.join()
    answer = group.joined(group.join())
    assert (answer.error_code, answer.member_id) == (ErrorCode.group_max_size_reached, "")
    group.advance(2 * DELAY)
    assert group.joined(group.join()).error_code is ErrorCode.group_max_size_reached


def test_pending_members_are_turned_away_when_the_group_is_full() -> None:
    group = Group(group_max_size=1)
    pending = [group.joined(group.join(version=4)).member_id for _ in range(2)]
    first, second = (group.join(member_id, version=4) for member_id in pending)
    assert group.joined(second).error_code is ErrorCode.group_max_size_reached
    group.advance(DELAY)
    assert group.joined(first).generation_id == 1
    assert group.joined(group.join(pending[1], version=4)).error_code is ErrorCode.group_max_size_reached


def test_members_of_a_full_group_may_join_again() -> None:
    group = Group(group_max_size=2)
    ids = group.stable(None, None)
    tokens = [group.join(member_id) for member_id in ids]
    assert [group.joined(token).error_code for token in tokens] == [ErrorCode.none, ErrorCode.none]


def test_static_member_returns_to_a_full_group() -> None:
    group = Group(group_max_size=1)
    group.stable("i")
    answer = group.joined(group.join("", "i"))
    assert (answer.error_code, answer.member_id) == (ErrorCode.none, "i-2-id2")
    assert group.joined(group.join("", "j")).error_code is ErrorCode.group_max_size_reached


def test_loaded_group_above_the_limit_turns_the_last_members_away() -> None:
    group = Group(generation(4, "a", "b", "c"), group_max_size=2)
    assert group.state() is State.PREPARING_REBALANCE
    first, second, third = (group.join(member_id) for member_id in ("c", "b", "a"))
    assert group.joined(third).error_code is ErrorCode.group_max_size_reached
    assert group.joined(first).generation_id == group.joined(second).generation_id == 5
    assert group.joined(first).leader == "b"  # the stored leader was turned away


# --- protocols --------------------------------------------------------------------------------------------------------


def test_member_of_another_protocol_type_is_refused() -> None:
    group = Group()
    group.join()
    assert group.joined(group.join(protocol_type="connect")).error_code is ErrorCode.inconsistent_group_protocol


def test_member_without_a_common_protocol_is_refused() -> None:
    group = Group()
    group.join()
    assert group.joined(group.join(protocols=ROUND_ROBIN)).error_code is ErrorCode.inconsistent_group_protocol


def test_member_that_would_leave_no_common_protocol_is_refused() -> None:
    group = Group()
    group.join(protocols=BOTH)
    group.join()
    assert group.joined(group.join(protocols=ROUND_ROBIN)).error_code is ErrorCode.inconsistent_group_protocol


def test_most_preferred_common_protocol_is_selected() -> None:
    group = Group()
    tokens = [group.join(protocols=protocols) for protocols in (BOTH, (*ROUND_ROBIN, *RANGE), (*ROUND_ROBIN, *RANGE))]
    group.advance(2 * DELAY)
    assert group.joined(tokens[0]).protocol_name == "roundrobin"
    assert {member.metadata for member in group.joined(tokens[0]).members} == {b"other"}


def test_preferred_protocol_that_one_member_lacks_is_not_selected() -> None:
    group = Group()
    tokens = [group.join(protocols=protocols) for protocols in ((*ROUND_ROBIN, *RANGE), (*ROUND_ROBIN, *RANGE), RANGE)]
    group.advance(2 * DELAY)
    assert group.joined(tokens[0]).protocol_name == "range"


def test_protocol_is_possible_again_when_the_member_without_it_has_left() -> None:
    group = Group()
    first, second = group.stable(None, None, protocols=BOTH)
    group.join(second, protocols=RANGE)
    assert group.joined(group.join(protocols=ROUND_ROBIN)).error_code is ErrorCode.inconsistent_group_protocol
    group.leave(second)
    token = group.join(protocols=ROUND_ROBIN)
    group.join(first, protocols=BOTH)
    assert group.joined(token).protocol_name == "roundrobin"


def test_empty_group_takes_any_protocol_type() -> None:
    group = Group()
    (member,) = group.stable(None)
    group.leave(member)
    token = group.join(protocol_type="connect", protocols=ROUND_ROBIN)
    group.advance(DELAY)
    assert (group.joined(token).protocol_type, group.joined(token).protocol_name) == ("connect", "roundrobin")


# --- rebalances -------------------------------------------------------------------------------------------------------


def test_new_member_rebalances_a_stable_group() -> None:
    group = Group()
    first, second = group.stable(None, None)
    new = group.join()
    assert group.state() is State.PREPARING_REBALANCE
    tokens = [group.join(first), group.join(second)]
    assert [group.joined(token).generation_id for token in [new, *tokens]] == [2, 2, 2]
    assert len(group.joined(tokens[0]).members) == 3


def test_members_that_do_not_join_in_time_are_removed() -> None:
    group = Group()
    first, second = group.stable(None, None)
    token = group.join(first)
    group.advance(REBALANCE - 1, beating=(second,))
    assert group.waits(token)
    group.advance(1, beating=(second,))
    assert group.joined(token).generation_id == 2
    assert group.members() == [first]
    assert group.heartbeat(second) is ErrorCode.unknown_member_id


def test_longest_rebalance_timeout_of_the_members_counts() -> None:
    group = Group()
    first = group.join(rebalance=10_000)
    second = group.join(rebalance=60_000)
    group.advance(2 * DELAY)
    first_id, second_id = group.joined(first).member_id, group.joined(second).member_id
    group.assign([first_id, second_id])
    token = group.join(first_id, rebalance=10_000)
    group.advance(59_999, beating=(second_id,))
    assert group.waits(token)
    group.advance(1, beating=(second_id,))
    assert group.joined(token).generation_id == 2


def test_silent_member_expires_in_the_join_phase() -> None:
    group = Group()
    first, _second = group.stable(None, None)
    token = group.join(first)
    group.advance(SESSION)
    assert group.joined(token).generation_id == 2
    assert group.members() == [first]


def test_new_leader_is_elected_if_the_leader_does_not_join() -> None:
    group = Group()
    leader, follower = group.stable(None, None)
    token = group.join(follower, protocols=(("range", b"changed"),))
    group.advance(SESSION)
    assert group.joined(token).leader == follower
    assert group.members() == [follower]
    assert group.heartbeat(leader) is ErrorCode.unknown_member_id


def test_leader_that_joins_stays_the_leader() -> None:
    group = Group()
    leader, follower = group.stable(None, None)
    token = group.join(follower, protocols=(("range", b"changed"),))
    group.join(leader)
    assert group.joined(token).leader == leader


def test_unchanged_follower_gets_the_generation_of_a_stable_group() -> None:
    group = Group()
    leader, follower = group.stable(None, None)
    answer = group.joined(group.join(follower))
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (ErrorCode.none, 1, leader, ())
    assert group.state() is State.STABLE


def test_changed_follower_rebalances_a_stable_group() -> None:
    group = Group()
    _, follower = group.stable(None, None)
    assert group.waits(group.join(follower, protocols=(("range", b"changed"),)))
    assert group.state() is State.PREPARING_REBALANCE


def test_leader_that_joins_rebalances_a_stable_group() -> None:
    group = Group()
    leader, _ = group.stable(None, None)
    assert group.waits(group.join(leader))
    assert group.state() is State.PREPARING_REBALANCE


def test_member_that_lost_its_answer_joins_again_before_the_assignment() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    again = group.joined(group.join(leader))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert group.joined(group.join(follower)).members == ()
    assert group.state() is State.COMPLETING_REBALANCE


def test_member_that_changes_before_the_assignment_begins_another_rebalance() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    waiting = group.sync(follower)
    group.join(follower, protocols=(("range", b"changed"),))
    assert group.synced(waiting).error_code is ErrorCode.rebalance_in_progress
    assert group.joined(group.join(leader)).generation_id == 2


def test_repeated_join_answers_the_request_that_the_client_gave_up() -> None:
    group = Group()
    first, _ = group.stable(None, None)
    given_up, token = group.join(first), group.join(first)
    assert group.joined(given_up).error_code is ErrorCode.rebalance_in_progress
    assert group.waits(token)


def test_new_member_expires_if_its_join_waits_too_long() -> None:
    group = Group()
    first = group.join(rebalance=2_000_000)
    first_id = group.members()[0]
    group.advance(DELAY)
    group.assign([first_id])
    token = group.join(rebalance=2_000_000)
    group.advance(299_999, beating=(first_id,))
    assert group.waits(token)
    group.advance(1, beating=(first_id,))
    assert group.joined(token).error_code is ErrorCode.unknown_member_id
    assert group.joined(first).error_code is ErrorCode.none


def test_member_whose_join_waits_does_not_expire() -> None:
    group = Group()
    first, second = group.stable(None, None)
    token = group.join(first)
    group.advance(2 * SESSION, beating=(second,))
    assert group.waits(token)
    assert group.members() == [first, second]


def test_join_phase_lasts_while_only_static_members_are_silent() -> None:
    group = Group()
    (static,) = group.stable("i", session=60_000)
    token = group.join()
    group.leave(group.members()[1])
    assert group.joined(token).error_code is ErrorCode.unknown_member_id
    group.advance(REBALANCE + 1, beating=(static,))
    assert group.state() is State.PREPARING_REBALANCE
    assert group.machine.generation == 1
    assert group.joined(group.join(static, "i")).generation_id == 2


# --- SyncGroup --------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_assignment_of_the_leader() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    early = group.sync(follower)
    assert group.waits(early)
    own = group.sync(leader, assignments={leader: b"one", follower: b"two"})
    assert (group.synced(own).assignment, group.synced(early).assignment) == (b"one", b"two")
    assert (group.synced(own).protocol_type, group.synced(own).protocol_name) == ("consumer", "range")


def test_follower_syncs_after_the_leader() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    group.sync(leader, assignments={leader: b"one", follower: b"two"})
    assert group.state() is State.STABLE
    assert group.synced(group.sync(follower)).assignment == b"two"


def test_member_without_assignment_gets_an_empty_one() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    group.sync(leader, assignments={leader: b"one"})
    answer = group.synced(group.sync(follower))
    assert (answer.error_code, answer.assignment) == (ErrorCode.none, b"")


def test_sync_of_unknown_member_or_generation() -> None:
    group = Group()
    assert group.synced(group.sync("nobody")).error_code is ErrorCode.unknown_member_id
    (member,) = group.completing(None)
    assert group.synced(group.sync("nobody")).error_code is ErrorCode.unknown_member_id
    assert group.synced(group.sync(member, 0)).error_code is ErrorCode.illegal_generation
    assert group.synced(group.sync(member, 2)).error_code is ErrorCode.illegal_generation


@pytest.mark.parametrize(
    "names",
    [
        {"protocol_type": "connect"},
        {"protocol_name": "roundrobin"},
        {"protocol_type": None},
        {"protocol_name": None},
    ],
)
def test_sync_with_inconsistent_protocol(names: dict[str, Any]) -> None:
    group = Group()
    (member,) = group.completing(None)
    assert group.synced(group.sync(member, **names)).error_code is ErrorCode.inconsistent_group_protocol


def test_sync_before_version_5_names_no_protocol() -> None:
    group = Group()
    (member,) = group.completing(None)
    token = group.sync(member, assignments={member: b"a"}, protocol_type=None, protocol_name=None, version=4)
    assert group.synced(token).assignment == b"a"


def test_sync_in_the_join_phase() -> None:
    group = Group()
    first, second = group.stable(None, None)
    group.join(first)
    assert group.synced(group.sync(second)).error_code is ErrorCode.rebalance_in_progress


def test_repeated_sync_answers_the_request_that_the_client_gave_up() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    given_up, token = group.sync(follower), group.sync(follower)
    assert group.synced(given_up).error_code is ErrorCode.rebalance_in_progress
    group.sync(leader, assignments={follower: b"two"})
    assert group.synced(token).assignment == b"two"


def test_leader_that_fails_before_its_sync() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    waiting = group.sync(follower)
    group.advance(SESSION)
    assert group.synced(waiting).error_code is ErrorCode.rebalance_in_progress
    answer = group.joined(group.join(follower))
    assert (answer.generation_id, answer.leader) == (2, follower)
    assert group.heartbeat(leader) is ErrorCode.unknown_member_id


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    group.advance(REBALANCE, beating=(leader, follower))
    assert group.members() == []
    assert group.state() is State.EMPTY
    assert group.chain == []


def test_followers_that_never_sync_are_removed_from_a_stable_group() -> None:
    group = Group()
    leader, second, third = group.completing(None, None, None)
    group.assign([leader, second])
    assert group.state() is State.STABLE
    group.advance(REBALANCE, beating=(leader, second, third))
    assert group.state() is State.PREPARING_REBALANCE
    assert group.members() == [leader, second]


def test_leader_that_never_syncs_is_removed() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    waiting = group.sync(follower)
    group.advance(REBALANCE, beating=(leader, follower))
    assert group.synced(waiting).error_code is ErrorCode.rebalance_in_progress
    assert group.members() == [follower]


def test_group_whose_members_have_all_synced_stays_stable() -> None:
    group = Group()
    ids = group.stable(None, None)
    group.advance(3 * REBALANCE, beating=tuple(ids))
    assert group.state() is State.STABLE


# --- heartbeats and expiry --------------------------------------------------------------------------------------------


def test_heartbeat() -> None:
    group = Group()
    assert group.heartbeat("nobody") is ErrorCode.unknown_member_id
    (member,) = group.completing(None)
    assert group.heartbeat(member) is ErrorCode.none
    assert group.heartbeat(member, 0) is ErrorCode.illegal_generation
    assert group.heartbeat("nobody") is ErrorCode.unknown_member_id
    group.assign([member])
    assert group.heartbeat(member) is ErrorCode.none


def test_heartbeat_in_the_join_phase_tells_of_the_rebalance_and_renews_the_session() -> None:
    group = Group()
    _, second = group.stable(None, None)
    group.join()
    group.advance(SESSION - 1)
    assert group.heartbeat(second) is ErrorCode.rebalance_in_progress
    group.advance(SESSION - 1)
    assert second in group.members()
    group.advance(1)
    assert second not in group.members()


def test_session_ends_without_heartbeats() -> None:
    group = Group()
    (member,) = group.stable(None)
    group.advance(SESSION - 1)
    assert group.heartbeat(member) is ErrorCode.none
    group.advance(SESSION - 1)
    assert group.state() is State.STABLE
    group.advance(1)
    assert group.state() is State.EMPTY
    assert group.heartbeat(member) is ErrorCode.unknown_member_id


def test_session_begins_again_when_the_assignment_is_answered() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    group.sync(follower)
    group.advance(SESSION - 1, beating=(leader,))
    group.sync(leader, assignments={})
    group.advance(SESSION - 1)
    assert group.members() == [leader, follower]


def test_expired_member_rebalances_a_stable_group() -> None:
    group = Group()
    first, second = group.stable(None, None)
    group.advance(SESSION, beating=(first,))
    assert group.heartbeat(first) is ErrorCode.rebalance_in_progress
    assert group.joined(group.join(first)).generation_id == 2
    assert group.heartbeat(second) is ErrorCode.unknown_member_id


# --- LeaveGroup -------------------------------------------------------------------------------------------------------


def test_leaving_rebalances_the_others() -> None:
    group = Group()
    first, second = group.stable(None, None)
    assert group.errors_of_leave(group.leave(second)) == [ErrorCode.none]
    assert group.heartbeat(first) is ErrorCode.rebalance_in_progress
    assert group.joined(group.join(first)).generation_id == 2


def test_unknown_member_leaves() -> None:
    group = Group()
    assert group.errors_of_leave(group.leave("nobody")) == [ErrorCode.unknown_member_id]
    group.stable(None)
    assert group.errors_of_leave(group.leave("nobody")) == [ErrorCode.unknown_member_id]
    assert group.state() is State.STABLE


def test_leave_of_static_members_by_instance_id() -> None:
    group = Group()
    _, second, _ = group.stable("i", "j", "k")
    token = group.leave(("", "i"), (second, "j"), ("", "unknown"), ("", None))
    errors = [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.unknown_member_id]
    assert group.errors_of_leave(token) == errors
    assert [member.group_instance_id for member in group.left(token).members] == ["i", "j", "unknown", None]
    assert [member.member_id for member in group.left(token).members] == ["", second, "", ""]
    assert group.members() == ["k-1-id3"]


def test_leave_with_a_fenced_instance_id() -> None:
    group = Group()
    first, second = group.stable("i", "j")
    assert group.errors_of_leave(group.leave((first, "j"))) == [ErrorCode.fenced_instance_id]
    assert group.errors_of_leave(group.leave((second, "unknown"))) == [ErrorCode.unknown_member_id]
    assert group.state() is State.STABLE


def test_joined_and_pending_members_leave_together() -> None:
    group = Group()
    first, second = group.stable(None, None)
    pending = group.joined(group.join(version=4)).member_id
    errors = [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]
    assert group.errors_of_leave(group.leave(second, pending, "nobody")) == errors
    assert group.joined(group.join(first)).generation_id == 2


def test_leaving_member_whose_requests_wait_gets_answers() -> None:
    group = Group()
    leader, follower = group.completing(None, None)
    syncing = group.sync(follower)
    group.leave(follower)
    assert group.synced(syncing).error_code is ErrorCode.unknown_member_id
    joining = group.join()
    group.leave(group.members()[1])
    assert group.joined(joining).error_code is ErrorCode.unknown_member_id
    assert group.members() == [leader]


def test_last_member_leaves() -> None:
    group = Group()
    (member,) = group.stable(None)
    group.slow = True
    token = group.leave(member)
    assert group.waits(token)  # after the answer, the group can be deleted
    assert group.stores == [emptied(1, 2)]
    group.store()
    assert group.errors_of_leave(token) == [ErrorCode.none]
    assert group.idle()


# --- static members (KIP-345) -----------------------------------------------------------------------------------------


def test_static_member_returns_without_a_rebalance() -> None:
    group = Group()
    leader, follower = group.stable("i", "j")
    answer = group.joined(group.join("", "j", client="moved"))
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (ErrorCode.none, 1, leader, ())
    assert answer.member_id == "j-2-id3" != follower
    assert group.state() is State.STABLE
    assert group.synced(group.sync("j-2-id3", instance_id="j")).assignment == follower.encode()
    assert [member.member_id for member in group.chain[-1].members] == [leader, "j-2-id3"]
    assert group.chain[-1].members[1].client_id == "moved"
    assert group.chain[-1].generation == 1


def test_former_member_id_of_a_static_member_is_fenced() -> None:
    group = Group()
    _, follower = group.stable("i", "j")
    group.join("", "j")
    assert group.heartbeat(follower, instance_id="j") is ErrorCode.fenced_instance_id
    assert group.heartbeat(follower) is ErrorCode.unknown_member_id
    assert group.joined(group.join(follower, "j")).error_code is ErrorCode.fenced_instance_id
    assert group.synced(group.sync(follower, instance_id="j")).error_code is ErrorCode.fenced_instance_id
    assert group.errors_of_leave(group.leave((follower, "j"))) == [ErrorCode.fenced_instance_id]


@pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
def test_static_leader_returns(version: int, skips: bool) -> None:
    """Since version 9 the answer says that it leads and must not assign (KIP-814); before, that another one leads."""
    group = Group()
    leader, follower = group.stable("i", "j")
    answer = group.joined(group.join("", "i", version=version))
    assert answer.skip_assignment is skips
    assert answer.leader == ("i-2-id3" if skips else leader)
    assert [member.member_id for member in answer.members] == ([follower, "i-2-id3"] if skips else [])
    assert group.joined(group.join(follower, "j")).leader == "i-2-id3"
    assert group.waits(group.join("i-2-id3", "i"))
    assert group.state() is State.PREPARING_REBALANCE


def test_static_follower_returns_with_version_9() -> None:
    group = Group()
    leader, _ = group.stable("i", "j")
    answer = group.joined(group.join("", "j", version=9))
    assert (answer.skip_assignment, answer.leader, answer.members) == (False, leader, ())


def test_static_member_returns_with_another_protocol() -> None:
    group = Group()
    leader, follower = group.stable("i", "j", protocols=BOTH)
    returning = group.join("", "j", protocols=ROUND_ROBIN)
    assert group.waits(returning)
    assert group.state() is State.PREPARING_REBALANCE
    group.join(leader, "i", protocols=BOTH)
    assert (group.joined(returning).generation_id, group.joined(returning).protocol_name) == (2, "roundrobin")
    assert group.heartbeat(follower, instance_id="j") is ErrorCode.fenced_instance_id


def test_static_member_returns_with_protocols_that_do_not_change_the_selected_one() -> None:
    group = Group()
    group.stable("i", "j", protocols=BOTH)
    assert group.joined(group.join("", "j", protocols=RANGE)).generation_id == 1
    assert group.state() is State.STABLE


def test_static_member_returns_in_the_join_phase() -> None:
    group = Group()
    first, _ = group.stable("i", "j")
    waiting = group.join(first, "i")
    returning = group.join("", "j")
    assert group.joined(waiting).generation_id == group.joined(returning).generation_id == 2


def test_static_member_whose_join_waits_is_fenced_by_its_replacement() -> None:
    group = Group()
    first, second = group.stable("i", "j")
    fenced = group.join(first, "i")
    returning = group.join("", "i")
    assert group.joined(fenced).error_code is ErrorCode.fenced_instance_id
    assert group.joined(fenced).member_id == first
    group.join(second, "j")
    assert group.joined(returning).generation_id == 2


def test_static_member_whose_sync_waits_is_fenced_and_the_group_rebalances() -> None:
    group = Group()
    leader, follower = group.completing("i", "j")
    fenced = group.sync(follower, instance_id="j")
    returning = group.join("", "j")
    assert group.synced(fenced).error_code is ErrorCode.fenced_instance_id
    assert group.state() is State.PREPARING_REBALANCE
    group.join(leader, "i")
    assert group.joined(returning).generation_id == 2


def test_static_member_returns_in_the_initial_delay() -> None:
    group = Group()
    fenced, returning = group.join("", "i"), group.join("", "i")
    assert group.joined(fenced).error_code is ErrorCode.fenced_instance_id
    group.advance(DELAY)
    assert group.joined(returning).member_id == "i-2-id2"
    assert group.members() == ["i-2-id2"]


def test_static_member_whose_newer_id_was_lost_with_its_coordinator_is_not_fenced() -> None:
    """It is the only client of its name, and FENCED_INSTANCE_ID would end it."""
    group = Group()
    first, second = group.stable("i", "j")
    loaded = Group(in_chain(group.chain[-1]))
    group.join(second, "j")
    group.join("", "i")
    lost = group.members()[-1]
    assert lost != first
    for token in (loaded.join(lost, "i"), loaded.join("i-1-other", "i")):
        assert loaded.joined(token).error_code is ErrorCode.unknown_member_id
    assert loaded.heartbeat(lost, instance_id="i") is ErrorCode.unknown_member_id
    assert loaded.joined(loaded.join("", "i")).error_code is ErrorCode.none
    assert loaded.heartbeat(first, instance_id="i") is ErrorCode.fenced_instance_id


def test_static_member_gets_another_id_each_time() -> None:
    group = Group()
    ids = group.stable("i")
    ids += [group.joined(group.join("", "i")).member_id for _ in range(3)]
    assert len(set(ids)) == 4


def test_static_member_joins_with_its_known_member_id() -> None:
    group = Group()
    leader, follower = group.stable("i", "j")
    assert group.joined(group.join(follower, "j")).generation_id == 1
    assert group.waits(group.join(leader, "i"))


def test_member_id_of_another_instance_is_fenced() -> None:
    group = Group()
    leader, follower = group.stable("i", "j")
    assert group.joined(group.join(follower, "i")).error_code is ErrorCode.fenced_instance_id
    assert group.joined(group.join(leader, "unknown")).error_code is ErrorCode.unknown_member_id
    assert group.synced(group.sync(follower, instance_id="i")).error_code is ErrorCode.fenced_instance_id
    assert group.heartbeat(leader, instance_id="unknown") is ErrorCode.unknown_member_id


def test_static_member_that_misses_a_rebalance_keeps_its_place() -> None:
    group = Group()
    dynamic, static = group.stable(None, "i", session=60_000)
    token = group.join(dynamic, session=60_000)
    group.advance(REBALANCE, beating=(static,))
    assert group.joined(token).generation_id == 2
    assert [member.member_id for member in group.joined(token).members] == [dynamic, static]


def test_static_leader_that_misses_a_rebalance_is_not_the_leader_any_more() -> None:
    group = Group()
    static, dynamic = group.stable("i", None, session=60_000)
    token = group.join(dynamic, session=60_000, protocols=(("range", b"changed"),))
    group.advance(REBALANCE)
    assert (group.joined(token).generation_id, group.joined(token).leader) == (2, dynamic)
    assert static in group.members()


def test_static_member_that_expires_is_removed() -> None:
    group = Group()
    group.stable("i")
    group.advance(SESSION)
    assert group.state() is State.EMPTY
    assert group.joined(group.join("i-1-id1", "i")).error_code is ErrorCode.unknown_member_id


def test_replacement_that_has_not_synced_is_removed_like_any_other_member() -> None:
    group = Group()
    leader, _ = group.completing("i", "j")
    group.assign([leader])
    returned = group.joined(group.join("", "j")).member_id
    group.advance(REBALANCE, beating=(leader, returned))
    assert group.members() == [leader]


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_sync_waits_until_the_generation_is_stored() -> None:
    group = Group(slow=True)
    leader, follower = group.completing(None, None)
    tokens = group.assign([leader, follower])
    assert all(map(group.waits, tokens))
    (store,) = group.stores
    assert store.expected == -1
    assert (store.generation, store.protocol_type, store.protocol, store.leader) == (1, "consumer", "range", leader)
    assert [(member.member_id, member.assignment) for member in store.members] == [
        (leader, leader.encode()),
        (follower, follower.encode()),
    ]
    assert store.members[0].subscription == b"subscription"
    assert (store.members[0].session_timeout_ms, store.members[0].rebalance_timeout_ms) == (SESSION, REBALANCE)
    assert group.state() is State.COMPLETING_REBALANCE
    group.store()
    assert [group.synced(token).assignment for token in tokens] == [leader.encode(), follower.encode()]


def test_one_generation_is_stored_per_rebalance() -> None:
    group = Group()
    ids = group.stable(None, None)
    group.join(ids[0])
    group.join(ids[1])
    group.assign(ids)
    assert [stored.generation for stored in group.chain] == [1, 2]


def test_second_assignment_of_the_leader_changes_nothing() -> None:
    group = Group(slow=True)
    (leader,) = group.completing(None)
    given_up = group.sync(leader, assignments={leader: b"first"})
    token = group.sync(leader, assignments={leader: b"second"})
    assert group.synced(given_up).error_code is ErrorCode.rebalance_in_progress
    group.store()
    assert group.synced(token).assignment == b"first"


def test_rebalance_that_begins_while_the_generation_is_being_stored() -> None:
    group = Group(slow=True)
    (leader,) = group.completing(None)
    syncing = group.sync(leader, assignments={leader: b"first"})
    new = group.join()
    assert group.synced(syncing).error_code is ErrorCode.rebalance_in_progress
    group.join(leader)
    second = group.sync(leader, assignments={leader: b"second"})
    assert len(group.stores) == 1  # generation 1
    group.store()
    assert group.waits(second)
    assert group.stores[0].generation == 2
    assert group.stores[0].expected == 1
    group.store()
    assert group.synced(second).assignment == b"second"
    assert group.joined(new).generation_id == 2


def test_group_that_empties_while_its_generation_is_being_stored() -> None:
    group = Group(slow=True)
    (leader,) = group.completing(None)
    group.sync(leader, assignments={leader: b"first"})
    left = group.leave(leader)
    group.store()
    assert group.waits(left)
    assert group.stores == [emptied(1, 2)]
    assert not group.idle()
    group.store()
    assert group.errors_of_leave(left) == [ErrorCode.none]
    assert group.idle()


def test_group_that_is_joined_again_while_it_is_stored_as_empty() -> None:
    group = Group()
    (leader,) = group.stable(None)
    group.slow = True
    left = group.leave(leader)
    token = group.join()
    group.store()
    assert group.errors_of_leave(left) == [ErrorCode.none]
    group.advance(DELAY)
    member = group.joined(token).member_id
    group.sync(member, assignments={})
    assert (group.stores[0].expected, group.stores[0].generation) == (2, 3)


def test_rebalance_that_stored_nothing_is_no_gap_for_the_next() -> None:
    group = Group(generation(7, "a"))
    group.join("a")
    assert group.machine.generation == 8
    assert group.joined(group.join("a", protocols=(("range", b"new"),))).generation_id == 9
    group.sync("a", assignments={"a": b"x"})
    assert [stored.generation for stored in group.chain] == [9]


def test_replacement_is_answered_when_its_member_id_is_stored() -> None:
    group = Group()
    first, second = group.stable("i", "j")
    group.slow = True
    returning = group.join("", "j")
    assert group.waits(returning)
    other = group.join("", "i")
    assert group.waits(other)
    group.store()
    assert group.joined(returning).error_code is ErrorCode.none
    assert group.waits(other)
    group.store()
    assert group.joined(other).error_code is ErrorCode.none
    assert {member.member_id for member in group.chain[-1].members}.isdisjoint({first, second})


def test_member_that_is_replaced_twice_while_it_is_being_stored() -> None:
    group = Group()
    group.stable("i", "j")
    group.slow = True
    fenced, returning = group.join("", "j"), group.join("", "j")
    assert group.joined(fenced).error_code is ErrorCode.fenced_instance_id
    group.store()
    assert group.waits(returning)
    group.store()
    assert group.joined(returning).member_id == "j-3-id4" == group.chain[-1].members[1].member_id


def test_rebalance_that_begins_while_a_replacement_is_being_stored() -> None:
    group = Group()
    leader, _ = group.stable("i", "j")
    group.slow = True
    returning, new = group.join("", "j"), group.join()
    group.store()
    assert group.waits(returning)
    group.join(leader, "i")
    assert group.joined(returning).generation_id == group.joined(new).generation_id == 2


def test_end_answers_all_that_wait() -> None:
    group = Group(slow=True)
    leader, follower = group.completing(None, None)
    syncing = group.assign([leader, follower])
    group.end(ErrorCode.not_coordinator)
    assert {group.synced(token).error_code for token in syncing} == {ErrorCode.not_coordinator}
    assert group.state() is State.DEAD

    group = Group()
    first, _ = group.stable(None, None)
    joining = [group.join(first), group.join()]
    group.end(ErrorCode.coordinator_not_available)
    assert {group.joined(token).error_code for token in joining} == {ErrorCode.coordinator_not_available}

    group = Group()
    (member,) = group.stable(None)
    group.slow = True
    left = group.leave(member)
    group.end(ErrorCode.not_coordinator)
    assert group.left(left).error_code is ErrorCode.not_coordinator


def test_end_takes_back_the_id_of_a_static_member_that_is_not_stored() -> None:
    """With it the client would be fenced, if another coordinator had given its name an id meanwhile."""
    group = Group(slow=True)
    tokens = group.assign([*group.completing("i", None)])
    group.end(ErrorCode.not_coordinator)
    assert [group.synced(token).error_code for token in tokens] == [
        ErrorCode.unknown_member_id,
        ErrorCode.not_coordinator,
    ]

    group = Group(generation(7, "a", instances=True), slow=True)
    group.join("a", "of-a")  # The leader joins again: a rebalance.
    token = group.sync("a", assignments={"a": b""})
    assert group.waits(token)
    group.end(ErrorCode.not_coordinator)
    assert group.synced(token).error_code is ErrorCode.not_coordinator


# --- a group that is loaded -------------------------------------------------------------------------------------------


def test_loaded_members_go_on_at_once() -> None:
    group = Group(generation(7, "a", "b"))
    assert group.state() is State.STABLE
    assert group.heartbeat("a", 7) is ErrorCode.none
    assert group.synced(group.sync("b", 7)).assignment == b"b"
    assert group.joined(group.join("b", protocols=(("range", b"sub"),))).generation_id == 7


def test_loaded_members_have_their_full_session_timeout() -> None:
    group = Group(generation(7, "a", "b"))
    group.advance(SESSION - 1)
    assert group.heartbeat("a") is ErrorCode.none
    group.advance(1)
    assert group.members() == ["a"]
    group.advance(SESSION)
    assert group.chain == [emptied(7, 8)]


def test_loaded_leader_rebalances() -> None:
    group = Group(generation(7, "a", "b"))
    waiting = group.join("a")
    group.join("b")
    assert (group.joined(waiting).generation_id, group.joined(waiting).leader) == (8, "a")


def test_loaded_static_member_returns() -> None:
    group = Group(generation(7, "a", "b", instances=True))
    assert group.heartbeat("a", instance_id="of-a") is ErrorCode.none
    answer = group.joined(group.join("", "of-b"))
    assert (answer.member_id, answer.generation_id) == ("of-b-1-id1", 7)
    assert group.chain[-1].members[1].assignment == b"b"


def test_loaded_empty_group_continues_to_count() -> None:
    group = Group(generation(7))
    assert group.state() is State.EMPTY
    assert group.idle()
    token = group.join()
    group.advance(DELAY)
    assert group.joined(token).generation_id == 8


# --- what it is -------------------------------------------------------------------------------------------------------


def test_describe() -> None:
    group = Group()
    assert group.machine.describe()["group_state"] is State.DEAD
    (member,) = group.completing(None)
    described = group.machine.describe()
    assert described["group_state"] is State.COMPLETING_REBALANCE
    assert (described["protocol_type"], described["protocol_data"]) == ("consumer", "")
    assert described["members"][0]["member_metadata"] == b""
    group.assign([member])
    described = group.machine.describe()
    assert (described["group_state"], described["protocol_data"]) == (State.STABLE, "range")
    assert described["members"] == [
        {
            "member_id": member,
            "group_instance_id": None,
            "client_id": "client",
            "client_host": "host",
            "member_metadata": b"subscription",
            "member_assignment": member.encode(),
        }
    ]
    group.join(member)
    group.advance(1)
    group.leave(member)
    assert group.machine.describe()["group_state"] is State.EMPTY


def test_members_of_a_generation_that_is_not_stored_yet() -> None:
    group = Group()
    (member,) = group.completing(None)
    assert group.machine.is_completing(member, 1)
    assert not group.machine.is_completing(member, 0)
    assert not group.machine.is_completing("nobody", 1)
    group.assign([member])
    assert not group.machine.is_completing(member, 1)


def test_deadline_is_the_earliest_time_at_which_something_happens() -> None:
    group = Group()
    assert group.deadline() is None
    group.join(version=4)
    assert group.deadline() == group.now + SESSION
    group.join("client-id1", version=4)
    assert group.deadline() == group.now + DELAY
    group.advance(DELAY)
    assert group.deadline() == group.now + SESSION
    group.sync("client-id1", assignments={})
    assert group.deadline() == group.now + SESSION
    group.advance(1)
    assert group.machine.tick(group.now) == []
