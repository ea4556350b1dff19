"""Processes of several machines that share entries over TCP, on real sockets: what they may, and of which store.

Each machine is a store that was opened with a runtime folder of its own. See docs/internals/design/committer.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.tables import EngineObjects, scanned, table_rows
from txnstore._version import __version__
from txnstore.chain.codec import Entry
from txnstore.chain.committer import committer as committer_module
from txnstore.chain.committer import network as network_module
from txnstore.chain.committer.committer import MAX_PUSHED
from txnstore.chain.committer.network import read_announcement
from txnstore.chain.committer.rendezvous import UnixSockets
from txnstore.chain.committer.sharing import VARIABLE
from txnstore.chain.identity import CONFIRM_MS
from txnstore.chain.keys import COMMITTERS, Keys
from txnstore.chain.payload import decode_entry
from txnstore.core.authorization.model import Acl
from txnstore.errors import StoreNotFoundError, TopicAuthorizationError, UnknownOutcomeError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

TCP = "tcp://127.0.0.1"
#: The rights of a producer of the topic.
WRITE = Acl("User:alice", "ALLOW", "WRITE", "TOPIC", "t")


class Network:
    """Machines with a process each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.opened: list[Store | OtherRelease] = []

    def machine(self, objects: ObjectStore, principal: str = "User:root", committer: str = TCP) -> Store:
        """A process on a machine of its own; each reads the clock that the test sets."""
        sockets = UnixSockets(self.folder / str(len(self.opened)))
        runtime = Runtime(clock=self.clock, sleep=lambda _: None, rendezvous=lambda: sockets)
        store = open_on(objects, principal=principal, committer=committer, runtime=runtime)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for each in self.opened:
            each.close()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Machines whose processes are never too slow for the others."""
    for name in ("MIN_PATIENCE_MS", "MAX_PATIENCE_MS"):
        monkeypatch.setattr(committer_module, name, 240_000.0)
    monkeypatch.setattr(committer_module, "HELLO_SECONDS", 240.0)
    for name in ("STEP_SECONDS", "PROOF_SECONDS"):
        monkeypatch.setattr(network_module, name, 240.0)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # Short paths, which the folders of pytest do not have.
    made = Network(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def join(store: Store) -> list[bool]:
    """Whether another process commits to each chain for this one; if not, this one listens from now on."""
    return [committer.join(listen=True) for chain in connection_of(store).chains if (committer := chain._committer)]


def met(committer: Store, *callers: Store) -> None:
    """Let the processes meet; the first one commits for the others."""
    assert not any(join(committer))
    for caller in callers:
        assert all(join(caller))


def entries(objects: ObjectStore, store: Store) -> list[Entry]:
    """All entries of all chains."""
    prefixes = [Keys(store.store_id).entries(chain.number) for chain in connection_of(store).chains]
    keys = [item.key for prefix in prefixes for item in objects.list(prefix)]
    return [decode_entry(key, objects.get(key)) for key in keys]


def values(store: Store) -> list[bytes]:
    found: list[bytes] = store.scan("t").to_table()["value"].to_pylist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
def test_a_caller_has_the_rights_of_its_principal_and_loses_them_when_they_are_revoked(
    network: Network, chains: int
) -> None:
    """The committer has every right. The one who revokes shares entries with none of them."""
    objects = MemoryStore()
    with create_on(objects, chains, principal="User:root") as store:
        for name in ("t", "u"):
            store.create_topic(name)
        store.acls.create(WRITE)
        store.acls.create(Acl("User:bob", "ALLOW", "WRITE", "TOPIC", "u"))
        store.acls.enable(["User:root"])
    root, alice, bob = (network.machine(objects, f"User:{name}") for name in ("root", "alice", "bob"))
    stranger = network.machine(objects, committer="off")
    met(root, alice, bob)
    producer, other = alice.producer(linger=None), bob.producer(linger=None)
    producer.send("t", b"1").result()
    with pytest.raises(TopicAuthorizationError, match="User:bob has no right to WRITE"):
        other.send("t", b"of bob").result()
    other.send("u", b"of bob").result()
    stranger.acls.delete(WRITE)
    before = len(entries(objects, root))
    with pytest.raises(TopicAuthorizationError, match="User:alice has no right to WRITE"):
        producer.send("t", b"too late").result()
    assert len(entries(objects, root)) == before
    stranger.acls.create(WRITE)
    producer.send("t", b"2").result()
    assert values(root) == [b"1", b"2"]
    of_alice = [entry for entry in entries(objects, root) if entry.principals == [("User:alice", 1)]]
    assert all(entry.carried for entry in of_alice)
    assert [alice.metrics().commits, bob.metrics().commits] == [0, 0]
    root.create_topic("next")  # The thread that commits for callers counts after it has answered them.
    assert root.metrics().carried == alice.metrics().handed_over + bob.metrics().handed_over == 5


def test_a_committer_of_a_store_that_was_deleted_makes_room_for_one_of_the_next_store(network: Network) -> None:
    """Its callers learn that the store is deleted; no command of theirs gets into the one that has its place."""
    objects = MemoryStore()
    with create_on(objects) as store:
        store.create_topic("t")
    old, caller, late = (network.machine(objects) for _ in range(3))
    met(old, caller, late)
    producers = [each.producer(linger=None) for each in (caller, late)]
    producers[0].send("t", b"old").result()
    address = _address(objects, old)
    objects.delete([item.key for item in objects.list("")])
    with create_on(objects) as store:
        store.create_topic("t")
    network.clock.advance(CONFIRM_MS + 1)
    for producer in producers:
        with pytest.raises((StoreNotFoundError, UnknownOutcomeError), match="was created in its place"):
            producer.send("t", b"too late").result()
    committer = network.machine(objects, committer=f"tcp://{address}")  # The machine has one port for them.
    met(committer, network.machine(objects))
    assert _address(objects, committer) == address
    assert values(committer) == []


def _address(objects: ObjectStore, store: Store) -> str:
    """Where the process listens that is announced."""
    document = read_announcement(objects, Keys(store.store_id), 0)
    assert document is not None
    return document.address


@pytest.mark.slow
@pytest.mark.parametrize("publisher", ["committer", "caller"])
def test_a_caller_publishes_what_others_have_committed_for_it(network: Network, publisher: str) -> None:
    """It knows the entries from what the committer has sent: those that are large without their records."""
    objects = EngineObjects(network.clock)
    with create_on(objects) as store:
        store.create_topic("t", partitions=2, config={"inline.bytes": 1 << 20})
        store.tables.enable("t")
    committer, caller, other = (network.machine(objects) for _ in range(3))
    met(committer, caller, other)
    publishes, producer = (committer if publisher == "committer" else caller), caller.producer("id", linger=None)
    for number, writer in enumerate((producer, other.producer("other", linger=None), producer)):
        with writer.transaction() as txn:
            for partition in range(2):
                txn.send("t", b"%d" % number * MAX_PUSHED, partition=partition)
        publishes.tables.sync()
        assert len(table_rows(publishes, "t")) == 2 * (number + 1)
        assert table_rows(publishes, "t") == scanned(other, "t")
    assert committer.metrics().carried == caller.metrics().handed_over + other.metrics().handed_over
    assert [caller.metrics().commits, other.metrics().commits] == [0, 0]
    (committer if publisher == "caller" else caller).tables.sync()
    assert publishes.tables.check(deep=True).problems == ()


#: A process of an earlier release on a machine of its own: says whether another one commits for it, and sends each line
#: that it is given. At the end it says how many commands others have carried.
_OTHER_RELEASE = """
import sys, types
sys.modules["txnstore._version"] = types.SimpleNamespace(__version__="0.1.9")
import txnstore
from txnstore.chain.committer import network
network.STEP_SECONDS = network.PROOF_SECONDS = 240.0
with txnstore.open(sys.argv[1]) as store, store.producer(linger=None) as producer:
    print(store._connection.chains[0]._committer.join(listen=True), flush=True)
    for line in sys.stdin:
        print(producer.send("t", line.strip().encode()).result().offset, flush=True)
    print(store.metrics().handed_over, flush=True)
"""


class OtherRelease:
    """A process of another release. ``is_caller``: whether another one commits for it."""

    def __init__(self, network: Network, url: str, committer: str = TCP) -> None:
        folder = str(network.folder / str(len(network.opened)))
        variables = {VARIABLE: committer, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _OTHER_RELEASE, url]
        self._process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.is_caller = self._read() == "True"
        network.opened.append(self)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def send(self, value: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value}\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> int:
        """End it, and return how many of its commands others have carried."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        handed_over = int(self._read())
        self.close()
        assert self._process.returncode == 0
        return handed_over

    def close(self) -> None:
        """End it; can be repeated."""
        with self._process:  # Closes its input, and waits.
            pass


@pytest.mark.slow
def test_processes_share_entries_with_those_of_their_own_release(network: Network, tmp_path: Path) -> None:
    """As while a fleet is upgraded. A machine has one port: the release that comes second is reached at another one."""
    url = str(tmp_path / "store")
    with txnstore.create(url) as store:
        store.create_topic("t")
    committer, caller = (network.machine(LocalStore(url)) for _ in range(2))
    met(committer, caller)
    port = f"tcp://{_address(LocalStore(url), committer)}"
    producers = [each.producer(linger=None) for each in (committer, caller)]
    hindered = OtherRelease(network, url, port)
    assert not hindered.is_caller
    assert hindered.send("a") == "0"
    assert hindered.end() == 0
    others = [OtherRelease(network, url) for _ in range(2)]
    assert [each.is_caller for each in others] == [False, True]
    offsets = [0]
    for number in range(3):
        offsets += [producer.send("t", b"%d" % number).result().offset for producer in producers]
        offsets += [int(each.send(str(number))) for each in others]
    assert offsets == list(range(13))
    keys = {Path(item.key).name for item in LocalStore(url).list(COMMITTERS)}
    assert keys == {f"0000-{release}.json" for release in (__version__, "0.1.9")}
    assert [each.end() for each in others] == [0, 4]
    assert caller.metrics().handed_over == 4
    assert values(caller) == [b"a", *(b"%d" % number for number in range(3) for _ in range(4))]
