"""OFF-06, OFF-10, OFF-20: rebalances fence the commits and transactions of members."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.members import PARTS, SESSION, _fill, _group, _member, _numbers, _settle
from tests.helpers.reading import another_process, new_store, read_all, texts
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    UnknownMemberError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = new_store(clock)
    store.create_topic("t", partitions=4)
    return store


def test_off_06_commit_with_old_generation_is_refused_after_rebalance(store: Store, clock: ManualClock) -> None:
    """The error is abortable; after a rewind and a poll the same work is done once, with the new generation."""
    _fill(store, "a", "b")
    store.create_topic("out")
    first, second, producer = _member(store), _member(another_process(store, clock)), store.producer("p")
    others: list[str] = []

    def copy() -> None:
        with producer.transaction() as txn:
            for record in first.poll():
                txn.send("out", record.value)
            others.extend(texts(second.poll()))
            txn.send_offsets({tp: first.position(tp) for tp in first.assignment()}, first.group_metadata())

    with pytest.raises(IllegalGenerationError) as raised:
        copy()
    assert raised.value.abortable
    assert store.scan("out").to_table().num_rows == 0
    first.rewind_to_committed()
    copy()
    assert _numbers(first) == [0, 1]
    copied = [value.decode() for value in store.scan("out").to_table()["value"].to_pylist()]
    assert sorted(copied) == ["0.a", "0.b", "1.a", "1.b"]
    assert sorted(others) == ["2.a", "2.b", "3.a", "3.b"]


def test_off_10_the_new_owner_waits_for_the_old_owners_transaction(store: Store, clock: ManualClock) -> None:
    """FEN-07: the partition moves immediately, but its start is known only after the end of the transaction."""
    _fill(store, "a", "b")
    store.create_topic("out")
    old, producer = _member(store), store.producer("p", transaction_timeout=60.0)
    old.poll()
    producer.begin_transaction()
    producer.send("out", b"x")
    producer.send_offsets({tp: old.position(tp) for tp in PARTS}, old.group_metadata())
    producer.flush()
    new = _member(another_process(store, clock))
    clock.advance(SESSION + 1)
    assert new.poll(timeout=1.0) == []
    assert _numbers(new) == [0, 1, 2, 3]
    clock.advance(20_000)
    assert len(read_all(new)) == 8, "it was aborted after its timeout, by the consumer that it held up"
    with pytest.raises(UnknownMemberError):
        old.commit()


def test_off_20_a_rewind_with_a_rebalance_in_between(store: Store, clock: ManualClock) -> None:
    """Each input is read once in the committed transactions, though one aborts and partitions change hands."""
    _fill(store, *"abcd")
    consumers = [_member(store, max_poll_records=3), _member(another_process(store, clock), max_poll_records=3)]
    producers = [store.producer("p0"), store.producer("p1")]
    done: list[str] = []
    for round_number in range(16):
        which = round_number % 2 if round_number > 1 else 0
        consumer, producer = consumers[which], producers[which]
        producer.begin_transaction()
        records = consumer.poll()
        try:
            producer.send_offsets(
                {tp: consumer.position(tp) for tp in consumer.assignment()}, consumer.group_metadata()
            )
            if round_number % 5 == 3:
                raise IllegalGenerationError
            producer.commit_transaction()
        except IllegalGenerationError:
            producer.abort_transaction()
            consumer.rewind_to_committed()
        else:
            done += texts(records)
    assert sorted(done) == sorted(f"{tp.partition}.{value}" for tp in PARTS for value in "abcd")


def test_commit_with_old_generation_succeeds_for_kept_partitions(store: Store, clock: ManualClock) -> None:
    """No other member has read its partitions, so the commit is valid."""
    _fill(store, "a")
    first, second = _member(store), _member(another_process(store, clock))
    first.poll()
    second.poll()
    first.commit()
    assert _group(store).generation == 2
    assert first.committed(PARTS[3]) == 1


def test_a_commit_for_a_partition_of_another_member_is_refused(store: Store, clock: ManualClock) -> None:
    first, second = _member(store), _member(another_process(store, clock))
    _settle(first, second)
    with pytest.raises(IllegalGenerationError, match="holds t-3"):
        first.commit({PARTS[3]: 0})


def test_static_member_gets_its_partitions_back_immediately(store: Store, clock: ManualClock) -> None:
    """KIP-345: also if the old process was killed; other members notice nothing."""
    old, other = _member(another_process(store, clock), group_instance_id="one"), _member(store)
    _settle(old, other)
    generation = _group(store).generation
    new = _member(another_process(store, clock), group_instance_id="one")
    new.poll()
    assert _numbers(new) == [0, 1]
    assert _group(store).generation == generation
    for call in (old.commit, old.poll, old.poll):
        if call is old.commit:
            old.seek(PARTS[0], 0)
        with pytest.raises(FencedInstanceError, match="taken over"):
            call({PARTS[0]: 0}) if call is old.commit else call()
    old.close()
    new.close()
    assert len(_group(store).members) == 2, "a static member that closes does not leave"


def test_every_call_of_a_fenced_static_member_raises(store: Store, clock: ManualClock) -> None:
    """KIP-345: also after a poll that has raised and dropped its partitions, a commit does not return as if it had
    committed; a transaction with its metadata is refused by ``send_offsets``.
    """
    old = _member(another_process(store, clock), group_instance_id="one")
    _fill(store, "a")
    old.poll()
    metadata, producer = old.group_metadata(), store.producer("p")
    new = _member(store, group_instance_id="one")
    new.poll()
    offsets = {PARTS[0]: 1}
    calls: list[Callable[[], object]] = [old.poll, old.commit, lambda: old.commit({}), lambda: old.commit(offsets)]
    for call in (*calls, *calls):
        with pytest.raises(FencedInstanceError, match="taken over"):
            call()
    for membership in (metadata, old.group_metadata()):
        producer.begin_transaction()
        with pytest.raises(FencedInstanceError, match="taken over"):
            producer.send_offsets(offsets, membership)
        producer.abort_transaction()
    assert new.committed(PARTS[0]) is None
    old.unsubscribe()
    old.commit()
    assert [tp.partition for tp in new.assignment()] == [0, 1, 2, 3]
