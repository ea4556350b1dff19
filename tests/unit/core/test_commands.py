"""The declarations of commands, with the chain that decides each, and of the folds of events: each class once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txnstore.core.authorization.rights import no_right
from txnstore.core.catalog.model import CatalogTopic, CreateTopic, TopicCreated
from txnstore.core.commands import COMMANDS, chain_of, topics_of
from txnstore.core.declaration import command
from txnstore.core.events import EVENT_TYPES
from txnstore.core.evolve import FOLDS
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    StoreGeneration,
    TxnOffsets,
)
from txnstore.core.groups.events import GroupOffset
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.log.events import MarkerWritten
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.maintenance import EraseRecords, ForgetEntries, ReplaceRuns, ReplaceSegments
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition
from txnstore.core.state import fold
from txnstore.core.transactions.commands import DecidedTransaction, EndTxn, FenceProducer, WriteMarkers

TPS = tuple(TopicPartition("t", number) for number in range(3))
OFFSETS = TxnOffsets("g", (GroupOffset(topic="in", partition=1, offset=5),))
ID = ProducerIdentity(0, 0, "id")
DECIDED = DecidedTransaction("id", 0, 0, Outcome.COMMIT, TPS, ("g",))

#: The commands that one chain decides alone, with that of three chains.
ROUTES: list[tuple[Command, int]] = [
    *((each, chain_of_group("g", 3)) for each in (
        JoinGroup("g", "m", ()), Heartbeat("g", "m", ()), LeaveGroup("g", "m"), DeleteGroup("g"),
        StoreGeneration("g", -1, 1, "consumer", None, None, ()), DeleteOffsets("g", ()),
        CommitOffsets(OFFSETS), ResetOffsets(OFFSETS),
    )),
    *((each, chain_of_partition(tp, 3)) for tp in TPS for each in (
        ReplaceSegments(tp, (), ()), ReplaceRuns((ReplaceSegments(tp, (), ()),)),
        EraseRecords((ReplaceSegments(tp, (), ()),)),
    )),
    *((DeleteRecords((Deletion(tp, 1),)), chain_of_partition(tp, 3)) for tp in TPS),
    (ForgetEntries(2, ()), 2),
]  # fmt: skip


def test_each_class_of_commands_is_declared() -> None:
    def subclasses(of: type[Command]) -> Iterator[type[Command]]:
        for each in of.__subclasses__():
            yield each
            yield from subclasses(each)

    product = {each for each in subclasses(Command) if each.__module__.startswith("txnstore.")}
    assert {each.__name__ for each in COMMANDS} == {each.__name__ for each in product}
    assert len(COMMANDS) == 32


def test_a_class_is_declared_once() -> None:
    with pytest.raises(TypeError, match="CreateTopic is declared twice: by create_topic and again"):

        @command(CreateTopic, route=None, right=no_right)
        def again(draft: object, created: CreateTopic) -> None: ...


@pytest.mark.parametrize(("asked", "number"), ROUTES, ids=lambda value: type(value).__name__)
def test_one_chain_decides(asked: Command, number: int) -> None:
    assert chain_of(asked, 3) == number
    if not isinstance(asked, ForgetEntries):
        assert chain_of(asked, 1) == 0


def test_other_commands_are_of_no_chain_alone() -> None:
    routed = {type(asked) for asked, _ in ROUTES}
    assert {kind for kind, declared in COMMANDS.items() if declared.route is not None} == routed
    with pytest.raises(TypeError, match="CreateTopic is no command of one chain"):
        chain_of(CreateTopic(CatalogTopic("t", "id", 1)), 3)


@pytest.mark.parametrize(
    ("asked", "topics"),
    [
        (Append(ID, (NewBatch("t", 0, Segment("k", "arrow", 1, "", 1), 1, 0, 0),), (OFFSETS,)), {"t", "in"}),
        (Append(ID, partitions=(TopicPartition("u", 0),)), {"u"}),
        (EndTxn(ID, Outcome.COMMIT, offsets=(OFFSETS,)), {"in"}),
        (CommitOffsets(OFFSETS), {"in"}),
        (ResetOffsets(OFFSETS), {"in"}),
        (WriteMarkers(DECIDED, (0, 1)), {"t"}),
        (FenceProducer(ID, TPS, (), (0, 1)), {"t"}),
        (ReplaceSegments(TPS[0], (), ()), {"t"}),
        (DeleteRecords((Deletion(TPS[0], 1),)), {"t"}),
        (JoinGroup("g", "m", (("t", 1),)), set()),
        (DeleteOffsets("g", TPS), set()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_topics_that_a_chain_must_know(asked: Command, topics: set[str]) -> None:
    assert set().union(*(topics_of(asked, chain, 3) for chain in range(3))) == topics
    for chain in range(3):
        for topic in topics_of(asked, chain, 3):
            led = {chain_of_partition(TopicPartition(topic, number), 3) for number in range(3)}
            assert chain in led


def test_each_class_of_events_has_one_fold() -> None:
    assert {kind.__name__ for kind in (*FOLDS.single, *FOLDS.together)} == {*EVENT_TYPES, "UnknownEvent"}
    assert not FOLDS.single.keys() & FOLDS.together.keys()
    for declares in (fold(TopicCreated), fold(MarkerWritten)):
        with pytest.raises(TypeError, match="has a fold already"):
            declares(lambda state, _: state)
