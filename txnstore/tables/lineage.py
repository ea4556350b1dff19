"""Compares the entries that a cut shows with those of the chains: a store that was restored may have lost some."""

from __future__ import annotations

from functools import partial

from txnstore.catalog.iceberg.cut import CutDocument
from txnstore.chain import keys
from txnstore.chain.tail import read_entry
from txnstore.connection import Connection
from txnstore.core.view import View

_ANEW = "Its tables may have rows that the store has lost: `txnstore table sync --anew '*'` publishes all tables anew"


def lost_entry(connection: Connection, cut: CutDocument, view: View) -> str | None:
    """Why a cut does not show a part of the history of the chains, with the remedy; None: it does.

    Costs a GET for each chain that has gone on since the cut. Entries that a vacuum has deleted are not compared.

    Args:
        connection: The connection to the store.
        cut: The cut.
        view: The chains, not older than the cut.

    Raises:
        CorruptionError: The entry after the cut is damaged.
    """
    if (lost := entry_beyond(cut, view)) is not None:
        return lost
    if not cut.hashes:
        return None
    hashes = list(connection.pool.map(partial(_hash_at, connection, view), range(view.chains), cut.heads))
    for chain, (expected, found) in enumerate(zip(cut.hashes, hashes, strict=True)):
        if found is not None and found != expected:
            entry = connection.keys.entry(chain, cut.heads[chain])
            return f"{keys.cut(cut.number)} was made when {entry} was another entry. {_ANEW}"
    return None


def entry_beyond(cut: CutDocument, view: View) -> str | None:
    """Why a cut does not show a part of the history, if it has entries that the chains do not have. No request."""
    heads = [state.sequence for state in view.states]
    if any(mine < theirs for mine, theirs in zip(heads, cut.heads, strict=True)):
        return f"{keys.cut(cut.number)} ends at the entries {cut.heads} of the chains, and they at {heads}. {_ANEW}"
    return None


def _hash_at(connection: Connection, view: View, chain: int, head: int) -> str | None:
    """The hash of an entry; None if it cannot be told any more."""
    state = view.states[chain]
    if state.sequence == head:
        return state.entry_hash
    following = read_entry(connection.objects, connection.keys, chain, head + 1)
    return following[0].previous if following is not None else None
