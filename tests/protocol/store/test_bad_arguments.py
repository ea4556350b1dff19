"""Wrong arguments of calls about transactions, producers and groups: refused by name, before anything is looked up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.helpers.chains import process
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, InvalidTopicError, UnknownTopicOrPartitionError
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

Call = Callable[[Store, Any], object]


@pytest.fixture(scope="module")
def store() -> Store:
    """A store of three chains with a topic ``t``, a transactional id ``a`` and a group ``g``."""
    clock = ManualClock()
    store = process(MemoryStore(clock=clock), clock, chains=3)
    store.create_topic("t", partitions=2)
    with store.producer("a").transaction() as txn:
        txn.send_offsets({TopicPartition("t", 0): 0}, "g")
    return store


TOPICS: dict[str, Call] = {
    "abort_hanging": lambda store, name: store.abort_hanging(name, 0, 0),
    "producers": lambda store, name: store.producers(name, 0),
    "find_hanging": lambda store, name: store.find_hanging(name if name is not None else ""),
    "reset_offsets": lambda store, name: store.reset_offsets("g", {TopicPartition(name, 0): 0}),
    "send_offsets": lambda store, name: _send_offsets(store, {TopicPartition(name, 0): 0}, "g"),
}
IDS: dict[str, Call] = {
    "producer": lambda store, name: store.producer(name) if name is not None else store.transaction(""),
    "transaction": lambda store, name: store.transaction(name),
    "transaction_history": lambda store, name: store.transaction_history(name),
    "abort_transaction": lambda store, name: store.abort_transaction(name),
    "fence_producers": lambda store, name: store.fence_producers([name]),
    "group": lambda store, name: store.group(name),
    "reset_offsets": lambda store, name: store.reset_offsets(name, "earliest"),
    "delete_group": lambda store, name: store.delete_group(name),
    "send_offsets": lambda store, name: _send_offsets(store, {TopicPartition("t", 0): 0}, name),
}
OTHERS: dict[str, Call] = {
    "abort_hanging partition": lambda store, value: store.abort_hanging("t", value, 0),
    "abort_hanging producer": lambda store, value: store.abort_hanging("t", 0, value),
    "producers partition": lambda store, value: store.producers("t", value),
    "find_hanging late": lambda store, value: store.find_hanging("t", value),
    "fence_producers": lambda store, value: store.fence_producers(value),
    "transactions older": lambda store, value: store.transactions(older_than=value),
    "transactions producer": lambda store, value: store.transactions(producer_id=value),
    "transactions pattern": lambda store, value: store.transactions(pattern=value if value != "a" else "("),
    "history limit": lambda store, value: store.transaction_history("a", limit=value),
    "history since": lambda store, value: store.transaction_history("a", since=value),
    "reset_offsets topics": lambda store, value: store.reset_offsets(
        "g", "earliest", topics=value if value != "a" else cast("list[str]", 1)
    ),
    "reset_offsets key": lambda store, value: store.reset_offsets("g", {value: 0}),
    "reset_offsets value": lambda store, value: store.reset_offsets("g", {TopicPartition("t", 0): value}),
    "send_offsets": lambda store, value: _send_offsets(store, value, "g"),
    "send_offsets value": lambda store, value: _send_offsets(store, {TopicPartition("t", 0): value}, "g"),
    "expire": lambda store, value: store.expire(producer_ids=value),
    "timeout": lambda store, value: store.producer("b", transaction_timeout=value),
}


def _send_offsets(store: Store, offsets: Any, group: Any) -> None:
    producer = store.producer("offsets")
    producer.begin_transaction()
    producer.send_offsets(offsets, group)


@pytest.mark.parametrize("name", [None, "", b"t", 1, ("t",), "a b\n"], ids=repr)
@pytest.mark.parametrize("call", TOPICS)
def test_invalid_topic_name_is_refused_by_every_call(store: Store, call: str, name: Any) -> None:
    """Bytes that spell the name of a topic that exists are the worst: they have the hash of that name."""
    with pytest.raises(InvalidTopicError, match="topic"):
        TOPICS[call](store, name)


@pytest.mark.parametrize("name", [None, "", b"a", b"g", 1, ("a",), "a\n", "\ud800"], ids=repr)
@pytest.mark.parametrize("call", IDS)
def test_invalid_transactional_id_or_group_is_refused_by_every_call(store: Store, call: str, name: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"id|group"):
        IDS[call](store, name)


@pytest.mark.parametrize("value", ["a", b"a", math.nan, math.inf, (1, 2, 3)], ids=repr)
@pytest.mark.parametrize("call", OTHERS)
def test_arguments_of_wrong_types_are_refused_by_every_call(store: Store, call: str, value: Any) -> None:
    """One string is no list of transactional ids: it would fence producers that were not named."""
    with pytest.raises((InvalidConfigError, InvalidTopicError, UnknownTopicOrPartitionError)):
        OTHERS[call](store, value)
