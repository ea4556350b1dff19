"""What a caller learns about a command whose entry is undecided, and what nothing may offer meanwhile (OBJ-03)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.helpers.shell import Gate, GatedStore, a_chain, names_in_bucket, topic
from txnstore.chain.chain import Chain
from txnstore.core.catalog.model import CreateTopic
from txnstore.errors import StorageError, StoreError, TopicExistsError, UnknownOutcomeError
from txnstore.storage.base import Claim
from txnstore.storage.memory import MemoryStore


class InFlight(MemoryStore):
    """The caller of a create is interrupted; the request arrives at :meth:`arrive`. Later creates are refused: 503."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt: BaseException | None = None
        self.refuse = False
        self._late: list[tuple[str, bytes]] = []

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.interrupt is not None:
            error, self.interrupt = self.interrupt, None
            self._late.append((key, data))
            raise error
        if self.refuse:
            raise StorageError("503")
        return super().put_if_absent(key, data)

    def arrive(self) -> None:
        for key, data in self._late:
            super().put_if_absent(key, data)


@pytest.fixture
def bucket() -> InFlight:
    return InFlight()


@pytest.fixture
def chain(bucket: InFlight) -> Iterator[Chain]:
    with a_chain(bucket) as chain:
        chain.submit(CreateTopic(topic("a")))
        yield chain


def test_refused_repetition_of_an_interrupted_create_is_not_certain(bucket: InFlight, chain: Chain) -> None:
    """REC-08: the interrupt leaves the PUT in flight; the 503 for its repetition says nothing about it."""
    ours = CreateTopic(topic("ours"))
    bucket.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        chain.submit(ours)
    bucket.refuse = True
    with pytest.raises(UnknownOutcomeError):
        chain.submit(ours)
    with pytest.raises(StorageError, match="was not written") as raised:
        chain.submit(CreateTopic(topic("next")))
    assert type(raised.value) is StorageError
    bucket.arrive()
    bucket.refuse = False
    chain.submit(CreateTopic(topic("next")))
    assert names_in_bucket(bucket) == ["a", "ours", "next"]


def test_undecided_slot_gets_no_other_bytes(bucket: InFlight, chain: Chain) -> None:
    """OBJ-03: the refused PUT of the second call does not free the slot for a third one."""
    bucket.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        chain.submit(CreateTopic(topic("ours")))
    bucket.refuse = True
    with pytest.raises(StorageError):
        chain.submit(CreateTopic(topic("second")))
    bucket.refuse = False
    chain.submit(CreateTopic(topic("third")))
    bucket.arrive()
    assert names_in_bucket(bucket) == ["a", "ours", "third"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("the loop is closed")], ids=repr)
def test_any_error_of_a_create_leaves_its_outcome_unknown(bucket: InFlight, chain: Chain, error: Exception) -> None:
    """Only an error of the storage says that nothing happened."""
    bucket.interrupt = error
    with pytest.raises(UnknownOutcomeError, match=r"00002\.json may exist"):
        chain.submit(CreateTopic(topic("ours")))
    bucket.arrive()
    chain.submit(CreateTopic(topic("next")))
    assert names_in_bucket(bucket) == ["a", "ours", "next"]


def test_claim_is_certain_only_if_every_attempt_was_refused(bucket: InFlight) -> None:
    claim = Claim("name", b"ours")
    bucket.refuse = True
    with pytest.raises(StorageError, match="503"):
        claim.resolve(bucket, lambda _: None)
    bucket.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        claim.resolve(bucket, lambda _: None)
    with pytest.raises(UnknownOutcomeError):
        claim.resolve(bucket, lambda _: None)
    assert claim.doubtful


def test_only_commands_of_the_undecided_entry_have_an_unknown_outcome(bucket: InFlight, chain: Chain) -> None:
    bucket.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        chain.submit(CreateTopic(topic("ours")))
    bucket.refuse = True
    for _ in range(2):
        with pytest.raises(StorageError, match=r"was not written: it waits for .*00002\.json") as raised:
            chain.submit(CreateTopic(topic("never offered")))
        assert type(raised.value) is StorageError


# Readers, signal handlers ---------------------------------------------------------------------------------------------


def _hold(gated: GatedStore, chain: Chain) -> tuple[Gate, threading.Thread]:
    """A thread whose commit stands at its PUT."""
    gate = gated.hold("put_if_absent", times=1)
    work = threading.Thread(target=chain.submit, args=(CreateTopic(topic("ours")),))
    work.start()
    gate.wait_for()
    return gate, work


class Garbling(MemoryStore):
    """The answer to the next create is lost, and something else answers the GET after it."""

    garbles_next = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        created = super().put_if_absent(key, data)
        if self.garbles_next:
            raise UnknownOutcomeError("the answer is lost")
        return created

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        data = super().get(key, start, end)
        garbled, self.garbles_next = self.garbles_next, False
        return b"<html>Sign in</html>" if garbled else data


def test_bytes_that_cannot_be_read_leave_the_outcome_unknown() -> None:
    """They may be those of the process itself: the command is in the chain."""
    bucket = Garbling()
    with a_chain(bucket) as chain:
        bucket.garbles_next = True
        with pytest.raises(UnknownOutcomeError, match=r"may exist: .* truncated or altered"):
            chain.submit(CreateTopic(topic("a")))
        with pytest.raises(TopicExistsError):
            chain.submit(CreateTopic(topic("a")))
        assert names_in_bucket(bucket) == ["a"]


def test_readers_do_not_wait_for_a_writer() -> None:
    """The PUT of a commit hangs; a reader of the same process sees what others have written."""
    bucket = MemoryStore()
    gated = GatedStore(bucket)
    with a_chain(gated) as chain, a_chain(bucket) as theirs:
        gate, work = _hold(gated, chain)
        theirs.submit(CreateTopic(topic("theirs")))
        read = threading.Thread(target=chain.refresh)
        read.start()
        read.join(240)
        assert not read.is_alive()
        assert set(chain.state.topics) == {"theirs"}
        gate.open()
        work.join(240)
        assert set(chain.state.topics) == {"theirs", "ours"}
    assert names_in_bucket(bucket) == ["theirs", "ours"]


def test_reader_may_see_an_entry_before_its_own_process_gets_the_answer(bucket: InFlight) -> None:
    """The entry is stored, and its answer is under way: a reader folds it; the commit then finds it folded."""
    gated = GatedStore(bucket)

    class Answering(GatedStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            created = self.inner.put_if_absent(key, data)
            self._arrive("answer", key)
            return created

    gated = Answering(bucket)
    with a_chain(gated) as chain, a_chain(bucket) as theirs:
        gate = gated.hold("answer", times=1)
        work = threading.Thread(target=chain.submit, args=(CreateTopic(topic("ours")),))
        work.start()
        gate.wait_for()
        theirs.submit(CreateTopic(topic("theirs")))
        assert chain.refresh().sequence == 2
        gate.open()
        work.join(240)
        assert chain.state.sequence == 2
        chain.submit(CreateTopic(topic("next")))
    assert names_in_bucket(bucket) == ["ours", "theirs", "next"]


def test_nested_call_during_a_commit_is_refused() -> None:
    """A signal handler that uses the store runs inside of whatever its thread does."""
    bucket = MemoryStore()
    with a_chain(bucket) as chain:
        real, errors = bucket.put_if_absent, []

        def nested(key: str, data: bytes) -> bool:
            bucket.put_if_absent = real  # type: ignore[method-assign]
            with pytest.raises(StoreError, match="a signal handler used the store") as raised:
                chain.submit(CreateTopic(topic("nested")))
            errors.append(raised.value)
            assert chain.refresh().sequence == 0
            return real(key, data)

        bucket.put_if_absent = nested  # type: ignore[method-assign]
        chain.submit(CreateTopic(topic("ours")))
        chain.submit(CreateTopic(topic("next")))
    assert len(errors) == 1
    assert names_in_bucket(bucket) == ["ours", "next"]
