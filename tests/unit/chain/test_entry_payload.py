"""The payload of an entry has the segments of the commands that the entry appends, and no others."""

from __future__ import annotations

import pyarrow as pa

from tests.helpers import keys
from tests.helpers.compaction import new_store
from tests.helpers.connections import connection_of
from txnstore.chain.group_commit import Leader, QueuedCommand
from txnstore.chain.payload import Payload, payload_of
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import ProducerIdentity
from txnstore.core.transactions.commands import InitProducer
from txnstore.segment.codec import encode
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


def test_the_payload_has_the_segments_of_accepted_commands() -> None:
    """Several producers share an entry: the segments of a refused command are taken out again."""
    payload = Payload(keys.entry(0, 7))
    first = payload.place(append_of(b"one"))
    mark = payload.mark
    payload.place(append_of(b"refused"))
    payload.back_to(mark)
    last = payload.place(append_of(b"three"))
    assert payload.data == b"onethree"
    assert isinstance(first, Append)
    assert isinstance(last, Append)
    assert [command.batches[0].segment.first_byte for command in (first, last)] == [0, 3]
    described = payload.describe()
    assert described is not None
    assert (described.size, payload.data) == (8, b"onethree")


def test_the_payload_has_no_segments_of_repeated_commands(clock: ManualClock) -> None:
    """A repetition is answered, but adds no batch: its bytes would stay in the entry of another command."""
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t", partitions=2)
    chain = connection_of(store).chain
    identity = chain.submit(InitProducer(None))
    encoded = encode(pa.table({"key": [b"k"], "value": [b"v"]}), "parquet", "zstd")
    batches_of = [NewBatch("t", n, encoded.segment(""), 0, 0, 0, data=encoded.data) for n in range(2)]
    chain.submit(Append(identity, (batches_of[0],)))
    waiters = [QueuedCommand(Append(identity, (batch,))) for batch in batches_of]
    chain._commit(waiters, Leader())
    assert [waiter.answer()[0].duplicate for waiter in waiters] == [True, False]
    sizes = [len(payload_of(objects.get(item.key))) for item in objects.list(keys.entries(0))]
    assert sizes[-2:] == [len(encoded.data)] * 2


def append_of(data: bytes) -> Append:
    """An append of one segment with these bytes."""
    segment = Segment("unused", "parquet", len(data), "", 1)
    return Append(ProducerIdentity(), (NewBatch("t", 0, segment, 0, 0, data=data),))
