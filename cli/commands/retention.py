"""``retain`` and ``topic delete-records``: delete the oldest records of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.values import Integer
from txnstore.core.model import TopicPartition
from txnstore.phrases import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txnstore.compactor import PartitionRetention
    from txnstore.errors import TxnStoreError

#: Stands for the high watermark.
_END = -1
_COLUMNS = ["partition", "log_start", "new_log_start", "batches", "records", "bytes"]


@click.command()
@click.argument("topic", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@shared_options()
@pass_app
def retain(app: App, topic: str | None, dry_run: bool, yes: bool) -> None:
    """Delete what retention.ms and retention.bytes of TOPIC, or of all topics, have passed. Shows it, and asks.

    `compact` does it, too, without asking. Records of open transactions, and all that follow them, stay.
    """
    needs_answer = must_ask("delete records", yes=yes, dry_run=dry_run)
    errors: list[TxnStoreError] = []
    with app.open(read_only=dry_run) as store:
        if needs_answer:
            plan = store.retain(topic, dry_run=True, on_error=lambda _: None)  # The retention below reports the errors.
            if plan.partitions:
                app.out.plan(_rows(plan.partitions), _COLUMNS)
                ask(f"Delete {_summary(plan.partitions)}? This cannot be undone.")
        with app.progress("deleting records"):
            report = store.retain(topic, dry_run=dry_run, on_error=errors.append)
    app.out.rows(_rows(report.partitions), _COLUMNS, empty="Nothing to delete")
    if report.partitions:
        app.out.note(f"{'Would delete' if dry_run else 'Deleted'} {_summary(report.partitions)}")
    for error in errors:
        raise error


class _Offset(click.ParamType[int]):
    """An offset, or ``end`` for the high watermark."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "end":
            return _END
        if isinstance(value, int):
            return value
        if not (str(value).isdecimal() and str(value).isascii()):
            self.fail(f"{value!r} is not an offset: give a number of at least 0, or end", param, ctx)
        return int(value)


@click.command("delete-records")
@click.argument("name")
@click.argument("partition", type=Integer(min=0))
@click.argument("offset", type=_Offset())
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@shared_options()
@pass_app
def delete_records(app: App, name: str, partition: int, offset: int, dry_run: bool, yes: bool) -> None:
    """Delete the records of a PARTITION of the topic NAME below OFFSET (or `end`). Shows how many, and asks.

    Nothing at or above the first record of an open transaction is deleted. A later vacuum removes the objects.
    """
    from txnstore.compactor import delete_records as delete
    from txnstore.connection import open_connection

    tp = TopicPartition(name, partition)
    with app.progress("opening the store"):
        connection = open_connection(app.objects(), read_only=dry_run, principal=app.principal())
    with connection:
        connection.view(refresh=False).find_partition(tp)
        if must_ask(f"delete records of {tp}", yes=yes, dry_run=dry_run):
            plan = delete(connection, {tp: offset}, dry_run=True)[tp]
            if plan.new_log_start > plan.log_start:
                app.out.plan(_rows([plan]), _COLUMNS)
                ask(f"Delete {_summary([plan])}? This cannot be undone.")
        retention = delete(connection, {tp: offset}, dry_run=dry_run)[tp]
    if retention.new_log_start == retention.log_start:
        text = f"Nothing to delete: {tp} begins at offset {retention.log_start:,}"
    else:
        verb = "Would delete" if dry_run else "Deleted"
        text = f"{verb} {_summary([retention])}; {tp} begins at offset {retention.new_log_start:,}"
    app.out.result(text, **_rows([retention])[0], dry_run=dry_run)


def _rows(partitions: Iterable[PartitionRetention]) -> list[dict[str, Any]]:
    """Return a row for each partition, with what its retention deletes."""
    return [
        {
            "partition": str(partition.tp),
            "log_start": partition.log_start,
            "new_log_start": partition.new_log_start,
            "batches": partition.batches,
            "records": partition.records,
            "bytes": partition.bytes,
        }
        for partition in partitions
    ]


def _summary(partitions: Iterable[PartitionRetention]) -> str:
    rows = list(partitions)
    records, deleted_bytes = sum(row.records for row in rows), sum(row.bytes for row in rows)
    of_partitions = f" of {counted(len(rows), 'partition')}" if len(rows) > 1 else ""
    return f"{counted(records, 'record')}{of_partitions} ({size(deleted_bytes)} of segments)"
