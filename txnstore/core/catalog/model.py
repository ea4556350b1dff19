"""A topic, the commands that change it, and their events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the catalog knows it.

    ``schema`` is the Arrow schema in its text form, or None for a topic of Kafka records. ``version`` grows with each
    change, so that two who alter at once do not overwrite each other. ``config`` holds what was set, not the defaults.
    ``revision`` is the entry of the catalog's chain that made this value: it orders the copies in other chains.
    """

    name: str
    topic_id: str
    partitions: int
    schema: str | None = None
    key: str | None = None
    timestamp: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    version: int = 0
    created_at: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic. Answered with the :class:`~txnstore.core.catalog.model.Topic`."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Replace a topic's schema, settings, partition count. Refused if ``expected_version`` is not its version."""

    topic: Topic
    expected_version: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic. Answered with None.

    ``revision``: refused if it has another one; None: whatever it has. ``after``: for each other chain that leads a
    partition of it, an entry at which it is closed.
    """

    name: str
    revision: int | None = None
    after: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTopic:
    """Take over what the catalog's chain says of a topic, unless something newer is known. Answered with None.

    ``topic`` None: it was deleted. ``revision``: the entry of the catalog's chain that said so.
    """

    name: str
    topic: Topic | None
    revision: int


@dataclass(frozen=True, slots=True)
class CloseTopic:
    """Take no more records of a topic that is about to be deleted, and no copy of it. Answered with None.

    Without an effect on a copy that is newer than ``revision``: the deletion is refused by the catalog then.
    """

    name: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic exists from now on, with empty partitions."""

    type: Literal["TopicCreated"] = "TopicCreated"
    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAltered:
    """A topic has a new schema, new settings or more partitions. ``topic`` is the whole new value."""

    type: Literal["TopicAltered"] = "TopicAltered"
    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClosed:
    """A topic is being deleted, or is deleted and was not known here.

    A copy of at most this ``revision`` takes no records, and is not made any more.
    """

    type: Literal["TopicClosed"] = "TopicClosed"
    name: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic and its partitions are gone; its segments are garbage."""

    type: Literal["TopicDeleted"] = "TopicDeleted"
    name: str
    topic_id: str
    revision: int = 0
