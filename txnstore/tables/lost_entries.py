"""Compares the entries of a cut with those of the chains: a restored store may have lost some."""

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


def check_lost_entries(connection: Connection, cut: CutDocument, view: View, *, compare_hashes: bool = True) -> None:
    """Check that a cut shows a part of the history of the chains.

    Costs a GET for each chain that has newer entries than the cut. Entries that a vacuum has deleted are not compared.

    Args:
        view: The chains, not older than the cut.
        compare_hashes: Whether to read entries and compare hashes; else only numbers are compared.

    Raises:
        LostEntriesError: The store has lost entries that the cut shows.
        CorruptionError: The entry after the cut is damaged or missing.
    """
    if exceeds_view(cut, view):
        heads = [state.sequence for state in view.states]
        msg = f"{keys.cut(cut.number)} ends at the entries {cut.heads} of the chains, and they at {heads}. {_REBUILD}"
        raise LostEntriesError(msg)
    if not compare_hashes or not cut.hashes:
        return
    hashes = list(connection.pool.map(partial(_hash_at, connection, view), range(view.chains), cut.heads))
    for chain, (expected, actual) in enumerate(zip(cut.hashes, hashes, strict=True)):
        if actual is not None and actual != expected:
            entry = connection.keys.entry(chain, cut.heads[chain])
            raise LostEntriesError(f"{keys.cut(cut.number)} was made when {entry} was another entry. {_REBUILD}")


def exceeds_view(cut: CutDocument, view: View) -> bool:
    """Whether a cut has entries that a view lacks."""
    return any(state.sequence < head for state, head in zip(view.states, cut.heads, strict=True))


def _hash_at(connection: Connection, view: View, chain: int, head: int) -> str | None:
    """The hash of an entry; None if a vacuum has deleted the entry after it, which has it."""
    state = view.states[chain]
    if state.sequence == head:
        return state.entry_hash
    next_entry = read_entry(connection.objects, connection.keys, chain, head + 1)
    if next_entry is None and connection.chains.boundaries()[chain] <= head:
        # No vacuum has deleted it: the store was restored, and this process knows entries from before.
        raise missing_entry(connection.keys, chain, head + 1, f"this process has read entry {state.sequence}")
    return next_entry[0].previous if next_entry is not None else None
