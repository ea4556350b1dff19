"""OFF-06, OFF-10, OFF-20, CON-17: consumers that share the partitions of their topics (KIP-447, KIP-345, KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.members import PARTS, SESSION, _fill, _group, _member, _numbers, _settle
from tests.helpers.reading import another_process, kinds, new_store, read_all, texts
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    IllegalGenerationError,
    InvalidConfigError,
    StorageError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults, on


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", partitions=4)
    return store


# Joining and sharing --------------------------------------------------------------------------------------------------


def test_the_first_poll_joins_and_the_next_ones_cost_nothing_more(store: Store) -> None:
    """One PUT to join; an idle poll is one GET as ever; subscribing costs what it did."""
    connection_of(store).counts.reset()
    consumer = _member(store)
    assert kinds(store) == ["get"]
    connection_of(store).counts.reset()
    assert consumer.poll() == []
    assert kinds(store) == ["put_if_absent", "get"]
    for _ in range(3):
        connection_of(store).counts.reset()
        consumer.poll()
        assert kinds(store) == ["get"]


def test_consumer_without_membership_sends_no_extra_requests(store: Store) -> None:
    """Without a group, or assigned by hand, or looking on in a store that is read_only."""
    consumers = [store.consumer(["t"]), store.consumer(group="g")]
    consumers[1].assign(PARTS)
    for consumer in consumers:
        connection_of(store).counts.reset()
        consumer.poll()
        assert kinds(store) == ["get"]
        assert _numbers(consumer) == [0, 1, 2, 3]
    assert "g" not in connection_of(store).view().groups
    assert consumers[1].group_metadata().generation == -1


def test_a_commit_of_a_member_without_partitions_costs_nothing(store: Store) -> None:
    """It checks the membership as far as the process knows it."""
    consumers = [_member(store), _member(store)]
    for consumer in consumers:
        consumer.poll()
    assert consumers[1].assignment() == []
    connection_of(store).counts.reset()
    consumers[1].commit()
    assert kinds(store) == []


def test_heartbeats_come_with_polls_three_in_a_session(store: Store, clock: ManualClock) -> None:
    """A poll that has records to hand out renews the lease as well."""
    _fill(store, *map(str, range(5)))
    consumer = _member(store, max_poll_records=1)
    consumer.poll()
    puts = []
    for _ in range(10):
        clock.advance(SESSION // 9)
        connection_of(store).counts.reset()
        consumer.poll()
        puts.append(kinds(store).count("put_if_absent"))
    assert puts == [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]


def test_frequent_commits_replace_heartbeats(store: Store, clock: ManualClock) -> None:
    """Neither with its own commits nor with those of transactions."""
    consumer, producer = _member(store), store.producer("p")
    for number in range(12):
        clock.advance(SESSION // 4)
        connection_of(store).counts.reset()
        consumer.poll()
        assert kinds(store).count("put_if_absent") == (1 if number == 0 else 0), number
        if number % 2:
            consumer.commit(dict.fromkeys(PARTS, 0))
        else:
            with producer.transaction() as txn:
                txn.send_offsets({PARTS[0]: 0}, consumer.group_metadata())
    assert _group(store).generation == 1


def test_two_consumers_share_without_a_barrier(store: Store, clock: ManualClock) -> None:
    """Who was there reads on; the new one gets its part when that was given back. Each record goes to one of them."""
    _fill(store, "a", "b")
    first, second = _member(store, max_poll_records=1), _member(another_process(store, clock))
    consumed = texts(first.poll())
    assert second.poll() == [], "nothing was given back yet"
    consumed += texts(first.poll())
    assert _numbers(first) == [0, 1, 2, 3], "it has not looked at the chain"
    first.commit()
    consumed += texts(first.poll())
    assert _numbers(first) == [0, 1]
    rest = [*read_all(first), *read_all(second)]
    assert _numbers(second) == [2, 3]
    assert sorted([*consumed, *texts(rest)]) == sorted({*consumed, *texts(rest)}), "nothing twice"
    assert {tp for tp in PARTS if not any(r.partition == tp.partition for r in rest)} <= {PARTS[0]}


def test_closed_consumer_releases_its_partitions_immediately(store: Store, clock: ManualClock) -> None:
    first, second = _member(store), _member(another_process(store, clock))
    assert _settle(first, second) == [[0, 1], [2, 3]]
    first.close()
    second.poll()
    assert _numbers(second) == [0, 1, 2, 3]
    second.close()
    assert not _group(store).members
    second.close()


def test_consumer_without_polls_expires_and_joins_again(store: Store, clock: ManualClock) -> None:
    """As with ``max.poll.interval.ms``: it loses its partitions, cannot commit, and joins again with its next poll."""
    calls: list[tuple[str, list[int]]] = []
    _fill(store, "a")
    slow = _member(store, on_revoked=lambda tps: calls.append(("revoked", [tp.partition for tp in tps])))
    quick = _member(another_process(store, clock))
    _settle(slow, quick)
    calls.clear()
    clock.advance(SESSION + 1)
    quick.poll()
    quick.poll()
    assert _numbers(quick) == [0, 1, 2, 3]
    with pytest.raises(UnknownMemberError, match="no member"):
        slow.commit()
    old = slow.group_metadata()
    slow.poll()
    assert calls == [("revoked", [0, 1])]
    assert slow.group_metadata().member_id != old.member_id
    assert sorted(_settle(slow, quick)) == [[0, 1], [2, 3]]


def test_fetched_records_are_dropped_after_loss_of_lease(store: Store, clock: ManualClock) -> None:
    """Others read it meanwhile."""
    _fill(store, "a", "b", "c")
    slow, quick = _member(store), _member(another_process(store, clock))
    _settle(slow, quick)
    _fill(store, "d", "e")
    assert len(slow.poll(max_records=1)) == 1
    clock.advance(SESSION + 1)
    quick.poll()
    read_all(quick)
    quick.commit()
    assert slow.poll() == []
    assert _numbers(slow) == []


def test_single_member_with_expired_lease_keeps_its_partitions(store: Store, clock: ManualClock) -> None:
    _fill(store, "a")
    consumer = _member(store)
    assert len(consumer.poll()) == 4
    clock.advance(100 * SESSION)
    consumer.commit()
    clock.advance(100 * SESSION)
    consumer.poll()
    assert _numbers(consumer) == [0, 1, 2, 3]
    assert _group(store).generation == 1


def test_crashed_member_is_replaced_after_session_timeout(store: Store, clock: ManualClock) -> None:
    crashed, other = _member(another_process(store, clock)), _member(store)
    _settle(crashed, other)
    waited = 0.0
    while len(_numbers(other)) < 4:
        other.poll(timeout=1.0)
        waited += 1.0
    assert 44 <= waited <= 47


def test_new_partitions_are_shared(store: Store, clock: ManualClock) -> None:
    """They are read from their beginning, whatever the policy says."""
    first = _member(store, auto_offset_reset="latest")
    second = _member(another_process(store, clock), auto_offset_reset="latest")
    _settle(first, second)
    store.alter_topic("t", partitions=6)
    _fill(store, "new", parts=[TopicPartition("t", 4), TopicPartition("t", 5)])
    records = [record for _ in range(4) for consumer in (first, second) for record in consumer.poll()]
    assert sorted(texts(records)) == ["4.new", "5.new"]
    assert sorted([*_numbers(first), *_numbers(second)]) == [0, 1, 2, 3, 4, 5]


def test_two_assignors(store: Store, clock: ManualClock) -> None:
    store.create_topic("u", partitions=3)
    pair = [
        process.consumer(["t", "u"], group="g", assignor="range") for process in (store, another_process(store, clock))
    ]
    _settle(*pair)
    assert sorted([str(tp) for tp in consumer.assignment()] for consumer in pair) == [
        ["t-0", "t-1", "u-0", "u-1"],
        ["t-2", "t-3", "u-2"],
    ]


def test_a_group_over_several_chains(clock: ManualClock) -> None:
    """The group's chain says who reads what; partitions are elsewhere."""
    store = create_on(MemoryStore(clock=clock), chains=4, runtime=connection_of(new_store(clock)).runtime)
    store.create_topic("t", partitions=4)
    _fill(store, "a", "b")
    first, second = _member(store), _member(store)
    assert _settle(first, second) == [[0, 1], [2, 3]]
    first.commit()
    first.close()
    _fill(store, "c")
    assert sorted(texts(read_all(second))) == ["0.c", "1.c", "2.c", "3.c"]
    second.commit()
    assert {tp: second.committed(tp) for tp in PARTS} == dict.fromkeys(PARTS, 3)


# Storage that fails, forks, bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_a_join_whose_answer_is_lost_is_one_membership(clock: ManualClock, stored: bool) -> None:
    faults = FaultStore(MemoryStore(clock=clock))
    store = new_store(clock, faults)
    store.create_topic("t", partitions=4)
    consumer = _member(store)
    faults.plan = on(Fault.LOST_RESPONSE if stored else Fault.CONFLICT_409, "put_if_absent", key_contains="chains/")
    consumer.poll()
    assert len(_group(store).members) == 1
    assert _numbers(consumer) == [0, 1, 2, 3]


def test_consumer_closes_although_leaving_fails(clock: ManualClock) -> None:
    faults = FaultStore(MemoryStore(clock=clock))
    store = new_store(clock, faults)
    store.create_topic("t", partitions=4)
    consumer = _member(store)
    consumer.poll()
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="chains/", times=None)
    consumer.close()
    faults.plan = no_faults
    assert len(_group(store).members) == 1


def test_a_forked_consumer_is_another_member(store: Store) -> None:
    """Two processes never share a lease: the child joins for itself, and does not leave for its parent."""
    _fill(store, "a")
    consumer = _member(store)
    consumer.poll()
    parent = consumer.group_metadata().member_id
    consumer._pid -= 1  # as if this were the child
    assert consumer.poll() == []
    assert set(_group(store).members) == {parent, consumer.group_metadata().member_id}
    assert len(_group(store).members) == 2
    assert consumer.assignment() == []
    consumer._pid -= 1
    consumer.close()
    assert len(_group(store).members) == 2


def test_off_22_storage_error_is_retriable(clock: ManualClock) -> None:
    """Kafka's "coordinator is loading" and "not available": retriable, and the position is where it was."""
    faults = FaultStore(MemoryStore(clock=clock))
    store = new_store(clock, faults)
    store.create_topic("t", partitions=4)
    _fill(store, "a")
    consumer = _member(store)
    consumer.poll()
    faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", key_contains="chains/", times=None)
    with pytest.raises(StorageError) as raised:
        consumer.commit()
    assert raised.value.retriable
    clock.advance(SESSION // 2)
    with pytest.raises(StorageError):
        consumer.poll()
    faults.plan = no_faults
    consumer.commit()
    assert consumer.poll() == []
    assert [consumer.committed(tp) for tp in PARTS] == [1, 1, 1, 1]
    assert _group(store).generation == 1


def test_off_22_member_of_deleted_group_is_unknown(store: Store, clock: ManualClock) -> None:
    """OFF-08: a generation of an unknown group is illegal. The next poll joins the group that takes its name."""
    consumer = _member(store)
    consumer.poll()
    clock.advance(SESSION + 1)
    another_process(store, clock).delete_group("g")
    with pytest.raises(IllegalGenerationError):
        consumer.commit({PARTS[0]: 0})
    consumer.poll()
    assert _numbers(consumer) == [0, 1, 2, 3]


def test_off_24_there_are_no_share_groups(store: Store) -> None:
    """KIP-1289 is out of scope: a group shares partitions, not records, so there is nothing to acknowledge."""
    assert not hasattr(_member(store), "acknowledge")
    with pytest.raises(TypeError):
        store.consumer(["t"], share_group="g")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assignor": "sticky"}, "assignor"),
        ({"session_timeout": 0}, "session_timeout"),
        ({"session_timeout": 1_801}, "session_timeout"),
        ({"session_timeout": "45"}, "session_timeout"),
        ({"group_instance_id": ""}, "group_instance_id"),
    ],
)
def test_options_are_checked_when_the_consumer_is_made(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        _member(store, **options)
    with pytest.raises(InvalidConfigError, match="group="):
        store.consumer(["t"], group_instance_id="one")


def test_off_18_positions_of_recreated_topic_are_not_committed(store: Store, clock: ManualClock) -> None:
    """Neither by the consumer nor by a transaction; and what was committed for the old one is not used."""
    _fill(store, "a", "b")
    consumer, producer = _member(store), store.producer("p")
    consumer.poll()
    consumer.commit()
    metadata, positions = consumer.group_metadata(), {tp: consumer.position(tp) for tp in PARTS}
    other = another_process(store, clock)
    other.delete_topic("t")
    other.create_topic("t", partitions=4)
    _fill(other, "new")
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        consumer.commit()
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"), producer.transaction() as txn:
        txn.send_offsets(positions, metadata)
    assert sorted(texts(read_all(consumer))) == ["0.new", "1.new", "2.new", "3.new"]
