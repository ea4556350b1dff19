"""The suites: where each comes from, in which version, and how it is run against a cluster that is there already."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat.foreign import kcat, librdkafka
from tests.compat.foreign.parsing import parse_go, parse_junit
from tests.compat.kafka_clients.outcomes import Case, Result
from tests.harness.needs import MissingProgramError
from tests.helpers.gateway_process import gateway_process

FRANZ = "github.com/twmb/franz-go@v1.22.3"
KAFKA_GO = "github.com/segmentio/kafka-go@v0.4.51"
SARAMA = "github.com/IBM/sarama@v1.61.1"
#: Through which sarama's tests reach each broker.
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
KAFKA_PYTHON = "3.0.12"
KAFKA_PYTHON_PACKAGES = (f"kafka-python[crc32c,lz4,snappy,zstd]=={KAFKA_PYTHON}", "pytest<10", "pytest-timeout<3")
CONFLUENT = "https://github.com/confluentinc/confluent-kafka-python", "8b1c7a613434eee3d0e1287d624d7af04932f410"
#: What the tests of that commit (2.15.0) import.
CONFLUENT_PACKAGES = ("confluent-kafka[avro,json,protobuf,rules]==2.15.0", "pytest<10", "pytest-timeout<3")

#: The package of librdkafka 2.15.0 that has its tests, too.
LIBRDKAFKA = "@confluentinc/kafka-javascript@1.10.0"

#: How long a suite may take.
SECONDS = 3600

#: In place of kafka-python's ``test/service.py``, which its source distribution lacks.
_SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

class SpawnedService:
    pass
"""
#: In place of trivup, which starts the brokers of confluent-kafka's tests.
_TRIVUP = """
import pytest

class KafkaCluster:
    def __init__(self, **_):
        pytest.skip("starts brokers of its own")
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Gateways that run on one store.

    Attributes:
        store: The folder of the store.
        addresses: What they advertise, as bootstrap servers.
        listening: Where each listens: another port if its clients come through a proxy.
        scram: Where another one listens that asks for ``user`` and ``password`` by SCRAM.
        user: A name.
        password: Its password.
    """

    store: Path
    addresses: str
    listening: Sequence[str]
    scram: str
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What is run of a suite.

    Attributes:
        only: These cases; empty for all.
        without: The cases that are left out.
        records: How many records a large case writes.
    """

    only: Sequence[str] = ()
    without: Sequence[str] = ()
    records: int = 20_000


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a client.

    Attributes:
        fetch: Puts the sources into a new folder.
        run: Runs them from that folder, with a folder for the output; returns the results.
        ports: Those of localhost that its tests know, in the order of the ids of the gateways; empty for any.
        scram_port: That of the gateway with SCRAM; 0 for any.
        proxied: The ports are those of proxies, which the suite starts.
        properties: Of the gateways, which this suite alone needs.
    """

    fetch: Callable[[Path], None]
    run: Callable[[Path, Path, Cluster, Choice], dict[Case, Result]]
    ports: Sequence[int] = ()
    scram_port: int = 0
    proxied: bool = False
    properties: Sequence[str] = ()


def _fetch_module(module: str, folder: Path) -> None:
    """Put the sources of a module of Go into a new folder, where they may be changed."""
    downloaded = json.loads(_command("go", "mod", "download", "-json", module).stdout)
    shutil.copytree(downloaded["Dir"], folder, copy_function=shutil.copyfile)
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def _run_franz(folder: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    environment = {
        "KGO_SEEDS": cluster.addresses,
        "KGO_TEST_RF": "1",
        "KGO_TEST_STABLE_FETCH": "true",
        "KGO_TEST_SCRAM_SEEDS": cluster.scram,
        "KGO_TEST_SCRAM": f"{cluster.user}:{cluster.password}",
        "KGO_TEST_RECORDS": str(choice.records),
        "KGO_LOG_LEVEL": "none",
    }
    return _go_test("franz-go", ["./pkg/kgo"], folder, logs, environment, choice)


def _run_kafka_go(folder: Path, logs: Path, _: Cluster, choice: Choice) -> dict[Case, Result]:
    # Its tests know the addresses, and the newest version that they know of ZooKeeper's time.
    environment = {"KAFKA_VERSION": "2.8.1", "KAFKA_SKIP_NETTEST": "1", "GOFLAGS": "-mod=mod"}
    return _go_test("kafka-go", [".", "./sasl"], folder, logs, environment, choice, parts=True)


def _fetch_sarama(folder: Path) -> None:
    _fetch_module(SARAMA, folder)
    _command("go", "install", TOXIPROXY, environment={"GOBIN": str(folder.absolute() / "bin")})


def _run_sarama(folder: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    """Run the functional tests: the others of the same package need no broker."""
    sources = "\n".join(path.read_text() for path in sorted(folder.glob("functional_*_test.go")))
    only = choice.only or [name for name in re.findall(r"^func (Test\w+)", sources, re.MULTILINE) if name != "TestMain"]
    addresses = zip(cluster.addresses.split(","), cluster.listening, strict=True)
    proxies = [
        # Tests call each proxy by the id of a broker; the ports end with it.
        {"name": f"kafka{address[-1]}", "listen": address, "upstream": upstream, "enabled": True}
        for address, upstream in addresses
    ]
    (config := (logs / "proxies.json").absolute()).write_text(json.dumps(proxies))
    environment = {"TOXIPROXY_ADDR": "http://127.0.0.1:8474", "KAFKA_VERSION": "4.3.1"}
    chosen = Choice(only, choice.without, choice.records)
    with (logs / "toxiproxy.log").open("wb") as log:
        program = str((folder / "bin" / "server").absolute())
        level = {**os.environ, "LOG_LEVEL": "error"}
        proxy = subprocess.Popen([program, "-config", str(config)], env=level, stdout=log, stderr=subprocess.STDOUT)
        try:
            return _go_test("sarama", ["-tags=functional", "."], folder, logs, environment, chosen)
        finally:
            proxy.kill()
            proxy.wait()


def _go_test(
    of: str,
    packages: Sequence[str],
    folder: Path,
    logs: Path,
    environment: Mapping[str, str],
    choice: Choice,
    *,
    parts: bool = False,
) -> dict[Case, Result]:
    command = ["go", "test", "-json", "-vet=off", "-count=1", f"-timeout={SECONDS}s"]
    command += [f"-run={_any(choice.only)}"] if choice.only else []
    command += [f"-skip={_any(choice.without)}"] if choice.without else []
    end = _logged([*command, *packages], folder, logs / f"{of}.jsonl", environment)
    return parse_go(of, (logs / f"{of}.jsonl").read_text(errors="replace").splitlines(), end, parts=parts)


def _any(names: Sequence[str]) -> str:
    """A pattern of ``go test`` for tests and subtests."""
    return "|".join("/".join(f"^{re.escape(part)}$" for part in name.split("/")) for name in names)


def _fetch_kafka_python(folder: Path) -> None:
    download = ["download", "-q", "--no-deps", "--no-binary=kafka-python", f"--dest={folder}"]
    _command(sys.executable, "-m", "pip", *download, f"kafka-python=={KAFKA_PYTHON}")
    shutil.unpack_archive(folder / f"kafka_python-{KAFKA_PYTHON}.tar.gz", folder, filter="data")
    # The tests alone: the client is the installed one.
    (folder / f"kafka_python-{KAFKA_PYTHON}" / "test").rename(folder / "test")
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(_SERVICE)
    _environment(folder, KAFKA_PYTHON_PACKAGES)


def _run_kafka_python(folder: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    environment = {
        "KAFKA_URI": f"kafka://{cluster.addresses.partition(',')[0]}",
        "KAFKA_VERSION": "4.3",
        "KAFKA_ROOT": str(folder),
    }
    return _pytest("kafka-python", ["test/integration"], folder, logs, environment, choice)


def _fetch_confluent(folder: Path) -> None:
    url, commit = CONFLUENT
    _command("git", "init", "-q", str(folder))
    _command("git", "-C", str(folder), "fetch", "-q", "--depth=1", url, commit)
    _command("git", "-C", str(folder), "checkout", "-q", commit, "--", "tests")
    (folder / "trivup" / "clusters").mkdir(parents=True)
    (folder / "trivup" / "clusters" / "KafkaCluster.py").write_text(_TRIVUP)
    _environment(folder, CONFLUENT_PACKAGES)


def _run_confluent(folder: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    parts = [f"tests/integration/{part}" for part in ("admin", "consumer", "producer")]
    environment = {"BROKERS": cluster.addresses}
    return _pytest("confluent-kafka", parts, folder, logs, environment, choice)


def _run_kcat(_: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    return kcat.run("kcat", cluster.addresses, logs, choice.only)


def _fetch_librdkafka(folder: Path) -> None:
    folder.mkdir()
    _command("npm", "pack", "--pack-destination", str(folder), LIBRDKAFKA)
    [package] = folder.glob("*.tgz")
    shutil.unpack_archive(package, folder, filter="tar")  # Which keeps what may be executed.
    sources = folder / "package" / "deps" / "librdkafka"
    without = [f"--disable-{part}" for part in ("gssapi", "curl", "zstd", "lz4-ext", "optimization")]
    _command("./configure", *without, folder=sources)
    _command("make", "-j2", "libs", folder=sources)
    _command("make", "-j2", "-C", "tests", "test-runner", folder=sources)


def _run_librdkafka(folder: Path, logs: Path, cluster: Cluster, choice: Choice) -> dict[Case, Result]:
    tests = folder / "package" / "deps" / "librdkafka" / "tests"
    with gateway_process(cluster.store, logs / "gateway-not-creating.log", "--property", "num.partitions=4") as other:
        clusters = {librdkafka.CREATING: cluster.addresses, librdkafka.NOT_CREATING: other.address}
        return librdkafka.run("librdkafka", clusters, tests, logs, choice.only, choice.without)


def _environment(folder: Path, packages: Sequence[str]) -> None:
    _command(sys.executable, "-m", "venv", str(folder / "venv"))
    _command(str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", *packages)


def _pytest(
    of: str, parts: Sequence[str], folder: Path, logs: Path, environment: Mapping[str, str], choice: Choice
) -> dict[Case, Result]:
    table = (logs / f"{of}.xml").absolute()
    command = [
        str((folder / "venv" / "bin" / "python").absolute()),
        "-m",
        "pytest",
        "-q",
        "-p",
        "pytest_timeout",
        "-p",
        "no:cacheprovider",
        "--assert=plain",
    ]
    command += ["--tb=native", "-W", "ignore", "--timeout=300", f"--junitxml={table}", "-o", "log_level=WARNING"]
    names = [name.partition(".")[2].partition("[")[0] for name in choice.only]
    command += ["-k", " or ".join(names)] if names else []
    environment = {**environment, "PYTHONPATH": str(folder.absolute()), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    end = _logged([*command, *parts], folder, logs / f"{of}.log", environment)
    return parse_junit(of, table, end)


def _logged(command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> str:
    """Run a command, and write what it says into a file; how it ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            return f"the process ended with {process.wait(SECONDS)}"
        except subprocess.TimeoutExpired:
            return f"no end in {SECONDS} s"
        finally:
            process.kill()
            process.wait()


def _command(
    *command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **(environment or {})}
    try:
        result = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        msg = f"{command[0]} is not installed. Install it."
        raise MissingProgramError(msg) from error
    if result.returncode:
        msg = f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}"
        raise MissingProgramError(msg)
    return result


def _nothing(folder: Path) -> None:
    if shutil.which("kcat") is None:
        msg = "kcat is not installed. Install it (Debian: kcat)."
        raise MissingProgramError(msg)
    folder.mkdir()


SUITES: dict[str, Suite] = {
    "franz-go": Suite(partial(_fetch_module, FRANZ), _run_franz),
    "kafka-go": Suite(
        partial(_fetch_module, KAFKA_GO),
        _run_kafka_go,
        ports=[9092],
        scram_port=9093,
        properties=["group.min.session.timeout.ms=6000"],
    ),
    # The broker with the id 1 is behind the first proxy; that with the id 0 behind the last.
    "sarama": Suite(
        _fetch_sarama,
        _run_sarama,
        ports=[29095, 29091, 29092, 29093, 29094],
        proxied=True,
        properties=["auto.create.topics.enable=false"],
    ),
    "kafka-python": Suite(_fetch_kafka_python, _run_kafka_python),
    "confluent-kafka": Suite(_fetch_confluent, _run_confluent),
    "librdkafka": Suite(_fetch_librdkafka, _run_librdkafka, properties=["group.initial.rebalance.delay.ms=3000"]),
    "kcat": Suite(_nothing, _run_kcat),
}
