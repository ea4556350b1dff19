"""A store with something of everything to verify, and what a verification found."""

from __future__ import annotations

from dataclasses import replace

from tests.helpers import keys
from tests.helpers.compaction import abort, begin, commit, new_store
from tests.helpers.connections import connection_of
from txnstore.chain.codec import Entry
from txnstore.chain.payload import decode_entry, encode_entry, entry_hash, payload_of
from txnstore.compactor import VerifyReport
from txnstore.connection import Connection
from txnstore.store import Store
from txnstore.testing import ManualClock


def sample_store(clock: ManualClock) -> Store:
    """Commits, an abort, a compaction, a checkpoint, and an open transaction on top."""
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    for number in range(3):
        commit(store, [b"%d" % number, b"x"])
    abort(store, [b"lost"], partition=1)
    store.compact()
    store.checkpoint()
    commit(store, [b"late"], partition=1)
    begin(store, [b"open"])
    return store


def _violations(report: VerifyReport) -> list[tuple[str, str]]:
    """Name and subject of each violation."""
    return [(item.name, item.subject) for item in report.violations]


def _entry(store: Store, sequence: int) -> Entry:
    key = keys.entry(0, sequence)
    return decode_entry(key, connection_of(store).objects.get(key))


def _rewrite(store: Store, sequence: int, entry: Entry) -> None:
    """Replace an entry by another well-formed one, and everything after it so that the hashes fit again."""
    last = connection_of(store).view(refresh=False).sequence
    previous = None
    for number in range(sequence, last + 1):
        rewritten = entry if number == sequence else _entry(store, number)
        if previous is not None:
            rewritten = replace(rewritten, previous=previous)
        data = encode_entry(rewritten, payload_of(connection_of(store).objects.get(keys.entry(0, number))))
        connection_of(store).objects.put(keys.entry(0, number), data)
        previous = entry_hash(data)


def _find(store: Store, kind: type) -> int:
    """The first entry that holds an event of a kind."""
    last = connection_of(store).view().sequence
    return next(n for n in range(1, last + 1) if any(isinstance(item, kind) for item in _entry(store, n).events))


def _fresh(store: Store) -> Store:
    """The store as a process sees it that has read nothing of it yet, damaged or not."""
    return Store(Connection(connection_of(store).counts.inner, read_only=True))
