"""The payload of an entry has the segments of the commands that the entry appends, and no others."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers import keys
from tests.helpers.compaction import new_store
from tests.helpers.connections import connection_of
from txnstore.chain.codec import Entry
from txnstore.chain.group_commit import Leader, QueuedCommand
from txnstore.chain.payload import Payload, decode_entry, encode_entry, payload_of
from txnstore.core.events import Event
from txnstore.core.log.commands import Append
from txnstore.core.log.events import append_events
from txnstore.core.log.model import Batch, NewBatch, Segment
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import CorruptionError
from txnstore.segment.codec import encode
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock


def test_the_payload_has_the_segments_of_accepted_commands() -> None:
    """Several producers share an entry: the segments of a refused command are taken out again."""
    payload = Payload(keys.entry(0, 7))
    first = payload.place(append_of(b"one"))
    mark = payload.mark
    payload.place(append_of(b"refused"))
    payload.remove_after(mark)
    last = payload.place(append_of(b"three"))
    assert payload.data == b"onethree"
    assert isinstance(first, Append)
    assert isinstance(last, Append)
    assert [command.batches[0].segment.first_byte for command in (first, last)] == [0, 3]
    described = payload.describe()
    assert described is not None
    assert (described.size, payload.data) == (8, b"onethree")


def test_commands_share_the_bytes_of_a_segment() -> None:
    """They stand in the payload once, also if the first command that names them is refused."""
    payload, shared = Payload(keys.entry(0, 7)), append_of(b"shared")
    mark = payload.mark
    payload.place(shared)
    payload.remove_after(mark)
    payload.place(append_of(b"other"))
    places = [payload.place(shared) for _ in range(2)]
    assert payload.data == b"othershared"
    assert [place.batches[0].segment.first_byte for place in places if isinstance(place, Append)] == [5, 5]


def test_the_payload_has_no_segments_of_repeated_commands(clock: ManualClock) -> None:
    """A repetition is answered, but adds no batch: its bytes would stay in the entry of another command."""
    objects = MemoryStore(clock=clock)
    store = new_store(clock, objects)
    store.create_topic("t", partitions=2)
    chain = connection_of(store).chain
    identity = chain.submit(InitProducer(None))
    encoded = encode(pa.table({"key": [b"k"], "value": [b"v"]}), "parquet", "zstd")
    data = [bytes(bytearray(encoded.data)) for _ in range(2)]  # Two objects: what is one is stored once.
    batches_of = [NewBatch("t", n, encoded.segment(""), 0, 0, 0, data=data[n]) for n in range(2)]
    chain.submit(Append(identity, (batches_of[0],)))
    waiters = [QueuedCommand(Append(identity, (batch,))) for batch in batches_of]
    chain._commit(waiters, Leader())
    assert [waiter.answer()[0].duplicate for waiter in waiters] == [True, False]
    sizes = [len(payload_of(objects.get(item.key))) for item in objects.list(keys.entries(0))]
    assert sizes[-2:] == [len(encoded.data)] * 2


ENTRY = keys.entry(0, 7)


@pytest.mark.parametrize(
    ("name", "first_byte"),
    [
        ("chains/foo", 0),
        ("chains/foo", None),
        (f"{keys.entries(0)}0000000000000000000x.json", 0),
        (f"{keys.entries(0)}7.json", 0),
        ("chains/x/0000/entries/00000000000000000007.json", 0),
        (keys.boundary(0, 7), 0),
        (ENTRY, None),
    ],
)
@pytest.mark.parametrize("kind", ["appended", "replaced"])
def test_an_entry_with_a_segment_that_cannot_be_there_is_damage(name: str, first_byte: int | None, kind: str) -> None:
    """OBJ-13: all that follows takes it for one in an entry, and reads the number of that."""
    sound = Segment("topics/t/0/a.parquet", "parquet", 9, "5" * 64, 1)
    for segment in (sound, replace(sound, object=ENTRY, first_byte=0)):
        assert decode_entry(ENTRY, _naming(kind, [sound, segment])).events
    wrong = replace(sound, object=name, first_byte=first_byte)
    with pytest.raises(CorruptionError, match=f"{ENTRY} describes a segment in {name}, which is not a range"):
        decode_entry(ENTRY, _naming(kind, [sound, wrong]))


def _naming(kind: str, segments: list[Segment]) -> bytes:
    """An entry whose events describe these segments."""
    batches = [Batch(number, number + 1, 1, segment, 0, 0) for number, segment in enumerate(segments)]
    events: list[Event] = (
        [event for batch in batches for event in append_events({TopicPartition("t", 0): batch})]
        if kind == "appended"
        else [SegmentsReplaced(topic="t", partition=0, removed=[0], added=batches)]
    )
    return encode_entry(
        Entry(
            sequence=7,
            entry_id="e",
            writer_id="w",
            timestamp=1,
            previous="",
            payload=None,
            requires=None,
            principals=None,
            events=events,
        )
    )


def append_of(data: bytes) -> Append:
    """An append of one segment with these bytes."""
    segment = Segment("unused", "parquet", len(data), "", 1)
    return Append(ProducerIdentity(), (NewBatch("t", 0, segment, 0, 0, data=data),))
