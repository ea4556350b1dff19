"""Folding a chain again from its first entry, and comparing everything that was saved of it on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, fields, replace

from txnstore.chain import checkpoint, keys
from txnstore.chain.codec import Entry, content_hash, decode
from txnstore.compactor.violation import Violation
from txnstore.core.events import Event, SegmentsReplaced
from txnstore.core.evolve import begin_entry, evolve, first_state
from txnstore.core.invariants import check, check_step
from txnstore.core.model import State, TopicPartition
from txnstore.core.visibility import aborted_batches
from txnstore.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from txnstore.storage.base import ObjectStore

#: Entries on their way at a time.
_WINDOW = 64
#: The rules for a single state look at all of it, so they are asked of about so many states, evenly spread.
_LOOKS = 64
#: What folding an event that does not fit the state before it may raise.
_UNFIT = (KeyError, StopIteration, ValueError, IndexError)


@dataclass(slots=True)
class ChainFindings:
    """What was found: the state at the head (None if a damaged entry hides it), and what it took to find it."""

    state: State | None = None
    violations: list[Violation] = field(default_factory=list)
    entries: int = 0
    checkpoints: int = 0
    bytes_read: int = 0


class ChainVerifier:
    """Reads a chain from entry 1 and checks it; use :meth:`run` once.

    ``chains``: how many the store has. ``known``: a state that this process has seen, which the chain must still
    contain. An entry that cannot be folded hides all states after it up to the next intact checkpoint, from which the
    fold goes on.
    """

    def __init__(self, objects: ObjectStore, pool: Executor, chain: int, known: State | None, chains: int = 1) -> None:
        self._objects, self._pool, self._chain, self._known = objects, pool, chain, known
        self._label = f"chain {chain}, " if chains > 1 else ""
        self._found = ChainFindings()
        self._state: State | None = first_state(chain, chains)
        self._previous: str | None = ""
        self._interval = 1
        self._seen: set[str] = set()

    def run(self) -> ChainFindings:
        """Everything that is wrong with the chain."""
        # Checkpoints are listed first: one that is written between the two listings would seem to lack its entries.
        checkpoints = self._list_checkpoints()
        present = self._list_entries()
        known = self._known.sequence if self._known is not None else 0
        last = max([known, *present, *checkpoints], default=0)
        self._interval = max(1, last // _LOOKS)
        self._report_missing(present, last)
        for sequence, data in self._read(present, last):
            if data is None:
                self._state = self._previous = None
            else:
                self._check_entry(sequence, data)
            if sequence in checkpoints:
                self._check_checkpoint(sequence)
        if self._state is None:
            self._report("state_at_head", keys.entries(self._chain), "damage above hides the newest state")
        else:
            self._check_state(self._state)
        self._found.state = self._state
        return self._found

    def _report(self, name: str, subject: str, message: str) -> None:
        self._found.violations.append(Violation(name, subject, message))

    def _list_checkpoints(self) -> set[int]:
        """The checkpoints that have a head.

        A writer that slept can put the head of one whose batches a vacuum has deleted. There is a newer one by then, so
        nobody needs it, and it is no damage.
        """
        found = {item.key for item in self._objects.list(keys.checkpoints(self._chain))}
        heads = {sequence for key in found if (sequence := keys.checkpoint_sequence(key)) is not None}
        whole = {sequence for sequence in heads if keys.checkpoint_batches(self._chain, sequence) in found}
        newest = max(whole, default=0)
        return {sequence for sequence in heads if sequence in whole or sequence > newest}

    def _list_entries(self) -> set[int]:
        found = (keys.entry_sequence(item.key) for item in self._objects.list(keys.entries(self._chain)))
        return {sequence for sequence in found if sequence is not None}

    def _report_missing(self, present: set[int], last: int) -> None:
        first = None
        for sequence in range(1, last + 2):
            missing = sequence <= last and sequence not in present
            if missing and first is None:
                first = sequence
            elif not missing and first is not None:
                until = f" and all up to entry {sequence - 1}" if sequence - 1 > first else ""
                self._report("entry_present", keys.entry(self._chain, first), f"the entry{until} is missing")
                first = None

    def _read(self, present: set[int], last: int) -> Iterator[tuple[int, bytes | None]]:
        """All entries in order, fetched ahead; None for one that is not there."""
        flying: deque[tuple[int, Future[bytes] | None]] = deque()
        following = iter(range(1, last + 1))
        while True:
            while len(flying) < _WINDOW and (sequence := next(following, None)) is not None:
                key = keys.entry(self._chain, sequence)
                flying.append((sequence, self._pool.submit(self._objects.get, key) if sequence in present else None))
            if not flying:
                return
            sequence, future = flying.popleft()
            yield sequence, None if future is None else self._result(sequence, future)

    def _result(self, sequence: int, future: Future[bytes]) -> bytes | None:
        try:
            data = future.result()
        except ObjectNotFoundError:
            self._report("entry_present", keys.entry(self._chain, sequence), "the entry is listed but not there")
            return None
        self._found.entries += 1
        self._found.bytes_read += len(data)
        return data

    def _check_entry(self, sequence: int, data: bytes) -> None:
        """Decode an entry, check that it follows the one before it, and fold it."""
        key, digest = keys.entry(self._chain, sequence), content_hash(data)
        if self._known is not None and sequence == self._known.sequence and digest != self._known.entry_hash:
            self._report("history_unchanged", key, "its bytes are not those that this process has read before")
        try:
            entry = decode(Entry, key, data)
        except (CorruptionError, UnsupportedFormatError) as error:
            self._report("entry_intact", key, str(error))
            self._state = self._previous = None
            return
        if entry.sequence != sequence:
            self._report("entry_intact", key, f"it says that it is entry {entry.sequence}")
            self._state = None
        elif self._previous is not None and entry.previous != self._previous:
            before = keys.entry(self._chain, sequence - 1)
            self._report("hash_chain", before, f"its hash is {self._previous}; {key} follows {entry.previous}")
            self._state = None
        if self._state is not None:
            self._fold(key, entry, digest, self._state)
        self._previous = digest

    def _fold(self, key: str, entry: Entry, digest: str, before: State) -> None:
        if entry.timestamp < before.timestamp:
            message = f"its time {entry.timestamp} is before that of its predecessor, {before.timestamp}"
            self._report("entry_time", key, message)
        state = begin_entry(before, entry.timestamp)
        try:
            for event in entry.events:
                self._found.violations += event_violations(key, state, event)
                state = evolve(state, event)
        except _UNFIT as error:
            self._report("entry_fits", key, f"it holds an event that does not fit the state before it: {error!r}")
            self._state = None
            return
        self._state = replace(state, entry_hash=digest)
        self._found.violations += step_violations(before, self._state, self._label)
        if self._state.sequence % self._interval == 0:
            self._check_state(self._state)

    def _check_state(self, state: State) -> None:
        """Ask the rules for a single state; what stays wrong is reported once."""
        for item in check(state):
            if str(item) not in self._seen:
                self._seen.add(str(item))
                self._report(item.name, f"{self._label}the state after entry {state.sequence}", item.message)

    def _check_checkpoint(self, sequence: int) -> None:
        """A checkpoint must be readable and equal the fold; one after damage takes the fold's place."""
        key = keys.checkpoint_head(self._chain, sequence)
        saved = checkpoint.receive(
            self._chain, sequence, checkpoint.request(self._objects, self._pool, self._chain, sequence)
        )
        self._found.checkpoints += 1
        if saved is None:
            self._report("checkpoint_intact", key, "it cannot be read: one of its two objects is missing or altered")
        elif self._state is None:
            self._state, self._previous = saved, saved.entry_hash
        elif saved != self._state:
            different = [item.name for item in fields(State) if _differs(saved, self._state, item.name)]
            message = f"it is not the fold of the entries up to {sequence}: {', '.join(different)} differ"
            self._report("checkpoint_equals_fold", key, message)


def _differs(saved: State, folded: State, name: str) -> bool:
    # Two empty maps of rpds are equal, and also unequal.
    return not getattr(saved, name) == getattr(folded, name)  # noqa: SIM201


def event_violations(key: str, state: State, event: Event) -> list[Violation]:
    """What a compaction in entry ``key`` did wrong: it went above the last stable offset, or lost or made records."""
    if not isinstance(event, SegmentsReplaced):
        return []
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    is_aborted = aborted_batches(partition)
    gone = set(event.removed)
    removed = [batch for batch in partition.batches if batch.base_offset in gone]
    found = []
    if removed and removed[-1].limit > partition.last_stable_offset:
        message = f"{key} replaced offsets up to {removed[-1].limit}, above {partition.last_stable_offset}"
        found.append(Violation("compaction_below_lso", str(tp), message))
    before = sum(batch.records for batch in removed if not is_aborted(batch))
    after = sum(batch.records for batch in event.added)
    if len(removed) != len(gone) or before != after:
        message = f"{key} replaced {len(gone)} batches of {before} committed records by {after} records"
        found.append(Violation("compaction_keeps_records", str(tp), message))
    return found


def step_violations(before: State, after: State, label: str = "") -> list[Violation]:
    """What the rules for two states in a row find; ``label`` says which chain they are of."""
    subject = f"{label}entry {after.sequence}"
    return [Violation(item.name, subject, item.message) for item in check_step(before, after)]
