"""A vacuum without any grace beside everything else that uses the store."""

from __future__ import annotations

from itertools import count

from tests.helpers.connections import connection_of
from tests.helpers.shell import runtime
from txnstore.chain.keys import COMMITTERS, Keys
from txnstore.storage.memory import MemoryStore
from txnstore.storage.probe import PROBE_FOLDER, probe
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock


class VacuumedWhileProbed(MemoryStore):
    """Another process vacuums as soon as a writer of a probe has won."""

    other: Store | None = None
    vacuums = 0

    def put_if_absent(self, key: str, data: bytes) -> bool:
        created = super().put_if_absent(key, data)
        if created and self.other is not None and key.startswith(PROBE_FOLDER):
            self.vacuums += 1
            self.other.vacuum(older_than=0)
        return created


def test_vacuum_does_not_disturb_a_running_probe() -> None:
    """The probe's object must stay until its writers are judged, else a second one of them wins, too."""
    objects, numbers = VacuumedWhileProbed(), count()
    objects.other = create_on(objects)
    probe(objects, lambda: str(next(numbers)))
    assert objects.vacuums == 1


def test_a_vacuum_deletes_what_committers_and_their_callers_have_left() -> None:
    """Of this store and of those that were at its URL before; nothing that has another name, and nothing young."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    store = create_on(objects, runtime=runtime(clock))
    stores = connection_of(store).keys, Keys("0" * 8 + "-0000-7000-8000-" + "0" * 12)
    left = [key for each in stores for key in (each.committer(0), each.caller(3, "0a" * 16))]
    kept = [f"{stores[0].committers}notes.txt", f"{COMMITTERS}README"]
    for key in (*left, *kept):
        objects.put(key, b"")
    store.vacuum()
    assert {item.key for item in objects.list(COMMITTERS)} == {*left, *kept}
    clock.advance(2 * 24 * 3_600_000)
    assert set(store.vacuum().deleted) == set(left)
    assert [item.key for item in objects.list(COMMITTERS)] == sorted(kept)
