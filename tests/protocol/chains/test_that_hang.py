"""A chain whose writes hang blocks only the calls that need it (docs/operations.md)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tests.helpers.chains import ids_of, partitions_of, process, value_counts, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.model import TxnState
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import Fault, FaultStore, ManualClock

CHAINS, PARTITIONS, SLOW = 4, 16, 2
#: More than there are threads for the work on one chain.
STUCK = 20


def _names(chain_is: Callable[[int], bool]) -> list[str]:
    names = (f"stuck-{number}" for number in itertools.count())
    return list(itertools.islice((name for name in names if chain_is(chain_of_transactional_id(name, CHAINS))), STUCK))


def _write(producer: Producer, partitions: list[int]) -> None:
    with producer.transaction() as txn:
        for number in partitions:
            txn.send("t", b"value", partition=number)


def _wait_until_begun(store: Store) -> None:
    """All of them have added their partitions; then they come to the slow chain."""
    pause = threading.Event()
    while True:  # The time limit of the test ends it.
        ongoing = [
            txn
            for txn in connection_of(store).view(refresh=False).transactions.values()
            if txn.state is TxnState.ONGOING
        ]
        if len(ongoing) == STUCK:
            break
        pause.wait(0.01)
    pause.wait(0.1)


def test_calls_blocked_on_one_chain_do_not_block_other_chains() -> None:
    gate = threading.Event()
    gate.set()

    def plan(n: int, operation: str, key: str) -> Fault | None:
        if operation == "put_if_absent" and f"/{SLOW:04}/entries/" in key:
            waiting.append(1)
            return Fault.SLOW
        return None

    def wait(_: float) -> None:
        gate.wait()

    waiting: list[int] = []
    store = create_on(FaultStore(MemoryStore(), plan, sleep=wait), CHAINS)
    store.create_topic("t", partitions=PARTITIONS)
    slow = partitions_of(store, SLOW)
    others = [number for number in range(PARTITIONS) if number not in slow]
    last_of_all = partitions_of(store, CHAINS - 1)[
        0
    ]  # This one's work is done by the caller, that of the slow one is not.
    stuck = [store.producer(name) for name in _names(lambda chain: chain < SLOW)]
    free = store.producer(ids_of(store, 1))
    gate.clear()
    threads = [threading.Thread(target=_write, args=(each, [slow[0], last_of_all]), daemon=True) for each in stuck]
    for thread in threads:
        thread.start()
    _wait_until_begun(store)
    last = threading.Thread(target=_write, args=(free, others), daemon=True)
    last.start()
    last.join(240)
    went_on = not last.is_alive()
    gate.set()
    for thread in [*threads, last]:
        thread.join(240)
    store.close()
    assert waiting
    assert went_on
    assert value_counts(store) == {b"value": 2 * STUCK + len(others)}
    store.close()


class Full(Executor):
    """A background executor that never runs its tasks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


def test_full_background_executor_does_not_block_next_transaction() -> None:
    """A background task that has not started runs in the thread that needs it (REC-01)."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    process(bucket, clock, chains=CHAINS).create_topic("t", partitions=6)
    store = process(bucket, clock, background=Full)
    producer = store.producer(ids_of(store, 1))
    for _ in range(2):
        with producer.transaction() as txn:
            write_everywhere(txn, b"value")
    store.producer(ids_of(store, 1))
    assert value_counts(process(bucket, clock)) == {b"value": 12}
    assert store.verify().ok
