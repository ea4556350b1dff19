"""``txn``: the transactions of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Duration
from txnstore.core.routing import chain_of_producer
from txnstore.core.view import View

if TYPE_CHECKING:
    from txnstore.core.model import (
        Transaction,
    )

_COLUMNS = ["transactional_id", "state", "producer_id", "epoch", "partitions", "groups", "started_at", "updated_at"]


@click.group()
def txn() -> None:
    """Show transactions."""


@txn.command("list")
@click.option("--state", metavar="STATE", help="Only those in this state, such as ONGOING or COMPLETE_COMMIT.")
@click.option("--older-than", type=Duration(), help="Only open ones that began so long ago: 90s, 30m, 24h.")
@shared_options()
@pass_app
def list_transactions(app: App, state: str | None, older_than: float | None) -> None:
    """List the transactional ids with the state of each one's last transaction."""
    with app.open(read_only=True) as store:
        found = store.transactions(state=state, older_than=older_than)
    app.out.rows(map(_described, found), _COLUMNS, empty="No such transaction")


@txn.command()
@click.argument("transactional_id")
@shared_options()
@pass_app
def show(app: App, transactional_id: str) -> None:
    """Show the transaction of TRANSACTIONAL_ID, and what it holds open in each partition."""
    with app.open(read_only=True) as store:
        state = store.state(refresh=False)
    found = state.transactions.get(transactional_id)
    if found is None:
        msg = f"there is no transactional id {transactional_id!r}"
        raise CommandError(msg, "`txnstore txn list` shows all.")
    app.out.record(
        {
            **_described(found),
            "timeout_ms": found.timeout_ms,
            "versions": dict(sorted(found.versions.items())),
            "open": _open(state, found),
        }
    )


def _described(found: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state.name,
        "producer_id": found.producer_id,
        "epoch": found.epoch,
        "chain": chain_of_producer(found.producer_id),
        "partitions": [str(tp) for tp in sorted(found.partitions)],
        "groups": sorted(found.groups),
        "started_at": instant(found.started_at),
        "updated_at": instant(found.updated_at),
    }


def _open(state: View, found: Transaction) -> list[dict[str, Any]]:
    """Where the transaction holds the last stable offset back, and since which offset."""
    return [
        {
            "partition": str(tp),
            "first_offset": partition.open_txns[found.producer_id],
            "last_stable": partition.last_stable_offset,
            "high_watermark": partition.high_watermark,
        }
        for tp, partition in sorted(state.partitions.items())
        if found.producer_id in partition.open_txns
    ]
