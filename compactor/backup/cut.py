"""The objects of a cut: what a copy needs to be the store at that moment, and no more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from txnstore.chain import keys
from txnstore.chain.boundary import read_boundary
from txnstore.chain.codec import is_intact
from txnstore.chain.payload import line_of, payload_of
from txnstore.compactor.vacuum.payloads import live_entries
from txnstore.connection import Connection
from txnstore.core.log.model import Segment
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore, iterate_objects


class VanishedError(Exception):
    """Objects of a cut are missing: a vacuum has deleted them since it was taken, or they are lost.

    Args:
        missing: The keys of some.
    """

    def __init__(self, missing: Iterable[str]) -> None:
        self.missing = sorted(missing)
        super().__init__(self.missing[0])


class Range(NamedTuple):
    """A segment that is a range of an object, and its SHA-256."""

    first_byte: int
    size: int
    sha256: bytes


#: The SHA-256 of an object, or those of its ranges. Of many objects, so only their bytes are kept.
Hashes: TypeAlias = bytes | list[Range]


def add_hash(named: dict[str, Hashes], segment: Segment) -> None:
    """Add a segment to the objects that a cut names; a range may be added again."""
    digest = bytes.fromhex(segment.sha256)
    if segment.first_byte is None:
        named[segment.object] = digest
        return
    ranges = named.setdefault(segment.object, [])
    found = Range(segment.first_byte, segment.size, digest)
    if isinstance(ranges, list) and found not in ranges:
        ranges.append(found)


def _has_hashes(data: memoryview, hashes: Hashes) -> bool:
    if isinstance(hashes, bytes):
        return hashlib.sha256(data).digest() == hashes
    return all(hashlib.sha256(data[first : first + size]).digest() == digest for first, size, digest in hashes)


@dataclass(frozen=True, slots=True)
class Part:
    """An object of a cut.

    Attributes:
        key: Its key.
        size: Its size in bytes, in the source.
        hashes: Of an object with segments: the SHA-256 of all of it, or those of its ranges.
        is_entry: Whether it is an entry, which a vacuum or an erasure may have shortened.
        has_records: Whether it is an entry whose inlined records the cut needs.
        is_optional: Whether the copy is complete without it, if it is damaged: an old checkpoint.
    """

    key: str
    size: int
    hashes: Hashes | None = None
    is_entry: bool = False
    has_records: bool = False
    is_optional: bool = False

    def check(self, data: bytes) -> None:
        """Compare the bytes with the chain, or an object of a chain with its own checksum.

        Raises:
            CorruptionError: They differ.
            VanishedError: It is an entry that was shortened since the cut was taken, which needs its records.
        """
        if self.hashes is None:
            if not is_intact(line_of(data)):
                raise CorruptionError(f"{self.key} is damaged: its checksum does not match. It was not copied")
        elif not _has_hashes(memoryview(data), self.hashes):
            msg = f"{self.key} is damaged: its bytes are not those that the chain describes. It was not copied"
            raise CorruptionError(msg)
        if self.has_records:
            self._check_payload(payload_of(data), json.loads(line_of(data)))

    def _check_payload(self, payload: bytes, entry: dict[str, Any]) -> None:
        if not payload:
            raise VanishedError([self.key])
        if hashlib.sha256(payload).hexdigest() != (entry["payload"] or {}).get("sha256"):
            raise CorruptionError(
                f"{self.key} is damaged: its records are not those that it describes. It was not copied"
            )


@dataclass(frozen=True, slots=True)
class ChainCut:
    """A chain of a cut.

    Attributes:
        state: The state at its head.
        boundary: The number of its last boundary; 0 without one.
        begin: The entry of that boundary: later ones are needed, and earlier ones for their inlined records only.
        inlined: The entries whose inlined records are in use.
    """

    state: State
    boundary: int
    begin: int
    inlined: frozenset[int]


class Cut:
    """A closed cut over all chains, and its objects in the source.

    Args:
        connection: The connection to the source.
        view: The cut.
        chains: The chains, by number.
    """

    def __init__(self, connection: Connection, view: View, chains: Sequence[ChainCut]) -> None:
        self.connection, self.view, self.chains = connection, view, chains
        #: The partitions with batches, by topic; those of a deleted topic are in some chains still.
        self._logs: dict[str, list[tuple[State, TopicPartition]]] = {}
        for state in view.states:
            for tp, _ in sorted_items(state.partitions):  # In the order of the rows of index files.
                self._logs.setdefault(tp.topic, []).append((state, tp))

    def folders(self) -> Iterator[tuple[str, Iterator[Part]]]:
        """Yield prefixes, each with the parts of the cut below it, in the order of their keys.

        Raises:
            VanishedError: An object is missing.
        """
        names = self.connection.keys
        for chain in self.chains:
            number = chain.state.chain
            yield names.boundaries(number), self._boundaries(chain)
            yield names.checkpoints(number), self._checkpoints(chain)
            yield names.entries(number), self._entries(chain)
        yield keys.TOPICS, self._segments()

    def _boundaries(self, chain: ChainCut) -> Iterator[Part]:
        for item in iterate_objects(self.connection.objects, self.connection.keys.boundaries(chain.state.chain)):
            number = keys.boundary_number(item.key)
            if number is not None and number <= chain.boundary:
                yield Part(item.key, item.size)

    def _checkpoints(self, chain: ChainCut) -> Iterator[Part]:
        """Yield the checkpoints of the history and their index files, those of deleted checkpoints included."""
        for item in iterate_objects(self.connection.objects, self.connection.keys.checkpoints(chain.state.chain)):
            if is_needed(item.key, chain.begin, chain.state.sequence):
                yield Part(item.key, item.size, is_optional=True)

    def _entries(self, chain: ChainCut) -> Iterator[Part]:
        """Yield the entries of the history, and older ones with inlined segments.

        Raises:
            VanishedError: Some are missing; names them.
        """
        names, number = self.connection.keys, chain.state.chain
        missing = {sequence for sequence in chain.inlined if sequence <= chain.begin}
        expected = chain.begin + 1
        for item in iterate_objects(self.connection.objects, names.entries(number)):
            sequence = keys.entry_sequence(item.key)
            if sequence is None or (sequence <= chain.begin and sequence not in missing):
                continue
            if sequence > chain.begin and (sequence != expected or sequence > chain.state.sequence):
                break
            expected += sequence == expected
            missing.discard(sequence)
            yield Part(item.key, item.size, is_entry=True, has_records=sequence in chain.inlined)
        if expected <= chain.state.sequence:
            missing.add(expected)
        if missing:
            raise VanishedError(names.entry(number, sequence) for sequence in missing)

    def _segments(self) -> Iterator[Part]:
        """Yield the objects with segments; the keys of one topic at a time are in memory."""
        unseen = set(self._logs)
        for topic, items in groupby(
            iterate_objects(self.connection.objects, keys.TOPICS), lambda item: item.key.split("/")[1]
        ):
            named = self.named(topic) if topic in unseen else {}
            unseen.discard(topic)
            for item in items:
                if item.key in named:
                    yield Part(item.key, item.size, named.pop(item.key))
            yield from self._unlisted(named)
        for topic in sorted(unseen):
            yield from self._unlisted(self.named(topic))

    def named(self, topic: str) -> dict[str, Hashes]:
        """Return the objects of a topic that the cut names, but entries, with their hashes."""
        named: dict[str, Hashes] = {}
        for state, tp in self._logs.get(topic, ()):
            for batch in state.partitions[tp].batches:
                if not batch.segment.inlined:
                    add_hash(named, batch.segment)
        return named

    def _unlisted(self, named: dict[str, Hashes]) -> Iterator[Part]:
        """Yield the objects that a list lacks, but that exist: on a file system that ignores case, for example."""
        missing: list[str] = []
        for key, hashes in sorted(named.items()):
            try:
                yield Part(key, self.connection.objects.stat(key).size, hashes)
            except ObjectNotFoundError:
                missing.append(key)
        if missing:
            raise VanishedError(missing)


def is_needed(key: str, begin: int, head: int) -> bool:
    """Whether a copy has this object of a checkpoint, if its history begins and ends with these entries."""
    sequence, covered_range = keys.checkpoint_sequence(key), keys.index_range(key)
    if covered_range is not None:
        return covered_range[1] <= head
    return sequence is not None and begin <= sequence <= head


def take_cut(connection: Connection) -> Cut:
    """Take the cut at the heads of all chains. Reads the last boundary of each."""
    view = connection.view()
    connection.chains.make_durable(view)  # A power cut must not make the copy one of another history.
    chains = connection.chains.concurrently(
        {state.chain: partial(_chain_cut, connection, state) for state in view.states}
    )
    return Cut(connection, view, [chains[number] for number in sorted(chains)])


def _chain_cut(connection: Connection, state: State) -> ChainCut:
    """Find the last boundary that is not after the head: a vacuum may have created a later one since."""
    names, chain = connection.keys, state.chain
    numbers = [keys.boundary_number(item.key) for item in connection.objects.list(names.boundaries(chain))]
    last = begin = 0
    for number in sorted((number for number in numbers if number is not None), reverse=True):
        begin = read_boundary(connection.objects, names, chain, number).sequence
        if begin <= state.sequence:
            last = number
            break
    else:
        begin = 0
    return ChainCut(state, last, begin, frozenset(live_entries(state)))


def beside(parts: Iterable[Part], objects: ObjectStore, prefix: str) -> Iterator[tuple[Part, int | None]]:
    """Yield each part with the size of the object of its key in another place; None if that has none."""
    there = iterate_objects(objects, prefix)
    item = next(there, None)
    for part in parts:
        while item is not None and item.key < part.key:
            item = next(there, None)
        yield part, item.size if item is not None and item.key == part.key else None
