"""Which partition logs events change for readers: a process that serves many of them looks at these alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txnstore.core.catalog.model import TopicClosed, TopicCreated, TopicDeleted
from txnstore.core.log.events import BatchesAppended, LogStartMoved, MarkerWritten
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import TopicPartition, interned_tp
from txnstore.core.transactions.events import TxnDecided
from txnstore.core.view import View


def changed_partitions(events: Iterable[Any], view: View) -> set[TopicPartition] | None:
    """Return the partitions whose records or offsets differ for readers after these events; None: any may differ.

    What only writers see of a log, such as the windows of producers, does not count.

    Args:
        events: Of the entries that the view has, and an earlier one lacks.
        view: Names the partitions of decided transactions, which end for readers before their markers are written.
    """
    changed: set[TopicPartition] = set()
    for event in events:
        match event:
            case BatchesAppended():
                changed.update(interned_tp(event.topic, rows.partition) for rows in event.batches)
            case MarkerWritten() | LogStartMoved() | SegmentsReplaced():
                changed.add(interned_tp(event.topic, event.partition))
            case TxnDecided() if view.chains > 1:
                # Without partitions it is completed: then the view has its markers, which name them.
                txn = view.transactions.get(event.transactional_id)
                changed.update(txn.partitions if txn is not None else ())
            case TopicCreated() | TopicClosed() | TopicDeleted():
                return None
            case _:
                pass
    return changed
