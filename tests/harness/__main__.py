"""Run an instrument, with all that it needs: ``python -m tests.harness NAME [OPTION …]``; without a name, list them.

The options are those of the instrument: ``python -m tests.harness torture --help``. S3 servers, jars and engines are
built or fetched into ``build/`` first, once for each version.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness import needs
from tests.harness.needs import MissingProgramError
from tests.readers.engines import ENGINES

_PYTEST = ("-m", "pytest", "-q", "-n", "auto", "--dist", "loadgroup")
_SPARK_SUITE = ("tests/integration/spark/test_versions.py", "tests/integration/spark/test_sql_tables.py")
_DIFFERENTIAL = tuple(
    f"tests/protocol/harness/test_differential{part}.py"
    for part in ("", "_consumers", "_churn", "_cleaning", "_authorization")
)
_SHORT_READERS = ("pyiceberg", "duckdb", "polars")


@dataclass(frozen=True, slots=True)
class Command:
    """The arguments of one Python process, with variables of its environment."""

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def run(self) -> int:
        """Run it at the root of the checkout, S3 servers on the path; returns its exit status."""
        # Spark's workers run the interpreter that has txnstore, and do not look up the name of the machine.
        spark = {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python, "SPARK_LOCAL_IP": "127.0.0.1"}
        path = os.pathsep.join([str(needs.SERVER_PROGRAMS), os.environ.get("PATH", "")])
        environment = {**os.environ, "PATH": path, **spark, **self.environment}
        return subprocess.run([self.python, *self.arguments], cwd=needs.ROOT, env=environment, check=False).returncode


Instrument = Callable[[list[str]], Iterator[Command]]


def _module(name: str, *given: str | Path, arguments: Sequence[str]) -> Command:
    return Command(["-m", f"tests.{name}", *map(str, given), *arguments])


def plain(module: str, about: str) -> Instrument:
    """An instrument that needs nothing."""

    def instrument(arguments: list[str]) -> Iterator[Command]:
        yield _module(module, arguments=arguments)

    instrument.__doc__ = about
    return instrument


def _stored(arguments: list[str]) -> None:
    """Build the S3 server that ``--store`` names."""
    for name in needs.SERVERS:
        if name in arguments:
            needs.server(name)


def _options(name: str, **defaults: int | str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m tests.harness {name}")
    for option, default in defaults.items():
        parser.add_argument(f"--{option}", type=type(default), default=default, help="(default: %(default)s)")
    return parser


def simulate(arguments: list[str]) -> Iterator[Command]:
    """Run --seeds N of the simulation from --first on: four fifths without gateways, a fifth of each special world."""
    options = _options("simulate", seeds=10_000, first=0).parse_args(arguments)
    first = ["--first", str(options.first)]
    yield _module("harness.simulation", "--gateways", "--seeds", str(options.seeds), arguments=first)
    yield _module("harness.simulation", "--seeds", str((options.seeds * 4 + 4) // 5), arguments=first)
    yield _module("harness.simulation", "--committers", "--seeds", str((options.seeds + 4) // 5), arguments=first)
    yield _module("harness.simulation", "--cuts", "--seeds", str((options.seeds + 4) // 5), arguments=first)


def _on_server(name: str) -> Instrument:
    def instrument(arguments: list[str]) -> Iterator[Command]:
        needs.java()
        needs.server(name)
        yield Command([*_PYTEST, "-m", "s3", *arguments], {"TXNSTORE_TEST_S3": name})

    instrument.__doc__ = f"Run the S3 tests on {name}, which Go builds."
    return instrument


def s3a(arguments: list[str]) -> Iterator[Command]:
    """Read MinIO with Spark's own Parquet reader and hadoop-aws, which Spark fetches (18 MB, once)."""
    needs.java()
    needs.server("minio")
    tests = ["-m", "pytest", "-q", "-n", "0", "tests/integration/spark/test_s3a.py"]
    yield Command([*tests, *arguments], {"TXNSTORE_TEST_S3": "minio", "TXNSTORE_S3A": "1"})


def spark_versions(arguments: list[str]) -> Iterator[Command]:
    """Run the short Spark suite with other releases of PySpark: the versions; by default 4.0 and 4.1."""
    needs.java()
    # Sockets that its py4j leaves open are warnings there.
    ignored = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
    for version in arguments or ["4.0", "4.1"]:
        yield Command(["-m", "pytest", "-q", "-n", "0", *ignored, *_SPARK_SUITE], python=str(needs.spark(version)))


def torture(arguments: list[str]) -> Iterator[Command]:
    """Kill and pause real processes on one store, then check what they saw."""
    _stored(arguments)
    yield _module("harness.torture", arguments=arguments)


def torture_gateway(arguments: list[str]) -> Iterator[Command]:
    """Kill and pause two gateways and Kafka's clients, and cut connections; --jars also has clients in Java."""
    _stored(arguments)
    yield _module("harness.gateway", arguments=arguments)


def torture_streaming(arguments: list[str]) -> Iterator[Command]:
    """Kill streaming pipelines of Spark, then compare records."""
    needs.java()
    _stored(arguments)
    yield _module("harness.streaming", arguments=arguments)


def copies(arguments: list[str]) -> Iterator[Command]:
    """End processes that copy --count records from topic to topic; each arrives once, in its order."""
    options = _options("copies", count=100_000).parse_args(arguments)
    yield Command([*_PYTEST, "tests/integration/test_copiers.py"], {"TXNSTORE_COPIES": str(options.count)})


def differential(arguments: list[str]) -> Iterator[Command]:
    """Compare --histories N random ones with the model of Kafka, with --kafka LIBS also with a broker."""
    # Without --seed each run has new histories; it prints the seed that repeats them.
    drawn = random.randrange(2**16)
    options = _options("differential", histories=1000, seed=drawn, kafka="").parse_args(arguments)
    print(f"--seed {options.seed}", flush=True)
    # Tracebacks are native: pytest parses the source of each frame for its own, which Python 3.11 refuses now and then.
    yield Command(
        ["-m", "pytest", "-q", "--tb=native", f"--hypothesis-seed={options.seed}", *_DIFFERENTIAL],
        {"TXNSTORE_DIFFERENTIAL": str(options.histories), "TXNSTORE_KAFKA": options.kafka},
    )


def migration(arguments: list[str]) -> Iterator[Command]:
    """Fetch Kafka by Maven, and migrate a topic from its broker."""
    needs.java()
    yield _module("compat.broker.migration", needs.jars("libs"), needs.jars("spark"), arguments=arguments)


def kafka(arguments: list[str]) -> Iterator[Command]:
    """Fetch Kafka by Maven; migrate a topic, and compare --histories 20 with its broker and at a gateway."""
    needs.java()
    yield from migration([])
    yield from differential(["--histories", "20", *arguments, "--kafka", str(needs.jars("libs"))])


def kafka_traces(arguments: list[str]) -> Iterator[Command]:
    """Replay the recorded traces of a broker at gateways with Kafka's own clients."""
    needs.java()
    yield _module("compat.broker.traces", needs.jars("libs"), arguments=arguments)


def kafka_tests(arguments: list[str]) -> Iterator[Command]:
    """Run Kafka's own tests of its Java clients against gateways; --short takes less than five minutes."""
    needs.java()
    compiled = needs.classes("tests", needs.ROOT / "tests" / "compat" / "kafka_clients" / "java")
    yield _module("compat.kafka_clients", needs.jars("tests"), compiled, arguments=arguments)


def kafka_programs(arguments: list[str]) -> Iterator[Command]:
    """Run Kafka's tools, Streams and Connect, and Spark against gateways; --short takes two minutes."""
    needs.java()
    compiled = needs.classes("programs", needs.ROOT / "tests" / "compat" / "kafka_programs" / "java")
    folders = (needs.jars("programs"), compiled, needs.jars("spark"))
    yield _module("compat.kafka_programs", *folders, arguments=arguments)


def readers(arguments: list[str]) -> Iterator[Command]:
    """Let other engines read the tables of random histories: names of ENGINES, --short, --seeds FIRST COUNT."""
    short = "--short" in arguments
    arguments = [argument for argument in arguments if argument != "--short"]
    chosen = [name for name in ENGINES if name in arguments] or list(_SHORT_READERS if short else ENGINES)
    options = [argument for argument in arguments if argument not in ENGINES]
    if "--seeds" not in options:
        options += ["--seeds", "3", "1"] if short else ["--seeds", "0", "10"]
    environments = needs.engines(chosen)
    kept = ["--keep", str(environments / "kept")]
    if "spark" not in chosen:
        yield _module("readers", environments, *chosen, arguments=[*options, *kept])
        return
    needs.java()
    runtime = needs.iceberg_runtime()
    yield _module("readers", environments, *chosen, arguments=[*options, *kept, "--runtime", str(runtime)])
    if "--help" not in options:
        yield _module("readers.foreign", environments, runtime, arguments=[])


def differential_readers(arguments: list[str]) -> Iterator[Command]:
    """Compare all readers of random histories with a model; --engines pyiceberg duckdb read tables, too."""
    chosen = [name for name in ENGINES if name in arguments] if "--engines" in arguments else []
    environments = ["--environments", str(needs.engines(chosen))] if chosen else []
    yield _module("harness.readers", arguments=[*arguments, *environments])


INSTRUMENTS: dict[str, Instrument] = {
    "simulate": simulate,
    "minio": _on_server("minio"),
    "versitygw": _on_server("versitygw"),
    "s3a": s3a,
    "spark-versions": spark_versions,
    "torture": torture,
    "torture-gateway": torture_gateway,
    "torture-streaming": torture_streaming,
    "interrupts": plain("harness.interrupts", "Interrupt (Ctrl-C) all clients, then check what is stored."),
    "corruption": plain("harness.corruption", "Damage stores, and put hostile input into them; read and repair them."),
    "exits": plain("harness.exits", "Let processes fail to open a store on S3; each leaves with its own status."),
    "copies": copies,
    "mutate": plain("harness.mutation", "Put random faults into the product; unit and protocol tests must fail."),
    "differential": differential,
    "differential-readers": differential_readers,
    "readers": readers,
    "kafka": kafka,
    "migration": migration,
    "kafka-traces": kafka_traces,
    "kafka-tests": kafka_tests,
    "kafka-programs": kafka_programs,
    "foreign-clients": plain("compat.foreign", "Run other clients' tests: franz-go, librdkafka, sarama and four more."),
    "fuzz-gateway": plain("harness.gateway_fuzz", "Send a gateway frames that are nearly valid."),
    "memory-gateway": plain("harness.gateway_memory", "Measure the memory of a gateway under hostile clients."),
    "amounts": plain("harness.amounts", "Count the lines of code and the words of documents."),
}
#: What ``nightly`` runs, whatever fails.
_NIGHTLY = ("simulate", "minio", "versitygw", "s3a", "kafka-tests", "kafka-programs", "foreign-clients",
            "readers", "differential-readers", "differential", "corruption", "fuzz-gateway",
            "mutate", "spark-versions")  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run an instrument, or those of each night; returns 1 if one failed."""
    name, *options = arguments or ["--help"]
    if name == "nightly":
        failed = [each for each in _NIGHTLY if _ran(each, options) != 0]
        print(f"failed: {', '.join(failed) or 'none'}")
        return 1 if failed else 0
    if name in INSTRUMENTS:
        return _ran(name, options)
    print(__doc__)
    for each, instrument in INSTRUMENTS.items():
        print(f"  {each:<22}{instrument.__doc__}")
    print(f"  {'nightly':<22}Run what takes longest of these, whatever fails.")
    if name in ("-h", "--help"):
        return 0
    print(f"\nThere is no instrument {name}.", file=sys.stderr)
    return 2


def _ran(name: str, options: list[str]) -> int:
    """Run all commands of an instrument; returns 1 if one failed, or could not be run."""
    print(f"--- {name} {' '.join(options)}", flush=True)
    try:
        return max(command.run() != 0 for command in INSTRUMENTS[name](options))
    except (MissingProgramError, subprocess.CalledProcessError) as error:
        print(f"{name} cannot run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
