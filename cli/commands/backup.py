"""``backup`` and ``restore``: copies of a store, and stores of copies."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, options_of_place, pass_app, shared_options
from txnstore.cli.values import Duration
from txnstore.phrases import counted, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from txnstore.compactor import BackupProgress, BackupRound


@click.command()
@click.argument("target")
@options_of_place("--target-option", "target_options", "TARGET")
@click.option("--verify", is_flag=True, help="Read all of the copy, and compare it with its hashes, before it counts.")
@click.option("--watch", is_flag=True, help="Copy what is new round after round until interrupted; a line for each.")
@click.option(
    "--interval", type=Duration(), default="5s", show_default=True, help="With --watch: the pause between two rounds."
)
@shared_options()
@pass_app
def backup(app: App, target: str, target_options: dict[str, Any], verify: bool, watch: bool, interval: float) -> None:
    """Copy the store as it is now to TARGET, without what is there already.

    TARGET is an empty folder or prefix, or a backup of this store. Nothing is written to the store, which may be used
    meanwhile. An interrupted backup continues when it is run again; until then the earlier one is there. The backup can
    be read like a store; `txnstore restore` makes a store of it.
    """
    if watch and verify:
        raise click.UsageError("--watch cannot be combined with --verify")
    source = click.get_current_context().get_parameter_source("interval")
    if not watch and source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval needs --watch")
    with app.open(read_only=True) as store:
        if watch:
            _watch(app, store.backup_rounds(target, target_options or None, interval=interval))
            return
        with _progress(app, "copying") as advance:
            report = store.backup(target, target_options or None, verify=verify, progress=advance)
    verified = ", verified" if report.verified else ""
    app.out.result(
        f"Copied {counted(report.copied, 'object')} of {report.objects:,} ({size(report.bytes)}){verified}: cut "
        f"{report.cut}, of {counted(sum(report.heads), 'entry', 'entries')}",
        **asdict(report),
    )


def _watch(app: App, rounds: Iterator[BackupRound]) -> None:
    """Print a line for each round that has copied something or failed, and for the first of several idle ones."""
    was_idle = False
    with _ending_at_sigterm():
        for round_ in rounds:
            report = round_.report
            is_idle = report is not None and not report.copied
            if app.out.as_json:
                error = str(round_.error) if round_.error is not None else None
                app.out.record({**asdict(round_), "error": error})
            elif not (is_idle and was_idle):
                app.out.line(_round_line(round_))
            if round_.error is not None:
                app.out.warning(f"round {round_.number}: {round_.error}")
            app.out.flush()
            was_idle = is_idle


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Let SIGTERM, which a service manager sends, end the command with status 0."""
    old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)


def _round_line(round_: BackupRound) -> str:
    behind = f"{round_.behind:.1f} s behind" if round_.behind is not None else "no complete cut"
    if round_.report is None:
        return f"round {round_.number}: failed, {behind}"
    copied = f"{counted(round_.report.copied, 'object')} ({size(round_.report.bytes)}) copied"
    return f"round {round_.number}: {copied}, cut {round_.report.cut}, {behind}"


@click.command()
@click.argument("backup", required=False)
@options_of_place("--backup-option", "backup_options", "BACKUP")
@click.option("--new-identity", is_flag=True, help="Give the store an id of its own, to use it beside the original.")
@click.option("--verify", is_flag=True, help="Read all of the copy, and compare it with its hashes, before it counts.")
@yes_option
@shared_options()
@pass_app
def restore(
    app: App, backup: str | None, backup_options: dict[str, Any], new_identity: bool, verify: bool, yes: bool
) -> None:
    """Make a store at --store, an empty place, of BACKUP: of its newest complete cut.

    Without BACKUP, the backup at --store becomes a store itself; asks first, because nothing can be copied to it any
    more. Stop the processes of the original before, unless the store gets a --new-identity. Tables are published.
    """
    import txnstore
    from txnstore.storage.redact import redact

    if backup is None and backup_options:
        raise click.UsageError("--backup-option needs BACKUP; --storage-option is for a backup at --store")
    url = redact(app.store_url())
    if backup is None and must_ask("make a store of the backup itself", yes=yes):
        ask(f"Make a store of the backup at {url}? No later backup can be made to it.")
    with _progress(app, "copying") as advance:
        report = txnstore.restore(
            app.store_url(),
            backup,
            app.storage_options or None,
            backup_options=backup_options or None,
            new_identity=new_identity,
            verify=verify,
            progress=advance,
            principal=app.principal(),
        )
    app.out.result(
        f"The store {report.store_id} is at {url}: {counted(sum(report.heads), 'entry', 'entries')}, "
        f"{counted(report.copied, 'object')} ({size(report.bytes)}) copied",
        **asdict(report),
    )
    if report.tables:
        app.out.warning(report.tables)


@contextmanager
def _progress(app: App, activity: str) -> Iterator[Callable[[BackupProgress], None]]:
    """Show how many objects were looked at and copied, if the block takes long."""
    newest: list[BackupProgress] = []

    def detail() -> str:
        if not newest:
            return ""
        return f"{newest[0].objects:,} objects, {newest[0].copied:,} copied, {size(newest[0].bytes)}"

    def advance(progress: BackupProgress) -> None:
        newest[:] = [progress]

    with app.out.progress(activity, detail=detail):
        yield advance
