"""``txnstore acl`` and ``--principal``: rules are changed, shown and explained, and decide what a command may do."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import txnstore
from tests.helpers.cli import Cli
from txnstore.chain.codec import encode
from txnstore.chain.payload import decode_entry
from txnstore.cli.commands import log
from txnstore.cli.demo.command import _as_principal
from txnstore.connection import principal_of
from txnstore.core.authorization.model import ANONYMOUS

ADMIN, BILLING = "User:admin", "User:billing"


@pytest.fixture
def cli(local_store_url: str, chains: int, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with two topics; the environment names no principal."""
    with txnstore.create(local_store_url, chains) as store:
        for name in ("orders", "secret"):
            store.create_topic(name)
    for name in ("TXNSTORE_STORE", "TXNSTORE_PRINCIPAL"):
        monkeypatch.delenv(name, raising=False)
    return Cli(local_store_url, monkeypatch)


@pytest.fixture
def admin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The same, with rights that are checked; the commands are those of its super user."""
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", ADMIN)
    cli.ok("acl", "enable", "--super-user", ADMIN, "--yes")
    return cli


def _rule(principal: str, permission: str, operation: str, kind: str, name: str, pattern: str = "LITERAL") -> Any:
    return {
        "principal": principal, "permission": permission, "operation": operation, "resource_type": kind,
        "resource_name": name, "pattern_type": pattern,
    }  # fmt: skip


def _listed(cli: Cli, *options: str) -> list[Any]:
    return cli.ok("acl", "list", "--json", *options).lines


# How rights are checked -----------------------------------------------------------------------------------------------


def test_rights_are_checked_from_enable_to_disable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"mode": "off", "super_users": [], "allow_if_no_acl": False, "rules": 0}
    assert cli.ok("acl", "show", "--json").lines == [never]
    as_admin = ("--principal", ADMIN)
    (enabled,) = cli.ok(
        "acl", "enable", "--super-user", "User:z", "--super-user", ADMIN, "--yes", "--json", *as_admin
    ).lines
    assert enabled == {"mode": "declared", "super_users": [ADMIN, "User:z"], "allow_if_no_acl": False, "rules": 0}
    refused = cli("topic", "create", "more")
    assert (refused.status, refused.out, "User:ANONYMOUS has no right to CREATE" in refused.err) == (1, "", True)
    assert "(--principal), or set TXNSTORE_PRINCIPAL" in refused.err
    cli.ok("topic", "create", "more", *as_admin)
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", "User:z")
    cli.ok("topic", "create", "most")
    assert cli("topic", "create", "other", "--principal", BILLING).status == 1, "the option decides"
    (disabled,) = cli.ok("acl", "disable", "--yes", "--json").lines
    assert disabled == {**enabled, "mode": "off"}
    cli.ok("topic", "create", "other", "--principal", BILLING)


def test_who_enables_must_be_able_to_change_the_rules_again(cli: Cli) -> None:
    refused = cli("acl", "enable", "--super-user", ADMIN, "--yes")
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert f"{ANONYMOUS} could not change the rules again" in refused.err
    assert refused.err.endswith(f"Enable it as one of the super users, with --principal {ADMIN}.\n")
    assert cli.ok("acl", "show", "--json").lines[0]["mode"] == "off"


def test_a_resource_without_rules_is_free_if_it_is_said_so(admin: Cli) -> None:
    assert admin("acl", "explain", BILLING, "READ", "--topic", "orders").status == 3
    admin.ok("acl", "enable", "--super-user", ADMIN, "--allow-if-no-acl", "--yes")
    assert "no rule is for the resource" in admin.ok("acl", "explain", BILLING, "READ", "--topic", "orders").out


# Rules ----------------------------------------------------------------------------------------------------------------


def test_rules_are_added_listed_and_removed(admin: Cli) -> None:
    options = ["--principal", BILLING, "--allow", "Read", "--allow", "describe_configs", "--deny", "DELETE"]
    added = admin.ok("acl", "add", *options, "--topic", "orders", "--topic", "in", "--json").lines
    rules = [
        _rule(BILLING, permission, operation, "TOPIC", topic)
        for topic in ("orders", "in")
        for permission, operation in (("ALLOW", "READ"), ("ALLOW", "DESCRIBE_CONFIGS"), ("DENY", "DELETE"))
    ]
    assert added == [{**rule, "created": True} for rule in rules]
    again = admin.ok("acl", "add", *options, "--topic", "orders", "--json").lines
    assert [rule["created"] for rule in again] == [False] * 3
    admin.ok("acl", "add", "--principal", "User:*", "--allow", "ALL", "--group", "*", "--cluster")
    everyone = [
        _rule("User:*", "ALLOW", "ALL", kind, name) for kind, name in (("CLUSTER", "kafka-cluster"), ("GROUP", "*"))
    ]
    order = list(everyone[0])
    assert _listed(admin) == everyone + sorted(rules, key=lambda rule: [rule[name] for name in order])
    assert _listed(admin, "--principal", "User:*") == everyone
    assert {rule["resource_name"] for rule in _listed(admin, "--topic", "in", "--cluster")} == {"in", "kafka-cluster"}
    assert _listed(admin, "--group", "g") == []
    assert _listed(admin, "--group", "g", "--matching") == everyone[1:]
    removed = admin.ok("acl", "remove", *options, "--topic", "in", "--yes", "--json").lines
    assert removed == [{**rule, "removed": True} for rule in rules[3:]]
    assert [rule["resource_name"] for rule in _listed(admin, "--principal", BILLING)] == ["orders"] * 3
    assert len(admin.ok("acl", "remove", "--principal", BILLING, "--all", "--yes", "--json").lines) == 3
    assert _listed(admin, "--principal", BILLING) == []


def test_a_rule_that_does_not_exist_is_not_removed_in_silence(admin: Cli) -> None:
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "READ", "--topic", "orders")
    result = admin("acl", "remove", "--principal", BILLING, "--allow", "READ", "--topic", "order", "--yes", "--json")
    assert (result.status, result.lines[0]["removed"]) == (1, False)
    warning = f"error: 1 rule did not exist, such as: ALLOW {BILLING} READ on topic 'order'\n"
    assert result.err == warning
    nothing = admin("acl", "remove", "--principal", "User:nobody", "--all", "--yes")
    assert (nothing.status, nothing.out, nothing.err) == (0, "", "There are no rules for User:nobody\n")


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        (["--producer", "--topic", "a"], [("WRITE", "TOPIC", "a")]),
        (
            ["--producer", "--topic", "a", "--transactional-id", "b"],
            [("WRITE", "TOPIC", "a"), ("WRITE", "TRANSACTIONAL_ID", "b")],
        ),
        (["--consumer", "--topic", "a", "--group", "g"], [("READ", "TOPIC", "a"), ("READ", "GROUP", "g")]),
        (
            ["--producer", "--consumer", "--topic", "a", "--group", "g"],
            [("WRITE", "TOPIC", "a"), ("READ", "TOPIC", "a"), ("READ", "GROUP", "g")],
        ),
    ],
)
def test_a_role_stands_for_its_rules(admin: Cli, options: list[str], rules: list[tuple[str, str, str]]) -> None:
    """Kafka's ``AclCommand``, without DESCRIBE, which is implied, and CREATE of what nothing creates by itself."""
    added = admin.ok("acl", "add", "--principal", BILLING, *options, "--json").lines
    assert [(rule["operation"], rule["resource_type"], rule["resource_name"]) for rule in added] == rules
    assert {rule["permission"] for rule in added} == {"ALLOW"}


def test_the_rules_of_the_roles_are_enough_to_process(admin: Cli) -> None:
    """What the role gives is what the library asks for: a transaction with offsets, without a right beside it."""
    admin.ok("produce", "orders", stdin="a\n")
    role = ["--producer", "--consumer", "--topic", "orders", "--group", "g", "--transactional-id", "job"]
    admin.ok("acl", "add", "--principal", BILLING, *role)
    with txnstore.open(admin.url, principal=BILLING) as store:
        with store.consumer("orders", group="g") as consumer, store.producer("job") as producer:
            (record,) = consumer.poll()
            with producer.transaction() as txn:
                txn.send("orders", record.value)
                txn.send_offsets({tp: consumer.position(tp) for tp in consumer.assignment()}, consumer.group_metadata())
        assert store.scan("orders").to_table().num_rows == 2
    admin.ok("consume", "orders", "--group", "g", "--principal", BILLING, "--json")
    assert admin("produce", "secret", "--principal", BILLING, stdin="x\n").status == 1
    assert admin("consume", "secret", "--principal", BILLING).status == 1


def test_rules_of_prefixes(admin: Cli) -> None:
    options = ["--prefixed", "--topic", "ord", "--cluster"]
    added = admin.ok("acl", "add", "--principal", BILLING, "--allow", "CREATE", *options, "--json").lines
    assert [(rule["resource_name"], rule["pattern_type"]) for rule in added] == [
        ("ord", "PREFIXED"),
        ("kafka-cluster", "LITERAL"),
    ]


def test_rules_may_be_made_before_rights_are_checked(cli: Cli) -> None:
    """A caller that could not change them again is refused, also then: nothing is locked by ``enable``."""
    add = ["acl", "add", "--principal", ADMIN, "--allow", "ALTER", "--cluster"]
    result = cli("--principal", ADMIN, *add)
    assert (result.status, result.err) == (0, "Rights are not checked: `txnstore acl enable` begins it\n")
    assert cli("acl", "list").err == result.err


def test_only_who_may_alter_the_cluster_changes_rules(admin: Cli) -> None:
    add = ["acl", "add", "--principal", BILLING, "--allow", "ALL", "--topic", "orders"]
    refused = admin("--principal", BILLING, *add)
    assert (refused.status, f"{BILLING} has no right to ALTER on the cluster" in refused.err) == (1, True)
    assert _listed(admin) == []
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "ALTER", "--cluster")
    assert admin("--principal", BILLING, *add).status == 0
    locked = admin("--principal", BILLING, "acl", "remove", "--principal", BILLING, "--all", "--yes")
    assert (locked.status, "could not change the rules again" in locked.err) == (1, True)
    assert len(_listed(admin)) == 2


# Explaining -----------------------------------------------------------------------------------------------------------


def test_what_decides_is_explained(admin: Cli) -> None:
    admin.ok("acl", "add", "--principal", "User:*", "--allow", "READ", "--topic", "orders")
    admin.ok("acl", "add", "--principal", BILLING, "--deny", "READ", "--topic", "or", "--prefixed")
    question = ["acl", "explain", "User:other", "read", "--topic", "orders"]
    assert admin.ok(*question).out == (
        "User:other has the right to READ on topic 'orders': the rule ALLOW User:* READ on topic 'orders'\n"
    )
    denied = admin("acl", "explain", BILLING, "read", "--topic", "orders", "--json")
    assert (denied.status, denied.err) == (3, "")
    assert denied.lines == [
        {
            "principal": BILLING, "operation": "READ", "resource_type": "TOPIC", "resource_name": "orders",
            "allowed": False, "reason": "rule", "rule": _rule(BILLING, "DENY", "READ", "TOPIC", "or", "PREFIXED"),
        }
    ]  # fmt: skip
    assert "it is a super user" in admin.ok("acl", "explain", ADMIN, "CLUSTER_ACTION", "--cluster").out
    unknown = admin("acl", "explain", BILLING, "CLUSTER_ACTION", "--cluster")
    assert unknown.out == f"{BILLING} has no right to CLUSTER_ACTION on the cluster: no rule is for the resource\n"
    admin.ok("acl", "disable", "--yes")
    assert "rights are not checked" in admin.ok("acl", "explain", BILLING, "READ", "--topic", "orders").out


def test_a_question_without_an_answer_is_no_denial(admin: Cli) -> None:
    assert admin("acl", "explain", BILLING, "READ", "--topic", "orders", url=admin.url + "-missing").status == 1


# Confirmation ---------------------------------------------------------------------------------------------------------

ASKING = [
    (["enable", "--super-user", ADMIN, "--super-user", "User:z"], ["super users", "User:admin, User:z", "Refuse all"]),
    (["disable"], ["mode", "declared", "off", "Let everyone do everything?"]),
    (
        ["remove", "--principal", BILLING, "--allow", "READ", "--topic", "orders", "--topic", "none"],
        ["orders", "Remove 1 rule of User:billing?"],
    ),
    (["remove", "--principal", BILLING, "--all"], ["orders", "Remove 1 rule of User:billing?"]),
]


@pytest.mark.parametrize(("arguments", "shown"), ASKING)
def test_what_locks_out_or_opens_shows_the_plan_and_asks(admin: Cli, arguments: list[str], shown: list[str]) -> None:
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "READ", "--topic", "orders")
    before = [admin.ok("acl", "show").out, _listed(admin)]
    assert admin("acl", *arguments).status == 2, "there is no terminal"
    refused = admin("acl", *arguments, stdin="n\n", terminal=True)
    assert (refused.status, refused.out) == (1, ""), refused
    assert all(text in refused.err for text in shown), refused.err
    assert refused.err.endswith("error: not confirmed, so nothing was changed\n")
    assert [admin.ok("acl", "show").out, _listed(admin)] == before
    status = 1 if "none" in arguments else 0  # A rule that does not exist.
    assert admin("acl", *arguments, stdin="y\n", terminal=True).status == status
    assert [admin.ok("acl", "show").out, _listed(admin)] != before
    assert admin("acl", *arguments, stdin="", terminal=True).status == status, "what is done already needs no answer"


@pytest.mark.parametrize(
    "arguments", [["enable", "--super-user", ADMIN], ["disable"], ["remove", "--principal", BILLING, "--all"]]
)
def test_without_a_terminal_it_is_refused_before_the_store_is_opened(cli: Cli, arguments: list[str]) -> None:
    assert cli("acl", *arguments, url=cli.url + "-missing").status == 2


# Wrong usage ----------------------------------------------------------------------------------------------------------

_ADD = ["acl", "add", "--principal", BILLING]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--principal", "billing", "topic", "list"], "a principal is 'User:' and a name"),
        (["topic", "list", "--principal", "Group:x"], "a principal is 'User:' and a name"),
        (["log", "show", "--by", "x"], "a principal is 'User:' and a name"),
        (["acl", "enable", "--yes"], "--super-user"),
        (["acl", "enable", "--super-user", "root", "--yes"], "a principal is 'User:' and a name"),
        (["acl", "add", "--allow", "READ", "--topic", "t"], "--principal"),
        ([*_ADD, "--topic", "t"], "give --allow or --deny"),
        ([*_ADD, "--allow", "READ"], "give a resource"),
        ([*_ADD, "--allow", "REED", "--topic", "t"], "'REED' is not an operation: they are ALL, READ, WRITE"),
        ([*_ADD, "--allow", "READ", "--cluster"], "there is no READ on a CLUSTER"),
        ([*_ADD, "--deny", "WRITE", "--topic", "t", "--group", "g"], "there is no WRITE on a GROUP"),
        ([*_ADD, "--allow", "READ", "--topic", ""], "must have 1 to 1024 printable characters"),
        ([*_ADD, "--allow", "ALTER", "--cluster", "--prefixed"], "--prefixed is for names"),
        ([*_ADD, "--allow", "READ", "--topic", "*", "--prefixed"], "for every name, use the name '*' itself"),
        ([*_ADD, "--producer", "--allow", "READ", "--topic", "t"], "give no operations beside them"),
        ([*_ADD, "--producer", "--topic", "t", "--group", "g"], "--producer gives no right to a group"),
        ([*_ADD, "--consumer", "--topic", "t", "--cluster"], "--consumer gives no right to a cluster"),
        (["acl", "remove", "--principal", BILLING, "--all", "--topic", "t"], "--all takes no other description"),
        (["acl", "list", "--matching"], "--matching needs a resource"),
        (["acl", "explain", BILLING, "READ"], "give one resource"),
        (["acl", "explain", BILLING, "READ", "--topic", "a", "--topic", "b"], "give one resource"),
        (["acl", "explain", BILLING, "WRITE", "--group", "g"], "there is no WRITE on a GROUP"),
        (["acl", "explain", BILLING, "reading", "--topic", "t"], "is not an operation"),
    ],
)
def test_wrong_usage_is_refused_before_a_request(cli: Cli, arguments: list[str], says: str) -> None:
    result = cli(*arguments, url=cli.url + "-missing")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result
    assert says in result.err


def test_a_wrong_principal_of_the_environment_is_wrong_usage(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXNSTORE_PRINCIPAL", "billing")
    for arguments in (["topic", "list"], ["consume", "orders"], ["produce", "orders"], ["init", "--exist-ok"]):
        result = cli(*arguments)
        assert (result.status, "TXNSTORE_PRINCIPAL: a principal is 'User:'" in result.err) == (2, True), result
    cli.ok("topic", "list", "--principal", ADMIN)


# Every command names who asks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "new"],
        ["topic", "delete", "secret", "--yes"],
        ["topic", "delete-records", "orders", "0", "1", "--yes"],
        ["produce", "orders", "--transactional-id", "job"],
        ["consume", "orders"],
        ["consume", "orders", "--group", "g"],
        ["sql", "select * from orders"],
        ["group", "reset-offsets", "g", "--topic", "orders", "--to", "latest", "--yes"],
        ["txn", "fence", "job", "--yes"],
        ["compact"],
        ["retain", "--yes"],
        ["vacuum", "--yes"],
        ["checkpoint"],
        ["acl", "disable", "--yes"],
    ],
)
def test_a_command_asks_as_the_principal_that_is_named(admin: Cli, arguments: list[str]) -> None:
    """The environment names a super user; the option names one who may do nothing."""
    admin.ok("produce", "orders", stdin="a\n")
    refused = admin(*arguments, "--principal", BILLING, stdin="b\n")
    assert (refused.status, f"{BILLING} has no right to" in refused.err) == (1, True), refused
    assert "Traceback" not in refused.err
    assert admin(*arguments, stdin="b\n").status == 0


# Who did what ---------------------------------------------------------------------------------------------------------


def test_the_log_says_who_asked(admin: Cli) -> None:
    admin.ok("acl", "add", "--principal", BILLING, "--producer", "--topic", "orders", "--transactional-id", "job")
    produce = ["produce", "orders", "--transactional-id", "job", "--principal", BILLING]
    admin.ok(*produce, stdin="a\n")
    admin.ok("topic", "create", "later")
    shown = admin.ok("log", "show", "--json").lines
    created = [each["principals"] for each in shown if "TopicCreated" in each["events"]]
    assert (created[0], created[-1]) == (None, [ADMIN])
    assert all(each["principals"] == [BILLING] for each in shown if "ProducerInitialized" in each["events"])
    mine = admin.ok("log", "show", "--by", BILLING, "--json").lines
    assert mine == [each for each in shown if each["principals"] == [BILLING]]
    assert 0 < len(mine) < len(shown)
    assert admin.ok("log", "show", "--by", BILLING, "--max", "1", "--json").lines == mine[-1:]
    assert "principals" in admin.ok("log", "show").out
    unknown = admin("log", "show", "--by", "User:nobody")
    assert (unknown.status, unknown.out, unknown.err) == (0, "", "There are no such entries\n")
    chosen = ("--chain", str(mine[-1]["chain"]))
    entry = admin.ok("log", "entry", str(mine[-1]["entry"]), *chosen).out
    assert f"principals  {BILLING}" in entry
    steps = admin.ok("txn", "history", "job", "--json").lines
    assert {step["principal"] for step in steps} == {BILLING}
    assert steps[-1]["step"] == "COMMITTED"
    assert "principal" in admin.ok("txn", "history", "job").out


def test_older_entries_are_searched_for_those_of_a_principal(admin: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """In windows: a rare principal is found behind many entries of others, and not only among the newest ones."""
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "ALL", "--topic", "b", "--prefixed")
    for name in ("b1", "a1", "a2", "b2", "a3", "a4", "a5", "b3", "a6"):
        admin.ok("topic", "create", name, "--principal", BILLING if name.startswith("b") else ADMIN)
    whole = admin.ok("log", "show", "--chain", "0", "--by", BILLING, "--json").lines
    assert len(whole) == 3
    monkeypatch.setattr(log, "_SEARCH_WINDOW", 2)
    for limit in (1, 2, 3, 4):
        options = ["--chain", "0", "--by", BILLING, "--max", str(limit)]
        assert admin.ok("log", "show", *options, "--json").lines == whole[-limit:]
        before = str(whole[-1]["entry"])
        assert admin.ok("log", "show", *options, "--before", before, "--json").lines == whole[:-1][-limit:]


def test_an_entry_with_the_events_of_several_says_whose_each_is(admin: Cli) -> None:
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "READ", "--allow", "WRITE", "--topic", "orders")
    folder = Path(admin.url.removeprefix("file://"))
    path = max(folder.glob("chains/*/0000/entries/*.json"))
    entry = decode_entry(path.relative_to(folder).as_posix(), path.read_bytes())
    path.chmod(0o600)
    path.write_bytes(encode(replace(entry, principals=[(ADMIN, 1), (BILLING, 1)])))
    lines = admin.ok("log", "entry", str(entry.sequence), "--chain", "0").out.splitlines()
    events = [line.split("  ")[0] for line in lines if line.startswith(("By ", "AclCreated"))]
    assert events == [f"By {ADMIN}:", "AclCreated", f"By {BILLING}:", "AclCreated"]
    (shown,) = admin.ok("log", "show", "--chain", "0", "--max", "1", "--by", BILLING, "--json").lines
    assert shown["principals"] == [ADMIN, BILLING]


def test_the_demo_and_its_jobs_ask_as_one_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "User:before"):
        if before is not None:
            monkeypatch.setenv("TXNSTORE_PRINCIPAL", before)
        with _as_principal(BILLING):
            assert principal_of(None) == BILLING
        assert os.environ.get("TXNSTORE_PRINCIPAL") == before


def test_a_store_without_rules_shows_no_principal(cli: Cli) -> None:
    cli.ok("produce", "orders", "--transactional-id", "job", stdin="a\n")
    assert "principal" not in cli.ok("log", "show").out + cli.ok("txn", "history", "job").out
    assert {step["principal"] for step in cli.ok("txn", "history", "job", "--json").lines} == {None}


# SQL ------------------------------------------------------------------------------------------------------------------


def test_sql_shows_the_rules(admin: Cli) -> None:
    admin.ok("acl", "add", "--principal", BILLING, "--allow", "READ", "--topic", "or", "--prefixed")
    assert admin.ok("sql", "--json", "from txn.acls").lines == _listed(admin)
    assert admin.ok("sql", "--json", "from txn.authorization").lines == [
        {"mode": "declared", "super_users": [ADMIN], "allow_if_no_acl": False}
    ]
    (asked,) = admin.ok("sql", "--json", "select principals from txn.entries where event_types['AclCreated'] = 1").lines
    assert asked == {"principals": [ADMIN]}
