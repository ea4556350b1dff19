"""Parses and checks the options of ``format("txnstore")``, once on the driver, before anything is read or written.

Spark passes option values as text, and their names in lower case.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from txnstore.core.authorization.changes import check_principal
from txnstore.core.model import Isolation
from txnstore.errors import InvalidConfigError
from txnstore.snapshot import Moment, parse_moment
from txnstore.spark import values
from txnstore.spark.values import EARLIEST, Offsets
from txnstore.times import check_time
from txnstore.validation import check_choice, check_expression, check_id, check_integer

_READ = (
    "path", "topic", "topicPattern", "columns", "partitions", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "isolation", "minPartitions", "snapshot", "systemColumns", "principal",
)  # fmt: skip
_CREATE = ("createTopic.partitions", "createTopic.key", "createTopic.timestamp")
_WRITE = (
    "path",
    "topic",
    "transactionalId",
    "txnVersion",
    "txnScope",
    "createTopic",
    *_CREATE,
    "systemColumns",
    "principal",
)
#: Options of streaming queries; ``checkpointLocation`` and ``queryName`` are Spark's own.
_SOURCE = ("maxOffsetsPerTrigger", "failOnDataLoss", "pollIntervalMs", "group")
_STREAMING = (*_SOURCE, "checkpointLocation", "queryName")
#: A view may be read and inserted into with one set of options, so reads accept the options of writes and vice versa.
_KNOWN = {name.lower(): name for name in (*_READ, *_WRITE, *_STREAMING)}
#: The default of ``pollIntervalMs``.
POLL_INTERVAL_MS = 1_000
_STORAGE = "storage."


class SystemColumns(StrEnum):
    """The use of the columns that the store gives to records, in reads and writes."""

    INCLUDE = "include"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Location:
    """A store: URL, storage options (maybe with secrets), and user (None: that of the environment)."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    Attributes:
        topics: The topics; empty if a pattern names them.
        pattern: A regular expression that matches the whole names of the topics.
        columns: The columns, in this order; None for all.
        partitions: The partitions; None for all.
        start: The first offset of each partition.
        end: The offset after the last one of each partition.
        start_ms: Start at the first record at or after this time, in milliseconds; replaces ``start``.
        end_ms: End before the first record at or after this time, in milliseconds; replaces ``end``.
        isolation: The isolation level.
        min_partitions: The number of tasks that is wanted at least; None for what is suitable.
        snapshot: The earlier snapshot to read; None for the current state.
        system_columns: Whether the columns that the store gives to records are read if ``columns`` names none.
    """

    location: Location
    topics: tuple[str, ...]
    pattern: str | None = None
    columns: tuple[str, ...] | None = None
    partitions: tuple[int, ...] | None = None
    start: Offsets = "earliest"
    end: Offsets = "latest"
    start_ms: int | None = None
    end_ms: int | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    min_partitions: int | None = None
    snapshot: Moment | None = None
    system_columns: bool = True


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a streaming read.

    Attributes:
        read: What is read.
        max_offsets: The most offsets of one micro-batch; None for all that are available.
        fail_on_data_loss: Whether records that were deleted before they were read end the query.
        poll_interval_ms: The longest pause between two looks at an idle store, in milliseconds.
        group: The consumer group that has the offsets of the stream; None for none.
    """

    read: ReadOptions
    max_offsets: int | None = None
    fail_on_data_loss: bool = True
    poll_interval_ms: int = POLL_INTERVAL_MS
    group: str | None = None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The settings of a topic that a write creates if it does not exist.

    Attributes:
        partitions: The number of partitions.
        key: The column whose value chooses the partition; None for none.
        timestamp: The column with the event time; None for the append time.
    """

    partitions: int = 1
    key: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.

    Attributes:
        topic: The topic of all rows; None if each row names its topic in the column ``_topic``.
        transactional_id: The transactional id; None for a generated one.
        versions: (scope, version) pairs of the job.
        create: How to create the topic if it does not exist; None to refuse that.
        ignore_system_columns: Whether to ignore the columns that the store gives to records, except ``_topic``.
    """

    location: Location
    topic: str | None
    transactional_id: str | None = None
    versions: tuple[tuple[str, int], ...] = ()
    create: NewTopic | None = None
    ignore_system_columns: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a streaming write.

    Attributes:
        topic: The topic of all rows; None if each row names its topic in the column ``_topic``.
        transactional_id: The transactional id; None for one that is made of the id of the query.
        group: The consumer group that gets the offsets of the query's source; None for none.
        checkpoint: The checkpoint location of the query, if the query names it.
        create: How to create the topic if it does not exist; None to refuse that.
        ignore_system_columns: Whether to ignore the columns that the store gives to records, except ``_topic``.
    """

    location: Location
    topic: str | None
    transactional_id: str | None = None
    group: str | None = None
    checkpoint: str | None = None
    create: NewTopic | None = None
    ignore_system_columns: bool = False


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse the options of a read. Raises :class:`InvalidConfigError`; the message names the option."""
    checked_options = _check_names(options, streaming=streaming)
    topics = tuple(values.parse_names("topic", checked_options.get("topic", "")))
    pattern = checked_options.get("topicPattern")
    check_expression(pattern)
    if not topics and not pattern:
        msg = 'which topic is to be read? Give the option "topic" (several: separated by commas) or "topicPattern"'
        raise InvalidConfigError(msg)
    if topics and pattern:
        msg = "give topic or topicPattern, not both"
        raise InvalidConfigError(msg)
    for offsets, timestamp in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets in checked_options and timestamp in checked_options:
            msg = f"give {offsets} or {timestamp}, not both"
            raise InvalidConfigError(msg)
    columns, partitions = checked_options.get("columns"), checked_options.get("partitions")
    if columns is not None and not columns.strip():
        msg = "the option columns names no column"
        raise InvalidConfigError(msg)
    return ReadOptions(
        location=_parse_location(checked_options),
        topics=topics,
        pattern=pattern,
        columns=None if columns is None else tuple(values.parse_columns(columns)),
        partitions=None if partitions is None else values.parse_integers("partitions", partitions),
        start=values.parse_offsets("startingOffsets", checked_options.get("startingOffsets", "earliest"), topics),
        end=values.parse_offsets("endingOffsets", checked_options.get("endingOffsets", "latest"), topics),
        start_ms=_optional_time(checked_options, "startingTimestamp"),
        end_ms=_optional_time(checked_options, "endingTimestamp"),
        isolation=check_choice(
            "isolation", checked_options.get("isolation", Isolation.READ_COMMITTED.value), Isolation
        ),
        min_partitions=_parse_at_least(checked_options, "minPartitions", 1, None),
        snapshot=parse_moment("the option snapshot", checked_options["snapshot"])
        if "snapshot" in checked_options
        else None,
        system_columns=not _ignores_system_columns(checked_options),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a streaming read. Raises :class:`InvalidConfigError`; the message names the option."""
    checked_options = _check_names(options, streaming=True)
    if "snapshot" in checked_options:
        msg = "snapshot is for batch reads: a stream reads on from its startingOffsets or startingTimestamp"
        raise InvalidConfigError(msg)
    if "endingTimestamp" in checked_options:
        msg = "endingTimestamp is for batch reads: a stream may get earlier records later. Give endingOffsets"
        raise InvalidConfigError(msg)
    read_part = read_options(options, streaming=True)
    if read_part.end == "earliest" or (not isinstance(read_part.end, str) and EARLIEST in read_part.end.values()):
        msg = "endingOffsets of a stream must be latest, or offsets: it would end at its start"
        raise InvalidConfigError(msg)
    return StreamOptions(
        read_part,
        max_offsets=_parse_at_least(checked_options, "maxOffsetsPerTrigger", 1, None),
        fail_on_data_loss=values.parse_boolean("failOnDataLoss", checked_options.get("failOnDataLoss", "true")),
        poll_interval_ms=_parse_at_least(checked_options, "pollIntervalMs", 0, POLL_INTERVAL_MS) or 0,
        group=_parse_group(checked_options),
    )


def column_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read when Spark asks for its columns, in the same way for batches and streams.

    Raises:
        InvalidConfigError: An option is wrong; the message names it.
    """
    if any(name.lower() in (key.lower() for key in options) for name in _SOURCE):
        return stream_options(options).read
    return read_options(options, streaming=True)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a streaming write. Raises :class:`InvalidConfigError`; the message names the option."""
    checked_options = _check_names(options, streaming=True)
    for name in ("txnVersion", "txnScope"):
        if name in checked_options:
            msg = f"{name} is for batch writes: a stream has its query and the number of the micro-batch as version"
            raise InvalidConfigError(msg)
    sink = make_sink_options(
        _parse_location(checked_options),
        checked_options.get("topic"),
        checked_options.get("transactionalId"),
        checked_options.get("group"),
        checked_options.get("checkpointLocation"),
    )
    return replace(
        sink, create=_new_topic(checked_options), ignore_system_columns=_ignores_system_columns(checked_options)
    )


def make_sink_options(
    location: Location, topic: str | None, transactional_id: str | None, group: str | None, checkpoint: str | None
) -> SinkOptions:
    """Make the options of a streaming write. Raises :class:`InvalidConfigError`; the message names the option."""
    if transactional_id is not None:
        check_id("transactionalId", transactional_id)
    if group is not None:
        check_id("group", group)
        if checkpoint is None:
            msg = "group needs the checkpointLocation of this query: the offsets of its source are read there"
            raise InvalidConfigError(msg)
    return SinkOptions(location, topic, transactional_id, group, checkpoint)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises :class:`InvalidConfigError`; the message names the option."""
    checked_options = _check_names(options)
    transactional_id = checked_options.get("transactionalId")
    version = _optional_integer(checked_options, "txnVersion")
    if transactional_id is not None:
        check_id("transactionalId", transactional_id)
    if version is not None and version < 0:
        msg = f"txnVersion must be at least 0, not {version}"
        raise InvalidConfigError(msg)
    if version is not None and transactional_id is None:
        msg = "txnVersion needs a transactionalId: the store records the version under this id"
        raise InvalidConfigError(msg)
    if version is None and "txnScope" in checked_options:
        msg = "txnScope needs a txnVersion: the scope names the sequence of versions"
        raise InvalidConfigError(msg)
    versions = () if version is None else ((checked_options.get("txnScope", ""), version),)
    return WriteOptions(
        _parse_location(checked_options),
        checked_options.get("topic"),
        transactional_id,
        versions,
        _new_topic(checked_options),
        _ignores_system_columns(checked_options),
    )


def _new_topic(options: Mapping[str, str]) -> NewTopic | None:
    """Parse the settings of a topic that a write creates if it does not exist."""
    if not values.parse_boolean("createTopic", options.get("createTopic", "false")):
        for name in _CREATE:
            if name in options:
                msg = f"{name} needs the option createTopic: without it, no topic is created"
                raise InvalidConfigError(msg)
        return None
    if "topic" not in options:
        msg = "createTopic needs the option topic: the rows of a frame with a column _topic show no topic's columns"
        raise InvalidConfigError(msg)
    partitions = _parse_at_least(options, "createTopic.partitions", 1, 1) or 1
    return NewTopic(partitions, options.get("createTopic.key"), options.get("createTopic.timestamp"))


def _ignores_system_columns(options: Mapping[str, str]) -> bool:
    value = options.get("systemColumns", SystemColumns.INCLUDE.value).lower()
    return check_choice("systemColumns", value, SystemColumns) is SystemColumns.IGNORE


def _parse_group(options: Mapping[str, str]) -> str | None:
    return check_id("group", options["group"]) if "group" in options else None


def _parse_at_least(options: Mapping[str, str], option: str, least: int, default: int | None) -> int | None:
    number = _optional_integer(options, option)
    return default if number is None else check_integer(option, number, least)


def _check_names(options: Mapping[str, str], *, streaming: bool = False) -> dict[str, str]:
    """Return options by their documented names; refuse unknown ones, and options of streams in a batch."""
    checked_options: dict[str, str] = {}
    for key in options:
        if key.lower().startswith(_STORAGE):
            checked_options[key] = options[key]
            continue
        name = _KNOWN.get(key.lower())
        if name is None:
            raise _unknown_option_error(key)
        if name in _STREAMING and not streaming:
            msg = f"the option {name} is for streaming queries"
            raise InvalidConfigError(msg)
        checked_options[name] = options[key]
    return checked_options


def _unknown_option_error(key: str) -> InvalidConfigError:
    close = difflib.get_close_matches(key.lower(), _KNOWN, n=1, cutoff=0.6)
    names = ", ".join(sorted({*_READ, *_WRITE, *_STREAMING})) + f", {_STORAGE}*"
    hint = f"did you mean {_KNOWN[close[0]]}? " if close else ""
    return InvalidConfigError(f"there is no option {key!r}; {hint}The options are {names}")


def _parse_location(options: Mapping[str, str]) -> Location:
    storage = {
        key[len(_STORAGE) :]: values.parse_storage_value(key, options[key])
        for key in options
        if key.lower().startswith(_STORAGE)
    }
    return make_location(options.get("path", ""), storage, options.get("principal"))


def make_location(url: str, storage_options: Mapping[str, Any], principal: str | None = None) -> Location:
    """Return a store whose URL all processes of Spark can reach. Raises :class:`InvalidConfigError` for others."""
    if not url:
        msg = 'where is the store? Give its URL: load("s3://…") or save("s3://…")'
        raise InvalidConfigError(msg)
    if url.startswith("memory://"):
        msg = f"{url} is in the memory of one process, but Spark uses several: use a folder or s3://"
        raise InvalidConfigError(msg)
    if principal is not None:
        check_principal(principal)
    return Location(url, dict(storage_options), principal)


def _optional_integer(options: Mapping[str, str], option: str) -> int | None:
    return values.parse_integer(option, options[option]) if option in options else None


def _optional_time(options: Mapping[str, str], option: str) -> int | None:
    """Parse a time to the first millisecond that is not before it."""
    text = options.get(option)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return check_time(f"the option {option}", text, round_up=True)
