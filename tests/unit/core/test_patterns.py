"""The patterns of what a principal may use say the same as the rules, for each name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnstore.core.authorization.model import Acl, Operation, PatternType
from txnstore.core.authorization.patterns import EVERY_NAME, Pattern, Patterns, patterns_of
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Map

ALICE = "User:alice"
#: Names that are prefixes of each other, and one that is none.
NAMES = ["a", "ab", "abc", "b", "bc", "*"]
PATTERNS: list[PatternType] = ["LITERAL", "PREFIXED"]
OPERATIONS: list[Operation] = ["READ", "WRITE", "ALL", "DESCRIBE"]

acls = st.builds(
    Acl,
    st.sampled_from([ALICE, "User:*", "User:bob"]),
    st.sampled_from(["ALLOW", "ALLOW", "DENY"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from(["TOPIC", "GROUP"]),
    st.sampled_from(NAMES),
    st.sampled_from(PATTERNS),
).filter(lambda acl: acl.pattern_type == "LITERAL" or acl.resource_name != "*")


def _of(*rules: Acl, super_users: tuple[str, ...] = (), allow_if_no_acl: bool = False) -> Authorization:
    return Authorization("declared", frozenset(super_users), allow_if_no_acl, Map(dict.fromkeys(rules)))


@pytest.mark.slow
@settings(max_examples=400)
@given(st.lists(acls, max_size=7), st.booleans())
def test_patterns_allow_the_names_that_the_rules_allow(rules: list[Acl], allow_if_no_acl: bool) -> None:
    """With ``allow_if_no_acl``, of the names that were given: others may be without a rule, too."""
    authorization = _of(*rules, allow_if_no_acl=allow_if_no_acl)
    existing = ["a", "ab", "abcd", "b", "x"]
    for operation in ("READ", "WRITE"):
        patterns = patterns_of(authorization, ALICE, operation, "TOPIC", existing)
        for name in existing if allow_if_no_acl else [*existing, "abc", "bc", "bcd", "y"]:
            assert patterns.allow(name) == authorization.allows(ALICE, operation, "TOPIC", name), (name, patterns)
        both = [*patterns.allowed], [*patterns.denied]
        for some in both:
            assert not any(one != other and one.covers(other) for one in some for other in some)
        assert all(any(one.covers(no) for one in patterns.allowed) for no in patterns.denied), "each denies something"


def _acl(name: str, pattern: PatternType = "LITERAL", *, deny: bool = False) -> Acl:
    return Acl(ALICE, "DENY" if deny else "ALLOW", "READ", "TOPIC", name, pattern)


def test_patterns_are_the_fewest() -> None:
    rules = _of(_acl("a", "PREFIXED"), _acl("ab"), _acl("b"), _acl("abc", deny=True), _acl("c", deny=True))
    patterns = patterns_of(rules, ALICE, "READ", "TOPIC", [])
    assert patterns == Patterns((Pattern("a", prefixed=True), Pattern("b")), (Pattern("abc"),))


def test_a_denied_prefix_takes_the_names_in_it_away() -> None:
    rules = _of(_acl("ab"), _acl("abc", "PREFIXED"), _acl("a", "PREFIXED", deny=True))
    assert patterns_of(rules, ALICE, "READ", "TOPIC", ["ab"]) == Patterns(())


def test_every_name() -> None:
    everything = Patterns((EVERY_NAME,))
    assert patterns_of(_of(_acl("*"), _acl("a")), ALICE, "READ", "TOPIC", []) == everything
    assert patterns_of(_of(super_users=(ALICE,)), ALICE, "WRITE", "TOPIC", []) == everything
    assert patterns_of(Authorization("off"), ALICE, "WRITE", "TOPIC", []) == everything
    assert patterns_of(_of(_acl("*"), _acl("*", deny=True)), ALICE, "READ", "TOPIC", []) == Patterns(())


def test_names_without_a_rule_are_named() -> None:
    rules = _of(_acl("a"), allow_if_no_acl=True)
    assert patterns_of(rules, ALICE, "READ", "TOPIC", ["a", "b"]).allowed == (Pattern("a"), Pattern("b"))
    assert patterns_of(rules, "User:bob", "READ", "TOPIC", ["a", "b"]).allowed == (Pattern("b"),)
