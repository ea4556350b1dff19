"""Steps that replace or delete records, and a topic that is altered between any two of their requests.

Another process alters the topic, and writes records by its new version, before the n-th request of a step, for every n
until the step has no more. What it was acknowledged then stays as it is. See docs/internals/design/engines.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.compaction import DAY_MS, runtime
from tests.helpers.connections import connection_of
from tests.helpers.interleaving import Interleaved, Nth
from tests.helpers.merging import merge_quietly
from tests.helpers.tables import EngineObjects
from txnstore.catalog.topics import altered_topic
from txnstore.catalog.writing import topic_writer
from txnstore.compactor.retention import MAX_PLANS
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CloseTopic
from txnstore.core.log.commands import Append
from txnstore.core.log.model import Batch, Layout, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import CorruptionError
from txnstore.producer.upload import encode_rows
from txnstore.read.rows import Columns, Run, evaluate
from txnstore.segment.schema import schema_to_text
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

#: A topic whose only partition is in the last one of so many chains.
NAMES = {
    chains: next(name for name in "tuvwxyz" if chain_of_partition(TopicPartition(name, 0), chains) == chains - 1)
    for chains in (1, 2)
}
#: More requests than any of these steps takes.
MANY = 200

NARROW = pa.schema([("k", pa.string()), ("a", pa.int32())])
ADDED = NARROW.append(pa.field("b", pa.string()))
WIDER = pa.schema([("k", pa.string()), ("a", pa.int64())])

Rows = list[dict[str, Any]]


def compact(store: Store) -> None:
    store.compact()


def retain(store: Store) -> None:
    store.retain()


def merge(store: Store) -> None:
    for chain in range(len(connection_of(store).chains)):
        for error in merge_quietly(store, chain).errors:
            raise error


@dataclass(frozen=True)
class Change:
    """An alteration of a topic, and what is sent right after it.

    Attributes:
        name: The name of the case.
        steps: The steps that might do harm by the version before.
        schema: The schema before; None for Kafka records.
        config: The settings before.
        to: The arguments of the alteration.
        rows: The rows that are sent before it, each in a batch of its own.
        more: Those after it.
        cleaned: Whether the topic is cleaned by the version after it, too: only the newest row of each key stays then.
    """

    name: str
    steps: tuple[Callable[[Store], None], ...]
    schema: pa.Schema | None
    config: dict[str, str]
    to: dict[str, Any]
    rows: Rows
    more: Rows
    cleaned: bool = False


COMPACTS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
TYPED = [{"k": "x", "a": 1}, {"k": "x", "a": 2}, {"k": "y", "a": 3}]
RECORDS = [{"key": b"k", "value": b"%d" % number} for number in range(3)]
CHANGES = (
    Change("column", (compact, merge), NARROW, {}, {"schema": ADDED}, TYPED, [{"k": "x", "a": 4, "b": "new"}] * 2),
    Change("type", (compact, merge), NARROW, {}, {"schema": WIDER}, TYPED, [{"k": "x", "a": 1 << 40}] * 2),
    Change(
        "column of a cleaned topic",
        (compact,),
        NARROW,
        COMPACTS,
        {"schema": ADDED},
        TYPED,
        [{"k": "x", "a": 4, "b": "new"}, {"k": "z", "a": 5, "b": "other"}],
        cleaned=True,
    ),
    Change("policy", (compact,), None, COMPACTS, {"config": {"cleanup.policy": "delete"}}, RECORDS, RECORDS[:2]),
    Change(
        "retention",
        (compact, retain),
        None,
        {"retention.ms": str(DAY_MS)},
        {"config": {"retention.ms": None}},
        RECORDS,
        RECORDS[:2],
    ),
    Change(
        "retention of deletions",
        (compact, retain),
        None,
        {"retention.bytes": "0"},
        {"config": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}},
        RECORDS,
        RECORDS[:2],
    ),
)
CASES = [
    pytest.param(change, step, chains, id=f"{change.name}-{step.__name__}-{chains}")
    for change in CHANGES
    for step in change.steps
    for chains in (1, 2)
]


class Scene:
    """A store in which a step is interrupted before its n-th request; ``kept`` are the rows that were there then.

    Args:
        change: The alteration.
        chains: The number of chains.
        n: The number of the request, from 0.
        copied: Whether the alteration reaches the chain of the partition.
        ordered: Whether the rows after it name the version of their topic.
    """

    def __init__(self, change: Change, chains: int, n: int, *, copied: bool = True, ordered: bool = True) -> None:
        self.change, self.topic, self.kept = change, NAMES[chains], Rows()
        self.clock = ManualClock()
        self.objects = EngineObjects(self.clock)
        self._copied, self._ordered = copied, ordered
        store = create_on(self.objects, chains, runtime=runtime(self.clock))
        key = "k" if change.schema is not None and change.config is COMPACTS else None
        store.create_topic(self.topic, schema=change.schema, key=key, config=change.config)
        self._send(store, change.rows)
        self.clock.advance(2 * DAY_MS)
        self.due = Nth(n)
        self.between = Interleaved(self.objects, self.due, self.alter)

    def run(self, step: Callable[[Store], None]) -> bool:
        """Run the step; returns whether it was interrupted."""
        store = open_on(self.between, runtime=runtime(self.clock))
        self.due.armed = True
        step(store)
        return self.between.struck

    def alter(self) -> None:
        store = self.another()
        if self._copied:
            store.alter_topic(self.topic, **self.change.to)
        else:  # The process that alters the topic dies before any chain but that of the catalog has it.
            connection = connection_of(store)
            topic = connection.view().topics[self.topic]
            connection.chains[0].submit(AlterTopic(altered_topic(topic, **self.change.to), topic.version))
        if self._ordered:
            self._send(self.another(), self.change.more)
        else:
            topic = connection_of(store).view().topics[self.topic]
            for row in self.change.more:
                append_unordered(store, topic, row)
        self.kept = self.rows()

    def _send(self, store: Store, rows: Rows) -> None:
        for row in rows:
            with store.producer() as producer:
                if self.change.schema is None:
                    producer.send(self.topic, row["value"], key=row["key"], timestamp=self.clock())
                else:
                    producer.send(self.topic, row)

    def another(self) -> Store:
        """The store as another process has it."""
        return open_on(self.objects, runtime=runtime(self.clock))

    def rows(self) -> Rows:
        """What a reader finds of what is to stay."""
        found: Rows = self.another().scan(self.topic).to_table().to_pylist()
        if not self.change.cleaned:
            return found
        return sorted({row["k"]: row for row in found}.values(), key=lambda row: row["_offset"])


@pytest.mark.slow
@pytest.mark.parametrize(("change", "step", "chains"), CASES)
def test_step_keeps_what_was_acknowledged_by_a_version_that_it_did_not_plan_with(
    change: Change, step: Callable[[Store], None], chains: int
) -> None:
    """Nothing is lost, nothing is called damaged, and what is planned again has an effect."""
    for n in range(MANY):
        scene = Scene(change, chains, n)
        if not scene.run(step):
            break
        assert scene.rows() == scene.kept, n
        assert scene.another().verify(deep=n % 8 == 0).ok
        step(scene.another())
        assert scene.rows() == scene.kept, n
    else:
        pytest.fail(f"the step has more than {MANY} requests")
    assert n > 1


@pytest.mark.slow
@pytest.mark.parametrize(("change", "step"), [(change, step) for change in CHANGES[:3] for step in change.steps])
def test_step_knows_the_columns_of_rows_whose_chain_was_not_altered(
    change: Change, step: Callable[[Store], None]
) -> None:
    """With several chains the process that alters the topic may die before it copies the topic to the others."""
    for n in range(MANY):
        scene = Scene(change, 2, n, copied=False)
        if not scene.run(step):
            break
        assert scene.rows() == scene.kept, n
    else:
        pytest.fail(f"the step has more than {MANY} requests")
    assert n > 1


def append_unordered(store: Store, topic: CatalogTopic, row: dict[str, Any]) -> None:
    """Append a row by a version of its topic as older releases did: the batch names no version.

    So its chain may take it before it has the version, and a cut with the row may lack its column.
    """
    connection, writer, tp = connection_of(store), topic_writer(topic), TopicPartition(topic.name, 0)
    table = pa.Table.from_pylist([row], writer.stored)
    (batch,) = encode_rows(connection.runtime, writer, [(tp, table)], 0, inlined=True).batches
    chains = connection.chains
    command = Append(ProducerIdentity(), (replace(batch, topic_version=None),))
    chains[chain_of_partition(tp, len(chains))].submit(command)


@pytest.mark.slow
@pytest.mark.parametrize("step", [compact, merge])
@pytest.mark.parametrize("change", CHANGES[:2], ids=lambda change: change.name)
def test_step_refuses_columns_that_it_does_not_know(change: Change, step: Callable[[Store], None]) -> None:
    """Rows of older releases have no order with their columns. What does not fit the plan is no damage."""
    for n in range(MANY):
        scene = Scene(change, 2, n, copied=False, ordered=False)
        if not scene.run(step):
            break
        assert scene.rows() == scene.kept, n
        step(scene.another())
        assert scene.rows() == scene.kept, n
    else:
        pytest.fail(f"the step has more than {MANY} requests")
    assert n > 1


@pytest.mark.parametrize("step", [compact, merge])
def test_column_that_no_version_of_the_topic_has_is_damage(step: Callable[[Store], None]) -> None:
    """It is left where it is, and named."""
    scene = Scene(CHANGES[0], 1, MANY)
    store = scene.another()
    topic = altered_topic(connection_of(store).view().topics[scene.topic], schema=ADDED)
    append_unordered(store, topic, {"k": "x", "a": 7, "b": "unknown"})
    with pytest.raises(CorruptionError, match="unknown columns 'b'"):
        scene.rows()
    with pytest.raises(CorruptionError, match="unknown columns 'b'"):
        step(store)
    store.alter_topic(scene.topic, schema=ADDED)
    assert scene.rows()[-1]["b"] == "unknown"


@pytest.mark.parametrize("chains", [1, 2])
def test_retention_is_planned_again_by_the_settings_of_now(chains: int) -> None:
    """A longer retention keeps what the shorter one would have deleted, and deletes what is older than that."""
    change = Change("longer", (retain,), None, {"retention.ms": "0"}, {"config": {"retention.ms": "1"}}, RECORDS, [])
    for n in range(MANY):
        scene = Scene(change, chains, n)
        store = open_on(scene.between, runtime=runtime(scene.clock))
        scene.due.armed = True
        report = store.retain()
        assert scene.rows() == []
        assert report.records == len(RECORDS)
        if not scene.between.struck:
            break
    assert 1 < n < MANY - 1


def test_retention_of_a_topic_that_is_altered_all_the_time_is_left_to_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another process alters it before each deletion: the plans are bounded, and the next retention does the work."""
    clock = ManualClock()
    objects, sizes = EngineObjects(clock), iter(range(2_000_000, 3_000_000))
    store = create_on(objects, 1, runtime=runtime(clock))
    store.create_topic("t", config={"retention.bytes": "0"})
    with store.producer() as producer:
        producer.send("t", b"1").result()
    began: list[int] = []

    def alter() -> None:
        began.append(next(sizes))
        open_on(objects, runtime=runtime(clock)).alter_topic("t", config={"max.message.bytes": str(began[-1])})
        between.struck = False

    between = Interleaved(objects, lambda kind, key: kind == "put_if_absent" and "/entries/" in key, alter)
    assert open_on(between, runtime=runtime(clock)).retain().records == 0
    assert len(began) == MAX_PLANS
    assert "altered too often" in caplog.text
    assert store.retain().records == 1


def test_plan_of_a_newer_version_than_the_chain_has_copies_the_topic() -> None:
    """A retention that was changed holds in each chain, though the process that changed it died before its copy."""
    scene = Scene(
        Change("shorter", (retain,), None, {}, {"config": {"retention.ms": "0"}}, RECORDS, []), 2, 0, copied=False
    )
    scene.alter()
    connection = connection_of(scene.another())
    assert [state.topics[scene.topic].version for state in connection.view().states] == [1, 0]
    assert scene.another().retain().records == len(RECORDS)
    assert [state.topics[scene.topic].version for state in connection.view().states] == [1, 1]


def test_compaction_plans_again_with_the_topic_that_it_finds_after_its_lease() -> None:
    """What another process altered before the lease is no conflict: all of it is compacted."""
    scene = Scene(CHANGES[0], 1, 0)
    between = Interleaved(scene.objects, lambda kind, key: kind == "list" and key.startswith("leases/"), scene.alter)
    report = open_on(between, runtime=runtime(scene.clock)).compact()
    assert (report.conflicts, report.records) == (0, 5)
    assert scene.rows() == scene.kept


@pytest.mark.slow
def test_topic_that_is_being_deleted_stops_no_compaction() -> None:
    """Its chain takes no newer copy of it any more, whenever it is closed; all other topics are compacted."""
    for n in range(MANY):
        scene = Scene(replace(CHANGES[0], more=[]), 2, n, copied=False)
        scene.another().create_topic("other", config={"inline.bytes": 0})
        for _ in range(3):
            with scene.another().producer() as producer:
                producer.send("other", b"x")
        scene.alter()
        connection = connection_of(scene.another())
        close = CloseTopic(scene.topic, connection.view().topics[scene.topic].revision)
        between = Interleaved(scene.objects, scene.due, partial(connection.chains[1].submit, close))
        store = open_on(between, runtime=runtime(scene.clock))
        scene.due.armed = True
        report = store.compact()
        assert {item.tp.topic for item in report.partitions if item.merges and not item.conflicts} >= {"other"}, n
        assert scene.rows() == scene.kept, n
        if not between.struck:
            break
    else:
        pytest.fail(f"the compaction has more than {MANY} requests")
    assert n > 1


def test_merge_copies_a_topic_that_its_chain_has_in_an_older_version() -> None:
    scene = Scene(CHANGES[0], 2, 0, copied=False, ordered=False)
    scene.alter()
    merged = merge_quietly(scene.another(), 1)
    assert (merged.batches, merged.errors, merged.left) == (5, [], set())
    assert scene.rows() == scene.kept


def test_conversion_that_changes_a_value_is_refused() -> None:
    """The sums of what is read are those from before the conversion."""
    times = pa.table({"t": pa.array([1_000_001], pa.timestamp("us"))})
    topic = CatalogTopic("t", "id", 1, schema_to_text(pa.schema([("t", pa.timestamp("ms")), ("b", pa.string())])))
    assert Columns.of_segments(topic, Layout.MERGED, conserves=True).conserves
    columns = Columns(topic, ["_offset", "t", "b"], conserves=True)
    segment = Segment("topics/t/0/1.parquet", "parquet", 10, "0" * 64, 1)
    part = Slice(TopicPartition("t", 0), Batch(0, 1, 1, segment, 1, 1), 0, 1)
    with pytest.raises(CorruptionError, match="has changed records"):
        evaluate(columns, times, [Run(part, 1, 0)])
    kept = evaluate(columns, times.cast(pa.schema([("t", pa.timestamp("ms"))]), safe=False), [Run(part, 1, 0)])
    assert kept.column_names == ["_offset", "t", "b"]
