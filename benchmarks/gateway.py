"""A gateway on a folder beside a Kafka broker on the same disk, in one run: the same clients, in turns.

The broker is one KRaft node without replicas; it flushes nothing to disk before it acknowledges, and the gateway all;
with ``TXNSTORE_FLUSHES=1`` it flushes each batch, too.
So the targets are about the gateway alone, and the ratios tell what its users give up. The clients are librdkafka's in
processes of their own (``benchmarks.gateway_client``); transactions are those of Java's producer. ``python
-m tests.harness kafka`` fetches the broker; without it the gateway is measured alone.

With ``TXNSTORE_STAGES=1`` it shows instead the processor time of each stage of the gateway (``gateway_stages``).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import txnstore
from benchmarks.measure import Result
from tests.compat.broker.cluster import Cluster, VirtualMachine

#: The jars of the broker.
LIBS = Path("build/kafka/libs")
#: Rounds of each measurement, in turns.
ROUNDS = int(os.environ.get("TXNSTORE_ROUNDS", "3"))
#: Whether stages are measured.
STAGES = bool(os.environ.get("TXNSTORE_STAGES"))
#: Records of a round.
LARGE, TINY, ACKNOWLEDGED, TRANSACTIONS = 40_000, 150_000, 100, 60
CONNECTIONS, SECONDS = 100, 4
TOPICS = ("large", "tiny", "acknowledged", "small", "transactions")
#: A broker for hours rather than for a test: compiled well, with Kafka's defaults where tests shorten intervals.
_JAVA = ("-XX:+UseG1GC", "-Xms1g", "-Xmx1g")
_SETTINGS = {
    "log.cleaner.backoff.ms": "15000",
    "log.retention.check.interval.ms": "300000",
}
if os.environ.get("TXNSTORE_FLUSHES"):
    _SETTINGS["log.flush.interval.messages"] = "1"


@dataclass(frozen=True, slots=True)
class Kind:
    """A measurement: how its client is called, and what is made of its figures.

    Attributes:
        name: What it measures.
        arguments: The client and its options.
        figure: The figure of a run, from what the client prints.
        unit: Its unit.
        target: What the gateway has to reach.
        at_most: Less is better.
    """

    name: str
    arguments: Sequence[str]
    figure: Callable[[Mapping[str, float]], float]
    unit: str
    target: float
    at_most: bool = False


def _megabytes(figures: Mapping[str, float]) -> float:
    return figures["bytes"] / 1e6 / figures["seconds"]


def _records(figures: Mapping[str, float]) -> float:
    return figures["records"] / figures["seconds"]


def _requests(figures: Mapping[str, float]) -> float:
    return figures["requests"] / figures["seconds"]


def _p50(figures: Mapping[str, float]) -> float:
    return figures["p50"]


_READ = ("consume", "topic=large", f"count={LARGE}")
#: Just after the records were written: the gateway keeps the newest 256 MB in memory.
HOT = Kind("Fetch hot", _READ, _megabytes, "MB/s", 200)
KINDS = (
    Kind("acknowledgement, p50", ("acknowledge", "topic=acknowledged", f"count={ACKNOWLEDGED}"), _p50, "ms", 10, True),
    Kind(
        "small requests of many producers",
        ("small", "topic=small", f"seconds={SECONDS}", f"connections={CONNECTIONS}"),
        _requests,
        "requests/s",
        3_000,
    ),
    Kind(
        "Produce, 1-kB records, 128-kB batches",
        ("produce", "topic=large", "size=1000", f"count={LARGE}", "batch=131072"),
        _megabytes,
        "MB/s",
        60,
    ),
    HOT,
    Kind(
        "Produce, 100-byte records, 16-kB batches",
        ("produce", "topic=tiny", "size=100", f"count={TINY}", "batch=16384"),
        _records,
        "records/s",
        200_000,
    ),
)
COLD = Kind("Fetch cold", _READ, _megabytes, "MB/s", 60)
#: As franz-go's clients send them, by default.
SNAPPY = Kind(
    "Produce, 1-kB records, 1-MB batches of snappy",
    ("produce", "topic=large", "size=1000", f"count={LARGE}", "batch=1000000", "codec=snappy", "idempotent=1"),
    _megabytes,
    "MB/s",
    60,
)


class Gateway:
    """A gateway in a process of its own.

    Args:
        stages: The file that gets the processor times of its stages; None: they are not measured.
    """

    def __init__(self, folder: Path, stages: Path | None = None) -> None:
        self._url, self._stages = str(folder / "store"), stages
        with txnstore.create(self._url) as store:
            for topic in TOPICS:
                store.create_topic(topic, 4)
        self._start(0)

    def _start(self, port: int) -> None:
        command = ("gateway", "--store", self._url, "--listen", f"127.0.0.1:{port}")
        module = ["txnstore.cli"] if self._stages is None else ["benchmarks.gateway_stages", str(self._stages)]
        self._process = subprocess.Popen([sys.executable, "-m", *module, *command], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stages(self) -> Mapping[str, float]:
        """The processor seconds of its stages since its start."""
        assert self._stages is not None
        self._stages.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        while not self._stages.exists():
            time.sleep(0.01)
        read: dict[str, float] = json.loads(self._stages.read_text())
        return read

    def merge(self, topic: str) -> None:
        """Merge the segments of a topic, as its upkeep does."""
        with txnstore.open(self._url) as store:
            store.compact(topic)

    def restart(self) -> None:
        """Stop it, and start it without its memory."""
        self._stop()
        self._start(int(self.address.rpartition(":")[2]))

    def close(self) -> None:
        """Stop it."""
        self._stop()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def run() -> Iterator[Result]:
    """Rates and waits of the gateway, beside those of the broker; or the processor time of its stages."""
    if STAGES:
        yield from _staged()
        return
    with ExitStack() as started:
        folder = Path(tempfile.mkdtemp(prefix="gateway-"))
        started.callback(shutil.rmtree, folder, ignore_errors=True)
        servers: dict[str, Any] = {"gateway": Gateway(folder)}
        if any(LIBS.glob("*.jar")):
            servers["broker"] = Cluster(LIBS, _SETTINGS, java=_JAVA)
            _create_topics(servers["broker"])
        for server in servers.values():
            started.callback(server.close)
        for name, server in servers.items():
            for kind in (KINDS[0], KINDS[2]):  # The broker compiles.
                _client(server, kind, f"{name} warms up")
        for kind in KINDS:
            yield from _compared(kind, servers)
        if "broker" in servers:
            yield _transactions(servers, started)
        for server in servers.values():
            server.restart()
        yield from _compared(COLD, servers, rounds=1)


def _staged() -> Iterator[Result]:
    """The processor time of the gateway for each kind of client, and that of each stage."""
    with ExitStack() as started:
        folder = Path(tempfile.mkdtemp(prefix="gateway-"))
        started.callback(shutil.rmtree, folder, ignore_errors=True)
        gateway = Gateway(folder, folder / "stages.json")
        started.callback(gateway.close)
        for kind in (*(kind for kind in KINDS if kind is not HOT), SNAPPY):
            _client(gateway, kind, "warms up")
            yield _stages_of(kind, gateway, ROUNDS)
        # All that was written: librdkafka fetches further than a client reads.
        everything = ("consume", "topic=large", f"count={2 * (1 + ROUNDS) * LARGE}")
        yield _stages_of(replace(HOT, arguments=everything), gateway, 1)
        for name in ("Fetch cold", "Fetch cold, merged"):
            gateway.restart()
            yield _stages_of(replace(COLD, name=name, arguments=everything), gateway, 1)
            gateway.merge("large")


def _stages_of(kind: Kind, gateway: Gateway, rounds: int) -> Result:
    before = gateway.stages()
    runs = [_client(gateway, kind, "gateway") for _ in range(rounds)]
    after, spent = gateway.stages(), sum(run["processor"] for run in runs)
    per, unit = ("bytes", "ms/MB") if "bytes" in runs[0] else ("requests", "µs/request")
    factor = (1e9 if per == "bytes" else 1e6) / sum(run[per] for run in runs)
    times = {stage: after[stage] - before.get(stage, 0.0) for stage in after}
    times["event loop, sockets, the rest"] = spent - sum(times.values())
    lines = [f"{stage} {factor * seconds:.2f}" for stage, seconds in times.items() if factor * seconds >= 0.005]
    return Result(f"{kind.name}: {unit}", factor * spent, float("inf"), at_most=True, detail=", ".join(lines))


def _create_topics(server: Any) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.address})
    for created in admin.create_topics([NewTopic(topic, 4, 1) for topic in TOPICS]).values():
        created.result(60)


def _compared(kind: Kind, servers: Mapping[str, Any], rounds: int = ROUNDS) -> Iterator[Result]:
    """The median of a figure of the gateway; its detail has that of the broker, and the processor times."""
    runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            runs[name].append(_client(server, kind, name))
    own = median(map(kind.figure, runs["gateway"]))
    details = [f"{name}: {_line(kind, figures)}" for name, figures in runs.items()]
    if "broker" in runs:
        details.insert(0, f"gateway/broker {own / median(map(kind.figure, runs['broker'])):.2f}")
    yield Result(f"{kind.name}: {kind.unit}", own, kind.target, kind.at_most, "; ".join(details))


def _line(kind: Kind, runs: Sequence[Mapping[str, float]]) -> str:
    parts = [f"{median(map(kind.figure, runs)):,.1f} {kind.unit}"]
    if "p99" in runs[0]:
        parts.append(
            f"p50 {median(run['p50'] for run in runs):.1f} ms, p99 {median(run['p99'] for run in runs):.1f} ms"
        )
    if "bytes" in runs[0]:
        parts.append(f"{median(1e9 * run['processor'] / run['bytes'] for run in runs):.1f} processor ms/MB")
    elif "requests" in runs[0]:
        parts.append(f"{median(1e6 * run['processor'] / run['requests'] for run in runs):.0f} processor µs/request")
    return ", ".join(parts)


def _client(server: Any, kind: Kind, name: str) -> Mapping[str, float]:
    """The figures of one run of a client, with the processor seconds that the server took meanwhile."""
    before = _processor_seconds(server.pid)
    command = [sys.executable, "-m", "benchmarks.gateway_client", server.address, *kind.arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind.name}, {name}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    figures["processor"] = _processor_seconds(server.pid) - before
    return figures


def _processor_seconds(pid: int) -> float:
    """The processor time of a process until now: Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _transactions(servers: Mapping[str, Any], started: ExitStack) -> Result:
    """Transactions of Java's producer: one record each, one after the other."""
    machine = VirtualMachine(LIBS)
    started.callback(machine.close)
    waits: dict[str, list[float]] = {name: [] for name in servers}
    producers = {}
    for name, server in servers.items():
        text = "org.apache.kafka.common.serialization.StringSerializer"
        settings = {"key.serializer": text, "value.serializer": text, "linger.ms": "0"}
        settings |= {"bootstrap.servers": server.address, "transactional.id": "benchmark"}
        producers[name] = machine.kafka.clients.producer.KafkaProducer(machine.properties(settings))
        producers[name].initTransactions()
    record = machine.kafka.clients.producer.ProducerRecord("transactions", "a value of a record")
    for _ in range(TRANSACTIONS):
        for name, producer in producers.items():
            began = time.perf_counter()
            producer.beginTransaction()
            producer.send(record)
            producer.commitTransaction()
            waits[name].append((time.perf_counter() - began) * 1000)
    for producer in producers.values():
        producer.close()
    cuts = {name: quantiles(times[TRANSACTIONS // 5 :], n=100) for name, times in waits.items()}
    details = [f"{name}: p50 {cut[49]:.1f} ms, p99 {cut[98]:.1f} ms" for name, cut in cuts.items()]
    return Result(
        "transaction of one record, p50: ms", cuts["gateway"][49], 15, at_most=True, detail="; ".join(details)
    )
