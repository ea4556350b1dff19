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
from txnstore.gateway.admin.common import error_fields, on_cluster
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.operations import OPERATION_CODES
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, field_value

T = TypeVar("T")

#: Matches all values in a filter.
_ANY = 1
#: The only host of rules: they hold for clients at any address.
_HOST = "*"
_TYPE_CODES: dict[ResourceType, int] = {"TOPIC": 2, "GROUP": 3, "CLUSTER": 4, "TRANSACTIONAL_ID": 5}
_PERMISSION_CODES: dict[Permission, int] = {"DENY": 2, "ALLOW": 3}
_PATTERN_CODES: dict[PatternType, int] = {"LITERAL": 3, "PREFIXED": 4}
_TYPES = {code: name for name, code in _TYPE_CODES.items()}
_PERMISSIONS = {code: name for name, code in _PERMISSION_CODES.items()}
_OPERATIONS = {code: name for name, code in OPERATION_CODES.items()}
_PATTERNS = {code: name for name, code in _PATTERN_CODES.items()}
#: Kafka's types and operations that rules here lack: delegation tokens and users; operations on these.
_OTHER_TYPES, _OTHER_OPERATIONS = {6, 7}, {13, 14}


class Pattern(IntEnum):
    """The pattern types of filters (KIP-290)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of rules; a field that is None matches all.

    Attributes:
        resource_type: The type of the resources, as Kafka's number.
        pattern: The way in which names are compared.
        operation: The operation, as Kafka's number.
        permission: ALLOW or DENY, as Kafka's number.
    """

    resource_type: int | None
    resource_name: str | None
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: int | None
    permission: int | None

    @classmethod
    def of(cls, message: Any) -> Filter:
        """Read the filter of a request.

        Raises:
            RefusedError: A number is none of Kafka's.
        """
        pattern = field_value(message, "pattern_type_filter", int(Pattern.LITERAL))
        types, operations = {_ANY, *_TYPES, *_OTHER_TYPES}, {_ANY, *_OPERATIONS, *_OTHER_OPERATIONS}
        if message.resource_type_filter not in types or pattern not in set(Pattern):
            raise RefusedError(ErrorCode.invalid_request, "Unknown patternFilter.")
        if message.operation not in operations or message.permission_type not in {_ANY, *_PERMISSIONS}:
            raise RefusedError(ErrorCode.invalid_request, "Unknown entryFilter.")
        return cls(
            _none_if_any(message.resource_type_filter),
            message.resource_name_filter,
            Pattern(pattern),
            message.principal_filter,
            message.host_filter,
            _none_if_any(message.operation),
            _none_if_any(message.permission_type),
        )

    def matches(self, acl: Acl) -> bool:
        """Whether the filter matches a rule."""
        return (
            self.resource_type in (None, _TYPE_CODES[acl.resource_type])
            and self.principal in (None, acl.principal)
            and self.host in (None, _HOST)
            and self.operation in (None, OPERATION_CODES[acl.operation])
            and self.permission in (None, _PERMISSION_CODES[acl.permission])
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        """Whether the filter selects a rule by resource name and pattern type; MATCH: by whether it applies."""
        if self.pattern not in {Pattern.ANY, Pattern.MATCH, _PATTERN_CODES[acl.pattern_type]}:
            return False
        name = self.resource_name
        if name is None or self.pattern is not Pattern.MATCH:
            return name in (None, acl.resource_name)
        if acl.pattern_type == "PREFIXED":
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, ANY_NAME)


def _none_if_any(code: int) -> int | None:
    return None if code == _ANY else code


class AclRules:
    """Shows and changes the rules of the store."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of the APIs of rules."""
        return {
            Api.DESCRIBE_ACLS: self.describe,
            Api.CREATE_ACLS: self.create,
            Api.DELETE_ACLS: self.delete,
        }

    async def describe(self, request: Request, client: Client) -> Fields:
        """Return the rules that a filter matches, by resource."""
        try:
            self._services.check(client, on_cluster("DESCRIBE"))
            authorization = await self._authorization()
            acl_filter = Filter.of(request.body)
        except (TxnStoreError, RefusedError) as error:
            return {**error_fields(error, Api.DESCRIBE_ACLS, request.version), "resources": ()}
        resources: dict[tuple[str, str, str], list[Acl]] = {}
        for acl in authorization.sorted_acls:
            if acl_filter.matches(acl):
                resources.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
        return {
            "resources": [
                {**_resource_fields(acls[0]), "acls": [_acl_fields(acl) for acl in acls]} for acls in resources.values()
            ]
        }

    async def create(self, request: Request, client: Client) -> Fields:
        """Create the valid rules in one entry; each invalid one is refused alone."""
        creations: Sequence[Any] = request.body.creations
        api, version = Api.CREATE_ACLS, request.version
        try:
            await self._check_may_alter(client)
        except (TxnStoreError, RefusedError) as error:
            return {"results": [error_fields(error, api, version)] * len(creations)}
        acls = [_acl_or_refusal(creation) for creation in creations]
        valid_acls = tuple(acl for acl in acls if isinstance(acl, Acl))
        fields_of_valid: Fields = {}
        if valid_acls:
            try:
                await self._change(ChangeAcls(created=valid_acls), client)
            except (TxnStoreError, RefusedError) as error:
                fields_of_valid = error_fields(error, api, version)
        return {
            "results": [fields_of_valid if isinstance(acl, Acl) else error_fields(acl, api, version) for acl in acls]
        }

    async def delete(self, request: Request, client: Client) -> Fields:
        """Delete the rules that filters match, in one entry; each filter is answered with its rules."""
        filters: Sequence[Any] = request.body.filters
        api, version = Api.DELETE_ACLS, request.version
        try:
            await self._check_may_alter(client)
            acls = (await self._authorization()).sorted_acls
        except (TxnStoreError, RefusedError) as error:
            return {"filter_results": [{**error_fields(error, api, version), "matching_acls": ()}] * len(filters)}
        acls_by_filter = [_matching_or_refusal(acls, message) for message in filters]
        to_delete = dict.fromkeys(
            acl for found_acls in acls_by_filter if isinstance(found_acls, list) for acl in found_acls
        )
        failure_fields: Fields | None = None
        deleted_acls: frozenset[Acl] = frozenset()
        try:  # Also if there is none: an earlier request may have deleted them, and have no answer yet.
            deleted_acls = frozenset((await self._change(ChangeAcls(deleted=tuple(to_delete)), client)).deleted)
        except (TxnStoreError, RefusedError) as error:
            failure_fields = error_fields(error, api, version)
        return {
            "filter_results": [
                _filter_result(found_acls, deleted_acls, failure_fields, version) for found_acls in acls_by_filter
            ]
        }

    async def _change(self, command: ChangeAcls, client: Client) -> ChangedAcls:
        try:
            changed: ChangedAcls = await self._services.commits.submit(command, client.principal)
        except InvalidConfigError as error:  # The client would lock itself out.
            raise RefusedError(ErrorCode.invalid_request, str(error)) from error
        return changed

    async def _check_may_alter(self, client: Client) -> None:
        self._services.check(client, on_cluster("ALTER"))
        await self._authorization()

    async def _authorization(self) -> Authorization:
        """Read the newest rules.

        Raises:
            RefusedError: The store checks no rights.
        """
        authorization = (await self._services.freshness.head()).states[0].authorization
        if authorization.mode == "off":
            msg = "the store checks no rights: `txnstore acl enable` makes it check them"
            raise RefusedError(ErrorCode.security_disabled, msg)
        return authorization


def _matching_or_refusal(acls: Iterable[Acl], message: Any) -> list[Acl] | RefusedError:
    """The rules that the filter of a request matches, or why the filter is refused."""
    try:
        acl_filter = Filter.of(message)
    except RefusedError as error:
        return error
    return [acl for acl in acls if acl_filter.matches(acl)]


def _filter_result(
    found_acls: list[Acl] | RefusedError, deleted_acls: Iterable[Acl], failure_fields: Fields | None, version: int
) -> Fields:
    """The fields of a filter: those of the rules that it has deleted, or of the error that it or the deletion met."""
    if isinstance(found_acls, RefusedError):
        return {**error_fields(found_acls, Api.DELETE_ACLS, version), "matching_acls": ()}
    if failure_fields is not None:
        return {**failure_fields, "matching_acls": ()}
    return {
        "matching_acls": [{**_resource_fields(acl), **_acl_fields(acl)} for acl in found_acls if acl in deleted_acls]
    }


def _resource_fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": _TYPE_CODES[acl.resource_type],
        "resource_name": acl.resource_name,
        "pattern_type": _PATTERN_CODES[acl.pattern_type],
    }


def _acl_fields(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": _HOST,
        "operation": OPERATION_CODES[acl.operation],
        "permission_type": _PERMISSION_CODES[acl.permission],
    }


def _acl_or_refusal(message: Any) -> Acl | TxnStoreError | RefusedError:
    """The rule of a request, or why it is refused."""
    try:
        return _acl_from(message)
    except (TxnStoreError, RefusedError) as error:
        return error


def _acl_from(message: Any) -> Acl:
    """Read the rule of a request; one without effect is refused."""
    if message.host != _HOST:
        msg = f"rules hold on every host, so the host of a rule is '*', not {message.host!r}"
        raise RefusedError(ErrorCode.invalid_request, msg)
    acl = Acl(
        principal=message.principal,
        permission=_name_of_code(_PERMISSIONS, message.permission_type, "permissionType"),
        operation=_name_of_code(_OPERATIONS, message.operation, "operation"),
        resource_type=_name_of_code(_TYPES, message.resource_type, "resourceType"),
        resource_name=message.resource_name,
        pattern_type=_name_of_code(
            _PATTERNS, field_value(message, "resource_pattern_type", int(Pattern.LITERAL)), "patternType"
        ),
    )
    try:
        check_acl(acl)
    except InvalidConfigError as error:
        raise RefusedError(ErrorCode.invalid_request, str(error)) from error
    return acl


def _name_of_code(names: dict[int, T], code: int, field_name: str) -> T:
    if code not in names:
        raise RefusedError(ErrorCode.invalid_request, f"Invalid {field_name} {code}: rules have {sorted(names)}")
    return names[code]
