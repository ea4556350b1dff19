"""Lost records: repairs name each object with records in use that is missing or truncated, and read none of them."""

from __future__ import annotations

import pytest

from tests.helpers import keys
from tests.helpers.compaction import batches, commit, new_store, runtime, segment_keys, values
from tests.helpers.connections import connection_of
from tests.helpers.repairs import bytes_of, planned, sample_objects
from tests.helpers.sharing import PARTITIONS, send, stored
from txnstore.compactor import RepairPlan, plan_repairs, repair
from txnstore.connection import Connection
from txnstore.errors import CorruptionError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    """A store whose records are objects of their own, with a sound checkpoint."""
    store = new_store(clock, objects)
    store.create_topic("t", config={"inline.bytes": 0})
    for number in range(3):
        commit(store, [b"%d" % number] * (number + 1))
    store.checkpoint()
    return store


def test_missing_entry_with_records_in_use_is_lost(clock: ManualClock) -> None:
    """It is before a sound checkpoint: the store opens, and a read of its records fails."""
    objects = sample_objects(clock)
    objects.delete([keys.entry(0, 71)])
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert (loss.key, loss.damage, plan.opens, plan.repairs) == (keys.entry(0, 71), "it is missing", True, ())
    assert loss.consequence.startswith("1 record cannot be rebuilt: t-0 offsets 68 to 68. ")
    with open_on(objects, runtime=runtime(clock)) as store, pytest.raises(CorruptionError):
        values(store)


def test_missing_segment_is_lost_until_it_is_put_back(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    segment = batches(store)[2].segment.key
    data = objects.get(segment)
    objects.delete([segment])
    plan = planned(objects, clock)
    (loss,) = plan.lost
    assert (loss.key, loss.damage, plan.opens) == (segment, "it is missing", True)
    first = batches(store)[2].base_offset
    assert loss.consequence.startswith(f"3 records cannot be rebuilt: t-0 offsets {first} to {first + 2}. ")
    assert segment in {item.subject for item in store.verify().violations}
    objects.put(segment, data)
    assert planned(objects, clock) == RepairPlan()


def test_truncated_segment_is_lost(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    segment = batches(store)[0].segment
    objects.put(segment.key, objects.get(segment.key)[:-1])
    (loss,) = planned(objects, clock).lost
    assert (loss.key, loss.blocks) == (segment.key, False)
    assert loss.damage == f"it was truncated: it has {segment.size - 1} bytes; expected {segment.size}"


def test_missing_pack_is_one_loss_of_several_partitions(clock: ManualClock, objects: MemoryStore) -> None:
    store = new_store(clock, objects)
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    with store.producer("writer") as producer, producer.transaction():
        send(producer, "packed")
    (pack,) = stored(objects)
    objects.delete([pack])
    (loss,) = planned(objects, clock).lost
    assert loss.key == pack
    assert loss.consequence.startswith(f"{PARTITIONS} records cannot be rebuilt: p-0 offsets 0 to 0, p-1 offsets 0 ")


def test_lost_segment_is_named_beside_what_can_be_rebuilt(
    store: Store, objects: MemoryStore, clock: ManualClock
) -> None:
    segment = batches(store)[1].segment.key
    objects.delete([segment, keys.latest(0)])
    plan = planned(objects, clock)
    assert [item.key for item in plan.repairs] == [keys.latest(0)]
    assert [item.key for item in plan.lost] == [segment]
    repair(Connection(objects, runtime=runtime(clock)), plan)
    assert planned(objects, clock) == RepairPlan(lost=plan.lost)


def test_no_segment_is_read(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    """Altered contents of the same size are what a deep verification is for."""
    segment = batches(store)[0].segment
    objects.put(segment.key, bytes(segment.size))
    counting = CountingStore(objects, log=True)
    assert plan_repairs(Connection(counting, read_only=True, runtime=runtime(clock))) == RepairPlan()
    assert not [key for kind, key in counting.log if kind != "list" and key.startswith(keys.TOPICS)]
    assert not store.verify(deep=True).ok


def test_segment_that_a_vacuum_deletes_meanwhile_is_not_lost(store: Store, clock: ManualClock) -> None:
    """A compaction has replaced it, and a vacuum without a grace period deletes it, before it is listed."""
    before = segment_keys(store)
    inner = connection_of(store).counts.inner

    class Vacuumed(MemoryStore):
        pending = True

        def list(self, prefix: str, start_after: str = "", limit: int | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN202
            if prefix == keys.TOPICS and self.pending:
                self.pending = False
                with open_on(self, runtime=runtime(clock)) as other:
                    other.compact()
                    other.vacuum(older_than=0)
            return super().list(prefix, start_after, limit)

    objects = Vacuumed(clock=clock)
    for key, data in bytes_of(inner).items():  # type: ignore[arg-type]
        objects.put(key, data)
    assert planned(objects, clock) == RepairPlan()
    assert not before & {item.key for item in objects.list(keys.TOPICS)}
