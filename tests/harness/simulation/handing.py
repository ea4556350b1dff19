"""What becomes of commands that processes hand over: by whom each was committed, beside what the entries carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from tests.helpers import keys
from txnstore.chain.codec import Entry
from txnstore.chain.committer.channel import Channel
from txnstore.chain.committer.committer import Committer
from txnstore.chain.group_commit import QueuedCommand
from txnstore.chain.payload import decode_entry
from txnstore.errors import UnknownOutcomeError


class Handing:
    """What became of the commands that processes of a run have handed over.

    Attributes:
        doubtful: By writer id and number, those that were not answered while their process waited.
        numbers: The commands that were handed over, with each of their numbers, of which entries may carry one.
        fenced: Those that their process has committed by an entry of its own, with the number of that entry.
    """

    def __init__(self) -> None:
        self.doubtful: dict[tuple[str, int], QueuedCommand] = {}
        self.numbers: list[tuple[QueuedCommand, tuple[str, int]]] = []
        self.fenced: dict[tuple[str, int], int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, record what committers do."""
        await_answers, wrote = Committer._await_answers, Committer.wrote
        watch = self

        def awaiting(self: Committer, channel: Channel, handed: Mapping[int, QueuedCommand], began: float) -> set[int]:
            for number, waiter in handed.items():
                watch.numbers.append((waiter, (self._writer_id, number)))
            try:
                return await_answers(self, channel, handed, began)
            finally:
                watch.doubtful.update({(self._writer_id, number): waiter for number, waiter in self._handed.items()})

        def writing(self: Committer, entry: Entry) -> None:
            pending = [number for number, waiter in self._handed.items() if not waiter.done]
            watch.fenced.update({(self._writer_id, number): entry.sequence for number in pending})
            wrote(self, entry)

        with mock.patch.object(Committer, "_await_answers", awaiting), mock.patch.object(Committer, "wrote", writing):
            yield

    def anomalies(self, archive: Mapping[str, bytes], chains: int) -> Iterator[str]:
        """Commands that entries carry twice, out of order, or although their process has committed them itself."""
        carried: set[tuple[str, int]] = set()
        for chain in range(chains):
            newest: dict[str, int] = {}
            for key in sorted(archive):
                if not key.startswith(keys.entries(chain)):
                    continue
                entry = decode_entry(key, archive[key])
                for writer_id, number, first, count in entry.carried or ():
                    if number <= newest.get(writer_id, 0):
                        yield f"carried-twice: {key} carries command {number} of {writer_id} after {newest[writer_id]}"
                    if not 0 <= first < first + count <= len(entry.events):
                        yield f"carried-nothing: {key} has no events {first}+{count}"
                    doubtful = self.doubtful.get((writer_id, number))
                    error = doubtful.error if doubtful is not None else None
                    if error is not None and not isinstance(error, UnknownOutcomeError):
                        yield f"carried-but-refused: {key} carries {number} of {writer_id}, which was told {error!r}"
                    own = self.fenced.get((writer_id, number))
                    if own is not None:
                        yield f"carried-late: {key} carries {number} of {writer_id}, which it has committed in {own}"
                    newest[writer_id] = number
                    carried.add((writer_id, number))
        by_command: dict[int, list[tuple[str, int]]] = {}
        for waiter, handed in self.numbers:
            if handed in carried:
                by_command.setdefault(id(waiter), []).append(handed)
        yield from (f"carried-again: {numbers} are one command" for numbers in by_command.values() if len(numbers) > 1)


def carried(archive: Mapping[str, bytes], chains: int) -> int:
    """How many commands the entries carry."""
    entries = [keys.entries(chain) for chain in range(chains)]
    return sum(
        len(decode_entry(key, data).carried or ())
        for key, data in archive.items()
        if any(key.startswith(prefix) for prefix in entries)
    )
