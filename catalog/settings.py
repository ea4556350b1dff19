"""The settings of topics, with Kafka's names, defaults, types and ranges.

There are three deliberate differences: ``retention.ms`` is -1 by default, so that records are deleted only from topics
whose settings ask for it (``docs/internals/design/retention.md``); ``compression.type`` is ``zstd`` by default (Kafka's
``producer`` means the same, because producers of txnstore have no compression setting), and ``segment.bytes`` is the
target size of a compaction. ``segment.format``, ``inline.bytes``, ``segment.own.bytes``, ``table.format`` and
``tombstone.column`` exist only in txnstore.
Source: Kafka's ``LogConfig`` and ``TopicConfig``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from txnstore.core.log.model import TimestampType
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.segment.codec import COMPRESSIONS, check_format

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1
#: The largest ``inline.bytes``: all processes that follow the chain read its entries, so large ones cost all of them.
_MAX_INLINE_BYTES = 1 << 20
#: The largest ``segment.own.bytes``: larger segments are read in parts, which need an object of their own.
_MAX_OWN_BYTES = 4 << 20
_DAY_MS = 24 * 60 * 60 * 1000
_INTEGER = re.compile(r"[+-]?[0-9]+")

#: Kafka's types of settings (``ConfigDef.Type``).
SettingType = Literal["BOOLEAN", "STRING", "INT", "LONG", "DOUBLE", "LIST"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: The name, Kafka's where Kafka has it.
        default: The default; the module names those that differ from Kafka's.
        parse: Converts a value, or raises ``ValueError`` with a description of allowed values.
        help: The meaning.
        type: Its type in Kafka's protocol, which DescribeConfigs shows.
    """

    name: str
    default: Any
    parse: Callable[[object], Any]
    help: str
    type: SettingType = "STRING"

    @property
    def attribute(self) -> str:
        """The name of the field of :class:`TopicConfig`."""
        return self.name.replace(".", "_")


def _integer_parser(minimum: int, maximum: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def _parse_fraction(value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


def _choice_parser(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return str(value)

    return parse


def _parse_cleanup_policy(value: object) -> frozenset[str]:
    """Parse the policies; without any, nothing is ever removed, as in Kafka."""
    items: Iterable[object]
    if isinstance(value, str):
        items = value.split(",") if value.strip() else ()
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    else:
        items = (value,)  # Refused below, for it is no string.
    policies: set[str] = set()
    for item in items:
        if not isinstance(item, str) or item.strip() not in ("compact", "delete"):
            raise ValueError("delete, compact, compact,delete, or empty")
        policies.add(item.strip())
    return frozenset(policies)


def _flag_parser(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if text not in allowed:
            raise ValueError(" or ".join(allowed))
        return text

    return parse


def _parse_column(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("the name of a column, or empty")
    return value


def _parse_list(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a list of texts, separated by commas")
    return ",".join(item.strip() for item in value.split(",") if item.strip())


#: The setting that gives a topic a table, and the one that gives a typed topic tombstones.
TABLE_FORMAT, TOMBSTONE_COLUMN = "table.format", "tombstone.column"


def publishes_table(config: Mapping[str, str]) -> bool:
    """Whether the stored settings of a topic give it a table."""
    return config.get(TABLE_FORMAT) == "iceberg"


#: All settings.
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "cleanup.policy",
        frozenset({"delete"}),
        _parse_cleanup_policy,
        "delete: retention and delete_records apply; compact: keep the newest record of each key; empty: neither",
        "LIST",
    ),
    Setting(
        "retention.ms", -1, _integer_parser(-1, _LONG_MAX), "age after which records are deleted; -1: never", "LONG"
    ),
    Setting(
        "retention.bytes",
        -1,
        _integer_parser(-1, _LONG_MAX),
        "size of a partition above which its oldest records are deleted; -1: no limit",
        "LONG",
    ),
    Setting(
        "delete.retention.ms", _DAY_MS, _integer_parser(0, _LONG_MAX), "how long a compaction keeps a tombstone", "LONG"
    ),
    Setting(
        "min.compaction.lag.ms", 0, _integer_parser(0, _LONG_MAX), "records younger than this are not compacted", "LONG"
    ),
    Setting(
        "max.compaction.lag.ms",
        _LONG_MAX,
        _integer_parser(1, _LONG_MAX),
        "records older than this are compacted",
        "LONG",
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        0.5,
        _parse_fraction,
        "share of uncompacted bytes that starts a compaction",
        "DOUBLE",
    ),
    Setting(
        "message.timestamp.type",
        "CreateTime",
        _choice_parser("CreateTime", "LogAppendTime"),
        "whether _timestamp is the record's own time (CreateTime) or that of its commit (LogAppendTime)",
    ),
    Setting(
        "max.message.bytes",
        1_048_588,
        _integer_parser(0, _INT_MAX),
        "the largest record, key and headers included",
        "INT",
    ),
    Setting(
        "segment.bytes",
        1 << 30,
        _integer_parser(14, _INT_MAX),
        "target size of a segment that a compaction writes",
        "INT",
    ),
    Setting(
        "inline.bytes",
        64 << 10,
        _integer_parser(0, _MAX_INLINE_BYTES),
        "up to this size, all records of a commit are written into its entry of the chain; 0: never",
        "INT",
    ),
    Setting(
        "segment.own.bytes",
        256 << 10,
        _integer_parser(0, _MAX_OWN_BYTES),
        "a flush uploads its batches below this size together, in one segment; 0: each in one of its own",
        "INT",
    ),
    Setting("segment.format", "parquet", _choice_parser(*COMPRESSIONS), "format of new segments"),
    Setting(
        TABLE_FORMAT, "none", _choice_parser("none", "iceberg"), "iceberg: the topic is published as an Iceberg table"
    ),
    Setting(
        TOMBSTONE_COLUMN,
        "",
        _parse_column,
        "a boolean column of the schema; a row in which it is true is a tombstone: it deletes its key; empty: none",
    ),
    Setting(
        "compression.type",
        "zstd",
        _choice_parser("zstd", "lz4", "snappy", "gzip", "uncompressed", "producer"),
        "compression of new segments; producer means zstd",
    ),
)

#: Settings of Kafka that have no effect without brokers, replicas and local files, with Kafka's defaults. Clients of
#: Kafka set them, so gateways store and show them. Other callers get an error, as for :data:`_REMOVED`.
INERT: tuple[Setting, ...] = (
    Setting("compression.gzip.level", -1, _integer_parser(-1, 9), "no effect", "INT"),
    Setting("compression.lz4.level", 9, _integer_parser(1, 17), "no effect", "INT"),
    Setting("compression.zstd.level", 3, _integer_parser(-131_072, 22), "no effect", "INT"),
    Setting(
        "file.delete.delay.ms", 60_000, _integer_parser(0, _LONG_MAX), "no effect: a vacuum deletes objects", "LONG"
    ),
    Setting(
        "flush.messages", _LONG_MAX, _integer_parser(1, _LONG_MAX), "no effect: a commit is stored at once", "LONG"
    ),
    Setting("flush.ms", _LONG_MAX, _integer_parser(0, _LONG_MAX), "no effect: a commit is stored at once", "LONG"),
    Setting("follower.replication.throttled.replicas", "", _parse_list, "no effect: there are no replicas", "LIST"),
    Setting(
        "index.interval.bytes", 4_096, _integer_parser(0, _INT_MAX), "no effect: segments have no offset index", "INT"
    ),
    Setting("leader.replication.throttled.replicas", "", _parse_list, "no effect: there are no replicas", "LIST"),
    Setting("local.retention.bytes", -2, _integer_parser(-2, _LONG_MAX), "no effect: nothing is kept locally", "LONG"),
    Setting("local.retention.ms", -2, _integer_parser(-2, _LONG_MAX), "no effect: nothing is kept locally", "LONG"),
    Setting("message.timestamp.after.max.ms", _LONG_MAX, _integer_parser(0, _LONG_MAX), "no effect", "LONG"),
    Setting("message.timestamp.before.max.ms", _LONG_MAX, _integer_parser(0, _LONG_MAX), "no effect", "LONG"),
    Setting("min.insync.replicas", 1, _integer_parser(1, _INT_MAX), "no effect: there are no replicas", "INT"),
    Setting("preallocate", "false", _flag_parser("true", "false"), "no effect: there are no local files", "BOOLEAN"),
    Setting("remote.log.copy.disable", "false", _flag_parser("true", "false"), "no effect", "BOOLEAN"),
    Setting("remote.log.delete.on.disable", "false", _flag_parser("true", "false"), "no effect", "BOOLEAN"),
    Setting("remote.storage.enable", "false", _flag_parser("false"), "no effect: all storage is remote", "BOOLEAN"),
    Setting(
        "segment.index.bytes", 10 << 20, _integer_parser(4, _INT_MAX), "no effect: segments have no offset index", "INT"
    ),
    Setting("segment.jitter.ms", 0, _integer_parser(0, _LONG_MAX), "no effect: a flush makes a segment", "LONG"),
    Setting("segment.ms", 7 * _DAY_MS, _integer_parser(1, _LONG_MAX), "no effect: a flush makes a segment", "LONG"),
    Setting("unclean.leader.election.enable", "false", _flag_parser("true", "false"), "no effect", "BOOLEAN"),
)

#: Settings that Kafka has removed.
_REMOVED = frozenset(
    {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"},
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_INERT_BY_NAME = {setting.name: setting for setting in INERT}
#: The names of :data:`INERT`.
INERT_NAMES = frozenset(_INERT_BY_NAME)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic, with defaults filled in. Durations in milliseconds, sizes in bytes, -1 for no limit.

    Attributes:
        explicit: The settings that were set, as text. Only these are stored, so that changed defaults apply to
            existing topics.
    """

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = -1
    retention_bytes: int = -1
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    message_timestamp_type: TimestampType = "CreateTime"
    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    inline_bytes: int = 64 << 10
    segment_own_bytes: int = 256 << 10
    segment_format: str = "parquet"
    table_format: str = "none"
    tombstone_column: str = ""
    compression_type: str = "zstd"
    explicit: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, inert: Container[str] = ()) -> Self:
        """Parse settings from a mapping with Kafka's names; missing ones get their default. Numbers may be strings.

        Args:
            mapping: The settings.
            inert: The accepted settings of :data:`INERT`.

        Raises:
            InvalidConfigError: A name is unknown or a value is not allowed. The message names the setting.
        """
        values: dict[str, Any] = {}
        explicit_texts: dict[str, str] = {}
        for name in sorted(mapping, key=str):
            setting = _find_setting(name, inert)
            try:
                value = setting.parse(mapping[name])
            except ValueError as error:
                raise InvalidConfigError(f"{name} must be {error}, not {mapping[name]!r}") from error
            if setting.name not in INERT_NAMES:
                values[setting.attribute] = value
            explicit_texts[setting.name] = text_of(value)
        config = cls(**values, explicit=explicit_texts)
        config._check_combinations()
        return config

    @classmethod
    def from_stored(cls, config: Mapping[str, str]) -> Self:
        """Parse the settings of a topic of the catalog, which a client of a gateway may have set.

        Raises:
            CorruptionError: The settings are not ones that a release writes.
        """
        try:
            return cls.from_mapping(config, inert=INERT_NAMES)
        except InvalidConfigError as error:
            msg = f"cannot read the settings of a topic in the chain: {error}"
            raise CorruptionError(msg) from error

    def to_mapping(self) -> dict[str, str]:
        """Return the settings that were set, with Kafka's names; the inverse of :meth:`from_mapping`."""
        return dict(self.explicit)

    def effective(self) -> dict[str, str]:
        """Return all settings as text, with defaults, in the order of :data:`SETTINGS`; then those without effect."""
        inert = {name: text for name, text in self.explicit.items() if name in INERT_NAMES}
        return {setting.name: text_of(getattr(self, setting.attribute)) for setting in SETTINGS} | inert

    @property
    def compacts(self) -> bool:
        """Whether ``cleanup.policy`` includes ``compact``: the newest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether ``cleanup.policy`` includes ``delete``: old records are deleted."""
        return "delete" in self.cleanup_policy

    @property
    def append_time(self) -> bool:
        """Whether ``_timestamp`` is the time of the commit instead of the record's own time."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def has_table(self) -> bool:
        """Whether the topic is published as a table."""
        return self.table_format != "none"

    @property
    def compression(self) -> str:
        """The compression, as an argument for :func:`txnstore.segment.codec.encode`."""
        return {"uncompressed": "none", "producer": "zstd"}.get(self.compression_type, self.compression_type)

    def _check_combinations(self) -> None:
        """Check the rules that involve several settings."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})",
            )
        check_format(self.segment_format, self.compression)
        if self.has_table and self.segment_format != "parquet":
            requirement = f"{TABLE_FORMAT}={self.table_format} needs segment.format=parquet"
            msg = f"{requirement}: engines of tables read no {self.segment_format}"
            raise InvalidConfigError(msg)


def check_setting(name: object, inert: Container[str] = ()) -> None:
    """Raise :class:`InvalidConfigError` for an unknown setting; the message suggests a similar name."""
    _find_setting(name, inert)


def _find_setting(name: object, inert: Container[str]) -> Setting:
    """Return the setting with a name; raise :class:`InvalidConfigError` if it does not exist."""
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    if isinstance(name, str) and name in INERT_NAMES and name in inert:
        return _INERT_BY_NAME[name]
    if name in INERT_NAMES or name in _REMOVED:
        raise InvalidConfigError(f"{name} is a setting of Kafka that has no meaning in txnstore; remove it")
    similar_names = difflib.get_close_matches(str(name).replace("_", "."), _BY_NAME, n=1)
    hint = f"did you mean {similar_names[0]}?" if similar_names else f"the settings are {', '.join(_BY_NAME)}"
    raise InvalidConfigError(f"there is no topic setting {name!r}; {hint}")


def text_of(value: object) -> str:
    """The canonical text of a value: equal values have equal texts."""
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
