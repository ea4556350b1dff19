"""What the doctor says of the processes of a machine that share entries."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.shell import runtime
from txnstore.chain.committer import committer as module
from txnstore.chain.committer.channel import Channel
from txnstore.chain.committer.committer import Place
from txnstore.chain.committer.rendezvous import UnixSockets
from txnstore.compactor import Finding, Severity
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the folders of pytest do not have."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    yield made / "run"
    shutil.rmtree(made)


@pytest.fixture
def sockets(folder: Path) -> UnixSockets:
    return UnixSockets(folder)


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(objects: MemoryStore, sockets: UnixSockets) -> Iterator[Store]:
    with create_on(objects, runtime=replace(runtime(), rendezvous=lambda: sockets)) as store:
        yield store


def findings(store: Store) -> list[Finding]:
    return [item for item in store.doctor().findings if item.section == "sharing"]


def place_of(store: Store) -> Place:
    return store._connection.chain._place()


def test_a_store_that_shares_nothing_has_no_finding() -> None:
    with create_on(MemoryStore(), runtime=runtime()) as store:
        assert findings(store) == []


def test_nothing_is_wrong_where_no_process_commits_for_others(store: Store) -> None:
    (finding,) = findings(store)
    assert finding.severity is Severity.OK
    assert "none commits for others" in finding.message


def test_the_process_that_commits_for_others_is_named(store: Store, objects: MemoryStore, sockets: UnixSockets) -> None:
    with open_on(objects, runtime=replace(runtime(), rendezvous=lambda: sockets)) as other:
        committer = other._connection.chain._committer
        assert committer is not None
        committer.join(listen=True)
        for _ in range(2):  # The question has no effect on it.
            (finding,) = findings(store)
            assert finding.severity is Severity.OK
            assert "commits to chain 0 for others" in finding.message
    (finding,) = findings(store)
    assert "none commits for others" in finding.message


def test_a_process_that_does_not_answer_is_named(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_SECONDS", 0)
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as suspended:
        suspended.bind(str(folder / f"{place_of(store).name}.sock"))
        suspended.listen()
        (finding,) = findings(store)
    assert finding.severity is Severity.NOTE
    assert "does not answer" in finding.message


def test_all_chains_are_asked_at_the_same_time(
    objects: MemoryStore, sockets: UnixSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that do not answer cost the doctor the time of one, however many chains there are."""
    monkeypatch.setattr(module, "HELLO_SECONDS", 60)
    together = threading.Barrier(3)

    def serve(channel: Channel) -> None:
        together.wait(60)
        channel.close()

    with create_on(objects, chains=3, runtime=replace(runtime(), rendezvous=lambda: sockets)) as store:
        met = [sockets.meet(chain._place().name, serve) for chain in store._connection.chains]
        listeners = [each.listener for each in met if each is not None and each.listener is not None]
        assert len(listeners) == 3
        assert [finding.severity for finding in findings(store)] == [Severity.NOTE] * 3
        assert not together.broken
        for listener in listeners:
            listener.close()


def test_a_folder_that_cannot_be_used_is_named(store: Store, folder: Path) -> None:
    folder.touch()
    (finding,) = findings(store)
    assert (finding.severity, finding.name) == (Severity.NOTE, "meeting")
    assert str(folder) in finding.message


def test_the_process_that_commits_for_other_machines_is_named(store: Store, objects: MemoryStore, folder: Path) -> None:
    """Also if the doctor's own process would not call it."""
    elsewhere = UnixSockets(folder.parent / "elsewhere")
    other_runtime = replace(runtime(), rendezvous=lambda: elsewhere)
    with open_on(objects, committer="tcp://127.0.0.1", runtime=other_runtime) as other:
        committer = other._connection.chain._committer
        assert committer is not None
        committer.join(listen=True)
        for _ in range(2):
            (finding,) = findings(store)
            assert finding.severity is Severity.OK
            assert "at 127.0.0.1:" in finding.message
            assert "also of other machines" in finding.message
    (finding,) = findings(store)
    assert finding.severity is Severity.NOTE
    assert "it has ended" in finding.message


def test_an_address_at_which_no_process_can_listen_is_named(objects: MemoryStore, sockets: UnixSockets) -> None:
    here = replace(runtime(), rendezvous=lambda: sockets)
    with create_on(objects, committer="tcp://192.0.2.1", runtime=here) as store:
        network, _ = findings(store)
        assert network.severity is Severity.NOTE
        assert "cannot commit for other machines" in network.message


def test_the_network_is_told_of_where_the_processes_of_the_machine_cannot_meet(
    objects: MemoryStore, sockets: UnixSockets, folder: Path
) -> None:
    folder.touch()
    with create_on(
        objects, committer="tcp://127.0.0.1", runtime=replace(runtime(), rendezvous=lambda: sockets)
    ) as store:
        committer = store._connection.chain._committer
        assert committer is not None
        committer.join(listen=True)
        meeting, network = findings(store)
        assert "do not meet" in meeting.message
        assert "at 127.0.0.1:" in network.message
