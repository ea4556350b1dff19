"""Raw requests to a gateway, and settings of clients that connect to one."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tests.helpers.gateway import RunningGateway
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.security import Security, credential_line, watched_users
from txnstore.gateway.wire import build
from txnstore.store import Store

#: Seconds within which a gateway answers.
SECONDS = 30
#: The password of all users.
PASSWORD = "secret"

_CORRELATIONS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store, and a gateway that serves it."""

    store: Store
    gateway: RunningGateway

    def librdkafka(self, user: str | None = None, **settings: Any) -> dict[str, Any]:
        """The settings of a client of librdkafka."""
        config: dict[str, Any] = {"bootstrap.servers": self.gateway.bootstrap, "log_level": 0, **settings}
        if user is not None:
            config |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
            config |= {"sasl.username": user, "sasl.password": PASSWORD}
        return config

    def kafka_python(self, user: str | None = None, **settings: Any) -> dict[str, Any]:
        """The settings of a client of kafka-python."""
        config: dict[str, Any] = {"bootstrap_servers": self.gateway.bootstrap, **settings}
        if user is not None:
            config |= {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
            config |= {"sasl_plain_username": user, "sasl_plain_password": PASSWORD}
        return config

    def ask(self, api: Api, fields: Mapping[str, Any], version: int | None = None, user: str | None = None) -> Any:
        """The response to one request, on a connection of its own.

        Args:
            api: The API.
            fields: The fields of the request under kio's names; the others have defaults.
            version: The version; None: the last one that the gateway has.
            user: Authenticate as this user first.
        """
        with RawClient(self.gateway, user) as client:
            return client.ask(api, fields, version)


class RawClient:
    """A connection that sends what a test wants to send.

    Args:
        gateway: The gateway.
        user: Authenticate as this user first.
    """

    def __init__(self, gateway: RunningGateway, user: str | None = None) -> None:
        self._socket = socket.create_connection(gateway.address, timeout=SECONDS)
        if user is not None:
            self.ask(Api.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, 1)
            answer = self.ask(Api.SASL_AUTHENTICATE, {"auth_bytes": f"\0{user}\0{PASSWORD}".encode()}, 1)
            assert answer.error_code is ErrorCode.none

    def ask(self, api: Api, fields: Mapping[str, Any], version: int | None = None) -> Any:
        """The response to a request; :meth:`ServedStore.ask` describes the arguments."""
        version = VERSIONS[api].last if version is None else version
        correlation = next(_CORRELATIONS)
        self.send(request_frame(api, version, correlation, fields))
        return response_of(api, version, correlation, self.receive())

    def send(self, frame: bytes) -> None:
        """Send a frame, with its length."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame, without its length.

        Raises:
            ConnectionError: The gateway has closed the connection.
        """
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the gateway has closed the connection")
            data += part
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()


def request_frame(api: Api, version: int, correlation: int, fields: Mapping[str, Any]) -> bytes:
    """A request, encoded; without its length."""
    schema: Any = load_request_schema(int(api), version)
    buffer = BytesIO()
    header = {
        "request_api_key": int(api),
        "request_api_version": version,
        "correlation_id": correlation,
        "client_id": "test",
    }
    entity_writer(schema.__header_schema__)(buffer, build(schema.__header_schema__, header))
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()


def response_of(api: Api, version: int, correlation: int, frame: bytes) -> Any:
    """The response in a frame, all of which it takes."""
    schema: Any = load_response_schema(int(api), version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation
    body, body_size = entity_reader(schema)(frame, size)
    assert size + body_size == len(frame)
    return body


def users_of(folder: Path, *names: str) -> Security:
    """A listener that these users may connect to, whose password is :data:`PASSWORD`."""
    path = folder / "users.toml"
    path.write_text("[users]\n" + "".join(f'{name} = "{credential_line(PASSWORD)}"\n' for name in names))
    return Security(watched_users(path), plain=True)


def failure_of(future: Any) -> ErrorCode:
    """The code with which a request of confluent-kafka was refused; ``none`` if it was not."""
    error = future.exception(SECONDS)
    return ErrorCode.none if error is None else ErrorCode(error.args[0].code())
