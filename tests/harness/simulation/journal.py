"""The true history, read from the entries and segments in the bucket without the code under test.

Only the decoding of an entry and of a segment is shared with it. A batch belongs to a transaction by its producer id
and epoch; the coordinator's decision gives its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.harness.history import Decision
from tests.harness.simulation.world import PASSING
from tests.helpers import keys
from txnstore.chain.payload import decode_entry
from txnstore.core.catalog.model import TopicCreated
from txnstore.core.groups.events import GroupOffset, OffsetsCommitted
from txnstore.core.log.events import BatchesAppended, LogStartMoved, MarkerWritten
from txnstore.core.model import NO_PRODUCER, Outcome
from txnstore.core.routing import CATALOG, chain_of_producer
from txnstore.core.transactions.events import PartitionsAdded, ProducerInitialized, TxnDecided
from txnstore.segment import codec

#: (producer id, epoch): one transaction, as KIP-890 gives each its own epoch.
TxnId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """A record with its key and offset. ``txn`` is None outside of transactions; a tombstone has no value."""

    key: str
    offset: int
    value: int | None
    txn: TxnId | None
    record_key: bytes | None = None


@dataclass(slots=True)
class Journal:
    """The logs by partition, the decisions by transaction, and the contradictions between them."""

    logs: dict[str, list[Written]] = field(default_factory=dict)
    outcomes: dict[TxnId, Outcome] = field(default_factory=dict)
    markers: dict[tuple[str, TxnId], Outcome] = field(default_factory=dict)
    #: The log start of each partition that has lost records.
    starts: dict[str, int] = field(default_factory=dict)
    #: The ids of the passing topic that a transaction names for partitions in other chains.
    named: dict[TxnId, set[str]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    #: The ids of the passing topic, in the order of its lives, and the offsets in it, in the order of each chain.
    lives: list[str] = field(default_factory=list)
    offsets: list[tuple[str, GroupOffset]] = field(default_factory=list)
    #: The rows of each segment that are records.
    taken: dict[str, set[int]] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)

    def committed(self, record: Written) -> bool:
        """Whether read_committed may return it."""
        return record.txn is None or self.outcomes.get(record.txn) is Outcome.COMMIT

    def places(self) -> dict[int, list[Written]]:
        """The records of each value."""
        places: dict[int, list[Written]] = {}
        for log in self.logs.values():
            for record in log:
                if record.value is not None:
                    places.setdefault(record.value, []).append(record)
        return places


def read_journal(archive: Mapping[str, bytes], chains: int) -> Journal:
    """The journal of all chains. ``archive``: all entries and segments that were ever written."""
    journal = Journal()
    foreign: set[tuple[str, TxnId]] = set()
    for chain in range(chains):
        newest: dict[str, TxnId] = {}
        ends: dict[str, int] = {}
        decided: set[TxnId] = set()
        current: dict[str, str] = {}
        for event in events_of(archive, chain):
            match event:
                case TopicCreated(topic=topic) if topic.name == PASSING:
                    current[topic.name] = topic.topic_id
                    if chain == CATALOG:
                        journal.lives.append(topic.topic_id)
                case OffsetsCommitted(group=group):
                    journal.offsets += [(group, item) for item in event.offsets if item.topic == PASSING]
                case BatchesAppended():
                    _appended(journal, archive, ends, decided, event, current)
                case MarkerWritten():
                    key = _key(event.topic, event.partition, current)
                    _marker(journal, ends, event, key)
                    if event.topic == PASSING and chain_of_producer(event.producer_id) != chain:
                        foreign.add((key, (event.producer_id, event.epoch - 1)))
                case PartitionsAdded() if PASSING in event.topic_ids:
                    named = journal.named.setdefault((event.producer_id, event.epoch), set())
                    named.add(event.topic_ids[PASSING])
                case ProducerInitialized(transactional_id=str(name)):
                    _initialized(journal, newest, name, event)
                case TxnDecided():
                    _decided(journal, newest, event)
                    decided.add((event.producer_id, event.epoch))
                case _:
                    _shortened(journal, ends, event)
    journal.anomalies += _strange_markers(journal, foreign)
    return journal


def _shortened(journal: Journal, ends: dict[str, int], event: object) -> None:
    """A deletion may not go back, nor take records of transactions that are open at that entry of their chain."""
    if not isinstance(event, LogStartMoved):
        return
    key = f"{event.topic}-{event.partition}"
    if not journal.starts.get(key, 0) < event.offset <= ends.get(key, 0):
        journal.anomalies.append(f"wrong-log-start: {event.offset} after {journal.starts.get(key, 0)} in {key}")
    for record in journal.logs.get(key, []):
        if record.txn is not None and record.offset < event.offset and (key, record.txn) not in journal.markers:
            journal.anomalies.append(f"deleted-while-open: {record}, by the log start {event.offset}")
    journal.starts[key] = event.offset


def _strange_markers(journal: Journal, foreign: set[tuple[str, TxnId]]) -> Iterator[str]:
    """Markers that contradict the decision, and those in a life of the passing topic that has no part in it."""
    for (key, txn), outcome in journal.markers.items():
        if journal.outcomes.get(txn) is not outcome:
            yield f"undecided-marker: {outcome} of {txn} in {key}, decided: {journal.outcomes.get(txn)}"
    for key, txn in sorted(foreign):
        lives = journal.named.get(txn, set())
        here = any(record.txn == txn for record in journal.logs.get(key, ()))
        if lives and key.partition("@")[2] not in lives and not here:
            yield f"stray-marker: {txn} in {key}, but its transaction is in {sorted(lives)}"


def events_of(archive: Mapping[str, bytes], chain: int) -> Iterator[object]:
    """The events of a chain, in order."""
    for key in sorted(archive):
        if key.startswith(keys.entries(chain)):
            yield from decode_entry(key, archive[key]).events


def life(name: str, number: int, topic_id: str) -> str:
    """The key of a partition of a topic that is recreated under its name: each topic id has its own log."""
    return f"{name}-{number}@{topic_id}"


def _key(topic: str, partition: int, lives: dict[str, str]) -> str:
    return life(topic, partition, lives[topic]) if topic in lives else f"{topic}-{partition}"


def _appended(
    journal: Journal,
    archive: Mapping[str, bytes],
    ends: dict[str, int],
    decided: set[TxnId],
    event: BatchesAppended,
    lives: dict[str, str],
) -> None:
    """Each row of a segment is a record of one batch at most: the range of another batch is another range."""
    segment = event.segment
    data = archive[segment.object][segment.first_byte or 0 :][: segment.size]
    table = codec.decode(data, segment.format, ["key", "value"]).to_pylist()
    txn = (event.producer_id, event.epoch) if event.transactional else None
    taken = journal.taken.setdefault(segment.key, set())
    for batch in event.batches:
        key, limit = _key(event.topic, batch.partition, lives), batch.first_row + batch.records
        _take(journal, ends, key, batch.base_offset, batch.base_offset + batch.records)
        if txn is not None and ((key, txn) in journal.markers or txn in decided):
            journal.anomalies.append(f"late-append: {key}@{batch.base_offset} of {txn} after its end")
        rows = range(batch.first_row, limit)
        if limit > len(table) or not taken.isdisjoint(rows):
            journal.anomalies.append(f"wrong-rows: {key}@{batch.base_offset} is {rows} of {segment.key}, not {taken}")
        taken.update(rows)
        for place, row in enumerate(table[batch.first_row : limit]):
            value = int(row["value"]) if row["value"] is not None else None
            journal.logs.setdefault(key, []).append(Written(key, batch.base_offset + place, value, txn, row["key"]))


def _marker(journal: Journal, ends: dict[str, int], event: MarkerWritten, key: str) -> None:
    txn = (event.producer_id, event.epoch - 1)
    _take(journal, ends, key, event.offset, event.offset + 1)
    if (key, txn) in journal.markers:
        journal.anomalies.append(f"second-marker: {txn} in {key}@{event.offset}")
    journal.markers[key, txn] = event.outcome


def _take(journal: Journal, ends: dict[str, int], key: str, start: int, limit: int) -> None:
    """Each offset is taken once, in order."""
    if start != ends.get(key, 0) or limit <= start:
        journal.anomalies.append(f"offsets-not-contiguous: {key}@{start} follows {ends.get(key, 0)}")
    ends[key] = limit


def _initialized(journal: Journal, newest: dict[str, TxnId], name: str, event: ProducerInitialized) -> None:
    granted = (event.producer_id, event.epoch)
    journal.decisions.append(Decision("init", name, *granted, len(journal.decisions)))
    # A bump of an instance's own epoch may grant what the abort of it has granted before (KIP-360).
    if event.last_epoch == NO_PRODUCER or granted != newest.get(name):
        _newer(journal, newest, name, granted, "init")


def _decided(journal: Journal, newest: dict[str, TxnId], event: TxnDecided) -> None:
    txn = (event.producer_id, event.epoch)
    if txn in journal.outcomes:
        journal.anomalies.append(f"decided-twice: {event.transactional_id} {txn}")
    if newest.get(event.transactional_id) != txn:
        journal.anomalies.append(
            f"zombie-end: {event.transactional_id} {txn}, current {newest.get(event.transactional_id)}"
        )
    journal.outcomes[txn] = event.outcome
    outcome = "commit" if event.outcome is Outcome.COMMIT else "abort"
    journal.decisions.append(Decision(outcome, event.transactional_id, *txn, len(journal.decisions)))
    _newer(journal, newest, event.transactional_id, (event.next_producer_id, event.next_epoch), "end")


def _newer(journal: Journal, newest: dict[str, TxnId], name: str, txn: TxnId, event: str) -> None:
    """Each granted identity is higher than all before it (JEP-20)."""
    if txn <= newest.get(name, (-1, -1)):
        journal.anomalies.append(f"epoch-regression: {event} of {name!r} granted {txn} after {newest[name]}")
    newest[name] = txn
