"""Small JSON documents of a store, made by hand."""

from __future__ import annotations

from dataclasses import fields

from tests.helpers import keys
from txnstore.chain.codec import LatestDocument, Stored, StoreDocument
from txnstore.core.transactions.model import MAX_TIMEOUT_MS


def hint(
    sequence: int, entry_hash: str = "0" * 64, *, store_id: str = keys.STORE_ID, boundary: int = 0
) -> LatestDocument:
    """A hint to a checkpoint, by a writer that knew no later entry."""
    return LatestDocument(
        sequence=sequence,
        boundary=boundary,
        store_id=store_id,
        entry_hash=entry_hash,
        head=sequence,
        head_hash=entry_hash,
    )


def store_document(store_id: str = keys.STORE_ID) -> StoreDocument:
    """The identity of a store with one chain."""
    return StoreDocument(store_id=store_id, chains=1, created_at=0, transaction_max_timeout_ms=MAX_TIMEOUT_MS)


def members_of(kind: type[Stored]) -> list[str]:
    """The names of the members of a document, in order."""
    return [member.name for member in fields(kind)]
