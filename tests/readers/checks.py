"""What is read of a history's tables, and what the rows must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.readers.compare import EXACT, Manner, Row, canonical, difference, expected_rows
from tests.readers.history import History, Publication, newest_version, version_of
from tests.readers.plain import PlainTable


@dataclass(frozen=True)
class Read:
    """A snapshot of a table that is to be read.

    Attributes:
        topic: The topic.
        metadata: The location of the version of the metadata.
        number: The number of the version.
        snapshot_id: The snapshot; None: the current one of this version.
        heads: The last entry of each chain that it shows.
    """

    topic: str
    metadata: str
    number: int
    snapshot_id: int | None
    heads: tuple[int, ...]


@dataclass
class Result:
    """What an engine has read.

    Attributes:
        reads: How many snapshots.
        rows: How many rows.
        problems: What differs, one line for each read that does.
    """

    reads: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.reads += other.reads
        self.rows += other.rows
        self.problems += other.problems


def reads(history: History) -> list[Read]:
    """Each publication by its own version, and by the newest version each one that it still retains."""
    listed = [
        Read(each.topic, version_of(history.store, each.topic, each.version), each.version, None, each.heads)
        for each in history.publications
    ]
    for topic in history.topics:
        number = newest_version(history.store, topic)
        newest = version_of(history.store, topic, number)
        retained = PlainTable(newest).snapshots
        life = [each for each in history.publications if each.topic == topic][-1]
        for each in history.publications:
            same = (each.topic, each.topic_id, each.life) == (topic, life.topic_id, life.life)
            if same and each.snapshot_id in retained:
                listed.append(Read(topic, newest, number, each.snapshot_id, each.heads))
    return list(dict.fromkeys(listed))


#: Reads the rows of a table.
Reader = Callable[[Read], list[Row]]


def read_plainly(read: Read) -> list[Row]:
    """The rows as the plain reader sees them."""
    return PlainTable(read.metadata).rows(read.snapshot_id)


class Check:
    """Compares what engines read with what ``scan`` returns, which is read once for each snapshot.

    Args:
        history: The history.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._expected: dict[tuple[str, tuple[int, ...]], list[Row]] = {}
        self.reads = reads(history)

    def run(self, reader: Reader, manner: Manner = EXACT) -> Result:
        """Read all snapshots."""
        result = Result()
        for read in self.reads:
            result.reads += 1
            try:
                found = reader(read)
                result.rows += len(found)
                problem = self._problem(read, found, manner)
            except Exception as error:  # noqa: BLE001 - whatever an engine raises is what it says of this table.
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                result.problems.append(f"{read}: {problem}")
        return result

    def _problem(self, read: Read, found: list[Row], manner: Manner) -> str | None:
        """What is wrong with rows; columns that were added after a snapshot may be there, as nulls, or not."""
        schema = PlainTable(read.metadata).schema(None)
        names = [each["name"] for each in schema["fields"]]
        if read.snapshot_id is None and found and sorted(found[0]) != sorted(names):
            return f"the columns are {sorted(found[0])}, not {sorted(names)}"
        return difference(canonical(schema, self._rows(read), manner), canonical(schema, found, manner))

    def _rows(self, read: Read) -> list[Row]:
        key = read.topic, read.heads
        if key not in self._expected:
            store = self._history.store
            entry = read.heads if len(read.heads) > 1 else read.heads[0]
            self._expected[key] = expected_rows(store, read.topic, store.snapshot(entry=entry))
        return self._expected[key]


class Increments:
    """What a reader sees that follows the ``append`` snapshots of the tables of a history, one after the other."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], set[int]] = {}
        #: The last offset of each partition of each table that was appended.
        self._last: dict[tuple[str, str, int], dict[int, int]] = {}
        self._appended: dict[tuple[str, str, int], set[tuple[int, int]]] = {}
        self.rows = 0
        self.problems: list[str] = []

    def follow(self, publication: Publication) -> None:
        """Read what a publication has appended."""
        table = PlainTable(publication.metadata)
        key = publication.topic, publication.topic_id, publication.life
        seen = self._seen.setdefault(key, set())
        for number, snapshot in table.snapshots.items():
            if number in seen:
                continue
            seen.add(number)
            if snapshot["summary"]["operation"] == "append":
                self._append(key, number, table.appended(number))
        visible = {(row["_partition_id"], row["_offset"]) for row in table.rows()}
        missing = visible - self._appended.get(key, set())
        if missing:
            self.problems.append(f"{publication}: rows were never appended: {sorted(missing)[:5]}")

    def _append(self, key: tuple[str, str, int], number: int, rows: list[dict[str, Any]]) -> None:
        places = sorted((row["_partition_id"], row["_offset"]) for row in rows)
        appended, last = self._appended.setdefault(key, set()), self._last.setdefault(key, {})
        for partition, offset in places:
            if offset <= last.get(partition, -1):
                self.problems.append(f"{key}: snapshot {number} appends offset {offset} of {partition} once more")
                return
            last[partition] = offset
        appended.update(places)
        self.rows += len(places)
