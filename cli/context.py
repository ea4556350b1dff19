"""The context of a command: the store, the output, and the options that all commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txnstore.cli.logs import printed_logs
from txnstore.cli.output import Output
from txnstore.cli.values import Principal
from txnstore.errors import InvalidConfigError
from txnstore.phrases import size
from txnstore.values.json_text import parse_setting

if TYPE_CHECKING:
    from txnstore.connection import Connection
    from txnstore.storage.counting import CountingStore
    from txnstore.store import Store

F = TypeVar("F", bound=Callable[..., Any])

#: The environment variable with the URL of the store; --store takes precedence.
STORE_VARIABLE = "TXNSTORE_STORE"


class CommandError(Exception):
    """An error of a command.

    Args:
        message: The error in one line.
        advice: What to do, in a sentence.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


@dataclass
class App:
    """The shared options of one invocation."""

    url: str | None = None
    principal_option: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    debug: bool = False
    out: Output = field(default_factory=Output)
    command_path: str = "txnstore"
    counting_objects: CountingStore | None = field(default=None, repr=False)

    def store_url(self) -> str:
        """The URL of the store; raises a usage error if none is given."""
        if self.url is not None:
            return self.url
        url = os.environ.get(STORE_VARIABLE)
        if not url:
            msg = f"no store given: add --store URL (a folder or s3://bucket/prefix), or set {STORE_VARIABLE}."
            raise click.UsageError(msg)
        return url

    def principal(self) -> str:
        """The principal of the command: ``--principal``, else that of the environment, else the anonymous one.

        Raises:
            click.UsageError: The environment names no valid principal.
        """
        from txnstore.connection import PRINCIPAL, principal_of

        try:
            return principal_of(self.principal_option)
        except InvalidConfigError as error:
            msg = f"{PRINCIPAL}: {error}"
            raise click.UsageError(msg) from None

    def open(self, *, read_only: bool = False) -> Store:
        """Open the store."""
        from txnstore.store import open_on

        principal, objects = self.principal(), self.objects()
        with self.progress("opening the store"):
            return open_on(objects, read_only=read_only, principal=principal)

    def connect(self) -> Connection:
        """Connect to the store, read-only, and load it: for commands that show parts of it."""
        connection = self.connect_unloaded()
        with self.progress("opening the store"):
            connection.load()
        return connection

    @contextmanager
    def operations(self) -> Iterator[Store]:
        """Open the store for commands that only describe it: read-only, and without an import of Arrow."""
        from txnstore.store import Store

        with self.connect() as connection:
            yield Store(connection)

    def reader(self) -> Store:
        """Open the store to read; the only write is the end of an expired transaction that blocks records."""
        from txnstore.connection import open_to_read
        from txnstore.store import Store

        principal, objects = self.principal(), self.objects()
        with self.progress("opening the store"):
            return Store(open_to_read(objects, principal))

    def connect_unloaded(self, *, read_only: bool = True) -> Connection:
        """Connect without reading anything: the store may be too damaged to open."""
        from txnstore.connection import Connection

        return Connection(self.objects(), read_only=read_only, checked=False, principal=self.principal())

    @contextmanager
    def progress(self, activity: str) -> Iterator[None]:
        """Show the activity and the requests and bytes so far, if the block takes long."""
        counting_objects = self.counting_objects
        old_counts = counting_objects.snapshot() if counting_objects is not None else None

        def detail() -> str:
            if counting_objects is None or old_counts is None:
                return ""
            counts = counting_objects.snapshot() - old_counts
            return f"{counts.requests:,} requests, {size(counts.bytes_in + counts.bytes_out)}"

        with self.out.progress(activity, detail=detail):
            yield

    def objects(self) -> CountingStore:
        """Open the chosen object store; its requests are counted."""
        from txnstore.storage.counting import CountingStore
        from txnstore.storage.registry import open_store

        self.counting_objects = CountingStore(open_store(self.store_url(), self.storage_options or None))
        return self.counting_objects


#: The names of commands by the names that Kafka's tools have for them.
_KAFKA_COMMANDS = {"describe": "show", "describe-producers": "producers", "describe-transactions": "show"}


class CommandGroup(click.Group):
    """Commands; the chosen one is recorded for errors of click's parser that do not name it.

    The help has the whole first sentence of each command, which click would cut to a line.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, remaining_args = super().resolve_command(ctx, args)
        ctx.ensure_object(App).command_path = f"{ctx.command_path} {name}"
        return name, command, remaining_args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(limit=sys.maxsize)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class NounGroup(CommandGroup):
    """The commands of a noun; a command of Kafka's tools is refused with the name that it has here."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name_here = _KAFKA_COMMANDS.get(args[0], "")
        if name_here in self.commands and args[0] not in self.commands:
            msg = f"No such command {args[0]!r}: here it is `{ctx.command_path} {name_here}`"
            raise click.UsageError(msg, ctx)
        return super().resolve_command(ctx, args)


pass_app = click.make_pass_decorator(App, ensure=True)


def shared_options(*, hidden: bool = True, principal: bool = True) -> Callable[[F], F]:
    """The options that may be given before or after the command. Only the help of the root command shows them.

    Args:
        hidden: Whether the help leaves them out.
        principal: Whether ``--principal`` is one of them: after a command about rules it names the principal of rules.
    """
    options = [
        click.option(
            "--store", metavar="URL", expose_value=False, hidden=hidden, callback=_set_store,
            help=f"The store: a folder, file://… or s3://bucket/prefix. Default: ${STORE_VARIABLE}.",
        ),
        click.option(
            "--storage-option", metavar="KEY=VALUE", multiple=True, expose_value=False, hidden=hidden,
            callback=_set_storage_options,
            help="An option for the storage, such as endpoint_url=http://…; JSON for objects. May be repeated.",
        ),
        click.option(
            "--json", is_flag=True, expose_value=False, hidden=hidden, callback=_set_json,
            help="Print only JSON lines to standard output.",
        ),
        click.option(
            "--debug", is_flag=True, expose_value=False, hidden=hidden, callback=_set_debug,
            help="Show log records, and the traceback of an error.",
        ),
    ]  # fmt: skip
    if principal:
        principal_option = click.option(
            "--principal", "asking", type=Principal(), metavar="User:NAME", expose_value=False, hidden=hidden,
            callback=_set_principal,
            help="Who asks, such as User:billing, in a store that checks rights. Default: $TXNSTORE_PRINCIPAL.",
        )  # fmt: skip
        options.insert(1, principal_option)

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def options_of_place(option: str, name: str, place: str) -> Callable[[F], F]:
    """The storage options of another place than ``--store``."""

    def parse(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        return parse_pairs(values, option, partial(_storage_value, option))

    text = f"An option for the storage of {place}, such as endpoint_url=http://…; JSON for objects. May be repeated."
    return click.option(option, name, metavar="KEY=VALUE", multiple=True, callback=parse, help=text)


def _set_store(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(App).url = value


def _set_principal(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(App).principal_option = value


def _set_storage_options(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    context.ensure_object(App).storage_options.update(
        parse_pairs(values, "--storage-option", partial(_storage_value, "--storage-option"))
    )


def _set_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(App).out.as_json = True


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        app = context.ensure_object(App)
        if not app.debug:
            context.with_resource(printed_logs())
        app.debug = True


def parse_pairs(values: tuple[str, ...], option: str, parse: Callable[[str, str], Any]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` texts. Usage errors never contain a value, which may be secret."""
    pairs: dict[str, Any] = {}
    for text in values:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            msg = f"{option} takes KEY=VALUE; the given one has no " + ("key" if separator else "'='")
            raise click.UsageError(msg)
        pairs[key.strip()] = parse(key.strip(), value)
    return pairs


def _storage_value(option: str, key: str, text: str) -> Any:
    try:
        return parse_setting(text)
    except ValueError as error:
        msg = f"{option} {key}: not valid JSON ({error})"
        raise click.UsageError(msg) from None
