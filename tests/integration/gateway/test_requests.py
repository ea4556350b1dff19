"""What requests of Kafka's clients cost in requests to the storage."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.helpers.compaction import batches
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.inlining import counted_store, requests
from txnstore.core.model import TopicPartition
from txnstore.gateway import freshness
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

PRODUCE, FETCH, METADATA = (0, 7), (1, 4), (3, 4)
ONE_ENTRY = Counter(put_if_absent=1)
ONE_SEGMENT_AND_ENTRY = Counter(put=1, put_if_absent=1)


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return counted_store(clock, MemoryStore(clock=clock))


@pytest.fixture
def gateway(store: Store) -> Iterator[RunningGateway]:
    with serving(store) as running:
        produce(running, {0: 1})
        fetch(running, 0)  # Its view is read for a minute now.
        requests(store)
        yield running


def ask(gateway: RunningGateway, api: tuple[int, int], body: bytes) -> bytes:
    """The body of the response to one request."""
    frame = struct.pack(">hhih", *api, 7, -1) + body
    with socket.create_connection(gateway.address, timeout=30) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        size, correlation = struct.unpack(">ii", answers.read(8))
        assert correlation == 7
        return answers.read(size - 4)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def produce(gateway: RunningGateway, sizes: Mapping[int, int]) -> None:
    """One Produce request with a batch of a record of so many bytes for each partition; all are appended."""
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + text("t") + struct.pack(">i", len(sizes))
    for partition, size in sizes.items():
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
        builder.append(0, 1_700_000_000_000, None, bytes(range(256)) * (size // 256) + b"v" * (size % 256), [])
        records = bytes(builder.build())
        body += struct.pack(">ii", partition, len(records)) + records
    response = ask(gateway, PRODUCE, body)
    answers = [struct.unpack_from(">ihqqq", response, 11 + 30 * number) for number in range(len(sizes))]
    assert [answer[:2] for answer in answers] == [(partition, 0) for partition in sizes]


def fetch(gateway: RunningGateway, partition: int, offset: int = 0) -> tuple[int, bytes]:
    """Read a partition from an offset on; the code of its error, and its records."""
    body = struct.pack(">iiiibi", -1, 5_000, 1, 50 << 20, 1, 1) + text("t")
    response = ask(gateway, FETCH, body + struct.pack(">iiqi", 1, partition, offset, 1 << 20))
    code, size = struct.unpack_from(">h", response, 19)[0], struct.unpack_from(">i", response, 41)[0]
    assert size == len(response) - 45
    return code, response[45:]


@pytest.mark.parametrize(
    ("sizes", "cost"),
    [
        ({0: 100}, ONE_ENTRY),
        ({0: 32_000}, ONE_ENTRY),
        ({0: 20_000, 1: 20_000}, ONE_ENTRY),
        ({0: 100_000}, ONE_SEGMENT_AND_ENTRY),
        ({0: 100_000, 1: 100_000}, ONE_SEGMENT_AND_ENTRY),
    ],
    ids=["small", "inlined", "two partitions inlined", "large", "two partitions in a segment"],
)
def test_a_produce_request_is_an_entry_and_a_segment_if_it_is_large(
    gateway: RunningGateway, store: Store, sizes: dict[int, int], cost: Counter[str]
) -> None:
    produce(gateway, sizes)
    assert requests(store) == cost


def test_batches_of_a_request_share_what_is_inlined(gateway: RunningGateway, store: Store) -> None:
    produce(gateway, {0: 100, 1: 100})
    first, second = (batches(store, TopicPartition("t", partition))[-1] for partition in (0, 1))
    assert first.segment == second.segment
    assert sorted((first.first_row, second.first_row)) == [0, 1]


def test_metadata_costs_a_look_that_requests_share(
    gateway: RunningGateway, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, expected in ((0, Counter(get=1)), (3600, Counter())):
        monkeypatch.setattr(freshness, "RECENT", seconds)
        ask(gateway, METADATA, struct.pack(">i", 1) + text("t") + b"\0")
        assert requests(store) == expected


def test_hot_fetches_cost_nothing(gateway: RunningGateway, store: Store) -> None:
    produce(gateway, {0: 100, 1: 100_000})
    requests(store)
    assert [len(fetch(gateway, partition)[1]) > 100_000 for partition in (0, 1)] == [False, True]
    assert requests(store) == Counter()


def test_a_fetch_reads_nothing_that_its_response_has_no_room_for(clock: ManualClock) -> None:
    store = counted_store(clock, MemoryStore(clock=clock))
    with serving(store) as first:
        for partition in range(2):
            produce(first, {partition: 100_000})
    with serving(store) as second:
        requests(store)
        body = struct.pack(">iiiibi", -1, 5_000, 1, 50_000, 1, 1) + text("t") + struct.pack(">i", 2)
        response = ask(second, FETCH, body + b"".join(struct.pack(">iqi", n, 0, 1 << 20) for n in range(2)))
        assert 100_000 < len(response) < 110_000
        assert requests(store) == Counter(get=2)  # The head, and one of the two segments.


def test_a_damaged_segment_hides_nothing_before_it(clock: ManualClock) -> None:
    """Slices are read ahead of what a response takes: the error of one is that of its own records."""
    objects = MemoryStore(clock=clock)
    store = counted_store(clock, objects)
    with serving(store) as first:
        for _ in range(3):
            produce(first, {0: 100_000})
    damaged = batches(store, TopicPartition("t", 0))[2].segment.object
    data = objects.get(damaged)
    objects.put(damaged, data[:200] + bytes(100) + data[300:])
    with serving(store) as second:
        code, records = fetch(second, 0)
        assert (code, 200_000 < len(records) < 300_000) == (0, True)
        code, records = fetch(second, 0, 2)
        assert (code, records) == (-1, b"")
