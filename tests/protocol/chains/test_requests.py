"""What a transaction across chains costs, and what of it is done at once (OBJ-14; the budgets of the design).

Until the commit returns: the packs, AddPartitions, one entry in each other chain, the decision. After it: the
markers, one entry in each other chain, and the completion. No GET, no LIST.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from tests.harness.executors import DeferredExecutor
from tests.helpers import keys
from tests.helpers.chains import groups_of, ids_of, partitions_of, process, write_everywhere
from tests.helpers.connections import connection_of
from tests.helpers.shell import GatedStore, entries
from txnstore.coordinator.completion import LINGER
from txnstore.core.model import TopicPartition
from txnstore.core.state import Observed
from txnstore.core.transactions.events import PartitionsAdded, TxnCompleted
from txnstore.core.transactions.model import DECIDED, TxnState
from txnstore.errors import StorageError, UnstableOffsetCommitError
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults, on
from txnstore.threads import Workers

CHAINS, PARTITIONS = 4, 8
HOME = 1
OTHERS = [0, 2, 3]


class Bench:
    """A store of four chains, and the requests of what is done with it."""

    def __init__(self, sleep: Callable[[float], None] = lambda _: None) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryStore(clock=self.clock)
        self.faults = FaultStore(self.bucket, no_faults)
        self.background = DeferredExecutor()
        process(self.bucket, self.clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
        self.store = process(self.faults, self.clock, background=lambda: self.background, sleep=sleep)
        self.producer = self.store.producer(ids_of(self.store, HOME))
        self.costs()

    def costs(self) -> list[str]:
        """The requests since the last call, in order: ``segment``, or the number of the chain whose entry was put."""
        costs = []
        for operation, key in connection_of(self.store).counts.log:
            parts = key.split("/")
            written = operation in {"put", "put_if_absent"}
            costs.append(("segment" if parts[0] == "topics" else str(int(parts[2]))) if written else operation)
        connection_of(self.store).counts.reset()
        return costs


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_transaction_across_chains(bench: Bench) -> None:
    """A pack for each chain, and K + 2 PUTs until the commit returns, K the other chains; 2 K + 3 entries in all."""
    bench.producer.begin_transaction()
    write_everywhere(bench.producer, b"value", partitions=PARTITIONS)
    bench.producer.send_offsets({TopicPartition("t", 0): 1}, groups_of(bench.store, 2))
    bench.producer.commit_transaction()
    costs = bench.costs()
    assert costs[:CHAINS] == ["segment"] * CHAINS
    assert costs[CHAINS] == str(HOME)
    assert sorted(costs[CHAINS + 1 : -1]) == [str(chain) for chain in OTHERS]
    assert costs[-1] == str(HOME)
    assert bench.background.run_waiting() == 1
    markers = bench.costs()
    assert sorted(markers) == [str(chain) for chain in OTHERS]
    assert bench.background.run_waiting() == 1
    assert bench.costs() == [str(HOME)]
    assert bench.background.run_waiting() == 0
    assert len(costs) + len(markers) + 1 == CHAINS + 2 * len(OTHERS) + 3


def test_the_next_transaction_carries_the_completion_of_the_one_before(bench: Bench) -> None:
    """2 K + 2 entries for each but the last one: the completion shares the entry that adds the partitions."""
    transactions = 5
    for _ in range(transactions):
        assert bench.background.run_waiting() <= 2  # Of the transaction before: its markers, or nothing that is left.
        with bench.producer.transaction() as txn:
            write_everywhere(txn, b"value", partitions=PARTITIONS)
    costs = [cost for cost in bench.costs() if cost != "segment"]
    bench.background.run_all()
    costs += bench.costs()
    assert len(costs) == transactions * (2 * len(OTHERS) + 2) + 1
    assert set(costs) == {str(chain) for chain in range(CHAINS)}
    kinds = [{type(event) for event in entry.events} - {Observed} for entry in entries(bench.bucket, HOME)]
    shared = [types for types in kinds if TxnCompleted in types]
    assert shared == [{TxnCompleted, PartitionsAdded}] * (transactions - 1) + [{TxnCompleted}]
    assert bench.store.verify(deep=True).ok


def test_any_entry_of_the_chain_carries_a_completion(bench: Bench) -> None:
    write(bench)
    bench.costs()
    bench.background.run_waiting()
    bench.costs()
    bench.store.producer(ids_of(bench.store, HOME, 1))
    assert bench.costs() == [str(HOME)]
    assert bench.background.run_all() == 1
    assert bench.costs() == []
    assert _state(bench) is TxnState.COMPLETE_COMMIT


def test_a_completion_waits_a_moment_for_an_entry_only_if_none_has_carried_it() -> None:
    pauses: list[float] = []
    bench = Bench(pauses.append)
    write(bench)
    bench.background.run_all()
    assert pauses == [LINGER]
    write(bench)
    bench.background.run_waiting()
    bench.store.producer(ids_of(bench.store, HOME, 1))
    bench.background.run_all()
    assert pauses == [LINGER]


@pytest.mark.parametrize("is_back", [True, False])
def test_a_completion_that_was_lost_with_its_entry_is_repeated(
    bench: Bench, caplog: pytest.LogCaptureFixture, is_back: bool
) -> None:
    """The entry of another producer takes it along and fails; the next transaction of the id completes it then."""
    write(bench)
    bench.background.run_waiting()
    bench.faults.plan = on(Fault.UNAVAILABLE_503, "put_if_absent", times=None)
    with pytest.raises(StorageError):
        bench.store.producer(ids_of(bench.store, HOME, 1))
    if is_back:
        bench.faults.plan = no_faults
    bench.background.run_all()
    assert ("background work on a transaction failed" in caplog.text) is not is_back
    bench.faults.plan = no_faults
    assert (_state(bench) is TxnState.COMPLETE_COMMIT) is is_back
    write(bench)
    bench.background.run_all()
    assert _state(bench) is TxnState.COMPLETE_COMMIT
    assert bench.store.verify(deep=True).ok


class _Watched(Workers):
    """A thread pool that tells when it is shut down."""

    def __init__(self) -> None:
        super().__init__(2)
        self.closing = threading.Event()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closing.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


def test_closing_a_store_waits_for_a_completion_whose_markers_are_on_their_way() -> None:
    """With threads: nothing is left to a recovery, and to no thread that the close does not know."""
    clock = ManualClock()
    gated = GatedStore(MemoryStore(clock=clock))
    process(gated, clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
    pools: list[_Watched] = []

    def background() -> _Watched:
        pools.append(_Watched())
        return pools[-1]

    store = open_on(gated, runtime=Runtime(clock, lambda _: None, random.Random(0), background=background))
    name = ids_of(store, HOME)
    producer = store.producer(name)
    producer.begin_transaction()
    write_everywhere(producer, b"value", partitions=PARTITIONS)
    producer.flush()
    marker = gated.hold("put_if_absent", keys.entries(0), times=1)
    producer.commit_transaction()
    marker.wait_for()
    close = threading.Thread(target=connection_of(store).close)
    close.start()
    assert pools[0].closing.wait(240)
    marker.open()
    close.join(240)
    assert len(pools) == 1
    transaction = connection_of(process(gated, clock)).view().transactions[name]
    assert transaction.state is TxnState.COMPLETE_COMMIT


def write(bench: Bench) -> None:
    """Commit a transaction across all chains; its markers and its completion are left for the background."""
    with bench.producer.transaction() as txn:
        write_everywhere(txn, b"value", partitions=PARTITIONS)


def _state(bench: Bench) -> TxnState:
    return connection_of(bench.store).view().transactions[ids_of(bench.store, HOME)].state


@pytest.mark.usefixtures("own_objects")
def test_a_transaction_inside_the_coordinators_chain_is_one_entry(bench: Bench) -> None:
    """Two round trips: the segments, the entry. Nothing is left for later."""
    own = partitions_of(bench.store, HOME)
    bench.costs()
    with bench.producer.transaction() as txn:
        for number in own:
            txn.send("t", b"value", partition=number)
        txn.send_offsets({TopicPartition("t", 0): 1}, groups_of(bench.store, HOME))
    assert bench.costs() == ["segment"] * len(own) + [str(HOME)]
    assert bench.background.run_all() == 0


def test_a_partition_that_was_added_is_not_added_again(bench: Bench) -> None:
    """ADD-08: a second flush into the same partitions costs the coordinator's chain nothing."""
    bench.producer.begin_transaction()
    (number, *_) = partitions_of(bench.store, 0)
    bench.costs()
    for expected in (["segment", str(HOME), "0"], ["segment", "0"], ["segment", "0"]):
        bench.producer.send("t", b"value", partition=number)
        bench.producer.flush()
        assert bench.costs() == expected
    bench.producer.commit_transaction()
    assert bench.costs() == [str(HOME)]


@pytest.mark.usefixtures("own_objects")
def test_batches_without_transaction_go_to_all_chains_concurrently(bench: Bench) -> None:
    producer = bench.store.producer(linger=None)
    bench.costs()
    for number in range(PARTITIONS):
        producer.send("t", b"value", partition=number)
    producer.flush()
    costs = bench.costs()
    assert costs[:PARTITIONS] == ["segment"] * PARTITIONS
    assert sorted(costs[PARTITIONS:]) == [str(chain) for chain in range(CHAINS)]


def test_init_is_one_entry(bench: Bench) -> None:
    bench.store.producer(ids_of(bench.store, 3))
    assert bench.costs() == ["3"]


def test_idle_refresh_is_one_get_per_chain(bench: Bench) -> None:
    """A poll looks at the chains of its partitions only."""
    connection_of(bench.store).view()
    assert bench.costs() == ["get"] * CHAINS
    consumer = bench.store.consumer()
    consumer.assign([("t", number) for number in partitions_of(bench.store, 3)])
    consumer.poll()
    bench.costs()
    consumer.poll()
    assert bench.costs() == ["get"]


def held(store: GatedStore, chains: list[int], work: threading.Thread) -> None:
    """The next entries of these chains are on their way at the same time: none is answered before all have come."""
    gates = [store.hold("put_if_absent", keys.entries(chain), times=1) for chain in chains]
    if not work.is_alive():
        work.start()
    for gate in gates:
        gate.wait_for()
    for gate in gates:
        gate.open()


def test_batches_and_markers_are_written_in_parallel() -> None:
    """END-07: with threads, all other chains get theirs at the same time."""
    clock = ManualClock()
    gated = GatedStore(MemoryStore(clock=clock))
    process(gated, clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
    with open_on(CountingStore(gated), runtime=Runtime(clock, lambda _: None, random.Random(0))) as store:
        producer = store.producer(ids_of(store, HOME))
        producer.begin_transaction()
        write_everywhere(producer, b"value", partitions=PARTITIONS)
        commit = threading.Thread(target=_commit, args=(producer,))
        held(gated, OTHERS, commit)
        held(gated, OTHERS, commit)
        commit.join(240)
        assert _completed(store, ids_of(store, HOME))


def _commit(producer: Producer) -> None:
    producer.commit_transaction()


def _completed(store: Store, name: str) -> bool:
    store.producer(name)
    return connection_of(store).view().transactions[name].state not in DECIDED


def test_partitions_are_added_during_uploads() -> None:
    """ADD-01: AddPartitions overlaps with the uploads, so it costs no round trip of its own."""
    clock = ManualClock()
    gated = GatedStore(MemoryStore(clock=clock))
    process(gated, clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
    with open_on(CountingStore(gated), runtime=Runtime(clock, lambda _: None, random.Random(0))) as store:
        producer = store.producer(ids_of(store, HOME))
        producer.begin_transaction()
        write_everywhere(producer, b"value", partitions=PARTITIONS)
        segments = gated.hold("put", "topics/")
        adding = gated.hold("put_if_absent", keys.entries(HOME), times=1)
        commit = threading.Thread(target=_commit, args=(producer,))
        commit.start()
        segments.wait_for(CHAINS)
        adding.wait_for()
        adding.open()
        segments.open()
        commit.join(240)
        assert _completed(store, ids_of(store, HOME))


def test_failed_upload_aborts_added_partitions() -> None:
    """The partitions are in the transaction, the records are not: an abort ends it in all chains."""
    clock = ManualClock()
    faults = FaultStore(MemoryStore(clock=clock), no_faults)
    process(faults, clock, chains=CHAINS).create_topic("t", partitions=PARTITIONS)
    store = process(faults, clock)
    producer = store.producer(ids_of(store, HOME), delivery_timeout=0)
    producer.begin_transaction()
    write_everywhere(producer, b"value", partitions=PARTITIONS)
    faults.plan = on(Fault.UNAVAILABLE_503, "put", key_contains="topics/")
    with pytest.raises(StorageError):
        producer.commit_transaction()
    assert connection_of(store).view().transactions[ids_of(store, HOME)].state is TxnState.ONGOING
    producer.abort_transaction()
    assert connection_of(store).view().transactions[ids_of(store, HOME)].state is TxnState.COMPLETE_ABORT
    assert store.verify(deep=True).ok


def test_recovery_without_work_is_one_get_per_chain(bench: Bench) -> None:
    """The copies of the catalog are compared as they were read, and read again only if one is late."""
    bench.store.recover()
    assert bench.costs() == ["get"] * CHAINS


@pytest.mark.parametrize(("transactional", "announced"), [(True, 1), (False, 0)])
def test_partitions_of_other_chains_are_added_beside_the_uploads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, transactional: bool, announced: int
) -> None:
    """ADD-01: begun in the background before the flush waits for its uploads; no transaction has nothing to add."""
    tasks: list[object] = []
    submit = bench.background.submit

    def counted(task: Callable[[], object], /, *args: object) -> object:
        tasks.append(task)
        return submit(task, *args)

    producer = bench.producer if transactional else bench.store.producer()
    if transactional:
        producer.begin_transaction()
    write_everywhere(producer, b"value", partitions=PARTITIONS)
    monkeypatch.setattr(bench.background, "submit", counted)
    producer.flush()
    assert len(tasks) == announced


def test_an_init_waits_for_the_completion_that_its_process_has_begun(bench: Bench) -> None:
    """INIT-05: the markers are written once, and the completion is in the entry of the init; nothing is read."""
    bench.producer.begin_transaction()
    write_everywhere(bench.producer, b"value", partitions=PARTITIONS)
    bench.producer.commit_transaction()
    bench.costs()
    bench.store.producer(bench.producer.transactional_id)
    costs = bench.costs()
    assert sorted(costs[:-1]) == [str(chain) for chain in OTHERS]
    assert costs[-1] == str(HOME)
    bench.background.run_all()
    assert bench.costs() == []


def test_committed_reads_the_chains_of_the_catalog_and_of_the_group(bench: Bench) -> None:
    """Not those of others; where an open transaction holds the offset, also the one that decides it."""
    tp, group = TopicPartition("t", 0), groups_of(bench.store, 2)
    consumer = bench.store.consumer(group=group)
    bench.costs()
    assert consumer.committed(tp) is None
    read = {int(key.split("/")[2]) for kind, key in _requests(bench) if kind == "get" and "/entries/" in key}
    assert read == {0, 2}
    bench.producer.begin_transaction()
    bench.producer.send_offsets({tp: 1}, group)
    bench.producer.flush()
    bench.costs()
    with pytest.raises(UnstableOffsetCommitError):
        consumer.committed(tp, timeout=0)
    read = {int(key.split("/")[2]) for kind, key in _requests(bench) if kind == "get" and "/entries/" in key}
    assert read == {0, 2, HOME}


def _requests(bench: Bench) -> list[tuple[str, str]]:
    counts = connection_of(bench.store).counts
    requests = list(counts.log)
    counts.reset()
    return requests
