"""``init`` and ``info``: create and describe a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Duration, Integer
from txnstore.core.routing import MAX_CHAINS
from txnstore.phrases import size

if TYPE_CHECKING:
    from txnstore.chain.committer.committer import FoundCommitter


@click.command()
@click.argument("url", required=False)
@click.option(
    "--chains", type=Integer(1, MAX_CHAINS), default=None, show_default="1, or that of the existing store",
    help="The number of chains; it cannot change later. More chains allow more commits per second, but transactions "
    "over several chains cost more requests.",
)  # fmt: skip
@click.option(
    "--transaction-max-timeout", type=Duration(), default=None, show_default="15m, or that of the existing store",
    help="The largest timeout that a producer's transactions may have, such as 1h; it cannot change later.",
)  # fmt: skip
@click.option("--exist-ok", is_flag=True, help="Accept an existing store.")
@shared_options()
@pass_app
def init(app: App, url: str | None, chains: int | None, transaction_max_timeout: float | None, exist_ok: bool) -> None:
    """Create a store at URL (or --store)."""
    import txnstore

    with txnstore.create(
        url if url is not None else app.store_url(),
        chains,
        storage_options=app.storage_options or None,
        transaction_max_timeout=transaction_max_timeout,
        exist_ok=exist_ok,
        principal=app.principal(),
    ) as store:
        count = store.snapshot().view.chains
        suffix = f", with {count} chains" if count > 1 else ""
        app.out.result(f"The store is at {store.url}{suffix}", url=store.url, store_id=store.store_id, chains=count)
        if store.url.startswith("memory://"):
            app.out.note("This store is in memory and ends with this command; give a folder to keep it")


@click.command()
@shared_options()
@pass_app
def info(app: App) -> None:
    """Show what is in the store and what it cost to look."""
    from txnstore.core.groups.offsets import exists
    from txnstore.core.log.visibility import count_records
    from txnstore.storage.base import transport_of

    with app.connect() as connection:
        view = connection.view(refresh=False)
        batches = [batch for partition in view.partitions.values() for batch in partition.batches]
        stored_bytes = sum(batch.size for batch in batches)
        app.out.record(
            {
                "url": connection.url,
                "transport": transport_of(connection.objects),
                "store_id": connection.store_id,
                "chains": view.chains,
                "transaction_max_timeout_ms": connection.transaction_max_timeout_ms,
                "entries": view.sequence,
                "entries_per_chain": [chain.sequence for chain in view.states],
                "journal_watermarks": [chain.journal_watermark for chain in view.states],
                "committers": _committers(app, connection.chains.find_committers()),
                "last_entry": instant(view.timestamp) if view.sequence else None,
                "topics": len(view.topics),
                "partitions": len(view.partitions),
                "records": sum(
                    count_records(log, log.log_start, log.high_watermark) for log in view.partitions.values()
                ),
                "segments": len({batch.segment.key for batch in batches}),
                "bytes": stored_bytes if app.out.as_json else size(stored_bytes),
                "transactional_ids": len(view.transactions),
                "open_transactions": sum(txn.started_at is not None for txn in view.transactions.values()),
                "groups": sum(map(exists, view.groups.values())),
                "metrics": _metrics(app, asdict(connection.metrics())),
            }
        )


def _committers(app: App, committers: Mapping[int, FoundCommitter]) -> dict[str, Any] | str:
    """The process that commits for others, by chain."""
    if app.out.as_json:
        return {str(number): asdict(committer) for number, committer in committers.items()}
    names = {
        number: " at ".join(filter(None, [f"process {committer.process_id or 'unknown'}", committer.address]))
        for number, committer in committers.items()
    }
    return ", ".join(f"{name} for chain {number}" for number, name in names.items())


def _metrics(app: App, metrics: dict[str, Any]) -> dict[str, Any] | str:
    """The counters and durations of the requests: all of them as JSON, else the counters that are not zero."""
    if app.out.as_json:
        return metrics
    return ", ".join(f"{value} {name}" for name, value in metrics.items() if isinstance(value, int) and value)
