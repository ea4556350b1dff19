"""A reader of stores in a local folder, written from docs/format.md alone: it imports nothing of txnstore.

It folds all chains from their first entries, or from the checkpoint at their last boundary, compares the batches of
their checkpoints on the way, and returns what a read_committed reader shows. It can begin with the hints instead.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

Tp = tuple[str, int]


@dataclass
class Log:
    """A partition in its chain."""

    batches: dict[int, dict[str, Any]] = field(default_factory=dict)
    start: int = 0
    high_watermark: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class Chain:
    """The state of a chain after its last entry (section 2)."""

    logs: dict[Tp, Log] = field(default_factory=dict)
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Of each transactional id: the producer id and the state of its transaction (section 4).
    transactions: dict[str, tuple[int, str]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)


def read_store(root: Path, *, hints: bool = False) -> dict[str, list[tuple[int, int, Any]]]:
    """The rows of each topic: partition, offset, and the values of all columns of the file, in order.

    ``hints``: begin with the checkpoints that the hints name.
    """
    identity = _checked((root / "store.json").read_bytes())
    chains = [_fold(root, identity["store_id"], number, hints=hints) for number in range(identity["chains"])]
    by_topic: dict[str, list[tuple[int, int, Any]]] = {name: [] for name in chains[0].topics}
    for chain in chains:
        for (topic, partition), log in sorted(chain.logs.items()):
            topic_entry = chains[0].topics.get(topic)
            if topic_entry is None or topic_entry["topic_id"] != chain.topics[topic]["topic_id"]:
                continue  # A copy of a topic that is deleted (7.3).
            by_topic[topic] += [(partition, *row) for row in _visible(root, log, chains)]
    return {topic: sorted(rows, key=lambda row: row[:2]) for topic, rows in by_topic.items()}


def _checked(line: bytes) -> dict[str, Any]:
    """Section 2: the checksum is that of the text without its last member."""
    body, _, rest = line.rpartition(b',"checksum":"')
    assert rest == hashlib.sha256(body + b"}").hexdigest().encode() + b'"}'
    document: dict[str, Any] = json.loads(line)
    assert document["version"] <= 2
    return document


def _fold(root: Path, store_id: str, number: int, *, hints: bool) -> Chain:
    folder = root / f"chains/{store_id}/{number:04d}"
    hint = root / f"chains/latest/{number:04d}.json"
    chain, previous, sequence = _hinted(folder, hint) if hints else _beginning(folder)
    while True:
        path = folder / f"entries/{sequence + 1:020d}.json"
        if not path.exists():
            return chain
        payload, separator, line = path.read_bytes().rpartition(b"\n")
        entry = _checked(line)
        assert entry["previous"] == previous
        if separator:
            described = {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
            assert entry["payload"] == described
        sequence, previous = sequence + 1, hashlib.sha256(line).hexdigest()
        assert entry["sequence"] == sequence
        for event in entry["events"]:
            _apply(chain, event)
        head = folder / f"checkpoints/{sequence:020d}/head.json"
        if head.exists():
            logs = {tp: log.batches for tp, log in chain.logs.items() if log.batches}
            assert logs == _indexed(folder / "checkpoints", _checked(head.read_bytes()))


def _beginning(folder: Path) -> tuple[Chain, str, int]:
    """The state that a chain begins with, and the hash and the number of its entry: section 2, A boundary."""
    boundaries = sorted((folder / "boundaries").glob("*.json"))
    if not boundaries:
        return Chain(), "", 0
    assert [int(path.stem) for path in boundaries] == [*range(1, len(boundaries) + 1)]
    return _saved(folder, _checked(boundaries[-1].read_bytes())["sequence"])


def _hinted(folder: Path, hint: Path) -> tuple[Chain, str, int]:
    """Section 2, A hint. The store is undamaged, so the hint names a checkpoint and a boundary that exist."""
    document = _checked(hint.read_bytes())
    if document["boundary"]:
        boundary = _checked((folder / f"boundaries/{document['boundary']:020d}.json").read_bytes())
        assert boundary["sequence"] <= document["sequence"]
    return _saved(folder, document["sequence"])


def _saved(folder: Path, sequence: int) -> tuple[Chain, str, int]:
    """Section 2: the state of a checkpoint, and the hash and the number of its entry."""
    head = _checked((folder / f"checkpoints/{sequence:020d}/head.json").read_bytes())
    batches, chain = _indexed(folder / "checkpoints", head), Chain()
    for item in head["partitions"]:
        tp = tuple(item["tp"])
        chain.logs[tp] = Log(
            batches.get(tp, {}),
            item["log_start"],
            item["high_watermark"],
            {int(producer): offset for producer, offset in item["open_txns"].items()},
            [(each["producer_id"], each["first_offset"], each["last_offset"]) for each in item["aborted"]],
        )
    chain.topics = {topic["name"]: topic for topic in head["topics"]}
    chain.transactions = {
        each["transactional_id"]: (each["producer_id"], each["state"]) for each in head["transactions"]
    }
    chain.ids = {int(producer): name for producer, name in head["transactional_ids"].items()}
    return chain, head["entry_hash"], sequence


def _indexed(folder: Path, head: dict[str, Any]) -> dict[Tp, dict[int, dict[str, Any]]]:
    """Section 2: the batches of a checkpoint, by partition and base offset."""
    logs: dict[Tp, dict[int, dict[str, Any]]] = {}
    last, previous = 0, ""
    for until in head["index"]:
        rows, _, line = (folder / f"{until:020d}-{last:020d}.index").read_bytes().rpartition(b"\n")
        file = _checked(line)
        assert (file["after"], file["until"], file["previous"]) == (last, until, previous)
        assert file["sha256"] == hashlib.sha256(rows).hexdigest()
        last, previous = until, file["entry_hash"]
        added = iter(pq.read_table(pa.BufferReader(rows)).to_pylist() if rows else [])
        for item in file["partitions"]:
            log = logs.setdefault(tuple(item["tp"]), {})
            for start, limit in item["removed"]:
                for base in [base for base in log if start <= base < limit]:
                    del log[base]
            log.update({row["base_offset"]: _batch(row) for _, row in zip(range(item["rows"]), added, strict=False)})
        assert next(added, None) is None
    assert (last, previous) == (head["sequence"], head["entry_hash"])
    return {tp: log for tp, log in logs.items() if log}


def _batch(row: dict[str, Any]) -> dict[str, Any]:
    """A batch as entries have it."""
    names = ("key", "format", "size", "sha256", "rows", "explicit_offsets", "footer_size", "footer_sha256")
    return {**{name: row[name] for name in row if name not in names}, "segment": {name: row[name] for name in names}}


def _apply(chain: Chain, event: dict[str, Any]) -> None:
    """Section 3: the events that decide what records there are, and which of them are visible."""
    if isinstance(event.get("partition"), int):
        _apply_to_log(chain.logs[event["topic"], event["partition"]], event)
        return
    match event["type"]:
        case "TopicCreated" | "TopicAltered":
            topic = event["topic"]
            chain.topics[topic["name"]] = topic
            for partition in range(topic["partitions"]):
                chain.logs.setdefault((topic["name"], partition), Log())
        case "TopicDeleted":
            del chain.topics[event["name"]]
            chain.logs = {tp: log for tp, log in chain.logs.items() if tp[0] != event["name"]}
        case "ProducerInitialized" if event["transactional_id"] is not None:
            chain.ids[event["producer_id"]] = event["transactional_id"]
            if not event["keeps"]:
                chain.transactions[event["transactional_id"]] = (event["producer_id"], "EMPTY")
        case "PartitionsAdded" | "OffsetsAdded":
            chain.transactions[event["transactional_id"]] = (event["producer_id"], "ONGOING")
        case "TxnPrepared" | "TxnCompleted":
            state = ("PREPARE_" if event["type"] == "TxnPrepared" else "COMPLETE_") + event["outcome"]
            chain.transactions[event["transactional_id"]] = (event["producer_id"], state)


def _apply_to_log(log: Log, event: dict[str, Any]) -> None:
    match event["type"]:
        case "BatchAppended":
            batch = event["batch"]
            log.batches[batch["base_offset"]] = batch
            log.high_watermark = batch["limit"]
            if batch["transactional"]:
                log.open.setdefault(batch["producer_id"], batch["base_offset"])
        case "MarkerWritten":
            first = log.open.pop(event["producer_id"], None)
            if event["outcome"] == "ABORT" and first is not None:
                log.aborted.append((event["producer_id"], first, event["offset"]))
            log.high_watermark = event["offset"] + 1
        case "SegmentsReplaced":
            for base in event["removed"]:
                del log.batches[base]
            log.batches.update((batch["base_offset"], batch) for batch in event["added"])
        case "LogStartMoved":
            log.start = event["offset"]
            log.batches = {base: batch for base, batch in log.batches.items() if batch["limit"] > log.start}


def _visible(root: Path, log: Log, chains: list[Chain]) -> list[tuple[int, Any]]:
    """Sections 3.2 and 7.5: the rows below the last stable offset whose transaction is not aborted."""
    undecided, aborted = [], list(log.aborted)
    for producer_id, first in log.open.items():
        home = chains[producer_id >> 32]
        producer, state = home.transactions.get(home.ids.get(producer_id, ""), (-1, ""))
        if producer == producer_id and state == "PREPARE_ABORT":
            aborted.append((producer_id, first, log.high_watermark))
        elif producer != producer_id or state != "PREPARE_COMMIT":
            undecided.append(first)
    stable = min(undecided, default=log.high_watermark)
    rows = []
    for base, batch in sorted(log.batches.items()):
        hidden = any(batch["producer_id"] == pid and first <= base < last for pid, first, last in aborted)
        if base < stable and not (batch["transactional"] and hidden):
            rows += [row for row in _rows(root, batch) if log.start <= row[0] < stable]
    return rows


def _rows(root: Path, batch: dict[str, Any]) -> list[tuple[int, Any]]:
    """Sections 3.2 and 5: the rows of a batch, with their offsets."""
    segment = batch["segment"]
    key, separator, place = segment["key"].partition("#")
    first = int(place.rpartition("-")[2].partition(".")[0]) if separator else 0
    data = (root / key).read_bytes()[first : first + segment["size"]]
    assert hashlib.sha256(data).hexdigest() == segment["sha256"]
    if segment.get("footer_size") is not None:
        check_blocks(data, segment)
    source = pa.BufferReader(data)
    table = pq.read_table(source) if segment["format"] == "parquet" else pa.ipc.open_file(source).read_all()
    assert table.num_rows == segment["rows"]
    rows = table.to_pylist()[batch["first_row"] : batch["first_row"] + batch["records"]]
    if segment["explicit_offsets"]:
        return [(row["_offset"], row) for row in rows]
    return [(batch["base_offset"] + number, row) for number, row in enumerate(rows)]


def check_blocks(data: bytes, segment: dict[str, Any]) -> None:
    """Section 5: what a reader compares that does not read the whole file."""
    footer = len(data) - segment["footer_size"]
    assert hashlib.sha256(data[footer:]).hexdigest() == segment["footer_sha256"]
    blocks = json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[b"txnstore.blocks"])
    sums = base64.b64decode(blocks["crc32"])
    starts = range(0, footer, blocks["size"])
    assert len(sums) == 4 * len(starts)
    for number, start in enumerate(starts):
        crc = int.from_bytes(sums[4 * number : 4 * number + 4], "little")
        assert zlib.crc32(data[start : min(start + blocks["size"], footer)]) == crc
