"""``log``: shows the entries of the chains."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, CommandError, NounGroup, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Integer, Principal

if TYPE_CHECKING:
    from txnstore.chain.codec import Entry
    from txnstore.connection import Connection
    from txnstore.core.log.dump import LogLine


#: The number of entries that are read at a time in a search for those of a principal.
_SEARCH_WINDOW = 256
_DUMP_COLUMNS = [
    "base_offset", "last_offset", "kind", "outcome", "records", "producer_id", "epoch", "base_sequence",
    "last_sequence", "transactional", "max_timestamp", "entry", "segment",
]  # fmt: skip
_CHAIN = click.option("--chain", type=Integer(min=0), help="The number of the chain, from 0. Default: all.")


@click.group(cls=NounGroup)
def log() -> None:
    """Show the entries of the chains."""


@log.command()
@click.option("--max", "limit", type=Integer(min=1), default=20, show_default=True, help="The number of entries.")
@click.option("--before", type=Integer(min=1), help="Only entries with a lower number.")
@click.option(
    "--by",
    type=Principal(),
    metavar="User:NAME",
    help="Only entries with an event that this principal asked for, in a store that checks rights.",
)
@_CHAIN
@shared_options()
@pass_app
def show(app: App, limit: int, before: int | None, by: str | None, chain: int | None) -> None:
    """Show the newest entries, of all chains or of one: what happened, in one line each.

    With --by, older entries are read until there are enough: one request per entry.
    """
    with app.connect() as connection:
        chain_numbers = list(range(len(connection.chains)))
        if chain is not None or before is not None:
            chain_numbers = [_chosen_chain(connection, chain)]
        states = connection.view(refresh=False).states
        last_entries = {number: states[number].sequence for number in chain_numbers}
        if before is not None:
            last_entries = {number: min(last, before - 1) for number, last in last_entries.items()}
        with app.progress("reading entries"):
            entries = _newest_entries(connection, last_entries, limit, by)
        has_several = len(connection.chains) > 1
    entries.sort(key=lambda numbered: (numbered[1].timestamp, numbered[0], numbered[1].sequence))
    rows = [_summary(number, entry) for number, entry in entries[-limit:]]
    principal_column = ["principals"] if any(row["principals"] is not None for row in rows) else []
    columns = [*(["chain"] if has_several else []), "entry", "timestamp", "events", *principal_column]
    app.out.rows(rows, columns, empty="There are no such entries")


def _newest_entries(
    connection: Connection, last_sequences: dict[int, int], limit: int, principal: str | None
) -> list[tuple[int, Entry]]:
    """Read the newest entries of each chain, up to the last one given: at least ``limit``, or all.

    With ``principal``, only entries of this principal count, and older ones are read until there are enough.
    """
    window = limit if principal is None else _SEARCH_WINDOW
    unread = {
        chain: range(connection.chains[chain].boundaries.last().sequence + 1, last + 1)
        for chain, last in last_sequences.items()
    }
    found: dict[int, list[Entry]] = {chain: [] for chain in unread}
    while incomplete_chains := [chain for chain in unread if unread[chain] and len(found[chain]) < limit]:
        places = [(chain, sequence) for chain in incomplete_chains for sequence in reversed(unread[chain][-window:])]
        entries = connection.pool.map(lambda place: _read_entry(connection, *place), places)
        for (chain, _), entry in zip(places, entries, strict=True):
            if principal is None or principal in dict(entry.principals or ()):
                found[chain].append(entry)
        for chain in incomplete_chains:
            unread[chain] = unread[chain][:-window]
    return [(chain, entry) for chain, entries_of_chain in found.items() for entry in entries_of_chain]


@log.command()
@click.argument("topic")
@click.argument("partition", type=Integer(min=0))
@click.option("--from", "start", type=Integer(min=0), metavar="OFFSET", help="The first offset.")
@click.option("--to", "stop", type=Integer(min=0), metavar="OFFSET", help="The offset to stop before.")
@click.option("--max", "limit", type=Integer(min=1), default=1_000, show_default=True, help="The number of lines.")
@click.option(
    "--entries",
    type=Integer(min=0),
    default=10_000,
    show_default=True,
    help="The number of the newest entries that are read for markers.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed: without aborted batches, up to the last stable offset.",
)
@shared_options()
@pass_app
def dump(
    app: App,
    topic: str,
    partition: int,
    start: int | None,
    stop: int | None,
    limit: int,
    entries: int,
    isolation: str,
) -> None:
    """Show the log of one partition with its markers, as Kafka's DumpLogSegments does.

    A line for each batch and each marker, by offset. Batches that were merged have no producer any more. Markers are
    read from the entries of the chain, one request per entry; those of deleted entries are not known.
    """
    with app.operations() as store, app.progress("reading entries"):
        log_dump = store.dump_log(topic, partition, start, stop, entries)
    lines = [
        line for line in log_dump.lines if isolation == "read_uncommitted" or _is_stable(line, log_dump.last_stable)
    ]
    app.out.rows([_line_values(line) for line in lines[:limit]], _DUMP_COLUMNS, empty="There are no such offsets")
    if len(lines) > limit:
        app.out.note(f"{len(lines) - limit:,} more lines: --from {lines[limit].base_offset} shows the next ones")
    if log_dump.limited:
        app.out.note(f"Only the newest {entries:,} entries were read; --entries reads more")
    elif log_dump.deleted:
        of_chain = f" of chain {log_dump.chain}" if log_dump.chain else ""
        app.out.note(f"The history{of_chain} begins after entry {log_dump.deleted:,}: markers before it are not known")


def _is_stable(line: LogLine, last_stable: int) -> bool:
    return line.base_offset < last_stable and line.outcome not in ("aborted", "open")


def _line_values(line: LogLine) -> dict[str, Any]:
    """The values of a line, with times as text."""
    times = ("min_timestamp", "max_timestamp", "appended_at")
    return {name: instant(value) if name in times else value for name, value in asdict(line).items()}


@log.command()
@click.argument("number", type=Integer(min=1))
@_CHAIN
@shared_options()
@pass_app
def entry(app: App, number: int, chain: int | None) -> None:
    """Show entry NUMBER of a chain with all of its events."""
    import json

    from txnstore.chain.codec import json_values
    from txnstore.core.history import principals_of_events
    from txnstore.core.state import UnknownEvent

    with app.connect() as connection:
        chain = _chosen_chain(connection, chain)
        content = _read_entry(connection, chain, number)
    if app.out.as_json:
        app.out.record({"chain": chain, **json_values(content)})
        return
    summary = _summary(chain, content)
    principals = summary.pop("principals")
    del summary["events"]
    app.out.record(summary if principals is None else {**summary, "principals": principals})
    shown_principal = principals[0] if principals and len(principals) == 1 else None
    events = json_values(content)["events"]
    for event, principal in zip(events, principals_of_events(content.principals), strict=False):
        if principal != shown_principal:
            app.out.line(f"By {principal}:")
            shown_principal = principal
        name = event.pop("type")
        if name == UnknownEvent.__name__:
            app.out.line(f"{event['name']}  (of a later release; it changes nothing here)")
        else:
            app.out.line(f"{name}  {json.dumps(event, ensure_ascii=False)}")


def _chosen_chain(connection: Connection, chain: int | None) -> int:
    """The chosen chain; a store with one chain needs no choice."""
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


def _read_entry(connection: Connection, chain: int, sequence: int) -> Entry:
    """Read an entry, or say that it was deleted or does not exist."""
    from txnstore.chain.payload import decode_entry
    from txnstore.errors import ObjectNotFoundError

    key = connection.keys.entry(chain, sequence)
    in_chain = f" in chain {chain}" if len(connection.chains) > 1 else ""
    deleted_up_to = connection.chains[chain].boundaries.last().sequence
    if sequence <= deleted_up_to:
        msg = f"the history{in_chain} begins after entry {deleted_up_to}; earlier ones are deleted by vacuums"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.")
    try:
        return decode_entry(key, connection.objects.get(key))
    except ObjectNotFoundError:
        msg = f"there is no entry {sequence}{in_chain}"
        raise CommandError(msg, "`txnstore log show` lists the newest ones.") from None


def _summary(chain: int, content: Entry) -> dict[str, Any]:
    """Return the line of an entry: its events by name, each with its count."""
    from txnstore.core.events import event_name

    counts = Counter(map(event_name, content.events))
    return {
        "chain": chain,
        "entry": content.sequence,
        "timestamp": instant(content.timestamp),
        "entry_id": content.entry_id,
        "writer_id": content.writer_id,
        "principals": None if content.principals is None else list(dict(content.principals)),
        "events": ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items()),
    }
