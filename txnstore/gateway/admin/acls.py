"""DescribeAcls, CreateAcls, DeleteAcls: the rules of a store, in Kafka's form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.changes import check_acl
from txnstore.core.authorization.model import (
    ANY_NAME,
    Acl,
    ChangeAcls,
    ChangedAcls,
    PatternType,
    Permission,
    ResourceType,
)
from txnstore.core.authorization.rules import Authorization
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.gateway.admin.common import on_cluster, refusal
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.operations import OPERATION_CODES
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, value

T = TypeVar("T")

#: In filters: all values.
_ANY = 1
#: The only host of rules: they hold wherever a client is.
_HOST = "*"
_TYPE_CODES: dict[ResourceType, int] = {"TOPIC": 2, "GROUP": 3, "CLUSTER": 4, "TRANSACTIONAL_ID": 5}
_PERMISSION_CODES: dict[Permission, int] = {"DENY": 2, "ALLOW": 3}
_PATTERN_CODES: dict[PatternType, int] = {"LITERAL": 3, "PREFIXED": 4}
_TYPES = {code: name for name, code in _TYPE_CODES.items()}
_PERMISSIONS = {code: name for name, code in _PERMISSION_CODES.items()}
_OPERATIONS = {code: name for name, code in OPERATION_CODES.items()}
_PATTERNS = {code: name for name, code in _PATTERN_CODES.items()}
#: What Kafka has and rules here have not: types (delegation tokens, users), operations (on delegation tokens).
_TYPES_ELSEWHERE, _OPERATIONS_ELSEWHERE = {6, 7}, {13, 14}


class Pattern(IntEnum):
    """The pattern types of filters (KIP-290)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rules are meant: each field None for all.

    Attributes:
        resource_type: The type of the resources, as Kafka's number.
        pattern: How the name is compared.
        operation: The operation, as Kafka's number.
        permission: Whether it is allowed, as Kafka's number.
    """

    resource_type: int | None
    resource_name: str | None
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: int | None
    permission: int | None

    @classmethod
    def of(cls, asked: Any) -> Filter:
        """The filter of a request.

        Raises:
            RefusedError: A number in it is none of Kafka's.
        """
        pattern = value(asked, "pattern_type_filter", int(Pattern.LITERAL))
        types, operations = {_ANY, *_TYPES, *_TYPES_ELSEWHERE}, {_ANY, *_OPERATIONS, *_OPERATIONS_ELSEWHERE}
        if asked.resource_type_filter not in types or pattern not in set(Pattern):
            raise RefusedError(ErrorCode.invalid_request, "Unknown patternFilter.")
        if asked.operation not in operations or asked.permission_type not in {_ANY, *_PERMISSIONS}:
            raise RefusedError(ErrorCode.invalid_request, "Unknown entryFilter.")
        return cls(
            _unless_any(asked.resource_type_filter),
            asked.resource_name_filter,
            Pattern(pattern),
            asked.principal_filter,
            asked.host_filter,
            _unless_any(asked.operation),
            _unless_any(asked.permission_type),
        )

    def matches(self, acl: Acl) -> bool:
        """Whether a rule is meant."""
        return (
            self.resource_type in (None, _TYPE_CODES[acl.resource_type])
            and self.principal in (None, acl.principal)
            and self.host in (None, _HOST)
            and self.operation in (None, OPERATION_CODES[acl.operation])
            and self.permission in (None, _PERMISSION_CODES[acl.permission])
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in {Pattern.ANY, Pattern.MATCH, _PATTERN_CODES[acl.pattern_type]}:
            return False
        name = self.resource_name
        if name is None or self.pattern is not Pattern.MATCH:
            return name in (None, acl.resource_name)
        if acl.pattern_type == "PREFIXED":
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, ANY_NAME)


def _unless_any(number: int) -> int | None:
    return None if number == _ANY else number


class Rules:
    """Shows and changes the rules of the store."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.DESCRIBE_ACLS: self.describe,
            Api.CREATE_ACLS: self.create,
            Api.DELETE_ACLS: self.delete,
        }

    async def describe(self, request: Request, client: Client) -> Fields:
        """The rules that a filter means, by resource."""
        try:
            self._services.check(client, on_cluster("DESCRIBE"))
            authorization = await self._authorization()
            wanted = Filter.of(request.body)
        except (TxnStoreError, RefusedError) as error:
            return {**refusal(error, Api.DESCRIBE_ACLS, request.version), "resources": ()}
        resources: dict[tuple[str, str, str], list[Acl]] = {}
        for acl in authorization.sorted_acls:
            if wanted.matches(acl):
                resources.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
        return {
            "resources": [{**_resource(acls[0]), "acls": [_entry(acl) for acl in acls]} for acls in resources.values()]
        }

    async def create(self, request: Request, client: Client) -> Fields:
        """Create rules: those that can be, in one entry; each of the others is refused alone."""
        creations: Sequence[Any] = request.body.creations
        try:
            await self._check_may_change(client)
        except (TxnStoreError, RefusedError) as error:
            return {"results": [refusal(error, Api.CREATE_ACLS, request.version)] * len(creations)}
        acls: list[Acl | None] = []
        answers: list[Fields] = []
        for creation in creations:
            try:
                acls.append(_acl(creation))
                answers.append({})
            except (TxnStoreError, RefusedError) as error:
                acls.append(None)
                answers.append(refusal(error, Api.CREATE_ACLS, request.version))
        valid = tuple(acl for acl in acls if acl is not None)
        if valid:
            try:
                await self._change(ChangeAcls(created=valid), client)
            except (TxnStoreError, RefusedError) as error:
                refused = refusal(error, Api.CREATE_ACLS, request.version)
                answers = [refused if acl is not None else answer for acl, answer in zip(acls, answers, strict=True)]
        return {"results": answers}

    async def delete(self, request: Request, client: Client) -> Fields:
        """Delete the rules that filters mean, in one entry; each filter is answered with its rules."""
        asked: Sequence[Any] = request.body.filters
        api, version = Api.DELETE_ACLS, request.version
        try:
            await self._check_may_change(client)
            acls = (await self._authorization()).sorted_acls
        except (TxnStoreError, RefusedError) as error:
            return {"filter_results": [{**refusal(error, api, version), "matching_acls": ()}] * len(asked)}
        meant: list[list[Acl] | RefusedError] = []
        for each in asked:
            try:
                wanted = Filter.of(each)
                meant.append([acl for acl in acls if wanted.matches(acl)])
            except RefusedError as error:
                meant.append(error)
        chosen = dict.fromkeys(acl for found in meant if isinstance(found, list) for acl in found)
        failure: Fields | None = None
        deleted: frozenset[Acl] = frozenset()
        if chosen:
            try:
                deleted = frozenset((await self._change(ChangeAcls(deleted=tuple(chosen)), client)).deleted)
            except (TxnStoreError, RefusedError) as error:
                failure = refusal(error, api, version)
        return {"filter_results": [_filter_result(found, deleted, failure, version) for found in meant]}

    async def _change(self, command: ChangeAcls, client: Client) -> ChangedAcls:
        try:
            changed: ChangedAcls = await self._services.commits.submit(command, client.principal)
        except InvalidConfigError as error:  # The client could not change the rules again.
            raise RefusedError(ErrorCode.invalid_request, str(error)) from error
        return changed

    async def _check_may_change(self, client: Client) -> None:
        self._services.check(client, on_cluster("ALTER"))
        await self._authorization()

    async def _authorization(self) -> Authorization:
        """The newest rules.

        Raises:
            RefusedError: The store checks no rights.
        """
        authorization = (await self._services.freshness.head()).states[0].authorization
        if authorization.mode == "off":
            msg = "the store checks no rights: `txnstore acl enable` makes it check them"
            raise RefusedError(ErrorCode.security_disabled, msg)
        return authorization


def _filter_result(
    found: list[Acl] | RefusedError, deleted: Iterable[Acl], failure: Fields | None, version: int
) -> Fields:
    if isinstance(found, RefusedError):
        return {**refusal(found, Api.DELETE_ACLS, version), "matching_acls": ()}
    if failure is not None:
        return {**failure, "matching_acls": ()}
    return {"matching_acls": [{**_resource(acl), **_entry(acl)} for acl in found if acl in deleted]}


def _resource(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": _TYPE_CODES[acl.resource_type],
        "resource_name": acl.resource_name,
        "pattern_type": _PATTERN_CODES[acl.pattern_type],
    }


def _entry(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": _HOST,
        "operation": OPERATION_CODES[acl.operation],
        "permission_type": _PERMISSION_CODES[acl.permission],
    }


def _acl(asked: Any) -> Acl:
    """The rule of a request; one that could have no effect is refused."""
    if asked.host != _HOST:
        msg = f"rules hold on every host, so the host of a rule is '*', not {asked.host!r}"
        raise RefusedError(ErrorCode.invalid_request, msg)
    acl = Acl(
        principal=asked.principal,
        permission=_named(_PERMISSIONS, asked.permission_type, "permissionType"),
        operation=_named(_OPERATIONS, asked.operation, "operation"),
        resource_type=_named(_TYPES, asked.resource_type, "resourceType"),
        resource_name=asked.resource_name,
        pattern_type=_named(_PATTERNS, value(asked, "resource_pattern_type", int(Pattern.LITERAL)), "patternType"),
    )
    try:
        check_acl(acl)
    except InvalidConfigError as error:
        raise RefusedError(ErrorCode.invalid_request, str(error)) from error
    return acl


def _named(names: dict[int, T], number: int, what: str) -> T:
    if number not in names:
        raise RefusedError(ErrorCode.invalid_request, f"Invalid {what} {number}: rules have {sorted(names)}")
    return names[number]
