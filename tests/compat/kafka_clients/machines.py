"""The Java virtual machines that run the tests, one for each class."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tests.compat.broker.cluster import SHORT_LIVED
from tests.compat.kafka_clients.outcomes import Case, Result, parse
from txnstore.gateway.properties import Properties
from txnstore.gateway.security import credential_line

_USERS = "users.toml"
_RUNNING: set[int] = set()

#: The tests that stop one of their brokers, or tell them apart: they get a gateway for each broker, the others
#: only one, which starts sooner.
SEVERAL = frozenset({
    "ClientRebootstrapTest", "ConsumerBounceTest", "ConsumerIntegrationTest", "CreateTopicsRequestWithPolicyTest",
    "DeleteTopicTest",
})  # fmt: skip
_MOST = 4

#: How long a case may take, and how long a machine may be silent: longer than the longest case.
CASE_SECONDS, SILENT_SECONDS = 120, 300


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jars and our classes are, and where the outcomes and the output go.

    Attributes:
        gateways: How many answer at most, where a test has as many brokers; 0 for Kafka's own brokers.
    """

    jars: Path
    classes: Path
    logs: Path
    gateways: int

    def test_classes(self) -> dict[str, str]:
        """The tests by the name of their class: its name with the package."""
        [jar] = self.jars.glob("kafka-clients-integration-tests-*-test.jar")
        names = [name.removesuffix(".class") for name in zipfile.ZipFile(jar).namelist() if name.endswith("Test.class")]
        return {name.rpartition("/")[2]: name.replace("/", ".") for name in sorted(names)}


def write_users(logs: Path) -> None:
    """Write the file of the users of Kafka's tests (``JaasUtils``)."""
    lines = [f'{user} = "{credential_line(f"{user}-secret")}"' for user in ("plain-admin", "plain-user1")]
    (logs / _USERS).write_text("\n".join(["[users]", *lines, ""]))


def run_class(place: Place, name: str, methods: Sequence[str] = (), without: Sequence[str] = ()) -> dict[Case, Result]:
    """Run the tests of a class, by its full name: these methods, or all but some; returns their results."""
    logs = place.logs / name.rpartition(".")[2]
    logs.mkdir(parents=True, exist_ok=True)
    outcomes = logs / "outcomes.tsv"
    outcomes.write_text("")
    properties = {
        "txnstore.outcomes": str(outcomes),
        "txnstore.logs": str(logs.absolute()),
        **(_gateways(place, name.rpartition(".")[2]) if place.gateways else {}),
        "junit.jupiter.extensions.autodetection.enabled": "true",
        "junit.jupiter.execution.timeout.default": f"{CASE_SECONDS} s",
    }
    command = ["java", *SHORT_LIVED, *(f"-D{key}={value}" for key, value in properties.items())]
    command += ["-cp", f"{place.classes}:{place.jars}/*", "org.junit.platform.console.ConsoleLauncher", "execute"]
    command += ["--disable-banner", "--details=none", f"--select-class={name}"]
    command += [f"--include-methodname={_pattern(methods)}"] if methods else []
    command += [f"--exclude-methodname={_pattern(without)}"] if without else []
    with (logs / "output.log").open("wb") as output:
        # A group of its own, which holds its gateways too.
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        _RUNNING.add(process.pid)
        try:
            end = _end(process, outcomes)
        finally:
            _kill(process.pid)
            process.wait()
    return parse(outcomes.read_text().splitlines(), end)


def kill_all() -> None:
    """End the machines that run, and their gateways."""
    for pid in list(_RUNNING):
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _RUNNING.discard(pid)


def _gateways(place: Place, of: str) -> dict[str, str]:
    return {
        "txnstore.command": str(Path(sys.executable).with_name("txnstore")),
        "txnstore.gateways": str(_MOST if of in SEVERAL else place.gateways),
        "txnstore.properties": ",".join(field.name.replace("_", ".") for field in fields(Properties)),
        "txnstore.users": str((place.logs / _USERS).absolute()),
    }


def _end(process: subprocess.Popen[bytes], outcomes: Path) -> str:
    """Wait until the machine has ended, or is silent for too long; returns how it ended."""
    while time.time() - outcomes.stat().st_mtime < SILENT_SECONDS:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"the machine ended with {process.wait(1)}"
    return f"no end in {SILENT_SECONDS} s"


def _pattern(methods: Sequence[str]) -> str:
    return f".*#({'|'.join(map(re.escape, methods))})"
