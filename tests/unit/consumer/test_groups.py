"""Offsets of a group, committed and read by consumers without membership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.reading import (
    T0,
    T1,
    another_process,
    append,
    kinds,
    new_store,
    read_all,
    texts,
)
from tests.helpers.shell import ONE_CHAIN
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.errors import (
    InvalidConfigError,
    OffsetMetadataTooLargeError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


@ONE_CHAIN
def test_group_continues_at_committed_offset(store: Store, clock: ManualClock) -> None:
    """OFF-19: what is committed is the next offset to read."""
    append(store, *"abcd")
    consumer = store.consumer(["t"], group="g")
    consumer.poll(max_records=3)
    connection_of(store).counts.reset()
    consumer.commit()
    assert kinds(store) == ["put_if_absent"]
    assert consumer.committed(T0) == 3
    consumer.close()
    other = another_process(store, clock)
    assert texts(read_all(other.consumer(["t"], group="g"))) == ["d"]
    assert texts(read_all(other.consumer(["t"], group="h"))) == [*"abcd"]


def test_an_offset_that_another_process_has_just_committed_counts(store: Store, clock: ManualClock) -> None:
    append(store, *"abcd")
    consumer = store.consumer(["t"], group="g")
    another_process(store, clock).consumer(["t"], group="g").commit({T0: 2})
    assert texts(read_all(consumer)) == ["c", "d"]


def test_metadata_comes_back(store: Store) -> None:
    """OFF-15."""
    append(store, *"abc")
    consumer = store.consumer(["t"], group="g")
    consumer.commit({T0: OffsetAndMetadata(2, "some metadata", 15)})
    assert consumer.committed(T0) == 2
    assert consumer.committed(T0, metadata=True) == OffsetAndMetadata(2, "some metadata", 15)
    assert consumer.committed(T1) is None
    with pytest.raises(OffsetMetadataTooLargeError):
        consumer.commit({T0: OffsetAndMetadata(3, "m" * 4097)})
    with pytest.raises(UnknownTopicOrPartitionError, match="t-9"):
        consumer.commit({("t", 9): 1})  # type: ignore[dict-item]  # a plain pair does as well
    assert consumer.committed(T0) == 2


def test_automatic_commit_follows_interval(store: Store, clock: ManualClock) -> None:
    """What earlier polls returned is committed, not what the current one returns."""
    append(store, *"abcd")
    consumer = store.consumer(["t"], group="g", enable_auto_commit=True, max_poll_records=1)
    consumer.poll()
    consumer.poll()
    assert consumer.committed(T0) is None
    clock.advance(5_000)
    consumer.poll()
    assert consumer.committed(T0) == 2
    consumer.close()
    assert store.consumer(["t"], group="g").committed(T0) == 3


def test_group_metadata_is_refused_with_automatic_commit(store: Store) -> None:
    """OFF-19: the guard."""
    consumer = store.consumer(["t"], group="g", enable_auto_commit=True)
    with pytest.raises(InvalidConfigError, match="enable_auto_commit"):
        consumer.group_metadata()
    metadata = store.consumer(["t"], group="g").group_metadata()
    assert (metadata.group, metadata.generation, metadata.member_id) == ("g", -1, "")


def test_a_group_is_needed_for_its_offsets(store: Store) -> None:
    consumer = store.consumer(["t"])
    calls: list[Callable[[], object]] = [
        consumer.commit,
        lambda: consumer.committed(T0),
        consumer.group_metadata,
        consumer.rewind_to_committed,
        lambda: store.consumer(["t"], enable_auto_commit=True),
    ]
    for call in calls:
        with pytest.raises(InvalidConfigError, match="group="):
            call()


@pytest.mark.parametrize(
    "options",
    [
        {"group": ""},
        {"isolation": "serializable"},
        {"auto_offset_reset": "middle"},
        {"max_poll_records": 0},
        {"poll_interval": 0},
        {"auto_commit_interval": -1.0},
    ],
)
def test_a_wrong_option_is_refused(store: Store, options: dict[str, Any]) -> None:
    """CON-01."""
    with pytest.raises(InvalidConfigError):
        store.consumer(["t"], **options)


def test_poll_waits_for_pending_offset(store: Store, clock: ManualClock) -> None:
    """OFF-09, OFF-10: not the old offset, not the new one."""
    append(store, *"abcd")
    store.consumer(["t"], group="g").commit({T0: 1})
    producer = store.producer("job")
    producer.begin_transaction()
    producer.send_offsets({T0: 3}, "g")
    producer.send("t", b"out", partition=1)
    producer.flush()
    consumer = another_process(store, clock).consumer(["t"], group="g")
    began = clock()
    assert texts(consumer.poll(timeout=2.0)) == []
    assert clock() - began == 2_000
    for look_up in (consumer.committed, consumer.position):
        began = clock()
        with pytest.raises(UnstableOffsetCommitError, match="t-0"):
            look_up(T0, timeout=3.0)
        assert clock() - began == 3_000
    assert consumer.committed(T0, require_stable=False) == 1
    producer.commit_transaction()
    assert sorted(texts(read_all(consumer))) == ["d", "out"]


@pytest.mark.parametrize("offsets", [[], None, "", 0])
def test_offsets_that_are_no_mapping_are_refused_also_if_they_are_empty(store: Store, offsets: Any) -> None:
    producer = store.producer("job")
    producer.begin_transaction()
    with pytest.raises(TxnStoreError):
        producer.send_offsets(offsets, "g")
