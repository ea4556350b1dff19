"""Checkpoints: what is saved is what is read, and nothing that is missing or damaged there can hurt."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.helpers import checkpoints, keys
from tests.helpers.connections import connection_of
from tests.helpers.damage import sealed
from tests.helpers.documents import hint
from tests.helpers.shell import T0, a_chain, another_process, backend, names_in_bucket, new_store, runtime, topic
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints.index import Edge, IndexDocument, PartitionRows, encode_file
from txnstore.chain.codec import content_hash, decode, encode
from txnstore.chain.context import ChainContext
from txnstore.chain.payload import entry_hash, line_of, payload_of, with_payload
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.model import Map, TopicPartition
from txnstore.core.state import State
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import CorruptionError, ReadOnlyError, UnsupportedFormatError
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import Fault, FaultStore, on

EVERY = 4


@pytest.fixture
def bucket() -> MemoryStore:
    """Ten entries, checkpoints after 4 and 8."""
    objects = MemoryStore()
    with a_chain(objects, checkpoint_every=EVERY) as chain:
        for number in range(1, 11):
            chain.submit(CreateTopic(topic(f"t{number}")))
    return objects


def state_of(objects: ObjectStore) -> State:
    with a_chain(objects, checkpoint_every=EVERY) as chain:
        return chain.state


def folded(objects: MemoryStore) -> State:
    """The state from entry 1 on, without any checkpoint."""
    bare = MemoryStore()
    for item in objects.list(keys.entries(0)):
        bare.put(item.key, objects.get(item.key))
    return state_of(bare)


def requests_of_opening(objects: ObjectStore) -> list[tuple[str, str]]:
    counted = CountingStore(objects, log=True)
    state_of(counted)
    return [(kind, key) for kind, key in counted.log if key != "chains/"]


# Writing --------------------------------------------------------------------------------------------------------------


def test_commit_that_reaches_the_interval_writes_a_checkpoint(bucket: MemoryStore) -> None:
    heads = [item.key for item in bucket.list(keys.checkpoints(0)) if item.key.endswith("state.json")]
    assert heads == [keys.checkpoint_state(0, 4), keys.checkpoint_state(0, 8)]
    assert json.loads(bucket.get(keys.latest(0)))["sequence"] == 8


def test_the_head_is_written_after_the_index_and_the_hint_last() -> None:
    """So a head is complete as soon as it is there, and the hint never points to nothing."""
    objects = CountingStore(MemoryStore(), log=True)
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("t")))
        objects.reset()
        assert chain.checkpoint() == 1
    written = [key for kind, key in objects.log if kind == "put"]
    assert written == [keys.checkpoint_index(0, 1), keys.checkpoint_state(0, 1), keys.latest(0)]


def test_equal_states_give_equal_checkpoint_bytes(bucket: MemoryStore) -> None:
    """Two processes may write one checkpoint concurrently, in any order."""
    saved = []
    for _ in range(2):
        objects = MemoryStore()
        checkpoints.write(objects, state_of(bucket))
        saved.append([(item.key, objects.get(item.key)) for item in objects.list("")])
    assert saved[0] == saved[1]


def test_failed_checkpoint_does_not_fail_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultStore(MemoryStore(), on(Fault.UNAVAILABLE_503, "put", times=None))
    with caplog.at_level(logging.WARNING), a_chain(faults, checkpoint_every=1) as chain:
        chain.submit(CreateTopic(topic("t")))
        assert chain.metrics.commits == 1
        assert chain.metrics.checkpoints == 0
    assert [record.message for record in caplog.records] == ["checkpoint not written"]
    assert names_in_bucket(faults.inner) == ["t"]


def test_read_only_store_writes_no_checkpoint() -> None:
    objects = MemoryStore()
    new_store(objects).close()
    before = [item.key for item in objects.list("")]
    with open_on(objects, read_only=True) as store, pytest.raises(ReadOnlyError, match="read_only"):
        store.checkpoint()
    assert [item.key for item in objects.list("")] == before


# Reading --------------------------------------------------------------------------------------------------------------


def test_opening_reads_the_hint_the_checkpoint_and_the_entries_after_it(bucket: MemoryStore) -> None:
    requests = requests_of_opening(bucket)
    assert {key for kind, key in requests if kind == "get"} >= {
        keys.latest(0),
        keys.checkpoint_state(0, 8),
        keys.checkpoint_index(0, 8),
        keys.entry(0, 9),
        keys.entry(0, 10),
        keys.entry(0, 11),
    }
    assert not {key for _, key in requests} & {keys.entry(0, number) for number in range(1, 9)}
    assert [key for kind, key in requests if kind == "list"] == [keys.checkpoints(0)], "later ones than the hint names"


def test_state_from_checkpoint_equals_folded_state(bucket: MemoryStore) -> None:
    assert state_of(bucket) == folded(bucket)
    assert state_of(bucket).sequence == 10


def test_the_number_of_requests_hardly_grows_with_the_chain() -> None:
    """10 commits or 300: one index file more (OBJ-14). One of the requests asks for the next boundary, and
    one lists later checkpoints.
    """
    costs = []
    for commits in (10, 300):
        objects = MemoryStore()
        with a_chain(objects) as chain:
            for number in range(commits):
                chain.submit(CreateTopic(topic(f"t{number}")))
            chain.checkpoint()
        costs.append(len(requests_of_opening(objects)))
    assert costs[0] + 1 == costs[1] <= 15


@pytest.fixture
def chain_warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="txnstore.chain")
    return lambda: [str(record.msg) for record in caplog.records]


def test_without_a_hint_the_newest_checkpoint_is_found_by_listing(bucket: MemoryStore) -> None:
    """REC-05."""
    bucket.delete([keys.latest(0)])
    requests = requests_of_opening(bucket)
    assert ("list", keys.checkpoints(0)) in requests
    assert ("get", keys.checkpoint_state(0, 8)) in requests
    assert state_of(bucket) == folded(bucket)


def test_opening_a_long_chain_without_a_hint_costs_at_most_two_lists() -> None:
    """And few GETs more than with it: those that tell a long chain from a short one."""
    objects = MemoryStore()
    with a_chain(objects) as chain:
        for _ in range(2_000):
            chain.submit(InitProducer())
    hinted = requests_of_opening(objects)
    objects.delete([keys.latest(0)])
    requests = requests_of_opening(objects)
    assert 1 <= len([key for kind, key in requests if kind == "list"]) <= 2
    assert len(requests) <= len(hinted) + 6


def test_a_short_chain_without_a_hint_costs_one_listing() -> None:
    """Only a list shows that it is short, and did not lose its hint and its end."""
    objects = MemoryStore()
    with a_chain(objects) as chain:
        chain.submit(CreateTopic(topic("t")))
    assert [kind for kind, _ in requests_of_opening(objects)].count("list") == 1


def digest_of(bucket: MemoryStore, number: int) -> str:
    return entry_hash(bucket.get(keys.entry(0, number)))


def test_stale_hint_costs_only_further_entries(bucket: MemoryStore) -> None:
    """REC-05."""
    bucket.put(keys.latest(0), encode(hint(4, digest_of(bucket, 4))))
    assert state_of(bucket) == folded(bucket)


@pytest.mark.parametrize("damage", [b"", b"{}", b"garbage", b'{"version":1,"sequence":8}'], ids=repr)
def test_a_damaged_hint_is_ignored(bucket: MemoryStore, damage: bytes, chain_warnings: Callable[[], list[str]]) -> None:
    bucket.put(keys.latest(0), damage)
    assert state_of(bucket) == folded(bucket)
    assert "checkpoint hint ignored: %s" in chain_warnings()


@pytest.mark.parametrize("sequence", [-3, 0, 3, 7])
def test_hint_to_a_missing_checkpoint_is_ignored(bucket: MemoryStore, sequence: int) -> None:
    bucket.put(keys.latest(0), encode(hint(sequence, digest_of(bucket, sequence) if sequence > 0 else "")))
    assert state_of(bucket) == folded(bucket)


@pytest.mark.parametrize("part", ["hint", "head"])
def test_damaged_version_of_what_can_be_rebuilt_is_damage(bucket: MemoryStore, part: str) -> None:
    """PST-04: a flipped bit is not taken for a newer format, which would refuse the store."""
    key = keys.latest(0) if part == "hint" else keys.checkpoint_state(0, 8)
    bucket.put(key, bucket.get(key).replace(b'"version":4', b'"version":5'))
    assert state_of(bucket) == folded(bucket)


def test_unreadable_content_of_an_intact_index_is_damage(
    bucket: MemoryStore, chain_warnings: Callable[[], list[str]]
) -> None:
    """PST-04: the bytes fit their checksums, but are no rows. Who decodes them names the object."""
    key = keys.checkpoint_index(0, 8)
    document = decode(IndexDocument, key, line_of(bucket.get(key)))
    rows, tp = b"no parquet", TopicPartition("t1", 0)
    changed = replace(document, partitions=[PartitionRows(tp, [], 1, [(0, 1)])], sha256=content_hash(rows))
    bucket.put(key, with_payload(encode(changed), rows))
    with pytest.raises(CorruptionError, match=f"{key} cannot be read, although its bytes are intact"):
        list(state_of(bucket).partitions[tp].batches)


@pytest.mark.parametrize("rows", [0, 2])
def test_index_whose_rows_do_not_fit_its_line_is_damage(bucket: MemoryStore, rows: int) -> None:
    """PST-04: no batch is left out in silence."""
    key, tp = keys.checkpoint_index(0, 8), TopicPartition("t1", 0)
    log = Partition(batches=BatchList([Batch(0, 1, 1, Segment("k", "parquet", 1, "h", 1), 0, 0)]))
    document = decode(IndexDocument, key, line_of(bucket.get(key)))
    data = encode_file(Edge(), Edge(8, document.entry_hash, Map({tp: log})))
    changed = replace(decode(IndexDocument, key, line_of(data)), partitions=[PartitionRows(tp, [], rows, [(0, 1)])])
    bucket.put(key, with_payload(encode(changed), payload_of(data)))
    if rows:
        with pytest.raises(CorruptionError, match="cannot be read, although its bytes are intact"):
            list(state_of(bucket).partitions[tp].batches)
    else:
        assert state_of(bucket) == folded(bucket)


@pytest.mark.parametrize("change", [{"timestamp": 2**70}, {"next_producer_id": -(2**70)}, {"partitions": []}], ids=str)
def test_head_that_is_no_state_is_damage(bucket: MemoryStore, change: dict[str, object]) -> None:
    """PST-04: the checksum fits, but a number has over 64 bits, or a topic has no logs, which readers rely on."""
    document = json.loads(bucket.get(keys.checkpoint_state(0, 8))) | change
    del document["checksum"]
    bucket.put(keys.checkpoint_state(0, 8), sealed(json.dumps(document, separators=(",", ":")).encode()))
    assert state_of(bucket) == folded(bucket)


@pytest.mark.parametrize("part", [keys.checkpoint_state, keys.checkpoint_index], ids=["head", "index"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "altered", "of another checkpoint"])
def test_a_damaged_checkpoint_falls_back_to_an_older_one(
    bucket: MemoryStore, part: Callable[[int, int], str], damage: str, chain_warnings: Callable[[], list[str]]
) -> None:
    """PST-04."""
    key = part(0, 8)
    data = bucket.get(key)
    if damage == "missing":
        bucket.delete([key])
    elif damage == "empty":
        bucket.put(key, b"")
    elif damage == "truncated":
        bucket.put(key, data[: len(data) // 2])
    elif damage == "altered":
        middle = len(data) // 2
        bucket.put(key, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif part is keys.checkpoint_state:
        bucket.put(key, bucket.get(part(0, 4)))
    else:
        bucket.put(key, b"PAR1" + bucket.get(part(0, 4)))
    assert state_of(bucket) == folded(bucket)
    assert "checkpoint ignored: %s" in chain_warnings()
    assert ("get", keys.checkpoint_state(0, 4)) in requests_of_opening(bucket)


def test_checkpoint_under_the_key_of_another_is_ignored(bucket: MemoryStore) -> None:
    """Head and index fit each other, but they are those of entry 4: its number is in it."""
    for part in (keys.checkpoint_state, keys.checkpoint_index):
        bucket.put(part(0, 8), bucket.get(part(0, 4)))
    assert state_of(bucket) == folded(bucket)


def test_chain_without_valid_checkpoint_is_folded_from_entry_1(bucket: MemoryStore) -> None:
    """PST-04, REC-05."""
    for sequence in (4, 8):
        bucket.put(keys.checkpoint_state(0, sequence), b"garbage")
    assert state_of(bucket) == folded(bucket)


def test_checkpoint_of_a_newer_format_is_refused(bucket: MemoryStore) -> None:
    bucket.put(keys.checkpoint_state(0, 8), sealed(b'{"version":5}'))
    with pytest.raises(UnsupportedFormatError, match=r"state\.json has format version 5"):
        state_of(bucket)


def test_checkpoint_that_contradicts_the_chain_is_corruption(bucket: MemoryStore) -> None:
    """The hint names another hash, and so does the entry after the checkpoint: a foreign checkpoint is found out."""
    other = MemoryStore()
    with a_chain(other, checkpoint_every=EVERY) as chain:
        for number in range(8):
            chain.submit(CreateTopic(topic(f"other{number}")))
    for part in (keys.checkpoint_state, keys.checkpoint_index):
        bucket.put(part(0, 8), other.get(part(0, 8)))
    with pytest.raises(CorruptionError, match=r"belongs to another history.*00008\.json with the hash"):
        state_of(bucket)
    bucket.put(keys.latest(0), other.get(keys.latest(0)))
    with pytest.raises(CorruptionError, match=r"00009\.json follows one whose hash is"):
        state_of(bucket)


# Whole stores ---------------------------------------------------------------------------------------------------------


def full_store() -> Store:
    """A store with everything a state can hold: typed topics, open and ended transactions, groups, drops, versions."""
    store = new_store(partitions=2)
    store.create_topic("other", config={"segment.format": "arrow"})
    with store.producer("ended") as producer:
        for step in range(3):
            with producer.transaction() as txn:
                txn.send("t", b"%d" % step, partition=step % 2)
                txn.send_offsets({TopicPartition("other", 0): step}, "group")
    open_txn = store.producer("open")
    open_txn.begin_transaction()
    open_txn.send("t", b"open", partition=0)
    open_txn.send_offsets({T0: 9}, "pending")
    open_txn.flush()
    with store.producer("aborted") as producer:
        producer.begin_transaction()
        producer.send("t", b"aborted", partition=1)
        producer.flush()
        producer.abort_transaction()
    with store.producer() as producer:
        producer.send("other", b"plain")
    store.compact()
    store.alter_topic("other", partitions=3, config={"retention.ms": 5})
    store.create_topic("gone")
    store.delete_topic("gone")
    return store


def test_checkpoint_round_trips_every_field_of_the_state() -> None:
    """PST-02."""
    store = full_store()
    state = connection_of(store).chain.state
    objects = MemoryStore()
    checkpoints.write(objects, state)
    again = checkpoints.read(objects, state.sequence)
    assert again == state
    assert again is not None
    assert again.transactions["open"].state is state.transactions["open"].state
    assert again.groups["pending"].pending == state.groups["pending"].pending


def test_store_continues_from_a_checkpoint() -> None:
    """The open transaction can be ended by its owner after another process opened from the checkpoint."""
    store = full_store()
    store.checkpoint()
    with another_process(store) as again, again.producer("open") as producer:
        assert producer.epoch > 0
        assert not connection_of(again).view().partitions[T0].open_txns
    assert store.verify(deep=True).ok


def test_checkpoint_of_an_idle_store_writes_only_the_checkpoint() -> None:
    store = new_store()
    before = connection_of(store).view()
    assert store.checkpoint() == before.sequence
    assert store.checkpoint() == before.sequence
    assert connection_of(another_process(store)).view() == before
    assert store.metrics().checkpoints == 2
    heads = [item for item in backend(store).list(keys.checkpoints(0)) if item.key.endswith("state.json")]
    assert len(heads) == 1


def test_a_chain_needs_no_hint_to_be_loaded(bucket: MemoryStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        chain = Chain(ChainContext(bucket, keys.KEYS, runtime(), pool, checkpoint_every=EVERY), 0)
        assert chain.load(None) == folded(bucket)
