"""Observes a real store after a step, through scans and the state that every reader has."""

from __future__ import annotations

from typing import Any

from tests.harness.differential.names import ProducerIds
from tests.harness.differential.store_support import as_text
from tests.helpers import keys
from txnstore.chain.payload import decode_entry
from txnstore.core.groups.offsets import committed
from txnstore.core.log.events import MarkerWritten
from txnstore.core.log.model import Partition
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.transactions.model import Transaction
from txnstore.core.view import View
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.store import Store


class StoreView:
    """Observations of the store behind ``objects``; read again only if an entry was written.

    ``thorough``: all records are read each time. Otherwise a step continues where the previous one stopped, until
    :meth:`forget` asks for all of them again.
    """

    def __init__(self, objects: ObjectStore, chains: int, ids: ProducerIds, *, thorough: bool = True) -> None:
        self._objects = objects
        self._ids = ids
        self._thorough = thorough
        self._records: dict[tuple[TopicPartition, str], tuple[int, list[list[Any]]]] = {}
        self._last_observation: tuple[Store, int, dict[str, Any]] | None = None
        self._read = [0] * chains
        self._markers: dict[TopicPartition, list[list[Any]]] = {}

    def observe(self, store: Store) -> dict[str, Any]:
        """The observation that is compared after a step."""
        view = store._connection.view()
        if self._last_observation is not None and self._last_observation[:2] == (store, view.sequence):
            return self._last_observation[2]
        if self._thorough:
            self.forget()
        self._read_markers()
        observation = {
            "transactions": {name: self.transaction(txn) for name, txn in sorted(view.transactions.items())},
            "partitions": self._partitions(store, view),
            "groups": _groups(view),
        }
        self._last_observation = store, view.sequence, observation
        return observation

    def forget(self) -> None:
        """Read all records again at the next observation."""
        self._last_observation = None
        self._records.clear()

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: one that is created again has other records and markers."""
        self.forget()
        self._read_markers()
        self._markers = {tp: rows for tp, rows in self._markers.items() if tp.topic != name}

    def _partitions(self, store: Store, view: View) -> dict[str, Any]:
        observations = {}
        for topic in view.sorted_topics():
            logs = dict(view.partitions_of(topic.name))
            self._read_records(
                store, view, topic.name, "committed", {tp: log.last_stable_offset for tp, log in logs.items()}
            )
            self._read_records(
                store, view, topic.name, "uncommitted", {tp: log.high_watermark for tp, log in logs.items()}
            )
            for tp, log in logs.items():
                observations[str(tp)] = {
                    "log_start": log.log_start,
                    "lso": log.last_stable_offset,
                    "hw": log.high_watermark,
                    "committed": list(self._records[tp, "committed"][1]),
                    "uncommitted": list(self._records[tp, "uncommitted"][1]),
                    "markers": list(self._markers.get(tp, ())),
                    "aborted": [
                        [self._ids.number(txn.producer_id), txn.first_offset, txn.last_offset, txn.last_stable_offset]
                        for txn in log.aborted
                    ],
                    "producers": self.producers(log),
                }
        return dict(sorted(observations.items()))

    def _read_records(
        self, store: Store, view: View, topic: str, isolation: str, limits: dict[TopicPartition, int]
    ) -> None:
        """Continue where the last observation stopped, in one scan of the topic, which ends no transaction."""
        read_before = {tp: self._records.get((tp, isolation), (0, [])) for tp in limits}
        if all((tp, isolation) in self._records and read_before[tp][0] == limit for tp, limit in limits.items()):
            return
        start = {tp.partition: max(read, view.partitions[tp].log_start) for tp, (read, _) in read_before.items()}
        table = store.scan(topic, Isolation(f"read_{isolation}"), start=start, snapshot=Snapshot(view)).to_table()
        rows = {tp: list(records) for tp, (_, records) in read_before.items()}
        columns = (table[name].to_pylist() for name in ("_partition", "_offset", "key", "value"))
        for partition, offset, key, value in zip(*columns, strict=True):
            rows[TopicPartition(topic, partition)].append([offset, as_text(key), as_text(value)])
        for tp, limit in limits.items():
            self._records[tp, isolation] = limit, rows[tp]

    def producers(self, log: Partition) -> list[list[Any]]:
        """Producer id, epoch, last sequence, first offset of the open transaction."""
        rows = [
            [self._ids.number(producer_id), producer.epoch, producer.last_sequence, log.open_txns.get(producer_id)]
            for producer_id, producer in log.producers.items()
        ]
        return sorted(rows, key=lambda row: row[0])

    def transaction(self, txn: Transaction) -> dict[str, Any]:
        """The observation of a transactional id."""
        return {
            "state": txn.state.name,
            "producer_id": self._ids.number(txn.producer_id),
            "epoch": txn.epoch,
            "timeout_ms": txn.timeout_ms,
            "partitions": [str(tp) for tp in sorted(txn.partitions)],
            "groups": sorted(txn.groups),
        }

    def _read_markers(self) -> None:
        """The control markers, which only the entries contain; records have the other offsets."""
        for number, read in enumerate(self._read):
            prefix = keys.entries(number)
            last = keys.entry(number, read) if read else ""
            for item in self._objects.list(prefix, last):
                entry = decode_entry(item.key, self._objects.get(item.key))
                self._read[number] = entry.sequence
                for event in entry.events:
                    if isinstance(event, MarkerWritten):
                        row = [event.offset, event.outcome.value, self._ids.number(event.producer_id), event.epoch]
                        self._markers.setdefault(TopicPartition(event.topic, event.partition), []).append(row)


def _groups(view: View) -> dict[str, Any]:
    offsets_by_group: dict[str, dict[str, Any]] = {}
    for name, group in sorted(view.groups.items()):
        pending = {tp for offsets in group.pending.values() for tp in offsets}
        tps = sorted(pending | set(group.offsets))
        values = {tp: committed(view, name, tp, require_stable=False) for tp in tps}
        rows = {str(tp): [value.offset if value is not None else None, tp in pending] for tp, value in values.items()}
        rows = {tp: row for tp, row in rows.items() if row != [None, False]}
        if rows:
            offsets_by_group[name] = rows
    return offsets_by_group
