"""What the rules allow: Kafka's ``StandardAuthorizerTest`` and ``AuthorizerTest``, in spirit, and the budget."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from txnstore.core.authorization import rules as rules_module
from txnstore.core.authorization.changes import check_acl, check_principal
from txnstore.core.authorization.model import (
    CLUSTER,
    OPERATIONS,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Map
from txnstore.errors import InvalidConfigError

ALICE, BOB, EVERYONE = "User:alice", "User:bob", "User:*"


def of(*acls: Acl, super_users: tuple[str, ...] = (), allow_if_no_acl: bool = False) -> Authorization:
    return Authorization("declared", frozenset(super_users), allow_if_no_acl, Map(dict.fromkeys(acls)))


def allow(
    operation: Operation,
    name: str,
    principal: str = ALICE,
    pattern: PatternType = "LITERAL",
    kind: ResourceType = "TOPIC",
    permission: Permission = "ALLOW",
) -> Acl:
    return Acl(principal, permission, operation, kind, name, pattern)


def deny(operation: Operation, name: str, principal: str = ALICE, pattern: PatternType = "LITERAL") -> Acl:
    return allow(operation, name, principal, pattern, permission="DENY")


def test_without_a_rule_nothing_is_allowed_unless_the_store_says_so() -> None:
    assert not of().allows(ALICE, "READ", "TOPIC", "t")
    assert of(allow_if_no_acl=True).allows(ALICE, "READ", "TOPIC", "t")
    assert Authorization("off").allows(ALICE, "READ", "TOPIC", "t")


def test_a_rule_for_somebody_else_is_a_rule_for_the_resource() -> None:
    """Kafka: ``allow.everyone.if.no.acl.found`` is for resources without any rule."""
    rules = of(allow("READ", "t", BOB), allow_if_no_acl=True)
    assert not rules.allows(ALICE, "READ", "TOPIC", "t")
    assert rules.allows(ALICE, "READ", "TOPIC", "u")
    assert rules.allows(ALICE, "READ", "GROUP", "t")
    assert rules.explain(ALICE, "READ", "TOPIC", "t").reason == "no rule allows it"
    assert rules.explain(ALICE, "READ", "TOPIC", "u").reason == "no rule for the resource"


def test_a_rule_that_denies_wins_over_all_that_allow() -> None:
    for denying in (deny("READ", "tab"), deny("ALL", "*"), deny("READ", "t", EVERYONE, "PREFIXED")):
        rules = of(allow("READ", "tab"), allow("ALL", "*"), allow("ALL", "ta", EVERYONE, "PREFIXED"), denying)
        assert not rules.allows(ALICE, "READ", "TOPIC", "tab")
        assert rules.explain(ALICE, "READ", "TOPIC", "tab").acl == denying
        assert rules.allows(ALICE, "WRITE", "TOPIC", "tab") is (denying.operation != "ALL")


def test_super_users_may_do_everything() -> None:
    rules = of(deny("ALL", "*", EVERYONE), super_users=(ALICE,))
    assert rules.allows(ALICE, "WRITE", "TOPIC", "t")
    assert rules.allows(ALICE, "WRITE", "TOPIC", None)
    assert rules.explain(ALICE, "WRITE", "TOPIC", "t").reason == "super user"
    assert not rules.allows(BOB, "WRITE", "TOPIC", "t")


@pytest.mark.parametrize("implying", ["READ", "WRITE", "DELETE", "ALTER"])
def test_these_operations_imply_describe_where_they_are_allowed(implying: Operation) -> None:
    assert of(allow(implying, "t")).allows(ALICE, "DESCRIBE", "TOPIC", "t")
    assert not of(allow(implying, "t")).allows(ALICE, "DESCRIBE_CONFIGS", "TOPIC", "t")
    assert of(allow("DESCRIBE", "t"), deny(implying, "t")).allows(ALICE, "DESCRIBE", "TOPIC", "t")


def test_altering_settings_implies_describing_them_and_create_implies_nothing() -> None:
    rules = of(allow("ALTER_CONFIGS", "t"), allow("CREATE", "u"))
    assert rules.allows(ALICE, "DESCRIBE_CONFIGS", "TOPIC", "t")
    assert not rules.allows(ALICE, "DESCRIBE", "TOPIC", "t")
    assert not rules.allows(ALICE, "DESCRIBE", "TOPIC", "u")


def test_prefixes_are_of_the_name_and_of_the_type() -> None:
    rules = of(allow("READ", "inv", pattern="PREFIXED"), allow("READ", "invoices-eu", pattern="PREFIXED"))
    for name, expected in (("inv", True), ("invoices", True), ("in", False), ("xinv", False), ("INV", False)):
        assert rules.allows(ALICE, "READ", "TOPIC", name) is expected
    assert not rules.allows(ALICE, "READ", "GROUP", "invoices")
    assert not rules.allows(ALICE, "READ", "TOPIC", "*")


def test_an_asterisk_is_every_name_only_if_it_is_literal_and_alone() -> None:
    assert of(allow("READ", "*")).allows(ALICE, "READ", "TOPIC", "anything")
    assert not of(allow("READ", "any*")).allows(ALICE, "READ", "TOPIC", "anything")


def test_auth_03_idempotent_writes_need_some_topic() -> None:
    """KIP-679: any topic, existing or not, that no rule denies. Kafka's ``AuthorizerTest``: by resource type."""
    cases: list[tuple[list[Acl], bool]] = [
        ([], False),
        ([allow("READ", "t")], False),
        ([allow("WRITE", "t", BOB)], False),
        ([allow("WRITE", "t")], True),
        ([allow("ALL", "t", EVERYONE)], True),
        ([allow("WRITE", "t", kind="GROUP")], False),
        ([allow("WRITE", "t"), deny("WRITE", "t")], False),
        ([allow("WRITE", "t"), deny("ALL", "t", EVERYONE)], False),
        ([allow("WRITE", "t"), deny("WRITE", "t", BOB)], True),
        ([allow("WRITE", "t"), deny("READ", "t")], True),
        ([allow("WRITE", "tab"), deny("WRITE", "ta", pattern="PREFIXED")], False),
        ([allow("WRITE", "ta", pattern="PREFIXED"), deny("WRITE", "tab", pattern="PREFIXED")], True),
        ([allow("WRITE", "tab", pattern="PREFIXED"), deny("WRITE", "tab")], True),
        ([allow("WRITE", "tab", pattern="PREFIXED"), deny("WRITE", "tab", pattern="PREFIXED")], False),
        ([allow("WRITE", "*"), deny("WRITE", "t", pattern="PREFIXED")], True),
        ([allow("WRITE", "*"), deny("WRITE", "*")], False),
        ([allow("WRITE", "t", pattern="PREFIXED"), deny("ALL", "*", EVERYONE)], False),
    ]
    for acls, expected in cases:
        assert of(*acls).allows(ALICE, "WRITE", "TOPIC", None) is expected, acls
        assert of(*acls, deny("WRITE", "*", BOB)).allows(ALICE, "WRITE", "TOPIC", None) is expected, acls
    assert of(allow_if_no_acl=True).allows(ALICE, "WRITE", "TOPIC", None)
    assert of(deny("WRITE", "t"), allow_if_no_acl=True).allows(ALICE, "WRITE", "TOPIC", None)
    assert not of(deny("WRITE", "*"), allow_if_no_acl=True).allows(ALICE, "WRITE", "TOPIC", None)
    assert not of(allow("READ", "*"), allow_if_no_acl=True).allows(ALICE, "WRITE", "TOPIC", None)


def test_random_rules_are_evaluated_as_by_a_look_at_each_of_them() -> None:
    rng = random.Random(28)
    names = ["a", "ab", "abc", "b", "*"]
    for _ in range(300):
        acls = [
            Acl(
                rng.choice([ALICE, BOB, EVERYONE]),
                rng.choice(get_args(Permission)),
                rng.choice(["ALL", "READ", "WRITE", "DESCRIBE"]),
                rng.choice(["TOPIC", "GROUP"]),
                *rng.choice([(name, "LITERAL") for name in names] + [(name, "PREFIXED") for name in names[:-1]]),
            )
            for _ in range(rng.randrange(6))
        ]
        rules = of(*acls, allow_if_no_acl=rng.random() < 0.3)
        for name in names[:-1]:
            for operation in ("READ", "WRITE", "DESCRIBE"):
                expected = _by_looking(rules, acls, operation, name)
                assert rules.allows(ALICE, operation, "TOPIC", name) is expected
                assert rules.allows(ALICE, operation, "TOPIC", name) is expected  # As remembered.


def _by_looking(rules: Authorization, acls: list[Acl], operation: Operation, name: str) -> bool:
    for_it = [
        acl
        for acl in acls
        if acl.resource_type == "TOPIC"
        and (name.startswith(acl.resource_name) if acl.pattern_type == "PREFIXED" else acl.resource_name in {name, "*"})
    ]
    mine = [acl for acl in for_it if acl.principal in {ALICE, EVERYONE}]
    if any(acl.permission == "DENY" and acl.operation in {operation, "ALL"} for acl in mine):
        return False
    implied = {"READ", "WRITE"} if operation == "DESCRIBE" else set()
    if any(acl.permission == "ALLOW" and acl.operation in {operation, "ALL", *implied} for acl in mine):
        return True
    return rules.allow_if_no_acl and not for_it


def test_answers_do_not_outlive_the_rules_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_REMEMBERED", 10)
    rules = of(allow("READ", "n1"))
    for number in range(100):
        assert rules.allows(ALICE, "READ", "TOPIC", f"n{number}") is (number == 1)
    assert len(rules._cached_answers) <= 10
    changed = Authorization("declared", acls=Map())
    assert not changed.allows(ALICE, "READ", "TOPIC", "n1")


def test_of_ten_thousand_rules_only_those_for_the_name_are_looked_at() -> None:
    """The budget of 20 µs: a question looks at the rules of the name and of its prefixes, not at all of them."""
    others = [allow("READ", f"topic-{number}", f"User:{number}") for number in range(9_000)]
    prefixes = [allow("READ", f"p{number}-", f"User:{number}", "PREFIXED") for number in range(1_000)]
    rules = of(*others, *prefixes)
    looked = list(rules._rule_index.matching_acls("TOPIC", "p17-abc"))
    assert looked == [prefixes[17]]
    assert rules.allows("User:17", "READ", "TOPIC", "p17-abc")


@pytest.mark.parametrize("name", ["", "alice", "User:", "Group:alice", ":alice", "user:alice", "User:a\nb", 3])
def test_a_principal_is_user_and_a_name(name: str) -> None:
    with pytest.raises((InvalidConfigError, AttributeError)):
        check_principal(name)


@pytest.mark.parametrize("name", ["User:alice", "User:*", "User:CN=a,O=b", "User:a:b", "User:ä"])
def test_principals_of_kafka_are_principals(name: str) -> None:
    check_principal(name)


def test_a_rule_that_can_have_no_effect_is_refused() -> None:
    for kind, operations in OPERATIONS.items():
        name = CLUSTER if kind == "CLUSTER" else "x"
        for operation in get_args(Operation):
            acl = allow(operation, name, kind=kind)
            if operation in operations or operation == "ALL":
                check_acl(acl)
            else:
                with pytest.raises(InvalidConfigError, match=f"no {operation} on a {kind}"):
                    check_acl(acl)
    for acl in (
        allow("READ", ""),
        allow("READ", "x" * 2_000),
        allow("READ", "a\x00"),
        allow("READ", "*", pattern="PREFIXED"),
        allow("ALTER", "other", kind="CLUSTER"),
        allow("ALTER", CLUSTER, kind="CLUSTER", pattern="PREFIXED"),
        allow("READ", "t", principal="alice"),
    ):
        with pytest.raises(InvalidConfigError):
            check_acl(acl)
