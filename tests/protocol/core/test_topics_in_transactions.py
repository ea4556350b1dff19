"""Topics that are deleted, made again or grow while transactions across chains are open, and copies that come late."""

from __future__ import annotations

import pytest

from tests.helpers import keys
from tests.helpers.chains import ids_of, partitions_of, process, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.invariants.check import check_view
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults

CHAINS, PARTITIONS = 3, 6


class Scene:
    """An operator who cannot reach the chain of a coordinator, and a producer of that chain."""

    def __init__(self, home: int) -> None:
        self.clock, self.home = ManualClock(), home
        self.bucket = MemoryStore(clock=self.clock)
        process(self.bucket, self.clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
        self.faults = FaultStore(self.bucket)
        self.operator = process(self.faults, self.clock)
        self.store = process(self.bucket, self.clock)
        self.producer = self.store.producer(ids_of(self.store, home))

    def recreate(self) -> None:
        """Delete the topic and create another one of its name; the coordinator's chain only hears that it is closed."""
        connection_of(self.operator).view()
        passed = 0

        def plan(n: int, operation: str, key: str) -> Fault | None:
            nonlocal passed
            if self.home == 0 or operation != "put_if_absent" or not key.startswith(keys.entries(self.home)):
                return None
            passed += 1
            return Fault.ERROR_BEFORE if passed > 1 else None

        self.faults.plan = plan
        self.operator.delete_topic("t")
        self.operator.create_topic("t", partitions=PARTITIONS)
        self.faults.plan = no_faults
        connection_of(self.store).view()

    def others(self) -> list[int]:
        return [n for n in range(PARTITIONS) if n not in partitions_of(self.store, self.home)]

    def sound(self) -> Store:
        """Another process, after everything was finished."""
        reader = process(self.bucket, self.clock)
        reader.recover()
        assert check_view(connection_of(reader).view()) == []
        assert reader.find_hanging() == []
        assert reader.verify().violations == ()
        return reader


@pytest.mark.parametrize("home", range(CHAINS))
def test_late_copy_of_recreated_topic_keeps_its_partitions_in_transaction(home: int) -> None:
    """END-07: what joined the transaction since then is in the new topic, and gets its markers there."""
    scene = Scene(home)
    scene.recreate()
    scene.producer.begin_transaction()
    for number in scene.others():
        scene.producer.send("t", b"value", partition=number)
    scene.producer.flush()
    scene.operator.recover()  # Now its chain gets the copy.
    scene.producer.commit_transaction()
    assert value_counts(scene.sound()) == {b"value": len(scene.others())}


@pytest.mark.parametrize("home", range(CHAINS))
def test_deleted_topic_leaves_transaction_when_recreated(home: int) -> None:
    """END-07: the rest is committed; nothing of the old topic is in the new one, and nothing is left open."""
    scene = Scene(home)
    scene.operator.create_topic("rest", partitions=PARTITIONS)
    scene.producer.begin_transaction()
    write_everywhere(scene.producer, b"old", partitions=PARTITIONS)
    write_everywhere(scene.producer, b"rest", "rest", PARTITIONS)
    scene.producer.flush()
    scene.recreate()
    scene.producer.commit_transaction()
    reader = scene.sound()
    assert value_counts(reader) == {}
    assert value_counts(reader, "rest") == {b"rest": PARTITIONS}
