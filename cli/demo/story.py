"""The steps of the demo, with their output and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from txnstore.cli.demo import checks
from txnstore.cli.demo.checks import Expected
from txnstore.cli.demo.data import DELAYS, DELAYS_SCHEMA, FLIGHTS, FLIGHTS_SCHEMA, JOB, PARTITIONS
from txnstore.cli.demo.process import JobProcess
from txnstore.cli.demo.run import DemoRun, summary
from txnstore.cli.demo.spark import session, write
from txnstore.core.view import View

if TYPE_CHECKING:
    import pyarrow as pa

    from txnstore.producer import Producer

#: The approximate number of transactions of the job.
_TRANSACTIONS = 30
#: The first instance is killed after this number of transactions, and the second pauses after this number of its own.
_FIRST_PAUSE, _SECOND_PAUSE = 10, 6


def run_demo(run: DemoRun, table: pa.Table) -> bool:
    """Run all steps; return whether all checks hold."""
    clock = run.clock
    began_at = clock()
    expected = Expected.of(table)
    run.note(f"{expected.flights:,} flights of 2013, keyed by aircraft; the store is {run.store.url}")
    run.store.create_topic(FLIGHTS, partitions=PARTITIONS, schema=FLIGHTS_SCHEMA, key="tailnum", timestamp="time_hour")
    run.store.create_topic(DELAYS, partitions=PARTITIONS, schema=DELAYS_SCHEMA, key="tailnum")
    _load(run, table)
    aborted_records = _run_job(run, expected)
    _query(run, expected, aborted_records)
    _compact(run, expected)
    return summary(run, 6, (clock() - began_at) / 1000)


def _load(run: DemoRun, table: pa.Table) -> None:
    """Step 1: Spark writes the flights, and the last quarter once more, which adds nothing."""
    import pyarrow.compute as pc

    number_of = pc.divide(pc.add(table["month"], 2), 3)  # 1 for January to March, …
    quarters = [table.filter(pc.equal(number_of, number)) for number in range(1, 5)]
    with run.step("1  Spark writes the flights, one transaction per quarter"):
        with run.out.progress("Spark") as advance, session(run.folder) as spark:
            for number, quarter in enumerate(quarters, 1):
                write(spark, run.url, run.storage_options, quarter, number)
                advance(number, total=len(quarters) + 1)
                run.note(f"quarter {number}: {quarter.num_rows:,} flights committed")
            view_before = run.store.snapshot().view
            write(spark, run.url, run.storage_options, quarters[-1], len(quarters))
            advance(len(quarters) + 1)
        view_after = run.store.snapshot().view
        run.check("flights written", checks.scalar(run.store, "SELECT count(*) FROM flights"), table.num_rows)
        run.check(
            "records added by writing quarter 4 again",
            _log_end(view_after, FLIGHTS) - _log_end(view_before, FLIGHTS),
            0,
        )


def _run_job(run: DemoRun, expected: Expected) -> int:
    """Run the job with a crash and a zombie; return the number of aborted records."""
    batch = max(1, expected.flights // _TRANSACTIONS)
    with run.out.progress("computing delays", total=expected.flights) as advance:
        progress = _progress(advance)
        with run.step("2  A job computes delays from flights, and is killed in the middle of a transaction"):
            lost_records = _crash(run, batch, progress)
        with run.step("3  The job restarts; this instance pauses and becomes a zombie; a third one finishes"):
            return lost_records + _zombie(run, batch, progress, lost_records)


def _job(run: DemoRun, batch: int, pause_after: int | None = None) -> JobProcess:
    """Start an instance of the job."""
    return run.process("job", batch=batch, pause_after=pause_after)


def _progress(advance: Callable[[float], None]) -> Callable[[int], None]:
    """Return a function that adds records to the count that ``advance`` shows."""
    done_records = 0

    def add(records: int) -> None:
        nonlocal done_records
        done_records += records
        advance(done_records)

    return add


def _crash(run: DemoRun, batch: int, progress: Callable[[int], None]) -> int:
    """Kill a job in a transaction, and check what readers see; return the records that were not decided."""
    store = run.store
    with _job(run, batch, _FIRST_PAUSE) as job:
        flushed_records = int(job.wait_for_event("flushed", progress=progress)["records"])
        status = job.kill()
    run.check(f"exit status of the job, process {job.pid}, after SIGKILL", status, -9)
    view = store.snapshot().view
    for tp, partition in view.partitions_of(DELAYS):
        if partition.open_txns:
            last_stable_offset, high_watermark = partition.last_stable_offset, partition.high_watermark
            run.note(f"{tp}: last stable offset {last_stable_offset:,}, high watermark {high_watermark:,}")
    run.note(f"its transaction is {view.transactions[JOB].state.name}, with {flushed_records:,} records in the log")
    run.check("records between the last stable offset and the end", _undecided_offsets(view), flushed_records)
    committed_count = checks.count(store)
    run.note(f"read_committed sees {committed_count:,} delays")
    run.check(
        "additional delays under read_uncommitted",
        checks.count(store, "read_uncommitted") - committed_count,
        flushed_records,
    )
    return flushed_records


def _zombie(run: DemoRun, batch: int, progress: Callable[[int], None], aborted_before: int) -> int:
    """Pause a job, let another one take over, and check that the first is fenced; return its flushed records."""
    store = run.store
    count_before = checks.count(store)
    with _job(run, batch, _SECOND_PAUSE) as second_job:
        epoch = second_job.wait_for_event("started")["epoch"]
        view = store.snapshot().view
        run.note(f"process {second_job.pid} took over with epoch {epoch}")
        run.check("open transactions after the takeover", _open_transactions(view), 0)
        run.check("change of the delays under read_committed", checks.count(store) - count_before, 0)
        run.check("aborted records that read_uncommitted still sees", checks.count_aborted(store), aborted_before)
        flushed_records = int(second_job.wait_for_event("flushed", progress=progress)["records"])
        run.note(f"process {second_job.pid} pauses with {flushed_records:,} records of a transaction in the log")
        with _job(run, batch) as third_job:
            epoch = third_job.wait_for_event("started")["epoch"]
            run.note(f"process {third_job.pid} took over with epoch {epoch}")
            third_job.wait_for_event("finished", progress=progress)
        second_job.resume()
        event = second_job.wait_for_event("fenced", "finished")
        run.check("result of the zombie's commit after it resumed", event["event"], "fenced")
        run.note(f"ProducerFencedError: {event.get('error')}")
    return flushed_records


def _query(run: DemoRun, expected: Expected, aborted_records: int) -> None:
    """Step 4: SQL compares what the job has written with the input."""
    store = run.store
    with run.step("4  SQL compares the store with the input"):
        run.add(checks.exactness(store, expected, "under read_committed"))
        uncommitted_count = checks.count(store, "read_uncommitted")
        run.check(
            "delays under read_uncommitted, including aborted ones",
            uncommitted_count,
            expected.flights + aborted_records,
        )
        run.check("lag of the job's group", checks.group_lag(store), 0)
        run.show_worst()


def _compact(run: DemoRun, expected: Expected) -> None:
    """Step 5: a compaction changes no rows, though an open and an aborted transaction are above it."""
    store = run.store
    few_records = max(1, min(1_000, expected.flights // 10))
    with run.step("5  A compaction below an open and an aborted transaction"):
        with store.producer(transactional_id="straggler", transaction_timeout=600.0) as straggler:
            _send_some(straggler, few_records)
            with store.producer(transactional_id="unlucky") as unlucky:
                _send_some(unlucky, few_records)
                unlucky.abort_transaction()
            run.note(f"{few_records:,} records are open, {few_records:,} above them are aborted")
            pinned_snapshot = store.snapshot()
            with run.out.progress("compacting") as advance:
                report = store.compact(progress=lambda step: advance(step.done, total=step.total))
            run.note(f"{report.segments_before:,} segments became {report.segments_after:,}")
            run.add(checks.exactness(store, expected, "after the compaction"))
            undecided_count = checks.count(store, "read_uncommitted") - expected.flights
            run.check("open and aborted records above the compacted part", undecided_count, 2 * few_records)
            run.check("aborted records left below the last stable offsets", checks.count_aborted(store), 0)
            run.check("delays in an older snapshot", checks.count(store, snapshot=pinned_snapshot), expected.flights)
            straggler.abort_transaction()
        report_of_all = store.verify(deep=True)
        run.check("violations that `verify --deep` finds", len(report_of_all.violations), 0)


def _send_some(producer: Producer, count: int) -> None:
    """Begin a transaction and append some records."""
    producer.begin_transaction()
    row = {"carrier": "XX", "flight": 0, "tailnum": "N00000", "status": "in flight", "flights_partition": -1}
    producer.send_table(DELAYS, [{**row, "flights_offset": number} for number in range(count)])
    producer.flush()


# Values of a view ----------------------------------------------------------------------------------------------------


def _log_end(view: View, topic: str) -> int:
    return sum(partition.high_watermark for _, partition in view.partitions_of(topic))


def _undecided_offsets(view: View) -> int:
    """The number of offsets of the delays between the last stable offset and the high watermark."""
    return sum(partition.high_watermark - partition.last_stable_offset for _, partition in view.partitions_of(DELAYS))


def _open_transactions(view: View) -> int:
    return sum(len(partition.open_txns) for partition in view.partitions.values())
