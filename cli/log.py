"""``log``: the chain itself, entry by entry."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.output import instant

if TYPE_CHECKING:
    from txnstore.chain.codec import Entry
    from txnstore.store import Store


@click.group()
def log() -> None:
    """Show the chain, readable."""


@log.command()
@click.option("--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many entries.")
@click.option("--before", type=click.IntRange(min=1), help="The newest entries below this number.")
@shared_options()
@pass_app
def show(app: App, limit: int, before: int | None) -> None:
    """Show the newest entries: what happened, in one line each."""
    with app.open(read_only=True) as store:
        last = store.state(refresh=False).sequence
        end = min(last, before - 1) if before is not None else last
        numbers = range(max(1, end - limit + 1), end + 1)
        entries = list(store.pool.map(lambda number: _read(store, number), numbers))
    app.out.rows(map(_summary, entries), ["entry", "timestamp", "events"], empty="The chain is empty")


@log.command()
@click.argument("number", type=click.IntRange(min=1))
@shared_options()
@pass_app
def entry(app: App, number: int) -> None:
    """Show entry NUMBER with all of its events."""
    import json

    with app.open(read_only=True) as store:
        found = _read(store, number)
    if app.out.as_json:
        app.out.record(found.model_dump(mode="json"))
        return
    app.out.record({key: value for key, value in _summary(found).items() if key != "events"})
    for event in found.model_dump(mode="json")["events"]:
        name = event.pop("type")
        app.out.line(f"{name}  {json.dumps(event, ensure_ascii=False)}")


def _read(store: Store, number: int) -> Entry:
    from txnstore.chain import keys
    from txnstore.chain.codec import Entry, decode
    from txnstore.errors import ObjectNotFoundError

    key = keys.entry(store.chain.number, number)
    try:
        return decode(Entry, key, store.objects.get(key))
    except ObjectNotFoundError:
        msg = f"there is no entry {number}"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.") from None


def _summary(found: Entry) -> dict[str, Any]:
    counts = Counter(event.type for event in found.events)
    return {
        "entry": found.sequence,
        "timestamp": instant(found.timestamp),
        "entry_id": found.entry_id,
        "writer_id": found.writer_id,
        "events": ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items()),
    }
