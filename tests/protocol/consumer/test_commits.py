"""What a consumer commits: the position, after a poll, a seek or a rewind, as Kafka's ``allConsumed`` says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.reading import T0, T1, append, begin, new_store, read_all, texts
from txnstore.consumer import Consumer
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.errors import InvalidConfigError, InvalidTopicError
from txnstore.store import Store
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    append(store, *"abcdefgh")
    return store


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("polled", [False, True])
def test_commit_after_seek_commits_the_position(store: Store, *, auto: bool, polled: bool) -> None:
    """Also the automatic one of close(), and also what was polled in the other partitions."""
    append(store, "z", tp=T1)
    consumer = store.consumer("t", group="g", enable_auto_commit=auto)
    if polled:
        assert len(read_all(consumer)) == 9
    consumer.seek(T0, 7)
    if auto:
        consumer.close()
    else:
        consumer.commit()
    reader = store.consumer("t", group="g")
    assert (reader.committed(T0), reader.committed(T1)) == (7, 1 if polled else None)


def test_commit_after_seek_to_an_end_looks_it_up(store: Store) -> None:
    """The end of ``read_committed`` is the LSO."""
    begin(store, "open", "i")
    consumer = store.consumer("t", group="g")
    consumer.seek_to_end()
    consumer.commit()
    assert (consumer.committed(T0), consumer.committed(T1)) == (8, 0)
    assert consumer.poll() == []
    consumer.seek_to_beginning(T0)
    consumer.commit()
    assert consumer.committed(T0) == 0
    assert texts(consumer.poll(max_records=2)) == ["a", "b"]


def test_commit_after_rewind_changes_nothing(store: Store) -> None:
    consumer = store.consumer("t", group="g")
    consumer.poll(max_records=3)
    consumer.commit()
    consumer.poll(max_records=3)
    consumer.rewind_to_committed()
    consumer.commit()
    assert consumer.committed(T0) == 3


def test_commit_before_the_first_poll_commits_nothing(store: Store) -> None:
    consumer = store.consumer("t", group="g")
    consumer.commit()
    assert consumer.committed(T0) is None


def test_offsets_are_given_as_in_kafka(store: Store) -> None:
    consumer = store.consumer("t", group="g")
    consumer.commit({T0: 1, T1: OffsetAndMetadata(0, "why")})
    assert consumer.committed(T1, metadata=True) == OffsetAndMetadata(0, "why")
    consumer.commit({})
    assert consumer.committed(T0) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.commit(5),
        lambda consumer: consumer.commit([T0]),
        lambda consumer: consumer.commit({"t": 5}),
        lambda consumer: consumer.commit({T0: "5"}),
        lambda consumer: consumer.commit({T0: 0.5}),
        lambda consumer: consumer.commit({T0: -1}),
        lambda consumer: consumer.committed("t"),
        lambda consumer: consumer.committed("to"),
        lambda consumer: consumer.position("o"),
        lambda consumer: consumer.position(("t", "0")),
        lambda consumer: consumer.position(None),
        lambda consumer: consumer.seek(T0, "0"),
        lambda consumer: consumer.seek(T0, -1),
        lambda consumer: consumer.seek("to", 0),
        lambda consumer: consumer.pause("to"),
        lambda consumer: consumer.resume(7),
        lambda consumer: consumer.assign(5),
        lambda consumer: consumer.assign("to"),
        lambda consumer: consumer.assign(["t", "u"]),
        lambda consumer: consumer.assign([("t", 0.5)]),
        lambda consumer: consumer.seek_to_end(["t"]),
        lambda consumer: consumer.end_offsets("to"),
        lambda consumer: consumer.offsets_for_times({"t": 5}),
        lambda consumer: consumer.offsets_for_times({T0: "5"}),
        lambda consumer: consumer.offsets_for_times({T0: -1}),
        lambda consumer: consumer.offsets_for_times(5),
        lambda consumer: consumer.poll(max_records=0.5),
        lambda consumer: consumer.poll(max_records=0),
        lambda consumer: consumer.poll("1"),
        lambda consumer: consumer.poll(-1),
        lambda consumer: consumer.poll_table(max_records=True),
    ],
)
def test_argument_of_a_wrong_type_is_refused(store: Store, call: Any) -> None:
    """And changes nothing."""
    consumer = store.consumer("t", group="g")
    with pytest.raises((InvalidConfigError, InvalidTopicError)):
        call(consumer)
    assert consumer.assignment() == [T0, T1]
    assert consumer.committed(T0) is None


@pytest.mark.parametrize("option", ["on_assigned", "on_revoked"])
@pytest.mark.parametrize("group", [None, "g"])
def test_callback_that_cannot_be_called_is_refused(store: Store, option: str, group: str | None) -> None:
    with pytest.raises(InvalidConfigError, match=f"{option} must be callable"):
        store.consumer("t", group=group, **{option: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["result", "exception"])
def test_timeout_of_a_future_must_be_a_number(store: Store, call: str) -> None:
    with store.producer() as producer:
        future = producer.send("t", b"x")
        with pytest.raises(InvalidConfigError, match="timeout must be a number of seconds"):
            getattr(future, call)("x")
        with pytest.raises(InvalidConfigError, match="callable"):
            future.add_done_callback(5)  # type: ignore[arg-type]
        assert future.result(240).offset >= 0


def test_closed_consumer_has_committed(store: Store) -> None:
    with store.consumer("t", group="g", enable_auto_commit=True) as consumer:
        assert isinstance(consumer, Consumer)
        consumer.poll(max_records=2)
    assert store.consumer("t", group="g").committed(T0) == 2
