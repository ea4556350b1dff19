"""What it costs a gateway to read batches from segments: requests and bytes are counted."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from tests.helpers.compaction import T0, abort, batches, begin, commit
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store
from txnstore.core.authorization.rights import read_topics
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.gateway import cold
from txnstore.gateway.cold import ColdBatches, Stretch
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.fetch_sessions import Reading, RequestedPartition
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.services import Services
from txnstore.segment import codec
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
RANDOM = random.Random(0)


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return counted_store(clock, MemoryStore(clock=clock))


class Gateway:
    """The part of a gateway that reads segments."""

    def __init__(self, store: Store, size: int = cold.CACHED_BYTES) -> None:
        self._connection = connection_of(store)
        self._threads = ThreadPoolExecutor(8)
        #: The readings in threads at the same time, now and at most.
        self.running, self.most = 0, 0
        self.cold = ColdBatches(cast("Services", self), size)

    @property
    def connection(self) -> Any:
        return self._connection

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self.running -= 1

    async def stretch(self, position: int, isolation: Isolation = COMMITTED, tp: TopicPartition = T0) -> Stretch | None:
        """What a reader gets at a position; None at the end."""
        view = self._connection.view(refresh=False)
        parts = visible_slices(tp, view.partitions[tp], isolation, position)
        return await self.cold.read(view.topics[tp.topic], isolation, parts, position) if parts else None

    async def values(self, isolation: Isolation = COMMITTED, tp: TopicPartition = T0) -> list[bytes]:
        """The values that a reader from the beginning gets."""
        values: list[bytes] = []
        position = 0
        while (stretch := await self.stretch(position, isolation, tp)) is not None:
            assert stretch.limit > position
            for batch in stretch.batches:
                values += [r.value for r in DefaultRecordBatch(batch.data) if r.offset >= position]
            position = stretch.limit
        return values


def run(store: Store, work: Callable[[Gateway], Awaitable[Any]], size: int = cold.CACHED_BYTES) -> Any:
    async def main() -> Any:
        return await work(Gateway(store, size))

    return asyncio.run(cast("Any", main()))


def reads(store: Store) -> tuple[list[str], int]:
    """The keys of segments that were read since the last call, and the bytes."""
    counts = connection_of(store).counts
    keys = [key for kind, key in counts.log if kind == "get" and key.startswith("topics/")]
    return keys, counts.reset().bytes_in


def random_values(count: int, size: int) -> list[bytes]:
    return [RANDOM.randbytes(size) for _ in range(count)]


async def _together(gateway: Gateway, readers: int = 10) -> list[list[bytes]]:
    return list(await asyncio.gather(*(gateway.values() for _ in range(readers))))


async def _one_after_the_other(gateway: Gateway, readers: int = 10) -> list[list[bytes]]:
    return [await gateway.values() for _ in range(readers)]


@pytest.mark.parametrize("work", [_together, _one_after_the_other])
def test_ten_consumers_of_a_topic_read_each_segment_once(store: Store, work: Any) -> None:
    values = random_values(40, 70_000)
    for first in range(0, 40, 2):
        commit(store, values[first : first + 2])
    reads(store)
    assert run(store, work) == [values] * 10
    keys, size = reads(store)
    assert len(keys) == len(set(keys)) == 20
    assert 2_800_000 < size < 3_000_000


@pytest.mark.parametrize("work", [_together, _one_after_the_other])
def test_ten_consumers_of_a_large_segment_read_its_bytes_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, work: Any
) -> None:
    monkeypatch.setattr(codec, "ROW_GROUP_BYTES", 1 << 20)
    values = random_values(80, 100_000)
    commit(store, values)
    (batch,) = batches(store)
    reads(store)
    assert run(store, work) == [values] * 10
    keys, size = reads(store)
    assert len(keys) <= 10  # The footer, and nine pieces.
    assert size < 1.2 * batch.segment.size  # Blocks with checksums are fetched whole.


def test_only_what_was_read_last_is_kept_if_it_is_larger_than_what_may_be(store: Store) -> None:
    tps = TopicPartition("t", 0), TopicPartition("t", 1)
    for tp in tps:
        commit(store, random_values(2, 100_000), partition=tp.partition)
    reads(store)

    async def in_turn(gateway: Gateway) -> None:
        counts = []
        for tp in (*tps, tps[1], tps[0]):
            await gateway.stretch(0, tp=tp)
            counts.append(len(reads(store)[0]))
        assert counts == [1, 1, 0, 1]

    run(store, in_turn, size=1)


def test_readers_in_step_read_a_segment_once_that_is_larger_than_what_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "ROW_GROUP_BYTES", 1 << 20)
    commit(store, random_values(80, 100_000))
    (batch,) = batches(store)
    reads(store)

    async def in_step(gateway: Gateway) -> None:
        position = 0
        while position < batch.limit:
            stretches = await asyncio.gather(*(gateway.stretch(position) for _ in range(10)))
            assert gateway.cold.size <= 2 << 20
            assert len({id(stretch) for stretch in stretches}) == 1
            position = cast("Stretch", stretches[0]).limit

    run(store, in_step, 2 << 20)
    assert reads(store)[1] < 1.2 * batch.segment.size


def test_a_large_merged_segment_is_read_in_pieces(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores offsets, with holes where transactions were aborted."""
    monkeypatch.setattr(codec, "ROW_GROUP_BYTES", 1 << 20)
    values = random_values(60, 100_000)
    for first in range(0, 60, 10):
        commit(store, values[first : first + 10])
        abort(store, [b"aborted"])
    clock.advance(3_600_000)
    store.compact("t")
    assert max(batch.segment.explicit_offsets for batch in batches(store))
    reads(store)
    assert run(store, Gateway.values) == values
    total = sum(batch.segment.size for batch in batches(store))
    assert reads(store)[1] < 1.2 * total

    async def from_the_middle(gateway: Gateway) -> int:
        last = batches(store)[0].limit - 3
        assert cast("Stretch", await gateway.stretch(last)).limit > last
        return reads(store)[1]

    assert run(store, from_the_middle) < total / 2


def test_batches_of_one_segment_open_it_once(store: Store) -> None:
    values = random_values(8, 60_000)
    with store.producer() as producer:
        for number, value in enumerate(values):
            producer.send("t", value, partition=number % 2)
    assert len({batch.segment.object for batch in batches(store)}) == 1
    reads(store)

    async def both(gateway: Gateway) -> list[list[bytes]]:
        return [await gateway.values(tp=TopicPartition("t", number)) for number in range(2)]

    assert run(store, both) == [values[::2], values[1::2]]
    assert len(reads(store)[0]) == 1


def test_a_reader_of_committed_records_gets_nothing_that_others_have_read(store: Store) -> None:
    """Small batches are encoded together, and open and aborted ones are among them."""
    commit(store, [b"committed"] * 3)
    abort(store, [b"aborted"])
    commit(store, [b"committed"])
    producer = begin(store, [b"open"])

    async def read(gateway: Gateway) -> tuple[list[bytes], list[bytes]]:
        return await gateway.values(UNCOMMITTED), await gateway.values(COMMITTED)

    everything, committed = run(store, read)
    assert everything == [b"committed"] * 3 + [b"aborted", b"committed", b"open"]
    assert committed == [b"committed"] * 4
    producer.abort_transaction()
    producer.close()


def test_a_response_has_each_offset_once(store: Store) -> None:
    """What one reader has read from a merged segment begins before what another one, with an older view, needs next."""
    commit(store, [b"0"])
    commit(store, [b"2"])
    producer = begin(store, [b"open"])  # Not merged with those before it.
    before = connection_of(store).view()
    store.compact()
    assert len(batches(store)) == 2
    after = connection_of(store).view()

    async def read(gateway: Gateway) -> list[list[int]]:
        fetch = Fetch(cast("Services", gateway), HotBatches())
        return [await _offsets(fetch, view) for view in (after, before)]

    first, second = run(store, read)
    assert first == [0, 2, 4]  # The others are markers.
    assert second == [0, 2]  # The next request begins at 4: its response may begin before it.
    producer.abort_transaction()
    producer.close()


def test_a_fetch_that_waited_reads_the_columns_of_what_came(store: Store) -> None:
    """The topic of the request is that of its arrival; what it returns has the columns of the view that it reads."""
    store.create_topic("typed", schema=pa.schema([("a", pa.int32())]), config={"inline.bytes": 0})
    topic = connection_of(store).view().topics["typed"]
    asked = RequestedPartition(("typed", 0), TopicPartition("typed", 0), topic, 0, 1 << 20)
    store.alter_topic("typed", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with store.producer() as producer:
        producer.send("typed", {"a": 1 << 40, "b": "precious"})

    async def read(gateway: Gateway) -> bytes:
        fetch = Fetch(cast("Services", gateway), HotBatches())
        reading = Reading([asked], {}, COMMITTED, read_topics(["typed"]), 0)
        parts, _, _ = await fetch._read_all(connection_of(store).view(), reading, reading.due(), 1 << 20)
        ((_, part),) = parts
        return cast("bytes", part["records"])

    (record,) = DefaultRecordBatch(run(store, read))
    assert json.loads(record.value or b"") == {"a": 1 << 40, "b": "precious"}


async def _offsets(fetch: Fetch, view: View) -> list[int]:
    """The offsets of all records in a response to one who reads all that is not aborted from offset 0 on."""
    topic, log = view.topics[T0.topic], view.partitions[T0]
    asked = RequestedPartition((T0.topic, T0.partition), T0, topic, 0, 1 << 20)
    data, *_ = await fetch._records(view, asked, topic, log, UNCOMMITTED, 1 << 20, is_first=True)
    records = MemoryRecords(b"".join(data))
    offsets = []
    while (batch := records.next_batch()) is not None:
        offsets += [record.offset for record in cast("Any", batch)]
    return offsets


def test_what_is_decoded_at_the_same_time_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "ROW_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(cold, "_DECODED_BYTES", 4 << 20)
    store.create_topic("many", partitions=6)
    tps = [TopicPartition("many", number) for number in range(6)]
    for tp in tps:
        commit(store, random_values(12, 100_000), tp.topic, tp.partition)

    async def read(gateway: Gateway) -> int:
        await asyncio.gather(*(gateway.stretch(0, tp=tp) for tp in tps))
        return gateway.most

    assert run(store, read) == 2  # One that needs all, and one that waits for no other, lest it waits without end.


def test_a_cancelled_reader_costs_the_others_nothing(store: Store) -> None:
    values = random_values(2, 70_000)
    commit(store, values)
    reads(store)

    async def read(gateway: Gateway) -> list[bytes]:
        cancelled = asyncio.create_task(gateway.stretch(0))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await gateway.values()

    assert run(store, read) == values
    assert len(reads(store)[0]) == 1
