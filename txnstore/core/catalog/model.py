"""A topic, the commands that change it, and their events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from txnstore.core.model import Command, Map, value_class


@value_class()
class CatalogTopic:
    """A topic of the catalog.

    Attributes:
        topic_id: The id; a topic that is created again under the same name has another id.
        partitions: The number of partitions.
        schema: The Arrow schema in its text form, or None for a topic of Kafka records.
        key: The name of the key column, if there is one.
        timestamp: The name of the timestamp column, if there is one.
        config: The settings that were given, without defaults.
        version: Grows with each change; a concurrent change is detected by it.
        created_at: The time of the creation in ms.
        revision: The entry of chain 0 that holds this value; it orders the copies in other chains.
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


def folded_name(name: str) -> str:
    """Return the form of a topic name in which names that a file system or a metric cannot tell apart are equal.

    Kafka cannot in metrics (``Topic.hasCollision``: ``.`` and ``_``). SQL cannot in names of views, nor can the file
    systems of macOS and Windows in names of folders: they ignore case.
    """
    return name.replace(".", "_").casefold()


def alike(names: Iterable[str]) -> Map[str, tuple[str, ...]]:
    """Return the names by their folded form, each in order. Only older releases have created several with one form."""
    names_by_form: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        names_by_form[folded_name(name)] = (*names_by_form.get(folded_name(name), ()), name)
    return Map(names_by_form)


@value_class()
class CreateTopic(Command):
    """Create a topic. Answered with the :class:`CatalogTopic`."""

    topic: CatalogTopic


@value_class()
class AlterTopic(Command):
    """Replace the schema, settings and partition count of a topic. Answered with the :class:`CatalogTopic`.

    Refused if the topic does not have the version ``expected_version``.
    """

    topic: CatalogTopic
    expected_version: int


@value_class()
class DeleteTopic(Command):
    """Delete a topic. Answered with None.

    Attributes:
        name: The topic.
        revision: The revision to delete; the command is refused if the topic has another one. None: any revision.
        after: For each other chain that leads a partition of the topic, an entry at which the chain has closed it.
    """

    name: str
    revision: int | None = None
    after: tuple[tuple[int, int], ...] = ()


@value_class()
class CopyTopic(Command):
    """Copy a topic from the catalog's chain, unless this chain has a newer revision. Answered with None.

    Attributes:
        name: The topic.
        topic: The value in the catalog; None: the topic is deleted.
        revision: The entry of chain 0 that holds this value.
    """

    name: str
    topic: CatalogTopic | None
    revision: int


@value_class()
class CloseTopic(Command):
    """Refuse records and copies of a topic that is about to be deleted. Answered with None.

    It has no effect on a copy that is newer than ``revision``: the catalog refuses the deletion in that case.
    """

    name: str
    revision: int


@value_class(kw_only=True)
class TopicCreated:
    """A topic was created, with empty partitions."""

    type: Literal["TopicCreated"] = "TopicCreated"
    topic: CatalogTopic


@value_class(kw_only=True)
class TopicAltered:
    """The schema, settings or partition count of a topic changed. ``topic`` is the complete new value."""

    type: Literal["TopicAltered"] = "TopicAltered"
    topic: CatalogTopic


@value_class(kw_only=True)
class TopicClosed:
    """A topic is being deleted, or is deleted and this chain did not know it.

    A copy with this ``revision`` or an older one takes no records, and no such copy is made.
    """

    type: Literal["TopicClosed"] = "TopicClosed"
    name: str
    revision: int


@value_class(kw_only=True)
class TopicDeleted:
    """A topic was deleted with its partitions; its segments are dropped."""

    type: Literal["TopicDeleted"] = "TopicDeleted"
    name: str
    topic_id: str
    revision: int = 0
