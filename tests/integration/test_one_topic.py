"""One topic's failure is one topic's: whatever is wrong with a topic, the others are handled, and it is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import duckdb
import pyarrow as pa
import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.compaction import DAY_MS, runtime
from tests.helpers.connections import connection_of
from tests.helpers.gateway import serving
from tests.helpers.merging import merge_quietly
from tests.helpers.rounds import compact_rounds
from tests.helpers.tables import EngineObjects, newest, table_rows
from txnstore.chain.keys import table_hint
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CreateTopic
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, StorageError, StorageRefusedError, TxnStoreError
from txnstore.segment.schema import schema_to_text
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock

#: Before and after the bad one in the order of their names.
GOOD = ("alpha", "zeta")
BAD = "middle"
CONFIG = {"table.format": "iceberg", "retention.ms": "10000"}


class Objects(EngineObjects):
    """Objects of which the storage refuses some: all whose key contains a text."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.refused = ""
        self.error: type[StorageError] = StorageRefusedError
        #: The first request for a key with this text is the last one that is answered.
        self.last = "\0"
        #: The keys of segments that were asked for.
        self.asked: list[str] = []

    def _check(self, key: str) -> None:
        self.asked += [key] if key.startswith("topics/") else []
        if self.last in key:
            self.refused = "/"
        if self.refused and self.refused in key:
            raise self.error(f"{key}: not today")

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._check(key)
        return super().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._check(key)
        super().put(key, data)


# What is wrong --------------------------------------------------------------------------------------------------------


def unreadable_schema(store: Store, _: Objects) -> None:
    altered(store, schema="rubbish")


def unknown_type(store: Store, _: Objects) -> None:
    """A schema that Arrow reads, with a column of a type that no topic has."""
    altered(store, schema=schema_to_text(pa.schema([("value", pa.month_day_nano_interval())])))


def equal_names(store: Store, _: Objects) -> None:
    altered(store, schema=schema_to_text(pa.schema([("value", pa.binary()), ("value", pa.binary())])))


def reserved_name(store: Store, _: Objects) -> None:
    altered(store, schema=schema_to_text(pa.schema([("value", pa.binary()), ("_offset", pa.int64())])))


def unreadable_settings(store: Store, _: Objects) -> None:
    altered(store, config={**CONFIG, "retention.ms": "soon"})


def altered(store: Store, **changes: Any) -> None:
    """Damage of the catalog's entry of the topic."""
    connection = connection_of(store)
    topic = connection.view().find_topic(BAD)
    connection.submit(AlterTopic(replace(topic, version=topic.version + 1, **changes), topic.version))


def missing_segments(_: Store, objects: Objects) -> None:
    objects.delete([item.key for item in objects.list(f"topics/{BAD}/")])


def damaged_segments(_: Store, objects: Objects) -> None:
    for item in objects.list(f"topics/{BAD}/"):
        data = bytearray(objects.get(item.key))
        data[10] ^= 1
        objects.put(item.key, bytes(data))


def refused_segments(_: Store, objects: Objects) -> None:
    objects.refused = f"topics/{BAD}/"


def failing_segments(_: Store, objects: Objects) -> None:
    objects.refused, objects.error = f"topics/{BAD}/", StorageError


def refused_table(_: Store, objects: Objects) -> None:
    objects.refused = f"tables/{BAD}/"


def nothing(_: Store, __: Objects) -> None:
    """The name alone is bad."""


SCHEMAS = [unreadable_schema, unknown_type, equal_names, reserved_name]
CATALOG = [*SCHEMAS, unreadable_settings]
DAMAGE = [missing_segments, damaged_segments]
STORAGE = [refused_segments, failing_segments]
Way = Callable[[Store, Objects], None]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def filled(clock: ManualClock, way: Way, name: str = BAD, inlined: int = 0) -> tuple[Store, Objects]:
    """A store with two good topics and a bad one, each with three commits."""
    objects = Objects(clock)
    store = create_on(objects, runtime=runtime(clock))
    connection = connection_of(store)
    for topic in (*GOOD, name):
        config = {**CONFIG, "inline.bytes": str(inlined)}
        connection.submit(CreateTopic(CatalogTopic(topic, connection.runtime.new_id(), 1, config=config)))
        for number in range(3):
            with store.producer() as producer:
                producer.send(topic, b"%d" % number)
    way(store, objects)
    return store, objects


def raised(call: Callable[[], object], name: str = BAD) -> TxnStoreError:
    """The error of a call, which names the bad topic and no other one."""
    with pytest.raises(TxnStoreError) as caught:
        call()
    message = str(caught.value)
    assert repr(name) in message or f"{name}-0" in message
    assert not any(repr(good) in message or f"{good}-0" in message for good in GOOD)
    return caught.value


def batches(store: Store, topic: str) -> int:
    log = connection_of(store).view().log(TopicPartition(topic, 0))
    assert log is not None
    return len(log.batches)


# Compaction, retention, merges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*CATALOG, *DAMAGE, *STORAGE], ids=lambda way: way.__name__)
def test_a_compaction_does_the_others_and_names_the_topic(clock: ManualClock, way: Way) -> None:
    store, _ = filled(clock, way)
    rounds = list(compact_rounds(store, rounds=2))
    assert [round_.report.merges for round_ in rounds] == [2, 0]
    assert all(BAD in str(round_.error) for round_ in rounds)
    assert [batches(store, topic) for topic in (*GOOD, BAD)] == [1, 1, 3]
    error = raised(lambda: store.compact(force=True))
    errors: list[TxnStoreError] = []
    store.compact(force=True, on_error=errors.append)
    assert [type(each) for each in errors] == [type(error)]
    assert type(error) is (CorruptionError if way in [*CATALOG, *DAMAGE] else StorageRefusedError if way is
                           refused_segments else StorageError)  # fmt: skip


def test_a_topic_below_which_nothing_can_be_written_holds_no_other_up(clock: ManualClock) -> None:
    store, _ = filled(clock, nothing, ".tmp-x", inlined=65536)
    assert "'topics/.tmp-x/" in str(raised(lambda: store.compact(force=True), ".tmp-x"))
    assert [batches(store, topic) for topic in (*GOOD, ".tmp-x")] == [1, 1, 3]
    raised(store.tables.sync, ".tmp-x")
    assert [len(table_rows(store, topic)) for topic in GOOD] == [3, 3]
    assert store.scan(".tmp-x").to_table().num_rows == 3


def test_a_storage_that_does_not_answer_ends_a_compaction_at_once(clock: ManualClock) -> None:
    store, objects = filled(clock, nothing)
    objects.error, objects.last, objects.asked = StorageError, "topics/", []
    with pytest.raises(StorageError, match="not today"):
        store.compact(force=True)
    assert len({key.split("/")[1] for key in objects.asked}) == 1
    for round_ in compact_rounds(store, rounds=2):
        assert isinstance(round_.error, StorageError)
    objects.refused, objects.last = "", "\0"
    assert store.compact(force=True).merges == 3


def test_a_storage_that_does_not_answer_ends_a_publication_at_once(clock: ManualClock) -> None:
    store, objects = filled(clock, nothing)
    objects.error, objects.last, objects.asked = StorageError, "topics/", []
    with pytest.raises(StorageError, match=r"^(?!.*is not published).*not today"):
        store.tables.sync()
    assert len({key.split("/")[1] for key in objects.asked}) == 1
    objects.refused, objects.last = "", "\0"
    assert len(store.tables.sync().changes) == 3


@pytest.mark.parametrize("dry_run", [True, False])
def test_retention_is_applied_to_the_others(clock: ManualClock, dry_run: bool) -> None:
    store, _ = filled(clock, unreadable_settings)
    clock.advance(20_000)
    errors: list[TxnStoreError] = []
    report = store.retain(dry_run=dry_run, on_error=errors.append)
    assert [item.tp.topic for item in report.partitions] == [*GOOD]
    assert [f"the retention of topic {BAD!r} cannot be applied" in str(error) for error in errors] == [True]
    raised(lambda: store.retain(dry_run=dry_run))
    assert [batches(store, topic) for topic in (*GOOD, BAD)] == ([3, 3, 3] if dry_run else [0, 0, 3])


@pytest.mark.parametrize("way", [*CATALOG, refused_segments, failing_segments], ids=lambda way: way.__name__)
def test_the_small_commits_of_the_others_are_merged(clock: ManualClock, way: Way) -> None:
    store, _ = filled(clock, way, inlined=65536)
    report = merge_quietly(store)
    assert [topic for topic, _ in report.failures] == [BAD]
    assert [batches(store, topic) for topic in (*GOOD, BAD)] == [1, 1, 3]
    assert report.left == {TopicPartition(BAD, 0)}


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", [*SCHEMAS, *DAMAGE, refused_segments, refused_table], ids=lambda way: way.__name__
)  # fmt: skip
@pytest.mark.parametrize("before", [False, True], ids=["new", "published"])
def test_the_tables_of_the_others_are_published(clock: ManualClock, way: Way, before: bool) -> None:
    store, objects = filled(clock, nothing)
    if before:
        store.tables.sync()
    for topic in (*GOOD, BAD):
        with store.producer() as producer:
            producer.send(topic, b"later")
    way(store, objects)
    raised(store.tables.sync)
    assert [len(table_rows(store, topic)) for topic in GOOD] == [4, 4]
    errors: list[TxnStoreError] = []
    assert store.tables.sync(on_error=errors.append).changes == ()
    assert [BAD in str(error) for error in errors] == [True]
    for round_ in store.maintain(["tables"], rounds=2):
        assert [(result.kind, BAD in str(result.error)) for result in round_.results] == [("tables", True)]
    if way in STORAGE or way is refused_table:
        objects.refused = ""
        assert [change.topic for change in store.tables.sync().changes] == [BAD]
        assert len(table_rows(store, BAD)) == 4
        store.tables.check()


def test_a_copy_that_the_storage_refuses_is_made_by_the_next_publication(clock: ManualClock) -> None:
    """The cut is decided; the table of the topic lacks the name under which engines find it."""
    store, objects = filled(clock, nothing)
    objects.refused = table_hint(BAD)
    raised(store.tables.sync)
    assert newest(store).number == 1
    objects.refused = ""
    assert store.tables.sync().changes == ()
    assert [objects.get(table_hint(topic)) for topic in (*GOOD, BAD)] == [b"1"] * 3


def test_the_table_of_a_deleted_topic_is_not_shown_for_its_successor(clock: ManualClock) -> None:
    """The new topic of its name cannot be published, and its rows are not those of the old one."""
    store, objects = filled(clock, nothing)
    store.tables.sync()
    store.delete_topic(BAD)
    store.create_topic(BAD, config={**CONFIG, "inline.bytes": 0})
    with store.producer() as producer:
        producer.send(BAD, b"new")
    refused_segments(store, objects)
    raised(store.tables.sync)
    assert {name: table.dropped for name, table in newest(store).tables.items()} == {
        **dict.fromkeys(GOOD, False),
        BAD: True,
    }
    objects.refused = ""
    store.tables.sync()
    assert [values[1] for _, _, values in table_rows(store, BAD)] == [b"new"]


# Verification ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*CATALOG, *DAMAGE, *STORAGE], ids=lambda way: way.__name__)
def test_a_verification_names_the_topic_and_checks_the_others(clock: ManualClock, way: Way) -> None:
    store, objects = filled(clock, way)
    (other,) = [item.key for item in objects.list("topics/zeta/")][:1]
    objects.put(other, objects.get(other)[:-1] + b"?")
    report = store.verify(deep=True)
    subjects = {item.subject for item in report.violations}
    assert any(subject.startswith(f"topics/{BAD}/") or subject == f"topic {BAD!r}" for subject in subjects)
    assert other in subjects
    assert not any(subject.startswith("topics/alpha/") for subject in subjects)
    assert [item.section for item in store.doctor().findings if BAD in item.message or way not in CATALOG]


def test_a_verification_ends_if_the_storage_does_not_answer(clock: ManualClock) -> None:
    store, objects = filled(clock, failing_segments)
    stat = objects.stat

    def fail(key: str) -> Any:
        raise StorageError(f"{key}: away")

    objects.stat = fail  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        store.verify(deep=True)
    objects.stat = stat  # type: ignore[method-assign]


def test_nothing_is_published_while_the_storage_fails_for_a_moment(clock: ManualClock) -> None:
    """A cut is of one moment: a publication that may be repeated leaves out no table."""
    store, objects = filled(clock, failing_segments)
    with pytest.raises(StorageError) as caught:
        store.tables.sync()
    assert caught.value.retriable
    assert not any(table.published for table in store.tables.list())
    objects.refused = ""
    assert sorted(change.topic for change in store.tables.sync().changes) == sorted([*GOOD, BAD])


# SQL ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*SCHEMAS, *DAMAGE, *STORAGE], ids=lambda way: way.__name__)
def test_sql_shows_the_others_and_names_the_topic(clock: ManualClock, way: Way) -> None:
    store, _ = filled(clock, way)
    names = sorted([*GOOD, BAD])
    for sandbox in (False, True):
        both = " UNION ALL ".join(f"FROM {name}" for name in GOOD)
        assert store.sql(f"SELECT count(*) FROM ({both})", sandbox=sandbox).fetchall() == [(6,)]
        assert [name for (name,) in store.sql("SHOW TABLES", sandbox=sandbox).fetchall()] == names
        database = store.duckdb(sandbox=sandbox)
        assert database.sql(f"SELECT count(*) FROM ({both})").fetchall() == [(6,)]
        with pytest.raises((TxnStoreError, duckdb.Error), match=f"topics/{BAD}/|topic '{BAD}'"):
            database.sql(f"SELECT max(value) FROM {BAD}").fetchall()
    assert [topic.name for topic in store.topics()] == names
    assert BAD in repr(store.topics())


# The gateway ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*CATALOG, *DAMAGE, *STORAGE], ids=lambda way: way.__name__)
def test_a_gateway_serves_the_others(tmp_path: Path, way: Way) -> None:
    store, _ = filled(ManualClock(), way)
    with serving(store) as gateway:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "g"})
        assert set(consumer.list_topics(timeout=30).topics) >= {*GOOD, BAD}
        consumer.assign([confluent_kafka.TopicPartition(name, 0, 0) for name in (BAD, *GOOD)])
        values = set[object]()
        while len(values) < 6:
            for message in consumer.consume(6, timeout=30):
                if message.error() is None and message.topic() in GOOD:
                    values.add((message.topic(), message.value()))
        consumer.close()
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 50})
        errors: dict[object, object] = {}
        for name in GOOD:
            producer.produce(name, b"x", on_delivery=lambda error, message: errors.update({message.topic(): error}))
        assert producer.flush(30) == 0
        assert errors == dict.fromkeys(GOOD)


# The command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Cli, Path]]:
    with txnstore.create(tmp_path / "s") as store:
        for name in (*GOOD, BAD):
            # On a slow machine the time of CONFIG passes, and `compact` deletes what has expired.
            store.create_topic(name, config={**CONFIG, "retention.ms": str(DAY_MS), "inline.bytes": 0})
            for number in range(3):
                with store.producer() as producer:
                    producer.send(name, b"%d" % number)
        yield store, Cli(str(tmp_path / "s"), monkeypatch), tmp_path / "s"


@pytest.mark.parametrize("way", ["schema", "settings", "segment"])
def test_commands_end_with_status_1_after_the_rest_was_done(local: tuple[Store, Cli, Path], way: str) -> None:
    store, cli, folder = local
    if way == "segment":
        next((folder / "topics" / BAD / "0").glob("*.parquet")).unlink()
    else:
        altered(store, **({"schema": "rubbish"} if way == "schema" else {"config": {**CONFIG, "segment.bytes": "x"}}))
    for command in (["compact", "--force"], ["table", "sync", "--compact"], ["verify", "--deep"], ["doctor"]):
        result = cli(*command)
        assert result.status == 1, (command, result)
        assert BAD in result.out + result.err, (command, result)
        assert "Traceback" not in result.err
    if way == "settings":
        assert cli("retain", "--yes").status == 1
    assert [batches(store, topic) < 3 for topic in (*GOOD, BAD)] == [True, True, False]
    assert [table.topic for table in store.tables.list() if table.snapshot_id is not None][:1] == ["alpha"]
    for command in (
        ["sql", "--json", "select count(*) as n from alpha"],
        ["sql", "--json", "--sandbox", "from alpha select 3 limit 1"],
    ):
        assert [*json.loads(cli.ok(*command).out).values()] == [3]
    assert cli("sql", f"select max(value) from {BAD}").status == (0 if way == "settings" else 1)
    assert cli("topic", "list").status == 0
