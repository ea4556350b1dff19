"""What a store must show: plain records with their offsets, and the outcomes of their transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

#: A record as readers show it: its partition, its offset, and itself.
Placed = tuple[int, int, "Rec"]
ISOLATIONS = ("read_committed", "read_uncommitted")
_DAY_MS = 86_400_000


@dataclass(eq=False)
class Txn:
    """A transaction, and how it ended.

    Attributes:
        name: Its transactional id, which no other transaction has.
        state: Its outcome; ``open`` until there is one.
        timed: Whether any process may abort it after its timeout.
    """

    name: str
    state: Literal["open", "committed", "aborted"] = "open"
    timed: bool = True


@dataclass(eq=False)
class Rec:
    """A record that was sent.

    Attributes:
        uid: Its number, in the column ``id`` or the first header.
        values: The values of the columns that it was sent with.
        txn: Its transaction; None: it was committed as it was appended.
        key: What compaction compares; None: it has no key.
        tombstone: Whether it deletes its key.
        timestamp: Its event time in ms; None until a first reader has shown the time of its append.
        place: Its topic, partition and offset, once it was found there.
        seen_at: When it was found in its log, by the clock of the history.
        erased: Whether a step has erased it, or has tried to.
    """

    uid: int
    values: dict[str, Any]
    txn: Txn | None
    key: Any = None
    tombstone: bool = False
    timestamp: int | None = None
    place: tuple[str, int, int] | None = None
    seen_at: int = 0
    erased: bool = False

    @property
    def committed(self) -> bool:
        return self.txn is None or self.txn.state == "committed"


@dataclass
class Part:
    """A partition.

    Attributes:
        log_start: The first offset that was not deleted.
        present: The records that are there, by offset.
        past: All that were ever there.
        wanted: The log start that a step has asked for.
    """

    log_start: int = 0
    wanted: int | None = None
    present: dict[int, Rec] = field(default_factory=dict)
    past: dict[int, Rec] = field(default_factory=dict)

    def visible(self, isolation: str) -> list[tuple[int, Rec]]:
        """What a reader sees."""
        rows = [(offset, rec) for offset, rec in sorted(self.present.items()) if offset >= self.log_start]
        if isolation == "read_uncommitted":
            return rows
        stable = self.stable
        return [(offset, rec) for offset, rec in rows if rec.committed and (stable is None or offset < stable)]

    @property
    def stable(self) -> int | None:
        """The offset of the first record of an open transaction; None if none is open."""
        open_ = [offset for offset, rec in self.past.items() if rec.txn is not None and rec.txn.state == "open"]
        return min(open_, default=None)

    def may_be_cleaned(self, offset: int, config: Mapping[str, str], now: int) -> bool:
        """Whether a compaction under these settings may have removed a record."""
        rec = self.past[offset]
        if rec.erased or (rec.txn is not None and rec.txn.state == "aborted"):
            return True
        if "compact" not in config.get("cleanup.policy", "delete"):
            return False
        if rec.key is None:
            return True
        horizon = rec.seen_at + int(config.get("delete.retention.ms", _DAY_MS))
        if rec.tombstone and now >= horizon:
            return True
        return any(other > offset and each.key == rec.key and each.committed for other, each in self.past.items())


@dataclass
class Topic:
    """A topic in one of its lives.

    Attributes:
        name: Its name.
        life: The number of the life, unique in a history.
        schema: Its columns; None: those of Kafka's records.
        key: The column that is the key of compaction.
        timestamp: The column with the event time.
        config: Its settings, as text.
        parts: Its partitions.
        rounded: The columns of doubles that were columns of floats: their values are those of floats.
    """

    name: str
    life: int
    schema: pa.Schema | None
    key: str | None
    timestamp: str | None
    config: dict[str, str]
    parts: list[Part]
    rounded: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        """The columns that readers show."""
        return ["key", "value", "headers", "timestamp"] if self.schema is None else list(self.schema.names)

    @property
    def tombstone(self) -> str | None:
        """The column that marks tombstones; None: there is none."""
        return self.config.get("tombstone.column")

    @property
    def has_table(self) -> bool:
        return self.config.get("table.format") == "iceberg"

    def placed(self, isolation: str) -> list[Placed]:
        """What a reader sees, by partition and offset."""
        return [
            (number, offset, rec) for number, part in enumerate(self.parts) for offset, rec in part.visible(isolation)
        ]


@dataclass(frozen=True)
class Shown:
    """What readers see of a topic at a moment."""

    name: str
    life: int
    schema: pa.Schema | None
    names: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    rows: Mapping[str, list[Placed]]
    has_table: bool
    key: str | None
    tombstone: str | None


#: What readers see of all topics at a moment.
Moment = Mapping[str, Shown]


class Model:
    """The topics of a history."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        #: Every record that was sent, by its number.
        self.sent: dict[int, Rec] = {}

    def moment(self) -> Moment:
        """What readers see now."""
        return {
            name: Shown(
                name,
                topic.life,
                topic.schema,
                tuple(topic.names),
                tuple(part.log_start for part in topic.parts),
                tuple(max([part.log_start, *(offset + 1 for offset in part.past)]) for part in topic.parts),
                {isolation: topic.placed(isolation) for isolation in ISOLATIONS},
                topic.has_table,
                topic.key,
                topic.tombstone,
            )
            for name, topic in self.topics.items()
        }
