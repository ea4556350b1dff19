"""TST-25: the cases of Kafka's tests of authorization that a store has too, in spirit, and named where they come from.

``StandardAuthorizerTest``, ``AuthorizerTest``, ``AclCommandTest``, and of ``AuthorizerIntegrationTest`` the half with
transactions. What clients may do after a refusal was compared with a broker of Kafka 4.4
(``python -m tests.harness.authorization``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.helpers.shop import ADMIN, ALICE, ALICES, BOB, Shop, allow
from txnstore import Producer, errors
from txnstore.core.authorization.model import CLUSTER, Acl, Operation, ResourceType
from txnstore.core.model import TopicPartition

EVE, EVERYONE = "User:eve", "User:*"
IN = TopicPartition("in", 0)


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(request.param)
    with shop.stack:
        yield shop


def deny(principal: str, operation: Operation, kind: ResourceType, name: str, *, prefixed: bool = False) -> Acl:
    return Acl(principal, "DENY", operation, kind, name, "PREFIXED" if prefixed else "LITERAL")


def committed_values(shop: Shop, topic: str = "out") -> list[bytes]:
    return [row["value"] for row in shop.admin.scan(topic).to_table().to_pylist()]


# StandardAuthorizerTest and AuthorizerTest ----------------------------------------------------------------------------

ALL_OF_IT = allow(ALICE, "ALL", "TOPIC", "*")
VERDICTS: list[tuple[str, list[Acl], str, bool]] = [
    ("testSimpleAuthorizations", [allow(ALICE, "READ", "TOPIC", "foo")], "foo", True),
    ("testSimpleAuthorizations", [allow(ALICE, "READ", "TOPIC", "foo")], "bar", False),
    ("testDenyPrecedence", [ALL_OF_IT, deny(ALICE, "READ", "TOPIC", "foo")], "foo", False),
    ("testDenyPrecedenceWithOperationAll", [ALL_OF_IT, deny(ALICE, "ALL", "TOPIC", "foo")], "foo", False),
    ("testDenyPrecedence", [ALL_OF_IT, deny(EVERYONE, "READ", "TOPIC", "*")], "foo", False),
    ("testTopicAclWithOperationAll", [allow(EVERYONE, "ALL", "TOPIC", "foo")], "foo", True),
    ("testAllowAllAccess", [allow(EVERYONE, "ALL", "TOPIC", "*")], "any", True),
    ("testWildCardAcls", [allow(ALICE, "READ", "TOPIC", "*")], "any", True),
    ("testPrefixAcls", [allow(ALICE, "READ", "TOPIC", "fo", prefixed=True)], "foo", True),
    ("testPrefixAcls", [allow(ALICE, "READ", "TOPIC", "fo", prefixed=True)], "f", False),
    (
        "testPrefixAcls",
        [allow(ALICE, "READ", "TOPIC", "f", prefixed=True), deny(ALICE, "READ", "TOPIC", "foo", prefixed=True)],
        "foobar",
        False,
    ),
    (
        "testPrefixAcls",
        [allow(ALICE, "READ", "TOPIC", "f", prefixed=True), deny(ALICE, "READ", "TOPIC", "foo", prefixed=True)],
        "fog",
        True,
    ),
    ("testSingleCharacterResourceAcls", [allow(ALICE, "READ", "TOPIC", "f")], "foo", False),
    ("testNoAclFound", [], "foo", False),
    ("testAuthorizeWithOtherPrincipals", [allow(BOB, "READ", "TOPIC", "foo")], "foo", False),
    ("testAuthorizeWithPrefixedResource", [allow(ALICE, "WRITE", "TOPIC", "fo", prefixed=True)], "foo", False),
    ("testAclInheritance", [allow(ALICE, "ALTER_CONFIGS", "TOPIC", "foo")], "foo", False),
]


@pytest.mark.parametrize(("case", "acls", "name", "allowed"), VERDICTS)
def test_what_rules_allow_to_read(case: str, acls: list[Acl], name: str, *, allowed: bool) -> None:
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(acls)
        assert shop.admin.acls.explain(ALICE, "READ", "TOPIC", name).allowed is allowed, case


def test_super_users_pass_every_deny(shop: Shop) -> None:
    """``testSuperUserWithCustomPrincipalHasAccess``, ``testSuperUserHasAccess``."""
    shop.admin.acls.create(deny(EVERYONE, "ALL", "TOPIC", "*"))
    with shop.admin.producer() as producer:
        producer.send("out", b"x")
    assert committed_values(shop) == [b"x"]


def test_everyone_is_let_in_where_no_rule_is(shop: Shop) -> None:
    """``testAllowEveryoneIfNoAclIsFoundConfig``: any rule for the topic, also of another principal, ends that."""
    shop.admin.acls.enable(ADMIN, allow_if_no_acl=True)
    shop.admin.acls.create(allow(BOB, "READ", "TOPIC", "out"))
    alice = shop.as_(ALICE)
    with alice.producer("any") as producer:
        with producer.transaction():
            producer.send("in", b"x")
        producer.begin_transaction()
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("out", b"x")
        producer.abort_transaction()
    assert (committed_values(shop, "in"), committed_values(shop)) == ([b"x"], [])


def test_rules_of_two_processes_at_once_are_all_there(shop: Shop) -> None:
    """``testLocalConcurrentModificationOfResourceAcls``, ``testDistributedConcurrentModificationOfResourceAcls``."""
    other = shop.as_(ADMIN)
    mine, theirs = allow(ALICE, "READ", "TOPIC", "in"), allow(BOB, "READ", "TOPIC", "in")
    assert (shop.admin.acls.list(), other.acls.list()) == ([], [])
    shop.admin.acls.create(mine)
    other.acls.create(theirs)
    shop.admin.acls.create(deny(EVE, "READ", "TOPIC", "in"))
    assert other.acls.delete([mine, theirs]) == (mine, theirs)
    assert shop.admin.acls.list() == other.acls.list() == [deny(EVE, "READ", "TOPIC", "in")]


@pytest.mark.parametrize(
    ("name", "prefixed"), [("foo", False), ("foo", True), ("*", False)], ids=["literal", "prefixed", "every"]
)
def test_rules_of_equal_names_and_other_patterns_are_other_rules(name: str, *, prefixed: bool) -> None:
    """``testAddAclsOn…Resource``, ``testDeleteAclOn…Resource``, ``testDeleteAllAclOn…Resource``."""
    shop = Shop()
    with shop.stack:
        rules = [
            allow(ALICE, "READ", "TOPIC", "foo"),
            allow(ALICE, "READ", "TOPIC", "foo", prefixed=True),
            allow(ALICE, "READ", "TOPIC", "*"),
        ]
        shop.admin.acls.create(rules)
        chosen = allow(ALICE, "READ", "TOPIC", name, prefixed=prefixed)
        assert shop.admin.acls.delete(chosen) == (chosen,)
        assert shop.admin.acls.list() == sorted(set(rules) - {chosen})
        assert shop.admin.acls.explain(ALICE, "READ", "TOPIC", "foo").allowed


def test_the_rules_for_a_name_include_prefixes_and_the_wildcard(shop: Shop) -> None:
    """``AclCommandTest.testPatternTypes``, ``testListAcls`` with the pattern type MATCH."""
    rules = [
        allow(ALICE, "READ", "TOPIC", "foo"),
        allow(ALICE, "READ", "TOPIC", "fo", prefixed=True),
        allow(ALICE, "READ", "TOPIC", "*"),
        allow(ALICE, "READ", "TOPIC", "bar"),
        allow(ALICE, "READ", "GROUP", "foo"),
    ]
    shop.admin.acls.create(rules)
    acls = shop.admin.acls
    assert acls.list(resource_type="TOPIC", resource_name="foo") == [rules[0]]
    assert acls.list(resource_type="TOPIC", resource_name="foo", matching=True) == sorted(rules[:3])


# AuthorizerIntegrationTest: producers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["READ", "DESCRIBE", "CREATE", "ALTER"])
def test_another_right_to_the_topic_does_not_let_one_write(shop: Shop, operation: Operation) -> None:
    """``testProduceWithTopicDescribe``, ``testProduceWithTopicRead``."""
    shop.admin.acls.create(
        [allow(ALICE, operation, "TOPIC", "out"), allow(ALICE, "IDEMPOTENT_WRITE", "CLUSTER", CLUSTER)]
    )
    before = shop.heads()
    with shop.as_(ALICE).producer() as producer:
        after_init = shop.heads()
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("out", b"x")
        assert shop.heads() == after_init
    assert sum(after_init) == sum(before) + 1


def test_auth_03_an_idempotent_producer_with_the_right_writes(shop: Shop) -> None:
    """``shouldSendSuccessfullyWhenIdempotentAndHasCorrectACL``."""
    shop.admin.acls.create([allow(BOB, "IDEMPOTENT_WRITE", "CLUSTER", CLUSTER), allow(BOB, "WRITE", "TOPIC", "out")])
    with shop.as_(BOB).producer(linger=None) as producer:
        producer.send("out", b"x").result()
    assert committed_values(shop) == [b"x"]


def test_auth_03_an_idempotent_producer_that_loses_a_topic_stays_usable_without_a_gap(shop: Shop) -> None:
    """The refused batch had the next sequence number: the next one has it too, and is no gap (SEQ-02).

    Kafka's producer begins a new epoch after a failed batch; both accept the next record.
    """
    rule = allow(BOB, "WRITE", "TOPIC", "out")
    shop.admin.acls.create([rule, allow(BOB, "WRITE", "TOPIC", "in")])
    with shop.as_(BOB).producer(linger=None) as producer:
        producer.send("out", b"1", partition=0).result()
        refused = producer.send("out", b"2", partition=0)
        other = producer.send("in", b"other", partition=0)
        shop.admin.acls.delete(rule)
        with pytest.raises(errors.TopicAuthorizationError):
            producer.flush()
        with pytest.raises(errors.TopicAuthorizationError):
            refused.result()
        assert other.result().offset == 0
        shop.admin.acls.create(rule)
        producer.send("out", b"3", partition=0).result()
    assert (committed_values(shop), committed_values(shop, "in")) == ([b"1", b"3"], [b"other"])


def test_auth_03_without_idempotent_write_a_producer_is_not_made_and_can_be_later(shop: Shop) -> None:
    """``testIdempotentProducerNoIdempotentWriteAclInInitProducerId``; the right may come later (KAFKA-15653)."""
    bob, before = shop.as_(BOB), shop.heads()
    with pytest.raises(errors.ClusterAuthorizationError) as raised:
        bob.producer()
    assert (raised.value.fatal, shop.heads()) == (True, before)
    shop.admin.acls.create(allow(BOB, "IDEMPOTENT_WRITE", "CLUSTER", CLUSTER))
    bob.producer().close()


def test_auth_03_idempotent_write_is_needed_by_the_init_only(shop: Shop) -> None:
    """``testIdempotentProducerNoIdempotentWriteAclInProduce``: since KIP-679 a batch needs the topic only."""
    rule = allow(BOB, "IDEMPOTENT_WRITE", "CLUSTER", CLUSTER)
    shop.admin.acls.create([rule, allow(BOB, "WRITE", "TOPIC", "out")])
    with shop.as_(BOB).producer(linger=None) as producer:
        shop.admin.acls.delete(rule)
        producer.send("out", b"x").result()


@pytest.mark.parametrize("operation", ["DESCRIBE", "TWO_PHASE_COMMIT"])
def test_auth_01_another_right_to_the_id_does_not_let_one_begin(shop: Shop, operation: Operation) -> None:
    """``testTransactionalProducerInitTransactionsNoWriteTransactionalIdAcl``."""
    shop.admin.acls.create(allow(ALICE, operation, "TRANSACTIONAL_ID", "a"))
    before = shop.heads()
    with pytest.raises(errors.TransactionalIdAuthorizationError):
        shop.as_(ALICE).producer("a")
    assert shop.heads() == before


# AuthorizerIntegrationTest: the right to the id is taken away in a transaction ----------------------------------------

WRITE_ID = ALICES[0]


def _send(producer: Producer) -> None:
    producer.send("out", b"more")
    producer.flush()


def _send_offsets(producer: Producer) -> None:
    producer.send_offsets({IN: 1}, "g")
    producer.flush()


#: ``…WhenNoTransactionAccessDuringSend``, ``…OnSendOffsetsToTxn``, ``…OnEndTransaction``.
STEPS: dict[str, Callable[[Producer], object]] = {
    "send": _send,
    "send_offsets": _send_offsets,
    "commit": Producer.commit_transaction,
    "abort": Producer.abort_transaction,
}


@pytest.mark.parametrize("step", STEPS)
def test_auth_01_without_the_id_each_step_is_fatal_and_only_a_new_producer_continues(shop: Shop, step: str) -> None:
    """``shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccess…``; then AUTH-04.

    The transaction stays open, as with a broker, until the next instance or the timeout ends it.
    """
    shop.admin.acls.create(ALICES)
    alice = shop.as_(ALICE)
    producer = alice.producer("a")
    producer.begin_transaction()
    producer.send("out", b"dropped")
    producer.flush()
    shop.admin.acls.delete(WRITE_ID)
    before = shop.heads()
    with pytest.raises(errors.TransactionalIdAuthorizationError) as raised:
        STEPS[step](producer)
    assert raised.value.fatal
    assert shop.heads() == before
    for call in (*STEPS.values(), Producer.begin_transaction):
        with pytest.raises(errors.TransactionalIdAuthorizationError):
            call(producer)
    producer.close()
    assert shop.heads() == before
    assert [txn.state.name for txn in shop.admin.transactions()] == ["ONGOING"]
    with pytest.raises(errors.TransactionalIdAuthorizationError):
        alice.producer("a")
    shop.admin.acls.create(WRITE_ID)
    with alice.producer("a") as again, again.transaction():
        again.send("out", b"kept")
    assert committed_values(shop) == [b"kept"]
    with pytest.raises(errors.GroupNotFoundError):
        shop.admin.group("g")


def test_auth_01_a_close_without_the_id_says_so_and_the_timeout_aborts(shop: Shop) -> None:
    """Java's ``close`` logs it: there, too, the transaction stays open until its timeout."""
    shop.admin.acls.create(ALICES)
    producer = shop.as_(ALICE).producer("a", transaction_timeout=10)
    producer.begin_transaction()
    producer.send("out", b"dropped")
    producer.flush()
    shop.admin.acls.delete(WRITE_ID)
    with pytest.raises(errors.TransactionalIdAuthorizationError):
        producer.close()
    producer.close()
    assert [txn.state.name for txn in shop.admin.transactions()] == ["ONGOING"]
    shop.clock.advance(11_000)
    assert list(shop.as_(BOB).recover().aborted) == ["a"]
    assert committed_values(shop) == []


# AuthorizerIntegrationTest: the right to a topic or group is taken away in a transaction ------------------------------


@pytest.mark.parametrize("flushed", [False, True], ids=["in the buffer", "registered"])
def test_auth_02_what_is_registered_commits_without_the_topic_and_nothing_else(shop: Shop, *, flushed: bool) -> None:
    """``testTransactionalProducerTopicAuthorizationExceptionInCommit``; EndTxn needs the id only."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send("out", b"x")
        if flushed:
            producer.flush()
        shop.admin.acls.delete(allow(ALICE, "WRITE", "TOPIC", "out"))
        if flushed:
            producer.commit_transaction()
        else:
            with pytest.raises(errors.TopicAuthorizationError):
                producer.commit_transaction()
            producer.abort_transaction()
    assert committed_values(shop) == ([b"x"] if flushed else [])


def test_auth_02_a_refused_record_of_a_transaction_with_registered_ones_aborts_all(shop: Shop) -> None:
    """``testTransactionalProducerTopicAuthorizationExceptionInSendCallback``, and what only an abort may follow."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        sent = producer.send("out", b"dropped")
        producer.flush()
        assert sent.result().offset == 0
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("secret", b"x")
        for call in (_send, _send_offsets, Producer.commit_transaction, Producer.begin_transaction):
            with pytest.raises(errors.InvalidTxnStateError, match="abort it") as raised:
                call(producer)
            assert isinstance(raised.value.__cause__, errors.TopicAuthorizationError)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("out", b"kept")
    assert committed_values(shop) == [b"kept"]


@pytest.mark.parametrize("flushed", [False, True], ids=["in the buffer", "registered"])
def test_auth_02_offsets_that_are_registered_commit_without_the_group_and_nothing_else(
    shop: Shop, *, flushed: bool
) -> None:
    """``testSendOffsetsWithNoConsumerGroupWriteAccess``: AddOffsetsToTxn needs the group, and EndTxn does not."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send_offsets({IN: 0}, "g")
        if flushed:
            producer.flush()
        shop.admin.acls.delete(allow(ALICE, "READ", "GROUP", "g"))
        if flushed:
            producer.commit_transaction()
            assert [position.offset for position in shop.admin.group("g").positions] == [0]
        else:
            with pytest.raises(errors.GroupAuthorizationError):
                producer.commit_transaction()
            producer.abort_transaction()
            with pytest.raises(errors.GroupNotFoundError):
                shop.admin.group("g")


def test_auth_02_offsets_of_a_refused_topic_are_abortable_and_none_of_them_is_committed(shop: Shop) -> None:
    """For Java's producer a refused topic in TxnOffsetCommit is unexpected, and so fatal (kafka-differences)."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        with pytest.raises(errors.TopicAuthorizationError) as raised:
            producer.send_offsets({IN: 0, TopicPartition("secret", 0): 0}, "g")
        assert raised.value.resources == ("secret",)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("out", b"kept")
    with pytest.raises(errors.GroupNotFoundError):
        shop.admin.group("g")


def test_an_abort_of_what_was_refused_as_a_whole_needs_no_right(shop: Shop) -> None:
    """A broker has the batches of the other topics, and refuses to abort them (kafka-differences)."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send("out", b"dropped")
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("secret", b"refused")
        shop.admin.acls.delete(WRITE_ID)
        before = shop.heads()
        producer.abort_transaction()
        assert shop.heads() == before
    assert [txn.state.name for txn in shop.admin.transactions()] == ["EMPTY"]


def test_of_several_missing_rights_one_kind_is_named(shop: Shop) -> None:
    """The client asks for the topic first, to upload nothing in vain; a chain for the id (kafka-differences)."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        shop.admin.acls.delete([WRITE_ID, allow(ALICE, "WRITE", "TOPIC", "out")])
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("secret", b"x")
        producer.abort_transaction()
        producer.begin_transaction()
        with pytest.raises(errors.AuthorizationError):
            _send(producer)


# AuthorizerIntegrationTest: consumers, groups, topics -----------------------------------------------------------------


def test_a_commit_of_offsets_is_refused_as_a_whole(shop: Shop) -> None:
    """``testCommitWithNoTopicAccess``; a broker commits those of the topics that are allowed (kafka-differences)."""
    shop.admin.acls.create(ALICES)
    alice, before = shop.as_(ALICE), shop.heads()
    with alice.consumer(group="g") as consumer:
        with pytest.raises(errors.TopicAuthorizationError) as raised:
            consumer.commit({IN: 0, TopicPartition("secret", 0): 0})
        assert (raised.value.resources, shop.heads()) == (("secret",), before)
        consumer.commit({IN: 0})
    with pytest.raises(errors.TopicAuthorizationError):
        alice.reset_offsets("g", {IN: 0, TopicPartition("secret", 0): 0})


def test_groups_need_delete_and_offsets_need_read(shop: Shop) -> None:
    """``testDeleteGroupApiWithDeleteGroupAcl``, ``…WithNoDeleteGroupAcl``."""
    shop.admin.acls.create(ALICES)
    alice = shop.as_(ALICE)
    with alice.consumer(group="g") as consumer:
        consumer.commit({IN: 0})
    with pytest.raises(errors.GroupAuthorizationError) as raised:
        alice.delete_group("g")
    assert (raised.value.operation, raised.value.resources) == ("DELETE", ("g",))
    assert [position.offset for position in shop.admin.group("g").positions] == [0]
    shop.admin.acls.create(allow(ALICE, "DELETE", "GROUP", "g"))
    alice.delete_group("g")


@pytest.mark.parametrize(
    "rule", [allow(ALICE, "CREATE", "TOPIC", "new", prefixed=True), allow(ALICE, "CREATE", "CLUSTER", CLUSTER)]
)
def test_topics_are_created_with_the_right_to_the_name_or_to_the_cluster(shop: Shop, rule: Acl) -> None:
    """``testCreateTopicAuthorizationWithClusterCreate``, ``shouldCreateTopic…WithTopicCreate``."""
    shop.admin.acls.create(rule)
    shop.as_(ALICE).create_topic("new-1")
    if rule.resource_type == "TOPIC":
        with pytest.raises(errors.TopicAuthorizationError):
            shop.as_(ALICE).create_topic("other")


def test_all_of_the_cluster_does_not_allow_to_delete_topics(shop: Shop) -> None:
    """A broker also asks for DELETE on the cluster, which no rule but ALL can allow (kafka-differences)."""
    shop.admin.acls.create(allow(ALICE, "ALL", "CLUSTER", CLUSTER))
    with pytest.raises(errors.TopicAuthorizationError):
        shop.as_(ALICE).delete_topic("out")
    assert "out" in {topic.name for topic in shop.admin.topics()}


def test_describe_alone_can_be_denied_without_an_effect_on_clients(shop: Shop) -> None:
    """A broker needs DESCRIBE for the metadata of a topic and to find coordinators (kafka-differences)."""
    kinds: list[tuple[ResourceType, str]] = [("TOPIC", "out"), ("TRANSACTIONAL_ID", "a"), ("GROUP", "g")]
    shop.admin.acls.create([*ALICES, *[deny(ALICE, "DESCRIBE", kind, name) for kind, name in kinds]])
    assert not shop.admin.acls.explain(ALICE, "DESCRIBE", "TOPIC", "out").allowed
    with shop.as_(ALICE).producer("a") as producer, producer.transaction():
        producer.send("out", b"x")
        producer.send_offsets({IN: 0}, "g")
    assert committed_values(shop) == [b"x"]


def test_a_consumer_of_two_topics_stops_when_it_loses_one(shop: Shop) -> None:
    """``testConsumeWithTopicDescribe…``; a broker still answers the other partitions (kafka-differences)."""
    shop.admin.acls.create([*ALICES, allow(ALICE, "READ", "TOPIC", "secret")])
    alice = shop.as_(ALICE)
    with alice.consumer(["in", "secret"]) as consumer:
        assert consumer.poll() == []
        shop.admin.acls.delete(allow(ALICE, "READ", "TOPIC", "secret"))
        with shop.admin.producer() as producer:
            producer.send("in", b"x", partition=0)
            producer.send("secret", b"x", partition=0)
        for _ in range(2):
            with pytest.raises(errors.TopicAuthorizationError) as raised:
                consumer.poll(timeout=60)
            assert raised.value.resources == ("secret",)
        consumer.subscribe(["in"])
        assert [record.value for record in consumer.poll(timeout=60)] == [b"x"]
