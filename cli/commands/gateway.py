"""``gateway``: serve a store to Kafka's clients."""

from __future__ import annotations

import socket
from typing import Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.errors import InvalidConfigError


class Address(click.ParamType[tuple[str, int]]):
    """A host and a port: ``HOST:PORT``; an IPv6 address in brackets."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, separator, port = str(value).rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9092", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


class Property(click.ParamType[tuple[str, str]]):
    """A property: ``NAME=VALUE``."""

    name = "property"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, text = str(value).partition("=")
        if not separator:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name.strip(), text.strip()


@click.command()
@click.option(
    "--listen", type=Address(), default="127.0.0.1:9092", show_default=True, help="Where to listen; port 0: a free one."
)
@click.option("--advertise", type=Address(), help="Where clients connect to, if it is not the address of --listen.")
@click.option(
    "--property",
    "properties",
    type=Property(),
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of Kafka's brokers, such as num.partitions=4; repeatable.",
)
@click.option("--insecure", is_flag=True, help="Listen on more than this machine, without TLS and authentication.")
@shared_options()
@pass_app
def gateway(
    app: App,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    properties: tuple[tuple[str, str], ...],
    insecure: bool,
) -> None:
    """Serve the store to Kafka's clients: any of them, at HOST:PORT as bootstrap server.

    A gateway keeps nothing: what is acknowledged is in the store, and it may be killed at any time. It runs until
    SIGTERM. What differs from a broker: docs/gateway.md.
    """
    try:
        import asyncio

        from txnstore.gateway.gateway import run
        from txnstore.gateway.properties import Properties
    except ModuleNotFoundError as error:
        msg = f"a gateway needs packages that are not installed: {error.name} is missing"
        raise CommandError(msg, "Install txnstore[gateway].") from error
    try:
        chosen = Properties.from_mapping(dict(properties))
    except InvalidConfigError as error:
        raise click.BadParameter(str(error), param_hint="--property") from None
    if not insecure and listen[0] not in {"127.0.0.1", "::1", "localhost"}:
        msg = f"{listen[0]} can be reached from other machines, and this listener has no TLS and no authentication"
        raise CommandError(msg, "Listen on 127.0.0.1, or add --insecure in a network that you trust.")
    try:
        bound = socket.create_server(listen, family=socket.AF_INET6 if ":" in listen[0] else socket.AF_INET)
    except OSError as error:
        raise CommandError(f"{listen[0]}:{listen[1]} cannot be listened on: {error.strerror}") from error
    host, port = bound.getsockname()[:2]
    connection = app.unloaded(read_only=False)
    with app.progress("opening the store"):
        connection.load()
        connection.check_storage()
    with connection:
        asyncio.run(run(connection, chosen, bound, advertise, lambda: print(f"listening on {host}:{port}", flush=True)))
