"""``Connection.submit_all``: the commands of several callers in one entry, each for its own principal."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnstore
from tests.helpers.sessions import inlined
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.model import Command, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import (
    GroupAuthorizationError,
    InvalidTxnTimeoutError,
    TopicAuthorizationError,
    TopicExistsError,
    TransactionalIdAuthorizationError,
)

ADMIN, ALICE, BOB = "User:admin", "User:alice", "User:bob"


def _create(name: str) -> CreateTopic:
    return CreateTopic(CatalogTopic(name, f"{name}-id", 1))


def _offsets(group: str) -> CommitOffsets:
    return CommitOffsets(TxnOffsets(group, (GroupOffset(topic="t", partition=0, offset=0),)))


def _store(folder: Path, chains: int) -> txnstore.Store:
    store = txnstore.create(str(folder), chains, principal=ADMIN)
    store.create_topic("t")
    store.acls.create(txnstore.Acl(ALICE, "ALLOW", "READ", "GROUP", "g"))
    store.acls.create(txnstore.Acl(ALICE, "ALLOW", "READ", "TOPIC", "t"))
    store.acls.create(txnstore.Acl(BOB, "ALLOW", "WRITE", "TRANSACTIONAL_ID", "job"))
    store.acls.enable([ADMIN])
    return store


@pytest.mark.parametrize("chains", [1, 3])
def test_each_command_is_checked_for_the_principal_who_asks(tmp_path: Path, chains: int) -> None:
    with _store(tmp_path, chains) as store:
        asked: list[tuple[Command, str | None]] = [
            (_offsets("g"), ALICE),
            (_offsets("g"), BOB),
            (InitProducer("job"), BOB),
            (InitProducer("job"), ALICE),
            (_create("u"), None),
            (DeleteRecords((Deletion(TopicPartition("t", 0), 0),)), ALICE),
        ]
        answers = store._connection.submit_all(asked)
        refused = [type(answer) for answer in answers if isinstance(answer, Exception)]
        assert refused == [GroupAuthorizationError, TransactionalIdAuthorizationError, TopicAuthorizationError]
        assert answers[2].transactional_id == "job"
        assert [topic.name for topic in store.topics()] == ["t", "u"]
        assert store.group("g").positions[0].offset == 0


def test_commands_share_an_entry_and_fail_alone(tmp_path: Path) -> None:
    with txnstore.create(str(tmp_path)) as store:
        store.create_topic("a")
        connection = store._connection
        before = connection.view().sequence
        answers = connection.submit_all(
            [(_create("b"), None), (_create("a"), None), (InitProducer("j", 10**9), None), (_create("c"), None)]
        )
        assert [type(answer) for answer in answers] == [
            CatalogTopic,
            TopicExistsError,
            InvalidTxnTimeoutError,
            CatalogTopic,
        ]
        assert connection.view().sequence == before + 1


def test_refused_alone_is_read_only(tmp_path: Path) -> None:
    txnstore.create(str(tmp_path)).close()
    with txnstore.open(str(tmp_path), read_only=True) as store:
        answers = store._connection.submit_all([(_create("a"), None), (_create("b"), None)])
        assert [type(answer).__name__ for answer in answers] == ["ReadOnlyError", "ReadOnlyError"]


def test_batches_of_a_partition_share_an_entry_of_one_of_several_chains(tmp_path: Path) -> None:
    with txnstore.create(str(tmp_path), 3) as store:
        store.create_topic("t", partitions=6)
        connection = store._connection
        tp = next(TopicPartition("t", n) for n in range(6) if chain_of_partition(TopicPartition("t", n), 3))
        before = connection.view().sequence
        appends = [Append(ProducerIdentity(-1, -1), (inlined(tp, -1, str(number)),)) for number in range(5)]
        answers = connection.submit_all([(append, None) for append in appends])
        assert [appended.base_offset for (appended,) in answers] == [0, 1, 2, 3, 4]
        assert connection.view().sequence == before + 1
