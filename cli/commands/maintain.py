"""``maintain``: does all that a store needs, until it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.listening import Address, listen_on
from txnstore.cli.values import Duration, Integer, Size
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.metrics import MAINTENANCE_KINDS as KINDS
from txnstore.phrases import address_text, counted

if TYPE_CHECKING:
    import socket

    from txnstore.compactor import Maintenance, MaintenanceRound, TaskResult
    from txnstore.store import Store

#: Seconds from a signal to the end of the process.
_END_SECONDS = 0.9
#: What a terminal shows while a kind is done.
_ACTIVITIES = {
    "recover": "ending abandoned transactions", "retain": "deleting old records", "compact": "compacting",
    "expire": "expiring", "checkpoint": "writing checkpoints", "tables": "publishing tables", "vacuum": "vacuuming",
}  # fmt: skip


class Interval(click.ParamType[tuple[str, float]]):
    """How often a kind of maintenance is looked at: ``KIND=DURATION``."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        kind, separator, text = str(value).partition("=")
        if not separator or kind not in KINDS:
            self.fail(f"{value!r} is not KIND=DURATION, such as tables=5s; kinds are {', '.join(KINDS)}", param, ctx)
        return kind, Duration().convert(text, param, ctx)


@click.command()
@click.option("--once", is_flag=True, help="Do what is due, and end; status 1 if something failed.")
@click.option("--only", type=click.Choice(KINDS), multiple=True, help="Do this kind; repeatable.  [default: all]")
@click.option(
    "--every", type=Interval(), multiple=True, metavar="KIND=DURATION", help="How often to look at a kind; repeatable."
)
@click.option("--budget", type=Integer(min=1), help="The most requests in an hour.  [default: no limit]")
@click.option("--max-bytes", type=Size(), help="What a compaction takes on in a round.  [default: 1GiB; all if --once]")
@click.option("--memory-limit", type=Size(), help="The memory of a clean or a merge, such as 512MB.  [default: 1GiB]")
@click.option("--past-hw", is_flag=True, help="Clean by key also above the last stable offset, around what is open.")
@click.option("--metrics", type=Address("127.0.0.1:9193"), help="Serve http://HOST:PORT/metrics, and /health.")
@shared_options()
@pass_app
def maintain(
    app: App,
    once: bool,
    only: tuple[str, ...],
    every: tuple[tuple[str, float], ...],
    budget: int | None,
    max_bytes: int | None,
    memory_limit: int | None,
    past_hw: bool,
    metrics: tuple[str, int] | None,
) -> int:
    """Do all that the store needs: the command to run as a service.

    It ends abandoned transactions, deletes old records, compacts, expires, writes checkpoints, publishes tables and
    vacuums, each when it is due. Any number of processes may do so, on any machines. A line for each round in which
    something was done or failed. It runs until SIGTERM, and may be killed at any time (docs/howto/day-two.md).
    """
    import asyncio

    if once and budget is not None:
        raise click.UsageError("--budget is for a service: --once does all that is due")
    if once and (kinds := [kind for kind, _ in every if kind != "vacuum"]):
        raise click.UsageError(f"--every {kinds[0]} is for a service: --once looks at each kind")
    if not once and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # Until the rounds begin there is nothing to end.
    with app.open() as store:
        try:
            maintenance = store.maintain(
                only or None,
                every=dict(every),
                budget=budget,
                max_bytes=max_bytes,
                memory_limit=memory_limit,
                past_hw=past_hw,
                rounds=1 if once else None,
            )
        except InvalidConfigError as error:
            raise click.UsageError(str(error)) from None
        with contextlib.ExitStack() as resources:
            listener = None if metrics is None else resources.enter_context(listen_on(metrics))
            printer = _Printer(app, once=once)
            status = asyncio.run(_run(app, maintenance, store, printer, listener, 143 if once else 0))
        if status is None and maintenance.error is not None:
            raise maintenance.error
    if status is not None:
        return status
    return 1 if once and printer.has_failed else 0


class _Printer:
    """Prints a line for each round with work or an error, and for the first of several idle ones."""

    def __init__(self, app: App, *, once: bool) -> None:
        self._out, self._once, self._was_idle = app.out, once, False
        self.has_failed = False

    def show(self, round_: MaintenanceRound) -> None:
        """Print a round."""
        self.has_failed |= bool(round_.errors)
        if self._out.as_json:
            self._out.record(_json_values(round_))
        elif not (round_.idle and self._was_idle):
            self._out.line(_round_line(round_, once=self._once))
        for result in round_.errors:
            self._out.warning(f"round {round_.number}: {result.kind}: {result.error}")
        self._out.flush()
        self._was_idle = round_.idle


def _round_line(round_: MaintenanceRound, *, once: bool) -> str:
    """What a round has done, in one line."""
    parts = [_result_text(result) for result in round_.results] or ["nothing to do"]
    cost = f"{counted(round_.requests, 'request')}, {round_.took:.1f} s"
    next_look = "" if once else f"; next look in {round_.wait:.0f} s"
    return f"round {round_.number}: {'; '.join(parts)} ({cost}){next_look}"


def _result_text(result: TaskResult) -> str:
    """``retain: records 50, partitions 1``, or that it failed."""
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in result.counts.items())
    failure = "failed" if result.error is not None else ""
    return f"{result.kind}: {', '.join(filter(None, (counts, failure)))}"


def _json_values(round_: MaintenanceRound) -> dict[str, object]:
    values = asdict(replace(round_, results=()))
    results = [
        {**asdict(replace(result, error=None)), "error": None if result.error is None else str(result.error)}
        for result in round_.results
    ]
    return {**values, "results": results}


async def _run(
    app: App,
    maintenance: Maintenance,
    store: Store,
    printer: _Printer,
    listener: socket.socket | None,
    terminated: int,
) -> int | None:
    """Maintain in the background until a signal, or the end of the rounds; return the status for a signal, or None.

    Args:
        terminated: The status for SIGTERM.
    """
    import asyncio

    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    statuses: list[int] = []

    def stop(status: int) -> None:
        statuses.append(status)
        end_soon(statuses[0])
        is_over.set()

    for number, status in ((signal.SIGTERM, terminated), (signal.SIGINT, 130)):
        loop.add_signal_handler(number, stop, status)
    maintenance.observe(
        lambda kind: app.progress(_ACTIVITIES[kind]),
        printer.show,
        lambda: loop.call_soon_threadsafe(is_over.set),
    )
    server = None
    if listener is not None:
        from txnstore.gateway.metrics import MetricsServer

        server = MetricsServer(partial(_metrics_text, maintenance, store), maintenance.problem)
        await server.listen(listener)
        print(f"metrics on http://{address_text(*listener.getsockname()[:2])}/metrics", file=sys.stderr, flush=True)
    try:
        with maintenance:
            await is_over.wait()
    finally:
        if server is not None:
            server.close()
    return statuses[0] if statuses else None


async def _metrics_text(maintenance: Maintenance, store: Store) -> str:
    """The metrics of the process, and of the store if it can be read."""
    import asyncio

    try:
        text = await asyncio.to_thread(store.prometheus)
    except TxnStoreError:
        text = store.prometheus(status=False)
    return text + maintenance_text(maintenance, store.url)


def maintenance_text(maintenance: Maintenance, url: str) -> str:
    """The counters of a maintenance in Prometheus' format."""
    from txnstore.compactor.maintain.metrics import rows_of
    from txnstore.monitoring.prometheus import families

    return families(rows_of(maintenance.counts), url)


def end_soon(status: int) -> None:
    """End the process after :data:`_END_SECONDS`, whatever it does: maintenance may be ended anywhere."""
    timer = threading.Timer(_END_SECONDS, os._exit, [status])
    timer.daemon = True
    timer.start()
