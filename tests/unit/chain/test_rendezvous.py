"""Where processes of one machine meet: real Unix sockets, in a folder of one user."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.helpers.shell import in_threads
from txnstore.chain.committer import rendezvous as module
from txnstore.chain.committer.channel import Channel
from txnstore.chain.committer.rendezvous import Listener, Met, UnixSockets, default_folder, rendezvous

NAME = "0123456789abcdef"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the folders of pytest do not have."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    yield made / "run"
    shutil.rmtree(made)


class Host:
    """Processes that meet, and the channels that those who listen have been given."""

    def __init__(self, folder: Path) -> None:
        self.sockets = UnixSockets(folder)
        self.served: SimpleQueue[Channel] = SimpleQueue()
        self._listeners: list[Listener] = []
        self._channels: list[Channel] = []

    def meet(self, silent: object = None) -> Met:
        met = self.sockets.meet(NAME, self.served.put, silent)
        assert met is not None
        assert (met.channel is None) is not (met.listener is None)
        if met.listener is not None:
            self._listeners.append(met.listener)
        if met.channel is not None:
            self._channels.append(met.channel)
        return met

    def listen(self, silent: object = None) -> tuple[Listener, object]:
        met = self.meet(silent)
        assert met.listener is not None
        return met.listener, met.identity

    def connect(self) -> tuple[Channel, Channel]:
        """The channels of a caller, and of the one that listens."""
        met = self.meet()
        assert met.channel is not None
        return met.channel, self.served.get(timeout=240)

    def end(self) -> None:
        for listener in self._listeners:
            listener.close()
        for channel in self._channels:
            channel.close()


@pytest.fixture
def host(folder: Path) -> Iterator[Host]:
    made = Host(folder)
    yield made
    made.end()


# Meeting --------------------------------------------------------------------------------------------------------------


def test_the_first_listens_and_the_others_connect(host: Host, folder: Path) -> None:
    listener, identity = host.listen()
    assert listener.is_current(look=True)
    for number in range(3):
        met = host.meet()
        assert met.channel is not None
        assert met.identity == identity
        met.channel.send(b"hello %d" % number)
        served = host.served.get(timeout=240)
        assert served.receive(240) == b"hello %d" % number
        served.send(b"welcome")
        assert met.channel.receive(240) == b"welcome"
    assert {each.name for each in folder.iterdir()} == {f"{NAME}.sock", "lock"}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_other_names_are_other_places(host: Host) -> None:
    host.listen()
    other = host.sockets.meet("another", host.served.put)
    assert other is not None
    assert other.listener is not None
    other.listener.close()


def test_one_of_many_that_meet_at_once_listens(host: Host) -> None:
    """The others connect to it, or come while it is about to listen."""
    found = in_threads(16, lambda _: host.sockets.meet(NAME, host.served.put))
    met = [each for each in found if isinstance(each, Met)]
    assert all(each is None or isinstance(each, Met) for each in found)
    (listener,) = [each.listener for each in met if each.listener is not None]
    assert listener.is_current(look=True)
    assert len({each.identity for each in met}) == 1
    for each in met:
        (each.channel or listener).close()


def test_who_listens_no_more_leaves_the_place_to_the_next(host: Host, folder: Path) -> None:
    listener, _ = host.listen()
    listener.close()
    assert not listener.is_current(look=True)
    assert {each.name for each in folder.iterdir()} == {"lock"}
    host.listen()
    host.connect()


def test_a_socket_that_a_dead_process_has_left_is_replaced(host: Host, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(folder / f"{NAME}.sock"))
    left.listen()
    left.close()
    listener, _ = host.listen()
    host.connect()
    assert listener.is_current(look=True)


def test_what_a_process_has_left_that_died_before_it_listened_is_replaced(host: Host, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for each in (f"{NAME}.sock", f"{NAME}.new", "lock"):
        (folder / each).touch()
    host.listen()
    host.connect()
    assert {each.name for each in folder.iterdir()} == {f"{NAME}.sock", "lock"}


def test_who_does_not_answer_is_replaced_and_notices_it(host: Host) -> None:
    silent, identity = host.listen()
    successor, other = host.listen(silent=identity)
    assert other != identity
    assert not silent.is_current(look=True)
    assert successor.is_current(look=True)
    silent.close()  # It wakes up, and must not take the place of its successor away.
    assert successor.is_current(look=True)
    assert host.meet(silent=identity).identity == other
    host.connect()


def test_who_accepts_no_connections_is_replaced_and_nobody_waits(host: Host, folder: Path) -> None:
    """A suspended process: the system keeps as many connections for it as it has asked for, and the next one waits."""
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as suspended, socket.socket(socket.AF_UNIX) as waiting:
        suspended.bind(str(folder / f"{NAME}.sock"))
        suspended.listen(0)
        waiting.connect(str(folder / f"{NAME}.sock"))
        host.listen()


def test_a_process_that_only_connects_makes_no_folder_and_does_not_listen(host: Host, folder: Path) -> None:
    for made in (False, True):
        if made:
            folder.mkdir(mode=0o700)
        assert host.sockets.meet(NAME, host.served.put, listen=False) is None
        assert folder.exists() is made
    assert list(folder.iterdir()) == []
    _, identity = host.listen()
    met = host.sockets.meet(NAME, host.served.put, listen=False)
    assert met is not None
    assert met.channel is not None
    assert met.identity == identity
    met.channel.close()
    assert host.sockets.meet(NAME, host.served.put, silent=identity, listen=False) is None


def test_only_the_one_that_did_not_answer_is_replaced(host: Host) -> None:
    _, identity = host.listen()
    successor, _ = host.listen(silent=identity)
    assert host.meet(silent=identity).channel is not None
    assert successor.is_current(look=True)


def test_nobody_listens_while_another_process_is_about_to(host: Host, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert host.sockets.meet(NAME, host.served.put) is None
    host.listen()


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o770])
def test_a_folder_that_others_can_open_is_not_used(host: Host, folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    assert host.sockets.meet(NAME, host.served.put) is None
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    host.listen()
    folder.chmod(mode)
    assert host.sockets.meet(NAME, host.served.put) is None


def test_a_link_to_a_folder_is_not_used(host: Host, folder: Path) -> None:
    target = folder.parent / "target"
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    assert host.sockets.meet(NAME, host.served.put) is None
    assert list(target.iterdir()) == []


def test_a_process_without_threads_leaves_no_socket_open(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def refuse(work: Any, _: str) -> None:
        made.append(work.func.__self__._socket)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(module, "start", refuse)
        assert host.sockets.meet(NAME, host.served.put) is None
    assert [each.fileno() for each in made] == [-1]
    host.listen()


def test_a_folder_that_cannot_be_made_is_not_used(host: Host, folder: Path) -> None:
    folder.touch()
    assert host.sockets.meet(NAME, host.served.put) is None


@pytest.mark.parametrize(("length", "fits"), [(100, True), (101, False), (400, False)])
def test_a_path_is_used_only_if_a_socket_can_have_it(folder: Path, length: int, fits: bool) -> None:
    """Also the name under which the socket is made, before it is renamed."""
    short = folder / NAME
    while len(str(short)) < length:
        short = short / ("x" * min(100, length - len(str(short)) - 1))
    sockets = UnixSockets(short.parent)
    met = sockets.meet(short.name.ljust(5, "x")[: length - len(str(short.parent)) - 1 - 5], lambda _: None)
    assert (met is not None) is fits
    if met is not None:
        assert met.listener is not None
        met.listener.close()


def test_a_mailbox_keeps_the_order_of_messages(folder: Path) -> None:
    mailbox = UnixSockets(folder).mailbox()
    assert mailbox.get(0) is None
    assert mailbox.get(-1) is None
    mailbox.put("a")
    mailbox.put("b")
    assert [mailbox.get(240), mailbox.get(0), mailbox.get(0)] == ["a", "b", None]


def test_a_check_leaves_nothing_and_says_why_processes_cannot_meet(host: Host, folder: Path) -> None:
    host.sockets.check()
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        host.sockets.check()


def test_a_caller_knows_the_process_that_listens(host: Host) -> None:
    host.listen()
    assert host.meet().process_id == os.getpid()


# Whether and where ----------------------------------------------------------------------------------------------------


def test_the_folder_is_that_of_the_session_or_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for session in (None, ""):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if session is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", session)
        assert default_folder().match("/home/x/.cache/txnstore/run-*")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_folder().match("/cache/txnstore/run-*")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert default_folder() == Path("/run/user/1/txnstore")


def test_processes_meet_in_the_folder_of_their_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    place = rendezvous()
    assert place is not None
    met = place.meet(NAME, lambda _: None)
    assert met is not None
    assert met.listener is not None
    assert (folder / "txnstore" / f"{NAME}.sock").exists()
    met.listener.close()
