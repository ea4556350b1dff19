"""Properties of all commands: no event needs a right that its command did not check, and a refusal emits nothing.

The rights of events come from ``tests/helpers/rights.py``, not from the table of commands: so a command whose check is
missing, or whose rule emits more than was checked, has an event without its right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.simulation.settings import settings_of, under_rules
from tests.harness.simulation.simulation import simulate
from tests.helpers.rights import Named, Need, named, needs
from txnstore.chain import group_commit
from txnstore.core.authorization.model import (
    Acl,
    ChangeAcls,
    ChangeAuthorization,
    FollowAuthorization,
)
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.commands import COMMANDS
from txnstore.core.decide import Decision, decide
from txnstore.core.events import EVENT_TYPES
from txnstore.core.evolve import evolve
from txnstore.core.expiration import Expire
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
from txnstore.core.groups.model import ClassicMember
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.maintenance import DropObjects, ForgetEntries, ForgetObjects, ReplaceRuns, ReplaceSegments
from txnstore.core.model import NO_PRODUCER, Command, EntrySpan, Map, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.state import State, begin_entry, first_state
from txnstore.core.transactions.commands import AbortTxn, EndTxn, InitProducer, PrepareTxn
from txnstore.errors import AuthorizationError, TxnStoreError

ALICE = "User:alice"
TOPICS, GROUPS, IDS = ["s", "t"], ["g", "h"], ["a", "b"]
_STEPS = 60


def uncovered(command: Command, state: State, events: tuple[Any, ...], names: dict[int, str]) -> list[tuple[Any, Need]]:
    """The events with a right that the command did not check."""
    checked = [
        {(right.operation, right.resource_type, name), *([right.or_else] if right.or_else is not None else [])}
        for right in COMMANDS[type(command)].right(command, state)
        for name in right.names
    ]
    lacking = []
    for event in events:
        named(names, event)
        wanted = needs(state, event, names)
        lacking += [(event, need) for need in wanted if not any(ways <= set(need) for ways in checked)]
        state = evolve(state, event)
    return lacking


def holding(rights: list[Named]) -> Authorization:
    """The rules of one who has exactly these rights."""
    acls = [Acl(ALICE, "ALLOW", operation, kind, name or "any") for operation, kind, name in rights]
    return Authorization("declared", frozenset({"User:root"}), acls=Map(dict.fromkeys(acls)))


def needed_by(command: Command, state: State) -> list[Named]:
    return [
        (right.operation, right.resource_type, name)
        for right in COMMANDS[type(command)].right(command, state)
        for name in right.names
    ]


class History:
    """Random commands, most of which fit the state."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = first_state(0, 1)
        self.now = 1_000
        self.names: dict[int, str] = {}
        self.identities: list[ProducerIdentity] = [ProducerIdentity()]
        self.ended: list[EndTxn] = []
        self.segments = 0

    def command(self) -> Command:
        makers: list[Callable[[], Command]] = [
            self._init, self._init, self._append, self._append, self._append, self._append, self._end, self._end,
            self._end, self._prepare, self._abort, self._commit_offsets, self._join, self._join, self._heartbeat,
            self._leave, self._delete_group, self._reset, self._create, self._create, self._alter, self._delete_topic,
            self._delete_records, self._drop, self._forget, self._expire, self._rules, self._replace, self._copy,
            self._generation, self._member, self._delete_offsets,
        ]  # fmt: skip
        return self.rng.choice(makers)()

    def enter(self, decision: Decision, command: Command) -> None:
        self.state = decision.state
        if isinstance(decision.result, ProducerIdentity):
            self.identities = [*self.identities[-3:], decision.result]
        producer = getattr(decision.result, "producer", None)
        if isinstance(command, EndTxn) and isinstance(producer, ProducerIdentity):
            self.identities = [*self.identities[-3:], producer]
            self.ended = [*self.ended[-1:], command]

    def _tp(self) -> TopicPartition:
        return TopicPartition(self.rng.choice(TOPICS), self.rng.randrange(2))

    def _batch(self, producer: ProducerIdentity) -> NewBatch:
        tp = self._tp()
        self.segments += 1
        sequence = NO_PRODUCER
        partition = self.state.partitions.get(tp)
        if producer.producer_id != NO_PRODUCER:
            known = partition.producers.get(producer.producer_id) if partition is not None else None
            sequence = known.last_sequence + 1 if known is not None and known.epoch == producer.epoch else 0
        return NewBatch(
            *tp, Segment(f"topics/{self.segments:06}.parquet", "parquet", 9, f"{self.segments:064}", 1), 7, 8, sequence
        )

    def _offsets(self) -> TxnOffsets:
        items = [GroupOffset(topic=tp.topic, partition=tp.partition, offset=1) for tp in {self._tp(), self._tp()}]
        return TxnOffsets(self.rng.choice(GROUPS), tuple(items))

    def _some(self, producer: ProducerIdentity) -> tuple[tuple[NewBatch, ...], tuple[TxnOffsets, ...]]:
        batches = {batch.tp: batch for batch in (self._batch(producer) for _ in range(self.rng.randrange(3)))}
        of_txn = producer.transactional_id is not None and self.rng.random() < 0.4
        return tuple(batches.values()), (self._offsets(),) if of_txn else ()

    def _init(self) -> Command:
        name = self.rng.choice([None, *IDS, *IDS])
        return InitProducer(name, two_phase=name is not None and self.rng.random() < 0.2)

    def _append(self) -> Command:
        producer = self.rng.choice(self.identities)
        batches, offsets = self._some(producer)
        if producer.transactional_id is not None and self.rng.random() < 0.3:
            return Append(producer, batches, offsets, (self._tp(),), (self.rng.choice(GROUPS),))
        return Append(producer, batches, offsets)

    def _end(self) -> Command:
        if self.ended and self.rng.random() < 0.2:
            return self.ended[-1]
        producer = self.rng.choice(self.identities)
        outcome = self.rng.choice([Outcome.COMMIT, Outcome.COMMIT, Outcome.ABORT])
        batches, offsets = self._some(producer) if outcome is Outcome.COMMIT else ((), ())
        versions = (("scope", self.rng.randrange(5)),) if self.rng.random() < 0.2 else ()
        # Some clients continue with their epoch.
        return EndTxn(producer, outcome, batches, offsets, versions, session=producer.epoch % 3 == 1)

    def _prepare(self) -> Command:
        return PrepareTxn(self.rng.choice(self.identities))

    def _abort(self) -> Command:
        name = self.rng.choice(IDS)
        txn = self.state.transactions.get(name)
        if txn is not None and self.rng.random() < 0.5:
            return AbortTxn(name, (txn.producer_id, txn.epoch), expired_only=True)
        return AbortTxn(name)

    def _commit_offsets(self) -> Command:
        return CommitOffsets(self._offsets())

    def _reset(self) -> Command:
        offsets = self._offsets()
        return ResetOffsets(replace(offsets, expired=self._expired(offsets.group)))

    def _expired(self, group: str) -> tuple[tuple[str, int], ...]:
        known = self.state.groups.get(group)
        if known is None or self.rng.random() < 0.5:
            return ()
        return tuple((member.member_id, member.seen_at) for member in known.members.values())

    def _join(self) -> Command:
        group, member = self.rng.choice(GROUPS), self.rng.choice(["m", "n"])
        return JoinGroup(group, member, (("s", 2),), expired=self._expired(group))

    def _generation(self) -> Command:
        """A gateway stores a generation of a classic group, or that it is empty."""
        group = self.rng.choice(GROUPS)
        before = self.state.groups.get(group)
        expected = before.generation if before is not None else -1
        member = ClassicMember("k", None, "client", "host", 1_000, 1_000, b"", b"")
        members = (member,) if self.rng.random() < 0.5 else ()
        protocol, leader = ("range", "k") if members else (None, None)
        following, expired = max(expected, 0) + 1, self._expired(group)
        return StoreGeneration(group, expected, following, "consumer", protocol, leader, members, expired=expired)

    def _member(self) -> Command:
        """A gateway joins for a client of KIP-848, or sends its heartbeat."""
        group, member = self.rng.choice(GROUPS), self.rng.choice(["m", "n"])
        expired = self._expired(group)
        return JoinGroup(group, member, (("s", 2),), expired=expired, kind="consumer")

    def _delete_offsets(self) -> Command:
        return DeleteOffsets(self.rng.choice(GROUPS), (self._tp(),))

    def _heartbeat(self) -> Command:
        group = self.rng.choice(GROUPS)
        return Heartbeat(group, self.rng.choice(["m", "n"]), (), expired=self._expired(group))

    def _leave(self) -> Command:
        return LeaveGroup(self.rng.choice(GROUPS), self.rng.choice(["m", "n"]))

    def _delete_group(self) -> Command:
        group = self.rng.choice(GROUPS)
        return DeleteGroup(group, self._expired(group))

    def _create(self) -> Command:
        self.segments += 1
        return CreateTopic(CatalogTopic(self.rng.choice(TOPICS), f"id-{self.segments}", 2))

    def _alter(self) -> Command:
        before = self.state.topics.get(self.rng.choice(TOPICS))
        if before is None:
            return self._create()
        partitions = before.partitions + self.rng.randrange(2)
        config = self.rng.choice([before.config, {"retention.ms": str(self.rng.randrange(1, 9))}])
        return AlterTopic(
            replace(before, partitions=partitions, config=config, version=before.version + 1), before.version
        )

    def _delete_topic(self) -> Command:
        if self.rng.random() < 0.7:
            return self._create()
        return DeleteTopic(self.rng.choice(TOPICS))

    def _copy(self) -> Command:
        copies: list[Command] = [FollowAuthorization(1), CopyTopic("u", None, 1), CloseTopic("u", 1)]
        return self.rng.choice(copies)

    def _delete_records(self) -> Command:
        return DeleteRecords((Deletion(self._tp(), self.rng.choice([-1, 1])),))

    def _replace(self) -> Command:
        tp = self._tp()
        partition = self.state.partitions.get(tp)
        removed = tuple(partition.batches.overlapping(0, partition.last_stable_offset)) if partition is not None else ()
        part = ReplaceSegments(tp, removed[:1], ())
        return ReplaceRuns((part,)) if self.rng.random() < 0.5 else part

    def _drop(self) -> Command:
        return DropObjects((f"topics/{self.rng.randrange(90):06}.other",))

    def _forget(self) -> Command:
        keys = [f"topics/{self.rng.randrange(90):06}.other" for _ in range(20)]
        return ForgetObjects(tuple(keys)) if self.rng.random() < 0.5 else ForgetEntries(0, (EntrySpan(1, 2, 3),))

    def _expire(self) -> Command:
        self.now += self.rng.choice((1, 8 * 86_400_000))
        return Expire()

    def _rules(self) -> Command:
        acl = Acl(ALICE, "ALLOW", self.rng.choice(["READ", "WRITE"]), "TOPIC", self.rng.choice(TOPICS))
        changes: list[Command] = [
            ChangeAuthorization(allow_if_no_acl=self.rng.random() < 0.5),
            ChangeAcls((acl,)),
            ChangeAcls((), (acl,)),
        ]
        return self.rng.choice(changes)


def played(seed: int) -> Iterator[tuple[State, Command, Decision, dict[int, str]]]:
    """The accepted commands of a history, each with the state inside its entry."""
    history = History(seed)
    for _ in range(_STEPS):
        history.now += 1
        command, inside = history.command(), begin_entry(history.state, history.now)
        try:
            decision = decide(inside, command)
        except TxnStoreError:
            continue
        yield inside, command, decision, history.names
        if decision.events:
            history.enter(decision, command)


@pytest.mark.parametrize("seed", range(40))
def test_events_need_no_right_that_their_command_did_not_check(seed: int) -> None:
    for inside, command, decision, names in played(seed):
        assert uncovered(command, inside, decision.events, names) == [], command


@pytest.mark.parametrize("seed", range(40))
def test_with_its_rights_a_command_does_the_same_and_without_one_of_them_nothing(seed: int) -> None:
    for inside, command, decision, _ in played(seed):
        if isinstance(command, ChangeAcls | ChangeAuthorization):
            continue  # The rules that it leads to depend on those before.
        rights = needed_by(command, inside)
        allowed = decide(inside, command, ALICE, holding(rights))
        assert (allowed.events, allowed.result) == (decision.events, decision.result)
        for missing in dict.fromkeys(rights):
            before = inside, begin_entry(inside, 0)
            rest = holding([right for right in rights if right != missing])
            if isinstance(command, Append | EndTxn | PrepareTxn) and not decision.events:
                assert decide(inside, command, ALICE, rest) == decision  # What is committed already is answered.
                continue
            with pytest.raises(AuthorizationError) as raised:
                decide(inside, command, ALICE, rest)
            assert missing[2] in raised.value.resources
            assert before == (inside, begin_entry(inside, 0))


def test_the_histories_have_all_commands_and_events() -> None:
    """Of a store of one chain: so that the tests above are of all of them."""
    commands, events = set(), set()
    for seed in range(40):
        for _, command, decision, _ in played(seed):
            commands.add(type(command).__name__)
            events |= {type(event).__name__ for event in decision.events}
    assert EVENT_TYPES - events <= {"Observed", "TopicClosed", "ProducerFenced", "FencesExpired", "ObjectsForgotten"}
    assert len(commands) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8])
def test_events_of_several_chains_need_no_right_that_their_command_did_not_check(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of each decision of a simulated store of three chains, whose rules change under load."""
    names: dict[int, str] = {}
    lacking: list[Any] = []
    kinds: set[str] = set()

    def watched(state: State, command: Command, *args: Any) -> Decision:
        decision = decide(state, command, *args)
        # Only what is committed: another process may win the entry of this decision, and give the id to another name.
        names.update(state.transactional_ids)
        lacking.extend(uncovered(command, state, decision.events, dict(names)))
        kinds.add(type(command).__name__)
        return decision

    monkeypatch.setattr(group_commit, "decide", watched)
    settings = replace(under_rules(settings_of(seed, 3)), mishaps=(), parts=False)
    assert simulate(settings).anomalies == ()
    assert lacking == []
    assert {"WriteMarkers", "CompleteTxn", "FollowAuthorization", "ChangeAcls", "Append"} <= kinds
