"""Invariants across the chains of a view."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.invariants.common import own_producers
from txnstore.core.model import sorted_items
from txnstore.core.view import View


def cut_is_consistent(view: View) -> Iterator[str]:
    """A view is a closed cut: it includes all entries that its states follow from."""
    for state in view.states:
        for chain, sequence in sorted_items(state.seen):
            if view.states[chain].sequence < sequence:
                yield f"chain {state.chain} follows from entry {sequence} of chain {chain}, which is not in the view"


def copies_follow_the_catalog(view: View) -> Iterator[str]:
    """No copy of a topic is newer than the catalog."""
    for state in view.states[1:]:
        for name, copy in sorted_items(state.topics):
            topic = view.topics.get(name)
            if topic is not None and copy.revision > topic.revision:
                yield f"chain {state.chain} has revision {copy.revision} of topic {name}, the catalog {topic.revision}"


def foreign_data_has_an_owner(view: View) -> Iterator[str]:
    """Open data and pending offsets belong to a transaction of the coordinator's chain that lists them (ADD-07).

    Otherwise they are a hanging transaction: no process would end them.
    """
    for state in view.states:
        for tp, partition in sorted_items(state.partitions):
            for producer_id in sorted(set(partition.open_txns) - set(own_producers(state, partition.open_txns))):
                txn = view.owner(producer_id)
                if txn is None or tp not in txn.partitions:
                    yield f"{tp}: producer id {producer_id} has open data, but no open transaction with this partition"
        for name, group in sorted_items(state.groups):
            for producer_id in sorted(set(group.pending) - set(own_producers(state, group.pending))):
                txn = view.owner(producer_id)
                if txn is None or name not in txn.groups:
                    yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction"
