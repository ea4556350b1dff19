"""The gateways of a store: which of them live, and which of them leads a chain.

Leaders keep the caches of clients in one place, and the writers of a chain few: its commits then share entries. Nothing
depends on them: any gateway serves any request but those of group members, and where two gateways both believe that
they coordinate a group, the chain decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.wire import PREFIX
from txnstore.phrases import address_text

_LOG = logging.getLogger(__name__)

#: Seconds between two requests to a peer, and for its response.
_INTERVAL = 1.0
#: Seconds without a response after which a peer counts as dead.
_DEAD_AFTER = 3.0
#: Seconds after its last response for which clients, but those of Java, still get the address of a peer. librdkafka
#: waits without end in ``send_offsets_to_transaction`` if a coordinator that it knows leaves its metadata before it has
#: looked for the next one, which it does when it sends offsets.
_LISTED_AFTER_END = 60.0
#: The client software that a gateway gives when it asks another one; as its version it gives its store.
SOFTWARE = "txnstore-gateway"
#: The correlation id of these requests.
_CORRELATION_ID = (1).to_bytes(4, "big")
#: The start of a request of ApiVersions, version 3: the API, the version, a correlation id, no client id, no tags.
_REQUEST_START = Api.API_VERSIONS.to_bytes(2, "big") + b"\x00\x03" + _CORRELATION_ID + b"\xff\xff\x00"
#: The outcome of a request: a gateway of this store, one of another store, nothing listens, no valid response.
Answer = Literal["answered", "foreign", "refused", "silent"]
#: The first bytes of a response, its correlation id and error code, by the outcome that they mean.
_OUTCOMES: dict[bytes, Answer] = {
    _CORRELATION_ID + ErrorCode.none.to_bytes(2, "big"): "answered",
    _CORRELATION_ID + ErrorCode.inconsistent_cluster_id.to_bytes(2, "big"): "foreign",
}
#: The start of the feature by which a gateway tells another one its zone.
_RACK_FEATURE = "txnstore.rack="
#: The most bytes of a response that are read.
_MAX_RESPONSE_BYTES = 1 << 16


class Node(NamedTuple):
    """A gateway as clients see it: a broker.

    Attributes:
        node_id: The index of the gateway among the peers.
        host: The address that clients connect to.
    """

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """The address as ``HOST:PORT``."""
        return address_text(self.host, self.port)


class Peers:
    """The gateways that live, as far as this one can tell.

    Args:
        nodes: All gateways, this one included.
        own_node: This gateway, one of them.
        chains: The number of chains of the store.
        encrypted: Whether the gateways listen with TLS.
        on_change: Called when a peer has begun or ceased to answer.
        workers: How many gateways in a row are the workers of one machine.
        local: Where this machine reaches its other workers, by the address that clients connect to.
        rack: The zone of this gateway; empty: it has none. Those of the others are in their answers.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        own_node: Node,
        chains: int,
        store_id: str,
        *,
        encrypted: bool,
        on_change: Callable[[], None],
        workers: int = 1,
        local: Mapping[tuple[str, int], tuple[str, int]] | None = None,
        rack: str = "",
    ) -> None:
        self.own = own_node
        #: All gateways, whether they live or not.
        self.nodes = tuple(nodes)
        self.chains = chains
        self._other_nodes = [node for node in nodes if node != own_node]
        self._request = _identity_request(store_id)
        self.encrypted = encrypted
        self._tls = _client_context() if encrypted else None
        self._on_change = on_change
        self._workers, self._local = workers, local or {}
        #: The zone of each gateway that has one, as it said last.
        self._racks = {own_node: rack} if rack else {}
        #: Changes with the zones.
        self.racks_changed = 0
        #: The time of each peer's last response, by the clock of the loop; without peers that have refused since.
        self._last_answers: dict[Node, float] = {}
        #: The peers that serve another store.
        self._foreign_nodes: set[Node] = set()
        #: The time of each peer's last response, or of the start.
        self._last_contacts: dict[Node, float] = {}
        self._ask_task: asyncio.Task[None] | None = None
        #: The gateways that live, by their place.
        self.live: tuple[Node, ...] = (own_node,)

    async def start(self) -> None:
        """Ask all peers once, then every second.

        Raises:
            InvalidConfigError: One of them serves another store.
        """
        self._last_contacts = dict.fromkeys(self._other_nodes, asyncio.get_running_loop().time())
        if len(self.nodes) // self._workers > self.chains:
            extra = {"gateways": [node.address for node in self.nodes], "chains": self.chains}
            _LOG.warning("the store has fewer chains than gateways, so some lead nothing", extra=extra)
        if self._other_nodes:
            await self._ask_all()
            if self._foreign_nodes:
                names = ", ".join(node.address for node in sorted(self._foreign_nodes))
                raise InvalidConfigError(f"{names} serves another store: peers are the gateways of one store")
            self._ask_task = asyncio.get_running_loop().create_task(self._ask_periodically())

    async def close(self) -> None:
        """Stop asking the peers."""
        if self._ask_task is not None:
            self._ask_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._ask_task

    def listed(self) -> tuple[Node, ...]:
        """The gateways that metadata lists: those that live, and those that may have lived a minute ago."""
        now = asyncio.get_running_loop().time()
        return tuple(
            node
            for node in sorted({*self._other_nodes, self.own})
            if node in self.live or now - self._last_contacts.get(node, -_LISTED_AFTER_END) < _LISTED_AFTER_END
        )

    def rack(self, node: Node) -> str | None:
        """The zone of a gateway; None: it has none, or it is not known."""
        return self._racks.get(node)

    def in_rack(self, rack: str | None) -> tuple[Node, ...]:
        """The gateways that live in a zone; empty without a zone."""
        return tuple(node for node in self.live if rack and self._racks.get(node) == rack)

    def leader(self, chain: int, name: str = "", number: int = 0, rack: str | None = None) -> Node:
        """The gateway that leads what has this name in a chain: a group, or the partition of this number of a topic.

        With a zone: the one that does for clients of this zone, if a gateway of it lives. Not for groups, whose members
        must meet.

        Where there are fewer chains than gateways, a chain is led by a machine, whose workers share its entries: each
        of them leads a part.
        """
        live = self.in_rack(rack) or self.live
        if self._workers == 1 or self.chains >= len(self.nodes):
            return _leaders(live, self.chains)[chain]
        first_workers = (node.node_id - node.node_id % self._workers for node in live)
        machines = tuple(self.nodes[node_id] for node_id in dict.fromkeys(first_workers))
        machine = _leaders(machines, self.chains)[chain].node_id // self._workers
        workers = _ranked(tuple(node for node in live if node.node_id // self._workers == machine), name)
        return workers[number % len(workers)]

    async def confirm(self, names: Collection[tuple[int, str]]) -> None:
        """Ask the leaders of these chains and names again, so that a gateway that has ended does not lead any more.

        Clients look for a coordinator within milliseconds after they have lost one. The next round of requests may be
        a second away, and some clients stop after two wrong answers.
        """
        confirmed = {self.own}
        while leaders := {self.leader(chain, name) for chain, name in names} - confirmed:
            self._record_answers(dict(zip(leaders, await asyncio.gather(*map(self._ask, leaders)), strict=True)))
            confirmed |= leaders

    async def _ask_periodically(self) -> None:
        """Ask all peers every second, whatever the errors."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self._ask_all()
            except Exception as error:  # noqa: BLE001 - The next round may do better; without it dead peers lead on.
                _LOG.exception("the peers cannot be asked", extra={"error": repr(error)})

    async def _ask_all(self) -> None:
        answers = await asyncio.gather(*map(self._ask, self._other_nodes))
        self._record_answers(dict(zip(self._other_nodes, answers, strict=True)))

    def _record_answers(self, answers: Mapping[Node, Answer]) -> None:
        """Update by these answers which gateways live, and report a change."""
        now = asyncio.get_running_loop().time()
        for node, answer in answers.items():
            if answer == "answered":
                self._last_answers[node] = self._last_contacts[node] = now
                self._foreign_nodes.discard(node)
            elif answer != "silent":  # It has ended for sure, so clients need not wait for _DEAD_AFTER.
                self._last_answers.pop(node, None)
            if answer == "foreign":
                self._last_contacts.pop(node, None)
                if node not in self._foreign_nodes:
                    self._foreign_nodes.add(node)
                    _LOG.error("a peer serves another store", extra={"address": node.address})
        answering = {node for node, answered_at in self._last_answers.items() if now - answered_at < _DEAD_AFTER}
        live = tuple(sorted(answering | {self.own}))
        if live != self.live:
            _LOG.info("live gateways changed", extra={"gateways": [node.address for node in live]})
            self.live = live
            self._on_change()

    async def _ask(self, node: Node) -> Answer:
        """Send a peer a request, and return what came of it within :data:`_INTERVAL` seconds."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_INTERVAL):
                reader, writer = await self._connect(node)
                writer.write(self._request)
                (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                response = await reader.readexactly(min(max(size, 0), _MAX_RESPONSE_BYTES))
                answer = _OUTCOMES.get(response[:6], "silent")  # Something else may listen there.
                if answer == "answered":
                    self._record_rack(node, response)
                return answer
        except ConnectionRefusedError:
            return "refused"
        except (OSError, asyncio.IncompleteReadError):
            return "silent"
        finally:
            if writer is not None:
                writer.close()

    def _record_rack(self, node: Node, response: bytes) -> None:
        """Record the zone that a gateway has said in its answer, if it has one."""
        rack = rack_in(response)
        if rack != self._racks.get(node):
            self._racks = {node_id: zone for node_id, zone in {**self._racks, node: rack}.items() if zone}
            self.racks_changed += 1

    async def _connect(self, node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address of a peer that accepts: a name such as ``localhost`` may have several.

        Raises:
            ConnectionRefusedError: None does, and one of them refuses: the errors of the others, such as those of IPv6
                on a machine without it, do not matter.
            OSError: None does.
        """
        loop = asyncio.get_running_loop()
        host = node.host if self.encrypted else None
        errors: list[OSError] = []
        place = self._local.get((node.host, node.port), (node.host, node.port))
        for *_, address in await loop.getaddrinfo(*place, type=socket.SOCK_STREAM):
            try:
                return await asyncio.open_connection(*address[:2], ssl=self._tls, server_hostname=host)
            except OSError as error:
                errors.append(error)
        raise min(errors, key=lambda error: not isinstance(error, ConnectionRefusedError))


def rack_feature(rack: str) -> dict[str, object]:
    """What an answer to another gateway has among its features: they know no field for a zone."""
    return {"name": f"{_RACK_FEATURE}{rack}", "min_version": 0, "max_version": 0}


def rack_in(response: bytes) -> str:
    """The zone in an answer of a gateway; empty if it has none."""
    read: Any = entity_reader(load_response_schema(Api.API_VERSIONS, 3))
    try:
        body, _ = read(response, len(_CORRELATION_ID))
    except Exception:  # noqa: BLE001 - Another release answers in another form: it lives, and has no zone.
        return ""
    names = [feature.name for feature in body.supported_features]
    return next((name.removeprefix(_RACK_FEATURE) for name in names if name.startswith(_RACK_FEATURE)), "")


def _identity_request(store_id: str) -> bytes:
    """A request of ApiVersions that names this software and, as its version, the store."""
    strings = b"".join(bytes((len(text) + 1,)) + text for text in (SOFTWARE.encode(), store_id.encode()))
    request = _REQUEST_START + strings + b"\x00"
    return PREFIX.pack(len(request)) + request


@lru_cache(maxsize=16)
def _leaders(live: tuple[Node, ...], chains: int) -> tuple[Node, ...]:
    """The leader of each chain: the gateway with the greatest hash that does not lead its share of chains yet.

    Each leads as many as the others, and few chains change their leader when a gateway starts or ends.
    """
    share = -(-chains // len(live))  # Rounded up.
    chain_counts = dict.fromkeys(live, 0)
    leaders: list[Node] = []
    for chain in range(chains):
        candidates = [node for node in live if chain_counts[node] < share]
        leaders.append(max(candidates, key=partial(_rendezvous_hash, chain)))
        chain_counts[leaders[-1]] += 1
    return tuple(leaders)


@lru_cache(maxsize=4096)
def _ranked(workers: tuple[Node, ...], name: str) -> tuple[Node, ...]:
    """The workers of a machine in an order of their own for each name, which loses and gains workers in place."""
    return tuple(sorted(workers, key=partial(_rendezvous_hash, name)))


def _rendezvous_hash(chain: int | str, node: Node) -> bytes:
    return hashlib.sha256(f"{node.host}:{node.port}/{chain}".encode()).digest()


def _client_context() -> ssl.SSLContext:
    """A context that checks no certificate: a peer is only asked whether it answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
