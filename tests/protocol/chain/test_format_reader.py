"""docs/format.md is enough to read a store: a reader that is written from it alone gets the rows of a scan."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from tests.helpers import format_reader
from tests.helpers.aging import age
from tests.helpers.compaction import DAY_MS, runtime
from tests.helpers.connections import connection_of
from tests.helpers.format_reader import read_store
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.segment.codec import encode
from txnstore.storage.local import LocalStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock

TOPICS: dict[str, dict[str, Any]] = {
    "plain": {"partitions": 3},
    "arrow": {"config": {"segment.format": "arrow"}},
    "typed": {"partitions": 2, "schema": pa.schema([("id", pa.int64()), ("name", pa.string())]), "key": "id"},
    "keyed": {"config": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}},
    "apart": {"partitions": 15, "config": {"inline.bytes": 0}},
    "large": {},
}


def test_the_reader_knows_nothing_of_txnstore() -> None:
    tree = ast.parse(Path(format_reader.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in imported if name.startswith(("txnstore", "tests"))}


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("forgets", [False, True], ids=["all entries", "entries are deleted"])
def test_the_documented_format_is_complete(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, chains: int, seed: int, *, forgets: bool
) -> None:
    """Inlined, packed, uploaded and merged segments, in both formats; open, aborted and committed transactions."""
    history = History(create_on(LocalStore(tmp_path), chains, runtime=runtime(clock)), random.Random(seed))
    packs = set[str]()
    for number in range(60):
        clock.advance(1_000)
        history.step()
        packs.update(path.name for path in tmp_path.glob("topics/*/*/*.pack"))
        if number == 30:
            history.send_large()
        if number % 7 == 0:
            for chain in connection_of(history.store).chains:
                chain.checkpoint()
        if forgets and number in (25, 35, 45):
            for _ in [*history.open]:
                history.end()
            age(tmp_path, days=10)
            clock.advance(10 * DAY_MS)
            history.store.vacuum()
    assert packs
    assert bool([*tmp_path.glob("chains/*/0000/entries/00000000000000000001.json")]) is not forgets
    expected = {name: shown(history.store, name) for name in TOPICS}
    check = Mock(wraps=format_reader.check_blocks)
    monkeypatch.setattr(format_reader, "check_blocks", check)
    for hints in (False, True):
        topics = read_store(tmp_path, hints=hints)
        assert {name: [columns(row) for row in rows] for name, rows in topics.items()} == expected
    assert check.called
    history.store.close()


@pytest.mark.parametrize("place", [100, -100], ids=["block", "footer"])
def test_documented_checksums_of_blocks_show_damage(place: int) -> None:
    segment = encode(pa.table({"value": [random.Random(1).randbytes(1 << 20)] * 2}))
    described = {"footer_size": segment.footer_size, "footer_sha256": segment.footer_sha256}
    data = bytearray(segment.data)
    format_reader.check_blocks(bytes(data), described)
    data[place] ^= 1
    with pytest.raises(AssertionError):
        format_reader.check_blocks(bytes(data), described)


def shown(store: Store, topic: str) -> list[tuple[Any, ...]]:
    """The rows of a scan: partition, offset, and the columns of the topic but its times."""
    rows = store.scan(topic).to_table().to_pylist()
    return sorted((columns((row["_partition"], row["_offset"], row)) for row in rows), key=lambda row: row[:2])


def columns(row: tuple[int, int, dict[str, Any]]) -> tuple[Any, ...]:
    partition, offset, values = row
    return partition, offset, [(name, values.get(name)) for name in ("key", "value", "id", "name")]


class History:
    """Random operations on a store with each kind of topic."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self.open: list[Producer] = []
        self.sent = 0
        for name, options in TOPICS.items():
            store.create_topic(name, **options)

    def step(self) -> None:
        kinds = (
            self.commit,
            self.commit,
            self.commit,
            self.append,
            self.abort,
            self.begin,
            self.end,
            self.tidy,
            self.cut,
        )
        self.rng.choice(kinds)()

    def send(self, producer: Producer) -> None:
        size = self.rng.choice((10, 10, 40_000))
        for _ in range(self.rng.randint(1, 4)):
            name = self.rng.choice([name for name in TOPICS if name != "large"])
            for _ in range(self.rng.randint(1, 5)):
                self.sent += 1
                text = f"{self.sent} ".ljust(size, "x")
                if name == "typed":
                    producer.send(name, {"id": self.sent % 7, "name": text})
                else:
                    producer.send(name, text.encode(), key=b"k%d" % (self.sent % 5))

    def commit(self) -> None:
        with self.store.producer(f"id{self.rng.randrange(3)}") as producer, producer.transaction():
            self.send(producer)

    def send_large(self) -> None:
        """A segment with checksums of its blocks."""
        with self.store.producer() as producer:
            for _ in range(30):
                producer.send("large", self.rng.randbytes(50_000))

    def append(self) -> None:
        with self.store.producer() as producer:
            self.send(producer)

    def abort(self) -> None:
        with self.store.producer("aborter") as producer:
            producer.begin_transaction()
            self.send(producer)
            producer.flush()
            producer.abort_transaction()

    def begin(self) -> None:
        producer = self.store.producer(f"open{self.sent}", transaction_timeout=800)
        producer.begin_transaction()
        self.send(producer)
        producer.flush()
        self.open.append(producer)

    def end(self) -> None:
        if self.open:
            producer = self.open.pop(self.rng.randrange(len(self.open)))
            self.rng.choice((producer.commit_transaction, producer.abort_transaction))()

    def tidy(self) -> None:
        self.store.compact(force=self.rng.random() < 0.5)
        self.store.vacuum(0)

    def cut(self) -> None:
        tp = TopicPartition("plain", self.rng.randrange(3))
        ends = self.store.offsets(*tp)
        self.store.delete_records({tp: self.rng.randint(ends.log_start, ends.last_stable)})
