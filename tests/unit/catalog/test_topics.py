"""The catalog through a store: topics are created, altered and deleted with one entry each, or not at all."""

from __future__ import annotations

import itertools
import pickle
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.shell import another_process, entries, in_threads, sound
from txnstore.catalog.description import Topic
from txnstore.catalog.topics import new_topic
from txnstore.chain.keys import segment, table_data, table_version
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.errors import (
    CompactionConflictError,
    InvalidConfigError,
    InvalidTopicError,
    SchemaMismatchError,
    StorageError,
    StorageRefusedError,
    TopicExistsError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.base import check_key
from txnstore.validation import is_topic_name

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("at", pa.timestamp("ms"))])


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def unchanged(bench: Bench, error: type[TxnStoreError], call: Any) -> str:
    """The call is refused with exactly this class, and nothing at all is written; the message."""
    before, state = entries(bench.inner), sound(bench.store)
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert entries(bench.inner) == before
    assert sound(bench.store) == state
    return str(raised.value)


# Create ---------------------------------------------------------------------------------------------------------------


def test_created_topic_has_the_given_properties(bench: Bench) -> None:
    config = {"cleanup.policy": "compact", "retention.ms": 5, "segment.format": "arrow"}
    created = bench.store.create_topic("orders", 4, SCHEMA, "id", "at", config)
    assert (created.name, created.partitions, created.key, created.timestamp) == ("orders", 4, "id", "at")
    assert created.config == {"cleanup.policy": "compact", "retention.ms": "5", "segment.format": "arrow"}
    assert another_process(bench.store, bench.inner).topic("orders") == created
    assert [topic.name for topic in bench.store.topics()] == ["orders", "t"]


def test_a_topic_is_one_entry(bench: Bench) -> None:
    connection_of(bench.store).counts.reset()
    bench.store.create_topic("u")
    assert bench.kinds() == ["put_if_absent"]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "_offset"])
def test_legal_names_are_accepted(bench: Bench, name: str) -> None:
    assert bench.store.create_topic(name).name == name


def test_a_numpy_string_is_a_name(bench: Bench) -> None:
    """The catalog's map compares with a plain bool; a name is made a plain string at the door."""
    bench.store.create_topic(np.str_("u"))
    assert type(bench.store.topic(np.str_("u")).name) is str
    with bench.store.producer(linger=None) as producer:
        assert producer.send(np.str_("u"), b"x").result().topic == "u"
    bench.store.delete_topic(np.str_("u"))
    assert [topic.name for topic in bench.store.topics()] == ["t"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/", "a\\b", "a b", "ü", "日本", "x" * 250, "a\x00", "a\n", "a:b", "a*", "\ud800"],
    ids=ascii,
)
def test_an_illegal_name_creates_nothing(bench: Bench, name: str) -> None:
    message = unchanged(bench, InvalidTopicError, lambda: bench.store.create_topic(name))
    assert "topic" in message
    assert [item.key for item in bench.inner.list("topics/")] == []


def test_a_name_is_accepted_if_kafka_and_the_storage_accept_it(bench: Bench) -> None:
    """The keys of the objects of a topic contain its name, and the storage refuses some names of Kafka's."""
    parts, runtime = ["", ".", "-", "a", ".tmp", ".tmp-", "TMP", "/", "x" * 245], connection_of(bench.store).runtime
    names = {"".join(chosen) for chosen in itertools.product(parts, repeat=3)}
    refused = set()
    for name in names:
        try:
            new_topic(runtime, name, 1)
        except InvalidTopicError:
            refused.add(name)
    keys_of = segment, lambda name, *_: table_version(name, 1), lambda name, *_: table_data(name, "x")
    assert refused == {
        name
        for name in names
        if not is_topic_name(name) or not all(is_key(key(name, 99_999, str(UUID(int=0)), "parquet")) for key in keys_of)
    }
    assert ".tmp-a" in refused
    assert {".tmp", "a.tmp-", ".TMP-"} & refused == set()


def is_key(key: str) -> bool:
    try:
        return bool(check_key(key))
    except StorageRefusedError:
        return False


def test_a_name_below_which_no_object_can_be_written_creates_nothing(bench: Bench) -> None:
    message = unchanged(bench, InvalidTopicError, lambda: bench.store.create_topic(".tmp-x"))
    assert "no object can be written below this name" in message
    unchanged(bench, InvalidTopicError, lambda: bench.store.create_topic(".tmp-x", exist_ok=True))


def test_a_topic_of_an_older_release_below_which_nothing_can_be_written_can_be_deleted(bench: Bench) -> None:
    connection = connection_of(bench.store)
    connection.submit(CreateTopic(CatalogTopic(".tmp-x", connection.runtime.new_id(), 1)))
    with bench.store.producer() as producer:
        producer.send(".tmp-x", b"small")
        producer.send("t", b"x")
    assert bench.store.scan(".tmp-x").to_table()["value"].to_pylist() == [b"small"]
    bench.store.delete_topic(".tmp-x")
    assert [topic.name for topic in bench.store.topics()] == ["t"]


@pytest.mark.parametrize("name", [None, 5, b"t", ["t"], object()], ids=lambda value: type(value).__name__)
def test_non_string_name_is_refused(bench: Bench, name: Any) -> None:
    unchanged(bench, InvalidTopicError, lambda: bench.store.create_topic(name))
    unchanged(bench, InvalidTopicError, lambda: bench.store.delete_topic(name))
    unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.topic(name))
    unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.alter_topic(name, partitions=9))
    unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.offsets(name, 0))
    unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.scan(name).to_table())


@pytest.mark.parametrize("partitions", [0, -1, 1.0, "2", True, None], ids=repr)
def test_invalid_partition_count_is_refused(bench: Bench, partitions: Any) -> None:
    message = unchanged(bench, InvalidConfigError, lambda: bench.store.create_topic("u", partitions))
    assert "partitions of topic 'u'" in message


def test_a_partition_count_may_be_any_integer(bench: Bench) -> None:
    topic = bench.store.create_topic("u", np.int64(2))  # type: ignore[arg-type]
    assert (topic.partitions, type(topic.partitions)) == (2, int)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"retention.mss": 5}, "did you mean retention.ms"),
        ({"cleanup.policy": "shrink"}, "cleanup.policy"),
        ({"segment.format": "csv"}, "segment.format"),
        ({"compression.type": "rar"}, "compression.type"),
        ({"max.message.bytes": -1}, "max.message.bytes"),
        ({"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 5}, "min.compaction.lag.ms"),
        ({5: 5}, "no topic setting 5"),
        ({"replication.factor": 3}, "replication.factor"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(bench: Bench, config: Any, says: str) -> None:
    assert says in unchanged(bench, InvalidConfigError, lambda: bench.store.create_topic("u", config=config))
    assert says in unchanged(bench, InvalidConfigError, lambda: bench.store.alter_topic("t", config=config))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": pa.schema([("a", pa.uint8())])}, "'a'"),
        ({"schema": pa.schema([("_offset", pa.int64())])}, "'_offset'"),
        ({"schema": "a int"}, "pyarrow.Schema"),
        ({"schema": SCHEMA, "key": "colour"}, "'colour'"),
        ({"schema": SCHEMA, "timestamp": "name"}, "'name'"),
        ({"key": "id"}, "key='id' needs a schema"),
        ({"timestamp": "at"}, "timestamp='at' needs a schema"),
    ],
    ids=str,
)
def test_a_bad_schema_names_the_column(bench: Bench, options: Any, says: str) -> None:
    assert says in unchanged(bench, SchemaMismatchError, lambda: bench.store.create_topic("u", **options))


def test_log_append_time_and_a_timestamp_column_exclude_each_other(bench: Bench) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    message = unchanged(
        bench, InvalidConfigError, lambda: bench.store.create_topic("u", schema=SCHEMA, timestamp="at", config=config)
    )
    assert "'at'" in message
    bench.store.create_topic("v", schema=SCHEMA, timestamp="at")
    unchanged(bench, InvalidConfigError, lambda: bench.store.alter_topic("v", config=config))


MARKED = pa.schema([*SCHEMA, ("gone", pa.bool_()), ("left", pa.bool_())])


@pytest.mark.parametrize(
    ("options", "column", "says"),
    [
        ({}, "gone", "needs a schema"),
        ({"schema": MARKED}, "gone", "needs a key column"),
        ({"schema": MARKED, "key": "id"}, "Gone", "must be one of the columns of the topic, id, name, at, gone, left"),
        ({"schema": MARKED, "key": "id"}, "id", "must be another column than the key"),
        ({"schema": MARKED, "key": "id", "timestamp": "at"}, "at", "must be another column than the timestamp"),
        ({"schema": MARKED, "key": "id"}, "name", "must be a boolean column, not one of type string"),
    ],
    ids=str,
)
def test_a_column_that_cannot_mark_tombstones_is_refused(bench: Bench, options: Any, column: str, says: str) -> None:
    config = {"tombstone.column": column}
    message = unchanged(bench, InvalidConfigError, lambda: bench.store.create_topic("u", **options, config=config))
    assert message.startswith(f"tombstone.column={column!r} {says}")
    bench.store.create_topic("v", **options)
    assert unchanged(bench, InvalidConfigError, lambda: bench.store.alter_topic("v", config=config)) == message


def test_tombstones_come_and_go_with_their_setting(bench: Bench) -> None:
    """Also beside the column itself; and the column stays as long as the topic, as each does."""
    bench.store.create_topic("u", schema=SCHEMA, key="id")
    for name in ("gone", "left"):
        bench.store.alter_topic("u", schema=MARKED, config={"tombstone.column": name})
        assert bench.store.topic("u").config == {"tombstone.column": name}
    with pytest.raises(SchemaMismatchError, match="'left' cannot be dropped"):
        bench.store.alter_topic("u", schema=pa.schema([*SCHEMA, ("gone", pa.bool_())]))
    bench.store.alter_topic("u", config={"tombstone.column": None})
    assert bench.store.topic("u").config == {}
    bench.store.alter_topic("u", config={"tombstone.column": ""})
    sound(bench.store)


def test_an_unknown_option_is_a_type_error(bench: Bench) -> None:
    options: Any = {"replicas": 3}
    for call in (bench.store.create_topic, bench.store.alter_topic):
        with pytest.raises(TypeError, match="replicas"):
            call("u", **options)


def test_a_topic_that_exists_is_refused(bench: Bench) -> None:
    assert "'t' exists already" in unchanged(bench, TopicExistsError, lambda: bench.store.create_topic("t", 3))


def test_a_topic_that_another_process_has_just_created_is_refused(bench: Bench) -> None:
    with another_process(bench.store, bench.inner) as other:
        theirs = other.create_topic("u", 2)
    with pytest.raises(TopicExistsError):
        bench.store.create_topic("u", 2)
    assert bench.store.topic("u") == theirs


def test_exist_ok_returns_the_topic_if_it_is_the_same(bench: Bench) -> None:
    first = bench.store.create_topic("u", 2, SCHEMA, "id", config={"retention.ms": 5})
    connection_of(bench.store).counts.reset()
    again = bench.store.create_topic("u", 2, SCHEMA, "id", config={"retention.ms": "5"}, exist_ok=True)
    assert again == first
    assert "put_if_absent" not in bench.kinds()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"partitions": 3}, "partitions"),
        ({"schema": pa.schema([*SCHEMA, ("colour", pa.string())])}, "schema"),
        ({"key": "name"}, "key"),
        ({"timestamp": None}, "timestamp"),
        ({"config": {"retention.ms": 5}}, "config"),
    ],
    ids=str,
)
def test_exist_ok_refuses_another_topic_of_the_same_name(bench: Bench, options: Any, what: str) -> None:
    same: dict[str, Any] = {"partitions": 2, "schema": SCHEMA, "key": "id", "timestamp": "at"}
    bench.store.create_topic("u", **same)
    message = unchanged(
        bench, TopicExistsError, lambda: bench.store.create_topic("u", **(same | options), exist_ok=True)
    )
    difference = "2 partitions, not 3" if what == "partitions" else f"another {what}"
    assert message == f"topic 'u' already exists with {difference}"


def test_many_threads_create_one_topic_with_exist_ok(bench: Bench) -> None:
    stores = [bench.store, another_process(bench.store, bench.inner)]
    answers = in_threads(12, lambda number: stores[number % 2].create_topic("u", 2, exist_ok=True))
    assert all(isinstance(answer, Topic) for answer in answers)
    assert len({answer.topic_id for answer in answers if isinstance(answer, Topic)}) == 1


def test_a_create_without_an_answer_can_be_repeated_with_exist_ok(bench: Bench) -> None:
    with bench.silent(applied=True), pytest.raises(StorageError):
        bench.store.create_topic("u")
    assert bench.store.create_topic("u", exist_ok=True).name == "u"


# Alter ----------------------------------------------------------------------------------------------------------------


def test_alter_keeps_unmentioned_properties(bench: Bench) -> None:
    before = bench.store.create_topic("u", 2, SCHEMA, "id", "at", {"retention.ms": 5, "segment.format": "arrow"})
    altered = bench.store.alter_topic("u", partitions=4, config={"retention.ms": None, "segment.bytes": 1000})
    assert altered.partitions == 4
    assert altered.config == {"segment.format": "arrow", "segment.bytes": "1000"}
    assert (altered.schema, altered.key, altered.timestamp) == (before.schema, "id", "at")
    assert (altered.topic_id, altered.version) == (before.topic_id, before.version + 1)
    assert another_process(bench.store, bench.inner).topic("u") == altered


def test_new_partitions_are_empty_and_old_ones_keep_their_records(bench: Bench) -> None:
    with bench.store.producer(linger=None) as producer:
        producer.send("t", b"x", partition=2).result()
        bench.store.alter_topic("t", partitions=5)
        assert producer.send("t", b"y", partition=4).result().offset == 0
    high_watermarks = [bench.store.offsets("t", number).high_watermark for number in range(5)]
    assert high_watermarks == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("partitions", [2, 1])
def test_partitions_cannot_shrink(bench: Bench, partitions: int) -> None:
    message = unchanged(bench, InvalidConfigError, lambda: bench.store.alter_topic("t", partitions=partitions))
    assert "has 3 partitions; partitions can be added" in message


def test_a_schema_evolves_or_is_refused_with_the_column(bench: Bench) -> None:
    bench.store.create_topic("u", schema=SCHEMA, key="id")
    wider = pa.schema([*SCHEMA, ("colour", pa.string())])
    assert bench.store.alter_topic("u", schema=wider).version == 1
    for schema, says in (
        (SCHEMA, "'colour' cannot be dropped"),
        (pa.schema([*wider, pa.field("size", pa.int64(), nullable=False)]), "'size'"),
        (wider.set(1, pa.field("name", pa.int64())), "'name'"),
    ):
        message = unchanged(
            bench, SchemaMismatchError, lambda schema=schema: bench.store.alter_topic("u", schema=schema)
        )
        assert says in message


def test_a_topic_of_records_cannot_get_a_schema(bench: Bench) -> None:
    unchanged(bench, InvalidConfigError, lambda: bench.store.alter_topic("t", schema=SCHEMA))


def test_concurrent_alterations_do_not_overwrite_each_other(bench: Bench) -> None:
    """An alteration of a stale version is refused."""
    stores = [bench.store, *(another_process(bench.store, bench.inner) for _ in range(3))]
    answers = in_threads(4, lambda number: stores[number].alter_topic("t", config={f"{SETTINGS[number]}": 7}))
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert all(isinstance(answer, CompactionConflictError) and answer.retriable for answer in refused)
    done = [number for number, answer in enumerate(answers) if isinstance(answer, Topic)]
    assert done
    assert bench.store.topic("t").config == {SETTINGS[number]: "7" for number in done}
    assert bench.store.topic("t").version == len(done)


SETTINGS = ("retention.ms", "retention.bytes", "delete.retention.ms", "min.compaction.lag.ms")


def test_alteration_without_change_creates_no_version(bench: Bench) -> None:
    assert bench.store.alter_topic("t").version == 0


def test_an_unknown_topic_is_not_altered(bench: Bench) -> None:
    message = unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.alter_topic("nope", partitions=4))
    assert message == "there is no topic 'nope'; the store has t"


# Delete ---------------------------------------------------------------------------------------------------------------


def test_deleted_topic_loses_its_records_and_can_be_recreated(bench: Bench) -> None:
    with bench.store.producer(linger=None) as producer:
        producer.send("t", b"x", partition=0).result()
        first = bench.store.topic("t")
        bench.store.delete_topic("t")
        assert bench.store.topics() == []
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("t", b"x")
        second = bench.store.create_topic("t")
        assert second.topic_id != first.topic_id
        assert producer.send("t", b"y").result().offset == 0
    assert another_process(bench.store, bench.inner).scan("t").to_table()["value"].to_pylist() == [b"y"]


def test_an_unknown_topic_is_not_deleted(bench: Bench) -> None:
    unchanged(bench, UnknownTopicOrPartitionError, lambda: bench.store.delete_topic("nope"))


def test_a_topic_shows_its_columns_as_an_arrow_schema(bench: Bench) -> None:
    """The schema that topic() returns is one that alter_topic() accepts."""
    schema = bench.store.create_topic("typed", schema=SCHEMA, key="id").schema
    assert schema is not None
    assert schema.equals(SCHEMA)
    wider = bench.store.alter_topic("typed", schema=schema.append(pa.field("new", pa.string())))
    assert repr(wider) == "Topic('typed', partitions=1, key='id', columns=['id', 'name', 'at', 'new'])"
    assert bench.store.topic("typed") == wider
    assert bench.store.topic("t") != wider
    assert bench.store.topic("t").schema is None
    assert bench.store.topics() == [bench.store.topic("t"), wider]
    assert pickle.loads(pickle.dumps(wider)) == wider  # noqa: S301


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("x_._", "x...")])
def test_names_that_differ_in_dots_and_underscores_only_collide(bench: Bench, first: str, second: str) -> None:
    """Kafka's ``Topic.hasCollision``: its metrics replace a dot by an underscore."""
    store = bench.store
    store.create_topic(first)
    store.create_topic(first, exist_ok=True)
    with pytest.raises(InvalidTopicError, match=f"topic {second!r} collides with topic {first!r}"):
        store.create_topic(second)
    with pytest.raises(InvalidTopicError):
        store.create_topic(second, exist_ok=True)
    store.create_topic(second + "x")
    store.delete_topic(first)
    store.create_topic(second)


@pytest.mark.parametrize(("first", "second"), [("Orders", "orders"), ("a.B", "A_b")])
def test_names_that_differ_in_case_only_collide(bench: Bench, first: str, second: str) -> None:
    """SQL ignores case in names of views, and some file systems in names of folders."""
    store = bench.store
    store.create_topic(first)
    with pytest.raises(
        InvalidTopicError,
        match=f"topic {second!r} collides with topic {first!r}: names must differ in more than .*lower case",
    ):
        store.create_topic(second)
    with pytest.raises(InvalidTopicError, match="collides"):
        store.create_topic(second, exist_ok=True)
    store.create_topic(first + "x")
    store.delete_topic(first)
    store.create_topic(second)
