"""A gateway that was suspended while another one continued with its clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import txnstore
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_wire import RawClient, request_frame
from txnstore.core.transactions.model import TxnState
from txnstore.gateway.apis import Api

_ID = "job"


@contextmanager
def suspended(gateway: RunningGateway) -> Iterator[None]:
    """In the block its loop stands still; by its clock for ten seconds."""
    begun, ended = threading.Event(), threading.Event()
    loop = gateway._loop
    clock = loop.time

    def stand_still() -> None:
        begun.set()
        ended.wait()
        loop.time = lambda: clock() + 10  # type: ignore[method-assign]

    loop.call_soon_threadsafe(stand_still)
    begun.wait()
    try:
        yield
    finally:
        ended.set()


def _code(answer: Any) -> ErrorCode:
    code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    assert isinstance(code, ErrorCode)
    return code


@pytest.mark.parametrize("chains", [1, 3])
def test_an_end_that_a_suspended_gateway_finds_does_not_end_the_next_transaction(tmp_path: Path, chains: int) -> None:
    """TV1: the client repeats its commit at another gateway and continues, with the same epoch (transactions v1)."""
    with txnstore.create(str(tmp_path), chains) as store:
        store.create_topic("t", partitions=1)
        with (
            serving(store) as one,
            serving(store) as other,
            RawClient(one) as late,
            RawClient(other) as client,
        ):
            fields = {"transactional_id": _ID, "transaction_timeout_ms": 60_000, "transaction_timeout": 60_000}
            granted = client.ask(Api.INIT_PRODUCER_ID, fields, 1)
            identity = {"producer_id": granted.producer_id, "producer_epoch": granted.producer_epoch}
            end = {"transactional_id": _ID, **identity, "committed": True}
            add = {
                "v3_and_below_transactional_id": _ID,
                "v3_and_below_producer_id": granted.producer_id,
                "v3_and_below_producer_epoch": granted.producer_epoch,
                "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
            }
            assert _code(client.ask(Api.ADD_PARTITIONS_TO_TXN, add, 0)) is ErrorCode.none
            late.ask(Api.API_VERSIONS, {}, 0)
            with suspended(one):
                late.send(request_frame(Api.END_TXN, 1, 7, end))
                assert client.ask(Api.END_TXN, end, 1).error_code is ErrorCode.none
                while _code(client.ask(Api.ADD_PARTITIONS_TO_TXN, add, 0)) is ErrorCode.concurrent_transactions:
                    pass  # The other chains have not ended the first one.
            with pytest.raises(ConnectionError):
                late.receive()
            assert store.transaction(_ID).state is TxnState.ONGOING
            assert client.ask(Api.END_TXN, {**end, "committed": False}, 1).error_code is ErrorCode.none
            assert store.transaction(_ID).state in {TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT}
