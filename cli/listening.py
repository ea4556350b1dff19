"""Addresses that commands listen on: as options, and as sockets."""

from __future__ import annotations

import socket
from typing import Any

import click

from txnstore.cli.context import CommandError
from txnstore.phrases import address_text

#: Addresses that only this machine reaches.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Address(click.ParamType[tuple[str, int]]):
    """A host and a port: ``HOST:PORT``; an IPv6 address in brackets.

    Args:
        example: An address that messages show.
    """

    name = "address"

    def __init__(self, example: str = "127.0.0.1:9092") -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, separator, port = str(value).rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"{value!r} is not HOST:PORT, such as {self._example}", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


def bind_on(address: tuple[str, int]) -> socket.socket:
    """Return a socket that is bound to a host and a port, which other processes of this user may bind, too.

    Those that listen share the connections; one that does not keeps the port for them.

    Raises:
        CommandError: The address cannot be bound.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise CommandError(f"{address_text(*address)} cannot be listened on: {error.strerror}") from error
    return bound


def listen_on(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at a host and a port.

    Raises:
        CommandError: The address cannot be listened on.
    """
    try:
        return socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    except OSError as error:
        raise CommandError(f"{address_text(*address)} cannot be listened on: {error.strerror}") from error
