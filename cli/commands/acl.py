"""``acl``: who may do what in a store: how rights are checked, the rules (ACLs), and what they say.

After ``acl add``, ``acl remove`` and ``acl list`` the option ``--principal`` names whom a rule is for, as in Kafka's
tools. Who asks for the change is named before the command, or by the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txnstore.cli.commands.acl_policy import policy
from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, CommandError, NounGroup, pass_app, shared_options
from txnstore.cli.values import AclOperation, Principal
from txnstore.core.authorization.model import CLUSTER, WORDS, Acl, Operation, PatternType, Permission, ResourceType
from txnstore.errors import InvalidConfigError
from txnstore.phrases import counted

if TYPE_CHECKING:
    from txnstore.admin.acls import AuthorizationSettings

F = TypeVar("F", bound=Callable[..., Any])
#: A type of resource, and the name of one.
Resource = tuple[ResourceType, str]

_COLUMNS = ["principal", "permission", "operation", "resource_type", "resource_name", "pattern_type"]
#: The exit status of ``explain`` if the right is missing; 1 means that the answer is unknown.
_DENIED_STATUS = 3
#: The operations that each role needs. Kafka's tool adds DESCRIBE, which is implied here as there, and for producers
#: CREATE on the topic, which would create it by itself; nothing does that here.
_PRODUCER_OPERATIONS: dict[ResourceType, Operation] = {"TOPIC": "WRITE", "TRANSACTIONAL_ID": "WRITE"}
_CONSUMER_OPERATIONS: dict[ResourceType, Operation] = {"TOPIC": "READ", "GROUP": "READ"}


@click.group(cls=NounGroup)
def acl() -> None:
    """Show and change who may do what, and explain it."""


# How rights are checked -----------------------------------------------------------------------------------------------


@acl.command()
@shared_options()
@pass_app
def show(app: App) -> None:
    """Show whether rights are checked, and who may do everything."""
    with app.operations() as store:
        app.out.record(asdict(store.acls.settings()))


@acl.command()
@click.option(
    "--super-user",
    "super_users",
    type=Principal(),
    metavar="User:NAME",
    multiple=True,
    required=True,
    help="Who may do everything; repeatable. These replace those before.",
)
@click.option("--allow-if-no-acl", is_flag=True, help="Let everyone use a resource that no rule is for.")
@yes_option
@shared_options()
@pass_app
def enable(app: App, super_users: tuple[str, ...], allow_if_no_acl: bool, yes: bool) -> None:
    """Check the rights of all commands from now on. Shows what changes, and asks.

    Who asks must be one of the super users, or have a rule that allows ALTER on the cluster. A process without
    --principal or TXNSTORE_PRINCIPAL is User:ANONYMOUS. Older releases can only read the store then.
    """
    needs_answer = must_ask("check rights", yes=yes)
    new_settings = {"mode": "declared", "super_users": sorted(set(super_users)), "allow_if_no_acl": allow_if_no_acl}
    with app.open() as store:
        if needs_answer and _show_changes(app, store.acls.settings(), new_settings):
            ask("Refuse all that no super user asks for, and no rule allows?")
        try:
            settings = store.acls.enable(super_users, allow_if_no_acl=allow_if_no_acl)
        except InvalidConfigError as error:
            advice = f"Enable it as one of the super users, with --principal {super_users[0]}."
            raise CommandError(str(error), error.advice if store.principal in super_users else advice) from error
    users = ", ".join(settings.super_users)
    rules = counted(settings.rules, "rule")
    app.out.result(f"Rights are checked, by {rules}; super users: {users}", **asdict(settings))


@acl.command()
@yes_option
@shared_options()
@pass_app
def disable(app: App, yes: bool) -> None:
    """Check no rights any more. Super users and rules are kept. Shows what changes, and asks."""
    needs_answer = must_ask("check no rights any more", yes=yes)
    with app.open() as store:
        if needs_answer and _show_changes(app, store.acls.settings(), {"mode": "off"}):
            ask("Let everyone do everything?")
        settings = store.acls.disable()
    kept_rules = f"{counted(settings.rules, 'rule')} and {counted(len(settings.super_users), 'super user')}"
    app.out.result(f"Rights are not checked; {kept_rules} are kept", **asdict(settings))


def _show_changes(app: App, settings: AuthorizationSettings, new_settings: dict[str, Any]) -> bool:
    """Show the settings that change, and the number of rules; return whether any setting changes."""
    old_values: dict[str, Any] = {**asdict(settings), "super_users": list(settings.super_users)}
    changes = {name: value for name, value in new_settings.items() if old_values[name] != value}
    rows = [
        {"setting": name.replace("_", " "), "before": old_values[name], "after": value}
        for name, value in changes.items()
    ]
    if rows:
        rules = {"setting": "rules", "before": settings.rules, "after": settings.rules}
        app.out.plan([*rows, rules], ["setting", "before", "after"])
    return bool(rows)


# Rules ----------------------------------------------------------------------------------------------------------------


def _resource_options(function: F) -> F:
    """The options that name resources."""
    function = click.option("--cluster", is_flag=True, help="The store as a whole.")(function)
    for name, parameter, meaning in (
        ("--transactional-id", "transactional_ids", "This transactional id"),
        ("--group", "groups", "This consumer group"),
        ("--topic", "topics", "This topic"),
    ):
        option = click.option(
            name, parameter, metavar="NAME", multiple=True, help=f"{meaning}; '*' is every one. Repeatable."
        )
        function = option(function)
    return function


def _rule_options(function: F) -> F:
    """The options that describe rules."""
    options = [
        click.option("--principal", "principals", type=Principal(), metavar="User:NAME", required=True, multiple=True,
                     help="Whom the rules are for; User:* is everyone. Repeatable."),
        click.option("--allow", type=AclOperation(), metavar="OPERATION", multiple=True,
                     help="Allow this operation, such as WRITE or ALL; repeatable."),
        click.option("--deny", type=AclOperation(), metavar="OPERATION", multiple=True,
                     help="Deny this operation, whatever else allows it; repeatable."),
        click.option("--producer", is_flag=True,
                     help="What a producer needs: WRITE on each --topic and --transactional-id."),
        click.option("--consumer", is_flag=True, help="What a consumer needs: READ on each --topic and --group."),
        _resource_options,
        click.option("--prefixed", is_flag=True, help="The names are what the names of resources begin with."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@acl.command()
@_rule_options
@shared_options(principal=False)
@pass_app
def add(app: App, /, **options: Any) -> None:
    """Add rules, all in one entry: each operation on each resource.

    Who asks is named by --principal before the command, or by TXNSTORE_PRINCIPAL.
    """
    rules = _rules(**options)
    with app.open() as store:
        created_rules = store.acls.create(rules)
        mode = store.acls.settings().mode
    app.out.rows([{**asdict(rule), "created": rule in created_rules} for rule in rules], [*_COLUMNS, "created"])
    if mode == "off":
        app.out.note("Rights are not checked: `txnstore acl enable` begins it")


@acl.command()
@_rule_options
@click.option("--all", "everything", is_flag=True, help="All rules of the principal, instead of those described.")
@yes_option
@shared_options(principal=False)
@pass_app
def remove(app: App, /, everything: bool, yes: bool, **options: Any) -> int:
    """Remove exactly these rules, all in one entry. Shows them, and asks.

    The exit status is 1 if a described rule did not exist; the others are removed. Who asks is named by --principal
    before the command, or by TXNSTORE_PRINCIPAL.
    """
    principals = options["principals"]
    if everything and any(value for name, value in options.items() if name != "principals"):
        msg = "--all takes no other description of rules"
        raise click.UsageError(msg)
    rules = [] if everything else _rules(**options)
    needs_answer = must_ask("remove rules", yes=yes)
    with app.open() as store:
        existing_rules = [rule for principal in dict.fromkeys(principals) for rule in store.acls.list(principal)]
        rules = existing_rules if everything else rules
        if needs_answer and (known_rules := [rule for rule in rules if rule in existing_rules]):
            app.out.plan([asdict(rule) for rule in known_rules], _COLUMNS)
            ask(f"Remove {counted(len(known_rules), 'rule')} of {', '.join(principals)}?")
        removed = store.acls.delete(rules)  # Even without rules: it completes an earlier call that stopped half way.
    rows = [{**asdict(rule), "removed": rule in removed} for rule in rules]
    app.out.rows(rows, [*_COLUMNS, "removed"], empty=f"There are no rules for {', '.join(principals)}")
    if missing_rules := [rule for rule in rules if rule not in removed]:
        app.out.error(f"{counted(len(missing_rules), 'rule')} did not exist, such as: {missing_rules[0]}")
        return 1
    return 0


@acl.command("list")
@click.option("--principal", type=Principal(), metavar="User:NAME", help="Only rules that name this principal.")
@_resource_options
@click.option("--matching", is_flag=True, help="Also rules for every name, and for what the names begin with.")
@shared_options(principal=False)
@pass_app
def list_rules(
    app: App,
    principal: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    matching: bool,
) -> None:
    """List the rules; with options only those for these resources."""
    resources = _resources(topics, groups, transactional_ids, cluster=cluster)
    if matching and not resources:
        msg = "--matching needs a resource: give --topic, --group or --transactional-id"
        raise click.UsageError(msg)
    with app.operations() as store:
        rules = (
            {rule for resource in resources for rule in store.acls.list(principal, *resource, matching=matching)}
            if resources
            else store.acls.list(principal)
        )
        mode = store.acls.settings().mode
    app.out.rows([asdict(rule) for rule in sorted(rules)], _COLUMNS, empty="There are no such rules")
    if mode == "off" and rules:
        app.out.note("Rights are not checked: `txnstore acl enable` begins it")


@acl.command()
@click.argument("principal", type=Principal(), metavar="PRINCIPAL")
@click.argument("operation", type=AclOperation(), metavar="OPERATION")
@_resource_options
@shared_options()
@pass_app
def explain(
    app: App,
    principal: str,
    operation: Operation,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
) -> int:
    """Say whether PRINCIPAL has the right to do OPERATION on one resource, and what decides that.

    The exit status is 0 if it has, and 3 if it has not.
    """
    resources = _resources(topics, groups, transactional_ids, cluster=cluster)
    if len(resources) != 1:
        msg = "give one resource: --topic, --group, --transactional-id or --cluster"
        raise click.UsageError(msg)
    kind, name = resources[0]
    wanted_rule = _checked_rule(principal, "ALLOW", operation, (kind, name), "LITERAL")
    with app.operations() as store:
        verdict = store.acls.explain(principal, operation, kind, name)
    reasons = {
        "off": "rights are not checked",
        "super user": "it is a super user",
        "rule": f"the rule {verdict.acl}",
        "no rule for the resource": "no rule is for the resource",
    }
    reason = reasons.get(verdict.reason, verdict.reason)
    has = "has the right" if verdict.allowed else "has no right"
    app.out.result(
        f"{principal} {has} to {operation} on {wanted_rule.resources}: {reason}",
        principal=principal,
        operation=operation,
        resource_type=kind,
        resource_name=name,
        allowed=verdict.allowed,
        reason=verdict.reason,
        rule=None if verdict.acl is None else asdict(verdict.acl),
    )
    return 0 if verdict.allowed else _DENIED_STATUS


# Parsing --------------------------------------------------------------------------------------------------------------


def _resources(
    topics: Iterable[str], groups: Iterable[str], transactional_ids: Iterable[str], *, cluster: bool
) -> list[Resource]:
    """Return the resources that the options name, without repetitions."""
    names_by_type: list[tuple[ResourceType, Iterable[str]]] = [
        ("TOPIC", topics),
        ("GROUP", groups),
        ("TRANSACTIONAL_ID", transactional_ids),
        ("CLUSTER", [CLUSTER] if cluster else []),
    ]
    return [(kind, name) for kind, names in names_by_type for name in dict.fromkeys(names)]


def _rules(
    principals: tuple[str, ...],
    allow: tuple[Operation, ...],
    deny: tuple[Operation, ...],
    producer: bool,
    consumer: bool,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
) -> list[Acl]:
    """The rules that the options describe: each operation on each resource.

    Raises:
        click.UsageError: They describe no rule, or one without effect.
    """
    roles = ([_PRODUCER_OPERATIONS] if producer else []) + ([_CONSUMER_OPERATIONS] if consumer else [])
    resources = _resources(topics, groups, transactional_ids, cluster=cluster)
    if roles and (allow or deny):
        msg = "--producer and --consumer stand for --allow: give no operations beside them"
        raise click.UsageError(msg)
    if not (roles or allow or deny):
        msg = "give --allow or --deny with an operation, or --producer or --consumer"
        raise click.UsageError(msg)
    if not resources:
        msg = "give a resource: --topic, --group, --transactional-id or --cluster"
        raise click.UsageError(msg)
    if prefixed and all(kind == "CLUSTER" for kind, _ in resources):
        msg = "--prefixed is for names: give --topic, --group or --transactional-id"
        raise click.UsageError(msg)
    rules: dict[Acl, None] = {}
    for kind, name in resources:
        allowed_operations = [*allow, *(role[kind] for role in roles if kind in role)]
        if not (allowed_operations or deny):
            role = "--producer" if producer else "--consumer"
            msg = f"{role} gives no right to a {WORDS[kind]}"
            raise click.UsageError(msg)
        pattern: PatternType = "PREFIXED" if prefixed and kind != "CLUSTER" else "LITERAL"
        for principal in principals:
            rules |= {
                _checked_rule(principal, "ALLOW", operation, (kind, name), pattern): None
                for operation in allowed_operations
            }
            rules |= {_checked_rule(principal, "DENY", operation, (kind, name), pattern): None for operation in deny}
    return list(rules)


def _checked_rule(
    principal: str, permission: Permission, operation: Operation, resource: Resource, pattern_type: PatternType
) -> Acl:
    """Make a rule; one without effect is a usage error."""
    from txnstore.core.authorization.changes import check_acl

    rule = Acl(principal, permission, operation, *resource, pattern_type)
    try:
        check_acl(rule)
    except InvalidConfigError as error:
        raise click.UsageError(str(error)) from None
    return rule


acl.add_command(policy)
