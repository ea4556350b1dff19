"""Consumers of topics that are deleted, recreated, or do not exist yet."""

from __future__ import annotations

import logging

import pytest

from tests.helpers.members import _settle
from tests.helpers.reading import T0, T1, another_process, append, new_store, read_all, texts
from txnstore.consumer import Consumer
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, InvalidTopicError, UnknownTopicOrPartitionError
from txnstore.store import Store
from txnstore.testing import ManualClock

U0 = TopicPartition("u", 0)


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    return store


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "txnstore.consumer"]


# Deleted --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["alone", "member", "assigned"])
def test_deleted_topic_does_not_stop_a_consumer_of_several(
    store: Store, clock: ManualClock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka: the others are read and committed; the deletion is logged once."""
    append(store, "a")
    append(store, "b", tp=U0)
    consumer = store.consumer(None if kind == "assigned" else ["t", "u"], group=None if kind == "alone" else "g")
    if kind == "assigned":
        consumer.assign([T0, T1, U0])
    assert sorted(texts(read_all(consumer))) == ["a", "b"]
    another_process(store, clock).delete_topic("u")
    append(store, "c", tp=T1)
    assert texts([*consumer.poll(timeout=1.0), *consumer.poll(timeout=1.0)]) == ["c"]
    assert consumer.assignment() == [T0, T1, *([U0] if kind == "assigned" else [])]
    assert consumer.lag() == {T0: 0, T1: 0}
    assert set(consumer.end_offsets()) == set(consumer.beginning_offsets()) == {T0, T1}
    if kind != "alone":
        consumer.commit()
        assert (consumer.committed(T0), consumer.committed(T1)) == (1, 1)
    consumer.close()
    assert [line for line in warnings(caplog) if "there is no topic 'u'" in line] == [
        "there is no topic 'u': the consumer waits until it is created; the store has t"
    ]


@pytest.mark.parametrize("polled", [False, True])
def test_close_commits_positions_of_other_topics(store: Store, clock: ManualClock, *, polled: bool) -> None:
    """A topic is deleted between the last poll and the automatic commit of close()."""
    append(store, "a", "b")
    append(store, "c", tp=U0)
    consumer = store.consumer(["t", "u"], group="g", enable_auto_commit=True)
    assert len(read_all(consumer)) == 3
    another_process(store, clock).delete_topic("u")
    if polled:
        consumer.poll()
    consumer.close()
    assert store.consumer("t", group="g").committed(T0) == 2


def test_commit_of_given_offsets_names_the_deleted_topic(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is committed; without arguments, what exists is."""
    append(store, "a")
    consumer = store.consumer(["t", "u"], group="g")
    consumer.seek(U0, 5)
    assert texts(consumer.poll()) == ["a"]
    consumer.seek(U0, 5)
    store.delete_topic("u")
    with pytest.raises(UnknownTopicOrPartitionError, match="u-0"):
        consumer.commit({T0: 1, U0: 5})
    assert consumer.committed(T0) is None
    consumer.commit()
    assert consumer.committed(T0) == 1
    assert "offset 5 of u-0 is not committed: the topic was deleted" in warnings(caplog)


def test_deleted_topic_with_rows_on_their_way(store: Store) -> None:
    append(store, *"abc", tp=U0)
    consumer = store.consumer(["t", "u"])
    assert texts(consumer.poll(max_records=1)) == ["a"]
    store.delete_topic("u")
    assert consumer.poll() == []
    append(store, "d")
    assert texts(consumer.poll()) == ["d"]
    with pytest.raises(InvalidConfigError, match="does not read u-0; it reads t-0, t-1"):
        consumer.pause(U0)


@pytest.mark.parametrize("kind", ["alone", "member", "assigned"])
def test_recreated_topic_is_read_from_its_beginning(store: Store, clock: ManualClock, kind: str) -> None:
    """Also with ``latest``; the offset of the old topic is not that of the new one (OFF-18)."""
    append(store, *"abc", tp=U0)
    consumer = store.consumer(
        None if kind == "assigned" else ["t", "u"],
        group=None if kind == "alone" else "g",
        auto_offset_reset="latest",
    )
    if kind == "assigned":
        consumer.assign([T0, U0])
    consumer.poll()
    consumer.seek(U0, 1)
    assert texts(consumer.poll()) == ["b", "c"]
    other = another_process(store, clock)
    other.delete_topic("u")
    if kind != "member":
        consumer.poll()
    other.create_topic("u")
    append(other, *"vwxyz", tp=U0)
    values = texts([record for _ in range(4) for record in consumer.poll(timeout=1.0)])
    assert values == [*"vwxyz"]
    if kind != "alone":
        consumer.commit()
        assert consumer.committed(U0) == 5


@pytest.mark.parametrize("auto", [False, True])
def test_commit_says_that_the_only_topic_was_deleted(
    store: Store, caplog: pytest.LogCaptureFixture, *, auto: bool
) -> None:
    append(store, "a")
    consumer = store.consumer("t", group="g", enable_auto_commit=auto)
    assert texts(consumer.poll()) == ["a"]
    store.delete_topic("t")
    if auto:
        consumer.close()
        assert any(message.startswith("not committed: the topics were deleted: ") for message in warnings(caplog))
    else:
        with pytest.raises(UnknownTopicOrPartitionError, match="t-0"):
            consumer.commit()


# Not created yet ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g"])
def test_topic_is_read_as_soon_as_it_is_created(
    store: Store, clock: ManualClock, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """From its beginning, whatever the policy says; a misspelt name is logged, with those that exist."""
    consumer = store.consumer(["new"], group=group, auto_offset_reset="latest")
    assert warnings(caplog) == ["there is no topic 'new': the consumer waits until it is created; the store has t, u"]
    assert consumer.poll() == []
    assert consumer.poll_table().num_rows == 0
    assert (consumer.assignment(), consumer.lag()) == ([], {})
    other = another_process(store, clock)
    other.create_topic("new", partitions=2)
    append(other, "a", tp=TopicPartition("new", 1))
    assert texts([*consumer.poll(timeout=1.0), *consumer.poll(timeout=1.0)]) == ["a"]
    assert len(consumer.assignment()) == 2
    assert len(warnings(caplog)) == 1


def test_members_share_a_topic_that_is_created_later(store: Store, clock: ManualClock) -> None:
    pair = [process.consumer(["new"], group="g") for process in (store, another_process(store, clock))]
    assert _settle(*pair) == [[], []]
    store.create_topic("new", partitions=4)
    assert sorted(map(len, _settle(*pair))) == [2, 2]


@pytest.mark.parametrize(
    ("topics", "error"),
    [(5, InvalidConfigError), (b"t", InvalidConfigError), (["a b"], InvalidTopicError), ([3], InvalidTopicError)],
)
def test_impossible_topics_are_refused(store: Store, topics: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.consumer(topics)  # type: ignore[arg-type]


# Unsubscribing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [Consumer.unsubscribe, lambda consumer: consumer.subscribe([])])
def test_unsubscribed_member_leaves_its_group(store: Store, clock: ManualClock, how: object) -> None:
    """With an automatic commit first, as on close; it can subscribe again."""
    assert callable(how)
    append(store, "a")
    first = store.consumer(["t"], group="g", enable_auto_commit=True)
    second = another_process(store, clock).consumer(["t"], group="g")
    _settle(first, second)
    append(store, "b")
    assert texts(read_all(first)) == ["b"]
    how(first)
    assert first.assignment() == []
    second.poll()
    assert second.assignment() == [T0, T1]
    assert second.committed(T0) == 2
    with pytest.raises(InvalidConfigError, match="no partitions to read"):
        first.poll()
    first.subscribe("t")
    assert sorted(map(len, _settle(first, second))) == [1, 1]


def test_unsubscribed_static_member_stays_until_it_returns(store: Store) -> None:
    consumer = store.consumer(["t"], group="g", group_instance_id="one")
    consumer.poll()
    consumer.unsubscribe()
    assert len(store.group("g").members) == 1
    consumer.subscribe(["u"])
    consumer.poll()
    assert [member.topics for member in store.group("g").members] == [("u",)]
    assert consumer.assignment() == [U0]


def test_levels_of_the_log(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store.consumer(["never"]).poll()
    assert {record.levelno for record in caplog.records if record.name == "txnstore.consumer"} == {logging.WARNING}
