"""The gateways of a store: which of them live, and which of them leads a chain.

Leaders keep the caches of clients in one place, and the writers of a chain few: its commits then share entries. Nothing
depends on them: any gateway serves any request but those of group members, and where two take themselves for the
coordinator of a group, the chain decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from txnstore.gateway.apis import Api
from txnstore.gateway.wire import PREFIX

_LOG = logging.getLogger(__name__)

#: Seconds between two questions to a peer, and for its answer.
_INTERVAL = 1.0
#: Seconds without an answer after which a peer counts as dead.
_DEAD = 3.0
#: Seconds after its last answer for which clients are still told of a peer. librdkafka waits for ever in
#: ``send_offsets_to_transaction`` if it loses a coordinator from its metadata before it has looked for the next one.
_NAMED = 60.0
#: A request of ApiVersions in version 0, whose fields are the API, the version, a correlation id and no client id.
_QUESTION = bytes.fromhex("0000000a") + Api.API_VERSIONS.to_bytes(2, "big") + bytes.fromhex("000000000001ffff")


class Node(NamedTuple):
    """A gateway as clients see it: a broker.

    Attributes:
        node_id: Its place among the peers.
        host: The address that clients connect to.
        port: The port.
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
        changed: Called when a peer has come or gone.
    """

    def __init__(
        self, nodes: Sequence[Node], own: Node, chains: int, *, encrypted: bool, changed: Callable[[], None]
    ) -> None:
        self.own = own
        #: All gateways, whether they live or not.
        self.nodes = tuple(nodes)
        self.chains = chains
        self._others = [node for node in nodes if node != own]
        self.encrypted = encrypted
        self._tls = _client_context() if encrypted else None
        self._changed = changed
        #: When each peer answered last, by the clock of the loop; without those that have refused since.
        self._answered: dict[Node, float] = {}
        #: When each peer answered last, or this one began to ask.
        self._heard: dict[Node, float] = {}
        self._watcher: asyncio.Task[None] | None = None
        #: The gateways that live, by their place.
        self.live: tuple[Node, ...] = (own,)

    async def start(self) -> None:
        """Ask all peers once, then every second."""
        self._heard = dict.fromkeys(self._others, asyncio.get_running_loop().time())
        if self._others:
            await self._ask_all()
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Ask no more."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    def named(self) -> tuple[Node, ...]:
        """The gateways that clients are told of: those that live, and those that did a minute ago, for all it knows."""
        now = asyncio.get_running_loop().time()
        return tuple(
            node
            for node in sorted({*self._others, self.own})
            if node in self.live or now - self._heard.get(node, -_NAMED) < _NAMED
        )

    def leader(self, chain: int) -> Node:
        """The gateway that leads a chain: of those that live the one with the greatest hash, so few change with one."""
        return max(self.live, key=lambda node: hashlib.sha256(f"{node.host}:{node.port}/{chain}".encode()).digest())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self._ask_all()
            except Exception as error:  # noqa: BLE001 - The next round may do better; without it dead peers lead on.
                _LOG.exception("the peers cannot be asked", extra={"error": repr(error)})

    async def _ask_all(self) -> None:
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*map(self._ask, self._others))
        now = loop.time()
        for node, answer in zip(self._others, answers, strict=True):
            if answer == "answered":
                self._answered[node] = self._heard[node] = now
            elif answer == "refused":  # Nothing listens there, so clients need not wait to learn that it has ended.
                self._answered.pop(node, None)
        alive = {node for node, at in self._answered.items() if now - at < _DEAD} | {self.own}
        live = tuple(sorted(alive))
        if live != self.live:
            _LOG.info("live gateways changed", extra={"gateways": [f"{node.host}:{node.port}" for node in live]})
            self.live = live
            self._changed()

    async def _ask(self, node: Node) -> Literal["answered", "refused", "silent"]:
        """What a peer does within :data:`_INTERVAL` seconds."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_INTERVAL):
                reader, writer = await asyncio.open_connection(node.host, node.port, ssl=self._tls)
                writer.write(_QUESTION)
                (size,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                await reader.readexactly(min(max(size, 0), 1 << 16))
                return "answered"
        except ConnectionRefusedError:
            return "refused"
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError):
            return "silent"
        finally:
            if writer is not None:
                writer.close()


def _client_context() -> ssl.SSLContext:
    """A context that checks no certificate: a peer is asked for an answer, and told and believed nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
