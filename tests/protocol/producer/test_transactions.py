"""Transactions through the real producer: offsets, bounds, epochs, fencing, scopes (INIT, API, CTL, LSO, TV2, FEN)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.shell import ONE_CHAIN, T0, T1, another_process, entries, rows, sound, values
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidConfigError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerError,
    ProducerFencedError,
    StorageRefusedError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def bounds(bench: Bench, partition: int = 0) -> tuple[int, int]:
    """LSO and high watermark as another process sees them."""
    offsets = another_process(bench.store, bench.inner).offsets("t", partition)
    return offsets.last_stable, offsets.high_watermark


def begin(bench: Bench, name: str, *written: bytes) -> Producer:
    producer = bench.store.producer(name)
    producer.begin_transaction()
    for value in written:
        producer.send("t", value, partition=0)
    producer.flush()
    return producer


# Offsets, as Kafka counts them ----------------------------------------------------------------------------------------


def test_a_marker_takes_an_offset_and_aborted_records_keep_theirs(bench: Bench) -> None:
    """CTL-02: 2 records + marker, 3 aborted + marker, 1 record + marker, one plain record."""
    with bench.store.producer("id") as producer:
        for count, end in ((2, "commit_transaction"), (3, "abort_transaction"), (1, "commit_transaction")):
            producer.begin_transaction()
            futures = [producer.send("t", b"%d" % number, partition=0) for number in range(count)]
            producer.flush()
            getattr(producer, end)()
            offsets = [future.result().offset for future in futures]
            assert offsets == {2: [0, 1], 3: [3, 4, 5], 1: [7]}[count]
    with bench.store.producer(linger=None) as plain:
        assert plain.send("t", b"plain", partition=0).result().offset == 9
    assert bounds(bench) == (10, 10)
    assert [offset for _, offset, _ in rows(bench.store)] == [0, 1, 7, 9]
    assert [offset for _, offset, _ in rows(bench.store, isolation="read_uncommitted")] == [0, 1, 3, 4, 5, 7, 9]


def test_each_partition_of_a_transaction_gets_a_marker_of_its_own(bench: Bench) -> None:
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"a", partition=0)
        txn.send("t", b"b", partition=1)
        txn.send("t", b"c", partition=1)
    assert [bounds(bench, partition) for partition in range(3)] == [(2, 2), (3, 3), (0, 0)]


def test_offset_returned_inside_the_transaction_is_final(bench: Bench) -> None:
    """API-13, with another producer in between."""
    producer = begin(bench, "id")
    first = producer.send("t", b"a", partition=0).result().offset
    with bench.store.producer(linger=None) as other:
        between = other.send("t", b"between", partition=0).result().offset
    second = producer.send("t", b"b", partition=0).result().offset
    producer.commit_transaction()
    assert (first, between, second) == (0, 1, 2)
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"between"), (0, 2, b"b")]


def test_two_transactions_interleave_and_end_differently(bench: Bench) -> None:
    """API-15, LSO-01: the LSO stays below the earliest open transaction, and the aborted one leaves nothing."""
    a, b = begin(bench, "a", b"a0"), begin(bench, "b", b"b0")
    a.send("t", b"a1", partition=0).result()
    b.send("t", b"b1", partition=0).result()
    assert bounds(bench) == (0, 4)
    assert values(bench.store) == []
    b.abort_transaction()
    assert bounds(bench) == (0, 5)
    a.commit_transaction()
    assert bounds(bench) == (6, 6)
    assert values(bench.store) == [b"a0", b"a1"]


@pytest.mark.usefixtures("own_objects")
@ONE_CHAIN
def test_a_commit_of_many_partitions_is_one_entry(bench: Bench) -> None:
    producer = bench.store.producer("id")
    producer.begin_transaction()
    for number in range(3):
        producer.send("t", b"x", partition=number)
    producer.send_offsets({T0: 1}, "group")
    before = len(entries(bench.inner))
    connection_of(bench.store).counts.reset()
    producer.commit_transaction()
    assert sorted(bench.kinds()) == ["put"] * 3 + ["put_if_absent"]
    assert len(entries(bench.inner)) == before + 1


# Larger than the buffer -----------------------------------------------------------------------------------------------


def test_a_transaction_may_be_larger_than_the_buffer(bench: Bench) -> None:
    """Its first batches are registered while it is open: read_uncommitted sees them, and the LSO stays below."""
    producer = bench.store.producer("id", batch_bytes=1_000, buffer_bytes=4_000)
    producer.begin_transaction()
    sent = [b"%d" % number + b"x" * 200 for number in range(200)]
    for value in sent:
        producer.send("t", value, partition=0)
    early = values(bench.store, isolation="read_uncommitted")
    assert early
    assert early == sent[: len(early)]
    assert values(bench.store) == []
    assert bounds(bench)[0] == 0
    assert sound(bench.store).transactions["id"].state is TxnState.ONGOING
    producer.commit_transaction()
    assert values(bench.store) == sent
    assert bounds(bench) == (201, 201)


def test_a_large_transaction_that_is_aborted_leaves_nothing(bench: Bench) -> None:
    producer = bench.store.producer("id", batch_bytes=1_000, buffer_bytes=4_000)
    producer.begin_transaction()
    for number in range(200):
        producer.send("t", b"%d" % number + b"x" * 200, partition=number % 3)
    producer.abort_transaction()
    assert values(bench.store) == []
    assert len(values(bench.store, isolation="read_uncommitted")) > 0
    assert sound(bench.store).partitions[T0].open_txns.keys() == set()


def test_more_than_five_batches_of_a_partition_are_registered_in_rounds(bench: Bench) -> None:
    """A producer window remembers five batches, so no entry has more of one partition (SEQ-03, SEQ-13)."""
    producer = bench.store.producer("id", batch_bytes=1)
    producer.begin_transaction()
    futures = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(24)]
    producer.commit_transaction()
    for entry in entries(bench.inner):
        events = [event for event in entry.events if event.type == "BatchesAppended"]
        appended = [rows.partition for event in events for rows in event.batches]
        assert all(appended.count(partition) <= 5 for partition in (0, 1))
    assert [future.result().offset for future in futures] == [number // 2 for number in range(24)]
    assert values(bench.store) == [b"%d" % number for number in (*range(0, 24, 2), *range(1, 24, 2))]


# Fencing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["flush", "commit_transaction", "abort_transaction", "result"])
def test_a_zombie_is_fenced_in_every_call_that_reaches_the_chain(bench: Bench, call: str) -> None:
    """FEN-01, TST-02: FEN: the successor has aborted what the zombie left; whatever that does next, nothing of it
    counts.
    """
    zombie = begin(bench, "id", b"zombie")
    future = zombie.send("t", b"zombie again", partition=0)
    with another_process(bench.store, bench.inner) as other, other.producer("id") as successor:
        with successor.transaction() as txn:
            txn.send("t", b"successor", partition=0)
        with pytest.raises(ProducerFencedError, match=r"'id'.*fenced.*epoch"):
            future.result() if call == "result" else getattr(zombie, call)()
    expected = TransactionAbortedError if call == "abort_transaction" else ProducerFencedError
    assert isinstance(future.exception(), expected)
    with pytest.raises(ProducerFencedError):
        zombie.begin_transaction()
    zombie.close()
    assert values(bench.store) == [b"successor"]
    sound(bench.store)


def test_api_11_fenced_producer_closes_without_an_error(bench: Bench) -> None:
    """API-11, FEN-09: who fenced it has aborted what was open, and its records have failed."""
    zombie = begin(bench, "id", b"zombie")
    future = zombie.send("t", b"zombie again", partition=0)
    with another_process(bench.store, bench.inner) as other, other.producer("id"):
        zombie.close()
    assert isinstance(future.exception(), ProducerError)
    assert repr(zombie).endswith("CLOSED>")
    assert values(bench.store) == []
    sound(bench.store)


def test_init_aborts_the_open_transaction_of_the_earlier_instance(bench: Bench) -> None:
    """INIT-04: when the producer is there, the LSO is free."""
    begin(bench, "id", b"left")
    assert bounds(bench) == (0, 1)
    bench.store.producer("id")
    assert bounds(bench) == (2, 2)


def test_another_transactional_id_is_not_fenced(bench: Bench) -> None:
    a = begin(bench, "a", b"a")
    bench.store.producer("b")
    a.commit_transaction()
    assert values(bench.store) == [b"a"]


# The scope ------------------------------------------------------------------------------------------------------------


def test_a_scope_commits_at_its_end(bench: Bench) -> None:
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        assert txn is producer
        txn.send("t", b"x", partition=0)
    assert values(bench.store) == [b"x"]


def test_a_scope_aborts_if_its_block_raises(bench: Bench) -> None:
    producer = bench.store.producer("id")
    with pytest.raises(ValueError, match="mine") as raised, producer.transaction() as txn:  # noqa: PT012
        txn.send("t", b"x", partition=0)
        txn.flush()
        raise ValueError("mine")
    assert not hasattr(raised.value, "__notes__")
    assert repr(producer).endswith("READY>")
    assert values(bench.store) == []
    assert bounds(bench) == (2, 2)


@pytest.mark.usefixtures("own_objects")
def test_a_scope_aborts_if_its_commit_is_refused_and_raises_why(bench: Bench) -> None:
    """API-05: one upload of several fails, so nothing of the transaction is committed."""
    producer = bench.store.producer("id")
    scope = producer.transaction()
    scope.__enter__()
    for number in range(3):
        producer.send("t", b"x", partition=number)
    with bench.away("topics/t/1/"), pytest.raises(StorageRefusedError, match="topics/t/1/"):
        scope.__exit__(None, None, None)
    assert repr(producer).endswith("READY>")
    assert values(bench.store) == []
    with producer.transaction() as txn:
        txn.send("t", b"again", partition=1)
    assert values(bench.store) == [b"again"]


def test_a_scope_whose_abort_fails_too_shows_the_first_error_with_a_note(bench: Bench) -> None:
    producer = bench.store.producer("id")
    scope = producer.transaction()
    scope.__enter__().send("t", b"x", partition=0)
    producer.flush()
    error = ValueError("mine")
    with bench.away():
        scope.__exit__(ValueError, error, None)
    assert [note.partition(":")[0] for note in error.__notes__] == ["the transaction could not be aborted either"]
    producer.abort_transaction()
    assert values(bench.store) == []


def test_a_scope_of_a_zombie_raises_that_it_is_fenced(bench: Bench) -> None:
    producer = bench.store.producer("id")
    with pytest.raises(ProducerFencedError), producer.transaction() as txn:  # noqa: PT012
        txn.send("t", b"x", partition=0)
        bench.store.producer("id")
    assert repr(producer).endswith("FATAL_ERROR>")
    assert values(bench.store) == []


def test_a_scope_cannot_be_entered_inside_another(bench: Bench) -> None:
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        with pytest.raises(InvalidTxnStateError, match="commit or abort it first"):
            producer.transaction().__enter__()
        txn.send("t", b"x", partition=0)
    assert values(bench.store) == [b"x"]


# Failures inside ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_objects")  # A flush may write batches that the pool has not begun as one segment.
def test_one_failed_upload_of_a_hundred_sends_fails_the_commit(bench: Bench) -> None:
    """END-10, API-05, with the failed batch known before the commit."""
    producer = bench.store.producer("id", batch_bytes=1)
    producer.begin_transaction()
    with bench.away("topics/t/2/"):
        partitions = [2 if number == 57 else number % 2 for number in range(100)]
        futures = [producer.send("t", b"x", partition=partition) for partition in partitions]
        with pytest.raises(StorageRefusedError):
            producer.commit_transaction()
    assert isinstance(futures[57].exception(), StorageRefusedError)
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(bench.store) == []
    assert all(future.done() for future in futures)


def test_a_topic_that_is_deleted_during_the_transaction_fails_its_commit(bench: Bench) -> None:
    bench.store.create_topic("gone")
    producer = begin(bench, "id", b"kept?")
    future = producer.send("gone", b"x")
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("gone")
    with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
        producer.commit_transaction()
    assert isinstance(future.exception(), UnknownTopicOrPartitionError)
    producer.abort_transaction()
    assert values(bench.store) == []


def test_a_topic_that_was_deleted_after_its_records_were_written_does_not_stop_the_others(bench: Bench) -> None:
    """END-07: the topic takes its part with it, the rest of the transaction is committed."""
    bench.store.create_topic("gone")
    producer = begin(bench, "id", b"kept")
    producer.send("gone", b"x").result()
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("gone")
    producer.commit_transaction()
    assert values(bench.store) == [b"kept"]


def test_records_of_deleted_topic_are_not_written_to_recreated_one(bench: Bench) -> None:
    """They have the old schema: the new topic could not be read any more."""
    bench.store.create_topic("same", schema=pa.schema([("a", pa.int64())]))
    producer = bench.store.producer(linger=None)
    future = producer.send("same", {"a": 1})
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("same")
        other.create_topic("same", schema=pa.schema([("b", pa.string())]))
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        producer.flush()
    assert isinstance(future.exception(), UnknownTopicOrPartitionError)
    assert producer.send("same", {"b": "fits"}).result().offset == 0
    assert another_process(bench.store).scan("same").to_table()["b"].to_pylist() == ["fits"]


def test_clock_far_ahead_does_not_block_other_producers(bench: Bench) -> None:
    """OBJ-05: the time of the chain went ahead with one writer's clock, and never goes back."""
    with another_process(bench.store, bench.inner) as wrong:
        connection_of(wrong).runtime.clock.advance(30 * 86_400_000)  # type: ignore[attr-defined]
        wrong.create_topic("by the wrong clock".replace(" ", "-"))
    connection_of(bench.store).view()
    with bench.store.producer("id") as producer, producer.transaction() as txn:
        txn.send("t", b"x", partition=0)
    assert values(bench.store) == [b"x"]


# Identity -------------------------------------------------------------------------------------------------------------


def test_timeout_is_stored_in_the_chain(bench: Bench) -> None:
    bench.store.producer("id", transaction_timeout=12.5)
    assert sound(bench.store).transactions["id"].timeout_ms == 12_500


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(0, InvalidTxnTimeoutError), (-1, InvalidTxnTimeoutError), (900.001, InvalidTxnTimeoutError)]
    + [(value, InvalidConfigError) for value in ("1", None, float("nan"), float("inf"))],
)
def test_timeout_out_of_range_is_refused(bench: Bench, timeout: float, error: type[Exception]) -> None:
    before = entries(bench.inner)
    with pytest.raises(error, match=r"time-?out"):
        bench.store.producer("id", transaction_timeout=timeout)
    assert entries(bench.inner) == before


@pytest.mark.parametrize("name", ["", "x" * 250, "a\nb", "\x00", 5, b"id"], ids=repr)
def test_a_transactional_id_that_is_not_legal_grants_nothing(bench: Bench, name: str) -> None:
    before = entries(bench.inner)
    with pytest.raises(InvalidConfigError, match="transactional_id"):
        bench.store.producer(name)
    assert entries(bench.inner) == before


def test_any_printable_transactional_id_is_accepted(bench: Bench) -> None:
    name = "Ünïcode/../ with 'quotes' and \"more\" 🦭"
    with bench.store.producer(name) as producer, producer.transaction() as txn:
        txn.send("t", b"x", partition=1)
    assert [txn.transactional_id for txn in bench.store.transactions()] == [name]
    assert sound(bench.store).partitions[T1].high_watermark == 2
