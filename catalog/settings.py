"""The settings of a topic, under Kafka's names, with Kafka's defaults, types and ranges.

Two differences, both on purpose: ``compression.type`` is ``zstd`` by default (Kafka's ``producer`` means the same
here, because producers of txnstore have no compression of their own), and ``segment.bytes`` is the size that a
compaction aims at. ``segment.format`` is ours. Source: ``LogConfig``, ``TopicConfig``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from txnstore.errors import InvalidConfigError
from txnstore.segment.codec import COMPRESSIONS, check_format

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1
_DAY_MS = 24 * 60 * 60 * 1000
_INTEGER = re.compile(r"[+-]?[0-9]+")

#: Settings of Kafka that mean nothing without brokers, replicas and local files.
_NOT_HERE = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.storage.enable",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    },
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: ``parse`` turns what a user gives into the value, or raises ValueError with what is allowed."""

    name: str
    default: Any
    parse: Callable[[object], Any]
    help: str

    @property
    def attribute(self) -> str:
        """The name of the field of :class:`TopicConfig`."""
        return self.name.replace(".", "_")


def _integer(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _fraction(value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


def _one_of(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return str(value)

    return parse


def _cleanup_policy(value: object) -> frozenset[str]:
    given: Iterable[object] = ()
    if isinstance(value, str):
        given = value.split(",")
    elif isinstance(value, list | tuple | set | frozenset):
        given = value
    policies = frozenset(part.strip() if isinstance(part, str) else "" for part in given)
    if not policies or not policies <= {"compact", "delete"}:
        raise ValueError("delete, compact, or compact,delete")
    return policies


#: Every setting that there is.
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "cleanup.policy",
        frozenset({"delete"}),
        _cleanup_policy,
        "delete: drop old records; compact: keep the newest record of each key",
    ),
    Setting("retention.ms", 7 * _DAY_MS, _integer(-1, _LONG_MAX), "age after which records are deleted; -1: never"),
    Setting("retention.bytes", -1, _integer(-1, _LONG_MAX), "size of a partition above which it is cut; -1: none"),
    Setting("delete.retention.ms", _DAY_MS, _integer(0, _LONG_MAX), "how long a tombstone stays after a compaction"),
    Setting("min.compaction.lag.ms", 0, _integer(0, _LONG_MAX), "records younger than this are not compacted"),
    Setting("max.compaction.lag.ms", _LONG_MAX, _integer(1, _LONG_MAX), "records older than this are compacted"),
    Setting("min.cleanable.dirty.ratio", 0.5, _fraction, "share of uncompacted bytes that starts a compaction"),
    Setting(
        "message.timestamp.type",
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "whether _timestamp is the record's own time or that of its commit",
    ),
    Setting("max.message.bytes", 1_048_588, _integer(0, _INT_MAX), "the largest record, key and headers included"),
    Setting("segment.bytes", 1 << 30, _integer(14, _INT_MAX), "size that a compaction aims at for a segment"),
    Setting("segment.format", "parquet", _one_of(*COMPRESSIONS), "how new segments are written"),
    Setting(
        "compression.type",
        "zstd",
        _one_of("zstd", "lz4", "snappy", "gzip", "uncompressed", "producer"),
        "how new segments are compressed; producer means zstd",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic, defaults filled in. Durations in milliseconds, sizes in bytes, -1 for no limit.

    ``explicit`` holds what was set, in its text form: only this is stored, so that a topic follows better defaults.
    """

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    message_timestamp_type: str = "CreateTime"
    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    segment_format: str = "parquet"
    compression_type: str = "zstd"
    explicit: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """The settings that the mapping gives, under Kafka's names; defaults for the others.

        Numbers may be strings. An unknown name or a value that is not allowed is an :class:`InvalidConfigError` that
        names the setting.
        """
        values: dict[str, Any] = {}
        explicit: dict[str, str] = {}
        for name in sorted(mapping, key=str):
            setting = _find(name)
            try:
                value = setting.parse(mapping[name])
            except ValueError as error:
                raise InvalidConfigError(f"{name} must be {error}, not {mapping[name]!r}") from error
            values[setting.attribute] = value
            explicit[name] = _text(value)
        config = cls(**values, explicit=explicit)
        config._check_together()
        return config

    def to_mapping(self) -> dict[str, str]:
        """What was set, under Kafka's names; the reverse of :meth:`from_mapping`."""
        return dict(self.explicit)

    def effective(self) -> dict[str, str]:
        """All settings in their text form, defaults included, in the order of :data:`SETTINGS`."""
        return {setting.name: _text(getattr(self, setting.attribute)) for setting in SETTINGS}

    @property
    def compacts(self) -> bool:
        """Whether the newest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old records are deleted."""
        return "delete" in self.cleanup_policy

    @property
    def append_time(self) -> bool:
        """Whether ``_timestamp`` is the time of the commit."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression(self) -> str:
        """The compression as :func:`txnstore.segment.codec.encode` takes it."""
        return {"uncompressed": "none", "producer": "zstd"}.get(self.compression_type, self.compression_type)

    def _check_together(self) -> None:
        """The rules between settings."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})",
            )
        check_format(self.segment_format, self.compression)


def check_setting(name: object) -> None:
    """Refuse a name that no setting has, with an :class:`InvalidConfigError` that suggests the one that was meant."""
    _find(name)


def _find(name: object) -> Setting:
    """The setting of this name, or an error that suggests the one that was meant."""
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    if name in _NOT_HERE:
        raise InvalidConfigError(f"{name} is a setting of Kafka that means nothing in txnstore; leave it out")
    near = difflib.get_close_matches(str(name).replace("_", "."), _BY_NAME, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_BY_NAME)}"
    raise InvalidConfigError(f"there is no topic setting {name!r}; {hint}")


def _text(value: object) -> str:
    """The one text form of a value, so that equal settings are equal texts."""
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
