"""What the doctor says of the rules of a store: nothing without any, and what to do about those without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.compaction import new_store, runtime
from tests.helpers.connections import connection_of
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.compactor import Finding, Severity
from txnstore.compactor.doctor.authorization import _chains_behind_rules, _role_findings
from txnstore.core.authorization.model import CLUSTER, Acl, ChangeAcls, ChangeAuthorization
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Map
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock

ME, ALICE = "User:ANONYMOUS", "User:alice"
MAINTAINER = Acl("User:jobs", "ALLOW", "CLUSTER_ACTION", "CLUSTER", CLUSTER)


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore, chains: int) -> Store:
    store = new_store(clock, objects, chains=chains)
    store.create_topic("t", partitions=3)
    store.acls.enable(ME)
    return store


def _findings(store: Store) -> dict[str, Finding]:
    return {item.name: item for item in store.doctor().findings if item.section == "authorization"}


def test_nothing_is_said_of_a_store_that_never_had_rules(clock: ManualClock, chains: int) -> None:
    assert _findings(new_store(clock, chains=chains)) == {}


def test_only_super_users_write_checkpoints_until_a_rule_says_otherwise(store: Store) -> None:
    findings = _findings(store)
    assert {name: item.severity for name, item in findings.items()} == {"mode": "ok", "maintainers": "note"}
    assert findings["mode"].message == "rights are checked, by 0 rules, 1 super user"
    assert "CLUSTER_ACTION --cluster" in findings["maintainers"].command
    store.acls.create([MAINTAINER])
    assert [*_findings(store)] == ["mode"]
    store.acls.create([Acl("User:*", "DENY", "ALL", "CLUSTER", CLUSTER)])
    assert "maintainers" in _findings(store)
    store.acls.disable()
    assert {name: item.severity for name, item in _findings(store).items()} == {"mode": "note"}


def test_missing_checkpoints_of_a_store_without_a_maintainer_are_a_warning(clock: ManualClock) -> None:
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t")
    store.acls.enable(ME)
    store.acls.create([Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "t")])
    with open_on(objects, principal=ALICE) as alice, alice.producer() as producer:
        for _ in range(4 * CHECKPOINT_EVERY):
            producer.send("t", b"x").result()
    findings = {item.name: item for item in store.doctor().findings}
    assert findings["hint"].severity is Severity.WARN, "no checkpoint was written by who may not"
    assert findings["maintainers"].severity is Severity.WARN
    store.checkpoint()
    assert _findings(store)["maintainers"].severity is Severity.NOTE


def test_rules_without_effect_are_named(store: Store) -> None:
    shadowed = [
        (Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "t"), Acl("User:*", "DENY", "ALL", "TOPIC", "*")),
        (Acl(ALICE, "ALLOW", "READ", "GROUP", "ga", "PREFIXED"), Acl(ALICE, "DENY", "READ", "GROUP", "g", "PREFIXED")),
        (Acl(ALICE, "ALLOW", "ALL", "GROUP", "g"), Acl(ALICE, "DENY", "ALL", "GROUP", "g")),
    ]  # fmt: skip
    others = [
        (Acl(ALICE, "ALLOW", "ALL", "TOPIC", "t"), Acl(ALICE, "DENY", "WRITE", "TOPIC", "t")),
        (Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "t"), Acl("User:bob", "DENY", "WRITE", "TOPIC", "t")),
        (Acl(ALICE, "ALLOW", "WRITE", "TOPIC", "t", "PREFIXED"), Acl(ALICE, "DENY", "WRITE", "TOPIC", "t")),
        (Acl(ALICE, "ALLOW", "READ", "GROUP", "t"), Acl(ALICE, "DENY", "READ", "TOPIC", "t")),
        (Acl(ALICE, "ALLOW", "READ", "GROUP", "*"), Acl(ALICE, "DENY", "READ", "GROUP", "t", "PREFIXED")),
    ]
    for rules, expected in [*((rules, True) for rules in shadowed), *((rules, False) for rules in others)]:
        store.acls.create([MAINTAINER, *rules])
        findings = _findings(store)
        assert ("denied" in findings) is expected, rules
        if expected:
            assert (findings["denied"].severity, str(rules[0]) in findings["denied"].message) == ("note", True)
        store.acls.delete(rules)


def test_rules_for_super_users_and_absent_topics_are_named(store: Store) -> None:
    store.acls.create([MAINTAINER, Acl(ALICE, "ALLOW", "READ", "TOPIC", "t"), Acl(ME, "ALLOW", "READ", "TOPIC", "t")])
    assert {name: item.severity for name, item in _findings(store).items()} == {"mode": "ok", "super-users": "note"}
    store.acls.create([Acl(ME, "DENY", "WRITE", "TOPIC", "t"), Acl(ALICE, "ALLOW", "READ", "TOPIC", "tt")])
    store.acls.create(
        [Acl(ALICE, "ALLOW", "READ", "TOPIC", "absent", "PREFIXED"), Acl(ALICE, "DENY", "READ", "TOPIC", "*")]
    )
    findings = _findings(store)
    assert findings["super-users"].severity is Severity.WARN
    assert findings["topics"].message == "rules for 1 topic that does not exist: 'tt'"


def test_a_store_without_an_administrator_is_bad() -> None:
    """No command leads to it: a change that locks its caller out is refused."""
    acl = Acl(ALICE, "ALLOW", "ALTER", "CLUSTER", CLUSTER)
    for rules, expected in [([acl], False), ([acl, replace(acl, permission="DENY")], True), ([], True)]:
        authorization = Authorization("declared", acls=Map(dict.fromkeys(rules)))
        found = {item.name: item.severity for item in _role_findings(authorization, rules, lacks_checkpoint=False)}
        assert ("administrators" in found) is expected
        assert found.get("administrators", Severity.BAD) is Severity.BAD


@pytest.mark.parametrize("first", [True, False], ids=["enable", "a later change"])
def test_a_change_that_has_died_half_way_is_found_and_repeated(clock: ManualClock, *, first: bool) -> None:
    """Chain 0 has the change; another chain does not follow from it, so its writers need not know it."""
    store = new_store(clock, chains=3)
    store.create_topic("t")
    acl = Acl(ALICE, "ALLOW", "READ", "TOPIC", "t")
    if not first:
        store.acls.enable(ME)
    connection_of(store).chain.submit(
        ChangeAuthorization("declared", (ME,)) if first else ChangeAcls(created=(MAINTAINER, acl))
    )
    findings = _findings(store)
    assert findings["follows"].severity is Severity.WARN
    assert "chain 1, 2" in findings["follows"].message
    store.acls.create([acl])
    assert "follows" not in _findings(store)
    store.create_topic("u")  # An entry of chain 0 that the others need not follow.
    assert "follows" not in _findings(store)


def test_the_rules_of_earlier_are_looked_up_once(clock: ManualClock) -> None:
    """Chains that do not follow from the head cost the read of one earlier state, however many they are."""
    objects, requests = MemoryStore(clock=clock), []
    store = new_store(clock, objects, chains=9)
    store.acls.enable(ME)
    for topics in (0, 10):
        for number in range(topics):
            store.create_topic(f"t{number}")
        counting = CountingStore(objects)
        with open_on(counting, read_only=True, runtime=runtime(clock)) as reader:
            view = reader.snapshot().view
            counting.reset()
            assert _chains_behind_rules(connection_of(reader), view.states[0], view) == []
            requests.append(counting.snapshot().requests)
    assert requests[0] == 0, "all chains follow from the head"
    assert 0 < requests[1] <= 12


def test_a_store_whose_rules_everyone_may_change_is_a_warning(store: Store) -> None:
    store.acls.enable(ME, allow_if_no_acl=True)
    assert "no rule is for the cluster" in _findings(store)["administrators"].message
    store.acls.create([MAINTAINER])
    assert "administrators" not in _findings(store)
    store.acls.create([Acl("User:*", "ALLOW", "ALL", "CLUSTER", CLUSTER)])
    assert "one allows it to everyone" in _findings(store)["administrators"].message
    assert _findings(store)["administrators"].severity is Severity.WARN
