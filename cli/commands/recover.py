"""``recover``: rebuilds what opening a store needs, and ends abandoned transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, can_ask, yes_option
from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Integer
from txnstore.core.routing import MAX_CHAINS
from txnstore.phrases import counted

if TYPE_CHECKING:
    from txnstore.compactor import RepairPlan, StoreContents

_COLUMNS = ["object", "damage", "what"]
_STORE_COLUMNS = ["store", "chains", "entries", "checkpoints", "newest", "topics", "records"]


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what is damaged, and what would be rebuilt.")
@click.option(
    "--chains", type=Integer(1, MAX_CHAINS),
    help="The number of chains; needed only if store.json and all checkpoints are lost.",
)  # fmt: skip
@click.option(
    "--identity", metavar="ID",
    help="The id of the store; needed only if store.json is lost or another store's, and there are several here.",
)  # fmt: skip
@click.option("--deep", is_flag=True, help="Also read all entries and records, and name those that are altered.")
@yes_option
@shared_options()
@pass_app
def recover(app: App, dry_run: bool, chains: int | None, identity: str | None, deep: bool, yes: bool) -> int:
    """Rebuild a damaged store.json, hint or checkpoint; complete decided transactions and abort expired ones.

    What is damaged, and what cannot be rebuilt, is shown first, also each missing or truncated object with records in
    use; nothing is repaired without an answer or --yes. If nothing can be repaired, nothing is asked. Contents are read
    only with --deep, which also names altered records. Safe at any time. If there are chains of several stores, it
    shows what each of them holds; --identity chooses one, and deletes nothing of the others. The exit status is 1 if
    something is lost, a transaction could not be completed, or there are chains of another store.
    """
    from txnstore.compactor import plan_repairs, repair

    with app.connect_unloaded() as connection, app.progress("looking for damage"):
        plan = plan_repairs(connection, chains, identity=identity, deep=deep)
    if plan.stores:
        app.out.plan(_store_rows(plan.stores), _STORE_COLUMNS)
    app.out.plan(_damage_rows(plan), _COLUMNS)
    if plan.repairs and not dry_run:
        _confirm(plan, yes=yes)
        with app.connect_unloaded(read_only=False) as connection, app.progress("repairing"):
            repair(connection, plan)
    outcome: dict[str, Any] = {
        "repaired": [{"key": repair.key, "damage": repair.damage, "action": repair.action} for repair in plan.repairs],
        "lost": [asdict(loss) for loss in plan.lost],
        "past": [asdict(loss) for loss in plan.past],
        "stores": [asdict(store) for store in plan.stores],
        "foreign": plan.foreign,
    }
    if dry_run or not plan.opens:
        return _show_repairs(app, plan, outcome, dry_run=dry_run)
    with app.open() as store, app.progress("recovering"):
        report = store.recover()
    text = (
        f"{len(report.finished):,} decided transactions completed, {len(report.aborted):,} expired ones aborted, "
        f"{report.topics:,} copies of topics updated"
    )
    rebuilt = f"{counted(len(plan.repairs), 'object')} rebuilt, " if plan.repairs else ""
    lost_text = f"{counted(len(plan.lost), 'object')} cannot be rebuilt, " if plan.lost else ""
    app.out.result(rebuilt + lost_text + text, **asdict(report), **outcome)
    for name, reason in report.failed:
        app.out.error(f"{name} could not be completed: {reason}")
    app.out.foreign(plan.foreign)
    return 1 if report.failed or plan.lost or plan.foreign else 0


def _show_repairs(app: App, plan: RepairPlan, outcome: dict[str, Any], *, dry_run: bool) -> int:
    """Print the outcome without a recovery, and return the exit status."""
    if dry_run:
        verb = "would be"
    elif len(plan.repairs) == 1:
        verb = "was"
    else:
        verb = "were"
    text = f"{counted(len(plan.repairs), 'object')} {verb} rebuilt, {len(plan.lost):,} cannot be"
    app.out.result(text, **outcome, dry_run=dry_run)
    app.out.foreign(plan.foreign)
    return 1 if plan.lost or plan.foreign or (dry_run and plan.repairs) else 0


def _confirm(plan: RepairPlan, *, yes: bool) -> None:
    """Ask before damaged objects are rebuilt; refuse where there is no terminal to ask."""
    if yes:
        return
    objects = counted(len(plan.repairs), "damaged object")
    if not can_ask():
        msg = f"there is no terminal to ask whether to rebuild {objects}, so nothing was changed"
        raise CommandError(msg, "Look at the plan with --dry-run, and confirm with --yes.")
    ask(f"Rebuild {objects}? They are written over, or deleted.")


def _store_rows(stores: Sequence[StoreContents]) -> list[dict[str, Any]]:
    """The contents of each store below the URL."""
    from txnstore.phrases import some

    return [
        {
            "store": store.store_id,
            "chains": store.chains,
            "entries": store.entries,
            "checkpoints": some(map(str, store.checkpoints)),
            "newest": instant(store.newest_ms),
            "topics": some(store.topics) if store.topics is not None else f"not readable: {store.damage}",
            "records": sum(store.topics.values()) if store.topics is not None else "",
        }
        for store in stores
    ]


def _damage_rows(plan: RepairPlan) -> list[dict[str, str]]:
    rows = [{"object": loss.key, "damage": loss.damage, "what": loss.consequence} for loss in (*plan.lost, *plan.past)]
    return rows + [{"object": repair.key, "damage": repair.damage, "what": repair.action} for repair in plan.repairs]
