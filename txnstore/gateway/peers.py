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
from typing import Literal, NamedTuple

from kio.schema.errors import ErrorCode

from txnstore.errors import InvalidConfigError
from txnstore.gateway.apis import Api
from txnstore.gateway.wire import PREFIX

_LOG = logging.getLogger(__name__)

#: Seconds between two questions to a peer, and for its answer.
_INTERVAL = 1.0
#: Seconds without an answer after which a peer counts as dead.
_DEAD = 3.0
#: Seconds after its last answer for which clients, but those of Java, still get the name of a peer. librdkafka waits
#: without end in ``send_offsets_to_transaction`` if a coordinator that it knows leaves its metadata before it has
#: looked for the next one, which it does when it sends offsets.
_NAMED = 60.0
#: The name by which a gateway asks another one; the version of this software is its store.
SOFTWARE = "txnstore-gateway"
#: The start of a request of ApiVersions in version 3: the API, the version, a correlation id, no client id, no tags.
_START = Api.API_VERSIONS.to_bytes(2, "big") + bytes.fromhex("000300000001ffff00")
#: What a peer does when it is asked: it is a gateway of this store, or of another one; nothing listens; or nothing.
Answer = Literal["answered", "foreign", "refused", "silent"]
#: Where the code of an error is in the answer, after a correlation id; and that of a gateway of another store.
_ERROR, _OF_ANOTHER_STORE = slice(4, 6), ErrorCode.inconsistent_cluster_id.to_bytes(2, "big")


class Node(NamedTuple):
    """A gateway as clients see it: a broker.

    Attributes:
        node_id: Its index among the peers.
        host: The address that clients connect to.
    """

    node_id: int
    host: str
    port: int


class Peers:
    """The gateways that live, as far as this one can tell.

    Args:
        nodes: All gateways, this one included.
        own: This gateway.
        chains: The number of chains of the store.
        encrypted: Whether the gateways listen with TLS.
        changed: Called when a peer has begun or ceased to answer.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        own: Node,
        chains: int,
        store_id: str,
        *,
        encrypted: bool,
        changed: Callable[[], None],
    ) -> None:
        self.own = own
        #: All gateways, whether they live or not.
        self.nodes = tuple(nodes)
        self.chains = chains
        self._others = [node for node in nodes if node != own]
        self._question = _question(store_id)
        self.encrypted = encrypted
        self._tls = _client_context() if encrypted else None
        self._changed = changed
        #: When each peer answered last, by the clock of the loop; without those that have refused since.
        self._answered: dict[Node, float] = {}
        #: The peers that serve another store.
        self._foreign: set[Node] = set()
        #: When each peer answered last, or this one began to ask.
        self._heard: dict[Node, float] = {}
        self._watcher: asyncio.Task[None] | None = None
        #: The gateways that live, by their place.
        self.live: tuple[Node, ...] = (own,)

    async def start(self) -> None:
        """Ask all peers once, then every second.

        Raises:
            InvalidConfigError: One of them serves another store.
        """
        self._heard = dict.fromkeys(self._others, asyncio.get_running_loop().time())
        if len(self.nodes) > self.chains:
            extra = {"gateways": [f"{node.host}:{node.port}" for node in self.nodes], "chains": self.chains}
            _LOG.warning("the store has fewer chains than gateways, so some lead nothing", extra=extra)
        if self._others:
            await self._ask_all()
            if self._foreign:
                names = ", ".join(f"{node.host}:{node.port}" for node in sorted(self._foreign))
                raise InvalidConfigError(f"{names} serves another store: peers are the gateways of one store")
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Ask no more."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    def named(self) -> tuple[Node, ...]:
        """The gateways that the metadata names: those that live, and those that did a minute ago, for all it knows."""
        now = asyncio.get_running_loop().time()
        return tuple(
            node
            for node in sorted({*self._others, self.own})
            if node in self.live or now - self._heard.get(node, -_NAMED) < _NAMED
        )

    def leader(self, chain: int) -> Node:
        """The gateway that leads a chain."""
        return _leaders(self.live, self.chains)[chain]

    async def confirm(self, chains: Collection[int]) -> None:
        """Ask the gateways that lead these chains: one where nothing listens any more leads nothing after it.

        Clients look for a coordinator within milliseconds after they have lost one. The next round of questions may be
        a second away, and some clients stop after two wrong answers.
        """
        confirmed = {self.own}
        while asked := {self.leader(chain) for chain in chains} - confirmed:
            self._note(dict(zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True)))
            confirmed |= asked

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self._ask_all()
            except Exception as error:  # noqa: BLE001 - The next round may do better; without it dead peers lead on.
                _LOG.exception("the peers cannot be asked", extra={"error": repr(error)})

    async def _ask_all(self) -> None:
        answers = await asyncio.gather(*map(self._ask, self._others))
        self._note(dict(zip(self._others, answers, strict=True)))

    def _note(self, answers: Mapping[Node, Answer]) -> None:
        now = asyncio.get_running_loop().time()
        for node, answer in answers.items():
            if answer == "answered":
                self._answered[node] = self._heard[node] = now
                self._foreign.discard(node)
            elif answer != "silent":  # Clients need not wait to learn that it has ended.
                self._answered.pop(node, None)
            if answer == "foreign":
                self._heard.pop(node, None)
                if node not in self._foreign:
                    self._foreign.add(node)
                    _LOG.error("a peer serves another store", extra={"address": f"{node.host}:{node.port}"})
        alive = {node for node, at in self._answered.items() if now - at < _DEAD} | {self.own}
        live = tuple(sorted(alive))
        if live != self.live:
            _LOG.info("live gateways changed", extra={"gateways": [f"{node.host}:{node.port}" for node in live]})
            self.live = live
            self._changed()

    async def _ask(self, node: Node) -> Answer:
        """What a peer does within :data:`_INTERVAL` seconds."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_INTERVAL):
                reader, writer = await self._connect(node)
                writer.write(self._question)
                (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                response = await reader.readexactly(min(max(size, 0), 1 << 16))
                return "foreign" if response[_ERROR] == _OF_ANOTHER_STORE else "answered"
        except ConnectionRefusedError:
            return "refused"
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError):
            return "silent"
        finally:
            if writer is not None:
                writer.close()

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
        for *_, address in await loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM):
            try:
                return await asyncio.open_connection(*address[:2], ssl=self._tls, server_hostname=host)
            except OSError as error:
                errors.append(error)
        raise min(errors, key=lambda error: not isinstance(error, ConnectionRefusedError))


def _question(store_id: str) -> bytes:
    """A request of ApiVersions that names this software and, as its version, the store."""
    strings = b"".join(bytes((len(text) + 1,)) + text for text in (SOFTWARE.encode(), store_id.encode()))
    request = _START + strings + b"\x00"
    return PREFIX.pack(len(request)) + request


@lru_cache(maxsize=16)
def _leaders(live: tuple[Node, ...], chains: int) -> tuple[Node, ...]:
    """The leader of each chain: the gateway with the greatest hash that does not lead its share of chains yet.

    So each leads as many as the others, and few change their leader when a gateway comes or goes.
    """
    led = dict.fromkeys(live, 0)
    leaders: list[Node] = []
    for chain in range(chains):
        open_to = [node for node in live if led[node] < -(-chains // len(live))]
        leaders.append(max(open_to, key=partial(_weight, chain)))
        led[leaders[-1]] += 1
    return tuple(leaders)


def _weight(chain: int, node: Node) -> bytes:
    return hashlib.sha256(f"{node.host}:{node.port}/{chain}".encode()).digest()


def _client_context() -> ssl.SSLContext:
    """A context that checks no certificate: a peer is only asked whether it answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
