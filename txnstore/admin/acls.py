"""The rules of a store for its administrators: who may do what, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, get_args

from txnstore.admin.policies import Provider, StoragePolicy, storage_policy
from txnstore.catalog.settings import TopicConfig
from txnstore.connection import Connection
from txnstore.core.authorization.changes import check_acl, check_principal, check_super_user
from txnstore.core.authorization.model import (
    CLUSTER,
    Acl,
    ChangeAcls,
    ChangeAuthorization,
    ChangedAcls,
    Mode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from txnstore.core.authorization.rules import Authorization, Verdict
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.model import items_of
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.validation import check_bool, check_choice, check_names


@dataclass(frozen=True, slots=True)
class AuthorizationSettings:
    """The settings by which a store checks commands.

    Attributes:
        mode: ``off``, or ``declared``: each process names its principal, and checks its own commands.
        super_users: The principals that may do everything, sorted.
        allow_if_no_acl: Whether everyone may use a resource that no rule is for.
        rules: The number of rules.
    """

    mode: Mode
    super_users: tuple[str, ...]
    allow_if_no_acl: bool
    rules: int


class Acls:
    """The rules (ACLs) of a store: :attr:`txnstore.Store.acls`. Each call reads the head of the catalog's chain first.

    A change needs the right to ALTER the cluster; from its entry on, each process that commits knows it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<the rules of {self._connection.url}>"

    def enable(self, super_users: Iterable[str] | str, *, allow_if_no_acl: bool = False) -> AuthorizationSettings:
        """Check the rights of all commands from now on (``declared``). Older releases cannot write to the store then.

        Args:
            super_users: The principals that may do everything, instead of those before; the caller must be one of them,
                or have a rule that allows ALTER on the cluster.
            allow_if_no_acl: Whether everyone may use a resource that no rule is for
                (``allow.everyone.if.no.acl.found``).

        Raises:
            InvalidConfigError: A principal has a wrong form, or the caller could not change the rules again.
            ClusterAuthorizationError: The caller has no right to ALTER the cluster.
            UnknownOutcomeError: The change may be known to a part of the chains only; repeat the call.
        """
        names = [super_users] if isinstance(super_users, str) else check_names("super_users", super_users)
        for name in names:
            check_super_user(name)
        check_bool("allow_if_no_acl", allow_if_no_acl)
        return self._change(ChangeAuthorization("declared", tuple(names), allow_if_no_acl))

    def disable(self) -> AuthorizationSettings:
        """Check nothing any more; super users and rules are kept."""
        return self._change(ChangeAuthorization("off"))

    def settings(self) -> AuthorizationSettings:
        """The settings by which the store checks commands."""
        return _settings_of(self._authorization())

    def create(self, acls: Iterable[Acl] | Acl) -> tuple[Acl, ...]:
        """Create rules, in one entry; returns those that did not exist.

        Raises:
            InvalidConfigError: A rule could have no effect; or the caller could not change the rules again.
            ClusterAuthorizationError: The caller has no right to ALTER the cluster.
            UnknownOutcomeError: The change may be known to a part of the chains only; repeat the call.
        """
        rules = _checked_acls(acls)
        changed: ChangedAcls = self._connection.submit(ChangeAcls(created=rules))
        return changed.created

    def delete(self, acls: Iterable[Acl] | Acl) -> tuple[Acl, ...]:
        """Delete exactly these rules, in one entry; returns those that existed. Raises what :meth:`create` raises."""
        rules = _checked_acls(acls)
        changed: ChangedAcls = self._connection.submit(ChangeAcls(deleted=rules))
        return changed.deleted

    def list(
        self,
        principal: str | None = None,
        resource_type: ResourceType | None = None,
        resource_name: str | None = None,
        *,
        matching: bool = False,
    ) -> list[Acl]:
        """The rules, sorted; with arguments only those of a principal, of a type of resource, or with this name.

        Args:
            principal: Only rules that name this principal.
            resource_type: Only rules for this type.
            resource_name: Only rules with this name or prefix.
            matching: With ``resource_name``: all rules for the resource of this name, also those with a prefix or for
                every name (Kafka's pattern type MATCH).
        """
        if principal is not None:
            _check_principal_text(principal)
        if resource_type is not None:
            check_choice("resource_type", resource_type, get_args(ResourceType))
        return [
            acl
            for acl in self._authorization().sorted_acls
            if principal in (None, acl.principal)
            and resource_type in (None, acl.resource_type)
            and (resource_name is None or _applies_to(acl, resource_name, matching=matching))
        ]

    def explain(
        self, principal: str, operation: Operation, resource_type: ResourceType, resource_name: str = CLUSTER
    ) -> Verdict:
        """Whether a principal may do this to the resource of this name, and what decides that."""
        _check_principal_text(principal)
        check_acl(Acl(principal, "ALLOW", *_check_words(operation, resource_type), resource_name))
        return self._authorization().explain(principal, operation, resource_type, resource_name)

    def policy(self, principal: str, provider: Provider = "aws") -> StoragePolicy:
        """Return a policy for the bucket that allows a principal the requests that the rules need.

        Rules bind the processes that check them; the policy binds every other one, too. It can be printed before the
        store checks its rules. No statement depends on the settings of a topic: if those of one cannot be read, the
        policy is whole, and ``unreadable`` and a note name the topic.

        Args:
            principal: The principal.
            provider: ``aws``, or ``minio``, whose policies have no condition that lets entries only be created.

        Raises:
            InvalidConfigError: The store is in no bucket, or the principal has no right to anything.
        """
        _check_principal_text(principal)
        check_choice("provider", provider, get_args(Provider))
        state = self._connection.chain.refresh()
        topics = {name: _inline_bytes(topic) for name, topic in items_of(state.topics)}
        store_place = self._connection.keys.store_id, topics, self._connection.url
        return storage_policy(state.authorization, principal, *store_place, provider)

    def _change(self, command: ChangeAuthorization) -> AuthorizationSettings:
        authorization: Authorization = self._connection.submit(command)
        return _settings_of(authorization)

    def _authorization(self) -> Authorization:
        return self._connection.chain.refresh().authorization


def _inline_bytes(topic: CatalogTopic) -> int | None:
    """The ``inline.bytes`` of a topic; None if its settings cannot be read."""
    try:
        return TopicConfig.from_stored(topic.config).inline_bytes
    except CorruptionError:
        return None


def _settings_of(authorization: Authorization) -> AuthorizationSettings:
    users = tuple(sorted(authorization.super_users))
    return AuthorizationSettings(authorization.mode, users, authorization.allow_if_no_acl, len(authorization.acls))


def _checked_acls(acls: Iterable[Acl] | Acl) -> tuple[Acl, ...]:
    """Check rules, and return them as a tuple; an unknown word is refused with the known ones."""
    rules = (acls,) if isinstance(acls, Acl) else tuple(acls)
    for acl in rules:
        if not isinstance(cast("object", acl), Acl):
            msg = f"a rule is a txnstore.Acl, not {acl!r:.100}"
            raise InvalidConfigError(msg)
        _check_words(acl.operation, acl.resource_type)
        check_choice("permission", acl.permission, get_args(Permission))
        check_choice("pattern_type", acl.pattern_type, get_args(PatternType))
        check_acl(acl)
    return rules


def _check_words(operation: Operation, resource_type: ResourceType) -> tuple[Operation, ResourceType]:
    """Check an operation and a type of resource, and return both."""
    check_choice("operation", operation, get_args(Operation))
    check_choice("resource_type", resource_type, get_args(ResourceType))
    return operation, resource_type


def _check_principal_text(name: Any) -> None:
    if not isinstance(name, str):
        msg = f"a principal is a text, such as 'User:billing', not {name!r:.100}"
        raise InvalidConfigError(msg)
    check_principal(name)


def _applies_to(acl: Acl, name: str, *, matching: bool) -> bool:
    """Whether a rule has this resource name or, with ``matching``, applies to the resource of this name."""
    if acl.resource_name == name or not matching:
        return acl.resource_name == name
    if acl.pattern_type == "PREFIXED":
        return name.startswith(acl.resource_name)
    return acl.resource_name == "*"
