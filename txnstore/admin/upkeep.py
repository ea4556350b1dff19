"""What is not maintained: topics with settings that no process applies, and records past their retention."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

from txnstore.catalog.settings import TopicConfig
from txnstore.chain.maintained import read_maintained
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.retention import overdue_since, plan_retention
from txnstore.core.view import View
from txnstore.errors import CorruptionError, StorageError
from txnstore.metrics import MAINTENANCE_KINDS, MaintenanceStatus, RetentionStatus
from txnstore.phrases import duration
from txnstore.runtime import level_of_caller
from txnstore.validation import UnmaintainedStoreWarning

_LOG = logging.getLogger(__name__)

#: A store that was not maintained for so long is not maintained, in ms.
NEGLECTED_MS = 3_600_000
#: The command that maintains a store.
COMMAND = "txnstore maintain"


def needs_of(topic: CatalogTopic) -> dict[str, str]:
    """The kinds of maintenance that the settings of a topic ask for, each with the name of a setting.

    Raises:
        CorruptionError: The settings cannot be read.
    """
    config = TopicConfig.from_stored(topic.config)
    needs = {"compact": "cleanup.policy=compact"} if config.compacts else {}
    if config.deletes and config.retention_ms >= 0:
        needs["retain"] = "retention.ms"
    elif config.deletes and config.retention_bytes >= 0:
        needs["retain"] = "retention.bytes"
    return needs


def describe_neglect(topic: CatalogTopic, maintained_at: dict[str, int], now: int) -> str:
    """Say which setting of a topic no process applies, and for how long; an empty text if all are applied.

    Args:
        maintained_at: When each kind of maintenance was last done, in ms.
        now: The time in ms.
    """
    neglected = {
        kind: setting
        for kind, setting in needs_of(topic).items()
        if now - maintained_at.get(kind, -NEGLECTED_MS) > NEGLECTED_MS
    }
    if not neglected:
        return ""
    settings = " and ".join(neglected[kind] for kind in sorted(neglected))
    latest = max((maintained_at[kind] for kind in neglected if kind in maintained_at), default=None)
    since = (
        "no process has maintained the store yet"
        if latest is None
        else f"the last time was {duration(now - latest)} ago"
    )
    return f"topic {topic.name!r} has {settings}, which takes effect when the store is maintained, and {since}"


def neglect_of(connection: Connection, topic: CatalogTopic) -> str:
    """Say which setting of a topic no process applies, and what to do; empty if all are applied, or that is unknown.

    One GET if the topic has such settings.
    """
    try:
        if not needs_of(topic):
            return ""
        maintained_at = read_maintained(connection.objects, connection.keys)
    except (StorageError, CorruptionError) as error:
        _LOG.info("whether the store is maintained is unknown", extra={"error": str(error)})
        return ""
    text = describe_neglect(topic, maintained_at, connection.runtime.clock())
    return f"{text}: run `{COMMAND}`, or a gateway with --maintain" if text else ""


def warn_if_neglected(connection: Connection, topic: CatalogTopic) -> None:
    """Issue an :class:`UnmaintainedStoreWarning` if no process applies a setting of a topic."""
    text = neglect_of(connection, topic)
    if text:
        warnings.warn(text, UnmaintainedStoreWarning, stacklevel=level_of_caller())


def maintenance_status(connection: Connection, now: int) -> tuple[MaintenanceStatus, ...]:
    """How long ago each kind of maintenance was last done; before the first time, since the store was created."""
    maintained_at = read_maintained(connection.objects, connection.keys)
    return tuple(
        MaintenanceStatus(kind, max(0, now - maintained_at.get(kind, connection.created_at)) / 1000)
        for kind in MAINTENANCE_KINDS
    )


def retention_status(view: View, now: int) -> tuple[RetentionStatus, ...]:
    """For how long the oldest record of each topic with a retention should have been deleted."""
    return tuple(
        RetentionStatus(topic.name, max(overdue_times(view, topic, config, now), default=0) / 1000)
        for topic, config in _with_retention(view)
    )


def overdue_times(view: View, topic: CatalogTopic, config: TopicConfig, now: int) -> Iterator[int]:
    """Yield for how long the oldest batch of each partition should have been deleted, in ms, where that is so."""
    for _, log in view.partitions_of(topic.name):
        since = overdue_since(log, config.retention_ms, config.retention_bytes)
        if since is not None and since < now:
            yield now - since


def _with_retention(view: View) -> Iterator[tuple[CatalogTopic, TopicConfig]]:
    """Yield the topics with a retention, and their settings; not those whose settings cannot be read."""
    for topic in view.sorted_topics():
        try:
            config = TopicConfig.from_stored(topic.config)
        except CorruptionError:
            continue  # The doctor and the retention report it.
        if config.deletes and max(config.retention_ms, config.retention_bytes) >= 0:
            yield topic, config


def is_retention_due(view: View, now: int) -> bool:
    """Whether a retention deletes a record at a time in ms, as far as the settings can be read."""
    return any(
        plan_retention(log, config.retention_ms, config.retention_bytes, now).removed
        for topic, config in _with_retention(view)
        for _, log in view.partitions_of(topic.name)
    )
