"""The rounds of a compactor, as ``txnstore maintain`` does them."""

from __future__ import annotations

from collections.abc import Generator

from tests.helpers.connections import connection_of
from txnstore.compactor.compact.rounds import Round, Rounds
from txnstore.store import Store


def compact_rounds(
    store: Store, *, max_bytes: int | None = None, past_hw: bool = False, rounds: int | None = None
) -> Generator[Round, None, None]:
    """One round after the other; None: without end."""
    compaction, number = Rounds(connection_of(store), max_bytes=max_bytes, past_hw=past_hw), 0
    while rounds is None or number < rounds:
        number += 1
        yield compaction.run()
