"""``gateway``: serve a store to Kafka's clients."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.commands.maintain import end_soon, maintenance_text
from txnstore.cli.confirm import is_terminal
from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.listening import LOOPBACK, Address, bind_on, listen_on
from txnstore.cli.logs import printed_logs
from txnstore.errors import InvalidConfigError, StorageRefusedError
from txnstore.phrases import address_text
from txnstore.runtime import Runtime

if TYPE_CHECKING:
    import socket
    from multiprocessing.connection import Connection as Pipe

    from txnstore.compactor import Maintenance
    from txnstore.connection import Connection
    from txnstore.gateway.metrics import GatewayMetrics
    from txnstore.gateway.properties import Properties
    from txnstore.gateway.security import Security
    from txnstore.gateway.tokens import Tokens

#: The most workers.
_MAX_WORKERS = 64
_MAX_PORT = 65_535
#: Addresses that stand for all of this machine, to listen on.
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - Compared with.
_FILE_TYPE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Addresses(click.ParamType[tuple[tuple[str, int], ...]]):
    """Addresses, with commas between them."""

    name = "addresses"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, int], ...]:
        parts = str(value).split(",") if isinstance(value, str) else value
        return tuple(Address().convert(part, param, ctx) for part in parts)


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


class Rack(click.ParamType[str]):
    """The name of a zone."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(r"[\w.:-]{1,100}", text, re.ASCII):
            self.fail(f"{text!r} is no name of a zone: 1 to 100 letters, digits and ._:- are", param, ctx)
        return text


@click.command()
@click.option(
    "--listen", type=Address(), default="127.0.0.1:9092", show_default=True, help="Where to listen; port 0: a free one."
)
@click.option("--advertise", type=Address(), help="Where clients connect to, if it is not the address of --listen.")
@click.option(
    "--peers",
    type=Addresses(),
    default=(),
    metavar="HOST:PORT,…",
    help="The addresses of all gateways of the store, this one included, in the same order at each of them.",
)
@click.option(
    "--property",
    "properties",
    type=Property(),
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of Kafka's brokers, such as num.partitions=4; repeatable.",
)
@click.option("--tls-cert", type=_FILE_TYPE, help="Encrypt connections: the certificate and its chain, as PEM.")
@click.option("--tls-key", type=_FILE_TYPE, help="The key of the certificate, as PEM.")
@click.option(
    "--tls-client-ca",
    type=_FILE_TYPE,
    help="Know clients by their certificates: the authorities that sign them, as PEM. Their subjects are principals.",
)
@click.option("--sasl", type=_FILE_TYPE, help="Who may connect: a file with hashes of passwords (docs/gateway.md).")
@click.option(
    "--hash-password",
    is_flag=True,
    help="Ask for a password, or read a line of standard input, print its line for the file of --sasl, and end.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=_MAX_WORKERS),
    default=1,
    show_default=True,
    help="Processes that serve the address of --listen, each with a port of its own after it.",
)
@click.option(
    "--rack",
    type=Rack(),
    help="The zone of this gateway: clients of a zone are sent to its gateways (docs/gateway.md).",
)
@click.option("--metrics", type=Address(), help="Serve http://HOST:PORT/metrics, and /health.")
@click.option("--maintain", is_flag=True, help="Also maintain the store, as `txnstore maintain` does.")
@click.option(
    "--insecure", is_flag=True, help="Allow other machines without TLS and --sasl, and passwords without TLS."
)
@shared_options()
@pass_app
def gateway(
    app: App,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    peers: tuple[tuple[str, int], ...],
    properties: tuple[tuple[str, str], ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl: Path | None,
    hash_password: bool,
    workers: int,
    rack: str | None,
    metrics: tuple[str, int] | None,
    maintain: bool,
    insecure: bool,
) -> None:
    """Serve the store to Kafka's clients: any of them, at HOST:PORT as bootstrap server.

    A gateway keeps nothing: what is acknowledged is in the store, and it may be killed at any time. It runs until
    SIGTERM. What differs from a broker: docs/gateway.md.
    """
    try:
        import asyncio

        from txnstore.gateway.gateway import run
    except ModuleNotFoundError as error:
        msg = f"a gateway needs packages that are not installed: {error.name} is missing"
        raise CommandError(msg, "Install txnstore[gateway].") from error
    if hash_password:
        _print_hash()
        return
    gateway_properties = _properties(properties)
    make_security = partial(_security, (tls_cert, tls_key, tls_client_ca), sasl, gateway_properties, insecure=insecure)
    security = make_security()
    _check_exposure(listen[0], advertise, security, insecure=insecure)
    if workers > 1:
        places = _Places.reserve(listen, advertise, peers, workers)
        _serve_by_workers(
            app,
            places,
            gateway_properties,
            make_security,
            metrics,
            rack or "",
            maintain=maintain,
            reloads=bool(security.watched),
        )
        return
    with contextlib.ExitStack() as resources:
        if app.debug:
            resources.enter_context(printed_logs(times=True))
        listener = resources.enter_context(listen_on(listen))
        metrics_listener = None if metrics is None else resources.enter_context(listen_on(metrics))
        host, port = listener.getsockname()[:2]
        advertised = _advertised_address([advertise] if advertise else [(host, port), (listen[0], port)], peers)
        connection = resources.enter_context(app.connect_unloaded(read_only=False))
        with app.progress("opening the store"):
            connection.load()
            with contextlib.suppress(StorageRefusedError):  # The gateway logs that it can only read.
                connection.check_storage()
        if not app.debug:
            resources.enter_context(printed_logs(logging.INFO, times=True))
        resources.enter_context(printed_logs(logging.WARNING, "asyncio", times=True))
        print_addresses = partial(_print_addresses, listener, metrics_listener)
        maintenance = _maintenance(app, resources) if maintain else None
        metrics_source = None
        if metrics_listener is not None:
            metrics_source = metrics_listener, partial(_metrics_text, connection, maintenance)
        asyncio.run(
            run(
                connection,
                gateway_properties,
                listener,
                advertised,
                peers,
                security,
                print_addresses,
                metrics_source,
                rack=rack or "",
                problem=_problem_of(maintenance),
            )
        )


def _maintenance(app: App, resources: contextlib.ExitStack) -> Maintenance:
    """Maintain the store in the background, by a connection of its own, until the resources are closed."""
    maintenance = resources.enter_context(app.open()).maintain()

    def end() -> None:
        if not maintenance.stop():
            end_soon(0)  # A task may take long, and may be ended anywhere: the next process repeats it.

    resources.callback(end)
    maintenance.start()
    return maintenance


def _problem_of(maintenance: Maintenance | None) -> Callable[[], str]:
    """What says why a process with this maintenance is not healthy."""
    return str if maintenance is None else maintenance.problem


# Workers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Places:
    """The addresses of the workers of this machine.

    Attributes:
        shared: The one that all of them share.
        own: That of each.
        advertised: Where clients connect to each of them.
        nodes: Where clients connect to each worker of each machine.
        reserved: The sockets that keep the addresses for them.
    """

    shared: tuple[str, int]
    own: tuple[tuple[str, int], ...]
    advertised: tuple[tuple[str, int], ...]
    nodes: tuple[tuple[str, int], ...]
    reserved: tuple[socket.socket, ...] = ()

    @classmethod
    def reserve(
        cls,
        listen: tuple[str, int],
        advertise: tuple[str, int] | None,
        peers: tuple[tuple[str, int], ...],
        workers: int,
    ) -> _Places:
        """Bind the addresses, so that they are free: the ports after that of ``listen``, or any for port 0."""
        _check_last_ports([listen, *([] if advertise is None else [advertise]), *peers], workers)
        nodes = _nodes_of(peers, workers)
        reserved = _bind_unused([listen, *(_ports_after(listen, workers) if listen[1] else [listen] * workers)])
        host, port = reserved[0].getsockname()[:2]
        own = tuple((host, worker_socket.getsockname()[1]) for worker_socket in reserved[1:])
        address = _advertised_address([advertise] if advertise else [(host, port), (listen[0], port)], peers)
        advertised = own if advertise is None and not peers else _ports_after(address, workers)
        return cls((host, port), own, advertised, nodes or advertised, tuple(reserved))

    def local(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Where this machine reaches its workers, by the address that clients connect to."""
        names = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - In the place of these.
        return {
            advertised: (names.get(host, host), port)
            for advertised, (host, port) in zip(self.advertised, self.own, strict=True)
        }


def _nodes_of(peers: tuple[tuple[str, int], ...], workers: int) -> tuple[tuple[str, int], ...]:
    """The addresses of the workers of all machines; refuses two of one address."""
    nodes = tuple(node for peer in peers for node in _ports_after(peer, workers))
    repeated = next((node for node in nodes if nodes.count(node) > 1), None)
    # A peer that is named twice is refused with the advertised address.
    if repeated is not None and len({*peers}) == len(peers):
        msg = f"two of them have a worker at {address_text(*repeated)}"
        raise click.BadParameter(msg, param_hint="--peers")
    return nodes


def _bind_unused(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Bind addresses that no other process listens on; workers may listen on them beside the sockets."""
    for address in addresses:  # Other processes of this user could share what is bound below, and must not.
        listen_on(address).close()
    return [bind_on(address) for address in addresses]


def _check_last_ports(addresses: Sequence[tuple[str, int]], workers: int) -> None:
    """Refuse addresses after which there are too few ports."""
    for host, port in addresses:
        if port + workers > _MAX_PORT:
            msg = f"there are no {workers} ports after {address_text(host, port)}, one for each worker"
            raise click.BadParameter(msg, param_hint="--workers")


def _ports_after(address: tuple[str, int], count: int) -> tuple[tuple[str, int], ...]:
    return tuple((address[0], address[1] + number) for number in range(1, count + 1))


@dataclass(frozen=True, slots=True)
class _Work:
    """What a worker has to do: its parent sends it to the new process."""

    number: int
    places: _Places
    connection: Connection
    properties: Properties
    make_security: Callable[[], Security]
    rack: str
    debug: bool


def _serve_by_workers(
    app: App,
    places: _Places,
    properties: Properties,
    make_security: Callable[[], Security],
    metrics: tuple[str, int] | None,
    rack: str,
    *,
    maintain: bool,
    reloads: bool,
) -> None:
    """Keep workers until SIGTERM."""
    import asyncio
    import multiprocessing

    from txnstore.gateway.gateway import GRACE
    from txnstore.gateway.workers import Started, WorkerError, Workers

    with contextlib.ExitStack() as resources:
        for reserved in places.reserved:
            resources.enter_context(reserved)
        metrics_listener = None if metrics is None else resources.enter_context(listen_on(metrics))
        with app.connect_unloaded(read_only=False) as connection, app.progress("opening the store"):
            connection.load()  # So that a mistake is said once, and not by each worker.
            url = connection.url
        resources.enter_context(printed_logs(logging.DEBUG if app.debug else logging.INFO, times=True))
        maintenance = _maintenance(app, resources) if maintain else None
        spawn = multiprocessing.get_context("spawn")
        sent_places = replace(places, reserved=())

        def start(number: int) -> Started:
            own_end, other_end = spawn.Pipe()
            new_connection = app.connect_unloaded(read_only=False)
            work = _Work(number, sent_places, new_connection, properties, make_security, rack, app.debug)
            process = spawn.Process(target=_work, args=(work, other_end), name=f"txnstore gateway worker {number}")
            process.start()
            other_end.close()
            return Started(process, own_end)

        def print_addresses() -> None:
            _print_addresses(places.reserved[0], metrics_listener)

        workers = Workers(start, len(places.own), GRACE + 2, reloads=reloads)
        try:
            text, problem = partial(_workers_text, url, maintenance), _problem_of(maintenance)
            asyncio.run(workers.run(print_addresses, metrics_listener, text, problem))
        except WorkerError as error:
            raise CommandError(str(error)) from error


def _work(work: _Work, pipe: Pipe) -> None:
    """Be a worker."""
    import asyncio

    from txnstore.errors import TxnStoreError
    from txnstore.gateway.gateway import run
    from txnstore.gateway.workers import Siblings

    places, number = work.places, work.number
    try:
        with contextlib.ExitStack() as resources:
            resources.enter_context(printed_logs(logging.DEBUG if work.debug else logging.INFO, times=True))
            resources.enter_context(printed_logs(logging.WARNING, "asyncio", times=True))
            security = work.make_security()
            own = resources.enter_context(bind_on(places.own[number]))
            shared = resources.enter_context(bind_on(places.shared))
            connection = resources.enter_context(work.connection)
            connection.load()
            with contextlib.suppress(StorageRefusedError):  # The gateway logs that it can only read.
                connection.check_storage()
            siblings = Siblings(len(places.own), shared, places.local(), pipe)
            metrics = None, partial(_metrics_text, connection, None)
            advertised = places.advertised[number]
            asyncio.run(
                run(
                    connection,
                    work.properties,
                    own,
                    advertised,
                    places.nodes,
                    security,
                    lambda: None,
                    metrics,
                    siblings,
                    work.rack,
                )
            )
    except (CommandError, TxnStoreError) as error:
        print(f"error: worker {number}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def _workers_text(url: str, maintenance: Maintenance | None, serving: int, restarts: int) -> str:
    """Return the metrics of the parent of workers, and of its maintenance, in Prometheus' format."""
    from txnstore.gateway.metrics import WORKER_FAMILIES
    from txnstore.monitoring.prometheus import families

    values = (serving, restarts)
    rows = [(name, kind, text, None, value) for (name, text, kind), value in zip(WORKER_FAMILIES, values, strict=True)]
    return families(rows, url) + ("" if maintenance is None else maintenance_text(maintenance, url))


# Options --------------------------------------------------------------------------------------------------------------


def _properties(properties: Sequence[tuple[str, str]]) -> Properties:
    from txnstore.gateway.properties import Properties

    try:
        return Properties.from_mapping(dict(properties))
    except InvalidConfigError as error:
        raise click.BadParameter(str(error), param_hint="--property") from None


def _check_exposure(host: str, advertise: tuple[str, int] | None, security: Security, *, insecure: bool) -> None:
    """Refuse to listen at ``host`` for other machines without TLS and authentication, or without a name for clients."""
    if not insecure and not (security.authenticates and security.tls is not None) and host not in LOOPBACK:
        msg = f"{host} can be reached from other machines, and this listener lacks TLS or authentication"
        advice = "Add --tls-cert and --tls-key, and --sasl or --tls-client-ca; or listen on 127.0.0.1; or add "
        advice += "--insecure where you trust all."
        raise CommandError(msg, advice)
    if advertise is None and host in _WILDCARDS:
        raise click.UsageError(f"--advertise is missing: clients cannot connect to {host}")


def _print_addresses(listener: socket.socket, metrics_listener: socket.socket | None) -> None:
    print(f"listening on {address_text(*listener.getsockname()[:2])}", flush=True)
    if metrics_listener is not None:
        print(f"metrics on http://{address_text(*metrics_listener.getsockname()[:2])}/metrics", flush=True)


def _metrics_text(connection: Connection, maintenance: Maintenance | None, counted: GatewayMetrics) -> str:
    """Return the metrics of the process, of the gateway and of its maintenance in Prometheus' format."""
    from txnstore.gateway.metrics import FAMILIES
    from txnstore.monitoring.prometheus import families, prometheus

    rows = [(family.name, family.kind, family.help, family.label, family.value(counted)) for family in FAMILIES]
    text = prometheus(connection, status=False) + families(rows, connection.url)
    return text if maintenance is None else text + maintenance_text(maintenance, connection.url)


def _advertised_address(names: Sequence[tuple[str, int]], peers: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The address by which this gateway is one of the peers, else the first of its names."""
    address = next((name for name in names if name in peers), names[0])
    if peers and address not in peers:
        raise click.BadParameter(f"{address_text(*address)}, this gateway, is not one of them", param_hint="--peers")
    for host, port in peers:
        if peers.count((host, port)) > 1:
            raise click.BadParameter(f"{address_text(host, port)} is named twice", param_hint="--peers")
    return address


def _print_hash() -> None:
    from txnstore.gateway.security import credential_line

    try:
        print(credential_line(_password()))
    except InvalidConfigError as error:
        raise CommandError(str(error)) from error


def _password() -> str:
    """Read a password that is typed twice, or without a terminal a line of standard input."""
    if is_terminal(sys.stdin):
        # With a default, click accepts an empty password, which credential_line() refuses with a reason.
        return str(
            click.prompt("Password", "", hide_input=True, confirmation_prompt=True, show_default=False, err=True)
        )
    return "" if sys.stdin is None else sys.stdin.readline().rstrip("\r\n")


def _security(
    tls_files: tuple[Path | None, Path | None, Path | None],
    sasl: Path | None,
    properties: Properties,
    *,
    insecure: bool,
) -> Security:
    """Make the authentication and encryption by the files of the options, and the properties."""
    from txnstore.gateway.certificates import CertificateRules
    from txnstore.gateway.security import Security, watched_tls, watched_users

    certificate, key, client_ca = tls_files
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key are given together")
    if client_ca is not None and certificate is None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    if client_ca is None and properties.ssl_principal_mapping_rules != "DEFAULT":
        raise click.UsageError("ssl.principal.mapping.rules needs --tls-client-ca")
    if not properties.sasl_oauthbearer_jwks_endpoint_url and (
        properties.sasl_oauthbearer_expected_issuer or properties.sasl_oauthbearer_expected_audience
    ):
        raise click.UsageError("tokens need sasl.oauthbearer.jwks.endpoint.url")
    try:
        users = watched_users(sasl) if sasl is not None else None
        tls = watched_tls(certificate, key, client_ca) if certificate is not None and key is not None else None
        rules = CertificateRules(properties.ssl_principal_mapping_rules) if client_ca is not None else None
        tokens = _tokens(properties)
    except InvalidConfigError as error:
        raise CommandError(str(error)) from error
    if tokens is not None and tls is None and not insecure:
        raise CommandError("tokens would be sent without encryption", "Add --tls-cert and --tls-key; or --insecure.")
    return Security(users, tls, insecure, rules, tokens)


def _tokens(properties: Properties) -> Tokens | None:
    """Make what verifies tokens by the properties; None if they name no keys."""
    from txnstore.gateway.tokens import Tokens, TokenSettings

    url = properties.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        return None
    audiences = (part.strip() for part in properties.sasl_oauthbearer_expected_audience.split(","))
    settings = TokenSettings(
        url,
        properties.sasl_oauthbearer_expected_issuer,
        tuple(audience for audience in audiences if audience),
        properties.sasl_oauthbearer_sub_claim_name,
        properties.sasl_oauthbearer_clock_skew_seconds,
    )
    return Tokens(settings, Runtime())
