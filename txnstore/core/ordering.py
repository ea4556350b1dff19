"""The order between chains: an entry names the entries of other chains that it follows from.

Readers use it to take a closed cut (``docs/design/0005-many-chains.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from txnstore.core.state import Draft, Fold, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The later events of this chain were decided after entry ``sequence`` of chain ``chain`` and may depend on it."""

    type: Literal["Observed"] = "Observed"
    chain: int
    sequence: int


def _observed(state: State, event: Observed) -> State:
    return replace(state, seen=state.seen.insert(event.chain, max(event.sequence, state.seen.get(event.chain, 0))))


def observe(draft: Draft, after: tuple[tuple[int, int], ...]) -> None:
    """Record that this entry follows from the entries ``after``, pairs of (chain, sequence), of other chains.

    A cut that includes this entry must include them, too.
    """
    for chain, sequence in after:
        if chain != draft.state.chain and draft.state.seen.get(chain, 0) < sequence:
            draft.emit(Observed(chain=chain, sequence=sequence))


ORDERING_FOLDS: dict[type, Fold] = {Observed: _observed}
