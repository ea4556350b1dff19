"""A Ctrl-C anywhere in a producer: nothing is lost, no result is wrong, and nothing hangs (API-08)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.interrupts import Interrupter, everywhere, places
from tests.helpers.keys import FixedRuntime
from tests.helpers.producers import buffered
from txnstore.chain.chain import Chain
from txnstore.chain.group_commit import QueuedCommand
from txnstore.chain.payload import Payload
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import InvalidTxnStateError, TxnStoreError, UnknownOutcomeError
from txnstore.producer import Producer, batches, buffer, producer, sender, topics, transaction, upload
from txnstore.storage.base import Claim
from txnstore.storage.memory import MemoryStore
from txnstore.storage.recent import RecentObjects
from txnstore.store import Store, create_on
from txnstore.threads import ForkLock

#: Where commands become entries.
SUBMITTING = places(Chain.submit, Chain._commit_round, Chain._commit, Chain._offer, Claim.resolve)
INLINED = places(Payload.place, Payload.keep_if_named, RecentObjects.keep)
#: The parts of a producer.
MODULES = (producer, sender, transaction, buffer, topics, batches, upload)


def new_store() -> Store:
    store = create_on(MemoryStore(), runtime=FixedRuntime(clock=lambda: 1_700_000_000_000, sleep=lambda _: None))
    store.create_topic("t", partitions=2)
    return store


def values(store: Store) -> list[bytes]:
    return sorted(store.scan("t").to_table()["value"].to_pylist())


def open_transaction(store: Store) -> Producer:
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"a", partition=0)
    producer.flush()
    producer.send("t", b"b", partition=0)
    producer.send("t", b"c", partition=1)
    producer.send_offsets({TopicPartition("t", 0): 7}, "g")
    return producer


def goes_on(store: Store, producer: Producer) -> None:
    """The producer is as good as new."""
    with producer.transaction() as txn:
        txn.send("t", b"z", partition=1)
    producer.close()
    assert store.transactions("ONGOING") == []


def repeat(call: Callable[[], None], producer: Producer) -> bool:
    """Repeat what was interrupted; True if it says that it is done, False if it asks for an abort and gets one."""
    try:
        call()
    except InvalidTxnStateError:
        producer.abort_transaction()
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("inlined", [False, True])
def test_commit_interrupted_anywhere_can_be_repeated(inlined: bool) -> None:
    """Also between the answer of the chain and the last line of the call: what is committed is not called aborted."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            if not inlined:
                store.alter_topic("t", config={"inline.bytes": 0})
            producer = open_transaction(store)
            interrupted = interrupter.run(producer.commit_transaction)
            committed = repeat(producer.commit_transaction, producer) if interrupted else True
            assert buffered(producer) == 0
            goes_on(store, producer)
            assert values(store) == ([b"a", b"b", b"c", b"z"] if committed else [b"z"])
            group = connection_of(store).view().groups.get("g")
            assert (group is not None and TopicPartition("t", 0) in group.offsets) == committed
            return interrupted

    assert len(list(everywhere(SUBMITTING | INLINED if inlined else SUBMITTING, attempt, modules=MODULES))) > 100


@pytest.mark.slow
def test_an_abort_that_was_interrupted_anywhere_can_be_repeated() -> None:
    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            producer = open_transaction(store)
            interrupted = interrupter.run(producer.abort_transaction)
            if interrupted:
                producer.abort_transaction()
            goes_on(store, producer)
            assert values(store) == [b"z"]
            return interrupted

    assert len(list(everywhere(places(Chain.submit, Chain._commit, Claim.resolve), attempt, modules=MODULES))) > 50


@pytest.mark.slow
def test_a_transaction_whose_sends_were_interrupted_commits_all_that_was_sent_or_has_to_be_aborted() -> None:
    """A batch that was half sealed must not lose the records that are in it already."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            producer = store.producer("id", batch_bytes=100)
            producer.begin_transaction()
            sent: list[bytes] = []

            def send() -> None:
                for number in range(9):  # The last one is uploaded by the flush itself.
                    producer.send("t", b"%d" % number, partition=number % 2)
                    sent.append(b"%d" % number)
                producer.flush()

            interrupted = interrupter.run(send)
            committed = repeat(producer.commit_transaction, producer)
            log_values = values(store)
            assert set(sent) <= set(log_values) if committed else log_values == []
            assert len(log_values) == len(set(log_values))
            goes_on(store, producer)
            return interrupted

    assert len(list(everywhere(SUBMITTING, attempt, modules=MODULES))) > 100


@pytest.mark.slow
def test_records_outside_a_transaction_that_were_interrupted_are_written_or_their_futures_fail() -> None:
    """No future waits forever, and none reports a record that is not stored at its offset."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            producer = store.producer(linger=None, batch_bytes=100)
            futures = {}

            def send() -> None:
                for number in range(9):  # The last one is uploaded by the flush itself.
                    futures[b"%d" % number] = producer.send("t", b"%d" % number, partition=number % 2)
                producer.flush()

            interrupted = interrupter.run(send)
            try:
                producer.flush()
            except (TxnStoreError, KeyboardInterrupt):
                producer.flush()
            last = producer.send("t", b"z", partition=0).result()
            table = store.scan("t").to_table()
            places = {
                value: (partition, offset)
                for value, partition, offset in zip(
                    table["value"].to_pylist(),
                    table["_partition"].to_pylist(),
                    table["_offset"].to_pylist(),
                    strict=True,
                )
            }
            assert len(places) == table.num_rows
            assert places[b"z"] == (last.partition, last.offset)
            for value, future in futures.items():
                assert future.done()
                try:
                    landed = future.result()
                except (TxnStoreError, KeyboardInterrupt):
                    assert value not in places
                else:
                    assert places[value] == (landed.partition, landed.offset)
            producer.close()
            return interrupted

    assert len(list(everywhere(SUBMITTING, attempt, modules=MODULES))) > 100


@pytest.mark.slow
def test_a_commit_whose_committing_thread_was_interrupted_is_not_acknowledged() -> None:
    """It was taken out of the queue, and not committed: its caller must not get a success."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            follower = QueuedCommand(InitProducer("follower", 1000))
            connection_of(store).chain._waiting.append(follower)
            interrupted = interrupter.run(lambda: connection_of(store).chain.submit(InitProducer("leader", 1000)))
            try:
                follower.answer()
            except UnknownOutcomeError:
                assert interrupted
            else:
                assert "follower" in connection_of(store).view().transactions
            return interrupted

    assert len(list(everywhere(places(Chain._commit_round, Chain._commit), attempt))) > 10


def test_an_interrupt_while_a_request_is_counted_leaves_no_lock_behind() -> None:
    """Else every later request of the process would wait forever."""
    lock = ForkLock()

    def hold() -> None:
        with lock.own:
            pass

    def attempt(interrupter: Interrupter) -> bool:
        interrupted = interrupter.run(hold)
        hold()
        return interrupted

    assert len(list(everywhere(places(ForkLock.own), attempt))) > 0


@pytest.mark.slow
def test_offsets_sent_after_interrupted_flush_are_committed() -> None:
    """Noting twice that a command is in the chain must not drop the offsets of the next one."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            producer = open_transaction(store)
            interrupted = interrupter.run(producer.flush)
            producer.send_offsets({TopicPartition("t", 1): 9}, "g")
            producer.commit_transaction()
            offsets = connection_of(store).view().groups["g"].offsets
            assert {tp: offset.value for tp, offset in offsets.items()} == {
                TopicPartition("t", 0): OffsetAndMetadata(7),
                TopicPartition("t", 1): OffsetAndMetadata(9),
            }
            producer.close()
            return interrupted

    assert len(list(everywhere((), attempt, modules=(sender, transaction)))) > 5


@pytest.mark.slow
def test_close_interrupted_anywhere_can_be_repeated_and_settles_all_records() -> None:
    """A future that is never settled would make its reader wait forever."""

    def attempt(interrupter: Interrupter) -> bool:
        with new_store() as store:
            producer = store.producer(linger=None)
            futures = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(4)]
            interrupted = interrupter.run(producer.close)
            with suppress(TxnStoreError):
                producer.close()
            assert all(future.done() for future in futures)
            stored = {b"%d" % number for number, future in enumerate(futures) if future.exception(0) is None}
            unknown = {
                b"%d" % number
                for number, future in enumerate(futures)
                if isinstance(future.exception(0), UnknownOutcomeError)
            }
            log_values = values(store)
            assert stored <= set(log_values) <= stored | unknown
            assert len(log_values) == len(set(log_values))
            assert interrupted or len(stored) == 4
            return interrupted

    assert len(list(everywhere((), attempt, modules=MODULES))) > 10


def test_an_unknown_place_is_refused() -> None:
    """A name that moved away must not shrink what is interrupted."""
    with pytest.raises(TypeError, match="no function of Python"):
        places(len)
    with pytest.raises(AssertionError, match=r"were not run: Producer\.abort_transaction"):
        list(everywhere(places(Producer.abort_transaction), lambda interrupter: interrupter.run(lambda: None)))
