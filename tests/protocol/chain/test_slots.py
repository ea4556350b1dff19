"""The slot protocol, case by case: what the bucket holds before and after one commit (OBJ-02, OBJ-03, OBJ-04, OBJ-09).

``["a", "b"]`` is a bucket whose entry 1 creates topic ``a`` and whose entry 2 creates ``b``. Our process knows entry 1
and offers "ours" to slot 2; ``theirs`` is a process that shares nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.shell import a_chain, entries, names_in_bucket, topic
from txnstore.chain.chain import Chain
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.errors import (
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
    TopicExistsError,
    UnknownOutcomeError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.testing import Fault, FaultStore, on
from txnstore.testing.faults import Plan, no_faults


class Bucket(MemoryStore):
    """A bucket that once says wrongly that a name is taken, as after a 409 for another writer, which then failed."""

    taken_for_once = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.taken_for_once:
            self.taken_for_once = False
            return False
        return super().put_if_absent(key, data)


class World:
    """Our chain behind faults, their chain without, one bucket."""

    def __init__(self, ours: Chain, theirs: Chain, faults: FaultStore, inner: Bucket) -> None:
        self.ours, self.theirs, self.faults, self.inner = ours, theirs, faults, inner

    def commit(self, name: str) -> CatalogTopic:
        created: CatalogTopic = self.ours.submit(CreateTopic(topic(name)))
        return created

    def they_commit(self, name: str) -> None:
        self.theirs.submit(CreateTopic(topic(name)))

    def requests(self, since: int = 0) -> list[str]:
        """Our requests for slot 2 and later ones, by kind; ``sync``, a flush, is one on a file system only."""
        return [request.operation for request in self.faults.requests[since:]]

    @property
    def bucket(self) -> list[str]:
        return names_in_bucket(self.faults.inner)


@pytest.fixture
def world() -> Iterator[World]:
    inner = Bucket()
    faults = FaultStore(inner)
    with a_chain(inner) as theirs:
        theirs.submit(CreateTopic(topic("a")))
        with a_chain(faults) as ours:
            assert ours.state.sequence == 1
            faults._requests.clear()
            yield World(ours, theirs, faults, inner)


def first(*plans: Plan) -> Plan:
    """The first plan that has a fault for the request."""
    return lambda n, operation, key: next((fault for plan in plans if (fault := plan(n, operation, key))), None)


# One attempt ----------------------------------------------------------------------------------------------------------


def test_s01_created(world: World) -> None:
    """[a] -> [a, ours]: one request, no read before it and none after."""
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent"]
    assert world.ours.state.sequence == 2


def test_s02_exists_and_is_ours(world: World) -> None:
    """[a] -> [a, ours]: our create was repeated below us and answered 412; the slot holds our bytes."""
    world.faults.plan = on(Fault.EXISTS_412, "put_if_absent")
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get"]


def test_s03_exists_and_is_of_another_writer(world: World) -> None:
    """[a, theirs] -> [a, theirs, ours]: a lost race costs one more PUT and one GET."""
    world.they_commit("theirs")
    world.commit("ours")
    assert world.bucket == ["a", "theirs", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent"]
    assert world.ours.metrics.conflicts == 1
    assert set(world.ours.state.topics) == {"a", "theirs", "ours"}


def test_s04_unknown_then_found_applied(world: World) -> None:
    """[a] -> [a, ours]: the answer is lost, and the read-back finds our bytes; a second answer says that they stay."""
    world.faults.plan = on(Fault.LOST_RESPONSE, "put_if_absent")
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent"]
    assert world.ours.metrics.unknown_outcomes == 1


def test_s05_unknown_then_not_found_then_repeated(world: World) -> None:
    """[a] -> [a, ours]: nothing arrived, so the same bytes go to the same slot again."""
    world.faults.plan = on(Fault.ERROR_BEFORE, "put_if_absent")
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent"]


def test_s06_a_late_duplicate_of_a_decided_entry_changes_nothing(world: World) -> None:
    """[a] -> [a, ours] -> the delayed first PUT arrives -> [a, ours]."""
    world.faults.plan = on(Fault.LATE, "put_if_absent")
    world.commit("ours")
    before = entries(world.faults.inner)
    assert world.faults.release() == 1
    assert entries(world.faults.inner) == before
    assert world.bucket == ["a", "ours"]


def test_s07_late_put_between_read_back_and_next_attempt(world: World) -> None:
    """[a] -> our PUT is late, the read finds nothing, the PUT lands, the second offer gets "exists" -> [a, ours]."""

    def plan(n: int, operation: str, key: str) -> Fault | None:
        if n == 1:
            return Fault.LATE
        if n == 3:
            # Before the second offer reaches the store, the first one does.
            faults, world.faults._late = world.faults._late, []
            for arrive in faults:
                arrive()
        return None

    world.faults.plan = plan
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent", "get"]


@pytest.mark.parametrize("fault", [Fault.CONFLICT_409, Fault.UNAVAILABLE_503], ids=lambda fault: fault.value)
def test_s08_transient_error_is_not_a_lost_race(world: World, fault: Fault) -> None:
    """[a] -> [a, ours]: 409 and 503 mean "again", with the same bytes (OBJ-04)."""
    world.faults.plan = on(fault, "put_if_absent", times=3)
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.ours.metrics.conflicts == 0


def test_s09_exists_but_the_read_finds_nothing_yet(world: World) -> None:
    """[a] -> [a, ours]: "exists" and then 404 is transient, as with a 409 for another writer, which then fails."""
    world.inner.taken_for_once = True
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent"]


def test_s10_the_read_back_fails_too(world: World) -> None:
    """[a] -> [a, ours]: lost answer, failed read; the next offer gets "exists", the next read finds ours."""
    world.faults.plan = first(on(Fault.LOST_RESPONSE, "put_if_absent"), on(Fault.ERROR_BEFORE, "get"))
    world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.requests() == ["put_if_absent", "get", "put_if_absent", "get"]


# Refused --------------------------------------------------------------------------------------------------------------


class Refusing(MemoryStore):
    """Refuses creates, as S3 does with wrong credentials; the first ``unknown_first`` have an unknown outcome."""

    def __init__(self, unknown_first: int = 0) -> None:
        super().__init__()
        self.refusing = False
        self.unknown = unknown_first

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.refusing:
            if self.unknown:
                self.unknown -= 1
                raise UnknownOutcomeError("the connection was cut")
            raise StorageRefusedError("403")
        return super().put_if_absent(key, data)


def test_s11_definite_error_before_any_unknown_outcome_is_final() -> None:
    """STM-05, REC-08: [a] -> StorageRefusedError -> [a]; the next commit does not bring the refused one back."""
    inner = Refusing()
    with a_chain(inner) as chain:
        chain.submit(CreateTopic(topic("a")))
        inner.refusing = True
        with pytest.raises(StorageRefusedError, match="403"):
            chain.submit(CreateTopic(topic("refused")))
        assert names_in_bucket(inner) == ["a"]
        assert chain.state.sequence == 1
        inner.refusing = False
        chain.submit(CreateTopic(topic("next")))
        assert names_in_bucket(inner) == ["a", "next"]


def test_s12_definite_error_after_an_unknown_outcome_is_unknown() -> None:
    """REC-08: [a] -> unknown, then finally refused -> UnknownOutcomeError: the first offer may have been accepted."""
    inner = Refusing(unknown_first=1)
    with a_chain(inner) as chain:
        chain.submit(CreateTopic(topic("a")))
        inner.refusing = True
        with pytest.raises(UnknownOutcomeError, match=r"00002\.json on memory") as raised:
            chain.submit(CreateTopic(topic("ours")))
        assert isinstance(raised.value.__cause__, StorageRefusedError)
        assert names_in_bucket(inner) == ["a"]
        # The next call settles it first: the entry gets its slot after all, and then the next one.
        inner.refusing = False
        chain.submit(CreateTopic(topic("next")))
        assert names_in_bucket(inner) == ["a", "ours", "next"]


# Undecided ------------------------------------------------------------------------------------------------------------


def undecided(world: World, fault: Fault = Fault.LATE) -> None:
    """Our offer of "ours" stays without an answer; no retry resolves its outcome."""
    world.faults.plan = first(on(fault, "put_if_absent", times=None), on(Fault.ERROR_BEFORE, "get", times=None))
    with pytest.raises(UnknownOutcomeError):
        world.commit("ours")
    world.faults.plan = no_faults


def test_s13_an_undecided_entry_that_was_applied_is_settled_by_the_next_call(world: World) -> None:
    """STM-05: [a] -> unknown -> [a, ours] -> next call -> [a, ours, next]: read back, not offered to another slot."""
    undecided(world, Fault.LOST_RESPONSE)
    assert world.bucket == ["a", "ours"]
    assert world.ours.state.sequence == 1
    world.commit("next")
    assert world.bucket == ["a", "ours", "next"]
    assert set(world.ours.state.topics) == {"a", "ours", "next"}


def test_s14_undecided_entry_that_never_arrived_is_repeated(world: World) -> None:
    """[a] -> unknown -> [a] -> next call -> [a, ours, next]; the delayed PUTs then find the slot taken."""
    undecided(world, Fault.LATE)
    assert world.bucket == ["a"]
    world.commit("next")
    assert world.bucket == ["a", "ours", "next"]
    world.faults.release()
    assert world.bucket == ["a", "ours", "next"]


def test_s15_the_same_call_again_finds_its_own_first_attempt(world: World) -> None:
    """[a] -> unknown -> [a, ours]: the caller repeats, and gets what the chain holds: the topic is there."""
    undecided(world, Fault.LOST_RESPONSE)
    with pytest.raises(TopicExistsError):
        world.commit("ours")
    assert world.bucket == ["a", "ours"]


def test_s16_another_process_takes_the_slot_of_an_undecided_entry(world: World) -> None:
    """[a] -> unknown -> [a, theirs] -> next call -> [a, theirs, next]: ours lost, and the late PUTs stay out."""
    undecided(world, Fault.LATE)
    world.they_commit("theirs")
    world.commit("next")
    assert world.bucket == ["a", "theirs", "next"]
    world.faults.release()
    assert world.bucket == ["a", "theirs", "next"]
    assert set(world.ours.state.topics) == {"a", "theirs", "next"}


def test_s17_a_refresh_settles_an_undecided_entry_as_well(world: World) -> None:
    """[a, ours] after an unknown outcome: a read of the slot shows our entry, an answer to a PUT that it is durable."""
    undecided(world, Fault.LOST_RESPONSE)
    since = len(world.faults.requests)
    assert world.ours.refresh().sequence == 2
    world.commit("next")
    assert world.bucket == ["a", "ours", "next"]
    *reads, repeated, read_back, last = world.requests(since)
    assert set(reads) == {"get"}
    assert (repeated, read_back) == ("put_if_absent", "get")
    assert last == "put_if_absent"


def test_s18_refresh_without_the_entry_leaves_it_undecided(world: World) -> None:
    """[a] after an unknown outcome: "not there" is no answer, because the PUT may still arrive (OBJ-03)."""
    undecided(world, Fault.LATE)
    assert world.ours.refresh().sequence == 1
    world.faults.release()
    assert world.bucket == ["a", "ours"]
    world.commit("next")
    assert world.bucket == ["a", "ours", "next"]


def test_s19_undecided_for_several_calls(world: World) -> None:
    """[a] -> unknown -> not written -> [a, ours, second]: each call works on the first attempt until it is decided."""
    undecided(world, Fault.LATE)
    world.faults.plan = on(Fault.LATE, "put_if_absent", times=None)
    with pytest.raises(StorageError, match=r"was not written: it waits for .*00002\.json") as raised:
        world.commit("never offered")
    assert type(raised.value) is StorageError
    world.faults.plan = no_faults
    world.commit("second")
    assert world.bucket == ["a", "ours", "second"]
    world.faults.release()
    assert world.bucket == ["a", "ours", "second"]


def test_s20_chain_works_after_an_interrupted_attempt(world: World) -> None:
    """[a] -> Ctrl-C while the PUT is on its way -> [a, ours] -> next call -> [a, ours, next]."""
    inner = world.faults.inner
    real = inner.put_if_absent

    def interrupted(key: str, data: bytes) -> bool:
        inner.put_if_absent = real  # type: ignore[method-assign]
        real(key, data)
        raise KeyboardInterrupt

    inner.put_if_absent = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.commit("ours")
    world.commit("next")
    assert world.bucket == ["a", "ours", "next"]


# Refusals of the protocol ---------------------------------------------------------------------------------------------


def test_s21_a_refusal_is_final_at_the_head_only(world: World) -> None:
    """[a, b] where we know [a]: what we would refuse is looked for at the head first."""
    world.they_commit("b")
    assert "b" not in world.ours.state.topics
    with pytest.raises(TopicExistsError):
        world.commit("a")
    assert set(world.requests()) == {"get", "sync"}
    assert world.requests().count("sync") == 1
    assert world.bucket == ["a", "b"]
    assert "b" in world.ours.state.topics


def test_s22_command_is_decided_again_at_the_new_head(world: World) -> None:
    """[a, ours] of another process: our create of the same topic loses slot 2, is decided again, and refused."""
    world.they_commit("ours")
    with pytest.raises(TopicExistsError):
        world.commit("ours")
    assert world.bucket == ["a", "ours"]
    assert world.ours.metrics.conflicts == 1


def test_s23_a_refusal_costs_one_get_and_no_put(world: World) -> None:
    """[a] -> [a]: nothing is written for a command that is refused. The entry that refuses it is flushed once."""
    for requests in (["get", "sync"], ["get"]):
        since = len(world.requests())
        with pytest.raises(TopicExistsError):
            world.commit("a")
        assert world.requests(since) == requests
    assert world.bucket == ["a"]


def test_s24_unreadable_head_is_not_a_refusal(world: World) -> None:
    """[a] -> StorageError: an old state does not suffice to say that a topic exists."""
    world.faults.plan = on(Fault.ERROR_BEFORE, "get")
    with pytest.raises(StorageError) as raised:
        world.commit("a")
    assert not isinstance(raised.value, ObjectNotFoundError | UnknownOutcomeError)
    assert world.bucket == ["a"]
