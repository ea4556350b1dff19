"""The description of a topic that users get: its columns as an Arrow schema, its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from txnstore.core.catalog import model
from txnstore.errors import CorruptionError
from txnstore.threads import load

if TYPE_CHECKING:
    import pyarrow as pa


@final
class Topic:
    """A topic as it was when :class:`txnstore.Store` returned it; equal descriptions are equal objects.

    Attributes:
        name: The name.
        topic_id: A UUID; a topic that is created again under the same name has another one.
        partitions: The number of partitions.
        schema: The columns; None for a topic of Kafka records.
        key: The column that chooses the partition, if there is one.
        timestamp: The column that holds the event time, if there is one.
        config: The settings that were given, under Kafka's names, without defaults.
        version: 0 for a new topic; grows with each change.
        created_at: When the topic was created, in milliseconds since the epoch.
    """

    __slots__ = ("_stored",)

    def __init__(self, stored: model.CatalogTopic) -> None:
        self._stored = stored

    @property
    def name(self) -> str:
        return self._stored.name

    @property
    def topic_id(self) -> str:
        return self._stored.topic_id

    @property
    def partitions(self) -> int:
        return self._stored.partitions

    @property
    def schema(self) -> pa.Schema | None:
        load("txnstore.segment.schema")
        from txnstore.segment.schema import schema_from_text

        return None if self._stored.schema is None else schema_from_text(self._stored.schema)

    @property
    def key(self) -> str | None:
        return self._stored.key

    @property
    def timestamp(self) -> str | None:
        return self._stored.timestamp

    @property
    def config(self) -> dict[str, str]:
        return dict(self._stored.config)

    @property
    def version(self) -> int:
        return self._stored.version

    @property
    def created_at(self) -> int:
        return self._stored.created_at

    def __eq__(self, other: object) -> bool:
        return self._stored == other._stored if isinstance(other, Topic) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic_id, self.version))

    def __repr__(self) -> str:
        parts = [repr(self.name), f"partitions={self.partitions}"]
        parts += [f"{name}={value!r}" for name in ("key", "timestamp") if (value := getattr(self, name)) is not None]
        try:
            schema = self.schema
            parts += [f"columns={schema.names}"] if schema is not None else []
        except CorruptionError as error:  # A list of topics must show the others.
            parts.append(f"columns=<{error}>")
        return f"Topic({', '.join(parts)})"
