"""The coordinator of classic groups: loading, timers, storing, two coordinators, failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.helpers.virtual_loop import VirtualLoop, run
from tests.unit.gateway.classic_group import DELAY, RANGE, REBALANCE, SESSION, generation
from tests.unit.gateway.generations import Chain
from txnstore.errors import (
    CorruptionError,
    GroupAuthorizationError,
    InvalidConfigError,
    ReadOnlyError,
    StorageError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.gateway.groups.classic import code_of_member
from txnstore.gateway.groups.coordinator import GroupCoordinator
from txnstore.gateway.groups.model import (
    Code,
    DescribedGroup,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    ListedGroup,
    State,
    StoredGeneration,
    SyncRequest,
    SyncResponse,
)
from txnstore.gateway.properties import Properties
from txnstore.runtime import Runtime

RNG = random.Random(1)
T = TypeVar("T")


def coordinator(chain: Chain, coordinates: Any = lambda _group: True, **properties: Any) -> GroupCoordinator:
    runtime = Runtime(clock=lambda: int(now_ms()), rng=RNG)
    return GroupCoordinator(chain, Properties(**properties), runtime, coordinates)


def join(member_id: str = "", instance_id: str | None = None, group: str = "g", version: int = 3) -> JoinRequest:
    return JoinRequest(group, member_id, instance_id, "consumer", RANGE, SESSION, REBALANCE, "c", "h", version)


def sync(member_id: str, number: int, assignment: bytes = b"") -> SyncRequest:
    return SyncRequest("g", number, member_id, None, "consumer", "range", ((member_id, assignment),))


async def beat(groups: GroupCoordinator, member_id: str, number: int) -> Code:
    return (await groups.heartbeat(HeartbeatRequest("g", number, member_id))).error


def leave(*members: str) -> LeaveRequest:
    return LeaveRequest("g", tuple(LeavingMember(member) for member in members))


async def assigned(groups: GroupCoordinator) -> JoinResponse:
    """A member that has joined alone, and has its assignment."""
    joined = await groups.join(join())
    answer = await groups.sync(SyncRequest("g", joined.generation, joined.member_id, None, "consumer", "range",
                                           ((joined.member_id, b"all"),)))  # fmt: skip
    assert answer == SyncResponse(Code.NONE, "consumer", "range", b"all")
    return joined


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
        assert (joined.generation, joined.leader) == (1, joined.member_id)
        assert await beat(groups, joined.member_id, 1) is Code.NONE
        assert groups.list() == [ListedGroup("g", State.STABLE, "consumer")]
        left = await groups.leave(leave(joined.member_id))
        assert [member.error for member in left.members] == [Code.NONE]
        assert [stored.generation for _, stored in chain.history] == [1, 2]
        assert groups.list() == []  # forgotten: the chain has it
        assert chain.loads == 1

    run(main())


def test_group_without_a_name_is_refused() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        assert (await groups.join(join(group=""))).error is Code.INVALID_GROUP_ID
        assert (await groups.sync(SyncRequest("", 1, "m"))).error is Code.INVALID_GROUP_ID
        assert (await groups.heartbeat(HeartbeatRequest("", 1, "m"))).error is Code.INVALID_GROUP_ID
        assert (await groups.leave(LeaveRequest("", ()))).error is Code.INVALID_GROUP_ID
        assert (await groups.join(join(group="g" * 250))).error is Code.INVALID_GROUP_ID
        assert (await groups.join(join(group="g\n"))).error is Code.INVALID_GROUP_ID
        assert chain.loads == 0

    run(main())


def test_requests_for_an_unknown_group_leave_nothing_behind() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        assert await beat(groups, "m", 1) is Code.UNKNOWN_MEMBER_ID
        assert (await groups.sync(sync("m", 1))).error is Code.UNKNOWN_MEMBER_ID
        assert (await groups.leave(leave("m"))).members[0].error is Code.UNKNOWN_MEMBER_ID
        assert (await groups.join(join("m"))).error is Code.UNKNOWN_MEMBER_ID
        assert await groups.describe("g") == DescribedGroup("g", State.DEAD)
        assert groups.list() == []
        assert not groups._groups

    run(main())


def test_concurrent_first_requests_load_once_even_if_the_first_is_cancelled() -> None:
    async def main() -> None:
        chain = Chain()
        chain.seconds = lambda: 1.0
        groups = coordinator(chain)
        first = await soon(groups.join(join()))
        second = await soon(groups.join(join()))
        first.cancel()
        assert (await second).generation == 1
        assert chain.loads == 1

    run(main())


def test_member_whose_connection_was_closed_counts_until_it_expires() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        first = await soon(groups.join(join()))
        second = await soon(groups.join(join()))
        second.cancel()
        joined = await first
        assert len(joined.members) == 2
        await asyncio.sleep(SESSION / 1000 - 1)
        assert await beat(groups, joined.member_id, 1) is Code.NONE
        described = await groups.describe("g")
        assert isinstance(described, DescribedGroup)
        assert len(described.members) == 2
        await asyncio.sleep(1.1)
        described = await groups.describe("g")
        assert isinstance(described, DescribedGroup)
        assert len(described.members) == 1

    run(main())


def test_heartbeats_move_the_deadline() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        for _ in range(10):
            await asyncio.sleep(SESSION / 1000 - 0.1)
            assert await beat(groups, joined.member_id, 1) is Code.NONE
        await asyncio.sleep(SESSION / 1000 - 0.1)
        assert chain.stored() != StoredGeneration(2, "consumer")
        await asyncio.sleep(0.2)
        assert chain.stored() == StoredGeneration(2, "consumer")
        assert await beat(groups, joined.member_id, 1) is Code.UNKNOWN_MEMBER_ID

    run(main())


def test_next_coordinator_goes_on_with_the_stored_generation() -> None:
    async def main() -> None:
        chain = Chain()
        first = coordinator(chain)
        joined = await assigned(first)
        await first.close()
        second = coordinator(chain)
        assert await beat(second, joined.member_id, 1) is Code.NONE
        assert (await second.sync(sync(joined.member_id, 1))).assignment == b"all"
        await asyncio.sleep(SESSION / 1000 - 0.1)
        assert groups_in(second) == [State.STABLE]
        await asyncio.sleep(0.2)
        assert chain.stored() == StoredGeneration(2, "consumer")

    run(main())


def groups_in(groups: GroupCoordinator) -> list[State]:
    return [group.state for group in groups.list()]


def test_coordinator_that_lost_the_group_answers_not_coordinator() -> None:
    async def main() -> None:
        chain = Chain()
        old, new = coordinator(chain), coordinator(chain)
        joined = await assigned(old)
        waiting = await soon(old.join(join()))
        # The other one stores generation 2 meanwhile.
        again = await new.join(join(joined.member_id))
        await new.sync(sync(joined.member_id, again.generation, b"newer"))
        rejoined = await old.join(join(joined.member_id))
        other = await waiting
        assert rejoined.generation == other.generation == 2
        follower = await soon(old.sync(sync(other.member_id, 2)))
        assert (await old.sync(sync(joined.member_id, 2))).error is Code.NOT_COORDINATOR
        assert (await follower).error is Code.NOT_COORDINATOR
        assert groups_in(old) == []
        assert [(stored.generation, stored.members[0].assignment) for _, stored in chain.history] == [
            (1, b"all"),
            (2, b"newer"),
        ]
        # The next request loads what the other one has stored.
        assert await beat(old, joined.member_id, 2) is Code.NONE

    run(main())


@pytest.mark.parametrize("when", ["store", "stored"])
def test_after_a_failure_the_stored_generation_counts(when: str) -> None:
    """Whether the lost one was stored is unknown: members find out at the next attempt."""

    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await groups.join(join())
        failures: list[TxnStoreError] = [UnknownOutcomeError("lost") if when == "stored" else StorageError("refused")]
        chain.fail = lambda at: raise_next(failures) if at == when else None
        request = sync(joined.member_id, 1, b"all")
        assert (await groups.sync(request)).error is Code.COORDINATOR_NOT_AVAILABLE
        expected = SyncResponse(Code.UNKNOWN_MEMBER_ID)
        if when == "stored":
            expected = SyncResponse(Code.NONE, "consumer", "range", b"all")
        assert await groups.sync(request) == expected

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
        assert (await groups.leave(leave(joined.member_id))).error is Code.COORDINATOR_NOT_AVAILABLE
        assert (await groups.join(join())).error is Code.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(10)
        loads = chain.loads
        assert loads >= 5
        chain.fail = lambda _when: None
        await asyncio.sleep(1.1)
        assert groups_in(groups) == [State.STABLE]
        await asyncio.sleep(SESSION / 1000)
        # Whether generation 2 was stored was not known, so its number is not used again.
        assert chain.stored() == StoredGeneration(3, "consumer")
        assert chain.loads == loads + 1
        assert groups_in(groups) == []

    run(main())


class _InconsistentProtocolError(TxnStoreError):
    kafka_code = 23


def test_who_was_a_member_before_the_group_had_members_of_another_kind_is_none() -> None:
    """As in Kafka. Java's consumer ends with an error when a heartbeat is answered INCONSISTENT_GROUP_PROTOCOL."""

    async def main() -> None:
        def fail(_when: str) -> None:
            raise _InconsistentProtocolError("members of KIP-848")

        chain = Chain()
        chain.fail = fail
        groups = coordinator(chain)
        assert await beat(groups, "m", 1) is Code.UNKNOWN_MEMBER_ID
        assert (await groups.sync(sync("m", 1))).error is Code.UNKNOWN_MEMBER_ID
        assert (await groups.leave(LeaveRequest("g", (LeavingMember("m"),)))).error is Code.UNKNOWN_MEMBER_ID
        assert (await groups.join(join())).error is Code.INCONSISTENT_GROUP_PROTOCOL

    run(main())


def test_group_that_gets_members_of_another_kind_while_it_is_stored_has_no_classic_member() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await groups.join(join())
        chain.fail = lambda _when: raise_next([_InconsistentProtocolError("members of KIP-848")])
        assert (await groups.sync(sync(joined.member_id, 1, b"all"))).error is Code.UNKNOWN_MEMBER_ID

    run(main())


def test_last_member_that_leaves_a_group_of_another_kind_is_none() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        chain.fail = lambda _when: raise_next([_InconsistentProtocolError("members of KIP-848")])
        assert (await groups.leave(leave(joined.member_id))).error is Code.UNKNOWN_MEMBER_ID

    run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("down"), Code.COORDINATOR_NOT_AVAILABLE),
        (UnknownOutcomeError("lost"), Code.COORDINATOR_NOT_AVAILABLE),
        (GroupAuthorizationError("no right"), Code.GROUP_AUTHORIZATION_FAILED),
        (ReadOnlyError("read-only"), Code.GROUP_AUTHORIZATION_FAILED),
        (_InconsistentProtocolError("native members"), Code.INCONSISTENT_GROUP_PROTOCOL),
        (InvalidConfigError("too large"), Code.UNKNOWN_SERVER_ERROR),
        (CorruptionError("damaged"), Code.UNKNOWN_SERVER_ERROR),
        (ValueError("a fault of ours"), Code.UNKNOWN_SERVER_ERROR),
    ],
)
def test_every_error_has_a_code(error: Exception, code: Code) -> None:
    async def main() -> None:
        def fail(_when: str) -> None:
            raise error

        chain = Chain()
        groups = coordinator(chain)
        joined = await groups.join(join())
        waiting = await soon(groups.join(join()))
        await groups.join(join(joined.member_id))
        chain.fail = fail
        assert (await groups.sync(sync(joined.member_id, 2))).error is code_of_member(code)
        assert (await waiting).error is Code.NONE
        assert (await groups.join(join())).error is code
        assert await groups.describe("g") is code
        await asyncio.sleep(20)

    run(main())


def test_paused_coordinator_does_not_expire_members_that_could_not_reach_it() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        pause(60_000)
        await asyncio.sleep(0.1)
        assert groups_in(groups) == []
        await asyncio.sleep(2)
        assert groups_in(groups) == [State.STABLE]  # loaded again
        assert await beat(groups, joined.member_id, 1) is Code.NONE
        assert len(chain.history) == 1

    run(main())


def test_short_pause_changes_nothing() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        await assigned(groups)
        await asyncio.sleep(SESSION / 1000 - 1)
        pause(3_000)
        await asyncio.sleep(0.1)
        assert chain.stored() == StoredGeneration(2, "consumer")

    run(main())


def test_late_assignment_of_a_generation_that_was_lost_is_not_taken_for_that_of_a_newer_one() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        lost = await groups.join(join(joined.member_id))
        pause(60_000)  # the group is loaded again
        await asyncio.sleep(2)
        newer = await groups.join(join(joined.member_id))
        late = sync(joined.member_id, lost.generation, b"lost")
        assert (await groups.sync(late)).error is Code.ILLEGAL_GENERATION
        assert (joined.generation, lost.generation, newer.generation) == (1, 2, 3)

    run(main())


def test_generation_that_was_lost_is_not_begun_again_after_the_group_was_loaded_twice() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await assigned(groups)
        lost = await groups.join(join(joined.member_id))
        for _ in range(2):
            pause(60_000)
            await asyncio.sleep(2)
        newer = await groups.join(join(joined.member_id))
        assert (lost.generation, newer.generation, chain.loads) == (2, 3, 3)

    run(main())


def test_empty_group_is_forgotten_though_nobody_waits_for_it_any_more() -> None:
    async def main() -> None:
        chain = Chain()
        chain.seconds = lambda: 0.5
        groups = coordinator(chain)
        given_up = await soon(beat(groups, "m", 1))
        given_up.cancel()
        await asyncio.sleep(1.5)
        assert chain.loads == 1
        await asyncio.sleep(2)
        assert groups_in(groups) == []

    run(main())


def test_group_that_cannot_be_loaded_is_taken_over_later() -> None:
    async def main() -> None:
        chain = Chain()
        await assigned(coordinator(chain))

        def fail(_when: str) -> None:
            raise StorageError("down")

        groups = coordinator(chain)
        chain.fail = fail
        await groups.take_over("g")
        assert groups_in(groups) == []
        chain.fail = lambda _when: None
        await asyncio.sleep(2)
        assert groups_in(groups) == [State.STABLE]
        await asyncio.sleep(SESSION / 1000 + 1)
        assert chain.stored() == StoredGeneration(2, "consumer")

    run(main())


def test_group_that_moves_to_another_gateway() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        groups = coordinator(chain, lambda _group: ours)
        joined = await assigned(groups)
        waiting = await soon(groups.join(join()))
        ours = False
        groups.release()
        assert (await waiting).error is Code.NOT_COORDINATOR
        assert await beat(groups, joined.member_id, 1) is Code.NOT_COORDINATOR
        assert (await groups.join(join())).error is Code.NOT_COORDINATOR
        assert (await groups.sync(sync(joined.member_id, 1))).error is Code.NOT_COORDINATOR
        assert (await groups.leave(leave(joined.member_id))).error is Code.NOT_COORDINATOR
        await asyncio.sleep(100)
        assert len(chain.history) == 1  # the other gateway's members have not expired here

    run(main())


def test_group_that_has_moved_unnoticed_is_not_emptied() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        groups = coordinator(chain, lambda _group: ours)
        await assigned(groups)
        ours = False
        await asyncio.sleep(100)
        assert len(chain.history) == 1
        assert groups_in(groups) == []

    run(main())


def test_group_that_moves_while_it_is_loaded() -> None:
    async def main() -> None:
        ours = True
        chain = Chain()
        chain.seconds = lambda: 1.0
        groups = coordinator(chain, lambda _group: ours)
        waiting = await soon(groups.join(join()))
        ours = False
        assert (await waiting).error is Code.NOT_COORDINATOR
        assert not groups._groups

    run(main())


def test_close_answers_all_and_waits_for_what_is_being_stored() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        joined = await groups.join(join())
        chain.seconds = lambda: 1.0
        waiting = await soon(groups.sync(sync(joined.member_id, 1, b"all")))
        await groups.close()
        assert (await waiting).error is Code.NOT_COORDINATOR
        stored = chain.stored()
        assert stored is not None
        assert stored.generation == 1
        assert (await groups.join(join())).error is Code.NOT_COORDINATOR

    run(main())


def test_described_group_is_timed_although_no_member_asks() -> None:
    """The gateway describes the groups that it takes over, so that dead members of a dead gateway expire."""

    async def main() -> None:
        chain = Chain()
        await chain.store("g", None, generation(7, "a", "b"))
        groups = coordinator(chain)
        described = await groups.describe("g")
        assert isinstance(described, DescribedGroup)
        assert (described.state, len(described.members)) == (State.STABLE, 2)
        await asyncio.sleep(SESSION / 1000 + 0.1)
        assert chain.stored() == StoredGeneration(8, "consumer")
        assert groups_in(groups) == []
        assert await groups.describe("g") == DescribedGroup("g", State.EMPTY, "consumer")

    run(main())


def test_offset_commit_between_join_and_assignment() -> None:
    async def main() -> None:
        groups = coordinator(Chain())
        assert not groups.is_completing("g", "m", 1)
        joined = await groups.join(join())
        assert groups.is_completing("g", joined.member_id, 1)
        await groups.sync(sync(joined.member_id, 1))
        assert not groups.is_completing("g", joined.member_id, 1)

    run(main())


def test_groups_are_independent() -> None:
    async def main() -> None:
        chain = Chain()
        groups = coordinator(chain)
        begin = now_ms()
        joined = await asyncio.gather(*(groups.join(join(group=f"g{number}")) for number in range(20)))
        assert {answer.generation for answer in joined} == {1}
        assert len({answer.member_id for answer in joined}) == 20
        assert now_ms() - begin == pytest.approx(DELAY, abs=2)
        assert len(groups.list()) == 20

    run(main())


def test_without_initial_delay_a_new_group_is_complete_at_once() -> None:
    async def main() -> None:
        groups = coordinator(Chain(), group_initial_rebalance_delay_ms=0)
        begin = now_ms()
        assert (await groups.join(join())).generation == 1
        assert now_ms() == begin

    run(main())
