"""Authorization of a store: entries, chains, races, checkpoints, and what a store without it is spared.

TST-25: the transactional half of Kafka's ``AuthorizerIntegrationTest``, in spirit.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from tests.helpers.rounds import compact_rounds
from tests.helpers.shop import ADMIN, ALICE, ALICES, BOB, Shop, allow
from txnstore import errors
from txnstore.compactor import plan_repairs, repair
from txnstore.core.authorization.model import CLUSTER, Acl, ChangeAcls
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(request.param)
    with shop.stack:
        yield shop


def test_auth_01_without_a_right_to_the_id_no_producer_is_made(shop: Shop) -> None:
    alice, before = shop.as_(ALICE), shop.heads()
    with pytest.raises(errors.TransactionalIdAuthorizationError) as raised:
        alice.producer("a-1")
    assert (raised.value.resources, raised.value.operation, shop.heads()) == (("a-1",), "WRITE", before)
    assert alice.metrics().refusals == 1


def test_auth_04_a_producer_can_be_made_after_the_rule_is_there(shop: Shop) -> None:
    """Kafka: ``testRetryProducerInitializationAfterPermissionFix``. The other process was open all the time."""
    alice = shop.as_(ALICE)
    with pytest.raises(errors.TransactionalIdAuthorizationError):
        alice.producer("a-1")
    shop.admin.acls.create(ALICES)
    with alice.producer("a-1") as producer, producer.transaction():
        producer.send("out", b"x")
    assert shop.admin.scan("out").to_table().num_rows == 1


def test_auth_02_a_refused_topic_aborts_the_transaction_and_nothing_else(shop: Shop) -> None:
    """Kafka: ``shouldSuccessfullyAbortTransactionAfterTopicAuthorizationException``."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send("out", b"dropped")
        with pytest.raises(errors.TopicAuthorizationError) as raised:
            producer.send("secret", b"refused")
        assert (raised.value.resources, raised.value.abortable) == (("secret",), True)
        with pytest.raises(errors.TxnStoreError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("out", b"kept")
    assert [record["value"] for record in shop.admin.scan("out").to_table().to_pylist()] == [b"kept"]
    assert shop.admin.scan("secret").to_table().num_rows == 0


def test_auth_02_tst_25_offsets_need_the_group_and_their_topics(shop: Shop) -> None:
    """Kafka: ``testSendOffsetsWithNoConsumerGroup…Access``, ``testTransactionalProducerTopicAuthorization…``."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        for group, topic, error in (
            ("other", "in", errors.GroupAuthorizationError),
            ("g", "secret", errors.TopicAuthorizationError),
        ):
            producer.begin_transaction()
            with pytest.raises(error):
                producer.send_offsets({TopicPartition(topic, 0): 1}, group)
            producer.abort_transaction()
        with producer.transaction():
            producer.send_offsets({TopicPartition("in", 0): 0}, "g")


def test_auth_03_an_idempotent_producer_needs_some_topic(shop: Shop) -> None:
    bob = shop.as_(BOB)
    with pytest.raises(errors.ClusterAuthorizationError):
        bob.producer()
    shop.admin.acls.create(allow(BOB, "WRITE", "TOPIC", "out"))
    with bob.producer(linger=None) as producer:
        producer.send("out", b"x").result()
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send("secret", b"x")
        producer.send("out", b"y").result()
    shop.admin.acls.create(allow("User:eve", "IDEMPOTENT_WRITE", "CLUSTER", CLUSTER))
    shop.as_("User:eve").producer().close()


def test_a_right_that_is_taken_away_ends_with_the_next_entry(shop: Shop) -> None:
    """The buffered record was accepted; its entry comes after the deletion of the rule, and is refused."""
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send("out", b"too late")
        shop.admin.acls.delete(allow(ALICE, "WRITE", "TOPIC", "out"))
        with pytest.raises(errors.TopicAuthorizationError):
            producer.commit_transaction()
        producer.abort_transaction()
    assert shop.admin.scan("out", "read_uncommitted").to_table().num_rows == 0


@pytest.mark.parametrize("first", ["rule", "append"])
def test_an_append_and_the_deletion_of_its_rule_are_decided_by_the_order_of_entries(first: str) -> None:
    """One of them loses the race for the slot, and is decided again after the other."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES)
        objects = FaultStore(shop.objects, sleep=shop.clock.sleep)
        alice = shop.stack.enter_context(open_on(objects, principal=ALICE, runtime=runtime(shop.clock)))
        producer = alice.producer("a", linger=None)
        producer.begin_transaction()
        producer.send("out", b"x")
        rule = allow(ALICE, "WRITE", "TOPIC", "out")
        if first == "rule":
            slot = keys.entry(0, shop.heads()[0] + 1)

            def before(_: int, operation: str, key: str) -> None:
                if (operation, key) == ("put_if_absent", slot):
                    shop.admin.acls.delete(rule)

            objects.plan = before
            with pytest.raises(errors.TopicAuthorizationError):
                producer.commit_transaction()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            shop.admin.acls.delete(rule)
        producer.close()
        assert shop.admin.scan("out").to_table().num_rows == (0 if first == "rule" else 1)


def test_other_chains_follow_from_each_change_before_the_call_returns() -> None:
    shop = Shop(3)
    with shop.stack:
        for change in (shop.admin.acls.create, shop.admin.acls.delete):
            change(ALICES)
            states = [chain.refresh() for chain in connection_of(shop.admin).chains]
            assert [state.seen.get(0, 0) for state in states[1:]] == [states[0].sequence] * 2
            assert all(state.requires.write == ("authorization",) for state in states)


def test_a_change_that_dies_half_way_is_finished_by_the_same_call() -> None:
    shop = Shop(3)
    with shop.stack:
        rule = ALICES[0]
        head = shop.heads()
        slot = keys.entry(2, head[2] + 1)
        shop.faults.plan = lambda _, operation, key: (
            Fault.ERROR_BEFORE if (operation, key) == ("put_if_absent", slot) else None
        )
        with pytest.raises(errors.UnknownOutcomeError):
            shop.admin.acls.create(rule)
        shop.faults.plan = no_faults
        assert shop.admin.acls.create(rule) == ()
        states = [chain.refresh() for chain in connection_of(shop.admin).chains]
        assert [state.seen.get(0, 0) >= states[0].sequence for state in states[1:]] == [True, True]


def test_who_asked_is_in_each_entry_of_a_store_that_checks_rights(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer, producer.transaction():
        producer.send("out", b"x")
    shop.admin.acls.disable()
    shop.admin.create_topic("after")
    for chain in range(len(shop.heads())):
        lines = shop.lines(chain)
        for line in lines:
            if line.principals is not None:
                assert sum(count for _, count in line.principals) == len(line.events)
        named = {name for line in lines for name, _ in line.principals or []}
        assert named <= {ADMIN, ALICE}
    first = shop.lines()
    assert first[0].principals is None
    assert [line.principals for line in first if line.events[0].type == "AuthorizationChanged"] == [[(ADMIN, 1)]] * 2
    assert first[-1].principals is None
    every = [line for chain in range(len(shop.heads())) for line in shop.lines(chain)]
    assert ALICE in {name for line in every for name, _ in line.principals or []}


def test_rules_survive_checkpoints_and_a_new_process(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    shop.admin.checkpoint()
    shop.admin.create_topic("later")
    again = shop.as_(ADMIN)
    assert again.acls.list() == sorted(ALICES)
    settings = again.acls.settings()
    assert (settings.mode, settings.super_users, settings.allow_if_no_acl, settings.rules) == (
        "declared",
        (ADMIN,),
        False,
        4,
    )


def test_checkpoints_are_written_by_those_who_may_maintain_the_store(shop: Shop) -> None:
    """Readers believe them; else any producer could show newcomers another history."""
    shop.admin.acls.create([*ALICES, allow(BOB, "CLUSTER_ACTION", "CLUSTER", CLUSTER)])
    alice, bob = shop.as_(ALICE), shop.as_(BOB)
    before = alice.metrics().checkpoints
    with pytest.raises(errors.ClusterAuthorizationError):
        alice.checkpoint()
    with alice.producer("a") as producer:
        for _ in range(70):
            with producer.transaction():
                producer.send("out", b"x", partition=0)
    assert alice.metrics().checkpoints == before
    assert bob.checkpoint() > 0


def test_maintenance_needs_cluster_action_before_it_writes_anything(shop: Shop) -> None:
    bob = shop.as_(BOB)
    counts, before = connection_of(bob).counts, shop.heads()
    counts.reset()
    for call in (bob.compact, bob.vacuum, bob.retain, bob.checkpoint, lambda: next(compact_rounds(bob))):
        with pytest.raises(errors.ClusterAuthorizationError):
            call()
    assert (counts.snapshot().puts, counts.snapshot().delete, shop.heads()) == (0, 0, before)
    bob.compact(dry_run=True)
    bob.vacuum(dry_run=True)
    shop.admin.acls.create(allow(BOB, "CLUSTER_ACTION", "CLUSTER", CLUSTER))
    for call in (bob.compact, bob.vacuum, bob.retain, bob.checkpoint):
        call()


def test_topics_need_their_rights_and_a_refused_deletion_closes_nothing(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    with shop.admin.producer() as producer:
        producer.send("out", b"x", partition=0)
    alice = shop.as_(ALICE)
    for call in (
        lambda: alice.create_topic("new"),
        lambda: alice.alter_topic("out", partitions=5),
        lambda: alice.alter_topic("out", config={"retention.ms": 5}),
        lambda: alice.delete_topic("out"),
        lambda: alice.delete_records({TopicPartition("out", 0): -1}),
    ):
        before = shop.heads()
        with pytest.raises(errors.TopicAuthorizationError):
            call()
        assert shop.heads() == before
    shop.admin.acls.create(allow(ALICE, "DELETE", "TOPIC", "out"))
    alice.delete_topic("out")


def test_deleted_records_of_several_topics_are_refused_as_a_whole(shop: Shop) -> None:
    """Also if they are in several chains, each of which checks its own. A broker deletes what is allowed."""
    with shop.admin.producer() as producer:
        for topic in ("in", "out"):
            producer.send(topic, b"x", partition=0)
    shop.admin.acls.create(allow(ALICE, "DELETE", "TOPIC", "in"))
    alice = shop.as_(ALICE)
    with pytest.raises(errors.TopicAuthorizationError) as raised:
        alice.delete_records({TopicPartition("in", 0): 1, TopicPartition("out", 0): 1})
    assert raised.value.resources == ("out",)
    assert [shop.admin.scan(topic).to_table().num_rows for topic in ("in", "out")] == [1, 1]
    assert alice.delete_records({TopicPartition("in", 0): 1})


def test_readers_need_their_topics_and_groups(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    alice = shop.as_(ALICE)
    alice.scan("in")
    with pytest.raises(errors.TopicAuthorizationError):
        alice.scan("secret")
    with pytest.raises(errors.TopicAuthorizationError):
        alice.consumer(["in", "secret"])
    with pytest.raises(errors.TopicAuthorizationError):
        alice.consumer().assign([TopicPartition("secret", 0)])
    with pytest.raises(errors.GroupAuthorizationError):
        alice.consumer(["in"], "other")
    with alice.consumer(["in"], "g") as consumer:
        consumer.poll()
        consumer.commit({TopicPartition("in", 0): 0})


def test_a_consumer_that_loses_its_right_stops_with_the_error(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    with shop.admin.producer() as producer:
        producer.send("in", b"x", partition=0)
    with shop.as_(ALICE).consumer(["in"]) as consumer:
        assert len(consumer.poll()) == 1
        shop.admin.acls.delete(allow(ALICE, "READ", "TOPIC", "in"))
        with shop.admin.producer() as producer:
            producer.send("in", b"y", partition=0)
        with pytest.raises(errors.TopicAuthorizationError):
            consumer.poll(timeout=60)
        shop.admin.acls.create(allow(ALICE, "READ", "TOPIC", "in"))
        assert [record.value for record in consumer.poll(timeout=60)] == [b"y"]


def test_no_administrator_locks_himself_out(shop: Shop) -> None:
    acls = shop.admin.acls
    for super_users in ([ALICE], []):
        with pytest.raises(errors.InvalidConfigError, match="could not change the rules again"):
            acls.enable(super_users)
    acls.create(allow(ADMIN, "ALTER", "CLUSTER", CLUSTER))
    acls.enable([])
    with pytest.raises(errors.InvalidConfigError, match="could not change the rules again"):
        acls.delete(allow(ADMIN, "ALTER", "CLUSTER", CLUSTER))
    with pytest.raises(errors.InvalidConfigError, match="could not change the rules again"):
        acls.create(Acl(ADMIN, "DENY", "ALL", "CLUSTER", CLUSTER))
    assert acls.settings().super_users == ()


def test_rules_are_changed_by_those_who_may_alter_the_cluster(shop: Shop) -> None:
    alice, before = shop.as_(ALICE), shop.heads()
    for call in (
        lambda: alice.acls.create(ALICES),
        lambda: alice.acls.delete(ALICES),
        lambda: alice.acls.enable(ALICE),
        alice.acls.disable,
    ):
        with pytest.raises(errors.ClusterAuthorizationError):
            call()
    assert shop.heads() == before


def test_creating_and_deleting_rules_twice_changes_nothing(shop: Shop) -> None:
    acls = shop.admin.acls
    assert acls.create([*ALICES, ALICES[0]]) == tuple(ALICES)
    assert acls.create(ALICES) == ()
    assert acls.delete(ALICES[:2]) == tuple(ALICES[:2])
    assert acls.delete(ALICES) == tuple(ALICES[2:])
    assert acls.list() == []


def test_rules_can_be_prepared_before_they_are_enabled() -> None:
    clock = ManualClock(1_700_000_000_000)
    objects = MemoryStore(clock=clock)
    with create_on(objects, principal=ADMIN, runtime=runtime(clock)) as admin:
        admin.create_topic("out")
        admin.acls.create(ALICES)
        with open_on(objects, principal=BOB, runtime=runtime(clock)) as bob:
            bob.producer("b").close()
            admin.acls.enable(ADMIN)
            with pytest.raises(errors.TransactionalIdAuthorizationError):
                bob.producer("b")


def test_a_store_that_never_enabled_it_has_no_trace_of_it_and_makes_no_request() -> None:
    """Whatever principals its users name: the same objects, byte by byte, and the same requests."""
    seen = []
    for principal in (None, ALICE):
        clock = ManualClock(1_700_000_000_000)
        objects = MemoryStore(clock=clock)
        counting = CountingStore(objects)
        fixed = keys.FixedRuntime(clock, clock.sleep, random.Random(5), InlineExecutor, InlineExecutor, spawn=never)
        with create_on(counting, 2, principal=principal, runtime=fixed) as store:
            store.create_topic("t", partitions=2)
            with store.producer("p") as producer, producer.transaction():
                producer.send("t", b"x", partition=0)
                producer.send("t", b"x", partition=1)
            store.checkpoint()
        stored = {item.key: objects.get(item.key) for item in objects.list("") if "_probe" not in item.key}
        traces = rb'"principals":\[|"authorization":\{|"write":\["'
        assert not any(re.search(traces, data) for data in stored.values())
        seen.append((stored, counting.snapshot()))
    assert seen[0] == seen[1]


def test_the_principal_comes_from_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_700_000_000_000)
    objects = MemoryStore(clock=clock)
    create_on(objects, runtime=runtime(clock)).close()
    assert open_on(objects).principal == "User:ANONYMOUS"
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", ALICE)
    assert open_on(objects).principal == ALICE
    assert open_on(objects, principal=BOB).principal == BOB
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", "alice")
    with pytest.raises(errors.InvalidConfigError, match="'User:' and a name"):
        open_on(objects)
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", "")
    assert open_on(objects).principal == "User:ANONYMOUS"


def test_errors_keep_what_they_say_when_a_task_of_spark_sends_them() -> None:
    error = errors.TopicAuthorizationError("no right", ALICE, "WRITE", ("a", "b"))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - from this line
    assert (str(again), again.principal, again.operation, again.resources) == ("no right", ALICE, "WRITE", ("a", "b"))


def test_explain_names_what_decides(shop: Shop) -> None:
    acls = shop.admin.acls
    acls.create(ALICES)
    verdict = acls.explain(ALICE, "WRITE", "TRANSACTIONAL_ID", "a-7")
    assert (verdict.allowed, verdict.reason, verdict.acl) == (True, "rule", ALICES[0])
    assert acls.explain(ALICE, "ALTER", "CLUSTER").reason == "no rule for the resource"
    assert acls.explain(ADMIN, "ALTER", "CLUSTER").reason == "super user"
    with pytest.raises(errors.InvalidConfigError, match="'User:' and a name"):
        acls.explain("alice", "WRITE", "TOPIC", "t")
    with pytest.raises(errors.InvalidConfigError, match="no CREATE on a GROUP"):
        acls.explain(ALICE, "CREATE", "GROUP", "g")
    with pytest.raises(errors.InvalidConfigError, match="resource_type"):
        acls.explain(ALICE, "READ", "TABLE", "g")  # type: ignore[arg-type]


def test_lists_are_not_filtered_and_an_unknown_topic_is_unknown_to_all(shop: Shop) -> None:
    """Every reader of a chain sees them: hiding them from those without DESCRIBE would only look like protection."""
    alice = shop.as_(ALICE)
    assert [topic.name for topic in alice.topics()] == ["in", "out", "secret"]
    assert alice.transactions() == []
    for read in (alice.scan, lambda name: alice.offsets(name, 0)):
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            read("none")


def test_lists_of_rules_can_be_narrowed(shop: Shop) -> None:
    acls = shop.admin.acls
    acls.create([*ALICES, allow(BOB, "WRITE", "TOPIC", "out"), allow("User:*", "READ", "TOPIC", "*")])
    assert len(acls.list()) == 6
    assert acls.list(BOB) == [allow(BOB, "WRITE", "TOPIC", "out")]
    assert acls.list(resource_type="GROUP") == [ALICES[3]]
    assert acls.list(resource_name="out") == [
        allow(ALICE, "WRITE", "TOPIC", "out"),
        allow(BOB, "WRITE", "TOPIC", "out"),
    ]
    assert len(acls.list(resource_type="TOPIC", resource_name="out", matching=True)) == 3
    assert acls.list(resource_name="a-9", matching=True, resource_type="TRANSACTIONAL_ID") == [ALICES[0]]


def test_wrong_rules_are_refused_whole(shop: Shop) -> None:
    before = shop.heads()
    for wrong in (
        [ALICES[0], Acl("alice", "ALLOW", "READ", "TOPIC", "t")],
        [Acl(ALICE, "MAYBE", "READ", "TOPIC", "t")],  # type: ignore[arg-type]
        [Acl(ALICE, "ALLOW", "READ", "TOPIC", "t", "ANY")],  # type: ignore[arg-type]
        ["rule"],
    ):
        with pytest.raises(errors.InvalidConfigError):
            shop.admin.acls.create(wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidConfigError):
        connection_of(shop.admin).submit(ChangeAcls(created=(Acl(ALICE, "ALLOW", "CREATE", "GROUP", "g"),)))
    assert shop.heads() == before


def test_the_shop_of_three_chains_uses_all_of_them() -> None:
    """So that the tests above are of several chains."""
    led = {chain_of_partition(TopicPartition("out", number), 3) for number in range(4)}
    assert led == {0, 1, 2}
    assert {chain_of_transactional_id("a", 3), chain_of_transactional_id("a-1", 3), chain_of_group("g", 3)} != {0}


def test_a_lost_change_of_the_rules_stops_the_chains_that_follow_from_it() -> None:
    """Which rules hold is not known then; a process that has older ones must not continue with these."""
    shop = Shop(2)
    with shop.stack:
        shop.admin.acls.create(ALICES)
        alice = shop.as_(ALICE)
        tp = next(TopicPartition("out", n) for n in range(4) if chain_of_partition(TopicPartition("out", n), 2) == 1)
        first, second = alice.producer(linger=None), alice.producer(linger=None)
        first.send("out", b"x", partition=tp.partition).result()
        shop.admin.acls.delete(allow(ALICE, "WRITE", "TOPIC", "out"))
        key = keys.entry(0, connection_of(shop.admin).chains[0].state.sequence)
        lost = shop.objects.get(key)
        shop.objects.delete([key])
        with pytest.raises(errors.CorruptionError, match="is missing"):
            first.send("out", b"y", partition=tp.partition).result()
        shop.objects.put(key, lost)
        with pytest.raises(errors.TopicAuthorizationError):
            second.send("out", b"z", partition=tp.partition).result()
        second.close()
        assert [row["value"] for row in shop.admin.scan("out").to_table().to_pylist()] == [b"x"]


def test_a_marker_by_hand_and_a_repair_need_cluster_action(shop: Shop) -> None:
    shop.admin.acls.create(ALICES)
    with shop.as_(ALICE).producer("a") as producer:
        producer.begin_transaction()
        producer.send("out", b"x", partition=0)
        producer.flush()
        bob, before = shop.as_(BOB), shop.heads()
        with pytest.raises(errors.AuthorizationError):
            bob.abort_transaction("a")
        with pytest.raises(errors.AuthorizationError):
            bob.abort_hanging("out", 0, producer.producer_id)
        assert shop.heads() == before
        shop.objects.delete([item.key for item in shop.objects.list("chains/latest")])
        plan = plan_repairs(connection_of(shop.as_(BOB)))
        with pytest.raises(errors.ClusterAuthorizationError):
            repair(connection_of(shop.as_(BOB)), plan)
        shop.admin.acls.create(allow(BOB, "CLUSTER_ACTION", "CLUSTER", CLUSTER))
        assert bob.abort_hanging("out", 0, producer.producer_id)
        repair(connection_of(shop.as_(BOB)), plan)


@pytest.mark.parametrize("chains", [1, 3])
def test_checking_rights_makes_no_request_more(chains: int) -> None:
    """The same work, in a store with rules and in one without; the rules were there before it began."""
    counted = []
    for enabled in (False, True):
        shop = Shop(chains)
        with shop.stack:
            shop.admin.acls.create([*ALICES, allow(ALICE, "READ", "TOPIC", "out")])
            if not enabled:
                shop.admin.acls.disable()
            alice = shop.as_(ALICE)
            counts = connection_of(alice).counts
            counts.reset()
            with alice.producer("a") as producer:
                for _ in range(5):
                    with producer.transaction():
                        for number in range(4):
                            producer.send("out", b"x", partition=number)
                        producer.send_offsets({TopicPartition("in", 0): 0}, "g")
            with alice.consumer(["out"], "g") as consumer:
                consumer.poll()
                consumer.commit()
            alice.scan("out").to_table()
            total = counts.snapshot()
            counted.append((total.get, total.puts, total.list, total.stat, total.delete))
    assert counted[0] == counted[1]
