"""Check how a store grants rights: who may change the rules and write checkpoints, and rules without effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from txnstore.chain.earlier_states import EarlierStates
from txnstore.compactor.doctor.findings import Finding, Severity
from txnstore.connection import Connection
from txnstore.core.authorization.changes import is_in_use
from txnstore.core.authorization.model import ANY_NAME, CLUSTER, EVERYONE, Acl, Operation
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import items_of
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, SnapshotExpiredError
from txnstore.phrases import counted, some

_finding = partial(Finding, "authorization")


def authorization_findings(connection: Connection, view: View, *, lacks_checkpoint: bool) -> Iterator[Finding]:
    """Report how the store checks rights; nothing for a store that never had rules.

    Args:
        view: The newest states.
        lacks_checkpoint: Whether a chain lacks a recent checkpoint.
    """
    catalog = view.states[CATALOG]
    authorization = catalog.authorization
    if not is_in_use(catalog):
        return
    if chains_behind := _chains_behind_rules(connection, catalog, view):
        message = (
            f"a change of the rules has stopped half way: who writes to chain {some(map(str, chains_behind))} may not "
            "know it. "
            "Repeat it; to add a rule that exists does the same"
        )
        yield _finding("follows", Severity.WARN, message, "txnstore acl add")
    acls = sorted(acl for acl, _ in items_of(authorization.acls))
    size = f"{counted(len(acls), 'rule')}, {counted(len(authorization.super_users), 'super user')}"
    if authorization.mode == "off":
        yield _finding("mode", Severity.NOTE, f"rights are not checked; {size} are kept", "txnstore acl show")
        return
    yield _finding("mode", Severity.OK, f"rights are checked, by {size}")
    yield from _role_findings(authorization, acls, lacks_checkpoint=lacks_checkpoint)
    yield from _ineffective_rule_findings(authorization, acls, view)


def _chains_behind_rules(connection: Connection, catalog: State, view: View) -> list[int]:
    """Return the chains whose writers may not have read the newest rules.

    Requests only if a chain follows from an earlier entry than the newest one: to look up the rules of that one.
    """
    behind = []
    others = [state for state in view.states if state.chain != CATALOG]
    for state in sorted(others, key=lambda state: (is_in_use(state), state.seen.get(CATALOG, 0))):
        if is_in_use(state) and _are_newest(connection, catalog, state.seen.get(CATALOG, 0)):
            break  # So are those of the chains that follow from a later entry.
        behind.append(state.chain)
    return sorted(behind)


def _are_newest(connection: Connection, catalog: State, sequence: int) -> bool:
    """Whether the rules after an entry of chain 0 are the newest ones."""
    boundaries = connection.chains[CATALOG].boundaries
    earlier_states = EarlierStates(connection.objects, connection.keys, catalog, connection.pool, boundaries)
    try:
        return sequence >= catalog.sequence or earlier_states.at(sequence).authorization == catalog.authorization
    except (CorruptionError, SnapshotExpiredError):
        return True  # The rules of then are deleted, so nothing is known; damage is a finding of its own.


# Roles ----------------------------------------------------------------------------------------------------------------


def _role_findings(authorization: Authorization, acls: list[Acl], *, lacks_checkpoint: bool) -> Iterator[Finding]:
    """Report whether any principal may change the rules, and write checkpoints."""
    if not authorization.super_users and not _is_anyone_allowed(authorization, acls, "ALTER"):
        message = "no principal may change the rules: there is no super user, and no rule allows ALTER on the cluster"
        yield _finding("administrators", Severity.BAD, message)
    if authorization.allows(EVERYONE, "ALTER", "CLUSTER", CLUSTER):
        message = "everyone may change the rules and maintain the store: no rule is for the cluster (allow_if_no_acl)"
        if authorization.explain(EVERYONE, "ALTER", "CLUSTER", CLUSTER).acl is not None:
            message = "everyone may change the rules: one allows it to everyone"
        yield _finding("administrators", Severity.WARN, message, "txnstore acl explain 'User:*' ALTER --cluster")
    if not _is_anyone_allowed(authorization, acls, "CLUSTER_ACTION"):
        message = "no rule allows CLUSTER_ACTION, so only super users compact, vacuum, and write checkpoints"
        severity = Severity.WARN if lacks_checkpoint else Severity.NOTE
        command = "txnstore acl add --principal User:NAME --allow CLUSTER_ACTION --cluster"
        yield _finding("maintainers", severity, message, command)


def _is_anyone_allowed(authorization: Authorization, acls: list[Acl], operation: Operation) -> bool:
    """Whether any principal besides super users has a right to the cluster."""
    principals = {EVERYONE, *(acl.principal for acl in acls)} - authorization.super_users
    return any(authorization.allows(principal, operation, "CLUSTER", CLUSTER) for principal in principals)


# Rules ----------------------------------------------------------------------------------------------------------------


def _ineffective_rule_findings(authorization: Authorization, acls: list[Acl], view: View) -> Iterator[Finding]:
    """Report rules that change no answer, or none today."""
    denials: dict[str, list[Acl]] = {}
    for acl in acls:
        if acl.permission == "DENY":
            denials.setdefault(acl.principal, []).append(acl)
    denied_rules = [
        acl
        for acl in acls
        if acl.permission == "ALLOW"
        and any(_denies_all_of(deny, acl) for who in {acl.principal, EVERYONE} for deny in denials.get(who, ()))
    ]
    if denied_rules:
        shown = _some_rules(denied_rules)
        message = f"{counted(len(denied_rules), 'rule')} without effect, because another one denies the same: {shown}"
        yield _finding("denied", Severity.NOTE, message, "txnstore acl list")
    of_super_users = [acl for acl in acls if acl.principal in authorization.super_users]
    if of_super_users:
        shown = _some_rules(of_super_users)
        message = (
            f"{counted(len(of_super_users), 'rule')} without effect, for super users, who may do everything: {shown}"
        )
        severity = Severity.WARN if any(acl.permission == "DENY" for acl in of_super_users) else Severity.NOTE
        yield _finding("super-users", severity, message, "txnstore acl list")
    absent_topics = sorted({acl.resource_name for acl in acls if _names_topic(acl)} - set(view.topics))
    if absent_topics:
        do_not = "do not" if len(absent_topics) > 1 else "does not"
        message = f"rules for {counted(len(absent_topics), 'topic')} that {do_not} exist: "
        yield _finding("topics", Severity.NOTE, message + some(map(repr, absent_topics)), "txnstore acl list")


def _denies_all_of(deny: Acl, allow: Acl) -> bool:
    """Whether a denying rule covers everything that an allowing rule covers."""
    if deny.resource_type != allow.resource_type or deny.operation not in (allow.operation, "ALL"):
        return False
    if deny.pattern_type == "PREFIXED":
        return allow.resource_name.startswith(deny.resource_name)
    if deny.resource_name == ANY_NAME:
        return True
    return (deny.pattern_type, deny.resource_name) == (allow.pattern_type, allow.resource_name)


def _names_topic(acl: Acl) -> bool:
    return acl.resource_type == "TOPIC" and acl.pattern_type == "LITERAL" and acl.resource_name != ANY_NAME


def _some_rules(acls: list[Acl]) -> str:
    return some(map(str, acls), 2)
