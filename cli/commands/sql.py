"""``sql``: queries topics with DuckDB."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.values import Integer, parse_earlier_snapshot
from txnstore.validation import is_unicode

if TYPE_CHECKING:
    import duckdb
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from txnstore.read.plan import IsolationLevel

_BATCH_ROWS = 10_000
#: The types, by id, that DuckDB passes to Arrow without the offset, as another number, or as bytes of its own.
_NOT_IN_ARROW = {"time with time zone", "bit", "uhugeint", "bignum", "variant"}
#: The types with inner types.
_NESTED_TYPES = {"struct", "tuple", "list", "array", "map", "union"}


class _SqlCommand(click.Command):
    """A command whose query may begin with a comment, which Click would take for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"\n{arg}" if re.match(r"--[^=\s]*\s", arg) else arg for arg in args])


@click.command(cls=_SqlCommand)
@click.argument("query", required=False)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--at",
    "--snapshot",
    metavar="MOMENT",
    help="Show an earlier snapshot: after an entry (`txnstore log show` lists them), at a time such as "
    "2026-01-31T12:00:00Z (UTC without a zone), or -1h for an hour ago.",
)
@click.option("--emit-views", is_flag=True, help="Print CREATE VIEW statements for a DuckDB without txnstore.")
@click.option(
    "--max-rows",
    type=Integer(min=1),
    default=1_000,
    show_default=True,
    help="Rows to print at most.",
)
@click.option(
    "--sandbox",
    is_flag=True,
    help="Let QUERY read the topics and nothing else: no files, no network, no settings.",
)
@click.option("--no-checksums", is_flag=True, help="Do not compare checksums of segments in a local folder.")
@shared_options()
@pass_app
def sql(
    app: App,
    query: str | None,
    isolation: IsolationLevel,
    at: str | None,
    emit_views: bool,
    max_rows: int,
    sandbox: bool,
    no_checksums: bool,
) -> None:
    """Run QUERY (or standard input) in DuckDB, with one view per topic and metadata in the schema txn.

    The query sees one snapshot of all topics. With --json all rows are printed, else at most --max-rows.
    """
    from txnstore.runtime import wall_clock_ms

    moment = None if at is None else parse_earlier_snapshot(at, "--at", wall_clock_ms())
    if emit_views:
        if query is not None:
            msg = "--emit-views takes no query"
            raise click.UsageError(msg)
        from txnstore.sql import emit_views as views_of

        with app.connect() as connection:
            snapshot = None if moment is None else connection.snapshot(moment.entry, moment.timestamp)
            views = views_of(connection, isolation, snapshot).rstrip("\n")
        app.out.line(views)
        for comment in re.findall(r"^-- (.* is left out.*)", views, re.MULTILINE):
            app.out.warning(comment)  # The output is executed, not read, so comments in it are missed.
        return
    text = query if query is not None else _read_query()
    if not text.strip():
        msg = "the query is empty" if query is not None else "standard input contains no query"
        raise click.UsageError(msg)
    if not is_unicode(text):
        msg = "the query is not UTF-8"
        raise click.UsageError(msg)
    with app.reader() as store:
        snapshot = None if moment is None else store.snapshot(moment.entry, moment.timestamp)
        _run(app, store.duckdb(isolation, snapshot, sandbox=sandbox, checksums=not no_checksums), text, max_rows)


def _read_query() -> str:
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        msg = 'give a query: txnstore sql "SELECT …", or pipe one in'
        raise click.UsageError(msg)
    return sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")


def _run(app: App, connection: DuckDBPyConnection, query: str, max_rows: int) -> None:
    """Run the statements of a query; print the result of the last one, and of leading ones that only read."""
    import duckdb

    from txnstore.sql.session import errors_of
    from txnstore.sql.statements import parse

    with connection:
        try:
            with errors_of(connection, query):
                statements = parse(connection, query)
                for statement in statements:
                    only_reads = statement.expected_result_type == [duckdb.ExpectedResultType.QUERY_RESULT]
                    is_shown = only_reads or statement is statements[-1]
                    _run_statement(app, connection, statement.query, max_rows if is_shown else 0)
        except duckdb.Error as error:
            raise _command_error(error) from error


def _command_error(error: duckdb.Error) -> CommandError:
    """The error to show: DuckDB's message without the quoted line, with the advice that ``errors_of`` has noted."""
    import duckdb

    advice = " ".join(getattr(error, "__notes__", ()))
    if not advice and isinstance(error, duckdb.CatalogException):  # The query names what does not exist.
        advice = "`txnstore sql 'SHOW ALL TABLES'` shows all."
    return CommandError(str(error).split("\n\nLINE")[0], advice)


def _run_statement(app: App, connection: DuckDBPyConnection, statement: str, max_rows: int) -> None:
    """Run a statement and print its result, if there is one; with ``max_rows`` 0, do not print it."""
    from txnstore.sql.interrupts import interruptible

    result: DuckDBPyRelation | None = interruptible(connection, lambda: connection.sql(statement))
    if result is not None and max_rows:
        _print(app, connection, result, max_rows)


def _with_text_columns(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """Replace values that Arrow cannot hold, at any level, by DuckDB's text."""
    needs_text = [_needs_text(kind) for kind in relation.types]
    if not any(needs_text):
        return relation
    return relation.project(
        ", ".join(f"#{position}::VARCHAR" if text else f"#{position}" for position, text in enumerate(needs_text, 1))
    )


def _needs_text(kind: Any) -> bool:
    """Whether Arrow cannot hold the values of a type of DuckDB, or of a type inside."""
    # Among the children of an array is its length.
    inner_types = (
        [child for _, child in kind.children if isinstance(child, type(kind))] if kind.id in _NESTED_TYPES else []
    )
    return kind.id in _NOT_IN_ARROW or any(map(_needs_text, inner_types))


def _print(app: App, connection: DuckDBPyConnection, result: DuckDBPyRelation, max_rows: int) -> None:
    """Print all rows of a result as JSON lines, or the first ``max_rows`` as a table. An interrupt ends it."""
    from txnstore.sql.interrupts import interruptible
    from txnstore.values.python import python_rows

    names = _distinct_names(result.columns)
    text_result = _with_text_columns(result)
    reader = interruptible(connection, lambda: text_result.to_arrow_reader(_BATCH_ROWS))
    batches = iter(lambda: interruptible(connection, lambda: next(reader, None)), None)
    rows = (row for batch in batches for row in python_rows(batch.rename_columns(names)))
    if app.out.as_json:
        app.out.rows(rows, names)
        return
    first_rows = _first_rows(rows, max_rows)
    app.out.rows(first_rows, names, empty="No rows", verbatim=True)
    if next(rows, None) is not None:
        app.out.note(f"… and more: only the first {max_rows:,} rows are shown (--max-rows, or --json for all)")


def _distinct_names(names: list[str]) -> list[str]:
    """Unique column names: duplicates from a join become ``id`` and ``id_1``, as in DuckDB."""
    distinct_names: list[str] = []
    for name in names:
        numbered_names = (f"{name}_{number}" for number in range(1, len(names) + 1))
        distinct_names.append(
            name
            if name not in distinct_names
            else next(candidate for candidate in numbered_names if candidate not in {*distinct_names, *names})
        )
    return distinct_names


def _first_rows(rows: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [row for _, row in zip(range(count), rows, strict=False)]
