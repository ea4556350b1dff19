"""``table``: topics as Apache Iceberg tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.commands.table_serve import serve
from txnstore.cli.context import App, NounGroup, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Size
from txnstore.phrases import counted, duration, size

if TYPE_CHECKING:
    from txnstore.errors import TxnStoreError
    from txnstore.tables.publish import SyncReport, TableChange
    from txnstore.tables.tables import TableDescription

_LIST_COLUMNS = ["topic", "published", "version", "snapshot", "cut", "time", "behind", "location"]


@click.group(cls=NounGroup)
def table() -> None:
    """Publish topics as Apache Iceberg tables, which Spark, DuckDB, ClickHouse and others read (docs/tables.md)."""


table.add_command(serve)


@table.command()
@click.argument("topic")
@shared_options()
@pass_app
def enable(app: App, topic: str) -> None:
    """Give TOPIC a table (table.format=iceberg). `txnstore table sync` publishes it."""
    with app.open() as store:
        compacted = store.tables.enable(topic)
    app.out.result(
        f"{topic} has a table; `txnstore table sync` publishes it",
        topic=topic,
        enabled=True,
        compacted_segments=compacted,
    )
    if compacted:
        app.out.warning(
            f"{counted(compacted, 'segment')} of {topic} may have been compacted when it had no table: Spark "
            "can miss their rows when it filters by _timestamp, or another column of milliseconds "
            "(apache/iceberg#18173); filter by _offset there. Other engines are not concerned"
        )


@table.command()
@click.argument("topic")
@shared_options()
@pass_app
def disable(app: App, topic: str) -> None:
    """Take the table of TOPIC away; its records stay. The next `txnstore table sync` empties the table."""
    with app.open() as store:
        store.tables.disable(topic)
    app.out.result(f"{topic} has no table from the next `txnstore table sync` on", topic=topic, enabled=False)


@table.command()
@click.option("--compact", is_flag=True, help="Compact before each publication, so that nothing has to be copied.")
@click.option(
    "--tail-bytes", type=Size(), default="1GiB", show_default=True,
    help="Refuse to copy more than this of rows that no compaction has written yet.",
)  # fmt: skip
@click.option(
    "--rebuild", metavar="TOPIC", multiple=True,
    help="Build the table of this topic from its segments alone, since `txnstore table check` found it damaged; "
    "may be repeated; '*': all tables.",
)  # fmt: skip
@shared_options()
@pass_app
def sync(app: App, compact: bool, tail_bytes: int, rebuild: tuple[str, ...]) -> None:
    """Publish all tables at one moment: what a read_committed reader sees now.

    Any number of processes may do it at the same time. Nothing is written if nothing has changed. `txnstore maintain`
    does it again and again.
    """
    errors: list[TxnStoreError] = []
    with app.open() as store:
        if compact:
            with app.out.progress("compacting"):
                store.compact(on_error=errors.append)
        with app.progress("publishing"):
            report = store.tables.sync(tail_bytes=tail_bytes, rebuild=rebuild, on_error=errors.append)
    _show_report(app, report)
    for error in errors:
        raise error


def _show_report(app: App, report: SyncReport) -> None:
    """Print the changes of a publication, and warn of tables that an engine has written to."""
    if app.out.as_json:
        app.out.record(asdict(report))
    elif report.cut == 0:
        app.out.note("No topic has a table; `txnstore table enable TOPIC` gives it one")
    elif not report.changes:
        app.out.line(f"cut {report.cut}: {counted(report.tables, 'table')}, nothing has changed")
    else:
        for change in report.changes:
            app.out.line(f"cut {report.cut}: {_change_line(change)}")
    for key in report.foreign:
        app.out.warning(
            f"{key} was not written by txnstore: an engine wrote to the table. Its rows are not in the store, and "
            "readers no longer see them; docs/tables.md says how to keep engines from writing"
        )


def _change_line(change: TableChange) -> str:
    """Describe the change of a table on one line."""
    if change.snapshot_id is None and not change.operations and change.files == 0:
        return f"{change.topic} version {change.version}, no rows"
    operations = ", ".join(change.operations) or "no new snapshot"
    if change.rebuilt and change.version > 1:
        operations += ", rebuilt"
    line = (
        f"{change.topic} version {change.version}, snapshot {change.snapshot_id} ({operations}): "
        f"{counted(change.rows, 'row')} in {counted(change.files, 'file')}"
    )
    if change.copied_files:
        line += f", {counted(change.copied_files, 'copy', 'copies')} ({size(change.copied_bytes)})"
    return line


@table.command("list")
@shared_options()
@pass_app
def list_tables(app: App) -> None:
    """List the tables, and how far they are behind."""
    with app.open(read_only=True) as store:
        tables = store.tables.list()
    rows = [asdict(description) if app.out.as_json else _list_row(description) for description in tables]
    app.out.rows(rows, _LIST_COLUMNS, empty="No topic has a table; `txnstore table enable TOPIC` gives it one")


def _list_row(description: TableDescription) -> dict[str, Any]:
    return {
        "topic": description.topic,
        "published": description.published,
        "version": description.version,
        "snapshot": description.snapshot_id,
        "cut": description.cut,
        "time": instant(description.timestamp) if description.cut else None,
        "behind": counted(description.behind, "entry", "entries") if description.behind else None,
        "location": description.location,
    }


@table.command()
@click.argument("topic")
@shared_options()
@pass_app
def show(app: App, topic: str) -> None:
    """Show the table of TOPIC: its paths, snapshots and files."""
    with app.open(read_only=True) as store:
        details = store.tables.show(topic)
    description = details.description
    if app.out.as_json:
        app.out.record(asdict(details))
        return
    app.out.record(
        {
            "topic": topic,
            "location": description.location,
            "metadata": f"{description.location}/metadata/v{description.version}.metadata.json",
            "snapshot": description.snapshot_id,
            "time": instant(description.timestamp),
            "behind": f"{counted(description.behind, 'entry', 'entries')}, {duration(description.lag_ms)}",
            "rows": details.rows,
            "files": f"{details.files:,} ({size(details.bytes)})",
            "copies": f"{details.copied_files:,} ({size(details.copied_bytes)})",
            "deleted_rows": details.deleted_rows,
        }
    )
    rows = [
        {
            "snapshot": snapshot.snapshot_id,
            "time": instant(snapshot.timestamp),
            "operation": snapshot.operation,
            "entry": snapshot.heads,
            "rows": snapshot.rows,
            "files": snapshot.files,
        }
        for snapshot in details.snapshots
    ]
    app.out.rows(rows, ["snapshot", "time", "operation", "entry", "rows", "files"], empty="It has no rows yet")


@table.command()
@click.option("--deep", is_flag=True, help="Also read all copies of rows, and compare them with the topics.")
@shared_options()
@pass_app
def check(app: App, deep: bool) -> int:
    """Check that the tables show what a read_committed reader sees at the same moment; exit status 1 if not."""
    with app.open(read_only=True) as store, app.progress("checking"):
        report = store.tables.check(deep=deep)
    outcome = counted(len(report.problems), "problem") if report.problems else "no problem"
    app.out.result(
        f"cut {report.cut}: {counted(report.tables, 'table')}, {counted(report.files, 'file')}, "
        f"{counted(report.rows, 'row')}; {outcome}",
        **{**asdict(report), "ok": report.ok},
    )
    if report.skipped:
        app.out.warning(f"the rows were not compared with the chains: {report.skipped}")
    if not app.out.as_json:
        app.out.rows([asdict(problem) for problem in report.problems], ["topic", "message"])
    return 0 if report.ok and not report.skipped else 1
