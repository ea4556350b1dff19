"""A store with a long history: 1,000,000 segments in 100,000 entries, generated; and what checkpoints write.

The opening is measured in a process of its own, ``python -m benchmarks.history FOLDER``: requests, time, memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import txnstore
from benchmarks.measure import Result, interleaved, median_ms
from txnstore.chain.chain import Chain
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.index import Edge, edge_numbers
from txnstore.chain.context import CHECKPOINT_EVERY, ChainContext
from txnstore.chain.keys import Keys
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.log.batches import BatchList
from txnstore.core.log.commands import Append
from txnstore.core.log.model import Batch, NewBatch, Segment
from txnstore.core.model import Isolation, ProducerIdentity, TopicPartition
from txnstore.core.state import replace
from txnstore.runtime import Runtime
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore

ENTRIES, BATCHES = CHECKPOINT_EVERY * 1562, 10
TOPICS, PARTITIONS = 4, 25
#: Entries of the run that counts bytes, and batches in each.
WRITTEN, EACH = 16_384, 4
ROUNDS = 60


def run() -> Iterator[Result]:
    """Open the store, commit to it and to an empty one in turns, and count what checkpoints write."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "old", Path(folder) / "new"
        generate(old)
        yield from _opening(old)
        yield _commits(old, new)
    yield _bytes()


def generate(folder: Path) -> None:
    """Create a store whose newest checkpoint has the batches of 100,000 entries; neither they nor segments exist."""
    store = txnstore.create(str(folder))
    for number in range(TOPICS):
        store.create_topic(f"topic{number}", partitions=PARTITIONS)
    store.checkpoint()
    store.close()
    objects = LocalStore(str(folder))
    keys = Keys(json.loads(objects.get("store.json"))["store_id"])
    with ThreadPoolExecutor(4) as pool:
        chain = Chain(ChainContext(objects, keys, Runtime(), pool), 0)
        state = chain.load(None)
    tps, rng = [tp for tp, _ in sorted(state.partitions.items())], random.Random(1)
    made: dict[TopicPartition, list[Batch]] = {tp: [] for tp in tps}
    ends, partitions = [Edge()], state.partitions
    for sequence in range(state.sequence + 1, ENTRIES + 1):
        at = state.timestamp + sequence * 10
        for number in range(BATCHES):
            tp = tps[(sequence * BATCHES + number) % len(tps)]
            made[tp].append(_batch(rng, tp, len(made[tp]) * 101, at))
        if sequence in edge_numbers(ENTRIES):
            for tp in tps:
                log = replace(partitions[tp], batches=BatchList(made[tp]), high_watermark=len(made[tp]) * 101)
                partitions = partitions.insert(tp, log)
            ends.append(Edge(sequence, hashlib.sha256(b"%d" % sequence).hexdigest(), partitions))
    state = replace(state, sequence=ENTRIES, entry_hash=ends[-1].entry_hash, timestamp=at, partitions=partitions)
    for key, data in [*checkpoint.encode_checkpoint(keys, 0, ends, state), checkpoint.hint_to(keys, state)]:
        objects.put(key, data)


def _batch(rng: random.Random, tp: TopicPartition, base: int, at: int) -> Batch:
    name = uuid.UUID(int=rng.getrandbits(128))
    key = f"topics/{tp.topic}/{tp.partition}/{name}.parquet"
    segment = Segment(key, "parquet", 20_000 + base % 1000, hashlib.sha256(name.bytes).hexdigest(), 100)
    return Batch(base, base + 100, 100, segment, at, at + 9, 0, 4, 0, base // 101 * 100, True, at)


def opened(folder: str) -> dict[str, float]:
    """What opening the store costs this process, and planning the newest records of a partition."""
    txnstore.create("memory://").close()  # Everything that any open imports.
    before, spent = _memory(), time.process_time()
    store = txnstore.open(folder)
    cpu, memory, requests = time.process_time() - spent, _memory() - before, store.metrics().gets
    log = store.snapshot().view.partitions[TopicPartition("topic1", 3)]
    gets = store.metrics().gets
    spent = time.process_time()
    newest = [*log.batches.overlapping(log.high_watermark - 1000, log.read_limit(Isolation.READ_COMMITTED))]
    plan, planned = time.process_time() - spent, store.metrics().gets - gets
    assert len(newest) == 10
    return {"requests": requests, "cpu": cpu, "MB": memory, "plan": plan, "planned": planned, "total MB": _memory()}


def _memory() -> float:
    """The largest memory of this process so far, in MB: Linux only."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _opening(folder: Path) -> Iterator[Result]:
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.history", str(folder)], check=True, capture_output=True, text=True
    ).stdout
    figures = json.loads(out)
    segments = f"{ENTRIES * BATCHES:,} segments"
    yield Result(
        f"open of {segments}: GETs", figures["requests"], 6 + 4, at_most=True, detail="4 of them look past the head"
    )
    yield Result(f"open of {segments}: processor seconds", figures["cpu"], 2, at_most=True, detail="")
    detail = f"{figures['MB']:.0f} MB more than for an empty store"
    yield Result(f"open of {segments}: MB of the process", figures["total MB"], 300, at_most=True, detail=detail)
    plan = f"plan of the newest 1,000 records of {segments}"
    yield Result(f"{plan}: s", figures["plan"], 0.1, at_most=True, detail="")
    yield Result(f"{plan}: GETs", figures["planned"], 4, at_most=True, detail="")


def _commits(old: Path, new: Path) -> Result:
    stores = {"old": txnstore.open(str(old)), "new": txnstore.create(str(new))}
    for number in range(TOPICS):
        stores["new"].create_topic(f"topic{number}", partitions=PARTITIONS)
    producers = {name: store.producer(transactional_id="bench") for name, store in stores.items()}

    def commit(name: str) -> None:
        with producers[name].transaction() as txn:
            for at in range(100):
                txn.send("topic0", key=b"key-%d" % at, value=b"v" * 100, partition=0)

    runs = {name: (lambda name=name: commit(name)) for name in stores}
    interleaved(runs, 5)
    times = {name: median_ms(durations) for name, durations in interleaved(runs, ROUNDS).items()}
    for store in stores.values():
        store.close()
    detail = f"{times['old']:.1f} ms, {times['new']:.1f} ms on an empty store"
    return Result(
        "commit to that store / to an empty one", times["old"] / times["new"], 1.1, at_most=True, detail=detail
    )


class _Sizes(MemoryStore):
    """Counts the bytes that are written, of entries and of all else."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()

    def put(self, key: str, data: bytes) -> None:
        self.written["saved"] += len(data)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.written["entries"] += len(data)
        return super().put_if_absent(key, data)


def _bytes() -> Result:
    """What entries and checkpoints write together, over what the entries do, in the last quarter of the run."""
    objects, rng = _Sizes(), random.Random(2)
    with ThreadPoolExecutor(2) as pool:
        chain = Chain(ChainContext(objects, Keys(str(uuid.uuid4())), Runtime(), pool), 0)
        chain.load(None)
        chain.submit(CreateTopic(CatalogTopic("t", "id", EACH)))
        quarters = []
        for number in range(WRITTEN):
            if number % (WRITTEN // 4) == 0:
                quarters.append(objects.written.copy())
            made = [_batch(rng, TopicPartition("t", each), 0, 0).segment for each in range(EACH)]
            chain.submit(
                Append(ProducerIdentity(), tuple(NewBatch("t", at, item, 1, 2) for at, item in enumerate(made)))
            )
    shares = []
    for before, after in zip(quarters, [*quarters[1:], objects.written], strict=True):
        spent = after - before
        shares.append(1 + spent["saved"] / spent["entries"])
    detail = "by quarters: " + ", ".join(f"{share:.2f}" for share in shares)
    name = f"bytes of {WRITTEN:,} commits of {EACH} segments / those of their entries"
    return Result(name, shares[-1], 3, at_most=True, detail=detail)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(opened(sys.argv[1])) + os.linesep)
