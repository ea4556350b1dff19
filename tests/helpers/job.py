"""A small exactly-once job, to be killed anywhere and started again: what it leaves behind must be exact.

Step *i* writes records to all partitions of ``out`` and commits offset *i*+1 of its input in the same transaction, so a
restarted job continues where the last committed one ended. Between the steps it aborts, flushes early, appends without
a transaction, compacts and vacuums: everything that writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.helpers.connections import connection_of
from txnstore.core.groups.offsets import committed
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.errors import UnknownOutcomeError
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.store import Store, create_on, open_on

STEPS = 4
PARTITIONS = 2
INPUT = TopicPartition("in", 0)


@dataclass
class Ledger:
    """What the store returned to callers, over all lives of the job."""

    steps: int = 0
    plain: list[bytes] = field(default_factory=list)
    attempted: set[bytes] = field(default_factory=set)


def run_job(objects: ObjectStore, runtime: Runtime, ledger: Ledger, chains: int = 1) -> None:
    """One life of the job: from wherever it was to its end."""
    store = create_on(objects, chains, exist_ok=True, runtime=runtime)
    try:
        _run(store, ledger)
    finally:
        store.close()


def _run(store: Store, ledger: Ledger) -> None:
    store.create_topic("in", exist_ok=True)
    store.create_topic("out", partitions=PARTITIONS, exist_ok=True)
    store.create_topic("plain", exist_ok=True)
    store.producer(transactional_id="other").close()  # Aborts what an earlier life may have left open.
    with store.producer(transactional_id="job") as producer:
        position = committed(connection_of(store).view(), "job", INPUT)
        for step in range(position.offset if position else 0, STEPS):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send("out", b"%d" % step, key=b"%d" % partition, partition=partition)
                if step == 0:
                    producer.flush()
            producer.send_offsets({INPUT: step + 1}, "job")
            _until_known(producer.commit_transaction)
            ledger.steps = max(ledger.steps, step + 1)
            _between(store, step, ledger)


def _until_known(call: Callable[[], object]) -> None:
    """Call as a caller should: after an unknown outcome again."""
    for _ in range(3):
        try:
            call()
        except UnknownOutcomeError:
            continue
        return
    call()


def _between(store: Store, step: int, ledger: Ledger) -> None:
    if step == 0:
        with store.producer(transactional_id="other") as other:
            other.begin_transaction()
            other.send("out", b"aborted", partition=0)
            other.flush()
            other.abort_transaction()
    if step == 1:
        with store.producer(linger=None) as plain:
            for number in range(2):
                value = b"plain-%d-%d" % (plain.producer_id, number)
                ledger.attempted.add(value)
                plain.send("plain", value).result()
                ledger.plain.append(value)
    if step == 2:
        store.compact()
        store.checkpoint()
        _until_known(partial(store.vacuum, older_than=0.0))


def check_result(objects: ObjectStore, runtime: Runtime, ledger: Ledger, *, finished: bool) -> None:
    """Everything acknowledged is there, nothing twice, nothing torn, and every invariant holds."""
    store = open_on(objects, runtime=runtime)
    state = connection_of(store).view()
    assert check_view(state) == []
    report = store.verify(deep=True)
    assert report.ok, report.violations
    position = committed(state, "job", INPUT, require_stable=False)
    done = position.offset if position else 0
    assert done >= ledger.steps
    if finished:
        assert done == STEPS
    if "out" in state.topics:
        table = store.scan("out").to_table()
        rows = sorted(zip(table["_partition"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert rows == sorted((number, b"%d" % step) for step in range(done) for number in range(PARTITIONS))
    if "plain" in state.topics:
        values = store.scan("plain").to_table()["value"].to_pylist()
        assert len(values) == len(set(values))
        assert set(ledger.plain) <= set(values) <= ledger.attempted
    if finished:
        assert all(not partition.open_txns for partition in state.partitions.values())
    store.close()
