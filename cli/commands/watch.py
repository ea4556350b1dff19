"""``compact --watch``: compacts round after round, with a line for each round."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from txnstore.cli.context import App
from txnstore.phrases import counted, size

if TYPE_CHECKING:
    from txnstore.compactor import Round


def check_watch(options: Mapping[str, object], *, watch: bool) -> None:
    """Refuse options that have no effect with, or without, ``--watch``."""
    for name in ("dry_run", "force", "no_expire", "spark_conf"):
        if watch and options[name]:
            raise click.UsageError(f"--watch cannot be combined with --{name.replace('_', '-')}")
    context = click.get_current_context()
    if watch and options["engine"] != "duckdb":
        raise click.UsageError(f"--watch cannot be combined with --engine {options['engine']}")
    for name in ("interval", "max_bytes"):
        if not watch and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --watch")


def watch_rounds(app: App, topic: str | None, **limits: Any) -> None:
    """Print a line for each round with work or an error, and for the first of several idle ones, until a signal."""
    was_idle = False
    with app.open() as store, ending_at_sigterm():
        for round_ in store.compact_rounds(topic, **limits):
            if app.out.as_json:
                app.out.record(_json_values(round_))
            elif not (round_.idle and was_idle):
                app.out.line(_round_line(round_))
            if round_.error is not None:
                app.out.warning(f"round {round_.number}: {round_.error}")
            app.out.flush()
            was_idle = round_.idle


def _round_line(round_: Round) -> str:
    """Return what a round has done as one line."""
    report = round_.report
    held_text = f", {round_.held} held by other compactors" if round_.held else ""
    if not report.partitions and not report.retained.partitions:
        outcome = "nothing to do" if round_.idle else "failed"
        return f"round {round_.number}: {outcome}{held_text}; next look in {round_.wait:g} s"
    parts = [
        f"round {round_.number}: {counted(len(report.partitions), 'partition')} of {round_.due}{held_text}",
        f"{report.segments_before:,} segments are now {report.segments_after:,}",
        f"{size(sum(item.bytes_read for item in report.partitions))} read",
    ]
    if report.cleans:
        parts.append(f"{counted(report.superseded, 'superseded record')} removed")
    if report.deleted_records:
        parts.append(f"{counted(report.deleted_records, 'record')} deleted by retention")
    if report.conflicts:
        parts.append(counted(report.conflicts, "conflict"))
    return ", ".join([*parts, f"{round_.took:.1f} s"])


def _json_values(round_: Round) -> dict[str, object]:
    values = asdict(replace(round_, error=None))
    report = values.pop("report")
    partitions = [{**item, "tp": str(item["tp"])} for item in report["partitions"]]
    deleted_items = [{**item, "tp": str(item["tp"])} for item in report["retained"]["partitions"]]
    error = str(round_.error) if round_.error is not None else None
    return {**values, "error": error, "partitions": partitions, "deleted": deleted_items}


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Let SIGTERM, which a service manager sends, end the command with status 0, after its clean-up."""
    old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)
