"""``txn``: shows transactions, aborts hanging ones, fences producers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.confirm import ask, must_ask, yes_option
from txnstore.cli.context import App, NounGroup, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Duration, Integer
from txnstore.core.routing import chain_of_producer
from txnstore.validation import check_milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txnstore.core.history import TransactionStep
    from txnstore.core.model import TopicPartition
    from txnstore.core.transactions.model import Transaction
    from txnstore.store import Store

_COLUMNS = [
    "transactional_id", "state", "prepared", "producer_id", "epoch", "partitions", "groups", "started_at", "expires_at",
    "updated_at",
]  # fmt: skip
#: The warning before an operator ends a transaction whose two-phase commit another system decides (KIP-939).
_PREPARED_WARNING = "prepared: its external coordinator decides it, and what that has decided to commit would be lost"
_OPEN_COLUMNS = ["partition", "first_offset", "last_stable", "high_watermark"]
_STEP_COLUMNS = ["timestamp", "step", "producer_id", "epoch", "chain", "entry", "partitions", "groups"]
_PRODUCER_COLUMNS = ["producer_id", "epoch", "last_sequence", "last_timestamp", "first_offset", "transactional_id"]
_HANGING_COLUMNS = [
    "partition", "group", "producer_id", "epoch", "first_offset", "last_timestamp", "transactional_id", "reason",
]  # fmt: skip


@click.group(cls=NounGroup)
def txn() -> None:
    """Show transactions, abort hanging ones, fence producers."""


@txn.command("list")
@click.option("--state", metavar="STATE", help="Only transactions in this state, such as ONGOING or COMPLETE_COMMIT.")
@click.option("--older-than", type=Duration(), help="Only open transactions older than this: 90s, 30m, 24h.")
@click.option("--producer-id", type=int, help="Only transactions of this producer id.")
@click.option("--pattern", metavar="REGEX", help="Only ids that this regular expression matches completely.")
@shared_options()
@pass_app
def list_transactions(
    app: App, state: str | None, older_than: float | None, producer_id: int | None, pattern: str | None
) -> None:
    """List the transactional ids with the state of their last transaction."""
    is_filtered = any(value is not None for value in (state, older_than, producer_id, pattern))
    with app.operations() as store:
        transactions = store.transactions(state=state, older_than=older_than, producer_id=producer_id, pattern=pattern)
    app.out.rows(
        map(_describe, transactions),
        _COLUMNS,
        empty="No matching transactions" if is_filtered else "There are no transactional ids",
    )


@txn.command()
@click.argument("transactional_id")
@shared_options()
@pass_app
def show(app: App, transactional_id: str) -> None:
    """Show the transaction of TRANSACTIONAL_ID and its open data in each partition."""
    with app.operations() as store:
        txn = store.transaction(transactional_id)
    open_rows = [_without_tp(asdict(part), part.tp) for part in txn.open]
    description = {
        **asdict(txn),
        "state": txn.state.name,
        "partitions": _partition_names(txn.partitions),
        "started_at": instant(txn.started_at),
        "updated_at": instant(txn.updated_at),
    }
    del description["open"]
    if app.out.as_json:
        app.out.record({**description, "open": open_rows})
        return
    app.out.record({**description, "versions": txn.versions or None})
    app.out.rows(open_rows, _OPEN_COLUMNS)


@txn.command()
@click.argument("transactional_id")
@click.option("--limit", type=Integer(min=1), default=10_000, show_default=True, help="The number of entries to read.")
@click.option("--since", type=Duration(), help="Only steps of this last period: 90s, 30m, 24h.")
@shared_options()
@pass_app
def history(app: App, transactional_id: str, limit: int, since: float | None) -> None:
    """Show the steps of the transactions of TRANSACTIONAL_ID in order, with their entries.

    Reads the newest entries of all chains, one request per entry.
    """
    from txnstore.runtime import wall_clock_ms

    with app.operations() as store:
        start = None if since is None else wall_clock_ms() - check_milliseconds("--since", since)
        with app.progress("reading entries"):
            steps = store.transaction_history(transactional_id, limit, start)
    principal_column = ["principal"] if any(step.principal is not None for step in steps.steps) else []
    app.out.rows(map(_step_row, steps.steps), [*_STEP_COLUMNS, *principal_column], empty="No steps in these entries")
    if steps.limited:
        app.out.note(f"Only the newest {limit:,} entries were read; --limit reads more")
    elif since is None and any(steps.deleted):
        deleted_text = ", ".join(
            f"entry {sequence:,} of chain {chain}" for chain, sequence in enumerate(steps.deleted) if sequence
        )
        app.out.note(f"The history begins after {deleted_text}: a vacuum deletes older entries")
    elif since is None and not steps.complete:
        app.out.note("Some entries are missing: `txnstore verify` names them")


@txn.command()
@click.argument("transactional_id", required=False)
@click.option("--partition", metavar="TOPIC-N", help="The partition with open data of no known transactional id.")
@click.option("--producer-id", type=int, help="The producer id of that data.")
@yes_option
@shared_options()
@pass_app
def abort(app: App, transactional_id: str | None, partition: str | None, producer_id: int | None, yes: bool) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID, and fence its producer.

    For data that `find-hanging` shows without a transactional id, give --partition and --producer-id instead. A
    transaction that is already decided is completed as decided. Shows the transaction, and asks.
    """
    by_partition = partition is not None and producer_id is not None
    if (transactional_id is None) is not by_partition or (partition is None) is not (producer_id is None):
        msg = "give a TRANSACTIONAL_ID, or --partition and --producer-id"
        raise click.UsageError(msg)
    topic, number = _parse_partition(partition) if partition is not None else ("", 0)
    subject = repr(transactional_id) if transactional_id is not None else f"producer id {producer_id} in {partition}"
    with app.open() as store:
        if transactional_id is not None:
            store.transaction(transactional_id)
        else:
            store.offsets(topic, number)
        if must_ask(f"abort the transaction of {subject}", yes=yes):
            _ask_to_abort(app, store, transactional_id, topic, number, producer_id)
        if transactional_id is not None:
            has_ended = store.abort_transaction(transactional_id)
        else:
            assert producer_id is not None
            has_ended = store.abort_hanging(topic, number, producer_id)
    app.out.result(
        f"Ended the transaction of {subject}" if has_ended else f"{subject} has no open transaction", ended=has_ended
    )


def _ask_to_abort(
    app: App, store: Store, transactional_id: str | None, topic: str, number: int, producer_id: int | None
) -> None:
    """Show the open data, and ask; without open data there is no question."""
    if transactional_id is not None:
        txn = store.transaction(transactional_id)
        if txn.started_at is None:
            return
        rows = [
            {**_without_tp(asdict(part), part.tp), "state": txn.state.name, "started_at": instant(txn.started_at)}
            for part in txn.open
        ]
        app.out.plan(rows, ["state", "started_at", *_OPEN_COLUMNS])
        if txn.prepared:
            app.out.note(f"The transaction of {transactional_id!r} is {_PREPARED_WARNING}")
        ask(f"Abort the transaction of {transactional_id!r}, with these records, and fence its producer?")
        return
    producers = [producer for producer in store.producers(topic, number) if producer.producer_id == producer_id]
    rows = [{**asdict(producer), "last_timestamp": instant(producer.last_timestamp)} for producer in producers]
    if any(producer.first_offset is not None for producer in producers):
        app.out.plan(rows, _PRODUCER_COLUMNS)
        for name in sorted(
            {producer.transactional_id for producer in producers if producer.transactional_id is not None}
        ):
            if store.transaction(name).prepared:
                app.out.note(f"The transaction of {name!r} is {_PREPARED_WARNING}")
        ask(f"Abort the open records of producer id {producer_id} in {topic}-{number}?")


@txn.command("find-hanging")
@click.option("--topic", help="Only partitions of this topic, and groups with pending offsets in it.")
@click.option(
    "--late", type=Duration(), default="5m", show_default=True, help="The time past its timeout before one hangs."
)
@shared_options()
@pass_app
def find_hanging(app: App, topic: str | None, late: float) -> None:
    """Show open data in partitions, and pending offsets of groups, of hanging transactions.

    A transaction is hanging if its coordinator does not know it, if it is long past its timeout, or if it is past its
    timeout and readers wait for it. `recover` aborts those past their timeout; `txn abort` ends the others.
    """
    with app.operations() as store:
        hanging = store.find_hanging(topic, late)
    rows = [{**_without_tp(asdict(txn), txn.tp), "last_timestamp": instant(txn.last_timestamp)} for txn in hanging]
    app.out.rows(rows, _HANGING_COLUMNS, empty="No hanging transactions")


@txn.command()
@click.argument("topic")
@click.argument("partition", type=Integer(min=0))
@shared_options()
@pass_app
def producers(app: App, topic: str, partition: int) -> None:
    """Show the active producers of PARTITION of TOPIC, with the first offset of their open transaction."""
    with app.operations() as store:
        active = store.producers(topic, partition)
    rows = [{**asdict(producer), "last_timestamp": instant(producer.last_timestamp)} for producer in active]
    app.out.rows(rows, _PRODUCER_COLUMNS, empty="No producers in this partition")


@txn.command()
@click.argument("transactional_ids", nargs=-1, required=True)
@yes_option
@shared_options()
@pass_app
def fence(app: App, transactional_ids: tuple[str, ...], yes: bool) -> None:
    """Fence the producers with these transactional ids, and abort their open transactions.

    The next call of a fenced producer fails; new producers can use the id. An id that does not exist is created, as in
    Kafka. Shows the state of each, and asks.
    """
    needs_answer = must_ask("fence producers", yes=yes)
    with app.open() as store:
        if needs_answer:
            states = {fenced.transactional_id: _describe(fenced) for fenced in store.transactions()}
            rows = [
                states.get(name, {"transactional_id": name, "state": "does not exist"}) for name in transactional_ids
            ]
            app.out.plan(rows, ["transactional_id", "state", "producer_id", "epoch", "partitions", "started_at"])
            for row in rows:
                if row.get("prepared"):
                    app.out.note(f"The transaction of {row['transactional_id']!r} is {_PREPARED_WARNING}")
            ask("Fence their producers, and abort their open transactions?")
        fenced = store.fence_producers(transactional_ids)
    app.out.rows([asdict(identity) for identity in fenced.values()], ["transactional_id", "producer_id", "epoch"])


def _describe(txn: Transaction) -> dict[str, Any]:
    """Return a transaction as JSON shows it."""
    return {
        "transactional_id": txn.transactional_id,
        "state": txn.state.name,
        "prepared": txn.is_prepared,
        "producer_id": txn.producer_id,
        "epoch": txn.epoch,
        "chain": chain_of_producer(txn.producer_id),
        "partitions": _partition_names(sorted(txn.partitions)),
        "groups": sorted(txn.groups),
        "started_at": instant(txn.started_at),
        "expires_at": instant(txn.expires_at),
        "updated_at": instant(txn.updated_at),
    }


def _step_row(step: TransactionStep) -> dict[str, Any]:
    return {**asdict(step), "timestamp": instant(step.timestamp), "partitions": _partition_names(step.partitions)}


def _partition_names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [str(tp) for tp in partitions]


def _without_tp(values: dict[str, Any], tp: TopicPartition | None) -> dict[str, Any]:
    del values["tp"]
    return {"partition": str(tp) if tp is not None else None, **values}


def _parse_partition(text: str) -> tuple[str, int]:
    topic, separator, number = text.rpartition("-")
    if not separator or not number.isdigit():
        msg = f"--partition takes TOPIC-N, such as orders-0, not {text!r}"
        raise click.UsageError(msg)
    return topic, int(number)
