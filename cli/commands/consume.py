"""``consume``: prints the records of a topic to standard output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from txnstore.cli.context import App, pass_app, shared_options
from txnstore.cli.output import instant
from txnstore.cli.values import Integer, parse_position
from txnstore.phrases import counted
from txnstore.values.json_text import row_as_json, to_json

if TYPE_CHECKING:
    from txnstore.consumer import Consumer
    from txnstore.core.model import TopicPartition
    from txnstore.read.plan import IsolationLevel
    from txnstore.read.records import Record

#: The most records of a poll, which are printed before the next one.
_MAX_POLL_RECORDS = 5_000


@click.command()
@click.argument("topic")
@click.option("--group", metavar="ID", help="Continue at this group's committed offsets, and commit after printing.")
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|OFFSET|TIME",
    default="earliest",
    show_default=True,
    help="Where to begin: an offset, or the first record at or after a time, such as 2026-01-31T12:00:00Z, or -1h for "
    "an hour ago. With --group only earliest or latest, for partitions without a committed offset.",
)
@click.option("--partition", "partitions", type=Integer(min=0), multiple=True, help="Only this one; repeatable.")
@click.option("--max", "limit", type=Integer(min=1), help="The maximum number of records.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option("--follow", is_flag=True, help="Wait for new records at the end, until interrupted.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--keys", is_flag=True, help="Text: print the key, a tab, then the value.")
@click.option("--headers", is_flag=True, help="Text: print the headers.")
@click.option("--offsets", is_flag=True, help="Text: print topic-partition:offset.")
@click.option("--timestamps", is_flag=True, help="Text: print the time.")
@shared_options()
@pass_app
def consume(
    app: App,
    /,
    topic: str,
    group: str | None,
    start: str,
    partitions: tuple[int, ...],
    limit: int | None,
    isolation: IsolationLevel,
    follow: bool,
    form: str,
    **columns: bool,
) -> None:
    """Print the records of TOPIC up to its current end. The members of a group share the partitions.

    Text prints the value unchanged (a row as JSON); null is printed as null. JSON prints one object per record.
    """
    from txnstore.consumer.subscription import Reset

    first_position = _parse_start(start, group)
    as_json = form == "json" or app.out.as_json
    count = 0
    # Plain reading needs no write permission; a group joins and commits.
    with app.open() if group is not None else app.reader() as store:
        reset = Reset.EARLIEST if start == Reset.EARLIEST else Reset.LATEST
        consumer = store.consumer(group=group, isolation=isolation, auto_offset_reset=reset)
        with consumer:
            partition_count = store.topic(topic).partitions
            _assign(app, consumer, topic, partitions, partition_count, first_position)
            for records in _polls(app, consumer, limit, follow=follow):
                for record in records:
                    app.out.write(
                        (to_json(json_members(record)).encode() if as_json else _text_line(record, columns)) + b"\n"
                    )
                app.out.flush()
                count += len(records)
                if group is not None:
                    consumer.commit()
            other_count = 0 if partitions else partition_count - len(consumer.assignment())
    if other_count > 0:
        app.out.note(f"{other_count} of {partition_count} partitions are assigned to other members of group {group!r}")
    app.out.note(counted(count, "record"))


def _parse_start(text: str, group: str | None) -> str | int | datetime:
    """Parse --from; an offset or a time is refused with --group."""
    from txnstore.runtime import wall_clock_ms

    start = parse_position(text, "--from", wall_clock_ms())
    if group is not None and not isinstance(start, str):
        msg = (
            "--from with an offset or a time cannot be combined with --group: a group begins at its committed offsets; "
            "`txnstore group reset-offsets` sets them"
        )
        raise click.UsageError(msg)
    return start


def _assign(
    app: App, consumer: Consumer, topic: str, partitions: tuple[int, ...], count: int, start: str | int | datetime
) -> None:
    """Subscribe to the topic, or assign partitions, of ``count`` that it has, and seek them to the start."""
    from txnstore.core.model import TopicPartition

    if not partitions and isinstance(start, str):
        consumer.subscribe(topic)
        return
    tps = [TopicPartition(topic, number) for number in partitions or range(count)]
    if missing_tps := [tp for tp in tps if tp.partition >= count]:
        consumer.end_offsets(missing_tps)  # Raises an error; a consumer would wait until the partitions are added.
    consumer.assign(tps)
    if isinstance(start, int):
        _seek_to_offset(app, consumer, start)
    elif isinstance(start, datetime):
        _seek_to_time(app, consumer, start)


def _seek_to_offset(app: App, consumer: Consumer, offset: int) -> None:
    """Read from an offset on, or from the log start if that is later; an offset past the end means records to come."""
    for tp, log_start in consumer.beginning_offsets().items():
        consumer.seek(tp, max(offset, log_start))
    shorter = {tp: end for tp, end in consumer.end_offsets().items() if offset > end}
    _note_ends(app, f"Offset {offset} is past the end", shorter)


def _seek_to_time(app: App, consumer: Consumer, start: datetime) -> None:
    """Read from the first record of a time or a later one on, or from the end where there is none."""
    from txnstore.times import first_millisecond

    start_ms = max(0, first_millisecond(start))
    first_records = consumer.offsets_for_times(dict.fromkeys(consumer.assignment(), start_ms))
    ends = consumer.end_offsets()
    for tp, first in first_records.items():
        consumer.seek(tp, ends[tp] if first is None else first.offset)
    older = {tp: ends[tp] for tp, first in first_records.items() if first is None}
    _note_ends(app, f"All records are older than {instant(start_ms)}", older)


def _note_ends(app: App, reason: str, ends: Mapping[TopicPartition, int]) -> None:
    """Say which partitions have nothing to print yet, if any."""
    if ends:
        app.out.note(f"{reason}: {', '.join(f'{tp} ends at {end}' for tp, end in sorted(ends.items()))}")


def _polls(app: App, consumer: Consumer, limit: int | None, *, follow: bool) -> Iterator[list[Record]]:
    """Yield the records of polls: up to the end offsets at the start of the command, or without end."""
    from txnstore.consumer.membership import describe_holder

    last_notes: list[str] = []
    remaining_count = limit
    ends = None if follow else consumer.end_offsets()
    while remaining_count is None or remaining_count > 0:
        if ends is not None and all(consumer.position(tp) >= ends.get(tp, 0) for tp in consumer.assignment()):
            return
        records = consumer.poll(1.0 if follow else 0.0, min(_MAX_POLL_RECORDS, remaining_count or _MAX_POLL_RECORDS))
        if records:
            yield records
            last_notes = []
        elif (notes := [f"Waiting for {describe_holder(holder)}" for holder in consumer.waiting_for]) != last_notes:
            # Renewals change the text, too: the few lines show that the holder lives.
            for line in notes:
                app.out.note(line)
            last_notes = notes
        if not records and not follow:
            return
        if remaining_count is not None:
            remaining_count -= len(records)


def json_members(record: Record) -> dict[str, Any]:
    """The members of a record's JSON object."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": row_as_json(record.value),
        "headers": record.headers,
    }


def _text_line(record: Record, columns: dict[str, bool]) -> bytes:
    """Return a record as a line of text, with the chosen columns before its value."""
    parts = []
    if columns["timestamps"]:
        parts.append((instant(record.timestamp) or "").encode())
    if columns["offsets"]:
        parts.append(f"{record.topic}-{record.partition}:{record.offset}".encode())
    if columns["headers"]:
        parts.append(b",".join(name.encode() + b":" + _text_bytes(value) for name, value in record.headers))
    if columns["keys"]:
        parts.append(_text_bytes(record.key))
    return b"\t".join([*parts, _text_bytes(record.value)])


def _text_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return to_json(row_as_json(value)).encode()
