"""Parses the values of options, which Spark passes as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError
from txnstore.validation import as_integer, check_choice
from txnstore.values.json_text import parse_setting

#: Kafka's numbers for the ends of a partition in JSON offsets.
EARLIEST, LATEST = -2, -1

#: Where a read begins or ends: offsets by partition, or ``earliest`` or ``latest`` for all partitions.
Offsets = str | Mapping[TopicPartition, int]


def parse_storage_value(key: str, text: str) -> Any:
    """Parse the value of a storage option, as the command line does."""
    try:
        return parse_setting(text)
    except ValueError as error:
        msg = f"the option {key} is not valid JSON ({error})"
        raise InvalidConfigError(msg) from None


def parse_names(option: str, text: str) -> list[str]:
    """Parse names separated by commas, each once; empty for empty text."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names:
        msg = f"the option {option} contains an empty name: {text!r}"
        raise InvalidConfigError(msg)
    return _check_distinct(option, text, names)


def parse_columns(text: str) -> list[str]:
    """Parse names separated by commas, or a JSON list of names, which may contain commas."""
    if not text.lstrip().startswith("["):
        return parse_names("columns", text)
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        msg = f'the option columns must be names separated by commas, or a JSON list like ["a","b"], not {text!r}'
        raise InvalidConfigError(msg)
    return _check_distinct("columns", text, names)


def _check_distinct(option: str, text: str, names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        msg = f"the option {option} contains a duplicate name: {text!r}"
        raise InvalidConfigError(msg)
    return names


def parse_integer(option: str, text: str, allowed: str = "an integer") -> int:
    """Parse an integer; ``allowed``: what the option may be, for an error."""
    try:
        return int(text.strip())
    except ValueError:
        msg = f"the option {option} must be {allowed}, not {text.strip()!r}"
        raise InvalidConfigError(msg) from None


def parse_integers(option: str, text: str) -> tuple[int, ...]:
    """Parse integers separated by commas."""
    allowed_text = "an integer, or several separated by commas"
    return tuple(parse_integer(option, part, allowed_text) for part in text.split(","))


def parse_offsets(option: str, text: str, topics: tuple[str, ...]) -> Offsets:
    """Parse ``earliest``, ``latest``, or JSON as in Spark's Kafka source; for a single topic its name is optional."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        msg = f'{option} must be earliest, latest or JSON like {{"topic":{{"0":23,"1":-2}}}}, not {text!r}'
        raise InvalidConfigError(msg)
    if parsed and not any(isinstance(value, dict) for value in parsed.values()):
        if len(topics) != 1:
            msg = f"{option} must name the topic of its offsets, because the read may have several"
            raise InvalidConfigError(msg)
        parsed = {topics[0]: parsed}
    result: dict[TopicPartition, int] = {}
    for topic, offsets in parsed.items():
        if topics and topic not in topics:
            msg = f"{option} names the topic {topic!r}, which is not read"
            raise InvalidConfigError(msg)
        if not isinstance(offsets, dict):
            msg = f"{option} must give offsets by partition for topic {topic!r}, not {offsets!r}"
            raise InvalidConfigError(msg)
        for partition, offset in offsets.items():
            if as_integer(offset) is None or offset < EARLIEST:
                msg = f"{option} of {topic}-{partition} must be an offset, -2 (earliest) or -1 (latest), not {offset!r}"
                raise InvalidConfigError(msg)
            result[TopicPartition(topic, parse_integer(option, partition))] = offset
    return result


def parse_boolean(option: str, text: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    return check_choice(option, text.strip().lower(), ("true", "false")) == "true"
