"""Frames between two processes, over a socket as it is and in TLS."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import TypeAlias

import pytest

from tests.helpers.shell import in_threads
from txnstore.chain.committer import channel as module
from txnstore.chain.committer import tls
from txnstore.chain.committer.channel import MAX_FRAME, Channel, ChannelClosedError, SocketChannel
from txnstore.chain.committer.tls import Tls, make_identity

Channels: TypeAlias = tuple[SocketChannel, SocketChannel]


@pytest.fixture(params=["plain", "tls"])
def channels(request: pytest.FixtureRequest) -> Iterator[Channels]:
    """The channels of both sides."""
    ours, theirs = socket.socketpair()
    made = tls_channels(ours, theirs) if request.param == "tls" else (SocketChannel(ours), SocketChannel(theirs))
    yield made
    for channel in made:
        channel.close()


def tls_channels(ours: socket.socket, theirs: socket.socket) -> Channels:
    """Channels in TLS: of a caller, and of the one that listens."""
    identity = make_identity()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(lambda: Tls.accepted(theirs, identity))
        client = Tls.connected(ours, identity.fingerprint)
        return SocketChannel(ours, client), SocketChannel(theirs, server.result(240))


class Slow(socket.socket):
    """Receives nothing more, after the first flight of a handshake, before it may."""

    flights = 0

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.may_go_on = threading.Event()

    def recv(self, *arguments: int) -> bytes:
        self.flights += 1
        if self.flights == 2:
            assert self.may_go_on.wait(240)
        return super().recv(*arguments)


def test_a_frame_that_comes_with_the_end_of_the_handshake_is_received() -> None:
    """No later event of the socket would tell of it."""
    ours, other = socket.socketpair()
    theirs, identity = Slow(other), make_identity()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(lambda: Tls.accepted(theirs, identity))
        client = SocketChannel(ours, Tls.connected(ours, identity.fingerprint))
        client.send(b"first")
        theirs.may_go_on.set()
        served = SocketChannel(theirs, server.result(240))
    assert served.receive(0) == b"first"
    for channel in (client, served):
        channel.close()


@pytest.fixture
def pair() -> Iterator[tuple[SocketChannel, socket.socket]]:
    """A channel, and the socket of the other side."""
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_frames_of_many_threads_keep_their_order_and_their_bounds(channels: Channels) -> None:
    """Nobody reads while they are sent: sockets take a part of them, and the senders do not wait."""
    ours, theirs = channels
    sizes = [0, 1, 3, 4, 5, 1_000, 0, 65_536, 300_000, 5_000_000, 2]

    def send(number: int) -> None:
        for place, size in enumerate(sizes):
            ours.send(bytes((number, place)) + bytes([number]) * size)

    assert in_threads(8, send) == [None] * 8
    received: dict[int, list[bytes]] = {number: [] for number in range(8)}
    for _ in range(8 * len(sizes)):
        frame = theirs.receive(240)
        assert frame is not None
        received[frame[0]].append(frame)
    for number, frames in received.items():
        assert [len(frame) - 2 for frame in frames] == sizes
        assert [frame[1] for frame in frames] == list(range(len(sizes)))
        assert all(frame[2:] == bytes([number]) * (len(frame) - 2) for frame in frames)
    assert theirs.receive(0) is None


def test_a_frame_without_bytes_is_a_frame(channels: Channels) -> None:
    ours, theirs = channels
    ours.send(b"")
    ours.send(b"x")
    assert [theirs.receive(240), theirs.receive(240)] == [b"", b"x"]


def test_a_frame_that_arrives_in_parts(pair: tuple[SocketChannel, socket.socket]) -> None:
    channel, other = pair
    sent = (3).to_bytes(4, "big") + b"abc" + (1).to_bytes(4, "big") + b"d"
    for at in range(len(sent)):
        if at != 7:
            assert channel.receive(0) is None
        other.sendall(sent[at : at + 1])
        if at == 6:
            assert channel.receive(240) == b"abc"
    assert channel.receive(240) == b"d"


def test_a_frame_that_is_too_long_ends_the_channel(pair: tuple[SocketChannel, socket.socket]) -> None:
    channel, other = pair
    other.sendall((MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(ChannelClosedError):
        channel.receive(240)
    assert other.recv(1) == b""


def test_who_never_reads_is_left_and_the_sender_does_not_wait(
    pair: tuple[SocketChannel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT", 16)
    channel, _ = pair
    frame = bytes(1_000_000)  # More than a socket takes.
    for _ in range(16):
        channel.send(frame)
    assert channel.receive(0) is None
    channel.send(frame)
    with pytest.raises(ChannelClosedError):
        channel.receive(240)
    channel.send(frame)  # Has no effect, and raises nothing.


def _of_this_side(channel: Channel, other: socket.socket) -> None:
    channel.close()


def _of_the_other_side(channel: Channel, other: socket.socket) -> None:
    other.close()


@pytest.mark.parametrize("end", [_of_this_side, _of_the_other_side])
def test_the_end_of_a_channel_wakes_who_waits_for_a_frame(
    pair: tuple[SocketChannel, socket.socket], end: Callable[[Channel, socket.socket], None]
) -> None:
    channel, other = pair
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[bytes | None] = pool.submit(channel.receive, None)
        end(channel, other)
        with pytest.raises(ChannelClosedError):
            waiting.result(240)
    with pytest.raises(ChannelClosedError):
        channel.receive(0)
    channel.send(b"x")  # Has no effect, and raises nothing.
    channel.close()
    channel.close()


def test_the_end_of_a_channel_wakes_who_sends(pair: tuple[SocketChannel, socket.socket]) -> None:
    channel, _ = pair
    channel.send(bytes(5_000_000))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            channel._send_unsent, 0
        )  # Waits for the other side, or leaves it to the thread that does.
        channel.close()
        assert sending.result(240) is None


def test_frames_that_were_sent_before_the_end_arrive(pair: tuple[SocketChannel, socket.socket]) -> None:
    channel, other = pair
    other.sendall((1).to_bytes(4, "big") + b"a" + (9).to_bytes(4, "big") + b"cut")
    other.close()
    assert channel.receive(240) == b"a"
    with pytest.raises(ChannelClosedError):
        channel.receive(240)


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_waiting_for_a_frame_ends(pair: tuple[SocketChannel, socket.socket], seconds: float) -> None:
    channel, other = pair
    assert channel.receive(seconds) is None
    other.sendall((1).to_bytes(4, "big") + b"a")
    assert channel.receive(240) == b"a"


class Trickle:
    """A cipher of a channel to which the other side sends a byte, each time that it has read one."""

    def __init__(self, theirs: socket.socket) -> None:
        self._theirs, self.opened = theirs, 0

    def seal(self, data: bytes) -> bytes:
        return data

    def open(self, data: bytes) -> bytes:
        self.opened += bool(data)
        assert self.opened < 100
        self._theirs.send(b"x")
        return b""


def ticking(step: float) -> Callable[[], float]:
    """A clock that goes on by ``step`` seconds at each look, from 0."""
    looks = count()
    return lambda: next(looks) * step


def test_a_process_that_sends_byte_by_byte_is_not_waited_for_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "monotonic", ticking(0.25))
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(select, "poll", lambda: Patient(ours))
    channel = SocketChannel(ours, Trickle(theirs))
    assert channel.receive(1.0) is None
    channel.close()
    theirs.close()


class Patient:
    """A poll that finds something as long as it may wait."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def register(self, sock: socket.socket, _: int) -> None:
        assert sock is self._sock

    def poll(self, timeout: float) -> bool:
        return timeout > 0


def test_a_handshake_byte_by_byte_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "monotonic", ticking(0.25))
    ours, theirs = socket.socketpair()
    ours.settimeout(1.0)
    theirs.send(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(1_000))  # Begins a hello of 16 KiB.
    monkeypatch.setattr(tls, "_READ", 1)
    with pytest.raises(TimeoutError):
        Tls.accepted(ours, make_identity())
    ours.close()
    theirs.close()
