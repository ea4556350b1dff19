"""``sql``: queries topics with DuckDB."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.threads import Task, start

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from txnstore.read.plan import IsolationLevel
    from txnstore.store import Store

_BATCH = 10_000

R = TypeVar("R")


@click.command()
@click.argument("query", required=False)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option("--emit-views", is_flag=True, help="Print CREATE VIEW statements for a DuckDB without txnstore.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Rows to print at most.",
)
@shared_options()
@pass_app
def sql(app: App, query: str | None, isolation: IsolationLevel, emit_views: bool, max_rows: int) -> None:
    """Run QUERY (or standard input) in DuckDB, with one view per topic and metadata in the schema txn.

    The query sees one snapshot of all topics. With --json all rows are printed, else at most --max-rows.
    """
    if emit_views:
        if query is not None:
            msg = "--emit-views takes no query"
            raise click.UsageError(msg)
        from txnstore.sql import emit_views as views_of

        with app.connect() as connection:
            app.out.line(views_of(connection, isolation).rstrip("\n"))
        return
    text = query if query is not None else _read_query()
    if not text.strip():
        msg = "the query is empty" if query is not None else "standard input contains no query"
        raise click.UsageError(msg)
    with app.reader() as store:
        _run(app, store, text, isolation, max_rows)


def _read_query() -> str:
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        msg = 'give a query: txnstore sql "SELECT …", or pipe one in'
        raise click.UsageError(msg)
    return sys.stdin.read()


def _run(app: App, store: Store, query: str, isolation: IsolationLevel, max_rows: int) -> None:
    import duckdb

    from txnstore.sql.session import errors_of

    with store.duckdb(isolation) as connection:
        try:
            with errors_of(connection):
                # None for a statement without a result.
                relation: Any = _interruptible(connection, lambda: connection.sql(query))
                if relation is None:
                    return
                reader = _interruptible(connection, lambda: relation.to_arrow_reader(_BATCH))
                _print(app, connection, reader, max_rows)
        except duckdb.Error as error:
            msg = str(error).split("\n\nLINE")[0]
            missing = isinstance(error, duckdb.CatalogException)
            raise CommandError(msg, "`txnstore sql 'SHOW ALL TABLES'` shows all." if missing else "") from error


def _interruptible(connection: DuckDBPyConnection, call: Callable[[], R]) -> R:
    """Call DuckDB in another thread: in its own, an interrupt has no effect, or is another error."""
    task = Task(call)
    start(task.run, "txnstore-query")
    try:
        return task.result()
    except KeyboardInterrupt:
        while not task.cancel() and not task.done():  # An interrupt before the query has begun is lost.
            connection.interrupt()
            task.wait(0.05)
        raise


def _print(app: App, connection: DuckDBPyConnection, reader: pa.RecordBatchReader, max_rows: int) -> None:
    names = _distinct(reader.schema.names)
    batches = iter(lambda: _interruptible(connection, lambda: next(reader, None)), None)
    rows = (row for batch in batches for row in batch.rename_columns(names).to_pylist())
    if app.out.as_json:
        app.out.rows(rows, names)
        return
    shown = _first(rows, max_rows)
    app.out.rows(shown, names, empty="No rows", verbatim=True)
    if next(rows, None) is not None:
        app.out.note(f"… and more: only the first {max_rows:,} rows are shown (--max-rows, or --json for all)")


def _distinct(names: list[str]) -> list[str]:
    """Unique column names: duplicates from a join become ``id`` and ``id_1``, as in DuckDB."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in range(1, len(names) + 1))
        found.append(name if name not in found else next(other for other in others if other not in {*found, *names}))
    return found


def _first(rows: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [row for _, row in zip(range(count), rows, strict=False)]
