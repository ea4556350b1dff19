"""Groups of KIP-848 at a gateway: requests and their codes, epochs, sessions, takeovers."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.core import World
from tests.helpers.virtual_loop import VirtualLoop, run
from tests.unit.gateway.consumer_client import INTERVAL, REBALANCE, SESSION, Client, ask
from tests.unit.gateway.gateways import Gateway, topic_id
from txnstore.core.catalog.model import AlterTopic, DeleteTopic
from txnstore.core.groups.commands import JoinGroup, LeaveGroup
from txnstore.core.groups.model import Group
from txnstore.errors import InvalidConfigError, StorageError, UnknownOutcomeError
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.groups.consumer.members import check_epoch_of_fetch, matching_topics, state_of
from txnstore.gateway.properties import Properties


@pytest.fixture
def world() -> World:
    world = World(partitions=4)
    world.blind = True  # No lease ends: a gateway names the expired members.
    return world


def code(answer: dict[str, Any]) -> ErrorCode:
    found: ErrorCode = answer["error_code"]
    return found


async def wait(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


async def settle(*clients: Client) -> None:
    """Heartbeats until nothing changes."""
    for _ in range(4):
        for client in clients:
            await client.release()


def owned(*clients: Client) -> list[int]:
    return sorted(number for client in clients for number in client.owned)


# Requests -------------------------------------------------------------------------------------------------------------

_FULL: dict[str, Any] = {"rebalance_timeout": 1000, "subscribed_topic_names": ("t",), "topic_partitions": ()}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**_FULL, "group_id": ""}, ErrorCode.invalid_request),
        ({**_FULL, "member_id": ""}, ErrorCode.invalid_request),
        ({**_FULL, "instance_id": ""}, ErrorCode.invalid_request),
        ({**_FULL, "rack_id": " "}, ErrorCode.invalid_request),
        ({**_FULL, "rebalance_timeout": -1}, ErrorCode.invalid_request),
        ({**_FULL, "subscribed_topic_names": None}, ErrorCode.invalid_request),
        ({**_FULL, "topic_partitions": None}, ErrorCode.invalid_request),
        ({**_FULL, "topic_partitions": [{"topic_id": UUID(int=7), "partitions": [0]}]}, ErrorCode.invalid_request),
        ({**_FULL, "group_id": "g\n"}, ErrorCode.invalid_request),
        ({**_FULL, "server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({**_FULL, "subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
        ({**_FULL, "subscribed_topic_regex": "a)|(b"}, ErrorCode.invalid_regular_expression),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"member_epoch": -2, "instance_id": "i"}, ErrorCode.unknown_member_id),
        ({"member_epoch": -1}, ErrorCode.unknown_member_id),
        ({"member_epoch": 1}, ErrorCode.unknown_member_id),
        ({"member_epoch": 1, "instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
)
def test_what_is_refused(world: World, fields: dict[str, Any], expected: ErrorCode) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        answer = await ask(gateway, **{"member_id": "m", **fields})
        assert code(answer) is expected
        assert answer["error_message"]
        assert "g" not in world.state.groups
        assert not gateway.consumers._groups

    run(main())


def test_a_member_of_version_0_gets_its_id_from_the_gateway(world: World) -> None:
    async def main() -> None:
        answer = await ask(Gateway(world), version=0, **_FULL)
        assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval"]) == ("new-1", 1, INTERVAL)

    run(main())


def test_another_gateway_coordinates(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        gateway.leads = False
        assert code(await client.beat()) is ErrorCode.not_coordinator
        assert not gateway.consumers._groups

    run(main())


def test_a_group_is_full(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world, group_consumer_max_size=1)
        client = Client(gateway, "a")
        await client.join()
        assert code(await Client(gateway, "b").join()) is ErrorCode.group_max_size_reached
        client.epoch = 0
        assert code(await client.join()) is ErrorCode.none

    run(main())


def test_topics_that_a_client_may_not_see(world: World) -> None:
    world.create("secret")

    async def main() -> None:
        gateway = Gateway(world)
        gateway.hidden.add("secret")
        assert code(await Client(gateway, "a", ("secret",)).join()) is ErrorCode.topic_authorization_failed
        assert code(await Client(gateway, "a", None, regex=".*").join()) is ErrorCode.none
        assert list(gateway.group.members["a"].topics) == ["t"]

    run(main())


# Epochs ---------------------------------------------------------------------------------------------------------------


def test_partitions_go_over_when_their_member_has_given_them_up(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        first, second = Client(gateway, "a"), Client(gateway, "b")
        answer = await first.join()
        assert answer["assignment"]["topic_partitions"] == [
            {"topic_id": topic_id("t", world), "topic_name": "t", "partitions": (0, 1, 2, 3)}
        ]
        assert (first.epoch, state_of(gateway.group)) == (1, "Stable")
        await second.join()
        assert (second.epoch, second.owned, state_of(gateway.group)) == (2, [], "Reconciling")
        assert (await second.beat())["assignment"] is None
        await first.beat()
        assert (first.epoch, len(first.owned)) == (1, 2)
        assert (await second.beat())["assignment"] is None
        await first.release()
        assert first.epoch == 2
        await second.beat()
        assert (owned(first, second), state_of(gateway.group)) == ([0, 1, 2, 3], "Stable")
        commands = len(gateway.commands)
        for client in (first, second):
            assert (await client.beat())["assignment"] is None
            assert (await client.release())["assignment"] is None
        assert len(gateway.commands) == commands  # Heartbeats are no commands.
        assert (await first.join())["assignment"] is not None  # One that sends all it has gets its assignment.

    run(main())


def test_another_epoch_is_fenced_but_for_the_one_before(world: World) -> None:
    """The response with the newer one may be lost; then the client sends all it has."""

    async def main() -> None:
        gateway = Gateway(world)
        first = Client(gateway, "a")
        await first.join()
        await Client(gateway, "b").join()
        await first.beat()
        lost = first.partitions()
        await first.release()
        assert first.epoch == 2
        again = await ask(gateway, member_id="a", member_epoch=1, topic_partitions=lost)
        assert (code(again), again["member_epoch"]) == (ErrorCode.none, 2)
        everything = [{"topic_id": topic_id("t", world), "partitions": (0, 1, 2, 3)}]
        for epoch, partitions in ((1, None), (1, everything), (3, lost)):
            answer = await ask(gateway, member_id="a", member_epoch=epoch, topic_partitions=partitions)
            assert code(answer) is ErrorCode.fenced_member_epoch
        await Client(gateway, "c").join()
        await first.beat()
        await first.release()
        assert first.epoch == 3
        answer = await ask(gateway, member_id="a", member_epoch=1, topic_partitions=[])
        assert code(answer) is ErrorCode.fenced_member_epoch

    run(main())


def test_a_fenced_member_joins_again_without_its_partitions(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        first, second = Client(gateway, "a"), Client(gateway, "b")
        await first.join()
        await second.join()
        assert set(gateway.group.members["a"].held) > set(gateway.group.members["a"].target)
        first.epoch = 0
        await first.join()
        assert (first.epoch, len(first.owned)) == (2, 2)
        await second.beat()
        assert owned(first, second) == [0, 1, 2, 3]

    run(main())


def test_a_member_is_removed_while_it_joins_again(world: World) -> None:
    """A client that joins never gets the error that it is no member."""

    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        client.epoch = 0
        commits = itertools.count(1)

        def remove(when: str) -> None:
            if when == "commit" and next(commits) == 2:  # It has joined; what it has given up is not in the chain.
                world.do(LeaveGroup("g", "a"))

        gateway.fail = remove
        assert code(await client.join()) is ErrorCode.none
        assert owned(client) == [0, 1, 2, 3]
        assert list(gateway.group.members) == ["a"]

    run(main())


def test_a_member_changes_its_topics_and_its_assignor(world: World) -> None:
    world.create("u", 2)

    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        answer = await client.beat(subscribed_topic_names=("u",))
        assert [each["topic_name"] for each in answer["assignment"]["topic_partitions"]] == ["u"]
        assert client.epoch == 1  # It has not given up the others yet.
        await client.beat(topic_partitions=[{"topic_id": topic_id("u", world), "partitions": (0, 1)}])
        assert client.epoch == 2
        await client.beat(server_assignor="range")
        assert (client.epoch, gateway.group.members["a"].assignor) == (3, "range")

    run(main())


def test_topics_that_come_grow_and_go(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a", ("later", "t"))
        await client.join()
        assert owned(client) == [0, 1, 2, 3]
        topic = world.create("later", 1)
        answer = await client.beat()
        assert [(each["topic_name"]) for each in answer["assignment"]["topic_partitions"]] == ["later", "t"]
        world.do(AlterTopic(replace(topic, partitions=2, version=1), 0))
        answer = await client.beat()
        assert [len(each["partitions"]) for each in answer["assignment"]["topic_partitions"]] == [2, 4]
        world.do(DeleteTopic("later"))
        answer = await client.beat()
        assert [(each["topic_name"]) for each in answer["assignment"]["topic_partitions"]] == ["t"]

    run(main())


def test_regular_expressions_follow_the_topics(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a", None, regex="t.*|u")
        await client.join()
        for name in ("t2", "u2", "xt"):
            world.create(name)
        await client.beat()
        assert list(gateway.group.members["a"].topics) == ["t", "t2"]
        # Another gateway does not know the expression, and continues with its topics until the client sends it.
        client.gateway = gateway = Gateway(world)
        await client.beat()
        assert list(gateway.group.members["a"].topics) == ["t", "t2"]
        gateway.consumers._groups.clear()
        client.regex = "u.*"
        await client.join(topic_partitions=[])
        assert list(gateway.group.members["a"].topics) == ["u2"]
        await client.beat(subscribed_topic_regex="", subscribed_topic_names=())
        assert (list(gateway.group.members["a"].topics), client.owned) == ([], [])

    run(main())


def test_an_expression_matches_whole_names() -> None:
    names = ("a", "ab", "b\n", "b")
    assert matching_topics("a|b", names) == {"a", "b"}
    assert matching_topics("", names) == frozenset()
    with pytest.raises(RefusedError):
        matching_topics(r"(a)\1", names)  # RE2 has no references: none takes long.


# Static members -------------------------------------------------------------------------------------------------------


def test_a_static_member_leaves_for_now_and_comes_back(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        first, other = Client(gateway, "a-1", instance_id="a"), Client(gateway, "b")
        await first.join()
        await other.join()
        await first.beat()
        await settle(first, other)
        before, generation = owned(first), gateway.group.generation
        again = Client(gateway, "a-2", instance_id="a")
        assert code(await again.join()) is ErrorCode.unreleased_instance_id
        answer = await first.beat(member_epoch=-2)
        assert (code(answer), answer["member_epoch"]) == (ErrorCode.none, -2)
        await again.join()
        assert (owned(again), again.epoch, gateway.group.generation) == (before, generation, generation)
        assert code(await first.beat()) is ErrorCode.fenced_instance_id
        assert code(await first.beat(member_epoch=-1)) is ErrorCode.fenced_instance_id
        assert sorted(gateway.group.members) == ["a-2", "b"]
        assert code(await again.beat(member_epoch=-1)) is ErrorCode.none
        assert sorted(gateway.group.members) == ["b"]

    run(main())


def test_a_static_member_that_is_away_has_its_session(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client, other = Client(gateway, "a", instance_id="a"), Client(gateway, "b")
        await client.join()
        await other.join()
        assert code(await client.beat(member_epoch=-2)) is ErrorCode.none
        assert len((await other.beat())["assignment"]["topic_partitions"][0]["partitions"]) == 2  # It keeps its own.
        for _ in range(SESSION // INTERVAL + 1):
            await wait(INTERVAL)
            await other.beat()
        assert owned(other) == [0, 1, 2, 3]

    run(main())


def test_a_static_member_comes_back_at_another_gateway(world: World) -> None:
    """That gateway does not know that it had left."""

    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a-1", instance_id="a")
        await client.join()
        await client.beat(member_epoch=-2)
        again = Client(Gateway(world), "a-2", instance_id="a")
        assert code(await again.join()) is ErrorCode.none
        assert owned(again) == [0, 1, 2, 3]
        third = Client(again.gateway, "a-3", instance_id="a")
        assert code(await third.join()) is ErrorCode.unreleased_instance_id

    run(main())


# Sessions -------------------------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        alive, silent = Client(gateway, "a"), Client(gateway, "b")
        await silent.join()
        await wait(1_000)
        await alive.join()
        for _ in range(SESSION // INTERVAL - 1):
            await wait(INTERVAL)
            await alive.beat()
        assert sorted(gateway.group.members) == ["a", "b"]
        await wait(INTERVAL)
        assert sorted(gateway.group.members) == ["a"]
        await alive.beat()
        assert owned(alive) == [0, 1, 2, 3]
        assert code(await silent.beat()) is ErrorCode.unknown_member_id
        await wait(2 * SESSION)
        assert (dict(gateway.group.members), state_of(gateway.group)) == ({}, "Empty")
        assert not gateway.consumers._groups

    run(main())


def test_a_member_that_does_not_give_up_partitions_is_removed(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        stuck, waiting = Client(gateway, "a"), Client(gateway, "b")
        await stuck.join()
        await waiting.join()
        everything = [{"topic_id": topic_id("t", world), "partitions": (0, 1, 2, 3)}]
        for _ in range(REBALANCE // INTERVAL):
            assert code(await stuck.beat(topic_partitions=everything)) is ErrorCode.none
            await waiting.beat()
            await wait(INTERVAL)
        await wait(INTERVAL)
        assert sorted(gateway.group.members) == ["b"]
        await waiting.beat()
        assert owned(waiting) == [0, 1, 2, 3]

    run(main())


def test_members_of_a_group_that_is_taken_over_have_their_full_session(world: World) -> None:
    async def main() -> None:
        former = Gateway(world)
        alive, silent = Client(former, "a"), Client(former, "b")
        await alive.join()
        await silent.join()
        await wait(SESSION - 1_000)
        former.leads = False
        former.consumers.release()
        gateway = alive.gateway = Gateway(world)
        gateway.consumers.take_over()
        for _ in range(SESSION // INTERVAL - 1):
            await wait(INTERVAL)
            await alive.beat()
        assert sorted(gateway.group.members) == ["a", "b"]
        await wait(INTERVAL + 1_000)
        assert sorted(gateway.group.members) == ["a"]

    run(main())


def test_a_response_is_lost_with_its_gateway(world: World) -> None:
    """The client has an older epoch than the chain, and sends all it has to the next gateway."""

    async def main() -> None:
        former = Gateway(world)
        first = Client(former, "a")
        await first.join()
        await Client(former, "b").join()
        await first.beat()
        await ask(former, member_id="a", member_epoch=1, topic_partitions=first.partitions())
        assert first.epoch == 1
        first.gateway = Gateway(world)
        assert code(await first.beat()) is ErrorCode.fenced_member_epoch
        assert code(await first.join()) is ErrorCode.none
        assert first.epoch == 2

    run(main())


def test_a_pause_of_the_gateway_ends_no_session(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.pause(2 * SESSION / 1000)
        await wait(1)
        assert code(await client.beat()) is ErrorCode.none
        await wait(SESSION + 1_000)
        assert not gateway.group.members

    run(main())


def test_a_member_that_another_gateway_hears_stays(world: World) -> None:
    """Both believe that they coordinate; the chain tells the older one that the member has joined again."""

    async def main() -> None:
        gateway, other = Gateway(world), Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        await wait(SESSION - 1_000)
        again = Client(other, "a")

        def join_meanwhile(when: str) -> None:
            if when == "commit":
                gateway.fail = lambda _when: None
                world.do(JoinGroup("g", "a", (("t", 4),), session_timeout_ms=SESSION, kind="consumer"))

        gateway.fail = join_meanwhile
        await wait(2_000)
        assert "a" in gateway.group.members
        assert code(await again.join()) is ErrorCode.none

    run(main())


@pytest.mark.parametrize("when", ["head", "commit", "committed"])
def test_a_removal_is_repeated_until_the_storage_answers(world: World, when: str) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        client = Client(gateway, "a")
        await client.join()
        failures = iter(range(3))

        def fail(at: str) -> None:
            if at == when and next(failures, None) is not None:
                raise UnknownOutcomeError("lost") if at == "committed" else StorageError("away")

        gateway.fail = fail
        await wait(SESSION + 10_000)
        assert not gateway.group.members
        assert not gateway.consumers._groups

    run(main())


def test_a_join_without_an_answer_is_timed_all_the_same(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        gateway.consumers.take_over()

        def lose(when: str) -> None:
            if when == "committed":
                raise UnknownOutcomeError("lost")

        gateway.fail = lose
        assert code(await Client(gateway, "a").join()) is ErrorCode.coordinator_not_available
        gateway.fail = lambda _when: None
        assert "a" in gateway.group.members
        await wait(3 * SESSION)
        assert not gateway.group.members
        await gateway.consumers.close()

    run(main())


# Kinds, commits -------------------------------------------------------------------------------------------------------


def test_a_group_of_another_kind(world: World) -> None:
    world.do(JoinGroup("g", "n", (("t", 4),)))

    async def main() -> None:
        gateway = Gateway(world)
        assert code(await Client(gateway, "a").join()) is ErrorCode.inconsistent_group_protocol
        assert code(await Client(gateway, "n", epoch=1).beat()) is ErrorCode.unknown_member_id

    run(main())


def test_the_membership_of_who_asks_for_offsets(world: World) -> None:
    async def main() -> None:
        gateway = Gateway(world)
        await Client(gateway, "a").join()
        check_epoch_of_fetch(gateway.group, "a", 1)
        check_epoch_of_fetch(gateway.group, None, -1)
        check_epoch_of_fetch(Group(), "nobody", 7)
        for member_id, epoch, expected in (
            ("a", 0, ErrorCode.stale_member_epoch),
            ("b", 1, ErrorCode.unknown_member_id),
            (None, 1, ErrorCode.unknown_member_id),
        ):
            with pytest.raises(RefusedError) as raised:
                check_epoch_of_fetch(gateway.group, member_id, epoch)
            assert raised.value.code is expected

    run(main())


def test_properties_that_exclude_each_other() -> None:
    with pytest.raises(InvalidConfigError):
        Properties.from_mapping({"group.consumer.heartbeat.interval.ms": "45000"})
    with pytest.raises(InvalidConfigError):
        Properties.from_mapping({"group.consumer.session.timeout.ms": "1800001"})


class Crowd:
    """Clients that come and go at two gateways, at random."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.rng = rng
        self.gateways = [Gateway(world), Gateway(world)]
        self.clients: list[Client] = []
        self._numbers = itertools.count()

    async def step(self) -> None:
        """One client does something."""
        if not self.clients or self.rng.random() < 0.15:
            await self._come()
            return
        client = self.rng.choice(self.clients)
        match self.rng.choice(["beat", "beat", "beat", "move", "leave", "die"]):
            case "beat":
                await self.beat(client)
            case "move":  # As when its gateway has died.
                client.gateway = self.rng.choice(self.gateways)
                await self._heed(client, await client.join())
            case "leave":
                self.clients.remove(client)
                for_now = client.instance_id is not None and self.rng.random() < 0.5
                await client.beat(member_epoch=-2 if for_now else -1)
            case "die":
                self.clients.remove(client)

    async def _come(self) -> None:
        number = next(self._numbers)
        by_name = self.rng.random() < 0.8
        client = Client(
            self.rng.choice(self.gateways),
            f"m{number}",
            ("t",) if by_name else None,
            f"i{number % 3}" if self.rng.random() < 0.3 else None,
            None if by_name else "t.*",
        )
        if code(await client.join()) is ErrorCode.none:
            self.clients.append(client)

    async def beat(self, client: Client) -> None:
        await self._heed(client, await client.release())

    async def _heed(self, client: Client, answer: dict[str, Any]) -> None:
        if code(answer) in {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}:
            client.epoch = 0
            answer = await client.join()
        if code(answer) is not ErrorCode.none:
            self.clients.remove(client)  # Its static name is another's.

    def check(self) -> None:
        """Who may commit, because it has the epoch of the chain, owns nothing that another one may own."""
        group = self.gateways[0].group
        assert group.epochs is not None
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is not None and client.epoch == group.epochs[client.member_id]:
                assert set(client.owned) <= {tp.partition for tp in member.held}


@pytest.mark.parametrize("seed", range(30))
def test_members_that_come_and_go_at_two_gateways_share_the_partitions(seed: int) -> None:
    """Both gateways believe that they coordinate, until one is left; then all partitions are owned."""
    world = World(partitions=7)
    world.blind = True
    crowd = Crowd(world, random.Random(seed))

    async def main() -> None:
        for gateway in crowd.gateways:
            gateway.consumers.take_over()
        for _ in range(60):
            await wait(crowd.rng.randrange(2 * INTERVAL))
            await crowd.step()
            crowd.check()
        last, other = crowd.gateways
        other.leads = False
        other.consumers.release()
        for _ in range(40):
            await wait(INTERVAL)
            for client in [*crowd.clients]:
                client.gateway = last
                await crowd.beat(client)
        assert owned(*crowd.clients) == (list(range(7)) if crowd.clients else [])
        assert state_of(last.group) == ("Stable" if crowd.clients else "Empty")
        for gateway in crowd.gateways:
            await gateway.consumers.close()

    run(main())
