"""What ``docs/kafka-differences.md`` says does not exist here, and small differences that no other test shows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.core import World
from txnstore.catalog.settings import TopicConfig
from txnstore.core.log.commands import Append
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.transactions.model import TxnState
from txnstore.errors import (
    InvalidConfigError,
    InvalidTopicError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with create_on(MemoryStore(clock=clock), runtime=Runtime(clock=clock)) as store:
        store.create_topic("t", partitions=3)
        yield store


def _parameters(method: object) -> set[str]:
    return set(inspect.signature(method).parameters)  # type: ignore[arg-type]


def test_settings_that_weaken_a_producer_do_not_exist() -> None:
    """API-12: there is nothing to contradict: each producer is idempotent, and each acknowledged record durable."""
    names = {"acks", "retries", "max_in_flight_requests_per_connection", "enable_idempotence", "enable_auto_commit"}
    assert not names & _parameters(Store.producer)


def test_producers_have_no_interceptors_and_no_partitioners() -> None:
    assert not {"interceptors", "partitioner", "serializer"} & _parameters(Store.producer)
    assert "partition" in _parameters(txnstore.Producer.send)


def test_a_producer_is_initialized_by_its_constructor(store: Store) -> None:
    """INIT-16: so it cannot be initialized twice; a second producer of the id is another instance."""
    first = store.producer("id")
    assert not hasattr(first, "init_transactions")
    assert store.producer("id").epoch == first.epoch + 1


def test_there_is_no_wire_protocol(store: Store) -> None:
    """A store is opened by its URL; no call takes the address of a server."""
    assert not {"bootstrap_servers", "address", "host"} & (_parameters(txnstore.open) | _parameters(txnstore.create))


def test_max_message_bytes_bounds_a_record_not_a_batch(store: Store) -> None:
    """Kafka bounds the batch, which its producer splits; here a batch may be larger (API-18)."""
    store.create_topic("small", config={"max.message.bytes": 100})
    with store.producer(linger=None) as producer:
        for _ in range(10):
            producer.send("small", b"x" * 90)
        with pytest.raises(RecordTooLargeError):
            producer.send("small", b"x" * 101)
    assert store.scan("small").to_table().num_rows == 10


def test_compression_levels_are_refused_by_name() -> None:
    for codec in ("gzip", "lz4", "zstd"):
        with pytest.raises(InvalidConfigError, match=f"compression.{codec}.level is a setting of Kafka"):
            TopicConfig.from_mapping({f"compression.{codec}.level": 3})


def test_records_without_a_key_stay_on_a_partition_for_a_batch(store: Store) -> None:
    """KIP-480 with the batch size of this producer: 16 MiB, not 16 KiB."""
    with store.producer(linger=None) as producer:
        futures = [producer.send("t", b"x" * 50_000) for _ in range(20)]
    assert len({future.result().partition for future in futures}) == 1


def test_older_than_lists_open_transactions_only(store: Store, clock: ManualClock) -> None:
    """ADM-01: Kafka's filter also lists transactions that have ended, by the time at which they began."""
    for name in ("open", "ended"):
        producer = store.producer(name)
        producer.begin_transaction()
        producer.send("t", b"x")
        producer.flush()
    producer.commit_transaction()
    clock.advance(10_000)
    assert [txn.transactional_id for txn in store.transactions(older_than=5)] == ["open"]


def test_a_gap_in_the_sequence_is_abortable_and_the_producer_continues(store: Store) -> None:
    """SEQ-03: a twin of its identity has taken the sequences; the early designs end the producer, KIP-360 does not."""
    producer, tp = store.producer("id"), TopicPartition("t", 0)
    producer.begin_transaction()
    producer.send("t", b"1", partition=0)
    producer.flush()
    open_now = store.transaction("id")
    identity = ProducerIdentity(open_now.producer_id, open_now.epoch, "id")
    connection_of(store).submit(Append(identity, (World().batch(3, tp, 1),)))
    producer.send("t", b"2", partition=0)
    with pytest.raises(OutOfOrderSequenceError) as refused:
        producer.commit_transaction()
    assert refused.value.abortable
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"3", partition=0)
    assert [record["value"] for record in store.scan("t").to_table().to_pylist()] == [b"3"]


def test_producer_ids_are_shown(store: Store) -> None:
    """ADM-03: a description of the early design keeps them from users; Kafka's DescribeProducers shows them, too."""
    producer = store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"x", partition=0)
    producer.flush()
    (shown,) = store.producers("t", 0)
    assert shown.producer_id == store.transaction("id").producer_id == store.dump_log("t", 0).lines[0].producer_id
    producer.abort_transaction()


def test_a_consumer_of_some_partitions_sees_its_part_of_a_transaction(store: Store) -> None:
    """CON-10: as in Kafka, atomic is what a reader of all partitions sees."""
    with store.producer("id") as producer, producer.transaction() as txn:
        for partition in range(3):
            txn.send("t", b"%d" % partition, partition=partition)
    with store.consumer(topics=[]) as consumer:
        consumer.assign([TopicPartition("t", 1)])
        assert [record.value for record in consumer.poll(timeout=0)] == [b"1"]
    assert len(store.scan("t").to_table()) == 3


def test_offsets_by_name_are_those_of_the_topic_that_exists(store: Store) -> None:
    """OFF-18: also for a producer that has sent to the topic before it was deleted and created again."""
    producer = store.producer("id")
    with producer.transaction() as txn:
        txn.send("t", b"x", partition=0)
    store.delete_topic("t")
    store.create_topic("t")
    tp = TopicPartition("t", 0)
    with producer.transaction() as txn:
        txn.send_offsets({tp: 7}, "g")
    assert store.consumer(group="g").committed(tp) == 7


def test_killed_producer_blocks_readers_until_its_timeout(store: Store, clock: ManualClock) -> None:
    """TMO-09: no process notices the end of another; the next reader after the timeout aborts the transaction."""
    producer = store.producer("id", transaction_timeout=10)
    producer.begin_transaction()
    producer.send("t", b"x", partition=0)
    producer.flush()
    store.producer().send("t", b"y", partition=0).result()
    clock.advance(10_000)
    assert store.scan("t").to_table().num_rows == 0
    clock.advance(1)
    assert store.scan("t").to_table()["value"].to_pylist() == [b"y"]
    assert store.transaction("id").state is TxnState.COMPLETE_ABORT


def test_illegal_state_is_an_invalid_state_and_changes_nothing(store: Store) -> None:
    """ERR-06: a call in the wrong state is refused; the open transaction continues."""
    producer = store.producer("id")
    for call in (producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction):
        with pytest.raises(InvalidTxnStateError):
            call()
    producer.begin_transaction()
    with pytest.raises(InvalidTxnStateError, match="still open"):
        producer.begin_transaction()
    producer.send("t", b"x")
    producer.commit_transaction()
    assert store.scan("t").to_table().num_rows == 1


def test_consumer_defaults_are_those_of_exactly_once(store: Store) -> None:
    """API-20, CON-01: committed records from the beginning, and offsets that a transaction may commit."""
    defaults = {name: given.default for name, given in inspect.signature(Store.consumer).parameters.items()}
    assert defaults["isolation"] == "read_committed"
    assert defaults["auto_offset_reset"] == "earliest"
    assert defaults["enable_auto_commit"] is False


def test_topics_are_not_subscribed_by_pattern(store: Store) -> None:
    """A name is a name: what Kafka takes for a pattern is refused as one."""
    with pytest.raises(InvalidTopicError):
        store.consumer(["t.*"], "g")


def test_assignment_before_the_first_poll_is_all_partitions(store: Store) -> None:
    consumer = store.consumer(["t"], "g")
    assert len(consumer.assignment()) == 3


def test_consumer_of_a_read_only_store_joins_no_group(store: Store) -> None:
    """It reads from the positions of the group, and is no member of it."""
    store.producer().send("t", b"x", partition=0).result()
    connection = store._connection
    with open_on(connection.objects, read_only=True, runtime=connection.runtime) as reader:
        assert [record.value for record in reader.consumer(["t"], "g").poll()] == [b"x"]
    assert "g" not in connection.view().groups


def test_errors_of_brokers_are_never_raised() -> None:
    """No process owns a coordinator. The classes exist for the programs that name them."""
    root = Path(txnstore.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in root.rglob("*.py") if path.name != "errors.py"]
    assert len(sources) > 100
    for name in ("NotCoordinatorError", "CoordinatorNotAvailableError"):
        assert issubclass(getattr(txnstore, name), txnstore.TxnStoreError)
        assert not [source for source in sources if f"{name}(" in source]


def test_sequences_leave_no_gap_after_a_failed_record(store: Store) -> None:
    """Sequences are given when batches are registered; a refused record takes none."""
    with store.producer(linger=None) as producer:
        for size in (1, 2_000_000, 1):
            try:
                producer.send("t", b"x" * size, partition=0)
            except RecordTooLargeError:
                continue
            producer.flush()
    batches = store._connection.view().partitions[TopicPartition("t", 0)].batches
    assert all(late.base_sequence == early.base_sequence + 1 for early, late in pairwise(batches))
