"""``produce``: sends records from standard input or a file to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txnstore.cli.context import App, CommandError, pass_app, shared_options
from txnstore.cli.progress import Advance
from txnstore.cli.records import ADVICE, InputFormat, InputPiece, pieces_of_file, pieces_of_stream, size_of_file
from txnstore.cli.values import Integer
from txnstore.phrases import counted

if TYPE_CHECKING:
    from txnstore.catalog.description import Topic
    from txnstore.producer import Producer
    from txnstore.store import Store

_SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")


@click.command()
@click.argument("topic")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this .parquet, .csv or .jsonl file instead of standard input.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    help="The format of a line, also of a .jsonl file: text is a value; json is the default for a topic with a schema.",
)
@click.option("--key-field", metavar="NAME", help="Lines and rows are documents; this field is the key.")
@click.option("--key-separator", metavar="TEXT", help="Lines of text consist of a key, this separator, and a value.")
@click.option(
    "--null",
    "nulls",
    metavar="TEXT",
    multiple=True,
    help="CSV: this text is null where it is not in quotation marks; '' for empty cells. Repeatable.",
)
@click.option("--partition", type=Integer(min=0), help="Send everything to this partition.")
@click.option("--transactional-id", metavar="ID", help="Send everything in one transaction with this id.")
@shared_options()
@pass_app
def produce(
    app: App,
    topic: str,
    path: Path | None,
    form: str | None,
    key_field: str | None,
    key_separator: str | None,
    nulls: tuple[str, ...],
    partition: int | None,
    transactional_id: str | None,
) -> None:
    """Send lines of standard input (or a file) to TOPIC.

    A line of text is a value. A line of JSON is a record as `consume --json` prints it, a document if --key-field is
    given, or a row if the topic has a schema. With --transactional-id, either all records become visible or none.
    """
    _check_options(path, form, key_field, key_separator)
    if nulls and (path is None or path.suffix != ".csv"):
        msg = "--null is for a .csv file"
        raise click.UsageError(msg)
    with app.open() as store:
        description = store.topic(topic)
        _check_partition(description, partition)
        input_format = replace(_input_format(description, form, key_field, key_separator), nulls=nulls)
        pieces, total_bytes = _open_input(path, input_format)
        with store.producer(transactional_id=transactional_id) as producer:
            scope = producer.transaction() if transactional_id is not None else nullcontext()
            is_typed = path is None and sys.stdin.isatty()
            if is_typed:
                app.out.note(_typing_hint(input_format, transactional_id))
            # No progress bar between typed lines.
            sent_records = _SentRecords()
            try:
                with app.out.progress(f"to {topic}", total_bytes, hidden=is_typed) as advance, scope:
                    _send_all(producer, topic, pieces, partition, advance, sent_records)
                    if transactional_id is None:
                        producer.flush()  # A commit sends the last batches itself.
            except KeyboardInterrupt:
                if transactional_id is None:
                    producer.flush()
                    app.out.note(f"{counted(sent_records.records, 'record')} sent to {topic!r} before the interrupt")
                else:
                    app.out.note(_abort_interrupted(store, producer, transactional_id, sent_records))
                raise
            except CommandError as error:
                if transactional_id is not None:
                    raise
                producer.flush()
                msg = f"{error}; {counted(sent_records.records, 'record')} sent to {topic!r} before it"
                raise CommandError(msg, error.advice) from error
    suffix = f" in one transaction of {transactional_id!r}" if transactional_id is not None else ""
    app.out.result(
        f"{counted(sent_records.records, 'record')} sent to {topic!r}{suffix}",
        topic=topic,
        records=sent_records.records,
        transactional_id=transactional_id,
    )


def _abort_interrupted(store: Store, producer: Producer, transactional_id: str, sent_records: _SentRecords) -> str:
    """Abort the transaction that an interrupt has left, and describe its outcome by its chain."""
    from txnstore.core.transactions.model import TxnState
    from txnstore.errors import TxnStoreError

    name = f"the transaction of {transactional_id!r}"
    timeout_hint = "it is aborted at its timeout, a minute after it began"
    try:
        producer.close()
    except TxnStoreError as error:
        reason = f" ({' '.join(str(error).split())})"
    else:
        reason = ""
    try:
        state = store.transaction(transactional_id).state
    except TxnStoreError as error:
        return f"{name} may be open or committed: {' '.join(str(error).split())} Unless it is committed, {timeout_hint}"
    if state in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT):
        return f"{name} was committed before the interrupt: {counted(sent_records.records, 'record')} sent"
    if state is TxnState.ONGOING:
        return f"{name} could not be aborted{reason}; {timeout_hint}. None of its records is visible"
    return f"{name} was aborted: none of its records is visible"


def _typing_hint(input_format: InputFormat, transactional_id: str | None) -> str:
    lines = "one JSON object per line" if input_format.as_json else "one record per line"
    if input_format.key_separator is not None:
        lines += f", as KEY{input_format.key_separator}VALUE"
    end = "Ctrl-D commits them, Ctrl-C aborts" if transactional_id is not None else "end with Ctrl-D"
    return f"Type {lines}; {end}"


def _check_options(path: Path | None, form: str | None, key_field: str | None, key_separator: str | None) -> None:
    """Refuse options that do not fit each other."""
    if path is not None and path.suffix not in _SUFFIXES:
        msg = f"--file {path.name}: the name must end in one of {', '.join(_SUFFIXES)}"
        raise click.UsageError(msg)
    if path is not None and path.suffix in (".parquet", ".csv") and not path.is_file():
        msg = f"--file {path.name}: only .jsonl can be read from a pipe or a device"
        raise click.UsageError(msg)
    if key_separator is not None and (path is not None or form == "json" or key_field is not None):
        msg = "--key-separator is for lines of text on standard input"
        raise click.UsageError(msg)
    if key_separator == "":
        msg = "--key-separator must not be empty"
        raise click.UsageError(msg)
    if key_field is not None and form == "text":
        msg = "--key-field is for JSON and files, not for --format text"
        raise click.UsageError(msg)


def _check_partition(topic: Topic, partition: int | None) -> None:
    """Check the partition, also for input without records, for which no send would raise."""
    if partition is not None and partition >= topic.partitions:
        msg = f"topic {topic.name!r} has no partition {partition}"
        raise CommandError(msg, f"Give --partition 0 to {topic.partitions - 1}, or leave it out.")


def _input_format(topic: Topic, form: str | None, key_field: str | None, key_separator: str | None) -> InputFormat:
    """Return the format of the input; options for keys are refused where a schema has a key column."""
    if (schema := topic.schema) is None:
        return InputFormat(None, form == "json" or key_field is not None, key_field, key_separator)
    if form == "text" or key_field is not None or key_separator is not None:
        msg = f"topic {topic.name!r} has a schema: send rows as JSON or a file; its key is a column"
        raise click.UsageError(msg)
    return InputFormat(schema, as_json=True)


def _open_input(path: Path | None, input_format: InputFormat) -> tuple[Iterator[InputPiece], int | None]:
    """Return the pieces of the file or of standard input, and their size in bytes if it is known."""
    if path is not None:
        return pieces_of_file(path, input_format), size_of_file(path)
    if sys.stdin is None or sys.stdin.closed:
        msg = "standard input is closed; there is nothing to send"
        raise CommandError(msg, "Pipe records in, or give --file.")
    return pieces_of_stream(sys.stdin.buffer, "standard input", input_format), None


@dataclass(slots=True)
class _SentRecords:
    """The number of records that the producer has accepted, up to an interrupt."""

    records: int = 0


def _send_all(
    producer: Producer,
    topic: str,
    pieces: Iterator[InputPiece],
    partition: int | None,
    advance: Advance,
    sent_records: _SentRecords,
) -> None:
    """Send all pieces; an error names the place in the input."""
    from txnstore.errors import RecordTooLargeError, SchemaMismatchError, UnknownTopicOrPartitionError

    for piece in pieces:
        try:
            _send(producer, topic, piece, partition, sent_records)
        except (SchemaMismatchError, UnknownTopicOrPartitionError, RecordTooLargeError) as error:
            msg = f"{piece.where} and following: {error}"
            raise CommandError(msg, error.advice if isinstance(error, RecordTooLargeError) else ADVICE) from error
        advance(piece.done)


def _send(producer: Producer, topic: str, piece: InputPiece, partition: int | None, sent_records: _SentRecords) -> None:
    if not isinstance(piece.records, list):
        producer.send_table(topic, piece.records, partition)
        sent_records.records += piece.count
        return
    for record in piece.records:
        producer.send(topic, **({**record, "partition": partition} if partition is not None else record))
        sent_records.records += 1
