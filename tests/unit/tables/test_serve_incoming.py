"""What a connection may send, in bytes and in time of a manual clock."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator

import pytest

from txnstore.tables.serve.server import _Incoming, _TooLongError
from txnstore.testing import ManualClock


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_each_byte_of_a_request_comes_before_the_same_deadline(
    pair: tuple[socket.socket, socket.socket], clock: ManualClock
) -> None:
    """A client that sends a byte now and then gets no more time by it."""
    ours, theirs = pair
    incoming = _Incoming(ours, clock)
    incoming.wait(1000, 60.0, 20.0)
    clock.advance(59_999)
    for pause in (0, 10_000, 9_999):
        clock.advance(pause)
        theirs.sendall(b"x")
        assert incoming.read(10) == b"x"
        assert not incoming.waits
    clock.advance(1)
    theirs.sendall(b"x")
    with pytest.raises(TimeoutError):
        incoming.read(10)


def test_the_first_byte_has_a_deadline_of_its_own(
    pair: tuple[socket.socket, socket.socket], clock: ManualClock
) -> None:
    ours, theirs = pair
    incoming = _Incoming(ours, clock)
    incoming.wait(1000, 60.0, 20.0)
    clock.advance(60_000)
    theirs.sendall(b"x")
    with pytest.raises(TimeoutError):
        incoming.read(10)
    assert incoming.waits


def test_no_more_bytes_are_read_than_were_allowed(
    pair: tuple[socket.socket, socket.socket], clock: ManualClock
) -> None:
    ours, theirs = pair
    incoming = _Incoming(ours, clock)
    reader = io.BufferedReader(incoming)
    incoming.wait(10, 60.0, 20.0)
    theirs.sendall(b"x" * 25)
    assert reader.read1(100) == b"x" * 10
    with pytest.raises(_TooLongError):
        reader.read1(100)
    incoming.allow(5)
    assert reader.read1(100) == b"x" * 5
    incoming.wait(100, 60.0, 20.0)
    assert reader.read1(100) == b"x" * 10


def test_the_end_of_a_connection_is_no_byte(pair: tuple[socket.socket, socket.socket], clock: ManualClock) -> None:
    ours, theirs = pair
    incoming = _Incoming(ours, clock)
    incoming.wait(10, 60.0, 20.0)
    theirs.close()
    assert incoming.read(10) == b""
    assert incoming.waits
