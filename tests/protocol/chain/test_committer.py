"""Processes that share entries: one of them commits the commands of the others (see design/committer.md)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.harness.simulation.runtime import simulated_runtime
from tests.helpers.committing import Place, Process, a_place
from tests.helpers.shell import entries, names_in_bucket
from txnstore.chain.committer.committer import MIN_PATIENCE_MS
from txnstore.core.authorization.model import Acl
from txnstore.core.model import ProducerIdentity
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import (
    InvalidConfigError,
    ReadOnlyError,
    TopicAuthorizationError,
    TopicExistsError,
    TxnStoreError,
)
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import Fault, on


@pytest.fixture
def place() -> Iterator[Place]:
    with a_place() as place:
        yield place


def carried(place: Place) -> list[str]:
    """The topics of each entry that carries commands of another process."""
    names = zip(entries(place.bucket), names_in_bucket(place.bucket), strict=True)
    return [created for entry, created in names if entry.carried]


def check_once(bucket: ObjectStore, *processes: Process) -> None:
    """Each topic was created once, those of a process in their order."""
    created = [name for names in names_in_bucket(bucket) for name in names.split("+") if name]
    for process in processes:
        own = [name for name in created if name.startswith(process.name)]
        assert own == [f"{process.name}{number}" for number in range(1, process.topics + 1)]
    assert len(created) == sum(process.topics for process in processes)


def test_one_process_commits_for_the_other_which_makes_no_request(place: Place) -> None:
    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        for _ in range(3):
            assert caller.requests(caller.create) == []
            assert f"{caller.name}{caller.topics}" in carried(place)[-1]
        metrics, of_caller = committer.store.metrics(), caller.store.metrics()
        assert metrics.carried == of_caller.handed_over >= 3
        assert (metrics.handed_over, of_caller.carried) == (0, 0)
        assert committer.chain.state == caller.chain.state
        check_once(place.bucket, committer, caller)

    place.run(script)


def test_a_newcomer_hands_over_its_first_command_without_losing_a_race(place: Place) -> None:
    """A process that wins each race of a fast chain would otherwise never learn that another one listens."""

    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        newcomer = place.process("c")
        assert "put_if_absent" not in newcomer.requests(newcomer.create)
        assert newcomer.is_shared
        assert carried(place)[-1] == "c1"
        assert newcomer.requests(newcomer.create) == []
        check_once(place.bucket, committer, caller, newcomer)

    place.run(script)


def test_a_lone_process_does_not_listen(place: Place) -> None:
    def script() -> None:
        process = place.process("a")
        process.create(3)
        assert place.machine.listeners == {}
        assert place.machine.met == 0

    place.run(script)


def test_a_consumer_learns_of_an_entry_when_its_committer_sends_it(place: Place) -> None:
    """Its next look at the head would be at 10.23 s: 0.01 + 0.02 + … + 5.12."""

    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        committer.store.create_topic("t")
        consumer = caller.store.consumer(isolation="read_uncommitted", poll_interval=100)
        consumer.assign([("t", 0)])
        producer = committer.store.producer()
        polled: list[tuple[int, object]] = []
        requests_before: list[int] = []

        def send() -> None:
            place.scheduler.sleep(6_000)
            requests_before.append(len(caller.objects.log))
            producer.send("t", b"v")
            producer.flush()

        def poll() -> None:
            polled.extend((place.scheduler.now - began, record.value) for record in consumer.poll(timeout=100))

        began = place.scheduler.now
        kinds = caller.requests(partial(place.together, send, poll))
        assert [value for _, value in polled] == [b"v"]
        assert polled[0][0] < 6_200
        assert [len(kinds)] == requests_before

    place.run(script)


def test_commands_of_both_share_an_entry(place: Place) -> None:
    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        before = len(entries(place.bucket))
        conflicts = committer.chain.metrics.conflicts + caller.chain.metrics.conflicts
        place.together(partial(committer.create, 5), partial(caller.create, 5))
        assert committer.chain.metrics.conflicts + caller.chain.metrics.conflicts == conflicts
        check_once(place.bucket, committer, caller)
        assert len(entries(place.bucket)) - before < 10

    place.run(script)


def test_a_refusal_is_decided_by_the_process_itself_at_the_head(place: Place) -> None:
    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        for name in (f"{caller.name}1", f"{committer.name}1"):
            before = len(entries(place.bucket))

            def refused(name: str = name) -> None:
                with pytest.raises(TopicExistsError):
                    caller.store.create_topic(name)

            kinds = caller.requests(refused)
            assert "get" in kinds
            assert "put_if_absent" not in kinds
            assert len(entries(place.bucket)) == before
        assert caller.is_shared
        assert caller.requests(caller.create) == []

    place.run(script)


def test_a_command_in_flight_is_committed_once_if_the_committer_closes(place: Place) -> None:
    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))

        def close_soon() -> None:
            place.scheduler.sleep(8)  # The command is in the PUT, or in the queue.
            committer.store.close()

        began = place.scheduler.now
        place.together(close_soon, caller.create)
        assert place.scheduler.now - began < MIN_PATIENCE_MS, "the end of the channel is noticed at once"
        assert not caller.is_shared
        assert "put_if_absent" in caller.requests(caller.create)
        check_once(place.bucket, committer, caller)

    place.run(script)


def test_a_refusal_is_certain_after_the_committer_has_gone(place: Place) -> None:
    """The channel has ended before the command was handed over, so nobody else can commit it."""

    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        committer.store.close()
        place.scheduler.sleep(60_000)
        with pytest.raises(TopicExistsError):
            caller.store.create_topic(f"{committer.name}1")
        caller.create()

    place.run(script)


def test_a_command_is_committed_by_its_process_if_the_storage_of_the_committer_fails(place: Place) -> None:
    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        committer.faults.plan = on(Fault.ERROR_BEFORE, "put_if_absent", times=None)
        assert "put_if_absent" in caller.requests(caller.create)
        check_once(place.bucket, committer, caller)
        assert entries(place.bucket)[-1].carried is None
        failing = committer.chain._committer
        assert failing is not None
        place.scheduler.sleep(600_000)  # Until it has given up.
        assert failing._listener is None, "it would make all callers slow"
        place.together(committer.create, caller.create)
        assert committer.is_shared, "the other one can write"
        check_once(place.bucket, committer, caller)

    place.run(script)


def test_a_command_whose_outcome_the_committer_does_not_know_is_resolved_by_its_process(place: Place) -> None:
    """The entry is stored, its response is lost: the committer says nothing but that the connection has ended."""

    def script() -> None:
        committer, caller = place.roles(place.process("a"), place.process("b"))
        lost, unread = on(Fault.LOST_RESPONSE, "put_if_absent", times=None), on(Fault.ERROR_BEFORE, "get", times=None)
        committer.faults.plan = lambda number, operation, key: (
            lost(number, operation, key) or unread(number, operation, key)
        )
        kinds = caller.requests(caller.create)
        assert "get" in kinds
        assert f"{caller.name}{caller.topics}" in carried(place)[-1]
        assert not caller.is_shared
        committer.faults.plan = lambda *_: None
        check_once(place.bucket, committer, caller)

    place.run(script)


def test_a_value_that_cannot_be_written_fails_its_command_alone(place: Place) -> None:
    """Of those that a process hands over together."""

    def script() -> None:
        _, caller = place.roles(place.process("a"), place.process("b"))
        waiters = [caller.chain.enqueue(InitProducer(name)) for name in ("x", "\ud800", "y")]
        answers: list[object] = []
        for waiter in waiters:
            try:
                answers.append(type(caller.chain.commit_queued(waiter)))
            except TxnStoreError as error:
                answers.append(type(error))
        assert answers == [ProducerIdentity, InvalidConfigError, ProducerIdentity]

    place.run(script)


def test_the_principal_travels_with_a_command(place: Place) -> None:
    """The committer has every right, and the caller one: it decides what it is refused, and the entry names it."""

    def script() -> None:
        admin, alice = place.process("a", principal="User:root"), place.process("b", principal="User:alice")
        admin.store.acls.create(Acl("User:alice", "ALLOW", "CREATE", "TOPIC", "b", "PREFIXED"))
        admin.store.acls.enable(["User:root"])
        other = place.process("c", principal="User:root")
        place.roles(admin, other)
        assert alice.requests(alice.create) != []
        for _ in range(20):
            if not alice.is_shared:
                place.together(alice.create, admin.create, other.create)
        assert alice.is_shared
        assert alice.requests(alice.create) == []
        assert entries(place.bucket)[-1].principals == [("User:alice", 1)]
        with pytest.raises(TopicAuthorizationError):
            alice.store.create_topic("x")
        assert [each.store.metrics().refusals for each in (admin, alice, other)] == [0, 1, 0]
        check_once(place.bucket, admin, alice, other)

    place.run(script)


def test_storages_of_one_name_are_not_shared(place: Place) -> None:
    """The first entry that the other process sends is not there."""
    other = MemoryStore(clock=place.clock)
    create_on(other, 1, runtime=simulated_runtime(place.scheduler, random.Random(4), place.clock)).close()
    assert other.url == place.bucket.url

    def script() -> None:
        ours = place.roles(place.process("a"), place.process("b"))
        strangers = [place.process("c", other), place.process("d", other)]
        met = place.machine.met
        for _ in range(10):
            place.together(*(each.create for each in (*ours, *strangers)))
        assert place.machine.met > met
        met = place.machine.met
        for _ in range(3):  # They have stopped looking for others.
            place.together(*(each.create for each in (*ours, *strangers)))
        assert place.machine.met == met
        check_once(place.bucket, *ours)
        check_once(other, *strangers)
        assert all(entry.carried is None for entry in entries(other))
        assert not any(each.is_shared for each in strangers)

    place.run(script)


def test_a_store_that_only_reads_meets_nobody(place: Place) -> None:
    def script() -> None:
        reader = place.process("r", read_only=True)
        assert reader.chain._committer is None
        committer, _ = place.roles(place.process("a"), place.process("b"))
        met = place.machine.met
        with pytest.raises(ReadOnlyError):
            reader.create()
        assert f"{committer.name}1" in {topic.name for topic in reader.store.topics()}
        assert place.machine.met == met

    place.run(script)


def test_each_of_the_processes_that_share_entries_may_write_the_last_checkpoint(place: Place) -> None:
    """What an entry carries for a process it has written itself: the first of them that closes writes it."""

    def script() -> None:
        committer, caller = place.roles(place.process("one"), place.process("other"))
        caller.create(10)
        written = caller.requests(caller.store.close)
        assert [kind for kind in written if kind != "get"] == ["put", "put_if_absent", "put"]
        assert set(committer.requests(committer.store.close)) == {"get"}

    place.run(script)
