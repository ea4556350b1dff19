"""``table serve``: a read-only Iceberg REST catalog of the published tables."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.listening import LOOPBACK, Address, listen_on
from txnstore.cli.logs import printed_logs
from txnstore.errors import InvalidConfigError
from txnstore.phrases import address_text
from txnstore.validation import check_milliseconds

if TYPE_CHECKING:
    from txnstore.connection import Connection
    from txnstore.tables.serve.cuts import Freshness

#: The length of the shortest token, in characters: too long to be guessed.
_MIN_TOKEN_LENGTH = 16


@click.command()
@click.option(
    "--listen",
    type=Address("127.0.0.1:8181"),
    default="127.0.0.1:8181",
    show_default=True,
    help="Where to listen; port 0: a free one.",
)
@click.option(
    "--fresh",
    type=float,
    metavar="SECONDS",
    help="Publish the tables when an engine loads one, or begins a session, and this was done longer ago.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Answer only who sends a bearer token of this file, which has one in each line.",
)
@click.option("--insecure-listen", is_flag=True, help="Allow other machines without --token-file.")
@shared_options()
@pass_app
def serve(
    app: App, listen: tuple[str, int], fresh: float | None, token_file: Path | None, insecure_listen: bool
) -> None:
    """Serve the published tables to engines as a read-only Iceberg REST catalog: its URI is http://HOST:PORT.

    warehouse=pinned: a session sees all tables at one cut, the newest one when it begins. warehouse=live: each load
    sees the newest cut. A number: that cut.

    The server keeps nothing, issues no credentials and writes nothing but what --fresh publishes. Engines read the
    files of the tables from the storage themselves. It runs until SIGTERM.
    """
    from txnstore.catalog.iceberg.location import location_of
    from txnstore.tables.serve.cuts import StoredCuts
    from txnstore.tables.serve.routes import Router
    from txnstore.tables.serve.server import CatalogServer, run

    fresh_ms = _fresh_ms(fresh)
    tokens = _read_tokens(token_file) if token_file is not None else []
    if not tokens and not insecure_listen and listen[0] not in LOOPBACK:
        msg = f"{listen[0]} can be reached from other machines, and this listener asks for no token"
        advice = "Add --token-file; or listen on 127.0.0.1; or add --insecure-listen where you trust all."
        raise CommandError(msg, advice)
    with contextlib.ExitStack() as resources:
        if app.debug:
            resources.enter_context(printed_logs(times=True))
        listener = resources.enter_context(listen_on(listen))
        connection = resources.enter_context(app.connect_unloaded(read_only=fresh_ms is None))
        location = location_of(connection.objects)
        with app.progress("opening the store"):
            connection.load()
        freshness = _freshness(connection, fresh_ms) if fresh_ms is not None else None
        router = Router(StoredCuts(connection, location, freshness), location, tokens)
        server = CatalogServer(listener, router, connection.runtime.monotonic)

        def ready() -> None:
            print(f"listening on {address_text(*listener.getsockname()[:2])}", flush=True)

        if not app.debug:
            resources.enter_context(printed_logs(logging.INFO, times=True))
        run(server, ready)


def _fresh_ms(fresh: float | None) -> int | None:
    try:
        return None if fresh is None else check_milliseconds("--fresh", fresh)
    except InvalidConfigError as error:
        raise click.BadParameter(str(error), param_hint="--fresh") from None


def _freshness(connection: Connection, fresh_ms: int) -> Freshness:
    """Return what publishes tables that are older than --fresh; fails at once without the library for Avro."""
    from txnstore.catalog.iceberg.manifest import avro
    from txnstore.tables.serve.cuts import Freshness
    from txnstore.tables.tables import Tables

    avro()
    return Freshness(Tables(connection).sync, connection.runtime.uptime, fresh_ms)


def _read_tokens(path: Path) -> list[str]:
    """Read the tokens of a file. Errors do not contain them."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is no text") from None
    tokens = [line.strip() for line in lines if line.strip()]
    for number, token in enumerate(tokens, 1):
        if len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
            msg = (
                f"token {number} of {path} is not of {_MIN_TOKEN_LENGTH} or more letters, digits and punctuation marks"
            )
            raise CommandError(msg, "`openssl rand -hex 32` prints a good one.")
    if not tokens:
        raise CommandError(f"{path} has no token", "`openssl rand -hex 32` prints a good one.")
    return tokens
