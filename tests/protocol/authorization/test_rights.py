"""The table of rights: each command is refused without each of its rights, with Kafka's error, and changes nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.core import World
from txnstore import errors
from txnstore.core.authorization.model import (
    CLUSTER,
    Acl,
    ChangeAcls,
    ChangeAuthorization,
    Operation,
    ResourceType,
)
from txnstore.core.authorization.rights import no_right
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CloseTopic, CreateTopic, DeleteTopic
from txnstore.core.commands import COMMANDS
from txnstore.core.decide import decide
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
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.maintenance import (
    DropObjects,
    EraseRecords,
    ForgetEntries,
    ForgetObjects,
    ReplaceRuns,
    ReplaceSegments,
)
from txnstore.core.model import Command, Map, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.state import State, begin_entry
from txnstore.core.transactions.commands import AbortTxn, EndTxn, InitProducer, PrepareTxn
from txnstore.errors import AuthorizationError

ALICE = "User:alice"
ID = ProducerIdentity(0, 0, "id")
PLAIN = ProducerIdentity(1, 0)
TOPIC = CatalogTopic("t", "topic-id", 2)
OFFSETS = TxnOffsets("g", (GroupOffset(topic="in", partition=0, offset=1),))
#: A right: operation, type, name.
Named = tuple[Operation, ResourceType, str]

WRITE_ID: Named = ("WRITE", "TRANSACTIONAL_ID", "id")
WRITE_T: Named = ("WRITE", "TOPIC", "t")
READ_IN: Named = ("READ", "TOPIC", "in")
READ_G: Named = ("READ", "GROUP", "g")
ACTION: Named = ("CLUSTER_ACTION", "CLUSTER", CLUSTER)
ALTER: Named = ("ALTER", "CLUSTER", CLUSTER)


def batch(topic: str = "t") -> NewBatch:
    return NewBatch(topic, 0, Segment(f"topics/{topic}/0/x", "arrow", 1, "", 1), 1, 0, 0)


#: Each command with the rights that it needs, and for each of them another one that serves as well.
TABLE: list[tuple[Command, dict[Named, Named | None]]] = [
    (InitProducer("id"), {WRITE_ID: None}),
    (InitProducer("id", two_phase=True), {WRITE_ID: None, ("TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", "id"): None}),
    (InitProducer(), {("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER): ("WRITE", "TOPIC", "any")}),
    (Append(ID, (batch(),)), {WRITE_ID: None, WRITE_T: None}),
    (Append(PLAIN, (batch(),)), {WRITE_T: None}),
    (Append(ID, offsets=(OFFSETS,)), {WRITE_ID: None, READ_G: None, READ_IN: None}),
    (Append(ID, partitions=(TopicPartition("t", 0),)), {WRITE_ID: None, WRITE_T: None}),
    (Append(ID, groups=("g",)), {WRITE_ID: None, READ_G: None}),
    (EndTxn(ID, Outcome.COMMIT), {WRITE_ID: None}),
    (EndTxn(ID, Outcome.ABORT), {WRITE_ID: None}),
    (EndTxn(ID, Outcome.COMMIT, (batch(),), (OFFSETS,)), {WRITE_ID: None, READ_G: None, WRITE_T: None, READ_IN: None}),
    (PrepareTxn(ID), {WRITE_ID: None}),
    (PrepareTxn(ID, after=(1, 1)), {}),
    (AbortTxn("id"), {WRITE_ID: ACTION}),
    (CommitOffsets(OFFSETS), {READ_G: None, READ_IN: None}),
    (ResetOffsets(OFFSETS), {READ_G: None, READ_IN: None}),
    (JoinGroup("g", "m", (("t", 1),)), {READ_G: None}),
    (Heartbeat("g", "m", ()), {READ_G: None}),
    (LeaveGroup("g", "m"), {READ_G: None}),
    (LeaveGroup("g", instance_id="i"), {READ_G: None}),
    (LeaveGroup("g"), {READ_G: ("CLUSTER_ACTION", "CLUSTER", CLUSTER)}),
    (DeleteGroup("g"), {("DELETE", "GROUP", "g"): None}),
    (StoreGeneration("g", -1, 1, "consumer", None, None, ()), {READ_G: ("CLUSTER_ACTION", "CLUSTER", CLUSTER)}),
    (DeleteOffsets("g", (TopicPartition("t", 0),)), {("DELETE", "GROUP", "g"): None, ("READ", "TOPIC", "t"): None}),
    (CreateTopic(TOPIC), {("CREATE", "TOPIC", "t"): ("CREATE", "CLUSTER", CLUSTER)}),
    (AlterTopic(replace(TOPIC, partitions=3), 0), {("ALTER", "TOPIC", "t"): None}),
    (AlterTopic(replace(TOPIC, schema="other"), 0), {("ALTER", "TOPIC", "t"): None}),
    (AlterTopic(replace(TOPIC, key="other"), 0), {("ALTER", "TOPIC", "t"): None}),
    (AlterTopic(replace(TOPIC, version=1), 0), {}),
    (AlterTopic(replace(TOPIC, config={"retention.ms": "1"}), 0), {("ALTER_CONFIGS", "TOPIC", "t"): None}),
    (
        AlterTopic(replace(TOPIC, partitions=3, config={"retention.ms": "1"}), 0),
        {("ALTER", "TOPIC", "t"): None, ("ALTER_CONFIGS", "TOPIC", "t"): None},
    ),
    (DeleteTopic("t"), {("DELETE", "TOPIC", "t"): None}),
    (CloseTopic("t", 1), {("DELETE", "TOPIC", "t"): None}),
    (DeleteRecords((Deletion(TopicPartition("t", 0), 1),)), {("DELETE", "TOPIC", "t"): ACTION}),
    (ReplaceSegments(TopicPartition("t", 0), (), ()), {ACTION: None}),
    (ReplaceRuns(()), {ACTION: None}),
    (
        EraseRecords((ReplaceSegments(TopicPartition("t", 0), (), ()),)),
        {("DELETE", "TOPIC", "t"): None, ACTION: None},
    ),
    (DropObjects(("k",)), {ACTION: None}),
    (ForgetObjects(("k",)), {ACTION: None}),
    (ForgetEntries(0, ()), {ACTION: None}),
    (Expire(), {ACTION: None}),
    (ChangeAuthorization(allow_if_no_acl=True), {ALTER: None}),
    (ChangeAcls(), {ALTER: None}),
]
_ERRORS = {
    "TOPIC": (errors.TopicAuthorizationError, 29),
    "GROUP": (errors.GroupAuthorizationError, 30),
    "CLUSTER": (errors.ClusterAuthorizationError, 31),
    "TRANSACTIONAL_ID": (errors.TransactionalIdAuthorizationError, 53),
}


ROOT = Path(__file__).parents[3]


def holding(*rights: Named) -> Authorization:
    acls = [Acl(ALICE, "ALLOW", *right) for right in rights]
    return Authorization("declared", acls=Map(dict.fromkeys(acls)))


def outcome(command: Command, authorization: Authorization) -> Exception | None:
    """The error of a command in a state with the topics ``t`` and ``in``, or None."""
    state = State(topics=Map({"t": TOPIC, "in": replace(TOPIC, name="in")}), authorization=authorization)
    try:
        decide(begin_entry(state, 1), command, ALICE)
    except Exception as error:  # noqa: BLE001 - also of a rule that finds nothing of what is named
        return error
    return None


@pytest.mark.parametrize(("command", "rights"), TABLE, ids=lambda value: type(value).__name__)
def test_auth_01_auth_02_each_right_is_needed_and_all_are_enough(
    command: Command, rights: dict[Named, Named | None]
) -> None:
    for missing, other in rights.items():
        rest = [right for right in rights if right != missing]
        refused = outcome(command, holding(*rest))
        kind, code = _ERRORS[missing[1]]
        assert isinstance(refused, AuthorizationError)
        assert (type(refused), refused.kafka_code) == (kind, code)
        assert (refused.principal, refused.operation, refused.resources) == (ALICE, missing[0], (missing[2],))
        assert ALICE in str(refused)
        assert missing[0] in str(refused)
        if other is not None:
            assert f"nor to {other[0]} on" in str(refused)
            assert not isinstance(outcome(command, holding(*rest, other)), AuthorizationError)
    assert not isinstance(outcome(command, holding(*rights)), AuthorizationError)


def test_the_table_has_each_command() -> None:
    free = {kind for kind, declared in COMMANDS.items() if declared.right is no_right}
    assert {kind.__name__ for kind in free} == {
        "CompleteTxn",
        "CopyTopic",
        "FenceProducer",
        "FollowAuthorization",
        "WriteMarkers",
    }
    assert {type(command) for command, _ in TABLE} | free == set(COMMANDS)
    page = (ROOT / "docs" / "internals" / "design" / "authorization.md").read_text(encoding="utf-8")
    rows = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == {kind.__name__ for kind in COMMANDS}


def test_an_abort_after_the_timeout_needs_no_right() -> None:
    """Any reader that finds it may do it (TMO-01): else one writer that has ended would hold back all readers."""
    refused = outcome(AbortTxn("id", (0, 0), expired_only=True), holding())
    assert not isinstance(refused, AuthorizationError)


def test_all_refused_resources_are_named_sorted_and_once() -> None:
    command = Append(ID, tuple(batch(name) for name in ("t", "b", "a", "b")))
    refused = outcome(command, holding(WRITE_ID, WRITE_T))
    assert isinstance(refused, errors.TopicAuthorizationError)
    assert refused.resources == ("a", "b")
    assert "topics 'a', 'b'" in str(refused)


def test_without_the_id_the_topics_are_not_looked_at() -> None:
    """Kafka answers TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all partitions."""
    refused = outcome(Append(ID, (batch("secret"),)), holding())
    assert isinstance(refused, errors.TransactionalIdAuthorizationError)
    assert "secret" not in str(refused)


def test_which_errors_are_fatal_and_which_abortable() -> None:
    flags = {kind: (kind.abortable, kind.fatal, kind.retriable) for kind, _ in _ERRORS.values()}
    assert flags == {
        errors.TopicAuthorizationError: (True, False, False),
        errors.GroupAuthorizationError: (True, False, False),
        errors.ClusterAuthorizationError: (False, True, False),
        errors.TransactionalIdAuthorizationError: (False, True, False),
    }


def test_a_store_that_never_enabled_it_checks_nothing() -> None:
    assert outcome(CreateTopic(replace(TOPIC, name="new")), Authorization()) is None


def test_a_repetition_of_what_is_committed_is_answered_also_without_the_right() -> None:
    """The answer was lost, and the right was taken away: a refusal would say that nothing was written."""
    world = World()
    client = world.client("id")
    end = client.end(Outcome.COMMIT, client.numbered())
    ended = world.do(end)
    state = replace(world.state, authorization=holding())
    repeated = decide(begin_entry(state, world.now), end, ALICE)
    assert (repeated.events, repeated.result.appended[0].base_offset) == ((), ended.appended[0].base_offset)
    with pytest.raises(errors.TransactionalIdAuthorizationError):
        decide(begin_entry(state, world.now), replace(end, producer=ended.producer), ALICE)


def test_a_repetition_of_a_preparation_is_answered_also_without_the_right() -> None:
    world = World()
    client = world.client("id")
    client.send()
    hold = PrepareTxn(ProducerIdentity(client.producer_id, client.epoch, "id"))
    world.do(hold)
    state = begin_entry(replace(world.state, authorization=holding()), world.now)
    assert decide(state, hold, ALICE).events == ()
