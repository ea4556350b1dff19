"""Transactions whose producers have ended for good, with the last records of a partition."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.gateway_process import fetch_fields
from tests.helpers.kafka_wire import ServedStore
from txnstore.gateway.apis import Api
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on
from txnstore.testing import ManualClock


def _fetch(served: ServedStore, max_wait: int) -> Any:
    fields = {**fetch_fields("t", 0, max_wait=max_wait), "isolation_level": 1}
    (part,) = served.ask(Api.FETCH, fields, 11).responses[0].partitions
    assert part.error_code is ErrorCode.none
    return part


@pytest.mark.parametrize("chains", [1, 3])
def test_an_abandoned_transaction_at_the_end_of_a_log_ends_for_who_waits(chains: int) -> None:
    """Connect's worker reads its topics to their ends, where the transaction of the killed one may be (TMO-01)."""
    clock = ManualClock()
    with (
        create_on(MemoryStore(clock=clock), chains, runtime=Runtime(clock=clock)) as store,
        serving(store) as gateway,
    ):
        store.create_topic("t")
        served = ServedStore(store, gateway)
        producer = store.producer("gone", transaction_timeout=10)
        producer.begin_transaction()
        producer.send("t", value=b"x")
        producer.flush()
        assert _fetch(served, 0).last_stable_offset == 0
        assert [txn.state.name for txn in store.transactions()] == ["ONGOING"]
        clock.advance(10_001)
        part = _fetch(served, 20_000)
        assert (part.last_stable_offset, bool(part.records)) == (2, True)
        assert [txn.state.name for txn in store.transactions()] == ["COMPLETE_ABORT"]
