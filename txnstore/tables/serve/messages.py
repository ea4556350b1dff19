"""Requests and responses of the catalog, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body, which no route needs.

    Attributes:
        method: ``GET``, ``HEAD`` or another one.
        target: A path, with or without a query.
        headers: Its headers by name in lower case.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    Attributes:
        body: A JSON document; empty: none. It is not sent in response to HEAD.
        headers: Its headers, but for those that describe the body or the connection.
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """A request has no other answer than an error.

    Args:
        status: The status of the response.
        kind: Iceberg's name of the error, such as ``NoSuchTableException``.
        message: The fault, and what to do.
        headers: Headers of the response.
    """

    def __init__(self, status: int, kind: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers

    @property
    def response(self) -> Response:
        """The response, in the form that all errors of an Iceberg REST catalog have."""
        error = {"message": str(self), "type": self.kind, "code": self.status}
        return Response(self.status, encode({"error": error}), self.headers)


def encode(document: Any) -> bytes:
    """The bytes of a JSON document."""
    return json.dumps(document, separators=(",", ":")).encode()
