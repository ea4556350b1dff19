"""``log``: shows the entries of the chains."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.output import instant

if TYPE_CHECKING:
    from txnstore.chain.codec import Entry
    from txnstore.store import Store


_CHAIN = click.option("--chain", type=click.IntRange(min=0), help="The number of the chain, from 0. Default: all.")


@click.group()
def log() -> None:
    """Show the entries of the chains."""


@log.command()
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="The number of entries."
)
@click.option("--before", type=click.IntRange(min=1), help="Only entries with a lower number.")
@_CHAIN
@shared_options()
@pass_app
def show(app: App, limit: int, before: int | None, chain: int | None) -> None:
    """Show the newest entries of all chains or of one, in one line each."""
    with app.open(read_only=True) as store:
        chosen = [_one(store, chain)] if chain is not None or before is not None else range(len(store.chains))
        states = store.state(refresh=False).states
        wanted = []
        for number in chosen:
            last = states[number].sequence
            end = min(last, before - 1) if before is not None else last
            wanted += [(number, sequence) for sequence in range(max(1, end - limit + 1), end + 1)]
        entries = list(store.pool.map(lambda place: (place[0], _read(store, *place)), wanted))
        several = len(store.chains) > 1
    entries.sort(key=lambda item: (item[1].timestamp, item[0], item[1].sequence))
    columns = [*(["chain"] if several else []), "entry", "timestamp", "events"]
    app.out.rows([_summary(*item) for item in entries[-limit:]], columns, empty="The chain is empty")


@log.command()
@click.argument("number", type=click.IntRange(min=1))
@_CHAIN
@shared_options()
@pass_app
def entry(app: App, number: int, chain: int | None) -> None:
    """Show entry NUMBER of a chain with all of its events."""
    import json

    with app.open(read_only=True) as store:
        chain = _one(store, chain)
        found = _read(store, chain, number)
    if app.out.as_json:
        app.out.record({"chain": chain, **found.model_dump(mode="json")})
        return
    app.out.record({key: value for key, value in _summary(chain, found).items() if key != "events"})
    for event in found.model_dump(mode="json")["events"]:
        name = event.pop("type")
        app.out.line(f"{name}  {json.dumps(event, ensure_ascii=False)}")


def _one(store: Store, chain: int | None) -> int:
    """The chosen chain; optional for a store with one chain."""
    count = len(store.chains)
    if chain is None:
        if count > 1:
            msg = f"the number of an entry is unique only in its chain, and the store has {count} chains"
            raise CommandError(msg, f"Add --chain 0 to --chain {count - 1}.")
        return 0
    if chain >= count:
        msg = f"there is no chain {chain}: the store has {count}, numbered from 0"
        raise CommandError(msg)
    return chain


def _read(store: Store, chain: int, number: int) -> Entry:
    from txnstore.chain import keys
    from txnstore.chain.codec import Entry, decode
    from txnstore.errors import ObjectNotFoundError

    key = keys.entry(chain, number)
    try:
        return decode(Entry, key, store.objects.get(key))
    except ObjectNotFoundError:
        of = f" in chain {chain}" if len(store.chains) > 1 else ""
        msg = f"there is no entry {number}{of}"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.") from None


def _summary(chain: int, found: Entry) -> dict[str, Any]:
    counts = Counter(event.type for event in found.events)
    return {
        "chain": chain,
        "entry": found.sequence,
        "timestamp": instant(found.timestamp),
        "entry_id": found.entry_id,
        "writer_id": found.writer_id,
        "events": ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items()),
    }
