"""Cases of hostile input: objects with valid checksums, names and schemas that no writer would write."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tests.harness.corruption.buckets import Bucket, reachable
from tests.harness.corruption.forgeries import forged_checkpoint, forged_entry
from tests.harness.corruption.readers import Note, command, guarded, read_all, use
from tests.harness.corruption.schemas import rows, schema
from tests.harness.corruption.texts import text
from tests.harness.corruption.worlds import Objects, World, world
from tests.harness.simulation.parts import reading_parts
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.store import Store, create

#: What a hostile writer does, beside the effects of damage.
EFFECT = "hostile"


@dataclass(frozen=True)
class HostileCase:
    """What is put into a store: the rest is drawn by the seed."""

    seed: int
    kind: str

    def __str__(self) -> str:
        return f"{EFFECT} {self.kind}"

    @property
    def group(self) -> str:
        """With which cases it is counted."""
        return str(self)

    @property
    def contents(self) -> list[tuple[str, str]]:
        """What is done, and with which kind of input."""
        return [(EFFECT, self.kind)]

    def run(self, note: Note) -> str:
        """Make the store, and use it; returns what is hostile."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _RUN[self.kind](random.Random(f"{self.seed} {self.kind}"), f"{EFFECT}-{self.seed}", note)


def hostile_case(number: int) -> HostileCase:
    """The case of a seed: an entry every second time, the other kinds in turn."""
    others = [kind for kind in KINDS if kind != "entry"]
    return HostileCase(number, "entry" if number % 2 else others[number // 2 % len(others)])


Forge = Callable[[random.Random, World, int], tuple[str, Objects]]


def _forged(forge: Forge, rng: random.Random, name: str, note: Note) -> str:
    """A sound store with one object that is forged, read by ranges in half of the cases."""
    chains, parts = rng.choice([1, 2]), random.Random(f"ranges {name}").random() < 0.5
    of = world("plain", chains, parts)
    key, objects = forge(rng, of, chains)
    with reachable(of.bucket(objects, name)) as bucket, reading_parts(parts):
        use(bucket, note)
    return key


def _names(rng: random.Random, name: str, note: Note) -> str:
    """Names of topics, groups, members and transactional ids, metadata, keys and headers, through the interface."""
    texts = {step: text(rng) for step in ("topic", "group", "id", "member", "metadata", "header", "key", "topic2")}
    with reachable(Bucket(name)) as bucket, create(bucket.url) as store:
        store.create_topic("t")
        for step in ("topic", "topic2"):
            guarded("create_topic", lambda step=step: store.create_topic(texts[step]), note)  # type: ignore[misc]
        names = [topic.name for topic in store.topics()]
        calls: dict[str, Callable[[], Any]] = {
            "transaction": lambda: _transaction(store, texts, names),
            "consumer": lambda: _group(store, texts),
            "transaction of an id": lambda: store.transaction(texts["id"]),
            "group": lambda: store.group(texts["group"]),
            "scan": lambda: store.scan(texts["topic"]).to_table(),
            "delete": lambda: _delete(store, texts),
        }  # fmt: skip
        for step, call in calls.items():
            guarded(step, call, note)
        if not store.verify(deep=True).ok:
            note("verify", "finds violations")
        for arguments in (
            ("txn", "show", texts["id"]),
            ("group", "show", texts["group"]),
            ("topic", "show", texts["topic"]),
        ):
            if "\x00" not in arguments[2] and not arguments[2].startswith("-"):
                command(bucket.url, (arguments[0], arguments[1], "--", arguments[2]), note)
        command(bucket.url, ("consume", "t"), note)
        use(bucket, note)
    return repr(texts)


def _transaction(store: Store, texts: dict[str, str], topics: list[str]) -> None:
    with store.producer(texts["id"]) as producer, producer.transaction() as txn:
        for topic in topics:
            headers = [(texts["header"], texts["key"].encode("utf-8", "surrogatepass"))]
            txn.send(topic, b"x", key=texts["key"].encode("utf-8", "surrogatepass"), headers=headers)
        txn.send_offsets({TopicPartition("t", 0): OffsetAndMetadata(1, texts["metadata"])}, texts["group"])


def _delete(store: Store, texts: dict[str, str]) -> None:
    if texts["topic2"] not in ("t", texts["topic"]):
        store.delete_topic(texts["topic2"])


def _group(store: Store, texts: dict[str, str]) -> None:
    with store.consumer(["t"], group=texts["group"], group_instance_id=texts["member"]) as consumer:
        consumer.poll()
        consumer.commit()


def _schemas(rng: random.Random, name: str, note: Note) -> str:
    """A topic with a schema; if it is accepted, rows of it are read back by every reader."""
    fields = schema(rng)
    with reachable(Bucket(name)) as bucket, create(bucket.url) as store:
        try:
            store.create_topic("t", schema=fields, partitions=1)
        except TxnStoreError:
            return str(fields)
        except Exception as error:  # noqa: BLE001 - reported
            note("create_topic", f"{error!r}"[:300])
            return str(fields)
        _round_trip(store, bucket, rows(rng, fields), note)
    return str(fields)


def _round_trip(store: Store, bucket: Bucket, table: pa.Table, note: Note) -> None:
    def write() -> None:
        with store.producer(linger=None) as producer:
            producer.send_table("t", table)
            producer.flush()

    failed: list[str] = []
    guarded("write", write, lambda step, problem: failed.append(problem))
    if failed:
        note("write", failed[0])
    scanned = store.scan("t").to_table().select(table.column_names)
    if store.offsets("t", 0).high_watermark == table.num_rows and not scanned.equals(table.cast(scanned.schema)):
        note("scan", "is not what was written")
    counts = {reader: len(answer) for reader, answer in read_all(store, "t", note).items()}
    if set(counts.values()) != {scanned.num_rows} or len(counts) < 4:
        note("read", f"of {scanned.num_rows} rows: {counts}")
    use(bucket, note)


_RUN: dict[str, Callable[[random.Random, str, Note], str]] = {
    "entry": partial(_forged, forged_entry),
    "checkpoint": partial(_forged, forged_checkpoint),
    "names": _names,
    "schema": _schemas,
}
KINDS = tuple(_RUN)
