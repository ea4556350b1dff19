"""Seams of authorization: what is half done, who writes checkpoints, which rules a check returns."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers import keys
from tests.helpers.compaction import runtime
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_quietly
from tests.helpers.rounds import compact_rounds
from tests.helpers.shop import ADMIN, ALICE, ALICES, BOB, Shop, allow
from txnstore import errors
from txnstore.chain.chains import Chains
from txnstore.chain.context import CHECKPOINT_EVERY, ChainContext
from txnstore.compactor import plan_repairs, repair
from txnstore.core.authorization.model import CLUSTER, Acl
from txnstore.core.authorization.rights import read_topics
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Map
from txnstore.core.state import State
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults

DELETE_OUT = allow(ALICE, "DELETE", "TOPIC", "out")
MAINTAIN = allow(BOB, "CLUSTER_ACTION", "CLUSTER", CLUSTER)


# Deletions of topics --------------------------------------------------------------------------------------------------


def test_a_refused_deletion_closes_no_chain() -> None:
    shop = Shop(3)
    with shop.stack:
        shop.admin.acls.create([*ALICES, DELETE_OUT])
        alice = shop.as_(ALICE)
        # The change dies before the other chains follow from it.
        shop.faults.plan = lambda _, operation, key: (
            Fault.ERROR_BEFORE if operation == "put_if_absent" and keys.chain_number(key) != 0 else None
        )
        with pytest.raises(errors.UnknownOutcomeError):
            shop.admin.acls.delete(DELETE_OUT)
        before = shop.heads()
        with pytest.raises(errors.TopicAuthorizationError):
            alice.delete_topic("out")
        assert shop.heads() == before


def test_a_deletion_that_loses_its_right_half_way_has_an_unknown_outcome() -> None:
    """Chains have closed the topic: a refusal would say that nothing was changed."""
    shop = Shop(3)
    with shop.stack:
        shop.admin.acls.create([*ALICES, DELETE_OUT])
        objects = FaultStore(shop.objects, sleep=shop.clock.sleep)
        alice = shop.stack.enter_context(open_on(objects, principal=ALICE, runtime=runtime(shop.clock)))
        slot = keys.entry(0, shop.heads()[0] + 1)

        def before(_: int, operation: str, key: str) -> None:
            if (operation, key) == ("put_if_absent", slot):  # The deletion, after the other chains have closed it.
                shop.admin.acls.delete(DELETE_OUT)

        objects.plan = before
        with pytest.raises(errors.UnknownOutcomeError, match="no right to DELETE"):
            alice.delete_topic("out")
        assert shop.admin.recover().topics == 1
        assert "out" not in {topic.name for topic in shop.admin.topics()}


def test_a_recovery_counts_the_deletions_that_it_has_finished() -> None:
    shop = Shop(3)
    with shop.stack:
        head = shop.heads()[0]
        shop.faults.plan = lambda _, operation, key: (
            Fault.ERROR_BEFORE if (operation, key) == ("put_if_absent", keys.entry(0, head + 1)) else None
        )
        with pytest.raises(errors.UnknownOutcomeError):
            shop.admin.delete_topic("out")
        shop.faults.plan = no_faults
        assert shop.as_(BOB).recover().topics == 0
        assert shop.as_(ADMIN).recover().topics == 1


# Checkpoints ----------------------------------------------------------------------------------------------------------


def commit(store: Store, count: int) -> None:
    with store.producer("a") as producer:
        for _ in range(count):
            with producer.transaction():
                producer.send("out", b"x", partition=0)


@pytest.mark.slow
def test_a_process_that_may_maintain_writes_the_checkpoint_that_others_may_not() -> None:
    """Alice's entries are at all multiples of the interval: else no checkpoint would exist, and opens read it all."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create([*ALICES, MAINTAIN, allow(BOB, "WRITE", "TOPIC", "in")])
        bob, alice = shop.as_(BOB), shop.as_(ALICE)
        commit(alice, 2 * CHECKPOINT_EVERY)
        assert (bob.metrics().checkpoints, alice.metrics().checkpoints) == (0, 0)
        with bob.producer() as producer:
            producer.send("in", b"x").result()
            producer.send("in", b"y").result()
        assert bob.metrics().checkpoints == 1
        commit(alice, 2 * CHECKPOINT_EVERY)
        for call in (bob.compact, bob.vacuum, lambda: next(compact_rounds(bob))):
            before = bob.metrics().checkpoints
            call()
            call()
            assert bob.metrics().checkpoints == before + (call == bob.compact)
            if call == bob.compact:
                newcomer = shop.as_(ALICE)
                assert connection_of(newcomer).counts.snapshot().get < CHECKPOINT_EVERY


@pytest.mark.slow
def test_a_process_that_has_just_opened_the_store_writes_overdue_checkpoints_of_all_chains() -> None:
    """It reads the chains at once, so it may read their entries before it knows who may write checkpoints."""
    shop = Shop(3)
    with shop.stack:
        shop.admin.acls.create([*ALICES, MAINTAIN])
        alice = shop.as_(ALICE)
        with alice.producer("a", linger=None) as producer:
            for _ in range(CHECKPOINT_EVERY + 20):
                with producer.transaction():
                    for number in range(4):
                        producer.send("out", b"x", partition=number)
        assert min(shop.heads()) > CHECKPOINT_EVERY
        assert alice.metrics().checkpoints == 0
        names = connection_of(shop.admin).keys
        chains = Chains(ChainContext(shop.objects, names, runtime(shop.clock), InlineExecutor(), 3, principal=BOB))
        for number in (1, 2, 0):
            chains[number].load(None)
        chains.save_if_overdue()
        assert [chain.metrics.checkpoints for chain in chains] == [1, 1, 1]
        chains.save_if_overdue()
        assert [chain.metrics.checkpoints for chain in chains] == [1, 1, 1]


@pytest.mark.slow
def test_processes_that_may_maintain_write_one_checkpoint_together() -> None:
    """Each multiple of the interval is the entry of one of them, which writes it; the others know."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create([*ALICES, MAINTAIN, allow(ALICE, "CLUSTER_ACTION", "CLUSTER", CLUSTER)])
        shop.admin.checkpoint()
        one, two = shop.as_(ALICE), shop.as_(ALICE)
        with one.producer("a-1", linger=None) as first, two.producer("a-2", linger=None) as second:
            for _ in range(2 * CHECKPOINT_EVERY):
                for producer in (first, second):
                    with producer.transaction():
                        producer.send("out", b"x", partition=0)
        assert one.metrics().checkpoints + two.metrics().checkpoints == 4


# Merges in the background ---------------------------------------------------------------------------------------------


def inlined(shop: Shop) -> dict[str, int]:
    """The number of batches in entries, by topic."""
    logs = connection_of(shop.admin).view().partitions
    return {
        name: sum(batch.segment.inlined for tp, log in logs.items() if tp.topic == name for batch in log.batches)
        for name in ("out", "secret")
    }


def read_by(store: Store) -> dict[str, Any]:
    """The rows of each topic that a principal may read, by a scan and by SQL, or the class of the refusal."""
    found: dict[str, Any] = {}
    for name in ("out", "in", "secret"):
        try:
            scanned = store.scan(name).to_table().to_pylist()
            query = f'SELECT value FROM "{name}" ORDER BY _partition, _offset'
            found[name] = scanned, store.sql(query).fetchall()
        except errors.TopicAuthorizationError as error:
            found[name] = type(error)
    shown = "SELECT DISTINCT topic FROM txn.segments ORDER BY topic"
    return found | {"txn.segments": store.sql(shown).fetchall()}


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
def test_only_a_principal_that_may_maintain_merges_and_nobody_reads_more(chains: int) -> None:
    """One that may not read a topic merges it, as it compacts it; another one's merge has no effect."""
    shop = Shop(chains)
    with shop.stack:
        shop.admin.acls.create(
            [*ALICES, MAINTAIN, allow(BOB, "WRITE", "TOPIC", "in"), allow(BOB, "READ", "TOPIC", "in")]
        )
        alice, bob = shop.as_(ALICE), shop.as_(BOB)
        connection_of(shop.admin).merge_later = None
        for store in (alice, bob):
            for chain in connection_of(store).chains:
                chain._checkpoint_every = 8
        for store, name in ((shop.admin, "secret"), (alice, "out")):
            with store.producer() as producer:
                for number in range(16):
                    for partition in range(4):
                        producer.send(name, b"%d" % number, partition=partition)
                    producer.flush()
        before = inlined(shop)
        assert before == {"out": 16 * 4, "secret": 16 * 4}
        assert alice.metrics().background_merge_failures == 0
        assert shop.objects.list("topics/") == [], "it has not begun"
        refused = [merge_quietly(alice, chain) for chain in range(chains)]
        assert [report.batches for report in refused] == [0] * chains
        assert {type(error) for report in refused for error in report.errors} == {errors.ClusterAuthorizationError}
        assert inlined(shop) == before
        principals = {store: read_by(store) for store in (shop.admin, alice, bob)}
        with bob.producer() as producer:
            for number in range(24):
                for partition in range(4):
                    producer.send("in", b"%d" % number, partition=partition)
                producer.flush()
        assert inlined(shop) == {"out": 0, "secret": 0}
        assert bob.metrics().background_merged_batches >= 2 * 16 * 4
        for store, earlier in principals.items():
            found = read_by(store)
            assert (found["out"], found["secret"]) == (earlier["out"], earlier["secret"])
            if store is not shop.admin:
                assert found["secret"] is errors.TopicAuthorizationError
                assert ("secret",) not in found["txn.segments"]
        assert shop.admin.verify(deep=True).violations == ()


# Checks of clients ----------------------------------------------------------------------------------------------------


def test_a_check_returns_the_rules_that_it_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads newer ones meanwhile: who keeps the answer would take these for checked."""
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES)
        connection = connection_of(shop.as_(ALICE))
        checked = connection.chain.state.authorization
        allows = Authorization.allows

        def slow(self: Authorization, *question: Any) -> bool:
            monkeypatch.setattr(Authorization, "allows", allows)
            answer = self.allows(*question)
            shop.admin.acls.delete(ALICES)
            connection.view()
            return answer

        monkeypatch.setattr(Authorization, "allows", slow)
        assert connection.check_rights(read_topics(["in"])) is checked
        assert connection.chain.state.authorization is not checked


def test_pinned_reads_are_checked_by_the_newest_rules() -> None:
    shop = Shop()
    with shop.stack:
        shop.admin.acls.create(ALICES)
        with shop.admin.producer() as producer:
            producer.send("in", b"x")
            producer.send("secret", b"y")
        alice = shop.as_(ALICE)
        pinned = alice.snapshot()
        read = allow(ALICE, "READ", "TOPIC", "secret")
        with pytest.raises(errors.TopicAuthorizationError):
            alice.sql("SELECT * FROM secret", snapshot=pinned).fetchall()
        shop.admin.acls.create(read)
        assert len(alice.sql("SELECT * FROM secret", snapshot=pinned).fetchall()) == 1
        assert alice.scan("secret", snapshot=pinned).to_table().num_rows == 1
        shop.admin.acls.delete(read)
        with pytest.raises(errors.TopicAuthorizationError):
            alice.scan("secret", snapshot=pinned)
        shop.admin.acls.create(read)
        shop.admin.acls.delete(read)
        with pytest.raises(errors.TopicAuthorizationError):
            alice.sql("SELECT * FROM secret", snapshot=pinned).fetchall()


def test_a_repair_is_refused_if_the_rules_cannot_be_read_now() -> None:
    """A failed request is no damage: the store may be sound, and its rules say no."""
    shop = Shop()
    with shop.stack:
        shop.admin.checkpoint()
        shop.objects.delete([keys.latest(0)])
        objects = FaultStore(shop.objects, sleep=shop.clock.sleep)
        connection = connection_of(
            shop.stack.enter_context(open_on(objects, principal=BOB, runtime=runtime(shop.clock)))
        )
        plan = plan_repairs(connection)
        assert plan.repairs
        objects.plan = lambda _, operation, key: Fault.UNAVAILABLE_503 if operation == "get" else None
        with pytest.raises(errors.StorageError):
            repair(connection, plan)
        objects.plan = no_faults
        with pytest.raises(errors.ClusterAuthorizationError):
            repair(connection, plan)
        assert not shop.objects.list(keys.latest(0))


@pytest.mark.parametrize("principal", [5, b"User:a", ["User:a"]])
def test_a_principal_of_a_wrong_type_is_an_invalid_argument(principal: Any) -> None:
    clock = ManualClock(1_700_000_000_000)
    with pytest.raises(errors.InvalidConfigError, match="'User:' and a name"):
        open_on(MemoryStore(clock=clock), principal=principal)
    shop = Shop()
    with shop.stack:
        wrong = [Acl(principal, "ALLOW", "READ", "TOPIC", "t"), Acl(ALICE, "ALLOW", "READ", "TOPIC", principal)]
        for acl in wrong:
            with pytest.raises(errors.InvalidConfigError):
                shop.admin.acls.create(acl)


def test_rules_are_pickled_without_what_is_derived_from_them() -> None:
    rules = Authorization("declared", acls=Map(dict.fromkeys(ALICES)))
    state, size = State(authorization=rules), len(pickle.dumps(rules))
    assert rules.allows(ALICE, "READ", "TOPIC", "in")
    assert rules.sorted_acls == sorted(ALICES)
    assert len(pickle.dumps(rules)) == size
    assert pickle.loads(pickle.dumps(state)) == state  # noqa: S301 - from this line


def test_super_users_are_single_principals() -> None:
    shop = Shop()
    with shop.stack:
        for users in ("User:*", ["User:*", ADMIN]):
            with pytest.raises(errors.InvalidConfigError, match="everyone in rules only"):
                shop.admin.acls.enable(users)


@pytest.mark.parametrize(
    ("name", "pattern", "refused"),
    [
        ("secret*", "LITERAL", "no wildcard"),
        ("a b", "LITERAL", "no topic is named"),
        ("ärger", "LITERAL", "no topic is named"),
        ("a/", "PREFIXED", "no topic begins with"),
        (".", "PREFIXED", None),
        ("*", "LITERAL", None),
    ],
)
def test_a_rule_for_a_name_that_no_topic_can_have_is_refused(name: str, pattern: Any, refused: str | None) -> None:
    """It would deny nothing, and look as if it did."""
    shop = Shop()
    with shop.stack:
        acl = Acl(ALICE, "DENY", "READ", "TOPIC", name, pattern)
        if refused is None:
            assert shop.admin.acls.create(acl) == (acl,)
        else:
            with pytest.raises(errors.InvalidConfigError, match=refused):
                shop.admin.acls.create(acl)


def test_an_error_says_that_no_principal_is_named() -> None:
    shop = Shop()
    with shop.stack, pytest.raises(errors.TopicAuthorizationError, match="No principal is given"):
        shop.as_("User:ANONYMOUS").create_topic("t")
