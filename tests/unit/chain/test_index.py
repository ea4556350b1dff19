"""Index files: together they are the batches of a state, whatever happened to the logs, and checkpoints share them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import keys
from tests.helpers.shell import a_chain, topic
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints import index
from txnstore.chain.checkpoints.checkpoint import decode_all
from txnstore.chain.checkpoints.index import (
    Edge,
    IndexFile,
    KnownEdges,
    decoded_edges,
    edge_numbers,
    encode_file,
    may_need,
)
from txnstore.chain.codec import content_hash, decode, encode
from txnstore.chain.payload import line_of, payload_of, with_payload
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.log import batches
from txnstore.core.log.batches import BatchList
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.log.model import Batch, NewBatch, Partition, Segment
from txnstore.core.maintenance import DropObjects, ReplaceSegments
from txnstore.core.model import Map, ProducerIdentity, TopicPartition
from txnstore.errors import CorruptionError, StorageError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore

REPEATABLE = settings(derandomize=True, deadline=None, max_examples=60)
TPS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]


@pytest.fixture(autouse=True, scope="module")
def small_groups() -> Iterator[None]:
    """Row groups and chunks of four batches, so that short lists have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_ROW_GROUP", 4)
        patch.setattr(batches, "_CHUNK", 4)
        yield


def batch(base: int, limit: int, name: str = "x") -> Batch:
    segment = Segment(f"topics/a/0/{name}.parquet", "parquet", 9, "5" * 64, limit - base)
    return Batch(base, limit, limit - base, segment, base, limit)


class Step(NamedTuple):
    """What an entry does to the log of a partition: see ``after``."""

    kind: str
    tp: TopicPartition
    first: int
    last: int


KINDS = ("append", "append", "append", "append", "merge", "shorten", "delete")


def random_steps(seed: int) -> list[Step]:
    """150 entries: the files of their checkpoints have three lengths."""
    rng = random.Random(seed)
    return [Step(rng.choice(KINDS), rng.choice(TPS), rng.randrange(13), rng.randrange(13)) for _ in range(150)]


def after(edge: Edge, step: Step) -> Edge:
    """The logs after one more entry."""
    number = edge.sequence + 1
    log = edge.partitions.get(step.tp) or Partition()
    batches = [*log.batches]
    match step.kind:
        case "append":
            for _ in range(1 + step.first % 6):
                end = log.high_watermark
                longer = log.batches.append(batch(end + step.last % 2, end + 3, f"{number}"))
                log = replace(log, high_watermark=end + 3, batches=longer)
        case "merge":
            removed = batches[step.first : step.first + step.last]
            added = [batch(removed[0].base_offset, removed[-1].limit, f"merged-{number}")] if removed else []
            log = replace(log, batches=log.batches.replace(removed, added))
        case "shorten":
            log = replace(log, batches=log.batches.starting_at(step.first * 5))
        case _:
            return Edge(number, f"hash-{number}", edge.partitions.discard(step.tp))
    return Edge(number, f"hash-{number}", edge.partitions.insert(step.tp, log))


def contents(edge: Edge) -> dict[TopicPartition, list[Batch]]:
    return {tp: [*log.batches] for tp, log in edge.partitions.items() if len(log.batches)}


def written(ends: list[Edge]) -> list[IndexFile]:
    return [IndexFile(f"{this.sequence}", encode_file(last, this)) for last, this in pairwise(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_files_of_a_checkpoint_are_the_batches_of_its_state(seed: int) -> None:
    """Also after processes have begun with the files of earlier checkpoints."""
    edges, now = KnownEdges(), Edge()
    for step in random_steps(seed):
        now = after(now, step)
        if now.sequence % index.FAN == 0:
            edges.add(now)
        ends = edges.up_to(now)
        assert [end.sequence for end in ends] == [0, *edge_numbers(now.sequence)]
        if now.sequence % (5 + 2 * (seed % 3)) == 0:
            read = decoded_edges(written(ends))
            assert [contents(end) for end in read] == [contents(end) for end in ends]
            assert [end.entry_hash for end in read] == [end.entry_hash for end in ends]
            edges = KnownEdges()
            edges.begin_with(read)
            now = now._replace(partitions=with_batches(now.partitions, read[-1]))


def with_batches(logs: Map[TopicPartition, Partition], read: Edge) -> Map[TopicPartition, Partition]:
    """The logs with the batches that were read in the place of their own."""
    for tp, log in [*logs.items()]:
        log_read = read.partitions.get(tp)
        logs = logs.insert(tp, replace(log, batches=log_read.batches if log_read is not None else BatchList()))
    return logs


def test_a_process_that_saw_less_writes_fewer_files() -> None:
    """They are longer, and the state is the same."""
    now = Edge()
    for number in range(70):
        now = after(now, Step("append", TPS[number % 3], number, 0))
    read = decoded_edges(written(KnownEdges().up_to(now)))
    assert [end.sequence for end in read] == [0, 70]
    assert contents(read[-1]) == contents(now)


def test_edges_are_the_number_without_its_last_digits_in_base_8() -> None:
    assert edge_numbers(1) == [1]
    assert edge_numbers(64) == [64]
    assert edge_numbers(300) == [256, 296, 300]
    assert edge_numbers(704) == [512, 704]
    assert edge_numbers(8**5 - 1) == [8**5 - 8**digit for digit in range(5)][::-1]


@given(st.integers(1, 10**7), st.integers(1, 10**7))
@REPEATABLE
def test_what_a_later_checkpoint_shares_an_earlier_one_may_need(one: int, other: int) -> None:
    """So a vacuum that keeps the newest checkpoint keeps all that a writer may take for stored."""
    earlier, later = sorted((one, other))
    for ends in pairwise([0, *edge_numbers(later)]):
        assert may_need(later, *ends)
        assert may_need(earlier, *ends) or ends[1] > earlier


def test_runs_are_decoded_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to read a checkpoint, nor to append: the tail of a log costs one row group."""
    now = Edge()
    for _ in range(10):
        now = after(now, Step("append", TPS[0], 5, 0))
    decoded = decodes(monkeypatch)
    (log,) = (log for _, log in decoded_edges(written([Edge(), now]))[-1].partitions.items())
    grown = log.batches.append(batch(now.partitions[TPS[0]].high_watermark, 10**6))
    assert (len(log.batches), len(grown), decoded) == (60, 61, [])
    assert [item.limit for item in grown.overlapping(179, 10**6)] == [180, 10**6]
    assert decoded == [14]
    assert next(reversed(log.batches)).limit == 180
    assert decoded == [14], "decoded groups are kept"


def test_what_was_read_can_be_pickled_and_copied() -> None:
    """Snapshots and scans go to other processes with the batches of their states."""
    now = Edge()
    for _ in range(3):
        now = after(now, Step("append", TPS[0], 5, 0))
    (log,) = (log for _, log in decoded_edges(written([Edge(), now]))[-1].partitions.items())
    for again in (pickle.loads(pickle.dumps(log)), copy.deepcopy(log)):  # noqa: S301
        assert [*again.batches] == [*log.batches] == [*now.partitions[TPS[0]].batches]


def test_a_file_is_freed_with_the_last_list_that_names_it() -> None:
    """Not when the garbage collector comes by: it counts objects, and a file is one with many MB."""
    now = after(Edge(), Step("append", TPS[0], 5, 0))
    gc.disable()
    try:
        (file,) = written([Edge(), now])
        assert len(file.group(0)) == 4
        reference = weakref.ref(file)
        del file
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("change", [{"after": 1}, {"previous": "other"}], ids=str)
def test_a_file_that_does_not_follow_the_one_before_is_damage(change: dict[str, Any]) -> None:
    now = after(Edge(), Step("append", TPS[0], 0, 0))
    file = IndexFile("key", encode_file(Edge(), now))
    file.document = replace(file.document, **change)
    with pytest.raises(CorruptionError, match="key follows entry"):
        decoded_edges([file])


def test_a_file_with_a_segment_that_cannot_be_there_is_damage() -> None:
    """It is below ``chains/``, and no range of an entry."""
    tp, log = TPS[0], Partition()
    for place, damaged in ((keys.entry(0, 7), False), ("chains/foo", True)):
        row = batch(0, 1)
        row = replace(row, segment=replace(row.segment, object=place, first_byte=0))
        now = Edge(1, "hash-1", Map({tp: replace(log, batches=log.batches.append(row))}))
        read = decoded_edges([IndexFile("key", encode_file(Edge(), now))])[-1].partitions[tp].batches
        if damaged:
            with pytest.raises(CorruptionError, match=r"^key describes a segment in chains/foo, which is not a range"):
                list(read)
        else:
            assert list(read) == [row]


def test_columns_of_a_later_release_are_ignored() -> None:
    now = after(after(Edge(), Step("append", TPS[0], 0, 0)), Step("append", TPS[2], 0, 0))
    data = encode_file(Edge(), now)
    table = pq.read_table(pa.BufferReader(payload_of(data)))
    rows = io.BytesIO()
    pq.write_table(
        table.append_column("colour", pa.array(["x"] * table.num_rows)), rows, row_group_size=index._ROW_GROUP
    )
    document = decode(index.IndexDocument, "key", line_of(data))
    later = replace(document, sha256=content_hash(rows.getvalue()))
    edges = decoded_edges([IndexFile("key", with_payload(encode(later), rows.getvalue()))])
    assert contents(edges[-1]) == contents(now)


# In a chain -----------------------------------------------------------------------------------------------------------


def append(chain: Chain, number: int) -> None:
    """Commit one batch."""
    segment = Segment(f"topics/t/0/{number}.parquet", "parquet", 9, "5" * 64, 1)
    chain.submit(Append(ProducerIdentity(), (NewBatch("t", 0, segment, number, number),)))


def test_a_checkpoint_writes_only_what_is_new() -> None:
    objects = CountingStore(MemoryStore(), log=True)
    with a_chain(objects, checkpoint_every=4) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 25):
            append(chain, number)
        put = [key for kind, key in objects.log if kind == "put" and key.endswith(".index")]
    file = keys.index_file
    assert put == [file(0, 0, 4), file(0, 0, 8), file(0, 8, 12), file(0, 0, 16), file(0, 16, 20), file(0, 0, 24)]
    objects.reset()
    with a_chain(objects, checkpoint_every=4) as chain:
        for number in range(25, 33):
            append(chain, number)
        put = [key for kind, key in objects.log if kind == "put" and key.endswith(".index")]
        assert put == [file(0, 24, 28), file(0, 0, 32)]
        assert [key for kind, key in objects.log if kind == "list" and key.endswith(".index")] == [file(0, 0, 24)]
        state = chain.state
    with a_chain(objects, checkpoint_every=4) as chain:
        assert chain.state == state


@pytest.mark.slow
def test_a_writer_notices_that_a_shared_file_is_missing() -> None:
    """An operator deleted all checkpoints: those that a running writer saves afterwards are whole again."""
    objects = MemoryStore()
    with a_chain(objects, checkpoint_every=1) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 71):
            append(chain, number)
        objects.delete([item.key for item in objects.list(keys.checkpoints(0))])
        for number in range(71, 88):
            append(chain, number)
        state = chain.state
    objects.delete([item.key for item in objects.list(keys.entries(0))][:86])
    with a_chain(objects, checkpoint_every=1) as chain:
        assert chain.state == state


def test_a_failed_file_is_written_with_the_next_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    put = objects.put
    failing = [keys.index_file(0, 0, 16)]

    def once(key: str, data: bytes) -> None:
        if key in failing:
            failing.remove(key)
            raise StorageError("503")
        put(key, data)

    monkeypatch.setattr(objects, "put", once)
    with a_chain(objects, checkpoint_every=4) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 22):
            append(chain, number)
        assert (chain.metrics.checkpoints, chain.metrics.checkpoint_failures) == (4, 1)
        state = chain.state
    assert {keys.index_file(0, 0, 16), keys.index_file(0, 16, 20)} <= {item.key for item in objects.list("")}
    with a_chain(objects, checkpoint_every=4) as chain:
        assert chain.state == state


def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are decoded from now on."""
    decoded: list[int] = []
    decode = index._RowReader.decode

    def counted(rows: index._RowReader, group: int) -> list[Batch]:
        decoded.append(group)
        return decode(rows, group)

    monkeypatch.setattr(index._RowReader, "decode", counted)
    return decoded


def test_entries_that_remove_batches_decode_only_those(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process folds them, also while it opens the store: not at the cost of the whole log."""
    objects, tp = MemoryStore(), TopicPartition("t", 0)
    with a_chain(objects, checkpoint_every=64) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 65):
            append(chain, number)
        batches = [*chain.state.partitions[tp].batches]
        segment = replace(batches[0].segment, object="topics/t/0/merged.parquet", rows=2, explicit_offsets=True)
        merged = replace(batches[40], limit=batches[41].limit, records=2, segment=segment)
        chain.submit(ReplaceSegments(tp, tuple(batches[40:42]), (merged,)))
        chain.submit(DeleteRecords((Deletion(tp, 2),)))
        state = chain.state
    decoded = decodes(monkeypatch)
    with a_chain(objects) as chain:
        assert len(decoded) <= 3
        assert chain.state == state
        assert sorted(chain.state.dropped) == sorted(batches[at].segment.key for at in (0, 1, 40, 41))


def test_an_announcement_of_dropped_objects_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction has dropped nearly all that a vacuum deletes; a vacuum announces it while other commits wait."""
    objects, tp = MemoryStore(), TopicPartition("t", 0)
    with a_chain(objects, checkpoint_every=64) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 63):
            append(chain, number)
        batches = [*chain.state.partitions[tp].batches]
        chain.submit(ReplaceSegments(tp, tuple(batches[40:42]), ()))
        chain.submit(DeleteRecords((Deletion(tp, 2),)))
    dropped = tuple(batches[at].segment.key for at in (0, 1, 40, 41))
    decoded = decodes(monkeypatch)
    with a_chain(objects) as chain:
        decoded.clear()
        assert (chain.submit(DropObjects(dropped)), decoded) == (dropped, [])
        keys_to_drop = (*dropped, "topics/t/0/orphan.parquet", batches[2].segment.key)
        assert chain.submit(DropObjects(keys_to_drop)) == keys_to_drop[:-1]
        assert {*chain.state.dropped} == {*keys_to_drop[:-1]}


def test_a_segment_of_several_batches_is_released() -> None:
    objects, tp = MemoryStore(), TopicPartition("t", 0)
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("t")))
        for number in range(2, 6):
            append(chain, number)
        batches = tuple(chain.state.partitions[tp].batches)
        segment = replace(batches[0].segment, object="topics/t/0/merged.parquet", rows=4, explicit_offsets=True)
        halves = [replace(batches[at], limit=batches[at + 1].limit, records=2, segment=segment) for at in (0, 2)]
        chain.submit(ReplaceSegments(tp, batches, (halves[0], replace(halves[1], first_row=2))))
        chain.submit(DeleteRecords((Deletion(tp, 2),)))
        assert (segment.key in chain.state.released, segment.key in chain.state.dropped) == (True, False)
        assert chain.submit(DropObjects((segment.key,))) == ()
        chain.submit(DeleteRecords((Deletion(tp, 4),)))
        assert chain.submit(DropObjects((segment.key,))) == (segment.key,)
        assert (segment.key in chain.state.released, segment.key in chain.state.dropped) == (False, True)


def test_a_walk_through_all_partitions_decodes_each_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the rows: the decoded groups that are kept are few, and the order of a map is arbitrary."""
    monkeypatch.setattr(index, "_CACHED_GROUPS", 1)
    objects = MemoryStore()
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("t", 39)))
        for number in range(39):
            segment = Segment(f"topics/t/{number}/0.parquet", "parquet", 9, "5" * 64, 1)
            chain.submit(Append(ProducerIdentity(), (NewBatch("t", number, segment, number, number),)))
        chain.checkpoint()
    decoded = decodes(monkeypatch)
    with a_chain(objects) as chain:
        decode_all(chain.state)
        chain.submit(DropObjects(("topics/t/0/other.parquet",)))
        assert decoded == [*range(10)] * 2


def test_arrow_is_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle of an import would leave the lock of all imports acquired."""
    loaded: list[str] = []
    monkeypatch.setattr(index, "load", loaded.append)
    index._arrow()
    assert loaded == ["pyarrow.parquet"]
