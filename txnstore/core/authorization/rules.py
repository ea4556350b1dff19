"""The authorization of a store: its rules and the answers that follow from them; as Kafka's ``StandardAuthorizer``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from txnstore.core.authorization.model import (
    ANY_NAME,
    EVERYONE,
    Acl,
    Mode,
    Operation,
    PatternType,
    ResourceType,
)
from txnstore.core.model import Map, items_of

#: What a rule that allows an operation also allows, besides the operation itself (KIP-11).
_IMPLIED_BY: dict[Operation, frozenset[Operation]] = {
    "DESCRIBE": frozenset({"READ", "WRITE", "DELETE", "ALTER"}),
    "DESCRIBE_CONFIGS": frozenset({"ALTER_CONFIGS"}),
}
#: The number of answers that are remembered for one version of the rules.
_REMEMBERED = 2**14


class Verdict(NamedTuple):
    """The answer to a question of rights.

    Attributes:
        allowed: Whether it is allowed.
        reason: What decided.
        acl: The rule, if one decided.
    """

    allowed: bool
    reason: Literal["off", "super user", "rule", "no rule for the resource", "no rule allows it"]
    acl: Acl | None = None


@dataclass(frozen=True)
class Authorization:
    """The authorization of a store, which is a part of the state of chain 0. Immutable: a change makes another one.

    Attributes:
        mode: Whether commands are checked.
        super_users: The principals that may do everything, whatever the rules are.
        allow_if_no_acl: Whether everyone may use a resource that no rule is for
            (``allow.everyone.if.no.acl.found``).
        acls: The rules: the keys.
    """

    mode: Mode = "off"
    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False
    acls: Map[Acl, None] = field(default_factory=Map)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without derived values, which are as large again."""
        return Authorization, (self.mode, self.super_users, self.allow_if_no_acl, self.acls)

    @cached_property
    def sorted_acls(self) -> list[Acl]:
        """The rules, sorted, as each checkpoint has them."""
        return sorted(acl for acl, _ in items_of(self.acls))

    @cached_property
    def _rule_index(self) -> _Index:
        return _Index([acl for acl, _ in items_of(self.acls)])

    @cached_property
    def _cached_answers(self) -> dict[tuple[str, Operation, ResourceType, str | None], bool]:
        """Answers by question. Threads use the cache without a lock: equal questions have equal answers."""
        return {}

    def allows(self, principal: str, operation: Operation, resource_type: ResourceType, name: str | None) -> bool:
        """Whether a principal may use the resource of this name (None: some resource of the type)."""
        question = principal, operation, resource_type, name
        answer = self._cached_answers.get(question)
        if answer is None:
            if name is None:
                answer = self._allows_on_some(principal, operation, resource_type)
            else:
                answer = self.explain(principal, operation, resource_type, name).allowed
            if len(self._cached_answers) >= _REMEMBERED:
                self._cached_answers.clear()
            self._cached_answers[question] = answer
        return answer

    def explain(self, principal: str, operation: Operation, resource_type: ResourceType, name: str) -> Verdict:
        """Return whether a principal may use the resource of this name, and why.

        A rule that denies decides before all rules that allow (KIP-11).
        """
        if self.mode == "off":
            return Verdict(allowed=True, reason="off")
        if principal in self.super_users:
            return Verdict(allowed=True, reason="super user")
        allowing_acl = None
        has_rule = False
        allowing_operations = (operation, "ALL", *_IMPLIED_BY.get(operation, ()))
        for acl in self._rule_index.matching_acls(resource_type, name):
            has_rule = True
            if acl.principal not in (principal, EVERYONE):
                continue
            if acl.permission == "DENY":
                if acl.operation in (operation, "ALL"):
                    return Verdict(allowed=False, reason="rule", acl=acl)
            elif allowing_acl is None and acl.operation in allowing_operations:
                allowing_acl = acl
        if allowing_acl is not None:
            return Verdict(allowed=True, reason="rule", acl=allowing_acl)
        if not has_rule:
            return Verdict(allowed=self.allow_if_no_acl, reason="no rule for the resource")
        return Verdict(allowed=False, reason="no rule allows it")

    def _allows_on_some(self, principal: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a principal may use some resource of the type, also one that does not exist (KIP-679).

        A rule that allows it counts, unless another one denies it for all resources that the first one is for.
        """
        if self.mode == "off" or principal in self.super_users:
            return True
        all_of_type = resource_type, "LITERAL", ANY_NAME
        if self.allow_if_no_acl and all_of_type not in self._rule_index.by_pattern:
            return True
        matching_acls = [
            acl
            for (kind, _, _), acls in self._rule_index.by_pattern.items()
            if kind == resource_type
            for acl in acls
            if acl.principal in (principal, EVERYONE) and acl.operation in (operation, "ALL")
        ]
        denied_patterns = {(acl.pattern_type, acl.resource_name) for acl in matching_acls if acl.permission == "DENY"}
        if ("LITERAL", ANY_NAME) in denied_patterns:
            return False
        return any(acl.permission == "ALLOW" and not _is_covered(acl, denied_patterns) for acl in matching_acls)


NO_AUTHORIZATION = Authorization()


class _Index:
    """Rules by the resources that they are for."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self.by_pattern: dict[tuple[ResourceType, PatternType, str], list[Acl]] = {}
        for acl in acls:
            self.by_pattern.setdefault((acl.resource_type, acl.pattern_type, acl.resource_name), []).append(acl)
        for rules in self.by_pattern.values():
            if len(rules) > 1:
                rules.sort()  # So that an explanation names the same rule in each process.
        lengths: dict[ResourceType, set[int]] = {}
        for kind, pattern, name in self.by_pattern:
            if pattern == "PREFIXED":
                lengths.setdefault(kind, set()).add(len(name))
        #: The lengths of the prefixes, sorted.
        self._lengths = {kind: sorted(values) for kind, values in lengths.items()}

    def matching_acls(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Return the rules for the resource of this name."""
        yield from self.by_pattern.get((resource_type, "LITERAL", name), ())
        if name != ANY_NAME:
            yield from self.by_pattern.get((resource_type, "LITERAL", ANY_NAME), ())
        lengths = self._lengths.get(resource_type)
        for length in lengths[: bisect_right(lengths, len(name))] if lengths else ():
            yield from self.by_pattern.get((resource_type, "PREFIXED", name[:length]), ())


def _is_covered(acl: Acl, denied_patterns: Collection[tuple[PatternType, str]]) -> bool:
    """Whether a denied pattern covers all resources of a rule."""
    if acl.pattern_type == "LITERAL":
        return acl.resource_name != ANY_NAME and (
            ("LITERAL", acl.resource_name) in denied_patterns or _has_denied_prefix(acl.resource_name, denied_patterns)
        )
    return _has_denied_prefix(acl.resource_name, denied_patterns)


def _has_denied_prefix(name: str, denied_patterns: Collection[tuple[PatternType, str]]) -> bool:
    return any(("PREFIXED", name[:length]) in denied_patterns for length in range(1, len(name) + 1))
