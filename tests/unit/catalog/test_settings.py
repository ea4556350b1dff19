"""Settings of a topic have Kafka's names, defaults and ranges, and a bad one is named."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import txnstore
from tests.helpers.keys import FixedRuntime
from txnstore.catalog.settings import INERT, INERT_NAMES, SETTINGS, TopicConfig, text_of
from txnstore.catalog.topics import altered_topic, new_topic
from txnstore.errors import InvalidConfigError
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock

#: Kafka's defaults, and our own.
DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": "1048588",
    "segment.bytes": "1073741824",
    "inline.bytes": "65536",
    "segment.own.bytes": "262144",
    "segment.format": "parquet",
    "table.format": "none",
    "tombstone.column": "",
    "compression.type": "zstd",
}


def test_defaults_are_kafkas() -> None:
    """CFG-01, CFG-02: the table of section 28 as a golden file; the effective settings can be printed."""
    assert TopicConfig().effective() == DEFAULTS
    assert TopicConfig.from_mapping({}) == TopicConfig()


def test_every_setting_is_a_field_with_its_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(TopicConfig) if field.name != "explicit"}
    assert fields == {setting.attribute: setting.default for setting in SETTINGS}


def test_only_given_settings_are_stored() -> None:
    config = TopicConfig.from_mapping({"retention.ms": 1000, "cleanup.policy": "delete, compact"})
    assert config.to_mapping() == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    assert config.retention_ms == 1000
    assert config.delete_retention_ms == 86_400_000
    assert TopicConfig.from_mapping(config.to_mapping()) == config
    assert config.effective() == DEFAULTS | config.to_mapping()


def test_explicit_default_is_stored() -> None:
    assert TopicConfig.from_mapping({"retention.bytes": -1}).to_mapping() == {"retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "+5", "5"),
        ("retention.ms", 2**63 - 1, str(2**63 - 1)),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("min.cleanable.dirty.ratio", 1, "1.0"),
        ("cleanup.policy", ["delete", "compact"], "compact,delete"),
        ("cleanup.policy", "compact", "compact"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("segment.format", "arrow", "arrow"),
        ("compression.type", "uncompressed", "uncompressed"),
    ],
)
def test_values_have_one_text_form(name: str, value: object, text: str) -> None:
    assert TopicConfig.from_mapping({name: value}).to_mapping() == {name: text}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", -2),
        ("retention.ms", 2**63),
        ("retention.ms", "1_000"),
        ("retention.ms", "7d"),
        ("retention.ms", 1.5),
        ("retention.ms", True),
        ("retention.ms", None),
        ("retention.ms", ""),
        ("retention.bytes", "-2"),
        ("delete.retention.ms", -1),
        ("min.compaction.lag.ms", -1),
        ("max.compaction.lag.ms", 0),
        ("max.message.bytes", -1),
        ("max.message.bytes", 2**31),
        ("segment.bytes", 13),
        ("min.cleanable.dirty.ratio", 1.01),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("min.cleanable.dirty.ratio", True),
        ("min.cleanable.dirty.ratio", None),
        ("cleanup.policy", ","),
        ("cleanup.policy", None),
        ("cleanup.policy", "compact;delete"),
        ("cleanup.policy", "none"),
        ("cleanup.policy", [1]),
        ("cleanup.policy", 1),
        ("message.timestamp.type", "createtime"),
        ("segment.format", "orc"),
        ("compression.type", "brotli"),
        ("tombstone.column", True),
        ("tombstone.column", None),
    ],
)
def test_a_bad_value_names_the_setting(name: str, value: object) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        TopicConfig.from_mapping({name: value})
    assert str(raised.value).startswith(f"{name} must be ")
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize("value", ["", " ", []])
def test_empty_cleanup_policy_removes_nothing(value: object) -> None:
    """Kafka's ``LogConfig`` allows it."""
    config = TopicConfig.from_mapping({"cleanup.policy": value})
    assert (config.compacts, config.deletes) == (False, False)
    assert TopicConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("retention.m", "did you mean retention.ms"),
        ("cleanup_policy", "did you mean cleanup.policy"),
        ("compression", "did you mean compression.type"),
        ("color", "the settings are cleanup.policy, retention.ms"),
        ("segment.ms", "has no meaning in txnstore"),
        ("min.insync.replicas", "has no meaning in txnstore"),
        (5, "there is no topic setting 5"),
    ],
)
def test_an_unknown_setting_gets_a_hint(name: str, says: str) -> None:
    """BUG-21."""
    with pytest.raises(InvalidConfigError, match=says):
        TopicConfig.from_mapping({name: "1"})


def test_contradictory_settings_are_rejected() -> None:
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms \(5\) must not exceed"):
        TopicConfig.from_mapping({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})
    with pytest.raises(InvalidConfigError, match=r"compression\.type 'gzip' does not go with arrow"):
        TopicConfig.from_mapping({"segment.format": "arrow", "compression.type": "gzip"})


def test_derived_properties_of_settings() -> None:
    both = TopicConfig.from_mapping({"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"})
    assert (both.compacts, both.deletes, both.append_time) == (True, True, True)
    plain = TopicConfig()
    assert (plain.compacts, plain.deletes, plain.append_time) == (False, True, False)


@pytest.mark.parametrize(("given", "codec"), [("producer", "zstd"), ("uncompressed", "none"), ("lz4", "lz4")])
def test_compression_for_the_codec(given: str, codec: str) -> None:
    assert TopicConfig.from_mapping({"compression.type": given}).compression == codec


def test_every_setting_takes_effect() -> None:
    """No setting is accepted that does nothing: each is used somewhere, itself or as the property derived from it."""
    derived = {
        "cleanup_policy": "deletes",
        "message_timestamp_type": "append_time",
        "compression_type": "compression",
        "table_format": "has_table",
    }
    package = Path(next(iter(txnstore.__path__)))
    files = [Path(at, name) for at, _, names in os.walk(package, followlinks=True) for name in names]
    code = "\n".join(file.read_text() for file in files if file.suffix == ".py")
    used = {derived.get(setting.attribute, setting.attribute) for setting in SETTINGS}
    assert [name for name in sorted(used) if f"config.{name}" not in code] == []


def test_alter_topic_without_a_change_writes_nothing(clock: ManualClock) -> None:
    store = create_on(MemoryStore(clock=clock), runtime=FixedRuntime(clock, clock.sleep))
    store.create_topic("a", partitions=2, config={"segment.bytes": "100000"})
    before = store.snapshot().sequence
    same = store.alter_topic("a", partitions=2, config={"segment.bytes": 100_000, "retention.ms": None})
    assert (same, store.snapshot().sequence) == (store.topic("a"), before)
    assert same.version == 0


# What gateways take ---------------------------------------------------------------------------------------------------


def test_settings_without_effect_are_taken_by_name_only() -> None:
    given = {"min.insync.replicas": "2", "retention.ms": "5"}
    config = TopicConfig.from_mapping(given, inert={"min.insync.replicas"})
    assert config.to_mapping() == given
    assert config == TopicConfig.from_stored(given)
    assert config.effective() == DEFAULTS | given
    with pytest.raises(InvalidConfigError, match=r"segment\.ms is a setting of Kafka"):
        TopicConfig.from_mapping({"segment.ms": "1"}, inert={"min.insync.replicas"})
    with pytest.raises(InvalidConfigError, match=r"message\.format\.version is a setting of Kafka"):
        TopicConfig.from_mapping({"message.format.version": "3.0"}, inert=INERT_NAMES | {"message.format.version"})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("min.insync.replicas", "0", "a whole number from 1"),
        ("segment.ms", "soon", "a whole number from 1"),
        ("preallocate", "maybe", "true or false"),
        ("remote.storage.enable", "true", "false"),
        ("leader.replication.throttled.replicas", 5, "a list of texts"),
    ],
)
def test_settings_without_effect_have_kafkas_ranges(name: str, value: object, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name} must be {reason}"):
        TopicConfig.from_mapping({name: value}, inert=INERT_NAMES)


def test_settings_without_effect_take_their_defaults() -> None:
    defaults = {setting.name: text_of(setting.default) for setting in INERT}
    assert TopicConfig.from_stored(defaults).to_mapping() == defaults
    assert not INERT_NAMES & set(DEFAULTS)


def test_an_alteration_keeps_settings_without_effect_and_can_reset_them() -> None:
    runtime = FixedRuntime(ManualClock())
    topic = new_topic(runtime, "t", 1, config={"segment.ms": "7", "retention.ms": "1"}, inert=INERT_NAMES)
    altered = altered_topic(topic, config={"retention.ms": "2"})
    assert altered.config == {"segment.ms": "7", "retention.ms": "2"}
    assert altered_topic(altered, config={"segment.ms": None}).config == {"retention.ms": "2"}
    with pytest.raises(InvalidConfigError, match="no meaning in txnstore"):
        altered_topic(topic, config={"flush.ms": "2"})
    with pytest.raises(InvalidConfigError, match="no meaning in txnstore"):
        altered_topic(topic, config={"flush.ms": None})
    assert altered_topic(topic, config={"flush.ms": None}, inert=INERT_NAMES).config == topic.config
