"""Decides the commands that share the next entry of a chain, and encodes that entry."""

from __future__ import annotations

from collections.abc import Sequence

from txnstore.chain.codec import Entry, PayloadInfo
from txnstore.chain.keys import Keys
from txnstore.chain.payload import Payload, encode_entry, entry_hash
from txnstore.chain.waiting import Attempt, Waiter
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.state import State, begin_entry, replace
from txnstore.errors import InvalidConfigError
from txnstore.runtime import Runtime
from txnstore.storage.base import Claim


class Drafts:
    """Makes the entries that a process offers to a chain.

    Args:
        keys: The keys of the store.
        number: The number of the chain.
        writer_id: Names the process in its entries.
        runtime: Names the entries.
    """

    def __init__(self, keys: Keys, number: int, writer_id: str, runtime: Runtime) -> None:
        self._keys, self._number = keys, number
        self._writer_id, self._runtime = writer_id, runtime

    def decide(self, before: State, now: int, waiters: Sequence[Waiter], *, one_by_one: bool = False) -> Attempt:
        """Decide commands in order; each waiter gets its result, or the error that refuses its command alone.

        Args:
            before: The state at the head of the chain.
            now: The time of the entry in milliseconds since the epoch.
            waiters: The commands.
            one_by_one: Encode the events of each command alone, so that a command whose events cannot be encoded does
                not affect the others either.
        """
        state = begin_entry(before, now)
        key = self._keys.entry(self._number, state.sequence)
        payload = Payload(key, state.sequence)
        events: list[Event] = []
        for waiter in waiters:
            mark = payload.mark
            try:
                decision = decide(state, payload.place(waiter.command))
                if one_by_one:
                    encode_entry(self._entry(before, decision.state, [*decision.events]))
            except Exception as error:  # noqa: BLE001 - The error is reported to the caller of this command only.
                payload.back_to(mark)
                waiter.error, waiter.result = error, None
            else:
                waiter.error, waiter.result = None, decision.result
                state = decision.state
                events += payload.accepted(mark, decision.events)
        entry = self._entry(before, state, events, payload.describe())
        try:
            data = encode_entry(entry, payload.data) if events else b""
        except InvalidConfigError:
            if one_by_one:
                raise
            return self.decide(before, now, waiters, one_by_one=True)
        # All that follows from the entry is computed before it is written: then nothing can fail that is durable.
        state = replace(state, entry_hash=entry_hash(data))
        commands = tuple(waiter.command for waiter in waiters)
        return Attempt(entry, Claim(key, data), state, commands)

    def _entry(self, before: State, state: State, events: list[Event], payload: PayloadInfo | None = None) -> Entry:
        return Entry.model_construct(
            sequence=state.sequence,
            entry_id=self._runtime.new_id(),
            writer_id=self._writer_id,
            timestamp=state.timestamp,
            previous=before.entry_hash,
            payload=payload,
            events=events,
        )
