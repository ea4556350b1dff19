"""The coordinator of classic groups: loading, timers, storing, two coordinators, failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.sync_group.v5.response import SyncGroupResponse

from tests.helpers.virtual_loop import VirtualLoop, run
from tests.unit.gateway.classic_group import (
    DELAY,
    REBALANCE,
    SESSION,
    heartbeat_request,
    join_request,
    leave_request,
    message,
    sync_request,
)
from tests.unit.gateway.gateways import Chain, Gateway
from txnstore.core.groups.commands import StoreGeneration
from txnstore.core.groups.model import ClassicMember
from txnstore.errors import (
    CorruptionError,
    GroupAuthorizationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.groups.classic.group import State, code_of_member
from txnstore.gateway.wire import build
from txnstore.runtime import Runtime

RNG = random.Random(1)
T = TypeVar("T")


def coordinator(chain: Chain, leads: Callable[[], bool] = lambda: True, **properties: Any) -> Gateway:
    return Gateway(chain, leads, Runtime(clock=lambda: int(now_ms()), rng=RNG), **properties)


async def join(gateway: Gateway, member_id: str = "", group: str = "g") -> JoinGroupResponse:
    answer: JoinGroupResponse = build(JoinGroupResponse, await gateway.send(join_request(member_id, group_id=group)))
    return answer


async def sync(gateway: Gateway, member_id: str, number: int, assignment: bytes = b"") -> SyncGroupResponse:
    request = sync_request(member_id, number, {member_id: assignment})
    answer: SyncGroupResponse = build(SyncGroupResponse, await gateway.send(request))
    return answer


async def beat(gateway: Gateway, member_id: str, number: int) -> ErrorCode:
    code: ErrorCode = (await gateway.send(heartbeat_request(member_id, number)))["error_code"]
    return code


async def leave(gateway: Gateway, *members: str) -> LeaveGroupResponse:
    answer: LeaveGroupResponse = build(LeaveGroupResponse, await gateway.send(leave_request(*members)))
    return answer


async def assigned(gateway: Gateway) -> JoinGroupResponse:
    """A member that has joined alone, and has its assignment."""
    joined = await join(gateway)
    answer = await sync(gateway, joined.member_id, joined.generation_id, b"all")
    assert (answer.error_code, answer.assignment) == (ErrorCode.none, b"all")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    return joined


def states_in(gateway: Gateway) -> list[State]:
    return [group["group_state"] for group in gateway.classic.live_groups().values()]


def is_emptied(chain: Chain, generation: int) -> bool:
    """Whether the chain has the group without members in this generation."""
    return (chain.group().generation, chain.group().classic_members) == (generation, ())


async def soon(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A request that is sent, and waits."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0.001)
    assert not task.done()
    return task


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def pause(ms: int) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.pause(ms / 1000)


def test_group_from_its_first_member_to_its_last() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        begin = now_ms()
        joined = await assigned(groups)
        assert now_ms() - begin == pytest.approx(DELAY, abs=2)
        assert (joined.generation_id, joined.leader) == (1, joined.member_id)
        assert await beat(groups, joined.member_id, 1) is ErrorCode.none
        assert {name: group["protocol_type"] for name, group in groups.classic.live_groups().items()} == {
            "g": "consumer"
        }
        assert states_in(groups) == [State.STABLE]
        left = await leave(groups, joined.member_id)
        assert [member.error_code for member in left.members] == [ErrorCode.none]
        assert [stored.generation for stored in chain.generations] == [1, 2]
        assert states_in(groups) == []  # forgotten: the chain has it
        assert chain.looks == 1

    run(main())


def test_group_without_a_name_is_refused() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        assert (await join(groups, group="")).error_code is ErrorCode.invalid_group_id
        for nameless in (
            message(Api.SYNC_GROUP, 5, group_id="", generation_id=1, member_id="m"),
            message(Api.HEARTBEAT, 4, group_id="", generation_id=1, member_id="m"),
            message(Api.LEAVE_GROUP, 5, group_id=""),
        ):
            assert (await groups.send(nameless))["error_code"] is ErrorCode.invalid_group_id
        assert (await join(groups, group="g" * 250)).error_code is ErrorCode.invalid_group_id
        assert (await join(groups, group="g\n")).error_code is ErrorCode.invalid_group_id
        assert chain.looks == 0

    run(main())


def test_requests_for_an_unknown_group_leave_nothing_behind() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        assert await beat(groups, "m", 1) is ErrorCode.unknown_member_id
        assert (await sync(groups, "m", 1)).error_code is ErrorCode.unknown_member_id
        assert (await leave(groups, "m")).members[0].error_code is ErrorCode.unknown_member_id
        assert (await join(groups, "m")).error_code is ErrorCode.unknown_member_id
        assert (await groups.classic.describe("g"))["group_state"] is State.DEAD
        assert states_in(groups) == []
        assert not groups.classic._groups

    run(main())


def test_concurrent_first_requests_load_once_even_if_the_first_is_cancelled() -> None:
    async def main() -> None:
        chain = Chain()
        chain.seconds = lambda: 1.0
        groups = coordinator(chain)
        first = await soon(join(groups))
        second = await soon(join(groups))
        first.cancel()
        assert (await second).generation_id == 1
        assert chain.looks == 1

    run(main())


def test_member_whose_connection_was_closed_counts_until_it_expires() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        first = await soon(join(groups))
        second = await soon(join(groups))
        second.cancel()
        joined = await first
        assert len(joined.members) == 2
        await asyncio.sleep(SESSION / 1000 - 1)
        assert await beat(groups, joined.member_id, 1) is ErrorCode.none
        assert len((await groups.classic.describe("g"))["members"]) == 2
        await asyncio.sleep(1.1)
        assert len((await groups.classic.describe("g"))["members"]) == 1

    run(main())


def test_heartbeats_move_the_deadline() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        for _ in range(10):
            await asyncio.sleep(SESSION / 1000 - 0.1)
            assert await beat(groups, joined.member_id, 1) is ErrorCode.none
        await asyncio.sleep(SESSION / 1000 - 0.1)
        assert not is_emptied(chain, 2)
        await asyncio.sleep(0.2)
        assert is_emptied(chain, 2)
        assert await beat(groups, joined.member_id, 1) is ErrorCode.unknown_member_id

    run(main())


def test_next_coordinator_continues_with_the_stored_generation() -> None:
    async def main() -> None:
        chain = Chain()
        first = coordinator(chain)
        joined = await assigned(first)
        await first.classic.close()
        second = coordinator(chain)
        assert await beat(second, joined.member_id, 1) is ErrorCode.none
        assert (await sync(second, joined.member_id, 1)).assignment == b"all"
        await asyncio.sleep(SESSION / 1000 - 0.1)
        assert states_in(second) == [State.STABLE]
        await asyncio.sleep(0.2)
        assert is_emptied(chain, 2)

    run(main())


def test_coordinator_that_lost_the_group_answers_not_coordinator() -> None:
    async def main() -> None:
        chain = Chain()
        old, new = coordinator(chain), coordinator(chain)
        joined = await assigned(old)
        waiting = await soon(join(old))
        # The other one stores generation 2 meanwhile.
        again = await join(new, joined.member_id)
        await sync(new, joined.member_id, again.generation_id, b"newer")
        rejoined = await join(old, joined.member_id)
        other = await waiting
        assert rejoined.generation_id == other.generation_id == 2
        follower = await soon(sync(old, other.member_id, 2))
        assert (await sync(old, joined.member_id, 2)).error_code is ErrorCode.not_coordinator
        assert (await follower).error_code is ErrorCode.not_coordinator
        assert states_in(old) == []
        assert [(stored.generation, stored.members[0].assignment) for stored in chain.generations] == [
            (1, b"all"),
            (2, b"newer"),
        ]
        # The next request loads what the other one has stored.
        assert await beat(old, joined.member_id, 2) is ErrorCode.none

    run(main())


@pytest.mark.parametrize("when", ["commit", "committed"])
def test_after_a_failure_the_stored_generation_counts(when: str) -> None:
    """Whether the lost one was stored is unknown: members find out at the next attempt."""

    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await join(groups)
        failures: list[TxnStoreError] = [
            UnknownOutcomeError("lost") if when == "committed" else StorageError("refused")
        ]
        chain.fail = lambda at: raise_next(failures) if at == when else None
        lost = await sync(groups, joined.member_id, 1, b"all")
        assert lost.error_code is ErrorCode.coordinator_not_available
        repeated = await sync(groups, joined.member_id, 1, b"all")
        expected = (ErrorCode.none, b"all") if when == "committed" else (ErrorCode.unknown_member_id, b"")
        assert (repeated.error_code, repeated.assignment) == expected

    run(main())


def raise_next(failures: list[TxnStoreError]) -> None:
    if failures:
        raise failures.pop()


def test_group_that_could_not_be_emptied_is_loaded_again_and_emptied_later() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        chain.fail = lambda _when: raise_next([StorageError("down")])
        assert (await leave(groups, joined.member_id)).error_code is ErrorCode.coordinator_not_available
        assert (await join(groups)).error_code is ErrorCode.coordinator_not_available
        await asyncio.sleep(10)
        loads = chain.looks
        assert loads >= 5
        chain.fail = lambda _when: None
        await asyncio.sleep(1.1)
        assert states_in(groups) == [State.STABLE]
        await asyncio.sleep(SESSION / 1000)
        # Whether generation 2 was stored was not known, so its number is not used again.
        assert is_emptied(chain, 3)
        assert chain.looks == loads + 1
        assert states_in(groups) == []

    run(main())


def test_who_was_a_member_before_the_group_had_members_of_another_kind_is_none() -> None:
    """As in Kafka. Java's consumer ends with an error when a heartbeat is answered INCONSISTENT_GROUP_PROTOCOL."""

    async def main() -> None:
        def fail(_when: str) -> None:
            raise InconsistentGroupProtocolError("members of KIP-848")

        chain = Chain()
        chain.fail = fail
        groups = coordinator(chain)
        assert await beat(groups, "m", 1) is ErrorCode.unknown_member_id
        assert (await sync(groups, "m", 1)).error_code is ErrorCode.unknown_member_id
        assert (await leave(groups, "m")).error_code is ErrorCode.unknown_member_id
        assert (await join(groups)).error_code is ErrorCode.inconsistent_group_protocol

    run(main())


def test_group_that_gets_members_of_another_kind_while_it_is_stored_has_no_classic_member() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await join(groups)
        chain.fail = lambda _when: raise_next([InconsistentGroupProtocolError("members of KIP-848")])
        assert (await sync(groups, joined.member_id, 1, b"all")).error_code is ErrorCode.unknown_member_id

    run(main())


def test_last_member_that_leaves_a_group_of_another_kind_is_none() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        chain.fail = lambda _when: raise_next([InconsistentGroupProtocolError("members of KIP-848")])
        assert (await leave(groups, joined.member_id)).error_code is ErrorCode.unknown_member_id

    run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("down"), ErrorCode.coordinator_not_available),
        (UnknownOutcomeError("lost"), ErrorCode.coordinator_not_available),
        (GroupAuthorizationError("no right"), ErrorCode.group_authorization_failed),
        (ReadOnlyError("read-only"), ErrorCode.group_authorization_failed),
        (InconsistentGroupProtocolError("native members"), ErrorCode.inconsistent_group_protocol),
        (InvalidConfigError("too large"), ErrorCode.unknown_server_error),
        (CorruptionError("damaged"), ErrorCode.unknown_server_error),
        (ValueError("a fault of ours"), ErrorCode.unknown_server_error),
    ],
)
def test_every_error_has_a_code(error: Exception, code: ErrorCode) -> None:
    async def main() -> None:
        def fail(_when: str) -> None:
            raise error

        chain = Chain()
        groups = coordinator(chain)
        joined = await join(groups)
        waiting = await soon(join(groups))
        await join(groups, joined.member_id)
        chain.fail = fail
        assert (await sync(groups, joined.member_id, 2)).error_code is code_of_member(code)
        assert (await waiting).error_code is ErrorCode.none
        assert (await join(groups)).error_code is code
        with pytest.raises(RefusedError) as refused:
            await groups.classic.describe("g")
        assert refused.value.code is code
        await asyncio.sleep(20)

    run(main())


def test_paused_coordinator_does_not_expire_members_that_could_not_reach_it() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        pause(60_000)
        await asyncio.sleep(0.1)
        assert states_in(groups) == []
        await asyncio.sleep(2)
        assert states_in(groups) == [State.STABLE]  # loaded again
        assert await beat(groups, joined.member_id, 1) is ErrorCode.none
        assert len(chain.generations) == 1

    run(main())


def test_short_pause_changes_nothing() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        await assigned(groups)
        await asyncio.sleep(SESSION / 1000 - 1)
        pause(3_000)
        await asyncio.sleep(0.1)
        assert is_emptied(chain, 2)

    run(main())


def test_late_assignment_of_a_generation_that_was_lost_is_not_taken_for_that_of_a_newer_one() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        lost = await join(groups, joined.member_id)
        pause(60_000)  # the group is loaded again
        await asyncio.sleep(2)
        newer = await join(groups, joined.member_id)
        late = await sync(groups, joined.member_id, lost.generation_id, b"lost")
        assert late.error_code is ErrorCode.illegal_generation
        assert (joined.generation_id, lost.generation_id, newer.generation_id) == (1, 2, 3)

    run(main())


def test_generation_that_was_lost_is_not_begun_again_after_the_group_was_loaded_twice() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        lost = await join(groups, joined.member_id)
        for _ in range(2):
            pause(60_000)
            await asyncio.sleep(2)
        newer = await join(groups, joined.member_id)
        assert (lost.generation_id, newer.generation_id, chain.looks) == (2, 3, 3)

    run(main())


def test_empty_group_is_forgotten_though_no_request_waits_for_it() -> None:
    async def main() -> None:
        chain = Chain()
        chain.seconds = lambda: 0.5
        groups = coordinator(chain)
        given_up = await soon(beat(groups, "m", 1))
        given_up.cancel()
        await asyncio.sleep(1.5)
        assert chain.looks == 1
        await asyncio.sleep(2)
        assert states_in(groups) == []

    run(main())


def test_group_that_cannot_be_loaded_is_taken_over_later() -> None:
    async def main() -> None:
        chain = Chain()
        await assigned(coordinator(chain))

        def fail(_when: str) -> None:
            raise StorageError("down")

        groups = coordinator(chain)
        chain.fail = fail
        groups.classic.take_over()
        await asyncio.sleep(0.5)
        assert states_in(groups) == []
        chain.fail = lambda _when: None
        await asyncio.sleep(2)
        assert states_in(groups) == [State.STABLE]
        await asyncio.sleep(SESSION / 1000 + 1)
        assert is_emptied(chain, 2)

    run(main())


def test_group_that_moves_to_another_gateway() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        groups = coordinator(chain, lambda: ours)
        joined = await assigned(groups)
        waiting = await soon(join(groups))
        ours = False
        groups.classic.release()
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert await beat(groups, joined.member_id, 1) is ErrorCode.not_coordinator
        assert (await join(groups)).error_code is ErrorCode.not_coordinator
        assert (await sync(groups, joined.member_id, 1)).error_code is ErrorCode.not_coordinator
        assert (await leave(groups, joined.member_id)).error_code is ErrorCode.not_coordinator
        await asyncio.sleep(100)
        assert len(chain.generations) == 1  # the other gateway's members have not expired here

    run(main())


def test_group_that_has_moved_unnoticed_is_not_emptied() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        groups = coordinator(chain, lambda: ours)
        await assigned(groups)
        ours = False
        await asyncio.sleep(100)
        assert len(chain.generations) == 1
        assert states_in(groups) == []

    run(main())


def test_group_that_moves_while_it_is_loaded() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        chain.seconds = lambda: 1.0
        groups = coordinator(chain, lambda: ours)
        waiting = await soon(join(groups))
        ours = False
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert not groups.classic._groups

    run(main())


def test_close_answers_all_and_waits_for_what_is_being_stored() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await join(groups)
        chain.seconds = lambda: 1.0
        waiting = await soon(sync(groups, joined.member_id, 1, b"all"))
        await groups.classic.close()
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert chain.group().generation == 1
        assert (await join(groups)).error_code is ErrorCode.not_coordinator

    run(main())


def test_described_group_is_timed_although_no_member_asks() -> None:
    """The gateway describes the groups that it takes over, so that dead members of a dead gateway expire."""

    async def main() -> None:
        chain = Chain()
        members = tuple(ClassicMember(name, None, "c", "h", SESSION, REBALANCE, b"", b"") for name in "ab")
        chain.do(StoreGeneration("g", -1, 7, "consumer", "range", "a", members))
        groups = coordinator(chain)
        described = await groups.classic.describe("g")
        assert (described["group_state"], len(described["members"])) == (State.STABLE, 2)
        await asyncio.sleep(SESSION / 1000 + 0.1)
        assert is_emptied(chain, 8)
        assert states_in(groups) == []
        described = await groups.classic.describe("g")
        assert (described["group_state"], described["protocol_type"]) == (State.EMPTY, "consumer")

    run(main())


def test_offset_commit_between_join_and_assignment() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        assert not groups.classic.is_completing("g", "m", 1)
        joined = await join(groups)
        assert groups.classic.is_completing("g", joined.member_id, 1)
        await sync(groups, joined.member_id, 1)
        assert not groups.classic.is_completing("g", joined.member_id, 1)

    run(main())


def test_groups_are_independent() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        begin = now_ms()
        joined = await asyncio.gather(*(join(groups, group=f"g{number}") for number in range(20)))
        assert {answer.generation_id for answer in joined} == {1}
        assert len({answer.member_id for answer in joined}) == 20
        assert now_ms() - begin == pytest.approx(DELAY, abs=2)
        assert len(states_in(groups)) == 20

    run(main())


def test_without_initial_delay_a_new_group_is_complete_at_once() -> None:
    async def main() -> None:
        groups = coordinator(Chain(), group_initial_rebalance_delay_ms=0)
        begin = now_ms()
        assert (await join(groups)).generation_id == 1
        assert now_ms() == begin

    run(main())
