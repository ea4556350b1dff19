"""The suites: where each comes from, in which version, and how it is run against a cluster that is there already."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.foreign import kcat
from tests.compat.foreign.parsing import parse_go, parse_junit
from tests.compat.kafka_clients.outcomes import Case, Result
from tests.harness.needs import MissingProgramError

FRANZ = "github.com/twmb/franz-go@v1.22.3"
KAFKA_PYTHON = "3.0.12"
KAFKA_PYTHON_PACKAGES = (f"kafka-python[crc32c,lz4,snappy,zstd]=={KAFKA_PYTHON}", "pytest<10", "pytest-timeout<3")
CONFLUENT = "https://github.com/confluentinc/confluent-kafka-python", "8b1c7a613434eee3d0e1287d624d7af04932f410"
#: What the tests of that commit (2.15.0) import.
CONFLUENT_PACKAGES = ("confluent-kafka[avro,json,protobuf,rules]==2.15.0", "pytest<10", "pytest-timeout<3")

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
        addresses: Where they listen, as bootstrap servers.
        scram: Where another one listens that asks for ``user`` and ``password`` by SCRAM.
        user: A name.
        password: Its password.
    """

    addresses: str
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
    """

    fetch: Callable[[Path], None]
    run: Callable[[Path, Path, Cluster, Choice], dict[Case, Result]]


def _fetch_franz(folder: Path) -> None:
    module = json.loads(_command("go", "mod", "download", "-json", FRANZ).stdout)
    shutil.copytree(module["Dir"], folder, copy_function=shutil.copyfile)
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
    command = ["go", "test", "-json", "-vet=off", "-count=1", f"-timeout={SECONDS}s"]
    command += [f"-run={_any(choice.only)}"] if choice.only else []
    command += [f"-skip={_any(choice.without)}"] if choice.without else []
    end = _logged([*command, "./pkg/kgo"], folder, logs / "franz-go.jsonl", environment)
    lines = (logs / "franz-go.jsonl").read_text(errors="replace").splitlines()
    return parse_go("franz-go", lines, end)


def _any(names: Sequence[str]) -> str:
    return f"^({'|'.join(names)})$"


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


def _command(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
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
    "franz-go": Suite(_fetch_franz, _run_franz),
    "kafka-python": Suite(_fetch_kafka_python, _run_kafka_python),
    "confluent-kafka": Suite(_fetch_confluent, _run_confluent),
    "kcat": Suite(_nothing, _run_kcat),
}
