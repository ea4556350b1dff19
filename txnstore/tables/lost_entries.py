"""Compares the entries that a cut shows with those of the chains: a store that was restored may have lost some."""

from __future__ import annotations

from functools import partial

from txnstore.catalog.iceberg.cut import CutDocument
from txnstore.chain import keys
from txnstore.chain.tail import missing_entry, read_entry
from txnstore.connection import Connection
from txnstore.core.view import View
from txnstore.errors import CorruptionError

_REBUILD = "Its tables may have rows that the store has lost: `txnstore table sync --rebuild '*'` rebuilds all tables"


class LostEntriesError(CorruptionError):
    """A cut shows entries that the store has lost."""

    advice = ""  # The message includes it.


def check_lost_entries(connection: Connection, cut: CutDocument, view: View, *, compares: bool = True) -> None:
    """Check that a cut shows a part of the history of the chains.

    Costs a GET for each chain that has newer entries than the cut. Entries that a vacuum has deleted are not compared.

    Args:
        view: The chains, not older than the cut.
        compares: Whether to ask for these entries; else only the numbers are compared.

    Raises:
        LostEntriesError: The store has lost entries that the cut shows.
        CorruptionError: The entry after the cut is damaged or missing.
    """
    if is_beyond(cut, view):
        heads = [state.sequence for state in view.states]
        msg = f"{keys.cut(cut.number)} ends at the entries {cut.heads} of the chains, and they at {heads}. {_REBUILD}"
        raise LostEntriesError(msg)
    if not compares or not cut.hashes:
        return
    hashes = list(connection.pool.map(partial(_hash_at, connection, view), range(view.chains), cut.heads))
    for chain, (expected, found) in enumerate(zip(cut.hashes, hashes, strict=True)):
        if found is not None and found != expected:
            entry = connection.keys.entry(chain, cut.heads[chain])
            raise LostEntriesError(f"{keys.cut(cut.number)} was made when {entry} was another entry. {_REBUILD}")


def is_beyond(cut: CutDocument, view: View) -> bool:
    """Whether a cut has entries that a view does not have."""
    return any(state.sequence < head for state, head in zip(view.states, cut.heads, strict=True))


def _hash_at(connection: Connection, view: View, chain: int, head: int) -> str | None:
    """The hash of an entry; None if it is no longer known."""
    state = view.states[chain]
    if state.sequence == head:
        return state.entry_hash
    following = read_entry(connection.objects, connection.keys, chain, head + 1)
    if following is None and connection.chains.boundaries()[chain] <= head:
        # No vacuum has deleted it: the store was set back, and this process has entries of before.
        raise missing_entry(connection.keys, chain, head + 1, f"this process has read entry {state.sequence}")
    return following[0].previous if following is not None else None
