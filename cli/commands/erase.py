"""``erase``: erases records from all objects of a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.values import Duration, Size
from txnstore.phrases import counted, duration

if TYPE_CHECKING:
    from txnstore.compactor import EraseReport
    from txnstore.store import Store


@click.command()
@click.argument("topic")
@click.option("--key", help="Erase the records with this key. Where keys are bytes, the UTF-8 of the text.")
@click.option("--where", metavar="SQL", help="Erase the rows for which this expression is true, as after WHERE.")
@click.option(
    "--grace", type=Duration(), default="0", show_default=True,
    help="Keep replaced objects for so long, for readers of earlier snapshots: 30m, 24h. Erase again after it.",
)  # fmt: skip
@click.option(
    "--prove", is_flag=True,
    help="Look into all objects again afterwards, but those that wait for --grace; status 1 if something is found.",
)  # fmt: skip
@click.option("--memory-limit", type=Size(), help="The memory of what is read and written.  [default: 1GiB]")
@click.option("--dry-run", is_flag=True, help="Only show what would be erased.")
@yes_option
@shared_options()
@pass_app
def erase(
    app: App,
    topic: str,
    key: str | None,
    where: str | None,
    grace: float,
    prove: bool,
    memory_limit: int | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Erase records of TOPIC, from all objects of the store. Shows how many, and asks.

    Batches with such records are written again without them, and all objects that have them are deleted: earlier
    snapshots cannot read these batches any more. Offsets stay. Nothing is erased while an open transaction holds such
    records. An interrupted erasure is completed by the same command.
    """
    if (key is None) == (where is None):
        raise click.UsageError("give --key, or --where, and not both")
    needs_answer = must_ask("erase records", yes=yes, dry_run=dry_run)
    with app.open(read_only=dry_run) as store:
        chosen: dict[str, Any] = {
            "key": _key_of(store, topic, key) if key is not None else None,
            "where": where,
            "memory_limit": memory_limit,
        }
        if needs_answer:
            with app.progress("looking for records"):
                plan = store.erase(topic, dry_run=True, **chosen)
            if plan.found:
                app.out.plan(_partition_rows(plan), ["partition", "records"])
                ask(f"Erase {_summary(plan)}? Earlier snapshots lose these batches. This cannot be undone.")
        with app.progress("erasing"):
            report = store.erase(topic, grace=grace, dry_run=dry_run, prove=prove, **chosen)
    _show(app, report, grace)
    return 1 if report.traces else 0


def _key_of(store: Store, topic: str, text: str) -> object:
    """The key of a typed topic, as a cell of a CSV file is read; that of another one is the text."""
    described = store.topic(topic)
    if described.schema is None or described.key is None:
        return text.encode("utf-8", "surrogateescape")
    from txnstore.values.scalars import cell_reader

    try:
        return cell_reader(described.schema.field(described.key).type)(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise click.UsageError(f"--key: {error}") from error


def _show(app: App, report: EraseReport, grace: float) -> None:
    """Print what was done, and what an erasure does not reach."""
    out = app.out
    out.result(
        f"{'Would erase' if report.dry_run else 'Erased'} {_summary(report)}; looked into "
        f"{counted(len(report.objects), 'object')}",
        **{**asdict(report), "partitions": _partition_rows(report), "records": report.records},
    )
    if not out.as_json:
        out.rows(_partition_rows(report), ["partition", "records"])
        out.rows([asdict(found) for found in report.found], ["key", "rows", "outcome"])
        out.rows([asdict(trace) for trace in report.traces or ()], ["key", "where"])
    if report.tables:
        out.note("The table of the topic was built again: it has no earlier snapshots")
    if report.waiting:
        out.warning(
            f"{counted(report.waiting, 'object')} with erased records wait for the end of the grace period: repeat "
            f"the command in {duration(int(grace * 1000))}"
        )
    if report.traces:
        out.warning(f"what was erased, or its bytes, was found in {counted(len(report.traces), 'object')}")
    elif report.traces is not None:
        out.note(f"Nothing of it was found in any {'other ' if report.waiting else ''}object of the store")
    if not report.dry_run:
        for text in report.unreached:
            out.note(f"Not erased: {text}")


def _summary(report: EraseReport) -> str:
    return f"{counted(report.records, 'record')} in {counted(len(report.found), 'object')}"


def _partition_rows(report: EraseReport) -> list[dict[str, Any]]:
    return [{"partition": str(partition.tp), "records": partition.records} for partition in report.partitions]
