"""The resources that a principal may use, as patterns of names: for a storage, which knows no rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from txnstore.core.authorization.model import ANY_NAME, EVERYONE, Acl, Operation, Permission, ResourceType
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import items_of


class Pattern(NamedTuple):
    """A pattern of names: one name, or with ``prefixed`` all names that begin with it."""

    name: str
    prefixed: bool = False

    def matches(self, name: str) -> bool:
        """Whether the pattern has this name."""
        return name.startswith(self.name) if self.prefixed else name == self.name

    def covers(self, other: Pattern) -> bool:
        """Whether the pattern has all names of another one."""
        return self.matches(other.name) and (self.prefixed or not other.prefixed)


class Patterns(NamedTuple):
    """The names that a principal may use: the allowed ones without the denied ones, each sorted."""

    allowed: tuple[Pattern, ...]
    denied: tuple[Pattern, ...] = ()

    def allow(self, name: str) -> bool:
        """Whether this name is allowed."""
        return any(pattern.matches(name) for pattern in self.allowed) and not any(
            pattern.matches(name) for pattern in self.denied
        )


#: All names.
EVERY_NAME = Pattern("", prefixed=True)


def patterns_of(
    authorization: Authorization,
    principal: str,
    operation: Operation,
    resource_type: ResourceType,
    names: Iterable[str],
) -> Patterns:
    """Return the resources that a principal may use for an operation, as few patterns as possible.

    Args:
        operation: An operation that no rule for another one implies, such as READ and WRITE.
        names: The names of those that exist: no pattern can say that no rule is for a resource (``allow_if_no_acl``).
    """
    if authorization.mode == "off" or principal in authorization.super_users:
        return Patterns((EVERY_NAME,))
    matching_acls = [
        acl
        for acl, _ in items_of(authorization.acls)
        if acl.resource_type == resource_type
        and acl.principal in (principal, EVERYONE)
        and acl.operation in (operation, "ALL")
    ]
    denied_patterns = _with_permission(matching_acls, "DENY")
    verdicts_by_name = (
        (name, authorization.explain(principal, operation, resource_type, name))
        for name in (names if authorization.allow_if_no_acl else ())
    )
    patterns_without_rule = {
        Pattern(name) for name, verdict in verdicts_by_name if verdict.reason == "no rule for the resource"
    }
    allowed_patterns = {
        pattern
        for pattern in _with_permission(matching_acls, "ALLOW") | patterns_without_rule
        if not any(denied_pattern.covers(pattern) for denied_pattern in denied_patterns)
    }
    denied_patterns = {
        denied_pattern
        for denied_pattern in denied_patterns
        if any(pattern.covers(denied_pattern) for pattern in allowed_patterns)
    }
    return Patterns(_remove_covered(allowed_patterns), _remove_covered(denied_patterns))


def _with_permission(acls: Iterable[Acl], permission: Permission) -> set[Pattern]:
    return {_pattern_of(acl) for acl in acls if acl.permission == permission}


def _pattern_of(acl: Acl) -> Pattern:
    if acl.pattern_type == "LITERAL" and acl.resource_name == ANY_NAME:
        return EVERY_NAME
    return Pattern(acl.resource_name, acl.pattern_type == "PREFIXED")


def _remove_covered(patterns: Collection[Pattern]) -> tuple[Pattern, ...]:
    """Return the patterns that no other one of them covers."""
    return tuple(
        sorted(
            pattern for pattern in patterns if not any(other != pattern and other.covers(pattern) for other in patterns)
        )
    )
