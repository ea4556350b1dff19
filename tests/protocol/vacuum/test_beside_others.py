"""A vacuum without any grace beside everything else that uses the store."""

from __future__ import annotations

from itertools import count

from txnstore.storage.memory import MemoryStore
from txnstore.storage.probe import PROBE_FOLDER, probe
from txnstore.store import Store, create_on


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
