"""Entries are hidden from a process only where its look at the head finds a later one, however long the look takes."""

from __future__ import annotations

import random

import pytest

from tests.harness.simulation.scheduler import Scheduler
from tests.harness.simulation.stale_absence import HiddenEntries
from tests.harness.simulation.storage import Bucket
from tests.helpers import keys

#: Longer than the trust in a look at the head.
PAUSE = 60_000


class World:
    """One process whose hidden entries begin wherever they may, and the bucket that others write to."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(random.Random(1))
        self.bucket = Bucket(lambda: self.scheduler.now)
        self.hidden: set[str] = set()
        self._hidden_entries = HiddenEntries(self.bucket, self.scheduler, random.Random(1), 1.0, self.hidden)

    def write(self, *sequences: int) -> None:
        for sequence in sequences:
            assert self.bucket.put_if_absent(keys.entry(0, sequence), b"entry")

    def finds(self, sequence: int) -> bool:
        """Whether a GET of the process finds the entry."""
        key = keys.entry(0, sequence)
        self._hidden_entries.get_begins(key)
        hidden = self._hidden_entries.hides(key)
        return not hidden and sequence <= self.bucket.heads[0]

    def pause(self) -> None:
        self.scheduler.sleep(PAUSE)


@pytest.fixture
def world() -> World:
    """The process has looked at the head, entry 9, a while ago: it found no entry 10."""
    world = World()
    world.write(*range(1, 10))
    assert not world.finds(10)
    world.pause()
    return world


def test_an_entry_whose_successor_exists_is_hidden(world: World) -> None:
    world.write(10, 11)
    assert not world.finds(10)
    assert world.finds(11)
    assert world.hidden == {keys.entry(0, 10)}


def test_an_entry_is_not_hidden_from_a_look_that_found_no_successor_of_it(world: World) -> None:
    """The requests of a look overlap, and the process pauses between two of them. Seed 920763 has shown it.

    No chain could notice the hole: each later name was asked for before there was an entry.
    """
    world.write(10)
    assert not world.finds(11)
    assert not world.finds(12)
    world.pause()
    world.write(11, 12)
    assert world.finds(10)
    assert not world.hidden


def test_an_entry_is_hidden_if_its_successor_was_found_since(world: World) -> None:
    """An earlier look has asked for three names. The next one finds the second before it asks for the first."""
    assert not any(map(world.finds, (10, 11, 12)))
    world.pause()
    world.write(10, 11)
    assert world.finds(11)
    assert not world.finds(10)
    assert world.hidden == {keys.entry(0, 10)}


def test_the_newest_entry_is_not_hidden(world: World) -> None:
    world.write(10)
    assert world.finds(10)
    assert not world.hidden
