"""Verifies a chain: folds it from its beginning, and compares its checkpoints with the resulting states."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeAlias

from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.index import Edge
from txnstore.chain.codec import Entry, reason
from txnstore.chain.keys import Keys, checkpoint_sequence, entry_sequence, index_range, latest
from txnstore.chain.payload import decode_entry, entry_hash, payload_damage, payload_of
from txnstore.compactor.verify.boundaries import boundaries_without_checkpoint, read_boundaries
from txnstore.core.evolve import evolve
from txnstore.core.invariants.check import check, check_event, check_step
from txnstore.core.invariants.common import Violation
from txnstore.core.log.model import Batch
from txnstore.core.log.released import entry_of
from txnstore.core.log.sums import Sums, add_up
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.maintenance import SegmentsReplaced, sums_problem
from txnstore.core.model import NO_FEATURES, TopicPartition, sorted_items
from txnstore.core.state import State, begin_entry, first_state
from txnstore.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from txnstore.storage.base import ObjectStore, read_if_there

#: Concurrent requests for entries.
_WINDOW = 64
#: The invariants of a state examine all of it, so they are checked for about this many states, evenly spread.
_MAX_STATE_CHECKS = 64


#: What names the rows of a batch: the key of its segment, and its first row.
BatchRows: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class ChainFindings:
    """The result of verifying a chain.

    Attributes:
        state: The state at the head; None if a damaged entry prevents computing it.
        entries: The number of entries read.
        checkpoints: The number of checkpoints checked.
        bytes_read: The bytes of the entries read.
        states: The number of states whose invariants were checked.
        steps: The number of entries that were folded.
        compactions: The number of compactions in them.
        sums: The sums of the records of each batch that a compaction wrote, by its rows, as far as recorded.
        payloads: The size of the payload of each entry that has one, by key.
    """

    state: State | None = None
    violations: list[Violation] = field(default_factory=list)
    entries: int = 0
    checkpoints: int = 0
    bytes_read: int = 0
    states: int = 0
    steps: int = 0
    compactions: int = 0
    sums: dict[BatchRows, Sums] = field(default_factory=dict)
    payloads: dict[str, int] = field(default_factory=dict)


class ChainVerifier:
    """Reads a chain from entry 1, or from the checkpoint at its last boundary, and checks it; call :meth:`run` once.

    After an entry that cannot be folded, the states are unknown up to the next intact checkpoint, where the
    verification resumes.

    Args:
        pool: Runs concurrent requests.
        chain: The number of the chain.
        loaded: The state that this process has loaded, which the chain must still contain; None without one.
        chains: The number of chains of the store.
    """

    def __init__(
        self, objects: ObjectStore, pool: Executor, keys: Keys, chain: int, loaded: State | None, chains: int = 1
    ) -> None:
        self._objects, self._pool, self._keys, self._chain, self._loaded_state = objects, pool, keys, chain, loaded
        self._label = f"chain {chain}, " if chains > 1 else ""
        self._findings = ChainFindings()
        #: The fold up to the last entry that was read; None after damage, until the next sound checkpoint.
        self._state: State | None = first_state(chain, chains)
        #: The hash of the last entry, which the next one must contain; None: it cannot be checked.
        self._previous_hash: str | None = ""
        #: The states are checked at every entry whose number is a multiple of this.
        self._interval = 1
        #: The violations of states so far: one that persists is reported once.
        self._reported_states: set[str] = set()
        #: The keys of the index files that exist.
        self._index_keys: set[str] = set()
        #: The newest checkpoint that could be read, and the logs at the ends of its index files: the next one shares
        #: most of them, and does not read them again.
        self._newest_sound_checkpoint = 0
        self._edges: list[Edge] = []
        #: The entry of the last boundary: entries up to it may have been deleted.
        self._boundary_entry = 0
        self._hint = checkpoint.NO_HINT
        #: The hashes of the entries that the hint names, by number, as far as they are not compared yet.
        self._hinted_hashes: dict[int, str] = {}
        #: The checkpoints that name missing index files, with the message: damage only if no newer one is sound.
        self._incomplete_checkpoints: dict[int, str] = {}

    def run(self) -> ChainFindings:
        """Verify the chain."""
        # Entries are listed last: those of a boundary or a checkpoint that is written meanwhile would seem missing. The
        # hint is read first: it is written after the objects that it names.
        self._hint = checkpoint.decode_hint(self._keys, self._chain, read_if_there(self._objects, latest(self._chain)))
        self._hinted_hashes = checkpoint.hinted_entries(self._hint)
        boundaries = read_boundaries(self._objects, self._keys, self._chain, self._hint.boundary)
        checkpoints = self._list_checkpoints()
        self._boundary_entry = self._check_boundaries(boundaries, max(checkpoints, default=0))
        present_entries = self._existing_entries()
        loaded_entry = self._loaded_state.sequence if self._loaded_state is not None else 0
        indexed_entries = (until for _, until in filter(None, map(index_range, self._index_keys)))
        last_entry = max([loaded_entry, *present_entries, *checkpoints, *indexed_entries], default=0)
        self._interval = max(1, (last_entry - self._boundary_entry) // _MAX_STATE_CHECKS)
        self._report_missing(present_entries, last_entry)
        if self._boundary_entry:
            self._state = self._previous_hash = None
            # Another vacuum may have deleted it: then the history begins with the next one.
            if self._boundary_entry in checkpoints:
                self._check_checkpoint(self._boundary_entry)
        for sequence, data in self._read_entries(present_entries, last_entry):
            if data is None:
                self._state = self._previous_hash = None
            else:
                self._check_entry(sequence, data)
            if sequence in checkpoints:
                self._check_checkpoint(sequence)
        self._check_end(max(last_entry, self._boundary_entry))
        self._report_incomplete()
        if self._state is None:
            self._report(
                "state_at_head", self._keys.entries(self._chain), "the newest state is unknown after the damage"
            )
        else:
            self._check_state(self._state)
            self._check_entries_in_use(self._state)
        self._findings.state = self._state
        return self._findings

    def _report(self, name: str, subject: str, message: str) -> None:
        self._findings.violations.append(Violation(name, message, subject))

    def _check_boundaries(self, boundaries: dict[int, BoundaryDocument | None], newest: int) -> int:
        """Report lost boundaries, and return the entry of the last sound one (0 without one)."""
        wrong_numbers = boundaries_without_checkpoint(boundaries, newest)
        for number, document in boundaries.items():
            key = self._keys.boundary(self._chain, number)
            if document is None:
                self._report("boundary_intact", key, "it is missing or damaged")
            elif number in wrong_numbers:
                self._report("boundary_intact", key, f"no checkpoint is as new as its entry {document.sequence}")
        sound_entries = [
            boundary.sequence
            for number, boundary in boundaries.items()
            if boundary is not None and number not in wrong_numbers
        ]
        return max(sound_entries, default=0)

    def _check_entries_in_use(self, state: State) -> None:
        """Check the entries before the last boundary that are kept for segments in use."""
        segments = (
            (batch.segment for _, log in sorted_items(state.partitions) for batch in log.batches)
            if self._boundary_entry
            else ()
        )
        inlined = {segment.object for segment in segments if segment.inlined}
        in_use = sorted(key for key in inlined if entry_of(key) <= self._boundary_entry)
        for key, data in zip(in_use, self._pool.map(partial(read_if_there, self._objects), in_use), strict=True):
            if data is None:
                continue  # Missing segments are reported, each with its place.
            self._findings.entries += 1
            self._findings.bytes_read += len(data)
            try:
                self._check_payload(key, decode_entry(key, data), data)
            except (CorruptionError, UnsupportedFormatError) as error:
                self._report("entry_intact", key, str(error))

    def _check_payload(self, key: str, entry: Entry, data: bytes) -> None:
        if payload := payload_of(data):
            self._findings.payloads[key] = len(payload)
        if (damage := payload_damage(entry, data)) is not None:
            self._report("payload_intact", key, damage)

    def _list_checkpoints(self) -> set[int]:
        """Return the checkpoints that have a ``state.json``, and remember the index files."""
        hint = self._hint.sequence
        listed_keys = [info.key for info in self._objects.list(self._keys.checkpoints(self._chain))]
        checkpoints = {sequence for key in listed_keys if (sequence := checkpoint_sequence(key)) is not None}
        self._index_keys = {key for key in listed_keys if index_range(key) is not None}
        # A hint below a checkpoint may come from a writer that was paused until a vacuum had deleted what it names.
        if hint > max(checkpoints, default=0):
            message = f"it is missing, although {latest(self._chain)} names it"
            self._report("checkpoint_intact", self._keys.checkpoint_state(self._chain, hint), message)
        return checkpoints

    def _existing_entries(self) -> set[int]:
        """Return the numbers of the entries that exist.

        A list is no snapshot: of two entries that are created meanwhile it may have the later one only. So they are
        listed again where there is a gap.
        """
        present_entries = self._list_entries()
        newest = max(present_entries, default=0)
        if len(present_entries) < newest and any(
            number not in present_entries for number in range(self._boundary_entry + 1, newest)
        ):
            present_entries |= {number for number in self._list_entries() if number <= newest}
        return present_entries

    def _list_entries(self) -> set[int]:
        sequences = (entry_sequence(info.key) for info in self._objects.list(self._keys.entries(self._chain)))
        return {sequence for sequence in sequences if sequence is not None}

    def _report_missing(self, present: set[int], last: int) -> None:
        """Report each run of missing entries once."""
        first_missing = None
        for sequence in range(self._boundary_entry + 1, last + 2):
            is_missing = sequence <= last and sequence not in present
            if is_missing and first_missing is None:
                first_missing = sequence
            elif not is_missing and first_missing is not None:
                until = f" and all up to entry {sequence - 1}" if sequence - 1 > first_missing else ""
                self._report(
                    "entry_present", self._keys.entry(self._chain, first_missing), f"the entry{until} is missing"
                )
                first_missing = None

    def _check_end(self, last: int) -> None:
        """Check that the chain does not end before an entry that was there when its hint was written.

        Entries may have been deleted up to that of the last boundary only. What followed ``last`` is not known.
        """
        newest_named = max(self._hint.sequence, self._hint.head)
        if newest_named > last:
            until = f" and all up to entry {newest_named}" if newest_named - 1 > last else ""
            message = f"the entry{until} is missing, although {latest(self._chain)} names entry {newest_named}"
            self._report("entry_present", self._keys.entry(self._chain, last + 1), message)
            self._state = None

    def _compare_with_hint(self, sequence: int, digest: str) -> None:
        """Compare the hash of an entry, read or from a checkpoint, with the hash that the hint records."""
        expected = self._hinted_hashes.pop(sequence, digest)
        if expected != digest:
            entry = self._keys.entry(self._chain, sequence)
            message = f"it names {entry} with the hash {expected}, and that has {digest}: it is of another history"
            self._report("history_unchanged", latest(self._chain), message)

    def _read_entries(self, present: set[int], last: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield the entries after the last boundary up to `last` in order, downloaded ahead; None for a missing one."""
        pending: deque[tuple[int, Future[bytes] | None]] = deque()
        unread = iter(range(self._boundary_entry + 1, last + 1))
        while True:
            while len(pending) < _WINDOW and (sequence := next(unread, None)) is not None:
                key = self._keys.entry(self._chain, sequence)
                pending.append((sequence, self._pool.submit(self._objects.get, key) if sequence in present else None))
            if not pending:
                return
            sequence, future = pending.popleft()
            yield sequence, None if future is None else self._downloaded_entry(sequence, future)

    def _downloaded_entry(self, sequence: int, future: Future[bytes]) -> bytes | None:
        """Return the bytes of an entry, and count them; None, and report it, if it has vanished."""
        try:
            data = future.result()
        except ObjectNotFoundError:
            self._report(
                "entry_present", self._keys.entry(self._chain, sequence), "the entry is listed, but does not exist"
            )
            return None
        self._findings.entries += 1
        self._findings.bytes_read += len(data)
        return data

    def _check_entry(self, sequence: int, data: bytes) -> None:
        """Decode an entry, check that it contains the hash of the one before it, and fold it."""
        key, digest = self._keys.entry(self._chain, sequence), entry_hash(data)
        if (
            self._loaded_state is not None
            and sequence == self._loaded_state.sequence
            and digest != self._loaded_state.entry_hash
        ):
            self._report("history_unchanged", key, "its bytes differ from those that this process has read before")
        try:
            entry = decode_entry(key, data)
        except (CorruptionError, UnsupportedFormatError) as error:
            self._report("entry_intact", key, str(error))
            self._state = self._previous_hash = None
            return
        self._compare_with_hint(sequence, digest)
        self._check_payload(key, entry, data)
        if entry.principals is not None:
            self._check_principals(key, entry, [events for _, events in entry.principals])
        if entry.sequence != sequence:
            self._report("entry_intact", key, f"it contains entry {entry.sequence}")
            self._state = None
        elif self._previous_hash is not None and entry.previous != self._previous_hash:
            previous_key = self._keys.entry(self._chain, sequence - 1)
            self._report(
                "hash_chain", previous_key, f"its hash is {self._previous_hash}; {key} expects {entry.previous}"
            )
            self._state = None
        if self._state is not None:
            self._fold(key, entry, digest, self._state)
        self._previous_hash = digest

    def _check_principals(self, key: str, entry: Entry, counts: list[int]) -> None:
        """Check that the entry names a principal for each event. No state depends on these names."""
        if sum(counts) != len(entry.events) or min(counts, default=1) < 1:
            principals_text = ", ".join(f"{principal} for {events:,}" for principal, events in entry.principals or ())
            message = f"it has {len(entry.events):,} events, and as principals: {principals_text or 'no principal'}"
            self._report("principals_add_up", key, message)

    def _fold(self, key: str, entry: Entry, digest: str, before: State) -> None:
        """Fold an entry, and check each of its events and the step that it makes."""
        if entry.timestamp < before.timestamp:
            message = f"its timestamp {entry.timestamp} is before that of the previous entry, {before.timestamp}"
            self._report("entry_time", key, message)
        state = begin_entry(before, entry.timestamp, entry.requires or NO_FEATURES)
        label = f"{self._label}entry {state.sequence}"
        try:
            for event in entry.events:
                if isinstance(event, SegmentsReplaced):
                    self._findings.compactions += 1
                    self._findings.violations += compaction_violations(key, state, event)
                    self._findings.violations += sums_violations(key, state, event, self._findings.sums)
                earlier, state = state, evolve(state, event)
                self._findings.violations += event_violations(earlier, state, label)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an invalid event makes the fold raise
            message = f"it contains an event that is invalid in the state before it: {reason(error)}"
            self._report("entry_fits", key, message)
            self._state = None
            return
        self._state = replace(state, entry_hash=digest)
        self._findings.steps += 1
        self._findings.violations += step_violations(before, self._state, label)
        if self._state.sequence % self._interval == 0:
            self._check_state(self._state)

    def _check_state(self, state: State) -> None:
        """Check the invariants of a state, and report a violation that persists only once."""
        self._findings.states += 1
        for violation in check(state):
            if str(violation) not in self._reported_states:
                self._reported_states.add(str(violation))
                self._report(violation.name, f"{self._label}the state after entry {state.sequence}", violation.message)

    def _check_checkpoint(self, sequence: int) -> None:
        """Check that a checkpoint is readable and equals the folded state; after damage, resume from it."""
        key = self._keys.checkpoint_state(self._chain, sequence)
        self._findings.checkpoints += 1
        requested = checkpoint.request(self._objects, self._pool, self._keys, self._chain, sequence, self._edges)
        if requested is None:
            self._report("checkpoint_intact", key, "no entry has this number")
            return
        try:
            saved = checkpoint.read(self._keys, self._chain, sequence, requested)
            self._compare_with_hint(sequence, saved.state.entry_hash)  # Its entry may have been deleted.
            self._check_against_fold(key, saved.state)
        except (ObjectNotFoundError, CorruptionError) as error:
            named_files = checkpoint.named_files(self._objects, self._keys, self._chain, sequence)
            missing_files = [name for name in named_files or () if name not in self._index_keys]
            if missing_files:
                self._incomplete_checkpoints[sequence] = (
                    f"it cannot be read: {missing_files[0]} is missing, which it names"
                )
            else:
                self._report("checkpoint_intact", key, f"it cannot be read: {error}")
            return
        self._newest_sound_checkpoint, self._edges = sequence, saved.edges

    def _check_against_fold(self, key: str, saved: State) -> None:
        """Report the fields in which a checkpoint differs from the folded state.

        Continue with the checkpoint's state, whose batches later checkpoints share, if they are equal, or if there is
        no folded state, as after damage.

        Raises:
            CorruptionError: Its batches cannot be decoded.
        """
        if self._state is None:
            checkpoint.decode_all(saved)
            self._state, self._previous_hash = saved, saved.entry_hash
            return
        if _are_equal(saved, self._state):
            self._state = saved
        else:
            different = [field.name for field in fields(State) if _has_other_value(saved, self._state, field.name)]
            message = f"it differs from the state after entry {saved.sequence} in: {', '.join(different)}"
            self._report("checkpoint_equals_fold", key, message)

    def _report_incomplete(self) -> None:
        """Report checkpoints that lack index files, unless a newer one is sound.

        A writer that was paused can complete a checkpoint whose index files a vacuum has deleted. There is a
        newer checkpoint then, so this is not damage.
        """
        for sequence, message in self._incomplete_checkpoints.items():
            if sequence > self._newest_sound_checkpoint:
                self._report("checkpoint_intact", self._keys.checkpoint_state(self._chain, sequence), message)


def _are_equal(saved: State, folded: State) -> bool:
    """Whether two states are equal. Logs are compared in the order of the rows of index files: each is decoded once."""
    if len(saved.partitions) != len(folded.partitions):
        return False
    if any(saved.partitions.get(tp) != log for tp, log in sorted_items(folded.partitions)):
        return False
    return replace(saved, partitions=folded.partitions) == folded


def _has_other_value(saved: State, folded: State, name: str) -> bool:
    # For two empty maps of rpds, both == and != return True.
    return not getattr(saved, name) == getattr(folded, name)  # noqa: SIM201


def compaction_violations(key: str, state: State, event: SegmentsReplaced) -> list[Violation]:
    """Return violations of a compaction in entry ``key``: it went above the LSO, or changed the records."""
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    is_aborted = aborted_batches(partition)
    offsets = set(event.removed)
    removed_batches = [batch for batch in partition.batches if batch.base_offset in offsets]
    violations = []
    is_clean = event.clean_until is not None
    # A clean may go above the last stable offset, around what is open: ``undecided_data_is_kept`` checks that.
    if removed_batches and removed_batches[-1].limit > partition.last_stable_offset and not is_clean:
        message = f"{key} replaced offsets up to {removed_batches[-1].limit}, above {partition.last_stable_offset}"
        violations.append(Violation("compaction_below_lso", message, str(tp)))
    records_before = sum(batch.records for batch in removed_batches if not is_aborted(batch))
    records_after = sum(batch.records for batch in event.added)
    if (
        len(removed_batches) != len(offsets)
        or records_after > records_before
        or (records_after < records_before and not is_clean)
    ):
        message = (
            f"{key} replaced {len(offsets)} batches of {records_before} committed records by {records_after} records"
        )
        violations.append(Violation("compaction_keeps_records", message, str(tp)))
    return violations


def rows_of(batch: Batch) -> BatchRows:
    """Return the identity of the rows of a batch."""
    return batch.segment.key, batch.first_row


def sums_violations(
    key: str, state: State, event: SegmentsReplaced, recorded: dict[BatchRows, Sums]
) -> list[Violation]:
    """Return violations of a compaction's sums in entry ``key``: records were changed, or are not accounted for.

    Args:
        key: The key of the entry.
        state: The state before the event.
        event: The compaction.
        recorded: The sums of the batches of earlier compactions; gets those of its new batches.
    """
    if event.sums is None:
        return []
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    is_aborted, offsets = aborted_batches(partition), set(event.removed)
    read_batches = [batch for batch in partition.batches if batch.base_offset in offsets and not is_aborted(batch)]
    problem = sums_problem(event.added, event.sums, merge=event.clean_until is None)
    # Of a batch that the log start cuts, only the rest is read.
    if problem is None and not any(batch.base_offset < partition.log_start for batch in read_batches):
        records = sum(batch.records for batch in read_batches)
        earlier_sums = [recorded.get(rows_of(batch)) for batch in read_batches]
        if records != event.sums.read.records:
            problem = f"it read {event.sums.read} from batches of {records} records"
        elif None not in earlier_sums and add_up(filter(None, earlier_sums)) != event.sums.read:
            problem = f"it read {event.sums.read}, where earlier compactions wrote {add_up(filter(None, earlier_sums))}"
    recorded.update((rows_of(batch), sums) for batch, sums in zip(event.added, event.sums.added, strict=False))
    return [Violation("compaction_conserves_sums", f"{key}: {problem}", str(tp))] if problem is not None else []


def event_violations(before: State, after: State, entry: str) -> list[Violation]:
    """Return violations of an event of this entry, by the states before and after it."""
    return [replace(violation, subject=entry) for violation in check_event(before, after)]


def step_violations(before: State, after: State, entry: str) -> list[Violation]:
    """Return violations of the transition that this entry makes between two states."""
    return [replace(violation, subject=entry) for violation in check_step(before, after)]
