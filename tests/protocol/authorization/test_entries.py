"""One entry of several commands: each is checked for its own principal, by the rules that those before it have left.

A process has one principal today. An entry says who asked for each event, so a gateway can commit for several.
"""

from __future__ import annotations

import random

from tests.harness.executors import InlineExecutor, never
from tests.helpers.keys import KEYS, FixedRuntime
from txnstore.chain.group_commit import Drafts, QueuedCommand
from txnstore.core.authorization.model import Acl, ChangeAcls, ChangeAuthorization
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.model import Command
from txnstore.core.state import State
from txnstore.errors import TopicAuthorizationError

ADMIN, ALICE, BOB = "User:admin", "User:alice", "User:bob"
CHECKED = Authorization("declared", frozenset({ADMIN}))


def create(name: str) -> CreateTopic:
    return CreateTopic(CatalogTopic(name, f"{name}-id", 1))


def may_create(principal: str, name: str) -> Acl:
    return Acl(principal, "ALLOW", "CREATE", "TOPIC", name)


def decided(before: State, *commands: tuple[Command, str]) -> tuple[list[tuple[str, int]] | None, list[bool], State]:
    """Who asked for how many events of the entry, which commands were refused for a right, and the state after it."""
    runtime = FixedRuntime(lambda: 1, lambda _: None, random.Random(1), InlineExecutor, InlineExecutor, spawn=never)
    waiters = [QueuedCommand(command, principal) for command, principal in commands]
    attempt = Drafts(KEYS, 0, "writer", runtime).decide(before, 1, waiters)
    refused = [isinstance(waiter.error, TopicAuthorizationError) for waiter in waiters]
    return attempt.entry.principals, refused, attempt.state


def test_each_command_of_an_entry_is_that_of_its_principal() -> None:
    rules = ChangeAcls((may_create(ALICE, "a"), may_create(ALICE, "b"), may_create(BOB, "c")))
    _, _, before = decided(State(authorization=CHECKED), (rules, ADMIN))
    principals, refused, after = decided(
        before, (create("a"), ALICE), (create("b"), ALICE), (create("d"), ALICE), (create("c"), BOB), (create("e"), BOB)
    )
    assert refused == [False, False, True, False, True]
    assert principals == [(ALICE, 2), (BOB, 1)]
    assert sorted(after.topics) == ["a", "b", "c"]


def test_a_command_is_checked_by_the_rules_that_an_earlier_one_of_its_entry_has_left() -> None:
    allowing, denying = ChangeAcls((may_create(ALICE, "a"),)), ChangeAcls((), (may_create(ALICE, "a"),))
    principals, refused, after = decided(
        State(authorization=CHECKED),
        (create("a"), ALICE), (allowing, ADMIN), (create("a"), ALICE), (denying, ADMIN), (create("a"), ALICE),
    )  # fmt: skip
    assert refused == [True, False, False, False, True]
    assert principals == [(ADMIN, 1), (ALICE, 1), (ADMIN, 1)]
    assert sorted(after.topics) == ["a"]


def test_the_entry_that_enables_the_checks_and_the_one_that_disables_them_say_who_asked() -> None:
    enable, disable = ChangeAuthorization("declared", (ADMIN,)), ChangeAuthorization("off")
    principals, _, before = decided(State(), (create("a"), ALICE), (enable, ADMIN), (create("b"), ALICE))
    assert (principals, sorted(before.topics)) == ([(ALICE, 1), (ADMIN, 1)], ["a"])
    principals, _, after = decided(before, (disable, ADMIN), (create("b"), ALICE))
    assert (principals, sorted(after.topics)) == ([(ADMIN, 1), (ALICE, 1)], ["a", "b"])
    principals, _, _ = decided(after, (create("c"), ALICE))
    assert principals is None


def test_the_first_rule_requires_the_feature_although_nothing_is_checked_yet() -> None:
    """A release that does not know rules would not fold them, and would check nothing once they are enabled."""
    for command in (ChangeAcls((may_create(ALICE, "a"),)), ChangeAuthorization("declared", (ADMIN,))):
        _, _, after = decided(State(), (command, ADMIN))
        assert after.requires.write == ("authorization",)
