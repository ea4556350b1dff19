"""What is read of a history's tables, and what the rows must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.readers.compare import EXACT, Manner, Row, canonical, difference, expected_rows
from tests.readers.history import History, Publication, newest_version, version_of


@dataclass(frozen=True)
class Range:
    """A condition on rows, by which engines leave files and row groups out.

    Attributes:
        partition: The partition; None: all.
        column: ``_offset`` or ``_timestamp``.
        first: The smallest value, inclusive: an offset, or milliseconds since the epoch.
        end: The end, exclusive.
    """

    partition: int | None
    column: str
    first: int
    end: int

    def has(self, row: Row) -> bool:
        """Whether a row in canonical form is one of them."""
        value = row[self.column] if self.column == "_offset" else row[self.column] // 1000
        return bool(self.first <= value < self.end) and self.partition in {None, row["_partition_id"]}


@dataclass(frozen=True)
class Read:
    """A snapshot of a table that is to be read.

    Attributes:
        topic: The topic.
        metadata: The location of the version of the metadata.
        number: The number of the version.
        snapshot_id: The snapshot; None: the current one of this version.
        heads: The last entry of each chain that it shows.
        dropped: Whether this version says that there is no such table any more.
        late: Whether the topic was without a table for some time.
        where: Which rows; None: all.
        after: Only the rows that snapshots after this one have appended, up to the current one; None: all.
        stream: The numbers of versions of the table: what a stream reads that continues at each of them. Empty: this is
            no stream.
    """

    topic: str
    metadata: str
    number: int
    snapshot_id: int | None
    heads: tuple[int, ...]
    dropped: bool = False
    late: bool = False
    where: Range | None = None
    after: int | None = None
    stream: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """What is counted together: ``snapshots``, ``ranges`` of their rows, ``increments``, or ``streams``."""
        if self.where is not None:
            return "ranges"
        if self.stream:
            return "streams"
        return "snapshots" if self.after is None else "increments"


@dataclass
class Result:
    """What an engine has read.

    Attributes:
        reads: How many reads of each kind.
        equal: How many of them are equal.
        rows: The rows of each kind.
        problems: What differs, one line for each read that does.
    """

    reads: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.reads.update(other.reads)
        self.equal.update(other.equal)
        self.rows.update(other.rows)
        self.problems += other.problems

    def count(self, read: Read, rows: int, problem: str | None) -> None:
        """Count a read."""
        self.reads[read.kind] += 1
        self.equal[read.kind] += problem is None
        self.rows[read.kind] += rows
        if problem is not None:
            self.problems.append(f"{read}: {problem}")

    def __str__(self) -> str:
        return "; ".join(
            f"{self.equal[kind]} of {count} {kind} equal, {self.rows[kind]:,} rows"
            for kind, count in self.reads.items()
        )


def reads(history: History) -> list[Read]:
    """Each publication by its own version, and by the newest version each one that it still retains."""
    listed = [
        Read(
            each.topic,
            version_of(history.store, each.topic, each.version),
            each.version,
            None,
            each.heads,
            dropped=each.dropped,
            late=each.late,
        )
        for each in history.publications
    ]
    for topic in history.topics:
        number = newest_version(history.store, topic)
        newest = version_of(history.store, topic, number)
        retained = history.table(newest).snapshots
        life = [each for each in history.publications if each.topic == topic][-1]
        for each in history.publications:
            same = (each.topic, each.topic_id, each.life) == (topic, life.topic_id, life.life)
            if same and not each.dropped and each.snapshot_id in retained:
                listed.append(Read(topic, newest, number, each.snapshot_id, each.heads))
    return list(dict.fromkeys(listed))


#: Reads the rows of a table; it may leave out the condition on rows.
Reader = Callable[[Read], list[Row]]


def plain_reader(history: History) -> Reader:
    """The plain reader, which knows no conditions."""
    return lambda read: history.table(read.metadata).rows(read.snapshot_id)


class Check:
    """Compares what engines read with what ``scan`` returns, which is read once for each snapshot.

    Args:
        history: The history.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._expected: dict[tuple[str, tuple[int, ...]], list[Row]] = {}
        whole = reads(history)
        ranges = [replace(read, where=where) for read in whole for where in self._ranges(read)]
        self.reads = [*whole, *ranges, *self._followed()]

    def run(self, reader: Reader, manner: Manner = EXACT, kinds: Collection[str] = ("snapshots",)) -> Result:
        """Let a reader read what it can; see :attr:`Read.kind`."""
        result = Result()
        for read in self.reads:
            if read.kind not in kinds or (read.where is not None and not _is_right(read, read.where, manner)):
                continue
            found: list[Row] = []
            try:
                found = reader(read)
                problem = self._problem(read, found, manner)
            except Exception as error:  # noqa: BLE001 - whatever an engine raises is what it says of this table.
                problem = f"{type(error).__name__}: {error}"
            result.count(read, len(found), problem)
        return result

    def _problem(self, read: Read, found: list[Row], manner: Manner) -> str | None:
        """What is wrong with rows; columns that were added after a snapshot may be there, as nulls, or not."""
        schema = self._history.table(read.metadata).schema(None)
        names = [each["name"] for each in schema["fields"]]
        if read.kind == "snapshots" and read.snapshot_id is None and found and sorted(found[0]) != sorted(names):
            return f"the columns are {sorted(found[0])}, not {sorted(names)}"
        expected = canonical(schema, self._rows(read), manner)
        if read.where is not None:
            expected = [row for row in expected if read.where.has(row)]
        return difference(expected, canonical(schema, found, manner))

    def _rows(self, read: Read) -> list[Row]:
        if read.kind in {"increments", "streams"}:
            return self._appended(read)
        if read.dropped:
            return []
        key = read.topic, read.heads
        if key not in self._expected:
            store = self._history.store
            entry = read.heads if len(read.heads) > 1 else read.heads[0]
            self._expected[key] = expected_rows(store, read.topic, store.snapshot(entry=entry))
        return self._expected[key]

    def _appended(self, read: Read) -> list[Row]:
        """The rows of the ``append`` snapshots of the versions of a read, each snapshot once."""
        versions = [version_of(self._history.store, read.topic, number) for number in read.stream] or [read.metadata]
        appended: dict[int, list[Row]] = {}
        for table in map(self._history.table, versions):
            first = -1 if read.after is None else table.snapshots[read.after]["sequence-number"]
            for number, snapshot in table.snapshots.items():
                new = snapshot["sequence-number"] > first and number not in appended
                if new and snapshot["summary"]["operation"] == "append":
                    appended[number] = table.appended(number)
        return [row for rows in appended.values() for row in rows]

    def _followed(self) -> Iterator[Read]:
        """Of each table the increments since its oldest retained snapshot, and a stream over all of its versions."""
        history = self._history
        for topic in history.topics:
            *_, last = (each for each in history.publications if each.topic == topic)
            life = [
                each
                for each in history.publications
                if (each.topic, each.topic_id, each.life) == (topic, last.topic_id, last.life) and not each.dropped
            ]
            read = Read(topic, version_of(history.store, topic, last.version), last.version, None, last.heads)
            table = history.table(read.metadata)
            if last.dropped or table.current is None:
                continue
            yield replace(read, after=min(table.snapshots, key=lambda each: table.snapshots[each]["sequence-number"]))
            yield replace(read, stream=tuple(each.version for each in life))

    def _ranges(self, read: Read) -> Iterator[Range]:
        """Of each publication a range of offsets and one of times, both in the middle of its rows."""
        rows = canonical(self._history.table(read.metadata).schema(None), self._rows(read))
        if read.snapshot_id is not None or not rows:
            return
        offsets = sorted(row["_offset"] for row in rows)
        yield Range(rows[len(rows) // 2]["_partition_id"], "_offset", *_middle(offsets))
        yield Range(None, "_timestamp", *_middle(sorted(row["_timestamp"] // 1000 for row in rows)))


def _is_right(read: Read, where: Range, manner: Manner) -> bool:
    """Whether an engine reads a range without known faults."""
    return not (manner.misses_late_times and read.late and where.column == "_timestamp")


def _middle(values: list[int]) -> tuple[int, int]:
    """From the value after the first third of ascending ones to that after the second."""
    return values[len(values) // 3], values[len(values) * 2 // 3] + 1


class Increments:
    """What a reader sees that follows the ``append`` snapshots of the tables of a history, one after the other."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], set[int]] = {}
        #: The last offset of each partition of each table that was appended.
        self._last: dict[tuple[str, str, int], dict[int, int]] = {}
        self._appended: dict[tuple[str, str, int], set[tuple[int, int]]] = {}
        #: The snapshot that a reader has followed each table to.
        self._current: dict[tuple[str, str, int], int] = {}
        self.rows = 0
        self.problems: list[str] = []

    def follow(self, history: History, publication: Publication) -> None:
        """Read what a publication has appended."""
        if publication.dropped:
            return
        table = history.table(publication.metadata)
        key = publication.topic, publication.topic_id, publication.life
        seen = self._seen.setdefault(key, set())
        for number, snapshot in table.snapshots.items():
            if number in seen:
                continue
            seen.add(number)
            if snapshot["summary"]["operation"] == "append":
                self._append(key, number, table.appended(number))
        followed = self._current.get(key)
        if followed is not None and followed not in table.snapshots:
            self.problems.append(
                f"{publication}: it has removed the snapshot {followed}, which was the current one before it"
            )
        if table.current is not None:
            self._current[key] = table.current
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
