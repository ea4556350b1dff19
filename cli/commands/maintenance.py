"""``compact``, ``vacuum``, ``expire``, ``verify``, ``checkpoint``: maintenance of a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.engine import engine_options, start_engine
from txnstore.cli.values import Duration, Size
from txnstore.phrases import counted, size

if TYPE_CHECKING:
    from txnstore.compactor import RuleReport, VacuumReport, VerifyReport
    from txnstore.coordinator.expiration import ExpiryReport
    from txnstore.errors import TxnStoreError
    from txnstore.store import EngineName

_PARTITION_COLUMNS = [
    "partition", "segments_before", "segments_after", "bytes_before", "bytes_after", "records", "aborted", "conflicts",
    "superseded", "tombstones",
]  # fmt: skip

_NO_EXPIRE = click.option("--no-expire", is_flag=True, help="Do not also expire unused state; see `txnstore expire`.")


@click.command()
@click.argument("topic", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--force", is_flag=True, help="Clean by key also where min.cleanable.dirty.ratio is not reached.")
@click.option("--past-hw", is_flag=True, help="Clean by key also above the last stable offset, around what is open.")
@click.option("--memory-limit", type=Size(), help="The memory of a clean or a merge, such as 512MB.  [default: 1GiB]")
@engine_options
@_NO_EXPIRE
@shared_options()
@pass_app
def compact(
    app: App,
    topic: str | None,
    dry_run: bool,
    force: bool,
    past_hw: bool,
    memory_limit: int | None,
    no_expire: bool,
    engine: EngineName,
    spark_conf: tuple[str, ...],
) -> None:
    """Clean TOPIC, or all topics, by key, merge small committed segments, and drop aborted data.

    A topic with cleanup.policy=compact keeps the newest record of each key. Records that retention.ms and
    retention.bytes of a topic have passed are deleted first (`txnstore retain`). Only data below the last stable offset
    is compacted. Readers and writers are not blocked. Several processes share the work, on one machine or many: each
    leaves the partitions alone that another one works on. With --engine spark, each clean and each merge is a task of
    Spark. `txnstore maintain` does it again and again.
    """
    start_engine(engine, spark_conf, is_used=not dry_run)
    errors: list[TxnStoreError] = []
    with app.open(read_only=dry_run) as store, app.out.progress("compacting") as advance:
        report = store.compact(
            topic,
            dry_run=dry_run,
            progress=lambda progress: advance(progress.done, total=progress.total),
            expire=not no_expire,
            force=force,
            memory_limit=memory_limit,
            past_hw=past_hw,
            engine=engine,
            on_error=errors.append,
        )
    rows = [{**asdict(partition), "partition": str(partition.tp)} for partition in report.partitions]
    for row in rows:
        del row["tp"]
    app.out.rows(rows, _PARTITION_COLUMNS, empty="" if errors or report.held else "Nothing to compact")
    if report.held and app.out.as_json:
        app.out.record({"held": report.held})
    elif report.held:
        app.out.note(f"{counted(report.held, 'partition')} left to other compactors, which work on them")
    if report.merges or report.aborted:
        app.out.note(
            f"{'Would merge' if dry_run else 'Merged'} {counted(report.segments_before, 'segment')} into "
            f"{report.segments_after:,}; dropped {counted(report.aborted, 'aborted batch', 'aborted batches')}"
        )
    if report.deleted_records:
        deleted_text = counted(report.deleted_records, "record")
        app.out.note(
            f"Retention {'would delete' if dry_run else 'deleted'} {deleted_text} ({size(report.deleted_bytes)})"
        )
    if report.cleans:
        cleans_text = counted(report.cleans, "clean")
        app.out.note(
            f"Would do {cleans_text} by key"
            if dry_run
            else f"Did {cleans_text} by key: {counted(report.superseded, 'superseded record')} and "
            f"{counted(report.tombstones, 'tombstone')} removed"
        )
    for error in errors:
        raise error


@click.command()
@click.option(
    "--older-than", type=Duration(), default="24h", show_default=True, help="The grace period: 90s, 30m, 24h, 7d."
)
@click.option(
    "--history",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Delete older entries, a day after they were announced; earlier snapshots are read from them.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--force", is_flag=True, help="Also if boundaries, checkpoints or entries are damaged or missing.")
@click.option(
    "--foreign", metavar="ID", multiple=True,
    help="Delete the chains of another store below this URL, and nothing else; may be repeated. Look at them first: "
    "`txnstore recover --dry-run`.",
)  # fmt: skip
@click.option("--no-tables", is_flag=True, help="Do not publish the tables first, which ends their oldest snapshots.")
@_NO_EXPIRE
@yes_option
@shared_options()
@pass_app
def vacuum(
    app: App,
    older_than: float,
    history: float,
    dry_run: bool,
    force: bool,
    foreign: tuple[str, ...],
    no_tables: bool,
    no_expire: bool,
    yes: bool,
) -> None:
    """Delete unreferenced objects after a grace period. Shows how many, and asks.

    Nothing is deleted from a store that is not sound, and nothing while there are chains of another store.
    """
    if foreign:
        _vacuum_foreign(app, foreign, dry_run=dry_run, yes=yes)
        return
    needs_answer = must_ask("delete unreferenced objects", yes=yes, dry_run=dry_run)
    if older_than < _SHORT_GRACE:
        app.out.warning(_short_grace_warning(older_than))
    with app.open(read_only=dry_run) as store:
        if needs_answer:
            with app.progress("listing objects"):
                plan = store.vacuum(older_than=older_than, history=history, dry_run=True, force=force)
            if plan.objects or plan.announced:
                app.out.plan(_kind_rows(plan), ["objects", "count", "bytes", "example"])
                ask(_vacuum_question(plan))
        with app.progress("vacuuming"):
            report = store.vacuum(
                older_than=older_than,
                history=history,
                dry_run=dry_run,
                expire=not no_expire,
                force=force,
                tables=not no_tables,
            )
    _show_vacuum(app, report)


def _vacuum_foreign(app: App, foreign: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete the chains of other stores; this store need not be readable."""
    from txnstore.compactor import vacuum as delete_unreferenced

    needs_answer = must_ask("delete the chains of another store", yes=yes, dry_run=dry_run)
    with app.connect_unloaded(read_only=dry_run) as connection:
        if needs_answer:
            with app.progress("listing objects"):
                plan = delete_unreferenced(connection, dry_run=True, foreign=foreign)
            app.out.plan(_kind_rows(plan), ["objects", "count", "bytes", "example"])
            ask(
                f"Delete {counted(plan.objects, 'object')} of {', '.join(foreign)}? Its records cannot be read any "
                "more, and the next vacuum deletes them. This cannot be undone."
            )
        with app.progress("deleting"):
            report = delete_unreferenced(connection, dry_run=dry_run, foreign=foreign)
    _show_vacuum(app, report)


def _show_vacuum(app: App, report: VacuumReport) -> None:
    """Print what a vacuum deleted, or would delete."""
    dry_run = report.dry_run
    verb = "Would delete" if dry_run else "Deleted"
    app.out.result(
        f"{verb} {counted(report.objects, 'object')} ({size(report.bytes)}); {report.kept_young:,} too young, "
        f"{report.referenced:,} in use",
        **asdict(report),
    )
    if report.tables:
        app.out.warning(report.tables)
    if report.announced:
        app.out.note(
            f"{'Would announce' if dry_run else 'Announced'} {counted(report.announced, 'entry', 'entries')} of the "
            "history: a vacuum after 24 hours deletes them"
        )
    if dry_run and not app.out.as_json:
        for key in report.deleted:
            app.out.line(f"  {key}")
        if report.objects > len(report.deleted):
            app.out.line(f"  and {report.objects - len(report.deleted):,} more")


def _kind_rows(report: VacuumReport) -> list[dict[str, Any]]:
    """The objects that a vacuum deletes, by topic or kind, with one key of each."""
    return [
        {"objects": kind.kind, "count": kind.objects, "bytes": kind.bytes, "example": kind.example}
        for kind in report.kinds
    ]


def _vacuum_question(report: VacuumReport) -> str:
    """The question before a vacuum deletes or announces."""
    if not report.objects:
        return f"Announce {counted(report.announced, 'entry', 'entries')} of the history, to be deleted in 24 hours?"
    return f"Delete {counted(report.objects, 'object')} ({size(report.bytes)})? This cannot be undone."


def _short_grace_warning(older_than: float) -> str:
    """The warning about a short grace period, also with --yes."""
    return (
        f"the grace period is {older_than:g} s, less than an hour: readers of pinned or earlier snapshots fail, and "
        "open transactions can lose uploads that are older"
    )


#: The grace period, in seconds, below which a vacuum warns.
_SHORT_GRACE = 3600.0


@click.command()
@click.option(
    "--producers", type=Duration(), default="1d", show_default=True, help="State of idle producers in partitions."
)
@click.option("--transactional-ids", type=Duration(), default="7d", show_default=True, help="Idle transactional ids.")
@click.option("--offsets", type=Duration(), default="7d", show_default=True, help="Offsets of groups without members.")
@click.option("--dry-run", is_flag=True, help="Only show what would expire.")
@yes_option
@shared_options()
@pass_app
def expire(app: App, producers: float, transactional_ids: float, offsets: float, dry_run: bool, yes: bool) -> None:
    """Expire state that was unused for the given durations. `compact` and `vacuum` do it with the defaults, Kafka's.

    State that an open transaction needs, and transactional ids with recorded job versions, never expire. Shows what
    expires, and asks.
    """
    needs_answer = must_ask("expire state", yes=yes, dry_run=dry_run)
    with app.open(read_only=dry_run) as store:
        if needs_answer:
            plan = store.expire(producers, transactional_ids, offsets, dry_run=True)
            if plan == type(plan)():
                app.out.result("Nothing has expired", **asdict(plan))
                return
            _list_expiring(app, plan)
            ask(f"Expire {_summary(plan)}? This cannot be undone.")
        with app.progress("expiring"):
            report = store.expire(producers, transactional_ids, offsets, dry_run=dry_run)
    app.out.result(f"{'Would expire' if dry_run else 'Expired'} {_summary(report)}", **asdict(report), dry_run=dry_run)
    if dry_run and not app.out.as_json:
        _list_expiring(app, report)


def _summary(report: ExpiryReport) -> str:
    return (
        f"{counted(report.producers, 'producer state')}, "
        f"{counted(len(report.transactional_ids), 'transactional id')}, "
        f"{counted(report.offsets, 'offset')}, {counted(len(report.groups), 'group')}"
    )


def _list_expiring(app: App, report: ExpiryReport) -> None:
    rows = [{"expires": "transactional id", "name": name} for name in report.transactional_ids]
    rows += [{"expires": "group", "name": name} for name in report.groups]
    app.out.plan(rows, ["expires", "name"])


@click.command()
@click.option("--deep", is_flag=True, help="Read all data and compare its checksums.")
@engine_options
@shared_options()
@pass_app
def verify(app: App, deep: bool, engine: EngineName, spark_conf: tuple[str, ...]) -> int:
    """Check every invariant of the store; the exit status is 1 if one does not hold.

    It is 1, too, while there are chains of another store.
    """
    from txnstore.store import Store

    if engine == "spark" and not deep:
        raise click.UsageError("--engine spark needs --deep: only data is read by Spark")
    start_engine(engine, spark_conf, is_used=deep)
    with app.connect_unloaded() as connection, app.progress("verifying"):
        report = Store(connection).verify(deep=deep, engine=engine)
    app.out.result(
        "No violations found" if report.ok else counted(len(report.violations), "violation"),
        **{**asdict(report), "ok": report.ok},
    )
    if not app.out.as_json:
        app.out.rows(_invariant_rows(report), ["invariant", "rules", "checked", "violations"])
        app.out.rows([asdict(violation) for violation in report.violations], ["name", "subject", "message"], empty="")
    app.out.foreign(prefix.split("/")[1] for prefix in report.foreign)
    return 0 if report.ok and not report.foreign else 1


def _invariant_rows(report: VerifyReport) -> list[dict[str, Any]]:
    """The invariants, with the numbers of objects that were checked."""
    by_name: dict[str, list[RuleReport]] = {}
    for rule in report.rules:
        by_name.setdefault(rule.invariant, []).append(rule)
    return [
        {
            "invariant": name,
            "rules": len(rules),
            "checked": ", ".join(
                counted(count, _SINGULARS.get(kind, kind[:-1]), kind) for kind, count in _checked_counts(rules).items()
            ),
            "violations": sum(rule.failed for rule in rules),
        }
        for name, rules in by_name.items()
    ]


#: The singulars of kinds of objects that are not the plural without its last letter.
_SINGULARS = {"entries": "entry"}


def _checked_counts(rules: list[RuleReport]) -> dict[str, int]:
    return {rule.objects: rule.checked for rule in rules if rule.checked}


@click.command()
@shared_options()
@pass_app
def checkpoint(app: App) -> None:
    """Write a checkpoint now, so that the next open is fast."""
    with app.open() as store, app.progress("saving"):
        sequence = store.checkpoint()
    app.out.result(f"The checkpoint covers {sequence:,} entries", sequence=sequence)
