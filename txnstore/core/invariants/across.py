"""Invariants across the chains of a view."""

from __future__ import annotations

from collections.abc import Iterator

from txnstore.core.invariants.common import by_id, by_name, logs, own_producers
from txnstore.core.view import View


def cut_is_consistent(view: View) -> Iterator[str]:
    """Whatever a chain rests on in another one is in the view, too: else a transaction could be seen in part."""
    for state in view.states:
        for chain, sequence in sorted(state.seen.items(), key=by_id):
            if view.states[chain].sequence < sequence:
                yield f"chain {state.chain} rests on entry {sequence} of chain {chain}, which is not in the view"


def copies_follow_the_catalog(view: View) -> Iterator[str]:
    """No chain knows more of a topic than the catalog says."""
    for state in view.states[1:]:
        for name, copy in sorted(state.topics.items(), key=by_name):
            topic = view.topics.get(name)
            if topic is not None and copy.revision > topic.revision:
                yield f"chain {state.chain} has revision {copy.revision} of topic {name}, the catalog {topic.revision}"


def foreign_data_has_an_owner(view: View) -> Iterator[str]:
    """Open data and pending offsets belong to a transaction that lists them in its coordinator's chain (ADD-07).

    Else nobody would ever end them: a hanging transaction.
    """
    for state in view.states:
        for tp, partition in logs(state):
            for producer_id in sorted(set(partition.open_txns) - set(own_producers(state, partition.open_txns))):
                txn = view.owner(producer_id)
                if txn is None or tp not in txn.partitions:
                    yield f"{tp}: producer id {producer_id} has open data, but no open transaction with this partition"
        for name, group in sorted(state.groups.items(), key=by_name):
            for producer_id in sorted(set(group.pending) - set(own_producers(state, group.pending))):
                txn = view.owner(producer_id)
                if txn is None or name not in txn.groups:
                    yield f"group {name!r}: producer id {producer_id} has pending offsets, but no open transaction"
