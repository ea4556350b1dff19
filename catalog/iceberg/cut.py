"""The document of a cut: its creation decides which version of each table readers see."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from txnstore.chain.codec import Int64, Stored
from txnstore.chain.rules import Limits
from txnstore.core.model import value_class


@value_class(kw_only=True)
class Moment:
    """A moment of the chains.

    Attributes:
        heads: The last entry of each chain.
        timestamp: The time of the newest of them, in ms.
    """

    heads: list[Int64]
    timestamp: Int64


@value_class(kw_only=True)
class PublishedTable:
    """A table in a cut.

    Attributes:
        topic_id: The id of its topic, and of the table.
        number: The number of its version: ``v<number>.metadata.json`` has the bytes of ``metadata``.
        metadata: The key of its metadata.
        sha256: The SHA-256 of its bytes, in hex.
        snapshot_id: Its current snapshot; None: it has none.
        oldest: The time of the last entry of each chain, in ms, at the oldest snapshot that is retained; None: there is
            none. What the chain dropped later is in use.
        replaced: When the oldest retained snapshot was replaced by another one, in ms; None: it is the current one.
        rows: The rows that readers see.
        bytes: The size of its files.
        copied_bytes: The size of those of them that are copies of rows.
        dropped: The topic was deleted, or has no table any more.
        moment: What it shows, if it could not be published with the cut; None: the moment of the cut.
    """

    topic_id: str
    number: Annotated[int, Limits(ge=1)]
    metadata: str
    sha256: str
    snapshot_id: Int64 | None = None
    oldest: list[Int64] | None = None
    replaced: Int64 | None = None
    rows: Int64 = 0
    bytes: Int64 = 0
    copied_bytes: Int64 = 0
    dropped: bool = False
    moment: Moment | None = None


@value_class(kw_only=True)
class CutDocument(Stored):
    """A cut: one version of each table, all at the same closed cut of the chains, but for those with a ``moment``.

    Attributes:
        number: The number of the cut.
        publication_id: The publication that created it; no other one has this id.
        heads: The last entry of each chain.
        hashes: Their hashes, as the next entries name them (``previous``); empty in a cut of an earlier publisher.
        timestamp: The time of the newest of them, in ms.
        tables: The tables by topic.
        changed: Those of them that this cut has a new version of.
    """

    store_id: str
    number: Annotated[int, Limits(ge=1)]
    publication_id: str
    heads: list[Int64]
    hashes: list[str] = field(default_factory=list)
    timestamp: Int64
    tables: dict[str, PublishedTable]
    changed: list[str]

    @property
    def has_tables(self) -> bool:
        """Whether it shows any rows: all dropped tables have none."""
        return any(not table.dropped for table in self.tables.values())

    def moment_of(self, topic: str) -> Moment:
        """The moment that a table shows; that of the cut if it has no such table."""
        table = self.tables.get(topic)
        moment = table.moment if table is not None else None
        return moment if moment is not None else Moment(heads=self.heads, timestamp=self.timestamp)


@value_class(kw_only=True)
class LatestCutDocument(Stored):
    """A hint to the newest cut, whose versions were all created. May be stale, missing, or another store's."""

    store_id: str
    number: Annotated[int, Limits(ge=1)]
