"""What a gateway may answer otherwise than the recorded broker: the allowed differences, each with its reason.

Most are requests that no client sends, or fields that none reads. Those that a client notices are rows of
``docs/kafka-differences.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: The names by which parts of a response are sorted: their order says nothing.
_SORTED_BY = ("index", "partition_index", "group_id", "transactional_id", "name", "topic_id")


@dataclass(frozen=True)
class Difference:
    """A field with two values; ``path`` has the names of the fields that lead to it."""

    label: str
    path: str
    kafka: Any
    gateway: Any

    def __str__(self) -> str:
        return f"{self.label}: {self.path}: Kafka has {self.kafka!r}, the gateway {self.gateway!r}"


@dataclass(frozen=True)
class Allowed:
    """An allowed difference: regular expressions of scenarios, labels and fields, and the values as JSON shows them."""

    scenario: str
    label: str
    path: str
    kafka: str
    gateway: str
    why: str

    def allows(self, scenario: str, difference: Difference) -> bool:
        """Whether it allows this one."""
        return all(
            re.fullmatch(pattern, str(value))
            for pattern, value in (
                (self.scenario, scenario),
                (self.label, difference.label),
                (self.path, difference.path),
                (self.kafka, difference.kafka),
                (self.gateway, difference.gateway),
            )
        )


def differences(kafka: Sequence[tuple[str, Any]], gateway: Sequence[tuple[str, Any]]) -> Iterator[Difference]:
    """All differences between two runs of a scenario."""
    answers = dict(gateway)
    for label, expected in kafka:
        yield from _differences(label, "", _sorted(expected), _sorted(answers.get(label, "not asked")))


def _differences(label: str, path: str, expected: Any, actual: Any) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in {**expected, **actual}:
            yield from _differences(label, f"{path}.{key}".lstrip("."), expected.get(key), actual.get(key))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for one, other in zip(expected, actual, strict=True):
            yield from _differences(label, path, one, other)
    elif expected != actual:
        yield Difference(label, path, expected, actual)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [_sorted(item) for item in value]
    if all(isinstance(item, str) for item in items):
        return sorted(items)
    for name in _SORTED_BY:
        if items and all(isinstance(item, dict) and name in item for item in items):
            return sorted(items, key=lambda item: str(item[name]))
    return items


ALLOWED: tuple[Allowed, ...] = (
    Allowed("versions_of_apis", "a client .*", "", "invalid_request", "none", "names of software are not checked"),
    Allowed("metadata", "neither name nor id, .*", ".*", ".*", ".*", "a broker's answer is an internal error"),
    Allowed(
        "metadata",
        ".*DESCRIBE_TOPIC_PARTITIONS.*",
        "topics.topic_authorized_operations",
        "3576",
        "-2147483648",
        "authorized operations are answered where a request asks for them",
    ),
    Allowed(
        "producers_of_partitions",
        ".*",
        ".*coordinator_epoch",
        "-1",
        "0",
        "the epoch of a coordinator, which there is not, is 0, also before the first marker",
    ),
    Allowed(
        "transactions|ends",
        ".*, DESCRIBE_TRANSACTIONS 0",
        "began",
        "True",
        "False",
        "a transaction that has ended has no time at which it began",
    ),
    Allowed("transactions", "open for .*", "", ".*", ".*", "the filter by duration lists open transactions only"),
    Allowed(
        "markers_by_hand",
        "of the abort again, .*",
        ".*error_code",
        "none",
        "invalid_producer_epoch",
        "a marker that has nothing to end is refused (END-08), and appends nothing",
    ),
    Allowed("markers_by_hand", "the end after .*", ".*offset", ".*", ".*", "so the log is shorter"),
    Allowed(
        ".*",
        ".*PRODUCE .*",
        "responses.partition_responses.log_append_time",
        "1000",
        "None",
        "the answer to a duplicate has no timestamp: its client takes that of its record, which is the same",
    ),
    Allowed(
        ".*",
        ".*PRODUCE .*",
        "responses.partition_responses.log_start_offset",
        r"\d+",
        "-1",
        "an error comes without the log start, which only an answer of older brokers needs",
    ),
    Allowed("appends", "no records, .*", "", "no answer", ".*", "a broker does not answer"),
    Allowed(
        "appends",
        "a transactional batch without a producer, .*",
        ".*error_code",
        "transactional_id_authorization_failed",
        "invalid_record",
        "the batch has no producer id, and the request no id: either may be named",
    ),
    Allowed(
        "appends",
        "an unknown compression, .*",
        ".*error_code",
        "unknown_server_error",
        "unsupported_compression_type",
        "a broker's answer is an internal error",
    ),
    Allowed(
        "sequences",
        ".*that nobody knows.*",
        ".*(error_code|base_offset)",
        ".*",
        "invalid_producer_id_mapping|-1",
        "a producer id that this store has not granted is refused",
    ),
    Allowed(
        "listed_offsets",
        "the newest time, after an abort, .*",
        ".*(timestamp|offset)",
        ".*",
        "1002|2",
        "a broker names the marker, which is newer than all records; here it has no time",
    ),
    Allowed(
        "offsets_of_transactions",
        "an (unknown|empty) id, .*",
        ".*error_code",
        "none",
        "invalid_producer_id_mapping",
        "a broker that has pending offsets of the producer does not look at the id",
    ),
    Allowed(
        "ends",
        "the opposite after an abort, END_TXN 5",
        "error_code",
        "invalid_txn_state",
        "producer_fenced",
        "the commit of an aborted transaction is refused as a stale epoch, as in later brokers (KAFKA-20785)",
    ),
    Allowed(
        "late_requests",
        "the same record, PRODUCE 11",
        ".*(error_code|base_offset|log_start_offset)",
        "transaction_abortable|-1",
        "none|0",
        "a batch of an ended transaction of the session is a duplicate",
    ),
    Allowed(
        "transactional_appends",
        "(an empty id|of another id), .*",
        ".*(error_code|base_offset)",
        r"none|\d+",
        "invalid_producer_id_mapping|-1",
        "a broker in which the producer's transaction is open does not look at the id",
    ),
    Allowed(
        "heartbeats_of_kip_848",
        ".*, CONSUMER_GROUP_HEARTBEAT .",
        "member_epoch",
        "2",
        "1",
        "generations begin at 1",
    ),
    Allowed(
        "heartbeats_of_kip_848",
        "(an epoch of no member|who never joined leaves), .*",
        "error_code",
        "group_id_not_found",
        "unknown_member_id",
        "who is in no group is no member, whether there is the group or not; it joins again",
    ),
    Allowed(
        "heartbeats_of_kip_848",
        "a member of the older protocol, .*",
        "error_code|member_id",
        "member.*",
        "inconsistent_group_protocol|",
        "a group has members of one kind",
    ),
    Allowed(
        "descriptions_of_groups",
        "(offsets again|an unknown topic), OFFSET_DELETE 0",
        "error_code|topics",
        "none|.*partition_index.*",
        r"group_id_not_found|\[\]",
        "a group without offsets and without members does not exist",
    ),
)
