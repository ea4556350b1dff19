"""Runs one torture run and reports its result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import txnstore
from tests.harness.history import (
    Anomaly,
    History,
    Recorder,
    Type,
    check,
    read_history,
    to_file,
    write_history,
)
from tests.harness.places import check_server_kills, place
from tests.harness.short_history import short_history
from tests.harness.torture.archivist import Archivist
from tests.harness.torture.machines import several_machines
from tests.harness.torture.nemesis import Nemesis
from tests.harness.torture.plan import INPUT, LEASE_MS, OUTPUT, RETENTION_MS, TRANSACTION_TIMEOUT, Task, observe, polled
from tests.helpers.connections import connection_of
from txnstore.chain.committer.committer import FoundCommitter
from txnstore.core.transactions.model import TxnState


@dataclass(frozen=True)
class Settings:
    """What to run.

    ``folder``: an empty one, for the histories and the objects of ``local``, ``minio`` and ``versitygw``. ``store``:
    ``local``, or a kind of :class:`~tests.harness.s3.servers.S3Server`; ``s3`` is its default. ``server_kills``: kill
    and restart the server as well, which must be ``minio`` or ``versitygw``. ``machines``: if several, processes of
    different ones meet by the network, with a runtime folder for each machine. ``least``: so many operations of each
    kind must succeed, and ``least_faults`` be injected, however long that takes on a busy machine.
    """

    folder: Path
    duration: float = 60.0
    store: str = "local"
    chains: int = 1
    seed: int = 0
    producers: int = 2
    jobs: int = 2
    consumers: int = 2
    janitors: int = 2
    compactors: int = 2
    partitions: int = 4
    least: Mapping[str, int] = field(default_factory=dict)
    least_faults: int = 0
    server_kills: bool = False
    machines: int = 1

    def __post_init__(self) -> None:
        if self.server_kills:
            check_server_kills(self.store)


@dataclass
class Report:
    """The result of a run.

    ``operations``: their number by kind and outcome. ``deleted_entries``: of all chains, up to the oldest that is left.
    ``carried``: how many commands of other processes entries carried.
    """

    settings: Settings
    anomalies: list[Anomaly]
    surprises: list[str]
    violations: list[str]
    faults: Counter[str]
    operations: Counter[str] = field(default_factory=Counter)
    records: int = 0
    deleted_entries: int = 0
    carried: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no anomaly."""
        return not (self.anomalies or self.surprises or self.violations)

    def lines(self) -> Iterator[str]:
        """The report in words."""
        it = self.settings
        place = f"store {it.store}, {it.chains} chain(s), {it.machines} machine(s)"
        yield f"{place}, {it.duration:g} s, seed {it.seed}; histories in {it.folder}"
        for kind, count in sorted(self.operations.items()):
            yield f"  {count:7} {kind}"
        commits = self.operations["txn ok"]
        yield f"  {commits / it.duration:.1f} commits/s, {self.records} records committed"
        yield f"  {self.deleted_entries} entries deleted, {self.carried} commands carried for other processes"
        yield "faults: " + (", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none")
        for item in [*self.anomalies, *self.surprises, *self.violations]:
            yield f"ANOMALY {item}"
        yield f"{len(self.anomalies) + len(self.surprises) + len(self.violations)} anomalies"


def torture(settings: Settings) -> Report:
    """Run it. The folder keeps the histories, the logs of the processes and a local store."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        chosen = place(settings.store, settings.folder / "store", stack)
        stack.enter_context(short_history(LEASE_MS))
        store = stack.enter_context(txnstore.create(chosen.url, settings.chains, chosen.options or None))
        archivist = Archivist(store)
        archivist.start()
        stack.callback(archivist.end)
        store.create_topic(INPUT, partitions=settings.partitions)
        store.create_topic(OUTPUT, partitions=settings.partitions, config={"retention.ms": RETENTION_MS})
        tasks = _tasks(settings, chosen.url, chosen.options)
        server = chosen.server if settings.server_kills else None
        machines = stack.enter_context(several_machines(settings.machines)) if settings.machines > 1 else None
        look = partial(committers if machines is None else _hosts_of_committers, store)
        nemesis = Nemesis(tasks, settings.seed, server, look, machines)
        try:
            nemesis.run(settings.duration, settings.least, settings.least_faults)
            nemesis.finish()
            violations = _last_phase(settings, store, nemesis, tasks)
        finally:
            nemesis.kill_all()
        write_history(settings.folder / "decisions.jsonl", archivist.finish())
        deleted, carried = archivist.deleted, archivist.carried.total()
    history = read_history(sorted(settings.folder.glob("*.jsonl")))
    report = Report(
        settings,
        check(history),
        nemesis.surprises,
        violations,
        nemesis.faults,
        deleted_entries=deleted,
        carried=carried,
    )
    _count(history, report)
    return report


def committers(store: txnstore.Store) -> set[int]:
    """The ids of the processes that commit for others of this machine."""
    return {each.process_id for each in _find_committers(store) if each.process_id is not None}


def _hosts_of_committers(store: txnstore.Store) -> set[str]:
    """The hosts of the processes that commit for those of other machines."""
    return {each.address.rpartition(":")[0] for each in _find_committers(store)}


def _find_committers(store: txnstore.Store) -> list[FoundCommitter]:
    found = [chain.find_committer() for chain in connection_of(store).chains]
    return [each for each in found if each is not None]


def _tasks(settings: Settings, url: str, options: dict[str, Any]) -> list[Task]:
    counts = {"producer": settings.producers, "job": settings.jobs, "consumer": settings.consumers}
    counts |= {"janitor": settings.janitors, "compactor": settings.compactors}
    return [
        Task(role, "", number, count, url, str(settings.folder), settings.seed, options=options)
        for role, count in counts.items()
        for number in range(count)
    ]


def _last_phase(settings: Settings, store: txnstore.Store, nemesis: Nemesis, tasks: list[Task]) -> list[str]:
    """Without faults: timeouts pass, everything is recovered, jobs read to the end, new clients read all records."""
    time.sleep(TRANSACTION_TIMEOUT + 0.2)
    report = store.recover()
    violations = [f"recover of {name} failed: {why}" for name, why in report.failed]
    still = store.transactions(TxnState.ONGOING.name)
    violations += [f"{txn.transactional_id!r} is still open after recover" for txn in still]
    nemesis.drain([replace(it, drain=True) for it in tasks if it.role == "job"])
    store.recover()
    with (settings.folder / "final.jsonl").open("a") as file:
        recorder = Recorder("final", time.monotonic_ns, to_file(file))
        recorder.invoke("snapshot", final=True)
        recorder.complete(Type.OK, [observe(store, records=True)])
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
        report.operations[f"{op.f} {op.type}"] += 1
        if op.type is Type.OK:
            report.records += len(op.sends)
