"""Runs the suites: ``python -m tests.compat.foreign NAME … [options]``; without a name, all.

Exit status 1 if a case that should pass does not, if the list does not name a case, or if a suite cannot run: the
others run all the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import txnstore
from tests.compat.foreign.suites import SUITES, Choice, Cluster, Suite
from tests.compat.kafka_clients.outcomes import (
    Case,
    Result,
    accepted,
    differences,
    read_expected,
    write_expected,
)
from tests.harness.needs import MissingProgramError
from tests.helpers.gateway_process import gateway_process
from txnstore.gateway.security import credential_line

EXPECTED = Path(__file__).with_name("expected.tsv")
_USER = "alice"
#: Passwords by mechanism; kafka-go's tests know the last two users.
_USERS = {
    _USER: {"SCRAM-SHA-256": "wonderland"},
    "adminplain": {"SCRAM-SHA-256": "admin-secret"},
    "adminscram": {"SCRAM-SHA-256": "admin-secret-256", "SCRAM-SHA-512": "admin-secret-512"},
}
#: As the brokers of kafka-python's tests have them.
_PROPERTIES = (
    "auto.create.topics.enable=true",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "num.partitions=4",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen suites, and compare; returns the exit status."""
    options = _options(arguments)
    expected = read_expected(EXPECTED)
    lines: list[str] = []
    for name in options.suites or SUITES:
        cases = {case: result for case, result in expected.items() if case.of == name}
        without = [] if options.all else [case.name for case, result in cases.items() if result.outcome == "left out"]
        try:
            results = _run(name, options, Choice(options.only, () if options.only else without, options.records))
        except MissingProgramError as error:
            lines.append(f"{name} cannot run: {error}")
            continue
        _report(name, results)
        if options.accept:
            expected = accepted(expected, results)
            write_expected(expected, EXPECTED)
        else:
            lines += differences(cases, results, () if options.only else list(cases))
    _say(*lines)
    return 1 if lines else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.foreign")
    parser.add_argument("suites", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--only", nargs="+", default=(), metavar="CASE", help="these cases")
    parser.add_argument("--all", action="store_true", help="also the cases that the list leaves out")
    parser.add_argument("--gateways", type=int, default=1, help="how many, on as many chains")
    parser.add_argument(
        "--records", type=int, default=20_000, help="of a large case; 500000 is the default of franz-go"
    )
    parser.add_argument("--accept", action="store_true", help="write the outcomes into the list")
    parser.add_argument("--folder", type=Path, default=Path("build/foreign"), help="of sources, stores and output")
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    return options


def _run(name: str, options: argparse.Namespace, choice: Choice) -> dict[Case, Result]:
    suite, sources = SUITES[name], options.folder / "sources" / name
    if not sources.exists():
        unfinished = options.folder / "sources" / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        suite.fetch(unfinished)
        unfinished.rename(sources)
    place = options.folder / "runs" / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with _cluster(place, options.gateways, suite) as cluster:
        return suite.run(sources, place, cluster, choice)


@contextmanager
def _cluster(place: Path, gateways: int, suite: Suite) -> Iterator[Cluster]:
    """Gateways on a new store, and one more that asks for a password."""
    store = place / "store"
    with txnstore.create(str(store), gateways) as created:
        # As the brokers of kafka-python's tests: there are rules, and who is named by none may do everything.
        created.acls.enable([f"User:{user}" for user in ("ANONYMOUS", *_USERS)], allow_if_no_acl=True)
    lines = {
        user: [credential_line(password, mechanism) for mechanism, password in passwords.items()]
        for user, passwords in _USERS.items()
    }
    (place / "users.toml").write_text("[users]\n" + "".join(f"{user} = {json.dumps(lines[user])}\n" for user in lines))
    properties = [part for each in (*_PROPERTIES, *suite.properties) for part in ("--property", each)]
    host = "localhost" if suite.ports else "127.0.0.1"
    *free, scram = _free_ports((len(suite.ports) or gateways) + 1)
    advertised = suite.ports or free
    addresses = [f"{host}:{port}" for port in advertised]
    listening = [f"127.0.0.1:{port}" for port in (free if suite.proxied else advertised)]
    together = ["--peers", ",".join(addresses)] if len(addresses) > 1 else []
    with ExitStack() as stack:
        for number, (listen, advertise) in enumerate(zip(listening, addresses, strict=True)):
            log, places = place / f"gateway-{number}.log", ["--listen", listen, "--advertise", advertise]
            stack.enter_context(gateway_process(store, log, *properties, *together, *places))
        port = suite.scram_port or scram
        # PLAIN, too, without TLS.
        users = ["--sasl", str(place / "users.toml"), "--insecure"]
        places = ["--listen", f"127.0.0.1:{port}", "--advertise", f"{host}:{port}"]
        stack.enter_context(gateway_process(store, place / "gateway-scram.log", *properties, *users, *places))
        password = _USERS[_USER]["SCRAM-SHA-256"]
        yield Cluster(store, ",".join(addresses), listening, f"{host}:{port}", _USER, password)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _report(name: str, results: dict[Case, Result]) -> None:
    """Print a line for each case that is not passed, and how many there are of each outcome."""
    for case, result in sorted(results.items(), key=lambda item: str(item[0])):
        if result.outcome != "passed":
            _say(f"{name:16} {result.outcome:8} {case.name}: {result.why}")
    counts = Counter(result.outcome for result in results.values())
    seconds = sum(result.seconds for result in results.values())
    _say(f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}, {seconds:.0f} s")


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
