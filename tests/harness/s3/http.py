"""The part of HTTP/1.1 that a proxy needs: reading complete messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """The head of a request or response.

    Attributes:
        start: The first line.
        headers: The headers; names are lower case.
        raw: The bytes of the head.
    """

    start: str
    headers: dict[str, str]
    raw: bytes

    def without(self, name: str) -> Message:
        """A copy without one header."""
        lines = self.raw.split(b"\r\n")
        remaining = [line for line in lines if not line.lower().startswith(name.encode() + b":")]
        return Message(self.start, {k: v for k, v in self.headers.items() if k != name}, b"\r\n".join(remaining))


async def read_head(reader: asyncio.StreamReader) -> Message | None:
    """The next head, or None if the peer closed the connection before it."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    start, *lines = raw[:-4].decode("latin-1").split("\r\n")
    pairs = [line.split(":", 1) for line in lines]
    return Message(start, {name.strip().lower(): value.strip() for name, value in pairs}, raw)


async def body_of(message: Message, reader: asyncio.StreamReader) -> bytes:
    """The body after the head, as on the wire: a chunked one includes its chunk lines."""
    if "chunked" in message.headers.get("transfer-encoding", "").lower():
        parts: list[bytes] = []
        while True:
            line = await reader.readline()
            size = int(line.split(b";")[0], 16)
            if size == 0:
                parts.append(line)
                break
            parts += [line, await reader.readexactly(size + 2)]
        while True:  # Trailers, up to the empty line.
            line = await reader.readline()
            parts.append(line)
            if line in (b"\r\n", b""):
                return b"".join(parts)
    return await reader.readexactly(int(message.headers.get("content-length", "0")))


async def read_response(reader: asyncio.StreamReader, method: str) -> tuple[bytes, bool]:
    """The next complete response to a request with this method, and whether the connection stays open after it."""
    while True:
        head = await read_head(reader)
        if head is None:
            raise ConnectionResetError("the server closed the connection without a response")
        status = status_of(head.raw)
        if status >= 200:
            break
    keep = head.headers.get("connection", "").lower() != "close" and head.start.startswith("HTTP/1.1")
    if method == "HEAD" or status in (204, 304):
        return head.raw, keep
    if "content-length" not in head.headers and "transfer-encoding" not in head.headers:
        return head.raw + await reader.read(-1), False
    return head.raw + await body_of(head, reader), keep


def status_of(response: bytes) -> int:
    """The status code of a response."""
    return int(response.split(b" ", 2)[1])
