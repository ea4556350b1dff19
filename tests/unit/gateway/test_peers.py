"""The gateways of a store: who lives, and who leads which chain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from txnstore.errors import InvalidConfigError
from txnstore.gateway import peers as module
from txnstore.gateway.peers import Node, Peers
from txnstore.gateway.wire import PREFIX

CHAINS, STORE = 64, "store"

#: A response of a gateway of the same store: the correlation id of the request, and no error.
_RESPONSE = b"\x00\x00\x00\x01\x00\x00"


def peers(count: int, own: int = 0, on_change: Callable[[], None] = lambda: None) -> Peers:
    """Peers on addresses that answer nothing, all of them taken for alive."""
    nodes = [Node(number, f"10.0.0.{number}", 9092) for number in range(count)]
    made = Peers(nodes, nodes[own], CHAINS, STORE, encrypted=False, on_change=on_change)
    made.live = tuple(nodes)
    return made


def led(gateways: Peers) -> list[int]:
    """The leader of each chain."""
    return [gateways.leader(chain).node_id for chain in range(CHAINS)]


def test_all_gateways_agree_on_leaders() -> None:
    assert led(peers(3, own=0)) == led(peers(3, own=1)) == led(peers(3, own=2))


@pytest.mark.parametrize(("count", "chains"), [(2, 4), (2, 5), (3, 64), (5, 3), (1, 8)])
def test_each_gateway_leads_as_many_chains_as_the_others(count: int, chains: int) -> None:
    for port in range(9092, 9112):
        nodes = tuple(Node(number, "127.0.0.1", port + number) for number in range(count))
        numbers = [module._leaders(nodes, chains).count(node) for node in nodes]
        assert (sum(numbers), max(numbers)) == (chains, -(-chains // count))


def test_a_gateway_that_has_ended_gives_up_its_chains_and_few_others_move() -> None:
    before, without = led(peers(3)), peers(3)
    without.live = without.live[:2]
    after = led(without)
    moved = [chain for chain in range(CHAINS) if before[chain] != after[chain]]
    assert set(moved) >= {chain for chain in range(CHAINS) if before[chain] == 2}
    assert len(moved) <= CHAINS / 3 + 6


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that answers does so in time, however busy the machine is."""
    monkeypatch.setattr(module, "_INTERVAL", 600.0)


def _run(scenario: Callable[[socket.socket], Awaitable[None]]) -> None:
    async def with_socket() -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            await scenario(bound)

    asyncio.run(with_socket())


def test_a_peer_lives_that_answers() -> None:
    """A port that refuses does not count."""

    async def scenario(bound: socket.socket) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
            await reader.readexactly(size)
            writer.write(PREFIX.pack(len(_RESPONSE)) + _RESPONSE)
            await writer.drain()
            writer.close()

        host, port = bound.getsockname()
        own, other = Node(0, "127.0.0.1", 1), Node(1, host, port)
        changes: list[Any] = []
        gateways = Peers(
            [own, other], own, CHAINS, STORE, encrypted=False, on_change=lambda: changes.append(gateways.live)
        )
        async with await asyncio.start_server(answer, sock=bound.dup()):
            await gateways.start()
            assert gateways.live == (own, other)
        await gateways.close()
        assert changes == [(own, other)]

    _run(scenario)


def test_metadata_name_a_peer_for_a_minute_after_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads nothing by then: a client that has lost a broker from its metadata may wait for it forever."""

    async def scenario(_: socket.socket) -> None:
        own, other, third = (Node(number, "127.0.0.1", 1 + number) for number in range(3))
        gateways = Peers([own, other, third], own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        answers, now = [{other, third}, set(), set(), set()], [1000.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])

        async def ask(node: Node) -> str:
            return "answered" if node in answers[0] else "refused"

        monkeypatch.setattr(gateways, "_ask", ask)
        for seconds, living, named in [(0, 3, 3), (1, 1, 3), (59, 1, 3), (61, 1, 1)]:
            now[0] = 1000.0 + seconds
            await gateways._ask_all()
            answers.pop(0)
            assert (len(gateways.live), len(gateways.listed())) == (living, named)
            assert gateways.leader(0) in gateways.live
        await gateways.close()

    _run(scenario)


def test_a_peer_that_refuses_or_says_nothing_leads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.1)

    async def scenario(bound: socket.socket) -> None:
        host, port = bound.getsockname()  # It listens, and no thread accepts.
        own, silent, closed = Node(0, "127.0.0.1", 1), Node(1, host, port), Node(2, "127.0.0.1", 9)
        gateways = Peers([own, silent, closed], own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        await gateways.start()
        await gateways.close()
        assert gateways.live == (own,)
        assert {gateways.leader(chain) for chain in range(CHAINS)} == {own}
        assert gateways.listed() == (own, silent, closed)

    _run(scenario)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (_RESPONSE, "answered"),
        (_RESPONSE[:4] + (104).to_bytes(2, "big"), "foreign"),  # INCONSISTENT_CLUSTER_ID
        (_RESPONSE[:5], "silent"),
        (_RESPONSE[:4] + (35).to_bytes(2, "big"), "silent"),  # UNSUPPORTED_VERSION
        (bytes(6), "silent"),
        (b"HTTP/1.0 400 Bad Request", "silent"),
    ],
)
def test_only_a_response_of_a_gateway_counts(response: bytes, answer: str) -> None:
    """Another server may listen at the address of a peer: it has another correlation id, or a response without one."""

    async def scenario(bound: socket.socket) -> None:
        async def respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(PREFIX.pack(len(response)) + response)
            await writer.drain()
            writer.close()

        own, peer = Node(0, "127.0.0.1", 1), Node(1, *bound.getsockname())
        gateways = Peers([own, peer], own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        async with await asyncio.start_server(respond, sock=bound.dup()):
            assert await gateways._ask(peer) == answer

    _run(scenario)


class _Told(Peers):
    """Peers to which a test reports what the others do."""

    does: dict[Node, str]

    async def _ask(self, node: Node) -> Any:
        return self.does[node]


def test_a_peer_that_has_ended_is_dropped_sooner_than_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens where a gateway has ended; one that says nothing may be at work on another request."""
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    monkeypatch.setattr(module, "_DEAD_AFTER", 1_000.0)

    async def scenario(_: socket.socket) -> None:
        own, slow, ended = (Node(number, "127.0.0.1", number) for number in range(3))
        changed = asyncio.Event()
        gateways = _Told([own, slow, ended], own, CHAINS, STORE, encrypted=False, on_change=changed.set)
        gateways.does = dict.fromkeys((slow, ended), "answered")
        await gateways.start()
        assert list(gateways.live) == [own, slow, ended]
        changed.clear()
        gateways.does = {slow: "silent", ended: "refused"}
        await changed.wait()
        await gateways.close()
        assert list(gateways.live) == [own, slow]

    _run(scenario)


def test_what_peers_do_is_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bound: socket.socket) -> None:
        own, silent, closed = Node(0, "127.0.0.1", 1), Node(1, *bound.getsockname()), Node(2, "127.0.0.1", 9)
        gateways = Peers([own, silent, closed], own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        assert await gateways._ask(closed) == "refused"
        monkeypatch.setattr(module, "_INTERVAL", 0.1)
        assert await gateways._ask(silent) == "silent"

    _run(scenario)


def test_a_peer_has_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """``localhost`` may be ::1 first, where nothing listens, or which cannot be reached (here by a socket of IPv4)."""

    async def scenario(bound: socket.socket) -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(PREFIX.pack(8) + _RESPONSE + bytes(2))
            await writer.drain()
            writer.close()

        async def resolve(host: str, port: int, **options: Any) -> list[Any]:
            hosts = {"localhost": ["127.0.0.2", "127.0.0.1"], "ended": ["::1", "127.0.0.2", "::1"]}.get(host, [host])
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        port = bound.getsockname()[1]
        own, peer, ended = Node(0, "127.0.0.1", 1), Node(1, "localhost", port), Node(2, "ended", 9)
        gateways = Peers([own, peer, ended], own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        async with await asyncio.start_server(answer, sock=bound.dup()):
            assert [await gateways._ask(node) for node in (peer, ended)] == ["answered", "refused"]

    _run(scenario)


def test_a_gateway_where_nothing_listens_is_no_coordinator() -> None:
    """A client that has lost a coordinator asks for it sooner than the next round of questions."""

    async def scenario(_: socket.socket) -> None:
        own, first, second = nodes = [Node(number, "127.0.0.1", number) for number in range(3)]
        gateways = _Told(nodes, own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        gateways.does = dict.fromkeys((first, second), "answered")
        await gateways._ask_all()
        chain = next(chain for chain in range(CHAINS) if gateways.leader(chain) == first)
        await gateways.confirm([(chain, "")])
        assert [*gateways.live] == nodes
        gateways.does = {first: "refused", second: "silent"}
        await gateways.confirm([(chain, "")])
        assert [*gateways.live] == [own, second], "who says nothing may be at work"
        gateways.does = {second: "refused"}
        await gateways.confirm([(next(chain for chain in range(CHAINS) if gateways.leader(chain) == second), "")])
        assert [*gateways.live] == [own]
        assert [*gateways.listed()] == nodes

    _run(scenario)


def test_a_peer_of_another_store_leads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_: socket.socket) -> None:
        own, other, third = nodes = [Node(number, "127.0.0.1", number) for number in range(3)]
        gateways = _Told(nodes, own, CHAINS, STORE, encrypted=False, on_change=lambda: None)
        gateways.does = {other: "foreign", third: "answered"}
        with pytest.raises(InvalidConfigError, match=r"127.0.0.1:1 serves another store"):
            await gateways.start()
        assert gateways.live == gateways.listed() == (own, third)
        await gateways._ask_all()
        assert [record.message for record in caplog.records].count("a peer serves another store") == 1
        gateways.does[other] = "answered"  # Another gateway has its address now.
        await gateways._ask_all()
        assert gateways.live == tuple(nodes)

    _run(scenario)


# Workers --------------------------------------------------------------------------------------------------------------


def workers_of(machines: int, count: int, chains: int, live: Callable[[Node], bool] = lambda _: True) -> Peers:
    """The workers of several machines, as the first one sees them."""
    nodes = [Node(m * count + w, f"10.0.0.{m}", 9093 + w) for m in range(machines) for w in range(count)]
    made = Peers(nodes, nodes[0], chains, STORE, encrypted=False, on_change=lambda: None, workers=count)
    made.live = tuple(node for node in nodes if live(node))
    return made


def test_the_workers_of_the_machine_that_leads_a_chain_share_it() -> None:
    gateways = workers_of(2, 4, chains=2)
    machine = gateways.leader(0).host
    assert gateways.leader(1).host != machine
    assert {gateways.leader(0, "t", number).host for number in range(8)} == {machine}
    leaders = [gateways.leader(0, "t", number).node_id for number in range(8)]
    assert all(leaders.count(leader) == 2 for leader in leaders), "each leads as many as the others"
    assert len({gateways.leader(0, f"group-{number}") for number in range(50)}) == 4


def test_a_worker_that_has_ended_leads_nothing_and_its_machine_keeps_its_chain() -> None:
    before = workers_of(2, 2, chains=2)
    dead = before.leader(0, "t", 0)
    after = workers_of(2, 2, chains=2, live=lambda node: node != dead)
    assert after.leader(0, "t", 0).host == dead.host
    assert after.leader(0, "t", 0) != dead
    without_machine = workers_of(2, 2, chains=2, live=lambda node: node.host != dead.host)
    assert without_machine.leader(0, "t", 0).host != dead.host


def test_with_as_many_chains_as_workers_each_chain_has_one_writer() -> None:
    gateways = workers_of(1, 4, chains=8)
    for chain in range(8):
        assert len({gateways.leader(chain, "t", number) for number in range(8)}) == 1
    assert len({gateways.leader(chain) for chain in range(8)}) == 4


# Zones ----------------------------------------------------------------------------------------------------------------


def test_a_zone_has_leaders_of_its_own_as_long_as_a_gateway_of_it_lives() -> None:
    gateways = peers(4)
    gateways._racks = {node: "ab"[node.node_id % 2] for node in gateways.nodes}
    led_in_b = {gateways.leader(chain, rack="b").node_id for chain in range(CHAINS)}
    assert led_in_b == {1, 3}
    gateways.live = tuple(node for node in gateways.live if node.node_id != 1)
    assert {gateways.leader(chain, rack="b").node_id for chain in range(CHAINS)} == {3}
    gateways.live = gateways.live[:2]
    assert [gateways.leader(chain, rack="b") for chain in range(CHAINS)] == [
        gateways.leader(chain) for chain in range(CHAINS)
    ]


def test_what_another_release_answers_has_no_zone() -> None:
    assert module.rack_in(_RESPONSE) == ""
    assert module.rack_in(b"") == ""
