"""Where processes of several machines meet: real sockets and TLS on the loopback, and a store in memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.helpers.keys import KEYS
from tests.helpers.shell import runtime
from txnstore._version import __version__
from txnstore.chain.codec import encode
from txnstore.chain.committer import network as module
from txnstore.chain.committer.channel import Channel, ChannelClosedError, SocketChannel
from txnstore.chain.committer.network import (
    FIRST_PAUSE_MS,
    LOOK_MS,
    MAX_PAUSE_MS,
    RETRY_MS,
    CommitterDocument,
    TcpNetwork,
    connect,
    read_announcement,
)
from txnstore.chain.committer.rendezvous import Met, UnixSockets
from txnstore.chain.committer.sharing import Address
from txnstore.chain.committer.tls import Tls, make_identity
from txnstore.chain.keys import COMMITTERS, Keys
from txnstore.errors import StorageRefusedError
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock
from txnstore.testing.faults import FaultStore

NAME = "0123456789abcdef"
HERE = Address("127.0.0.1", 0)
NOWHERE = Address("", 0)


class ReadOnly(FaultStore):
    """The objects, for a process that may not write."""

    def put(self, key: str, data: bytes) -> None:
        raise StorageRefusedError(f"no right to write {key}")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise StorageRefusedError(f"no right to create {key}")


class Machine:
    """A machine with one process, its place in the network, and the channels that it was given to serve."""

    def __init__(self, folder: Path, objects: ObjectStore, clock: ManualClock, address: Address = HERE) -> None:
        self.folder, self.objects, self.clock = folder, objects, clock
        self.network = TcpNetwork(address, objects, KEYS, runtime(clock))
        self.meetings = {chain: self.network.at(chain, UnixSockets(folder)) for chain in range(2)}
        self.served: SimpleQueue[Channel] = SimpleQueue()
        self.met: list[Met] = []

    def meet(self, chain: int = 0, silent: object = None, *, listen: bool = True) -> Met | None:
        met = self.meetings[chain].meet(f"{NAME}{chain}", self.served.put, silent, listen=listen)
        if met is not None:
            self.met.append(met)
        return met

    def listen(self, chain: int = 0, silent: object = None) -> Met:
        met = self.meet(chain, silent)
        assert met is not None
        assert met.listener is not None
        return met

    def call(self, chain: int = 0, *, listen: bool = True) -> Channel:
        met = self.meet(chain, listen=listen)
        assert met is not None
        assert met.channel is not None
        return met.channel

    def announcement(self, chain: int = 0) -> CommitterDocument | None:
        return read_announcement(self.objects, KEYS, chain)

    def end(self) -> None:
        for met in self.met:
            for each in (met.channel, met.listener):
                if each is not None:
                    each.close()
        while not self.served.empty():
            self.served.get().close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """Make machines; they have one store and one clock unless they are given another one."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))  # Short paths, which the folders of pytest do not have.
    objects, clock = MemoryStore(), ManualClock()
    made: list[Machine] = []
    for name in ("STEP_SECONDS", "PROOF_SECONDS"):
        monkeypatch.setattr(module, name, 240.0)

    def make(objects: ObjectStore = objects, address: Address = HERE) -> Machine:
        made.append(Machine(base / str(len(made)), objects, clock, address))
        return made[-1]

    yield make
    for each in made:
        each.end()
    shutil.rmtree(base)


Make = Callable[..., Machine]


def keys_of(objects: ObjectStore) -> list[str]:
    return [item.key for item in objects.list(COMMITTERS)]


def test_the_first_announces_itself_and_the_others_connect(machine: Make) -> None:
    first = machine()
    listener = first.listen().listener
    assert listener is not None
    assert listener.is_current(look=True)
    for number in range(3):
        caller = machine()
        channel = caller.call(listen=number > 0)
        assert not caller.met[0].is_near
        frame = bytes([number]) * 100_000  # More than what is taken before a caller is admitted.
        channel.send(frame)
        served = first.served.get(timeout=240)
        assert served.receive(240) == frame
        served.send(frame)
        assert channel.receive(240) == frame
        assert keys_of(first.objects) == [KEYS.committer(0)]  # What the caller created is deleted.


def test_processes_of_one_machine_meet_without_a_request(machine: Make) -> None:
    objects = FaultStore(MemoryStore())
    first = machine(objects)
    first.listen()
    second = Machine(Path(), objects, first.clock)
    second.meetings = first.meetings
    before = len(objects.requests)
    channel = second.call()
    assert len(objects.requests) == before
    channel.close()


def test_a_process_that_may_not_write_is_not_admitted(machine: Make) -> None:
    """It may read the announcement, and reach the process; both are not enough."""
    first = machine()
    first.listen()
    reader = machine(ReadOnly(first.objects))
    assert reader.meet(listen=False) is None
    assert reader.announcement() == first.announcement() is not None
    assert first.served.empty()


def test_a_process_that_creates_nothing_is_not_admitted(machine: Make) -> None:
    first = machine()
    first.listen()
    document = first.announcement()
    assert document is not None
    channel = connect(document)
    channel.send(json.dumps([__version__, KEYS.store_id, 0]).encode())
    assert channel.receive(240) is not None
    channel.send(b"")
    with pytest.raises(ChannelClosedError):
        channel.receive(240)
    assert first.served.empty()


def test_a_copy_of_the_store_has_the_announcement_and_does_not_share(machine: Make) -> None:
    first = machine()
    first.listen()
    copy = MemoryStore()
    copy.put(KEYS.committer(0), first.objects.get(KEYS.committer(0)))
    other = machine(copy)
    met = other.listen()  # It replaces the announcement, in the copy alone.
    assert met.listener is not None
    assert other.announcement() != first.announcement()
    assert first.served.empty()
    assert first.meetings[0] is not other.meetings[0]


@pytest.mark.parametrize(
    "said",
    [
        b"", b"x", b"[]", b"{}", b"[1, 2, 3]", b"\xff", b"null",
        json.dumps(["another release", KEYS.store_id, 0]).encode(),
        json.dumps([__version__, KEYS.store_id, 1]).encode(),
        json.dumps([__version__, KEYS.store_id, [0]]).encode(),
        json.dumps([__version__, "another store", 0]).encode(),
        bytes(5_000),
        b"[" * 4_000,
    ],
)  # fmt: skip
def test_who_speaks_another_language_is_left(machine: Make, said: bytes) -> None:
    first = machine()
    first.listen()
    document = first.announcement()
    assert document is not None
    channel = connect(document)
    channel.send(said)
    with pytest.raises(ChannelClosedError):
        channel.receive(240)
    machine().call()  # Others are served.
    assert first.served.get(timeout=240) is not None


def test_another_certificate_is_not_trusted(machine: Make) -> None:
    """As of a process that has the port of one that is dead, or that stands between the two."""
    first = machine()
    first.listen()
    document = first.announcement()
    assert document is not None
    forged = CommitterDocument(host=document.host, port=document.port, fingerprint="0" * 64)
    first.objects.put(KEYS.committer(0), encode(forged))
    other = machine()
    assert other.meet(listen=False) is None
    assert other.announcement() is None  # The next one does not try.
    assert first.served.empty()


def test_a_listener_cannot_choose_what_a_caller_creates(machine: Make) -> None:
    identity = make_identity()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def serve() -> bytes | None:
            sock, _ = listening.accept()
            sock.settimeout(240)
            channel = SocketChannel(sock, Tls.accepted(sock, identity))
            channel.receive(240)
            channel.send(b"../../store.json")
            with pytest.raises(ChannelClosedError):
                channel.receive(240)
            return None

        served = pool.submit(serve)
        caller = machine()
        address = listening.getsockname()
        document = CommitterDocument(host=address[0], port=address[1], fingerprint=identity.fingerprint)
        caller.objects.put(KEYS.committer(0), encode(document))
        assert caller.meet(listen=False) is None
        served.result(240)
    assert keys_of(caller.objects) == []


def test_the_announcement_of_a_dead_process_is_deleted_and_replaced(machine: Make) -> None:
    dead = machine()
    dead.listen()
    dead.end()
    assert dead.announcement() is not None
    newcomer, objects = machine(), dead.objects
    assert newcomer.meet(listen=False) is None
    assert keys_of(objects) == []
    newcomer.listen()
    machine().call()


def test_of_those_who_announce_themselves_at_once_one_listens_and_the_others_call_it(machine: Make) -> None:
    """Each has found no other one when it begins."""
    objects = MemoryStore()
    first = machine(objects)

    class Beaten(FaultStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            first.listen()
            return super().put_if_absent(key, data)

    second = machine(Beaten(objects))
    second.call()
    assert first.served.get(timeout=240) is not None
    assert second.network._port is None
    met = UnixSockets(second.folder).meet(f"{NAME}0", second.served.put, listen=False)
    assert met is None  # It listens on its machine no more, either.


def test_a_silent_process_is_replaced_and_notices_it(machine: Make) -> None:
    silent, other = machine(), machine()
    listener = silent.listen().listener
    assert listener is not None
    found = other.meet()
    assert found is not None
    successor = other.listen(silent=found.identity).listener
    assert successor is not None
    assert successor.is_current(look=True)
    assert listener.is_current(look=False)  # It costs no request to ask this.
    silent.clock.advance(LOOK_MS)
    assert not listener.is_current(look=True)
    listener.close()
    assert silent.call() is not None


def test_a_look_is_a_request_at_most_once_in_a_while(machine: Make) -> None:
    objects = FaultStore(MemoryStore())
    alone = machine(objects)
    listener = alone.listen().listener
    assert listener is not None
    before = len(objects.requests)
    for _ in range(5):
        alone.clock.advance(LOOK_MS)
        for _ in range(3):
            assert listener.is_current(look=True)
    assert len(objects.requests) == before + 5


def test_a_lone_process_looks_ever_more_rarely(machine: Make) -> None:
    objects = FaultStore(MemoryStore())
    alone = machine(objects)
    for _ in range(3):
        assert alone.meet(listen=False) is None
    assert [request.operation for request in objects.requests] == ["get"]
    looks = []
    for _ in range(600_000 // FIRST_PAUSE_MS):
        alone.clock.advance(FIRST_PAUSE_MS)
        before = len(objects.requests)
        assert alone.meet(listen=False) is None
        looks += [alone.clock()] * (len(objects.requests) - before)
    pauses = [later - earlier for earlier, later in pairwise(looks)]
    assert pauses == [min(FIRST_PAUSE_MS * 2**number, MAX_PAUSE_MS) for number in range(1, len(pauses) + 1)]
    assert pauses[-1] == MAX_PAUSE_MS


def test_the_winner_of_each_race_finds_those_that_lose(machine: Make) -> None:
    """It meets no entry of theirs, and so would never listen."""
    winner, loser = machine(), machine()
    assert winner.meet(listen=False) is None
    loser.listen()
    assert winner.meet(listen=False) is None
    winner.clock.advance(FIRST_PAUSE_MS)
    assert winner.call(listen=False) is not None


def test_a_process_that_cannot_be_reached_goes_on_and_is_not_called_again_at_once(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two finds out that the other one is there, and neither stops what it serves."""
    first, second = machine(), machine()
    one = first.listen().listener
    calls: list[CommitterDocument] = []

    def refuse(document: CommitterDocument) -> SocketChannel:
        calls.append(document)
        raise TimeoutError("no route")

    monkeypatch.setattr(module, "connect", refuse)
    two = second.listen().listener
    announced = second.announcement()
    assert one is not None
    assert two is not None
    for _ in range(RETRY_MS // LOOK_MS):
        first.clock.advance(LOOK_MS)
        assert one.is_current(look=True)
        assert two.is_current(look=True)
    assert len(calls) == 2
    assert first.announcement() == announced
    first.clock.advance(LOOK_MS)
    assert one.is_current(look=True)
    assert len(calls) == 3


def test_several_that_cannot_be_reached_are_not_called_in_turns(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, calls = machine(), list[str]()

    def refuse(document: CommitterDocument) -> SocketChannel:
        calls.append(document.fingerprint)
        raise TimeoutError("no route")

    monkeypatch.setattr(module, "connect", refuse)
    listener = alone.listen().listener
    assert listener is not None
    for look in range(10):
        alone.clock.advance(LOOK_MS)
        document = CommitterDocument(host="192.0.2.1", port=1, fingerprint=str(look % 2) * 64)
        alone.objects.put(KEYS.committer(0), encode(document))
        assert listener.is_current(look=True)
    assert calls == ["0" * 64, "1" * 64]


def test_who_cannot_be_reached_calls_and_serves_its_machine(machine: Make) -> None:
    hidden = machine(address=NOWHERE)
    listener = hidden.listen().listener
    assert listener is not None
    assert keys_of(hidden.objects) == []
    reachable = machine()
    reachable.listen()
    hidden.clock.advance(LOOK_MS)
    assert not listener.is_current(look=True)
    listener.close()
    channel = hidden.call()
    assert len(hidden.met) == 2
    channel.send(b"the one that was called before it left its place")
    assert reachable.served.get(timeout=240).receive(240) is not None
    assert reachable.served.empty()


def test_an_address_of_another_machine_serves_its_own_machine_only(machine: Make) -> None:
    wrong = machine(address=Address("192.0.2.1", 0))  # Reserved for documentation.
    assert wrong.listen().listener is not None
    assert keys_of(wrong.objects) == []


def test_a_process_that_may_not_announce_itself_serves_its_own_machine_only(machine: Make) -> None:
    wrong = machine(ReadOnly(MemoryStore()))
    assert wrong.listen().listener is not None
    assert keys_of(wrong.objects) == []
    assert wrong.network._port is None


def test_chains_share_a_port_which_ends_with_the_last(machine: Make) -> None:
    first = machine()
    listeners = [first.listen(chain).listener for chain in range(2)]
    document = first.announcement()
    assert document is not None
    assert first.announcement(1) == document
    for chain in range(2):
        channel = machine().call(chain)
        channel.send(b"%d" % chain)
        assert first.served.get(timeout=240).receive(240) == b"%d" % chain
    assert listeners[0] is not None
    listeners[0].close()
    machine().call(1)
    with pytest.raises(OSError, match="ended the connection"):
        first.network.call(0, document)
    assert listeners[1] is not None
    listeners[1].close()
    with pytest.raises(ConnectionRefusedError):
        connect(document)


def test_those_who_connect_and_say_nothing_are_bounded(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_STRANGERS", 2)
    first = machine()
    first.listen()
    document = first.announcement()
    assert document is not None
    place = document.host, document.port
    silent = [socket.create_connection(place) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:  # Many processes may begin together.
        third = pool.submit(machine().call)
        silent.pop().close()
        third.result(240).close()
    monkeypatch.setattr(module, "STEP_SECONDS", 0)
    silent.append(socket.create_connection(place))
    silent.append(socket.create_connection(place, timeout=240))
    with silent[-1] as late:
        assert late.recv(1) == b""
    for each in silent:
        each.close()


def test_a_damaged_announcement_counts_as_none(machine: Make) -> None:
    first = machine()
    first.objects.put(KEYS.committer(0), b'{"version":4}')
    assert first.announcement() is None
    assert first.listen().listener is not None
    assert first.announcement() is not None


def test_stores_have_announcements_of_their_own() -> None:
    assert Keys("0" * 36).committer(0) != Keys("1" * 36).committer(0)
    assert __version__ in KEYS.committer(0)


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "a\0b", ""])
def test_a_host_that_no_system_takes_is_one_that_is_not_reached(machine: Make, host: str) -> None:
    caller = machine()
    caller.objects.put(KEYS.committer(0), encode(CommitterDocument(host=host, port=1, fingerprint="0" * 64)))
    assert caller.meet(listen=False) is None
    assert caller.announcement() is None


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "0", "0.0", "::0"])
def test_an_address_that_means_nothing_to_others_is_not_announced(machine: Make, host: str) -> None:
    wrong = machine(address=Address(host, 0))
    assert wrong.listen().listener is not None
    assert keys_of(wrong.objects) == []
    with pytest.raises(OSError, match=r"is no name of a host|is every address"):
        wrong.network.check()


def test_a_check_whether_a_process_can_listen_leaves_nothing(machine: Make) -> None:
    for address in (HERE, NOWHERE):
        made = machine(address=address)
        made.network.check()
        assert made.network._port is None
    assert not [port for port in module._PORTS if not port._closed]


class Interrupted(FaultStore):
    """The objects, for a process that is interrupted when it announces itself."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise KeyboardInterrupt


def test_an_interrupt_while_it_announces_itself_leaves_nothing(machine: Make) -> None:
    """Else the next commit of the process would meet the process itself."""
    objects = MemoryStore()
    stopped = machine(Interrupted(objects))
    with pytest.raises(KeyboardInterrupt):
        stopped.meet()
    assert stopped.network._port is None
    assert stopped.meet(listen=False) is None
    stopped.network.objects = objects
    assert stopped.listen().listener is not None
    assert stopped.announcement() is not None


class Full(socket.socket):
    """Cannot accept its first caller, as in a process that has too many files open."""

    has_failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_a_process_that_cannot_accept_for_a_while_goes_on(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda *args, **kw: Full(fileno=create(*args, **kw).detach()))
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0)
    first = machine()
    first.listen()
    machine().call()
    assert first.served.get(timeout=240) is not None


def test_a_child_of_a_fork_does_not_keep_the_port(machine: Make) -> None:
    first = machine()
    first.listen()
    port = first.network._port
    assert port is not None
    child = os.fork()
    if not child:
        os._exit(port._socket.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    machine().call()  # What the parent serves goes on.


def test_the_key_is_in_no_file_that_is_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the process is killed before it deletes the file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda _: None)
        make_identity()
    (left,) = tmp_path.iterdir()
    assert left.stat().st_mode & 0o077 == 0
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in left.read_bytes()
    left.unlink()
    make_identity()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.touch()
    handle = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(tempfile, "mkstemp", lambda: (handle, str(path)))
    with pytest.raises(OSError, match="No space left"):
        make_identity()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    assert not path.exists()
