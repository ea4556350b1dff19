"""Transactions whose producers have ended for good: a gateway ends them when a client waits for what they hold back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.gateway.apis import Api
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def served(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    objects = MemoryStore(clock=clock)
    with create_on(objects, request.param, runtime=Runtime(clock=clock)) as store, serving(store) as gateway:
        store.create_topic("t")
        yield ServedStore(store, gateway)


def _offset(served: ServedStore, version: int, *, stable: bool = True) -> tuple[ErrorCode, int]:
    """The code and the offset with which OffsetFetch answers for the group."""
    one = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "member_id": None, "member_epoch": -1}
    answer = served.ask(Api.OFFSET_FETCH, {**one, "groups": [one], "require_stable": stable}, version)
    group: Any = answer.groups[0] if version >= 8 else answer
    (part,) = group.topics[0].partitions
    return part.error_code, part.committed_offset


def _leave_pending(served: ServedStore) -> None:
    """An offset that is committed, and a newer one in a transaction of ten seconds that no producer will end."""
    parts = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1, "generation_id": -1}
    fields = {"group_id": "g", **member, "topics": [{"name": "t", "partitions": [parts]}]}
    served.ask(Api.OFFSET_COMMIT, fields, 9)
    init = {"transactional_id": "gone", "transaction_timeout": 10_000, "producer_id": -1, "producer_epoch": -1}
    who = served.ask(Api.INIT_PRODUCER_ID, init, 5)
    pending = {
        **fields,
        "transactional_id": "gone",
        "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch,
    }
    pending["topics"] = [{"name": "t", "partitions": [{**parts, "committed_offset": 5}]}]
    answer = served.ask(Api.TXN_OFFSET_COMMIT, pending, 5)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", [7, 9])
def test_off_09_offsets_of_an_abandoned_transaction_are_pending_until_its_timeout(
    served: ServedStore, clock: ManualClock, version: int
) -> None:
    """OFF-09, OFF-10, TMO-01, LSO-14: no consumer reads what the transaction wrote, and its id is never used again.

    A consumer of the group would wait forever.
    """
    _leave_pending(served)
    clock.advance(10_000)
    assert _offset(served, version) == (ErrorCode.unstable_offset_commit, -1)
    clock.advance(1)
    assert _offset(served, version, stable=False) == (ErrorCode.none, 1)
    assert _offset(served, version) == (ErrorCode.none, 1)
    assert [txn.state.name for txn in served.store.transactions()] == ["COMPLETE_ABORT"]
