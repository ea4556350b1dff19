"""Runs one torture run of gateways and reports its result."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import txnstore
from tests.harness.gateway.nemesis import Nemesis
from tests.harness.gateway.plan import ClientTask, consumed, unconsumed
from tests.harness.gateway.proxy import Proxy
from tests.harness.gateway.spark import COPIED, HOME, copies, without_aborted_copies
from tests.harness.history import Anomaly, History, Recorder, Type, check, read_history, to_file, write_history
from tests.harness.places import place
from tests.harness.torture.archivist import Archivist
from tests.harness.torture.plan import INPUT, OUTPUT, TRANSACTION_TIMEOUT, Task, observe, polled
from tests.harness.torture.run import committers
from tests.helpers.spark_home import link_spark_home
from txnstore.core.transactions.model import TxnState

#: The groups: members of two libraries in each of Kafka's protocols; one of aiokafka, whose offsets name no generation;
#: one of this library; and that of a query of Spark.
COPY, NEXT, AIO, NATIVE, SPARK = GROUPS = ["copy", "next", "aio", "native", "spark"]
#: Anomalies of a kind that a report shows.
_SHOWN = 20


@dataclass(frozen=True)
class Settings:
    """What to run.

    ``folder``: an empty one, for the histories and the objects. ``jars``: of Kafka's clients in Java; without it
    there are none. ``workers``: of each gateway; 0: it is one process. ``small``: fewer clients, no compactor, no
    Spark. ``debug``: contexts of librdkafka that it logs. ``least``: so many operations of each kind must succeed,
    and ``least_faults`` be injected, however long that takes on a busy machine.
    """

    folder: Path
    duration: float = 60.0
    store: str = "local"
    chains: int = 1
    seed: int = 0
    jars: Path | None = None
    workers: int = 0
    partitions: int = 4
    small: bool = False
    debug: str = ""
    least: Mapping[str, int] = field(default_factory=dict)
    least_faults: int = 0


@dataclass
class Report:
    """The result of a run.

    ``entries`` and ``carried``: see :class:`~tests.harness.torture.archivist.Archivist`.
    """

    settings: Settings
    anomalies: list[Anomaly]
    surprises: list[str]
    hangs: list[str]
    violations: list[str]
    faults: Counter[str]
    operations: Counter[str] = field(default_factory=Counter)
    records: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    carried: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is no anomaly. A client that hangs is none: it is reported, and its cause to be found."""
        return not (self.anomalies or self.surprises or self.violations)

    def lines(self) -> Iterator[str]:
        """The report in words."""
        it = self.settings
        yield f"store {it.store}, {it.chains} chain(s), {it.duration:g} s, seed {it.seed}; histories in {it.folder}"
        for kind, count in sorted(self.operations.items()):
            yield f"  {count:7} {kind}"
        yield f"  {self.records} records written"
        for name, counts in (("entries", self.entries), ("carried commands", self.carried)):
            yield f"{name}: " + (", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items())) or "none")
        longest = ", ".join(f"{seconds:.1f} s of {name}" for name, seconds in sorted(self.longest.items()))
        yield f"longest transactions: {longest}"
        yield "faults: " + (", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none")
        yield from (f"HANGS {hang}" for hang in self.hangs)
        kinds: Counter[str] = Counter()
        for item in [*self.anomalies, *self.surprises, *self.violations]:
            kind = item.kind if isinstance(item, Anomaly) else ""
            kinds[kind] += 1
            if not kind or kinds[kind] <= _SHOWN:
                yield f"ANOMALY {item}"
        yield from (f"{count} of {kind}" for kind, count in kinds.items() if kind and count > _SHOWN)
        yield f"{len(self.anomalies) + len(self.surprises) + len(self.violations)} anomalies"


def torture(settings: Settings) -> Report:
    """Run it. The folder keeps the histories, the logs of the processes and a local store."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        chosen = place(settings.store, settings.folder / "store", stack)
        store = stack.enter_context(txnstore.create(chosen.url, settings.chains, chosen.options or None))
        archivist = Archivist(store)
        archivist.start()
        stack.callback(archivist.end)
        link_spark_home(_made(settings.folder / HOME))
        for topic in (INPUT, OUTPUT):
            store.create_topic(topic, partitions=settings.partitions)
        places = [_proxies(settings, stack) for _ in range(2)]
        tasks = _tasks(settings, chosen.url, chosen.options, [proxies[0] for proxies in places])
        look = partial(committers, store)
        nemesis = Nemesis(settings.folder, chosen.url, chosen.options, places, tasks, settings.seed, look)
        try:
            nemesis.run(settings.duration, settings.least, settings.least_faults)
            violations = _last_phase(settings, store, nemesis, tasks)
        finally:
            nemesis.kill_all()
        write_history(settings.folder / "decisions.jsonl", archivist.finish())
    paths = sorted(settings.folder.glob("*.jsonl"))
    known = without_aborted_copies(read_history(paths))
    write_history(settings.folder / "copies.jsonl", copies(known.operations))
    history = without_aborted_copies(read_history([*paths, settings.folder / "copies.jsonl"]))
    faults = nemesis.faults + sum((proxy.faults for proxies in places for proxy in proxies), Counter())
    report = Report(settings, check(history), nemesis.surprises, nemesis.hangs, violations, faults)
    report.entries, report.carried = archivist.entries, archivist.carried
    _count(history, report)
    return report


def _tasks(settings: Settings, url: str, options: dict[str, Any], proxies: list[Proxy]) -> list[Task]:
    folder, seed = str(settings.folder), settings.seed
    bootstrap = ",".join(f"{host}:{port}" for host, port in (proxy.address for proxy in proxies))

    def client(library: str, kind: str, count: int, *groups: str) -> list[Task]:
        protocol = "consumer" if NEXT in groups else "classic"
        return [
            ClientTask(
                f"{library}{'848' if NEXT in groups else ''}-{kind}", "", number, count, url, folder, seed,
                options=options, groups=list(groups), kind=kind, library=library, bootstrap=bootstrap,
                partitions=settings.partitions, jars=str(settings.jars or ""), protocol=protocol, debug=settings.debug,
                pause=0.5,  # Jobs are killed so often that they could not keep up with more.
            )
            for number in range(count)
        ]  # fmt: skip

    tasks = [
        *client("librdkafka", "producer", 1),
        *client("librdkafka", "job", 2, COPY),
        *client("librdkafka", "job", 2, NEXT),
        *client("librdkafka", "consumer", 1),
        *client("aiokafka", "producer", 1),
        *client("aiokafka", "job", 1, AIO),
    ]
    roles = {"consumer": GROUPS}
    if not settings.small:
        tasks += client("aiokafka", "consumer", 2)[1:]  # Its number is odd, so it reads what is not committed too.
        tasks += [*client("spark", "job", 1, SPARK), *client("spark", "producer", 1)]
        roles |= {"producer": [NATIVE], "job": [NATIVE], "compactor": []}
    if settings.jars is not None:
        tasks += [*client("java", "producer", 1), *client("java", "job", 1, COPY), *client("java", "job", 1, NEXT)]
    return [
        *tasks,
        # Less often than they could: others are to write.
        *(Task(role, "", 0, 1, url, folder, seed, False, options, groups, 1.0) for role, groups in roles.items()),
    ]


def _last_phase(settings: Settings, store: txnstore.Store, nemesis: Nemesis, tasks: list[Task]) -> list[str]:
    """Without faults: transactions are ended, jobs read to the end, new clients read all records."""
    time.sleep(TRANSACTION_TIMEOUT + 0.2)
    violations = [f"recover of {name} failed: {why}" for name, why in store.recover().failed]
    jobs = [task for task in tasks if task.role.endswith("job")]
    left = sorted({group for job in jobs for group in job.groups})

    def look() -> None:
        left[:] = unconsumed(store, left) if left else []
        for job in jobs:
            if job.groups[0] not in left:
                consumed(settings.folder, job.groups[0]).touch()

    nemesis.drain([replace(job, drain=True, pause=0.0) for job in jobs], look)
    nemesis.stop_gateways()
    # The transactional ids of killed clients, whose timeouts have not passed.
    for txn in store.transactions(TxnState.ONGOING.name):
        store.abort_transaction(txn.transactional_id)
    store.recover()
    groups = sorted({group for job in jobs for group in job.groups})
    violations += [f"group {group} has not consumed its input" for group in unconsumed(store, groups)]
    with (settings.folder / "final.jsonl").open("a") as file:
        recorder = Recorder("final", time.monotonic_ns, to_file(file))
        recorder.invoke("snapshot", final=True)
        recorder.complete(Type.OK, [observe(store, records=True, groups=GROUPS)])
        with store.consumer([INPUT, OUTPUT]) as consumer:
            while True:
                recorder.invoke("poll", final=True)
                records = consumer.poll(max_records=10_000)
                recorder.complete(Type.OK, [polled(records)])
                if not records and not any(consumer.lag().values()):
                    break
    return violations + [str(item) for item in store.verify(deep=True).violations]


def _count(history: History, report: Report) -> None:
    for op in history.operations:
        if op.process.startswith(COPIED):
            continue
        library = op.process.split("-")[0] if op.process.count("-") > 2 else "native"
        report.operations[f"{op.f} {op.type}" if op.f == "poll" else f"{op.f} {op.type} {library}"] += 1
        if op.type is Type.OK:
            report.records += len(op.sends)
        if op.f == "txn":
            seconds = ((op.completed or op.invoked) - op.invoked) / 1e9
            report.longest[library] = max(report.longest.get(library, 0.0), seconds)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _proxies(settings: Settings, stack: ExitStack) -> list[Proxy]:
    """Start the proxies of a gateway: before its address, and before those after it, which its workers have."""
    count = 1 + settings.workers
    with _following_sockets(count) as targets:
        ports = [each.getsockname()[1] for each in targets]
        bound = stack.enter_context(_following_sockets(count))
    proxies = [
        Proxy(("127.0.0.1", port), f"{settings.seed} {port}", own) for port, own in zip(ports, bound, strict=True)
    ]
    for proxy in proxies:
        proxy.start()
        stack.callback(proxy.close)
    return proxies


@contextmanager
def _following_sockets(count: int) -> Iterator[list[socket.socket]]:
    """Sockets that are bound to ports which follow each other; closed at the end."""
    while True:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
            first = sockets[0].getsockname()[1]
            try:
                sockets += [
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                    for port in range(first + 1, first + count)
                ]
            except (OSError, OverflowError):
                continue
            yield sockets
            return
