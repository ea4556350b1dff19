"""The steps of the demo of streaming, with their output and checks."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txnstore.cli.demo import checks
from txnstore.cli.demo.checks import Expected
from txnstore.cli.demo.data import DELAYS, DELAYS_SCHEMA, FLIGHTS, FLIGHTS_SCHEMA, LOADER, PARTITIONS
from txnstore.cli.demo.process import JobProcess
from txnstore.cli.demo.run import DemoRun, summary

if TYPE_CHECKING:
    import pyarrow as pa

#: The driver is killed in the micro-batch after this number of them.
_KILLED_AFTER = 4


def run_stream(run: DemoRun, table: pa.Table) -> bool:
    """Run all steps; returns whether all checks hold."""
    clock = run.clock
    began_at = clock()
    expected = Expected.of(table)
    run.note(f"{expected.flights:,} flights of 2013, which arrive month by month; the store is {run.store.url}")
    run.store.create_topic(FLIGHTS, partitions=PARTITIONS, schema=FLIGHTS_SCHEMA, key="tailnum", timestamp="time_hour")
    run.store.create_topic(DELAYS, partitions=PARTITIONS, schema=DELAYS_SCHEMA, key="tailnum")
    arrivals = _Arrivals(run, table)
    with run.out.progress("computing delays", total=expected.flights) as advance:
        with run.step("1  A Spark stream computes delays from the flights, and its driver is killed in a micro-batch"):
            killed_batch = _crash(run, arrivals, advance)
        with run.step("2  More flights arrive, and the driver starts again from its checkpoint"):
            _restart(run, arrivals, advance, killed_batch)
    with run.step("3  SQL compares the store with the input"):
        run.add(checks.exactness(run.store, expected, "under read_committed"))
        run.check("delays under read_uncommitted", checks.count(run.store, "read_uncommitted"), expected.flights)
        run.check("lag of the stream's group", checks.group_lag(run.store), 0)
        run.show_worst()
        violations = run.store.verify(deep=True).violations
        run.check("violations that `verify --deep` finds", len(violations), 0)
    return summary(run, 4, (clock() - began_at) / 1000)


class _Arrivals:
    """The flights, written month by month, each month in one transaction."""

    def __init__(self, run: DemoRun, table: pa.Table) -> None:
        self._run = run
        self._months = self._split(table)
        #: The number of flights that have arrived.
        self.count = 0

    @staticmethod
    def _split(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        import pyarrow.compute as pc

        for month in range(1, 13):
            flights = table.filter(pc.equal(table["month"], month))
            if flights.num_rows:
                yield calendar.month_name[month], flights

    def next(self) -> str | None:
        """Write the flights of the next month; returns its name, or None after the last one."""
        name, flights = next(self._months, (None, None))
        if flights is not None:
            with self._run.store.producer(transactional_id=LOADER) as producer, producer.transaction() as txn:
                txn.send_table(FLIGHTS, flights)
            self.count += flights.num_rows
            self._run.note(f"{name}: {flights.num_rows:,} flights arrived")
        return name


def _driver(run: DemoRun, pause_after: int | None = None) -> JobProcess:
    """Start the driver of the stream."""
    folder = str(run.folder)
    checkpoint = str(run.folder / "checkpoint")
    return run.process("stream", folder=folder, checkpoint=checkpoint, pause_after=pause_after)


def _crash(run: DemoRun, arrivals: _Arrivals, advance: Callable[[float], None]) -> int:
    """Run the driver, and kill it; returns the number of the micro-batch in which it was killed."""
    with _driver(run, _KILLED_AFTER) as driver:
        event: dict[str, Any] = {}
        while event.get("event") != "uploaded" and arrivals.next():
            event = _follow(run, driver, arrivals.count, advance)
        committed_count = checks.count(run.store)
        status = driver.kill()
    run.check(f"exit status of the driver, process {driver.pid}, after SIGKILL", status, -9)
    batch_number = int(event["micro_batch"])
    uploaded_segments = run.store.vacuum(dry_run=True).kept_young
    run.note(f"micro-batch {batch_number} had uploaded {uploaded_segments} segments, and committed none of them")
    run.check("change of the delays under read_committed", checks.count(run.store) - committed_count, 0)
    run.check(
        "additional delays under read_uncommitted", checks.count(run.store, "read_uncommitted") - committed_count, 0
    )
    return batch_number


def _follow(run: DemoRun, driver: JobProcess, arrived_count: int, advance: Callable[[float], None]) -> dict[str, Any]:
    """Wait until the stream has processed all arrived flights, or pauses; return its last event."""
    event = driver.wait_for_event("committed", "uploaded")
    while event["event"] == "committed":
        done_count = checks.count(run.store)
        advance(done_count)
        run.note(f"micro-batch {event['micro_batch']} committed: {done_count:,} delays")
        if done_count >= arrived_count:
            break
        event = driver.wait_for_event("committed", "uploaded")
    return event


def _restart(run: DemoRun, arrivals: _Arrivals, advance: Callable[[float], None], killed_batch: int) -> None:
    """Start the driver again, and let all flights arrive."""
    count_before = checks.count(run.store)
    missing_count = arrivals.count - checks.count(run.store)
    arrivals.next()
    with _driver(run) as driver:
        event = driver.wait_for_event("committed")
        run.check("first micro-batch of the new driver", event["micro_batch"], killed_batch)
        run.check(
            "delays that the killed micro-batch lost", missing_count - (checks.count(run.store) - count_before), 0
        )
        _follow(run, driver, arrivals.count, advance)
        while arrivals.next():
            _follow(run, driver, arrivals.count, advance)
        driver.end()
