"""``log``: shows the entries of the chains."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.output import instant

if TYPE_CHECKING:
    from txnstore.chain.codec import Entry
    from txnstore.connection import Connection


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
    """Show the newest entries, of all chains or of one: what happened, in one line each."""
    with app.connect() as connection:
        chosen = [_one(connection, chain)] if chain is not None or before is not None else range(len(connection.chains))
        states = connection.view(refresh=False).states
        places = []
        for number in chosen:
            last, first = states[number].sequence, connection.chains[number].boundaries.last().sequence
            end = min(last, before - 1) if before is not None else last
            places += [(number, sequence) for sequence in range(max(first + 1, end - limit + 1), end + 1)]
        entries = list(connection.pool.map(lambda place: (place[0], _read(connection, *place)), places))
        several = len(connection.chains) > 1
    entries.sort(key=lambda item: (item[1].timestamp, item[0], item[1].sequence))
    columns = [*(["chain"] if several else []), "entry", "timestamp", "events"]
    app.out.rows([_summary(*item) for item in entries[-limit:]], columns, empty="There are no such entries")


@log.command()
@click.argument("number", type=click.IntRange(min=1))
@_CHAIN
@shared_options()
@pass_app
def entry(app: App, number: int, chain: int | None) -> None:
    """Show entry NUMBER of a chain with all of its events."""
    import json

    from txnstore.core.state import UnknownEvent

    with app.connect() as connection:
        chain = _one(connection, chain)
        content = _read(connection, chain, number)
    if app.out.as_json:
        app.out.record({"chain": chain, **content.model_dump(mode="json")})
        return
    app.out.record({key: value for key, value in _summary(chain, content).items() if key != "events"})
    for event in content.model_dump(mode="json")["events"]:
        name = event.pop("type")
        if name == UnknownEvent.__name__:
            app.out.line(f"{event['name']}  (of a later release; it changes nothing here)")
        else:
            app.out.line(f"{name}  {json.dumps(event, ensure_ascii=False)}")


def _one(connection: Connection, chain: int | None) -> int:
    """The chain that was chosen; a store with one chain needs no choice."""
    count = len(connection.chains)
    if chain is None:
        if count > 1:
            msg = f"the number of an entry is unique only in its chain, and the store has {count} chains"
            raise CommandError(msg, f"Add --chain 0 to --chain {count - 1}.")
        return 0
    if chain >= count:
        msg = f"there is no chain {chain}: the store has {count}, numbered from 0"
        raise CommandError(msg)
    return chain


def _read(connection: Connection, chain: int, number: int) -> Entry:
    from txnstore.chain.payload import decode_entry
    from txnstore.errors import ObjectNotFoundError

    key = connection.keys.entry(chain, number)
    of = f" in chain {chain}" if len(connection.chains) > 1 else ""
    first = connection.chains[chain].boundaries.last().sequence
    if number <= first:
        msg = f"the history{of} begins after entry {first}; earlier ones are deleted by vacuums"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.")
    try:
        return decode_entry(key, connection.objects.get(key))
    except ObjectNotFoundError:
        msg = f"there is no entry {number}{of}"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.") from None


def _summary(chain: int, content: Entry) -> dict[str, Any]:
    from txnstore.core.events import event_name

    counts = Counter(map(event_name, content.events))
    return {
        "chain": chain,
        "entry": content.sequence,
        "timestamp": instant(content.timestamp),
        "entry_id": content.entry_id,
        "writer_id": content.writer_id,
        "events": ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items()),
    }
