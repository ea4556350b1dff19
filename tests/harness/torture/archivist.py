"""Reads the decisions of the chains while a run continues, because their entries are deleted meanwhile."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import txnstore
from tests.harness.history import Decision
from tests.helpers.connections import connection_of
from txnstore.chain.keys import entry_sequence
from txnstore.chain.payload import decode_entry
from txnstore.core.events import Event
from txnstore.core.transactions.events import ProducerInitialized, TxnDecided
from txnstore.errors import ObjectNotFoundError, StorageError

#: Seconds between two looks; far less than entries live.
_PAUSE = 1.0


class Archivist(threading.Thread):
    """Follows all chains from their first entry on. It reads each name before its entry can have been deleted.

    Attributes:
        decisions: The decisions about transactions, entry by entry.
        failed: What ended it early.
        entries: How many entries each kind of process has written: the role of the only transactional id that a process
            decides about, ``several ids`` if there are more, ``no transactions`` if there is none.
        carried: How many commands of each kind of process are in entries of other processes.
    """

    def __init__(self, store: txnstore.Store) -> None:
        super().__init__(daemon=True)
        self._connection = connection = connection_of(store)
        self._objects, self._keys = connection.objects, connection.keys
        self._read = {chain.number: 0 for chain in connection.chains}
        self._over = threading.Event()
        self.decisions: list[Decision] = []
        self.failed: Exception | None = None
        self._written: Counter[str] = Counter()
        self._carried: Counter[str] = Counter()
        #: The transactional ids of the decisions that each process has asked for.
        self._ids: dict[str, set[str]] = {}

    def run(self) -> None:
        try:
            while not self._over.wait(_PAUSE):
                with suppress(StorageError):  # The server is away.
                    self._follow()
        except Exception as error:  # noqa: BLE001 - the run reports it
            self.failed = error

    def end(self) -> None:
        """Stop following. Idempotent."""
        self._over.set()
        self.join()

    def finish(self) -> list[Decision]:
        """All decisions, those of the newest entries included."""
        self.end()
        if self.failed is not None:
            raise self.failed
        self._follow()
        for chain in self._connection.chains:
            if self._read[chain.number] < chain.refresh().sequence:
                raise RuntimeError(f"entry {self._read[chain.number] + 1} of chain {chain.number} was deleted unread")
        return self.decisions

    @property
    def entries(self) -> Counter[str]:
        return self._by_kind(self._written)

    @property
    def carried(self) -> Counter[str]:
        return self._by_kind(self._carried)

    def _by_kind(self, by_process: Counter[str]) -> Counter[str]:
        kinds: Counter[str] = Counter()
        for process, count in by_process.items():
            kinds[kind_of(self._ids.get(process, set()))] += count
        return kinds

    @property
    def deleted(self) -> int:
        """The number of entries that do not exist any more, up to the oldest one of each chain that does."""
        oldest = [self._objects.list(self._keys.entries(chain), limit=1) for chain in self._read]
        return sum((entry_sequence(listed[0].key) or 1) - 1 for listed in oldest if listed)

    def _follow(self) -> None:
        for chain in self._read:
            with suppress(ObjectNotFoundError):
                while True:
                    following = self._read[chain] + 1
                    key = self._keys.entry(chain, following)
                    entry = decode_entry(key, self._objects.get(key))
                    self._written[entry.writer_id] += 1
                    askers = [entry.writer_id] * len(entry.events)
                    for writer_id, _, first, count in entry.carried or ():
                        self._carried[writer_id] += 1
                        askers[first : first + count] = [writer_id] * count
                    for asker, decision in zip(askers, _decisions(following, entry.events), strict=True):
                        if decision is not None:
                            self.decisions.append(decision)
                            self._ids.setdefault(asker, set()).add(decision.transactional_id)
                    self._read[chain] = following


def kind_of(transactional_ids: set[str]) -> str:
    """The kind of a process that decides about these ids: those of workers and of Spark end with a number."""
    if len(transactional_ids) != 1:
        return "several ids" if transactional_ids else "no transactions"
    return re.split(r"-\d", min(transactional_ids))[0]


def _decisions(sequence: int, events: list[Event]) -> Iterator[Decision | None]:
    """The decision about a transaction that each event is, if it is one."""
    for number, event in enumerate(events):
        position = sequence * 100_000 + number
        if isinstance(event, ProducerInitialized) and event.transactional_id is not None:
            yield Decision("init", event.transactional_id, event.producer_id, event.epoch, position)
        elif isinstance(event, TxnDecided):
            outcome = event.outcome.name.lower()
            yield Decision(outcome, event.transactional_id, event.producer_id, event.epoch, position)
        else:
            yield None
