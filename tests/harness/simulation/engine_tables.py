"""Tables as an engine reads them, without the code under test; and the rows that they must have at a cut."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import fastavro
import pyarrow.parquet as pq

from tests.harness.simulation.journal import Journal, life
from tests.harness.simulation.world import KEYED, PASSING, TABLES_AT
from tests.helpers import keys
from txnstore.catalog.iceberg import groups
from txnstore.chain.payload import decode_entry
from txnstore.core.catalog.model import TopicCreated
from txnstore.core.log.events import BatchesAppended, LogStartMoved, MarkerWritten
from txnstore.core.model import Outcome
from txnstore.core.transactions.events import ProducerInitialized, TxnDecided
from txnstore.tables import publish, published, sweep, version

#: The rows of a table: the key and the value of each, by partition and offset.
Rows = dict[tuple[int, int], tuple[bytes | None, int | None]]
#: Returns the bytes of the object of this name.
Get = Callable[[str], bytes]
#: A transaction.
_Txn = tuple[int, int]

#: The limits of tables in runs that have some, all shorter than the grace period of their vacuums, but for the last.
_SHORT: tuple[tuple[ModuleType, str, int], ...] = (
    (version, "HISTORY_MS", 400_000),
    (publish, "HISTORY_MS", 400_000),
    (version, "HISTORY_SNAPSHOTS", 5),
    (publish, "_MAX_PUBLICATION_MS", 300_000),
    (publish, "HINT_EVERY", 2),
    (published, "HINT_EVERY", 2),
    (sweep, "_MAX_WORK_MS", 600_000),
    (groups, "_MAX_SMALL", 3),
    (sweep, "CUT_RETENTION_MS", 10_000_000),
)


@contextmanager
def short_lived_tables(*, tables: bool) -> Iterator[None]:
    """Inside the block, publishers and vacuums have short limits, if the run has tables."""
    before = [getattr(module, name) for module, name, _ in _SHORT]
    try:
        for module, name, value in _SHORT if tables else ():
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(_SHORT, before, strict=True):
            setattr(module, name, value)


@dataclass(frozen=True, slots=True)
class Look:
    """What an engine has read of one snapshot of a table.

    Attributes:
        who: The engine, and how it has found the table.
        topic: The topic.
        topic_id: Its id.
        heads: The last entry of each chain that the snapshot shows, as the engine read it.
        rows: The rows.
    """

    who: str
    topic: str
    topic_id: str
    heads: tuple[int, ...]
    rows: Rows = field(repr=False)


def key_of(path: str) -> str:
    """The key of an object by its location."""
    assert path.startswith(f"{TABLES_AT}/"), path
    return path.removeprefix(f"{TABLES_AT}/")


def current_snapshot(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The current snapshot of a table; None: it has none."""
    current = metadata.get("current-snapshot-id")
    return next((each for each in metadata["snapshots"] if each["snapshot-id"] == current), None)


def heads_of(snapshot: Mapping[str, Any]) -> tuple[int, ...]:
    """The last entry of each chain that a snapshot shows."""
    return tuple(map(int, snapshot["summary"]["txnstore.heads"].split(",")))


def read_rows(get: Get, snapshot: Mapping[str, Any]) -> Rows:
    """The rows of a snapshot: those of its data files without what position deletes delete.

    Raises:
        ValueError: The snapshot contradicts itself: two rows have one offset, a file has other rows than it says.
    """
    data: list[tuple[int, Mapping[str, Any]]] = []
    deletes: dict[str, dict[int, int]] = {}
    for manifest in _records(get, snapshot["manifest-list"]):
        for entry in _records(get, manifest["manifest_path"]):
            file = entry["data_file"]
            if entry["status"] == 2:
                continue
            if not file["content"]:
                data.append((entry["sequence_number"], file))
                continue
            for row in _parquet(get, file, ["file_path", "pos"]):
                places = deletes.setdefault(row["file_path"], {})
                places[row["pos"]] = max(entry["sequence_number"], places.get(row["pos"], 0))
    rows: Rows = {}
    for sequence, file in data:
        deleted = deletes.get(file["file_path"], {})
        for place, row in enumerate(_parquet(get, file, ["_offset", "key", "value"])):
            if deleted.get(place, -1) >= sequence:
                continue
            at = file["partition"]["_partition_id"], row["_offset"]
            if at in rows:
                msg = f"two rows at {at}, the second one in {file['file_path']}"
                raise ValueError(msg)
            rows[at] = row["key"], int(row["value"]) if row["value"] is not None else None
    counted = int(snapshot["summary"]["total-records"]) - int(snapshot["summary"]["total-position-deletes"])
    if len(rows) != counted:
        msg = f"{len(rows)} rows, but its summary counts {counted}"
        raise ValueError(msg)
    return rows


def _records(get: Get, path: str) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(get(key_of(path)))))


def _parquet(get: Get, file: Mapping[str, Any], columns: list[str]) -> list[dict[str, Any]]:
    data = get(key_of(file["file_path"]))
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data), columns=columns).to_pylist()
    if (len(rows), len(data)) != (file["record_count"], file["file_size_in_bytes"]):
        msg = f"{file['file_path']} has {len(rows)} rows in {len(data)} bytes, not as its manifest says"
        raise ValueError(msg)
    return rows


def read_json(get: Get, key: str) -> dict[str, Any]:
    """A JSON document."""
    document: dict[str, Any] = json.loads(get(key))
    return document


# What is true ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Log:
    """The events of a partition, each with the entry that it is in."""

    chain: int
    events: list[tuple[int, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ends:
    """A partition at an entry.

    Attributes:
        start: Its log start.
        end: Its high watermark.
        opened: The first offset of each transaction without a marker.
        outcomes: The outcomes of those with one.
    """

    start: int
    end: int
    opened: Mapping[_Txn, int]
    outcomes: Mapping[_Txn, Outcome]


class Truth:
    """The rows of all partitions after any entries.

    Args:
        archive: All entries and segments that were ever written.
        journal: What the entries say altogether.
        chains: The number of chains.
    """

    def __init__(self, archive: Mapping[str, bytes], journal: Journal, chains: int) -> None:
        self._journal = journal
        self._logs: dict[tuple[str, int, str], _Log] = {}
        #: The chain and the entry of the decision of each transaction.
        self._decisions: dict[_Txn, tuple[int, int]] = {}
        #: The transactions that a new instance of their producer has kept (KIP-939), by what they were before.
        self._kept: dict[_Txn, _Txn] = {}
        for chain in range(chains):
            lives: dict[str, str] = {}
            for key in sorted(key for key in archive if key.startswith(keys.entries(chain))):
                for event in decode_entry(key, archive[key]).events:
                    self._note(chain, keys.entry_sequence(key) or 0, event, lives)

    def _note(self, chain: int, sequence: int, event: object, lives: dict[str, str]) -> None:
        match event:
            case TopicCreated(topic=topic) if topic.name == PASSING:
                lives[PASSING] = topic.topic_id
            case TxnDecided():
                self._decisions[event.producer_id, event.epoch] = chain, sequence
            case ProducerInitialized(keeps=True):
                self._kept[event.producer_id, event.epoch - 1] = event.producer_id, event.epoch
            case BatchesAppended():
                for number in {batch.partition for batch in event.batches}:
                    self._log(chain, event.topic, number, lives).events.append((sequence, event))
            case MarkerWritten() | LogStartMoved():
                self._log(chain, event.topic, event.partition, lives).events.append((sequence, event))

    def _log(self, chain: int, topic: str, number: int, lives: Mapping[str, str]) -> _Log:
        return self._logs.setdefault((topic, number, lives.get(topic, "")), _Log(chain))

    def rows(self, topic: str, topic_id: str, heads: Sequence[int]) -> Rows:
        """The rows of committed records that readers of these entries see: a decided transaction has ended."""
        wanted = topic_id if topic == PASSING else ""
        rows: Rows = {}
        for (name, number, topic_life), log in self._logs.items():
            if (name, topic_life) != (topic, wanted):
                continue
            ends = _ends(log, number, heads[log.chain])
            undecided = (first for txn, first in ends.opened.items() if not self._is_decided(txn, heads))
            stable = min(undecided, default=ends.end)
            for record in self._journal.logs.get(_key(name, number, topic_life), ()):
                if ends.start <= record.offset < stable and self._journal.committed(record):
                    rows[number, record.offset] = record.record_key, record.value
        return rows

    def torn(self, heads: Sequence[int]) -> Iterator[str]:
        """The transactions that have ended after these entries in some partitions only: the cut is not closed."""
        for (name, number, topic_life), log in self._logs.items():
            ends, key = _ends(log, number, heads[log.chain]), _key(name, number, topic_life)
            for txn in sorted(ends.outcomes):
                if not self._is_decided(txn, heads):
                    yield f"{key} has a marker of {txn}, which is not decided"
            for record in self._journal.logs.get(key, ()):
                if record.txn is None or record.offset < ends.end or not self._journal.committed(record):
                    continue
                if self._is_decided(record.txn, heads):
                    yield f"{key}@{record.offset} of {record.txn}, which is committed, is not there"

    def _is_decided(self, txn: _Txn, heads: Sequence[int]) -> bool:
        while txn in self._kept:
            txn = self._kept[txn]
        chain, sequence = self._decisions.get(txn, (0, heads[0] + 1))
        return sequence <= heads[chain]


def _key(topic: str, number: int, topic_life: str) -> str:
    return life(topic, number, topic_life) if topic_life else f"{topic}-{number}"


def _ends(log: _Log, partition: int, head: int) -> _Ends:
    start = end = 0
    opened: dict[_Txn, int] = {}
    outcomes: dict[_Txn, Outcome] = {}
    for sequence, event in log.events:
        if sequence > head:
            break
        if isinstance(event, BatchesAppended):
            batches = [batch for batch in event.batches if batch.partition == partition]
            end = max(batch.base_offset + batch.records for batch in batches)
            if event.transactional:
                opened.setdefault((event.producer_id, event.epoch), batches[0].base_offset)
        elif isinstance(event, MarkerWritten):
            end = event.offset + 1
            opened = {txn: first for txn, first in opened.items() if txn[0] != event.producer_id}
            outcomes[event.producer_id, event.epoch - 1] = event.outcome
        elif isinstance(event, LogStartMoved):
            start = event.offset
    return _Ends(start, end, opened, outcomes)


def judged(looks: Sequence[Look], truth: Truth) -> Iterator[str]:
    """What engines have read that the entries do not say. Of a topic that is cleaned by key, rows may be missing."""
    for look in looks:
        rows = truth.rows(look.topic, look.topic_id, look.heads)
        strange = sorted(at for at in look.rows if look.rows[at] != rows.get(at))
        missing = sorted(at for at in rows if at not in look.rows) if look.topic != KEYED else []
        if strange or missing:
            yield f"wrong-table: {look} has {strange[:5]}, and lacks {missing[:5]}"
    for heads in sorted({look.heads for look in looks}):
        yield from (f"torn-cut: at {heads}, {each}" for each in truth.torn(heads))
