"""The rules of the commands that change the authorization of a store, and the folding of their events."""

from __future__ import annotations

from dataclasses import replace as replace_values

from txnstore.core.authorization.model import (
    ANY_NAME,
    CLUSTER,
    EVERYONE,
    OPERATIONS,
    Acl,
    AclCreated,
    AclDeleted,
    AuthorizationChanged,
    ChangeAcls,
    ChangeAuthorization,
    ChangedAcls,
    FollowAuthorization,
)
from txnstore.core.authorization.rights import alters_cluster, no_right
from txnstore.core.authorization.rules import Authorization
from txnstore.core.declaration import command
from txnstore.core.model import Features
from txnstore.core.routing import CATALOG
from txnstore.core.state import Draft, Observed, State, check_observed, fold, replace
from txnstore.errors import InvalidConfigError, InvalidTopicError
from txnstore.validation import check_topic_name

#: The feature of the format that a store with rules requires of its writers, who would not check them otherwise.
AUTHORIZATION = Features(write=("authorization",))
#: The greatest number of characters of a principal or of the name of a resource in a rule.
MAX_NAME = 1_024


@command(ChangeAuthorization, route=None, right=alters_cluster)
def change_authorization(draft: Draft, command: ChangeAuthorization) -> Authorization:
    """Set how commands are checked; the caller must be able to change it again."""
    before = draft.state.authorization
    users = before.super_users if command.super_users is None else frozenset(command.super_users)
    for user in users:
        check_super_user(user)
    after = replace_values(
        before,
        mode=before.mode if command.mode is None else command.mode,
        super_users=users,
        allow_if_no_acl=before.allow_if_no_acl if command.allow_if_no_acl is None else command.allow_if_no_acl,
    )
    if after == before:
        return before
    draft.require(AUTHORIZATION)
    draft.emit(
        AuthorizationChanged(
            mode=after.mode, super_users=tuple(sorted(after.super_users)), allow_if_no_acl=after.allow_if_no_acl
        )
    )
    _check_not_locked_out(draft)
    return draft.state.authorization


@command(ChangeAcls, route=None, right=alters_cluster)
def change_acls(draft: Draft, command: ChangeAcls) -> ChangedAcls:
    """Delete rules and create others; the caller must be able to change them again."""
    for acl in command.created:
        check_acl(acl)
    acls = draft.state.authorization.acls
    deleted_acls = tuple(acl for acl in dict.fromkeys(command.deleted) if acl in acls)
    created_acls = tuple(acl for acl in dict.fromkeys(command.created) if acl not in acls or acl in deleted_acls)
    if deleted_acls or created_acls:
        draft.require(AUTHORIZATION)
        draft.emit(*[AclDeleted(acl=acl) for acl in deleted_acls], *[AclCreated(acl=acl) for acl in created_acls])
        _check_not_locked_out(draft)
    return ChangedAcls(created_acls, deleted_acls)


@command(FollowAuthorization, route=None, right=no_right)
def follow_authorization(draft: Draft, command: FollowAuthorization) -> None:
    """Make this entry follow from the rules, so that a process that commits after it knows them."""
    if draft.state.seen.get(CATALOG, 0) >= command.sequence and is_in_use(draft.state):
        return
    check_observed(draft.state, CATALOG, command.sequence)
    draft.require(AUTHORIZATION)
    draft.emit(Observed(chain=CATALOG, sequence=command.sequence))


def is_in_use(state: State) -> bool:
    """Whether writers of this chain must know the rules of chain 0."""
    return AUTHORIZATION.write[0] in state.requires.write


def _check_not_locked_out(draft: Draft) -> None:
    """Refuse a change after which its principal could not change the rules again."""
    if not draft.state.authorization.allows(draft.principal, "ALTER", "CLUSTER", CLUSTER):
        msg = (
            f"{draft.principal} could not change the rules again after this: make it a super user, or give it a rule "
            "that allows ALTER on the cluster, first"
        )
        raise InvalidConfigError(msg)


# What a rule may say --------------------------------------------------------------------------------------------------


def check_principal(principal: object) -> None:
    """Check the form of a principal: ``User:`` and a name, as Kafka's ``KafkaPrincipal``.

    Raises:
        InvalidConfigError: It has another form.
    """
    kind, separator, name = principal.partition(":") if isinstance(principal, str) else ("", "", "")
    if not isinstance(principal, str) or kind != "User" or not separator or not name:
        msg = f"a principal is 'User:' and a name, such as 'User:billing', not {principal!r}"
        raise InvalidConfigError(msg)
    _check_name("a principal", principal)


def check_super_user(principal: object) -> None:
    """Check that a principal can be a super user.

    Raises:
        InvalidConfigError: It is no principal, or everyone, which has a meaning in rules only.
    """
    check_principal(principal)
    if principal == EVERYONE:
        msg = f"{EVERYONE} is everyone in rules only; a super user is one principal. `allow_if_no_acl` allows all that "
        msg += "no rule is for"
        raise InvalidConfigError(msg)


def check_acl(acl: Acl) -> None:
    """Check that a rule can have an effect.

    Raises:
        InvalidConfigError: Its principal, its name, or its operation on this type of resource is none.
    """
    check_principal(acl.principal)
    _check_name("the name of a resource", acl.resource_name)
    operations = OPERATIONS[acl.resource_type]
    if acl.operation != "ALL" and acl.operation not in operations:
        known_operations = ", ".join(sorted(operations))
        msg = f"there is no {acl.operation} on a {acl.resource_type}: its operations are ALL, {known_operations}"
        raise InvalidConfigError(msg)
    if acl.resource_type == "CLUSTER" and (acl.resource_name, acl.pattern_type) != (CLUSTER, "LITERAL"):
        msg = f"the only resource of the type CLUSTER is {CLUSTER!r}, not {acl.resource_name!r}"
        raise InvalidConfigError(msg)
    if acl.resource_type == "TOPIC" and acl.resource_name != ANY_NAME:
        _check_topic_name(acl)
    if acl.pattern_type == "PREFIXED" and acl.resource_name == ANY_NAME:
        msg = "a prefix of '*' is for names that begin with an asterisk; for every name, use the name '*' itself"
        raise InvalidConfigError(msg)


def _check_topic_name(acl: Acl) -> None:
    """Refuse a name that no topic can have: the rule would deny nothing, but look as if it did."""
    is_prefix = acl.pattern_type == "PREFIXED"
    try:
        check_topic_name(f"{acl.resource_name}x" if is_prefix else acl.resource_name)
    except InvalidTopicError as error:
        kind = "begins with" if is_prefix else "is named"
        advice = "; an asterisk within a name is no wildcard: give what the names begin with" * (
            "*" in acl.resource_name
        )
        msg = f"no topic {kind} {acl.resource_name!r}, so the rule would have no effect{advice}"
        raise InvalidConfigError(msg) from error


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        msg = f"{what} must have 1 to {MAX_NAME} printable characters, not {name!r:.100}"
        raise InvalidConfigError(msg)


# Folding --------------------------------------------------------------------------------------------------------------


@fold(AuthorizationChanged)
def _authorization_changed(state: State, event: AuthorizationChanged) -> State:
    changed = replace_values(
        state.authorization,
        mode=event.mode,
        super_users=frozenset(event.super_users),
        allow_if_no_acl=event.allow_if_no_acl,
    )
    return replace(state, authorization=changed)


@fold(AclCreated)
def _acl_created(state: State, event: AclCreated) -> State:
    acls = state.authorization.acls.insert(event.acl, None)
    return replace(state, authorization=replace_values(state.authorization, acls=acls))


@fold(AclDeleted)
def _acl_deleted(state: State, event: AclDeleted) -> State:
    acls = state.authorization.acls.discard(event.acl)
    return replace(state, authorization=replace_values(state.authorization, acls=acls))
