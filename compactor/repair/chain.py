"""Find the damage of a chain's hint and checkpoints, and what its entries can rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from txnstore.chain import keys
from txnstore.chain.boundary import BoundaryDocument
from txnstore.chain.chains import entry_numbers
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import KEPT_CHECKPOINTS, Saved, edge_of
from txnstore.chain.checkpoints.index import FAN, Edge, KnownEdges
from txnstore.chain.codec import LatestDocument, decode
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.chain.keys import Keys
from txnstore.chain.payload import entry_hash
from txnstore.chain.tail import Tail
from txnstore.compactor.repair.history import boundary_repairs
from txnstore.compactor.repair.plan import Loss, Repair
from txnstore.compactor.verify.boundaries import boundaries_without_checkpoint, read_boundaries
from txnstore.core.state import State, first_state
from txnstore.errors import CorruptionError
from txnstore.phrases import some
from txnstore.storage.base import ObjectStore, read_if_there

_WINDOW = 64


@dataclass(frozen=True, slots=True)
class Survey:
    """The hint of a chain and its checkpoints.

    Attributes:
        hinted: The checkpoint that the hint names; None without a readable hint.
        damage: What is wrong with the hint; empty if nothing is.
        saved: The newest checkpoints and those that the hint and boundaries name; None for each damaged one of all.
        checkpoints: The numbers of all checkpoints.
        index: The keys of all index files, with their last entries.
        boundaries: The last boundaries, and None for each one that is lost.
        conflict: How the entry that the hint names differs from that of the checkpoint; empty if it does not.
        begins: The entry of the last boundary, also of one that has lost its checkpoint: a vacuum may have deleted it
            and those before it.
        lost_head: The newest entry that the hint names, if it does not exist; else 0.
        leftover: Whether the hint names a checkpoint that lacks index files, below a sound one: a writer was paused in
            it, and a vacuum deleted them meanwhile. Nothing is lost, and the next checkpoint replaces the hint.
    """

    hinted: int | None
    damage: str
    saved: dict[int, Saved | None]
    checkpoints: frozenset[int]
    index: dict[str, int]
    boundaries: dict[int, BoundaryDocument | None]
    conflict: str = ""
    begins: int = 0
    lost_head: int = 0
    leftover: bool = False

    @property
    def sound(self) -> bool:
        """Whether a process that opens the store can read everything that it needs."""
        needed = [*self.saved.values(), *self.boundaries.values()]
        return not self.damage and all(document is not None for document in needed)

    def boundary_at(self, sequence: int) -> int:
        """The number of the last sound boundary that is not after an entry."""
        boundaries = self.boundaries.items()
        return max(
            (number for number, boundary in boundaries if boundary is not None and boundary.sequence <= sequence),
            default=0,
        )


class Rebuilt(NamedTuple):
    """A state that was folded, and the logs at the ends of the index files of its checkpoint."""

    state: State
    edges: list[Edge]


class ChainRepairs:
    """The repairs of one chain.

    Args:
        pool: Runs concurrent requests.
        chain: The number of the chain.
        chains: The number of chains of the store.
    """

    def __init__(self, objects: ObjectStore, pool: Executor, names: Keys, chain: int, chains: int) -> None:
        self._objects, self._pool, self._names, self._chain, self._chains = objects, pool, names, chain, chains
        #: The newest state that can be known, after :meth:`plan`.
        self.state: State = first_state(chain, chains)
        self._edges = KnownEdges()

    def survey(self) -> Survey:
        """Look at the hint and the boundaries, and read the checkpoints since the last boundary."""
        # The hint first: it is written after the objects that it names.
        hint = read_if_there(self._objects, keys.latest(self._chain))
        listed_keys = {info.key for info in self._objects.list(self._names.checkpoints(self._chain))}
        checkpoints = {sequence for key in listed_keys if (sequence := keys.checkpoint_sequence(key)) is not None}
        saved, newest_sound = self._read_newest_checkpoints(checkpoints, listed_keys)

        hinted, hinted_boundary, damage = self._read_hint(hint, checkpoints)
        leftover = False
        if hinted and hinted not in saved:
            saved[hinted] = self._read_checkpoint(hinted)
            leftover = saved[hinted] is None and self._is_leftover(hinted, newest_sound, listed_keys)
        hint_document = checkpoint.decode_hint(self._names, self._chain, hint)
        hinted_checkpoint = saved.get(hint_document.sequence)
        conflict = ""
        if hinted_checkpoint is not None:
            conflict = checkpoint.hint_mismatch(self._names, hint_document, hinted_checkpoint.state)
        damage = damage or conflict

        boundaries = read_boundaries(self._objects, self._names, self._chain, hinted_boundary)
        begins = max(_entries_of(boundaries), default=0)
        boundaries |= dict.fromkeys(boundaries_without_checkpoint(boundaries, max(checkpoints, default=0)))
        last_boundary = max(boundaries, default=0)
        if hinted_boundary > last_boundary and not damage:
            damage = f"it names boundary {hinted_boundary}, and the last one is {last_boundary}"

        lost_head = 0
        if hint_document.head > max(begins, newest_sound):  # Else no process asks for it.
            different, is_missing = self._hinted_head_damage(hint_document)
            lost_head = hint_document.head if is_missing else 0
            conflict = conflict or different
            damage = damage or different or is_missing

        # A process may begin at the checkpoint of each boundary, and at all since the last boundary.
        ends = _entries_of(boundaries)
        for end in ends:
            if end in checkpoints and end not in saved:
                saved[end] = self._read_checkpoint(end)
        history_begins = max(ends, default=0)
        unread = {number for number in checkpoints - saved.keys() if number >= history_begins}
        for number in self._damaged_checkpoints(unread):
            if not self._is_leftover(number, newest_sound, listed_keys):
                saved[number] = None

        # An old hint is right as long as the entries after its checkpoint can be read.
        start = saved[hinted] if hinted and hinted < newest_sound else None
        if start is not None and not damage:
            damage = self._gap_after_hint(start.state, newest_sound)
        return Survey(
            hinted=hinted,
            damage=damage,
            saved=dict(sorted(saved.items())),
            checkpoints=frozenset(checkpoints),
            index={key: entries[1] for key in sorted(listed_keys) if (entries := keys.index_range(key)) is not None},
            boundaries=boundaries,
            conflict=conflict,
            begins=begins,
            lost_head=lost_head,
            leftover=leftover,
        )

    def _read_newest_checkpoints(
        self, checkpoints: Iterable[int], listed_keys: set[str]
    ) -> tuple[dict[int, Saved | None], int]:
        """Return the newest checkpoints (a damaged one is None) and the number of the newest sound one, or 0."""
        saved: dict[int, Saved | None] = {}
        newest_sound = 0
        for number in sorted(checkpoints, reverse=True):
            if len(saved) == KEPT_CHECKPOINTS:
                break
            loaded = self._read_checkpoint(number)
            if loaded is not None:
                saved[number] = loaded
                newest_sound = max(newest_sound, number)
            elif not self._is_leftover(number, newest_sound, listed_keys):
                saved[number] = None
        return saved, newest_sound

    def _gap_after_hint(self, hinted_state: State, newest: int) -> str:
        """Why the hint is wrong if entries between its old checkpoint and `newest` cannot be read; empty if all can."""
        tail = Tail(self._objects, self._names, self._chain, self._pool)
        try:
            end = tail.follow(hinted_state, lambda _: None, _WINDOW, until=newest).sequence
        except CorruptionError as error:
            gap = str(error)
        else:
            gap = f"{self._names.entry(self._chain, end + 1)} is missing" if end < newest else ""
        stale_hint = f"it names the checkpoint of entry {hinted_state.sequence}, and that of entry {newest} is newer"
        return gap and f"{stale_hint}; between them {gap}"

    def _damaged_checkpoints(self, sequences: Iterable[int]) -> Iterator[int]:
        """Yield the damaged checkpoints among `sequences`; index files that they share are read once."""
        edges: list[Edge] = []
        for number in sorted(sequences):
            requested = checkpoint.request(self._objects, self._pool, self._names, self._chain, number, edges)
            saved = checkpoint.receive(self._names, self._chain, number, requested)
            if saved is None:
                yield number
            else:
                edges = saved.edges

    def _read_checkpoint(self, number: int) -> Saved | None:
        """Read a checkpoint with all of its batches; None if it is missing or damaged."""
        requested = checkpoint.request(self._objects, self._pool, self._names, self._chain, number)
        saved = checkpoint.receive(self._names, self._chain, number, requested)
        try:
            if saved is not None:
                checkpoint.decode_all(saved.state)
        except CorruptionError:
            return None
        return saved

    def _is_leftover(self, number: int, newest_sound: int, listed_keys: set[str]) -> bool:
        """Whether an unreadable checkpoint is harmless: it lacks index files, and a newer checkpoint is sound.

        A writer was paused while it wrote this one, and a vacuum deleted the index files meanwhile.
        """
        if number > newest_sound:
            return False
        named_files = checkpoint.named_files(self._objects, self._names, self._chain, number)
        return named_files is not None and not listed_keys.issuperset(named_files)

    def _read_hint(self, hint: bytes | None, checkpoints: set[int]) -> tuple[int | None, int, str]:
        """Return the checkpoint and the boundary that the hint names, and the damage of the hint as text."""
        if hint is None:
            needed = checkpoints or self._entry_exists(CHECKPOINT_EVERY)
            return None, 0, "it is missing" if needed else ""
        try:
            document = decode(LatestDocument, keys.latest(self._chain), hint)
        except CorruptionError as error:
            return None, 0, str(error)
        if checkpoint.hint_of_this_store(self._names, document) is not document:
            needed = checkpoints or self._entry_exists(CHECKPOINT_EVERY)
            return None, 0, f"it is one of the store {document.store_id}" if needed else ""
        return document.sequence, document.boundary, ""

    def _hinted_head_damage(self, hint: LatestDocument) -> tuple[str, str]:
        """Return how the entry that the hint names as newest differs from its recorded hash, or that it is missing."""
        entry = self._names.entry(self._chain, hint.head)
        data = read_if_there(self._objects, entry)
        if data is None:
            return "", f"it names {entry}, which does not exist"
        if entry_hash(data) == hint.head_hash:
            return "", ""
        return f"it names {entry} with the hash {hint.head_hash}, and that has another one", ""

    def _entry_exists(self, sequence: int) -> bool:
        return read_if_there(self._objects, self._names.entry(self._chain, sequence)) is not None

    def plan(self, survey: Survey) -> Iterator[Repair | Loss]:
        """Fold the chain from its newest sound checkpoint, and yield what can be rebuilt and what is lost."""
        damaged = {number for number, saved in survey.saved.items() if saved is None}
        newest = max((saved for saved in survey.saved.values() if saved is not None), key=_sequence_of, default=None)
        if newest is None:
            newest = checkpoint.newest(self._objects, self._pool, self._names, self._chain)
        base = newest.state if newest is not None else first_state(self._chain, self._chains)
        self._edges.begin_with(newest.edges if newest is not None else ())
        if (base.chain, base.chains) != (self._chain, self._chains):
            key = self._names.checkpoint_state(self._chain, base.sequence)
            mismatch = f"it is of chain {base.chain} of {base.chains}; expected chain {self._chain} of {self._chains}"
            yield Loss(key, mismatch, f"{keys.STORE} belongs to another store: put the right one back")
            return
        rebuilt: dict[int, Rebuilt] = {}
        loss = self._fold(base, damaged, rebuilt)
        if loss is not None:
            yield self._checkpoint_loss(survey.begins) if self.state.sequence < survey.begins else loss
        yield from self._checkpoint_repairs(survey, damaged, base, rebuilt, lost=loss is not None)
        if loss is None and self.state.sequence:
            yield from self._index_file_repairs(survey)
        yield from self._hint_repairs(survey, base, rebuilt, lost=loss is not None)
        if survey.lost_head > max(self.state.sequence, survey.hinted or 0) and self.state.sequence and loss is None:
            consequence = _lost_end_consequence(self._chain, self.state.sequence, survey.lost_head)
            yield Loss(keys.latest(self._chain), survey.damage, consequence, blocks=False)
        if survey.conflict:
            consequence = (
                "objects of two histories of this store are mixed: what the other one has committed is not in this "
                "chain. If the other one is right, put its objects back from a backup before anything is written"
            )
            yield Loss(keys.latest(self._chain), survey.conflict, consequence, blocks=False)
        if None in survey.boundaries.values():
            yield from boundary_repairs(self._objects, self._pool, self._names, self._chain, survey.boundaries)

    def _fold(self, base: State, sequences: set[int], rebuilt: dict[int, Rebuilt]) -> Loss | None:
        """Fold the entries after ``base``, and keep the states at ``sequences`` in ``rebuilt``."""

        def keep(state: State) -> None:
            self.state = state
            if state.sequence % FAN == 0:
                self._edges.add(edge_of(state))
            if state.sequence in sequences:
                rebuilt[state.sequence] = Rebuilt(state, self._edges.up_to(edge_of(state)))

        self.state = base
        tail = Tail(self._objects, self._names, self._chain, self._pool)
        while True:
            try:
                tail.follow(self.state, keep, _WINDOW, sure=True)
            except CorruptionError as error:
                if str(error).startswith(self._names.entry(self._chain, self.state.sequence)):
                    rebuilt.pop(self.state.sequence, None)  # The last entry that was folded was altered.
                    return self._entry_loss(self.state.sequence, self._later_entries(), str(error))
                return self._entry_loss(self.state.sequence + 1, self._later_entries(), str(error))
            later = self._later_entries()
            if not later:
                return None
            next_sequence = self.state.sequence + 1
            if later[0] != next_sequence and tail.get(next_sequence) is None:  # Else it was written meanwhile.
                return self._entry_loss(self.state.sequence + 1, later, "")

    def _later_entries(self) -> list[int]:
        """The numbers of the existing entries after the newest known state."""
        return list(entry_numbers(self._objects, self._names, self._chain, self.state.sequence))

    def _entry_loss(self, first: int, later_sequences: list[int], error: str) -> Loss:
        """Describe the loss of entry ``first``, which is missing, or damaged as ``error`` says.

        ``later_sequences``: the entries that exist after the newest known state.
        """
        last_number = max(later_sequences, default=first)
        present = {*later_sequences, *range(self.state.sequence + 1)}
        missing_numbers = [number for number in range(first, last_number) if number not in present]
        noun = "entries" if len(missing_numbers) > 1 else "entry"
        missing_entries = f"{noun} {some(map(str, missing_numbers))}"
        gap = f"{missing_entries} of chain {self._chain} cannot be found"
        if not missing_numbers:
            damage, lost_text = error, f"entry {first}"
        elif missing_numbers[0] == first:
            damage, lost_text = gap, missing_entries
        else:
            damage, lost_text = f"{error}; {gap}", f"the entries from {first} on"
        later_entries_clause = f", and the entries up to {last_number}, which exist, cannot be read without that"
        consequence = (
            f"the state of chain {self._chain} is known up to entry {first - 1}; what is committed in {lost_text} "
            f"cannot be rebuilt{later_entries_clause if last_number > first else ''}. The store cannot be opened until "
            "what is missing or damaged is put back, from an older version in the bucket or from a backup"
        )
        return Loss(self._names.entry(self._chain, first), damage, consequence)

    def _checkpoint_loss(self, begins: int) -> Loss:
        """Describe the loss of all checkpoints of the history, whose entries a vacuum has deleted."""
        consequence = (
            f"a vacuum has deleted entries up to {begins}, for which this checkpoint or a later one stands; without "
            f"one the state of chain {self._chain} is not known. The store cannot be opened until one is put back, its "
            "state.json and the index files that it names, from an older version in the bucket or from a backup"
        )
        damage = f"no checkpoint of entry {begins} or a later one can be read"
        return Loss(self._names.checkpoint_state(self._chain, begins), damage, consequence)

    def _checkpoint_repairs(
        self, survey: Survey, damaged: set[int], base: State, rebuilt: dict[int, Rebuilt], *, lost: bool
    ) -> Iterator[Repair | Loss]:
        """Yield damaged checkpoints to write again or to delete, and the losses that they show."""
        for number in sorted(damaged):
            key = self._names.checkpoint_state(self._chain, number)
            exists = number in survey.checkpoints
            damage = "it cannot be read: it or its index is missing or altered" if exists else "it is missing"
            if number in rebuilt:
                action = f"written again from the entries up to {number}"
                yield Repair(key, damage, action, self._encode_checkpoint(rebuilt[number]))
                continue
            if number > self.state.sequence > 0 and not lost:  # Of an empty chain the hint says it.
                evidence = "it was written after an entry of that number"
                consequence = _lost_end_consequence(self._chain, self.state.sequence, number)
                yield Loss(key, f"{damage}; {evidence}", consequence, blocks=False)
            if exists and number < base.sequence:
                action = f"deleted: the checkpoint of entry {base.sequence} is newer, and sound"
                yield Repair(key, damage, action, ((key, None),))
            elif exists and not lost:
                yield Repair(key, damage, "deleted: it is of no use", ((key, None),))

    def _index_file_repairs(self, survey: Survey) -> Iterator[Repair | Loss]:
        """Delete index files of entries after the end of the chain: no process opens a chain that ends before them."""
        end = self.state.sequence
        for key, until in survey.index.items():
            if until <= end:
                continue
            damage = f"it was written after entry {until}, which does not exist"
            if until not in survey.saved:  # Else the checkpoint says it.
                yield Loss(key, damage, _lost_end_consequence(self._chain, end, until), blocks=False)
            yield Repair(key, damage, "deleted: it is of no use", ((key, None),))

    def _hint_repairs(
        self, survey: Survey, base: State, rebuilt: dict[int, Rebuilt], *, lost: bool
    ) -> Iterator[Repair | Loss]:
        """Yield the hint to write again, to the newest usable checkpoint, or to delete."""
        key = keys.latest(self._chain)
        usable = {number: saved.state for number, saved in survey.saved.items() if saved is not None}
        usable |= {number: refolded.state for number, refolded in rebuilt.items()}
        newest = max([base, *usable.values()], key=lambda state: state.sequence)
        target_sequence = newest.sequence
        # Entries before the rebuilt checkpoint may be lost.
        is_stale = survey.hinted is not None and max(rebuilt, default=0) > survey.hinted
        is_usable = survey.hinted in usable or (survey.hinted is None and not target_sequence)
        if is_usable and not is_stale and not survey.damage:
            return
        damage = survey.damage or f"it names the checkpoint of entry {survey.hinted}, which is of no use"

        def hint(state: State) -> tuple[str, bytes]:
            return checkpoint.hint_to(self._names, state, survey.boundary_at(state.sequence))

        if target_sequence:
            action = f"written again, to the checkpoint of entry {target_sequence}"
            yield Repair(key, damage, action, (hint(newest),))
        elif lost:
            return
        elif self.state.sequence:
            writes = self._encode_checkpoint(Rebuilt(self.state, self._edges.up_to(edge_of(self.state))))
            action = f"written again, to a new checkpoint of entry {self.state.sequence}"
            yield Repair(key, damage, action, (*writes, hint(self.state)))
        elif survey.hinted:
            # It is all that is left of the chain, and what shows the loss: it is kept.
            consequence = (
                f"nothing is left of chain {self._chain}, so what was committed up to entry {survey.hinted} is lost: "
                f"put {self._names.chain(self._chain)} back from a backup"
            )
            yield Loss(key, damage, consequence)
        else:
            yield Repair(key, damage, "deleted: the chain has no entries", ((key, None),))

    def _encode_checkpoint(self, rebuilt: Rebuilt) -> tuple[tuple[str, bytes], ...]:
        """Encode a checkpoint with all its index files: a damaged one may be among those shared with others."""
        return tuple(checkpoint.encode_checkpoint(self._names, self._chain, rebuilt.edges, rebuilt.state))


def _lost_end_consequence(chain: int, end: int, last: int) -> str:
    """Describe what follows when a chain ends at an entry although a later one is known to have existed."""
    return (
        f"chain {chain} ends at entry {end}: entries {end + 1} to {last} are lost, or the bucket was rolled back. The "
        "store opens without them"
    )


def _sequence_of(saved: Saved) -> int:
    return saved.state.sequence


def _entries_of(boundaries: Mapping[int, BoundaryDocument | None]) -> set[int]:
    """Return the entries of the boundaries that are not lost."""
    return {boundary.sequence for boundary in boundaries.values() if boundary is not None}
