"""Answers the requests of the Iceberg REST catalog from cuts. No I/O but through :class:`Cuts`.

Each prefix shows the tables of a cut: ``live`` those of the newest one at each request, ``cut-<n>`` always those of the
cut *n*. Engines get their prefix from ``/v1/config`` when a session begins: so all that a session of
``warehouse=pinned`` loads is of one cut.

Source: the Iceberg REST catalog specification (rest-catalog-open-api.yaml).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import parse_qs, unquote

from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.location import Location
from txnstore.errors import TxnStoreError
from txnstore.tables.published import missing_error
from txnstore.tables.serve.messages import RefusedError, Request, Response, encode

_LOG = logging.getLogger(__name__)

#: The namespace that all tables are in.
NAMESPACE = "tables"
#: The header of answers from a cut that is older than it should be; its value is the kind of the error.
STALE = "X-Txnstore-Stale"
_LIVE, _PINNED = "live", "pinned"
_NUMBER, _CUT_PREFIX = re.compile("[1-9][0-9]{0,18}"), re.compile("cut-(0|[1-9][0-9]{0,18})")
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
#: The requests that engines may send; they send no others, such as reports of metrics.
_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/namespaces{path}"
    for path, methods in (
        ("", ("GET",)),
        ("/{namespace}", ("GET", "HEAD")),
        ("/{namespace}/tables", ("GET",)),
        ("/{namespace}/tables/{table}", ("GET", "HEAD")),
    )
    for method in methods
]
#: The most members that a query has.
_MAX_QUERY = 20
_WAREHOUSES = (
    "`pinned`: the session stays at the cut that is the newest one when it begins; "
    "`live`: the newest cut at each load; or the number of a cut"
)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest cut.

    Attributes:
        cut: The cut; None: nothing was published yet.
        stale: The kind of the error for which it is older than it should be; None: it is not.
    """

    cut: CutDocument | None
    stale: str | None = None


class Cuts(Protocol):
    """Finds cuts, and reads the metadata of their tables."""

    def newest(self, *, uncached: bool = False) -> Newest:
        """The newest cut; with ``uncached``, no earlier look counts."""

    def numbered(self, number: int) -> CutDocument | None:
        """The cut of this number; None if it does not exist."""

    def metadata(self, table: PublishedTable) -> bytes | None:
        """The metadata of a table; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class _VisibleTables:
    """The tables that a request sees.

    Attributes:
        number: The number of the cut; 0 before the first one.
        tables: The tables by name, without dropped ones.
        properties: The properties of the namespace.
        headers: Headers of the response.
        outdated: Those that show an earlier moment than the cut: a session of the cut does not see them.
    """

    number: int
    tables: Mapping[str, PublishedTable]
    properties: Mapping[str, str]
    headers: tuple[tuple[str, str], ...] = ()
    outdated: frozenset[str] = frozenset()


class Router:
    """Answers requests. Thread-safe.

    Args:
        cuts: Finds cuts.
        location: The location of the store's objects.
        tokens: The tokens of which a request needs one; empty: none is needed.
    """

    def __init__(self, cuts: Cuts, location: Location, tokens: Collection[str] = ()) -> None:
        self._cuts, self._location = cuts, location
        self._tokens = [_token_digest(token) for token in tokens]

    def answer(self, request: Request) -> Response:
        """Answer a request; errors of the store become responses, too."""
        try:
            self._check_token(request)
            return self._answer(request)
        except RefusedError as refused:
            return refused.response
        except TxnStoreError as error:
            _LOG.warning("a request cannot be answered", extra={"target": request.target, "error": error})
            if error.retriable:
                return RefusedError(503, "ServiceUnavailableException", str(error)).response
            return RefusedError(500, "ServiceFailureException", str(error)).response

    def _check_token(self, request: Request) -> None:
        """Refuse a request without one of the tokens, if the server has any."""
        if not self._tokens:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = _token_digest(token.strip())
        # All are compared, so that the time does not depend on which one is equal.
        matches = [hmac.compare_digest(digest, known) for known in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            msg = "the header `Authorization: Bearer TOKEN` is missing, or the token is not one of this server"
            raise RefusedError(401, "NotAuthorizedException", msg, (("WWW-Authenticate", "Bearer"),))

    def _answer(self, request: Request) -> Response:
        """Answer a request by its route; a write is refused."""
        if request.method not in {"GET", "HEAD"} | _WRITES:
            raise RefusedError(501, "UnsupportedOperationException", "the method of the request is not known")
        segments, query = _parse_target(request.target)
        if request.method in _WRITES:
            return _write_response(request.method, segments)
        match segments:
            case ["v1", "config"]:
                return self._config_response(query)
            case ["v1", prefix, "namespaces"]:
                return self._namespaces_response(prefix, query)
            case ["v1", prefix, "namespaces", namespace]:
                return self._namespace_response(request, prefix, namespace)
            case ["v1", prefix, "namespaces", namespace, "tables"]:
                return self._tables_response(prefix, namespace)
            case ["v1", prefix, "namespaces", namespace, "tables", name]:
                return self._table_response(request, prefix, namespace, name)
        msg = "this catalog has no such route: it serves the configuration, namespaces and tables, and nothing else"
        raise RefusedError(406, "UnsupportedOperationException", msg)

    # Sessions ---------------------------------------------------------------------------------------------------------

    def _config_response(self, query: Mapping[str, str]) -> Response:
        """Begin a session: return the prefix of all its requests."""
        warehouse = query.get("warehouse", "") or _LIVE
        headers: tuple[tuple[str, str], ...] = ()
        if warehouse == _LIVE:
            prefix = _LIVE
        elif warehouse == _PINNED:
            visible = _visible_at_newest(self._cuts.newest())
            prefix, headers = f"cut-{visible.number}", visible.headers
        elif _NUMBER.fullmatch(warehouse):
            prefix = f"cut-{self._visible_at_number(int(warehouse)).number}"
        else:
            raise RefusedError(400, "BadRequestException", f"there is no warehouse {warehouse!r}: give {_WAREHOUSES}")
        document = {"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS}
        return Response(200, encode(document), headers)

    def _visible_at_prefix(self, prefix: str, *, uncached: bool = False) -> _VisibleTables:
        """The tables that sessions of a prefix see."""
        if prefix == _LIVE:
            return _visible_at_newest(self._cuts.newest(uncached=uncached))
        match = _CUT_PREFIX.fullmatch(prefix)
        if match is None:
            msg = (
                f"there is no prefix {prefix!r}: GET /v1/config?warehouse=NAME returns one, where NAME is {_WAREHOUSES}"
            )
            raise RefusedError(400, "BadRequestException", msg)
        return self._visible_at_number(int(match[1]))

    def _visible_at_number(self, number: int) -> _VisibleTables:
        cut = self._cuts.numbered(number) if number else None
        if number and cut is None:
            raise _missing_cut_error(number)
        visible = _visible_at(cut)
        outdated = frozenset(name for name, table in visible.tables.items() if table.moment is not None)
        tables = {name: table for name, table in visible.tables.items() if name not in outdated}
        return replace(visible, tables=tables, outdated=outdated)

    def _visible_in(self, prefix: str, namespace: str) -> _VisibleTables:
        if namespace != NAMESPACE:
            raise _unknown_namespace_error(namespace)
        return self._visible_at_prefix(prefix)

    # Namespaces and tables --------------------------------------------------------------------------------------------

    def _namespaces_response(self, prefix: str, query: Mapping[str, str]) -> Response:
        """List the namespaces below a parent: there is one, at the top."""
        visible = self._visible_at_prefix(prefix)
        parent = query.get("parent", "")
        if parent not in {"", NAMESPACE}:
            raise _unknown_namespace_error(parent)
        return Response(200, encode({"namespaces": [] if parent else [[NAMESPACE]]}), visible.headers)

    def _namespace_response(self, request: Request, prefix: str, namespace: str) -> Response:
        """Return the properties of the namespace."""
        visible = self._visible_in(prefix, namespace)
        body = encode({"namespace": [NAMESPACE], "properties": dict(visible.properties)})
        return _content_response(request, visible, body)

    def _tables_response(self, prefix: str, namespace: str) -> Response:
        """List the tables of the namespace."""
        visible = self._visible_in(prefix, namespace)
        names = [{"namespace": [NAMESPACE], "name": name} for name in sorted(visible.tables)]
        return Response(200, encode({"identifiers": names}), visible.headers)

    def _table_response(self, request: Request, prefix: str, namespace: str, name: str) -> Response:
        """Load a table, once more without the cache if its metadata was deleted; say why it cannot be loaded."""
        visible = self._visible_in(prefix, namespace)
        response = self._load_response(request, visible, name)
        if response is not None:
            return response
        if prefix == _LIVE:  # All tables may have been deleted and published again: cuts begin at 1.
            visible = self._visible_at_prefix(prefix, uncached=True)
            response = self._load_response(request, visible, name)
        if response is None and self._cuts.numbered(visible.number + 1) is None:
            raise missing_error(visible.tables[name].metadata)
        if response is None:
            raise _missing_cut_error(visible.number)
        return response

    def _load_response(self, request: Request, visible: _VisibleTables, name: str) -> Response | None:
        """The response to a request for a table; None if its metadata was deleted."""
        table = visible.tables.get(name)
        if table is None:
            when = (
                f"at cut {visible.number}"
                if visible.number
                else "yet: nothing was published, `txnstore table sync` does"
            )
            msg = f"there is no table {name!r} in the namespace {NAMESPACE!r} {when}"
            if name in visible.outdated:
                msg += (
                    ": it could not be published with it, which `txnstore table sync` explains. The warehouse "
                    f"{_LIVE!r} shows it as it was"
                )
            raise RefusedError(404, "NoSuchTableException", msg)
        if request.method == "HEAD":
            return Response(204, headers=visible.headers)
        tag = f'"{table.sha256}"'
        headers = (*visible.headers, ("ETag", tag))
        if tag in _entity_tags(request.headers.get("if-none-match", "")):
            return Response(304, headers=headers)
        data = self._cuts.metadata(table)
        if data is None:
            return None
        location = encode(self._location.of(table.metadata))
        # The published bytes: decoded and encoded again, the document could differ.
        body = b'{"metadata-location":' + location + b',"metadata":' + data + b',"config":{}}'
        return Response(200, body, headers)


def _visible_at_newest(newest: Newest) -> _VisibleTables:
    return _visible_at(newest.cut, () if newest.stale is None else ((STALE, newest.stale),))


def _visible_at(cut: CutDocument | None, headers: tuple[tuple[str, str], ...] = ()) -> _VisibleTables:
    """Return the tables that a cut shows, with the properties of their namespace."""
    if cut is None:
        return _VisibleTables(0, {}, {"txnstore.cut": "0"}, headers)
    tables = {name: table for name, table in cut.tables.items() if not table.dropped}
    properties = {
        "txnstore.cut": str(cut.number),
        "txnstore.heads": ",".join(map(str, cut.heads)),
        "txnstore.timestamp-ms": str(cut.timestamp),
    }
    return _VisibleTables(cut.number, tables, properties, headers)


def _content_response(request: Request, visible: _VisibleTables, body: bytes) -> Response:
    """The response with content; to HEAD, one without."""
    return Response(204, headers=visible.headers) if request.method == "HEAD" else Response(200, body, visible.headers)


def _write_response(method: str, segments: list[str]) -> Response:
    """Refuse a request that would change something; reports of metrics are accepted and dropped."""
    match segments:
        case ["v1", _, "namespaces", _, "tables", _, "metrics"] if method == "POST":
            return Response(204)
    msg = (
        "this catalog is read-only: its tables show topics of txnstore, whose rows producers write. It issues no "
        "tokens either"
    )
    raise RefusedError(403, "ForbiddenException", msg)


def _unknown_namespace_error(name: str) -> RefusedError:
    msg = f"there is no namespace {name!r}: all tables are in {NAMESPACE!r}"
    return RefusedError(404, "NoSuchNamespaceException", msg)


def _missing_cut_error(number: int) -> RefusedError:
    msg = f"the cut {number} of the tables does not exist, or no longer: open a new session, which sees a newer one"
    return RefusedError(404, "NoSuchNamespaceException", msg)


def _parse_target(target: str) -> tuple[list[str], dict[str, str]]:
    """The decoded segments of the path and members of the query."""
    path, _, query = re.sub("^https?://[^/?]*", "", target, count=1).partition("?")
    if not path.startswith("/"):
        raise RefusedError(400, "BadRequestException", "the target of the request is not a path")
    try:
        segments = [unquote(segment, errors="strict") for segment in path[1:].split("/")]
        members = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY)
    except ValueError:
        msg = "the target of the request is not UTF-8, or its query has too many members"
        raise RefusedError(400, "BadRequestException", msg) from None
    repeated = [name for name, values in members.items() if len(values) > 1]
    if repeated:
        raise RefusedError(400, "BadRequestException", f"the query has {repeated[0]!r} more than once")
    return segments, {name: values[0] for name, values in members.items()}


def _entity_tags(header: str) -> set[str]:
    """The entity tags of ``If-None-Match``."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _token_digest(token: str) -> bytes:
    """A digest that is compared in place of a token, as long as that of any other token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
