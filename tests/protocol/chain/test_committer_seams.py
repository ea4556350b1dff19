"""What meets in the entries that processes share: commands of several processes that concern each other.

The committer takes them into one entry, in the order in which they come, or into two; the outcome is that of threads of
one process. See docs/internals/design/committer.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from tests.helpers.committing import Place, Process, a_place, answer_of
from tests.helpers.connections import connection_of
from tests.helpers.sessions import inlined
from tests.helpers.shell import entries, topic
from txnstore.admin.acls import AuthorizationSettings
from txnstore.core.authorization.changes import AUTHORIZATION
from txnstore.core.authorization.model import Acl, ChangeAcls
from txnstore.core.catalog.model import CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.groups.commands import CommitOffsets, JoinGroup, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Append
from txnstore.core.model import NO_FEATURES, Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.transactions.commands import AbortTxn, Ended, EndTxn, InitProducer
from txnstore.core.transactions.sessions import SESSIONS
from txnstore.errors import (
    IllegalGenerationError,
    InvalidProducerEpochError,
    ProducerFencedError,
    TopicAuthorizationError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer
from txnstore.snapshot import Snapshot

T = TopicPartition("t", 0)


@pytest.fixture
def place() -> Iterator[Place]:
    with a_place() as place:
        yield place


def kinds(place: Place, *, last: int = 1) -> list[list[str]]:
    """The events of the last entries."""
    return [[event.type for event in entry.events] for entry in entries(place.bucket)[-last:]]


def carried(place: Place, chain: int = 0) -> int:
    """How many commands of others the last entry carries."""
    return len(entries(place.bucket, chain)[-1].carried or ())


def meet(chain: int, *processes: Process) -> None:
    """Let processes share the entries of a chain; the first one commits for the others."""
    for process in processes:
        committer = process.connection.chains[chain]._committer
        assert committer is not None
        assert committer.join(listen=True) is (process is not processes[0])


def values(process: Process, name: str = "t", snapshot: Snapshot | None = None) -> list[bytes]:
    """The committed records that a process sees at the head, or sees in a snapshot."""
    found: list[bytes] = process.store.scan(name, snapshot=snapshot).to_table()["value"].to_pylist()
    return found


def check_all(place: Place, *processes: Process) -> None:
    """All processes know one history, which is sound."""
    for process in processes:
        process.chain.refresh()
        assert process.chain.state == processes[0].chain.state
    reader = place.process("reader", read_only=True)
    assert check_view(connection_of(reader.store).view()) == []
    assert reader.store.verify(deep=True).violations == ()


def opened(process: Process, *sent: bytes, transactional_id: str = "id") -> Producer:
    """A producer with an open transaction that has these records."""
    producer = process.store.producer(transactional_id, linger=None)
    producer.begin_transaction()
    for value in sent:
        producer.send("t", value)
    producer.flush()
    return producer


def ended(producer: Producer) -> str:
    producer.commit_transaction()
    return "committed"


# Catalog --------------------------------------------------------------------------------------------------------------

BEFORE, AFTER = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize("first", ["alter", "append"])
@pytest.mark.parametrize("together", [True, False], ids=["one entry", "two entries"])
def test_a_caller_adds_a_column_while_another_appends_rows_without_it(
    place: Place, first: str, *, together: bool
) -> None:
    """The rows have the columns of their time, whichever of the two the committer takes first."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("s", schema=BEFORE)
        producer, later = other.store.producer(linger=None), one.store.producer(linger=None)
        producer.send("s", {"n": 0}).result()

        def alter() -> list[str]:
            return [field.name for field in one.store.alter_topic("s", schema=AFTER).schema or ()]

        def append() -> int:
            return producer.send("s", {"n": 1}).result().offset

        works = (alter, append) if first == "alter" else (append, alter)
        answers = place.in_one_entry(committer, *works) if together else [work() for work in works]
        assert sorted(answers, key=str) == [1, ["n", "text"]]
        events = ["TopicAltered", "BatchesAppended"] if first == "alter" else ["BatchesAppended", "TopicAltered"]
        assert kinds(place, last=1 if together else 2) == ([events] if together else [[event] for event in events])
        assert carried(place) == (2 if together else 1)
        later.send("s", {"n": 2, "text": "new"}).result()
        assert producer.send("s", {"n": 3}).result().offset == 3
        for process in (committer, one, other):
            table = process.store.scan("s").to_table()
            assert table["n"].to_pylist() == [0, 1, 2, 3]
            assert table["text"].to_pylist() == [None, None, "new", None]
        check_all(place, committer, one, other)

    place.run(script)


@pytest.mark.parametrize("first", ["delete", "append"])
def test_a_topic_that_a_caller_deletes_takes_no_records_of_another_one_afterwards(place: Place, first: str) -> None:
    """Nor does the next topic of its name, which is made in the same entry."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producer = other.store.producer(linger=None)
        producer.send("t", b"old").result()
        again = topic("t")

        def delete() -> CatalogTopic:
            for command in (DeleteTopic("t"), CreateTopic(again)):
                one.chain.enqueue(command)
            made: CatalogTopic = one.chain.submit(CreateTopic(topic("beside")))
            return made

        def append() -> int:
            return producer.send("t", b"late").result().offset

        works = (delete, append) if first == "delete" else (append, delete)
        answers = place.in_one_entry(committer, *works)
        appended, made = (answers[1], answers[0]) if first == "delete" else answers
        assert isinstance(made, CatalogTopic)
        if first == "delete":
            assert isinstance(appended, UnknownTopicOrPartitionError)
            assert kinds(place) == [["TopicDeleted", "TopicCreated", "TopicCreated"]]
        else:
            assert appended == 1
            assert kinds(place) == [["BatchesAppended", "TopicDeleted", "TopicCreated", "TopicCreated"]]
        for process in (committer, one, other):
            process.chain.refresh()
            assert process.chain.state.topics["t"].topic_id == again.topic_id
            assert values(process) == []
        check_all(place, committer, one, other)

    place.run(script)


# Transactions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["committer", "caller"])
@pytest.mark.parametrize("first", ["abort", "end"])
def test_a_transaction_is_aborted_by_another_process_while_its_end_is_handed_over(
    place: Place, first: str, by: str
) -> None:
    """Its timeout has passed for that process. Whichever comes first decides, and the other one is answered so."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producer = opened(other, b"v")
        identity = (producer.producer_id, producer.epoch)
        aborter = committer if by == "committer" else one
        abort = partial(aborter.chain.submit, AbortTxn("id", identity, expired_only=True))
        works = (abort, partial(ended, producer)) if first == "abort" else (partial(ended, producer), abort)
        answers = place.in_one_entry(committer, *works)
        if first == "abort":
            assert answers[0] is None
            assert isinstance(answers[1], InvalidProducerEpochError)
        else:
            assert answers == ["committed", None]
        assert values(committer) == ([] if first == "abort" else [b"v"])
        outcomes = [
            event.outcome for each in entries(place.bucket) for event in each.events if event.type == "TxnDecided"
        ]
        assert outcomes == [Outcome.ABORT if first == "abort" else Outcome.COMMIT]
        producer.close()
        check_all(place, committer, one, other)

    place.run(script)


@pytest.mark.parametrize("by", ["committer", "caller"])
@pytest.mark.parametrize("first", ["init", "end"])
def test_an_instance_in_another_process_fences_the_one_that_ends_its_transaction(
    place: Place, first: str, by: str
) -> None:
    """FEN-01: a request of the old instance that stands behind the init in the same entry is refused."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producer = opened(other, b"v")
        newer = committer if by == "committer" else one
        init = partial(newer.chain.submit, InitProducer("id"))
        works = (init, partial(ended, producer)) if first == "init" else (partial(ended, producer), init)
        answers = place.in_one_entry(committer, *works)
        granted, end = answers if first == "init" else reversed(answers)
        assert isinstance(granted, ProducerIdentity)
        assert granted.producer_id == producer.producer_id
        if first == "init":
            assert isinstance(end, ProducerFencedError)
        else:
            assert end == "committed"
        assert carried(place) == (2 if by == "caller" else 1) - (first == "init")
        assert values(committer) == ([] if first == "init" else [b"v"])
        successor = newer.store.producer("id")
        with successor.transaction() as txn:
            txn.send("t", b"next")
        with pytest.raises(ProducerFencedError), producer.transaction() as txn:
            txn.send("t", b"zombie")
        assert values(committer)[-1] == b"next"
        successor.close()
        producer.close()
        check_all(place, committer, one, other)

    place.run(script)


def test_the_answer_of_a_carried_command_is_that_of_its_place_in_the_entry(place: Place) -> None:
    """Two processes append to one partition: offsets are those behind the batches before them in the same entry."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producers = [process.store.producer(linger=None) for process in (committer, one, other)]
        first = [producer.send("t", b"first").result().offset for producer in producers]
        assert first == [0, 1, 2]

        def append(number: int) -> int:
            return producers[number].send("t", b"%d" % number).result().offset

        assert place.in_one_entry(committer, *(partial(append, number) for number in (1, 0, 2))) == [3, 4, 5]
        assert kinds(place) == [["BatchesAppended"] * 3]
        assert carried(place) == 2
        for process in (committer, one, other):
            assert values(process)[3:] == [b"1", b"0", b"2"]
        check_all(place, committer, one, other)

    place.run(script)


def test_what_follows_a_refused_command_of_its_process_waits_for_it(place: Place) -> None:
    """Of one batch after another that is not in order, the later one must not be first; other processes go on."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        plain = other.store.producer(linger=None)

        def several() -> list[object]:
            refused = one.chain.enqueue(DeleteTopic("missing"))
            follows = one.chain.enqueue(CreateTopic(topic("missing")))
            return [answer_of(partial(one.chain.commit_queued, each)) for each in (refused, follows)]

        answers = place.in_one_entry(committer, several, lambda: plain.send("t", b"v").result().offset)
        assert isinstance(answers[0], list)
        assert [type(each) for each in answers[0]] == [UnknownTopicOrPartitionError, CatalogTopic]
        assert answers[1] == 0
        assert kinds(place, last=2) == [["BatchesAppended"], ["TopicCreated"]]
        check_all(place, committer, one, other)

    place.run(script)


# Groups ---------------------------------------------------------------------------------------------------------------


def offsets(offset: int, generation: int = -1, member_id: str = "") -> CommitOffsets:
    return CommitOffsets(TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=offset),), generation, member_id))


@pytest.mark.parametrize("first", ["join", "commit"])
def test_offsets_of_a_member_are_of_the_generation_that_the_entry_has_where_they_stand(
    place: Place, first: str
) -> None:
    """A member of another process joins in the same entry: the group has another generation from there on."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t", partitions=2)
        member = one.chain.submit(JoinGroup("g", "m1", (("t", 2),)))
        join = partial(other.chain.submit, JoinGroup("g", "m2", (("t", 2),)))
        commit = partial(one.chain.submit, offsets(5, member.generation, "m1"))
        answers = place.in_one_entry(committer, *((join, commit) if first == "join" else (commit, join)))
        joined, committed = answers if first == "join" else reversed(answers)
        assert not isinstance(joined, TxnStoreError)
        group = committer.chain.refresh().groups["g"]
        if first == "join":
            assert isinstance(committed, IllegalGenerationError)
            assert group.offsets.get(T) is None
        else:
            assert committed is None
            assert group.offsets[T].value.offset == 5
        assert carried(place) == (1 if first == "join" else 2)
        check_all(place, committer, one, other)

    place.run(script)


def test_offsets_are_committed_with_the_transaction_that_is_carried(place: Place) -> None:
    """Records and offsets of a caller, and the offsets of another one, in one entry: all of it, in order."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producer = one.store.producer("id", linger=None)
        consumer = other.store.consumer(group="g")
        consumer.assign([T])
        producer.begin_transaction()
        producer.send("t", b"v")
        producer.send_offsets({T: 7}, "g")
        answers = place.in_one_entry(committer, partial(ended, producer), lambda: consumer.commit({T: 9}))
        assert answers == ["committed", None]
        assert carried(place) == 2
        for process in (committer, one, other):
            assert process.chain.refresh().groups["g"].offsets[T].value.offset == 9
            assert values(process) == [b"v"]
        check_all(place, committer, one, other)

    place.run(script)


# Maintenance ----------------------------------------------------------------------------------------------------------


def test_what_a_caller_compacts_and_deletes_is_what_it_planned_while_others_append(place: Place) -> None:
    """The replacement is carried behind an append to the same partition, which it does not touch."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t", config={"inline.bytes": 0})
        producer, second = other.store.producer(linger=None), committer.store.producer(linger=None)
        for number in range(4):
            producer.send("t", b"%d" % number).result()
        answers = place.in_one_entry(
            committer,
            lambda: second.send("t", b"4").result().offset,
            lambda: one.store.compact().merges > 0,
        )
        assert answers[0] == 4
        assert answers[1] is True
        assert "SegmentsReplaced" in [kind for events in kinds(place, last=3) for kind in events]
        assert values(other) == [b"%d" % number for number in range(5)]
        place.in_one_entry(
            committer,
            lambda: one.store.delete_records({T: 3}),
            lambda: producer.send("t", b"5").result().offset,
            lambda: committer.store.delete_records({T: 5}),
        )
        assert kinds(place) == [["LogStartMoved", "BatchesAppended", "LogStartMoved"]]
        for process in (committer, one, other):
            assert values(process) == [b"5"]
        check_all(place, committer, one, other)

    place.run(script)


# Snapshots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["committer", "caller"])
def test_a_snapshot_that_is_taken_while_commands_are_carried_is_read_later_as_it_was(place: Place, who: str) -> None:
    """At any moment of the commits of others; entries lead back to it."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        producers = [process.store.producer(linger=None) for process in (committer, one, other)]
        taker = committer if who == "committer" else one
        taken: list[Snapshot] = []

        def write(number: int) -> None:
            for each in range(10):
                producers[number].send("t", b"%d.%d" % (number, each)).result()
                place.scheduler.sleep(60)

        def take() -> None:
            for _ in range(15):
                taken.append(taker.store.snapshot())
                place.scheduler.sleep(17)

        place.together(take, *(partial(write, number) for number in range(3)))
        history, whole = entries(place.bucket), values(committer)
        assert len(set(taken)) > 5
        assert sum(len(entry.carried or ()) for entry in history) >= 20
        reader = place.process("later", read_only=True)
        for snapshot in taken:
            before = [event for entry in history[: snapshot.heads[0]] for event in entry.events]
            seen = whole[: sum(event.type == "BatchesAppended" for event in before)]
            assert values(taker, snapshot=snapshot) == seen
            assert values(reader, snapshot=reader.store.snapshot(entry=snapshot.heads)) == seen
        check_all(place, committer, one, other)

    place.run(script)


# Rights and features --------------------------------------------------------------------------------------------------


def guarded(place: Place, *principals: str) -> tuple[Process, ...]:
    """Processes that share entries in a store with rules: alice may write ``t``, carol too; bob may do nothing.

    The first one commits for the others, to the chain of ``t``. Each process is of the principal at its place.
    """
    root = place.process("root", principal="User:root")
    root.store.create_topic("t")
    for name in ("alice", "carol"):
        root.store.acls.create(Acl(f"User:{name}", "ALLOW", "WRITE", "TOPIC", "t"))
    for name in ("gateway", "maker"):
        root.store.acls.create(Acl(f"User:{name}", "ALLOW", "CREATE", "TOPIC", "*"))
    root.store.acls.enable(["User:root"])
    found = [place.process(f"{name}{number}", principal=f"User:{name}") for number, name in enumerate(principals)]
    meet(chain_of_partition(T, len(root.connection.chains)), *found)
    return root, *found


def append_to_t(value: bytes) -> Append:
    return Append(ProducerIdentity(), (inlined(T, -1, value.decode()),))


def asked(process: Process, *requests: tuple[str, bytes]) -> list[str]:
    """What a gateway gets that submits appends for these principals together: an offset, or the class of the error."""
    commands: list[tuple[Command, str | None]] = [(append_to_t(value), f"User:{name}") for name, value in requests]
    answers = process.connection.submit_all(commands)
    return [
        type(answer).__name__ if isinstance(answer, Exception) else str(answer[0].base_offset) for answer in answers
    ]


REFUSED = TopicAuthorizationError.__name__


@pytest.mark.parametrize("role", ["committer", "caller"])
def test_a_gateway_asks_for_several_principals_of_which_one_is_refused(place: Place, role: str) -> None:
    """It is refused alone, with and without rights of the process that decides; entries name who has asked."""

    def script() -> None:
        root, committer, caller = guarded(place, "gateway", "maker")
        gateway = committer if role == "committer" else caller
        answers = asked(gateway, ("alice", b"1"), ("bob", b"2"), ("carol", b"3"), ("alice", b"4"))
        assert answers == ["0", REFUSED, "1", "2"]
        found = [pair for entry in entries(place.bucket) for pair in entry.principals or () if pair[0] != "User:root"]
        assert found == [("User:alice", 1), ("User:carol", 1), ("User:alice", 1)]
        assert values(root) == [b"1", b"3", b"4"]
        assert asked(gateway, ("gateway", b"5"), ("maker", b"6")) == [REFUSED, REFUSED]
        assert asked(gateway, ("carol", b"7"), ("alice", b"8")) == ["3", "4"]
        assert carried(place) == (2 if role == "caller" else 0)
        check_all(place, root, committer, caller)

    place.run(script)


def test_refusals_for_a_principal_of_one_process_do_not_affect_the_commands_of_others(place: Place) -> None:
    """The commands of the refused one's process behind it are committed by that process; the entry has the rest."""

    def script() -> None:
        root, committer, gateway, other = guarded(place, "gateway", "gateway", "maker")
        root.create()  # It hands over, too.
        appends = partial(asked, gateway, ("alice", b"1"), ("bob", b"2"), ("alice", b"3"))
        own = partial(asked, committer, ("carol", b"4"), ("bob", b"5"))

        def create() -> str:
            return other.store.create_topic("made").name

        block = place.in_one_entry(committer, appends, own, create)
        assert block == [["0", REFUSED, "2"], ["1", REFUSED], "made"]
        last = entries(place.bucket)[-2]
        assert last.principals == [("User:alice", 1), ("User:carol", 1), ("User:maker", 1)]
        assert [each[3] for each in last.carried or ()] == [1, 1]
        assert values(root) == [b"1", b"4", b"3"]
        check_all(place, root, committer, gateway, other)

    place.run(script)


def test_features_that_a_caller_requires_hold_from_its_entry_on_for_all(place: Place) -> None:
    """An entry names those that its commands add, each once; the processes that have handed over others know them."""

    def script() -> None:
        committer, one, other = place.committer_and_callers("a", "b", "c")
        committer.store.create_topic("t")
        session = other.chain.submit(InitProducer("session"))
        other.chain.submit(Append(session, (inlined(T, 0, "v"),)))
        before = committer.chain.refresh().requires
        assert before == NO_FEATURES
        answers = place.in_one_entry(
            committer,
            lambda: one.store.acls.enable(["User:x"]),
            lambda: other.chain.submit(EndTxn(session, Outcome.COMMIT, session=True)),
        )
        assert isinstance(answers[0], AuthorizationSettings)
        assert isinstance(answers[1], Ended)
        assert entries(place.bucket)[-1].requires == AUTHORIZATION.union(SESSIONS)
        assert carried(place) == 2
        one.create()
        assert entries(place.bucket)[-1].requires is None
        newcomer = place.process("d")
        newcomer.create()
        assert newcomer.chain.state.requires == AUTHORIZATION.union(SESSIONS)
        assert values(newcomer) == [b"v"]
        check_all(place, committer, one, other, newcomer)

    place.run(script)


def test_rules_that_a_caller_changes_hold_for_what_stands_behind_them_in_the_entry(place: Place) -> None:
    """Also for the process that commits it, which was allowed everything when it queued its command."""

    def script() -> None:
        committer, root = place.roles(place.process("a"), place.process("root", principal="User:root"))
        other = place.process("c")
        other.create()
        assert other.is_shared
        answers = place.in_one_entry(
            committer,
            lambda: other.store.create_topic("before").name,
            lambda: root.store.acls.enable(["User:root"]),
            lambda: other.store.create_topic("behind").name,
            lambda: committer.store.create_topic("own").name,
        )
        assert answers[0] == "before"
        assert isinstance(answers[1], AuthorizationSettings)
        assert [type(answer) for answer in answers[2:]] == [TopicAuthorizationError] * 2
        names = {
            event.topic.name for each in entries(place.bucket) for event in each.events if event.type == "TopicCreated"
        }
        assert not names & {"behind", "own"}
        check_all(place, committer, root, other)

    place.run(script)


# Two chains -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_chains() -> Iterator[Place]:
    with a_place(2) as place:
        assert chain_of_partition(T, 2) == 1
        yield place


@pytest.fixture
def three_chains() -> Iterator[Place]:
    with a_place(3) as place:
        yield place


def test_rules_that_a_caller_has_read_in_another_chain_hold_for_what_it_hands_over(two_chains: Place) -> None:
    """A right is revoked in chain 0 alone so far: the committer, which has not read that, reads it first."""

    def script() -> None:
        root, committer, gateway = guarded(two_chains, "gateway", "gateway")
        assert asked(gateway, ("alice", b"1"), ("carol", b"2")) == ["0", "1"]
        assert carried(two_chains, 1) == 2
        revoked = ChangeAcls(deleted=(Acl("User:alice", "ALLOW", "WRITE", "TOPIC", "t"),))
        root.chain.submit(revoked)
        gateway.chain.refresh()
        assert committer.chain.state.sequence < gateway.chain.state.sequence
        assert asked(gateway, ("alice", b"3")) == [REFUSED]
        assert asked(gateway, ("carol", b"4")) == ["2"]
        assert carried(two_chains, 1) == 1
        assert values(root) == [b"1", b"2", b"4"]

    two_chains.run(script)


def test_an_entry_is_not_older_than_what_its_callers_know_of_other_chains(three_chains: Place) -> None:
    """ADD-07: the clock of the committer is an hour behind that of a caller, which has written to a third chain."""
    place = three_chains

    def script() -> None:
        committer, caller = place.process("a"), place.process("b", ahead_ms=3_600_000)
        committer.store.create_topic("t", partitions=3)
        numbers = {chain_of_partition(TopicPartition("t", number), 3): number for number in range(3)}
        meet(1, committer, caller)
        producer = caller.store.producer(linger=None)
        for chain in (1, 2, 1):
            producer.send("t", b"v", partition=numbers[chain]).result()
        newest = entries(place.bucket, 1)[-1]
        assert len(newest.carried or ()) == 1
        assert newest.timestamp >= entries(place.bucket, 2)[-1].timestamp > place.clock() + 3_000_000
        check_all(place, committer, caller)

    place.run(script)


def test_a_transaction_over_chains_whose_steps_other_processes_carry_is_whole(two_chains: Place) -> None:
    """Each chain has another committer; the process that ends the transaction writes no entry at all."""

    def script() -> None:
        zero, one, caller = two_chains.process("a"), two_chains.process("b"), two_chains.process("c")
        zero.store.create_topic("t", partitions=2)
        meet(0, zero, caller)
        meet(1, one, caller)
        producer = caller.store.producer("id", linger=None)
        for outcome in ("commit", "abort", "commit"):
            producer.begin_transaction()
            for number in range(2):
                producer.send("t", outcome.encode(), partition=number)
            producer.send_offsets({T: 1}, "g")
            producer.flush()
            producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
        producer.close()
        assert caller.store.metrics().commits == 0
        assert caller.store.metrics().handed_over >= 9
        for process in (zero, one, caller):
            assert values(process) == [b"commit"] * 4
            assert process.connection.view().groups["g"].offsets[T].value.offset == 1
        check_all(two_chains, zero, one, caller)

    two_chains.run(script)
