"""Cases of damage, and what is done with a damaged store."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from tests.harness.simulation.parts import reading_parts
from tests.helpers import keys
from tests.helpers.keys import FixedRuntime
from txnstore.errors import CorruptionError, StoreNotFoundError, TxnStoreError
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on

EFFECTS = ("flip", "truncate", "delete", "duplicate", "swap", "seal")
_OBJECT = re.compile(r"(topics/|chains/|store\.json|entries/|checkpoints/|latest)")


@dataclass(frozen=True)
class Case:
    """One damage: what is done with which kind of object, drawn by a seed; ``parts``: segments are read by ranges."""

    seed: int
    kind: str
    effect: str
    chains: int
    parts: bool = False


@dataclass(frozen=True)
class Finding:
    """A wrong answer, or an error that is none of ours, or that names no object."""

    case: Case
    key: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.case.seed}: {self.case.effect} {self.key}: {self.step}: {self.what}"


def kind_of(key: str) -> str:
    """The kind of an object."""
    if key == keys.STORE:
        return "store"
    if keys.has_segments(key):
        return "segment"
    if keys.entry_sequence(key) is not None:
        return "entry"
    if key.startswith(keys.HINTS):
        return "latest"
    return "index" if keys.index_range(key) is not None else "head"


KINDS = ("store", "latest", "head", "index", "entry", "segment")


def cases(count: int, seed: int) -> Iterator[Case]:
    """``count`` cases: all kinds and effects in turn, the rest drawn by the seed."""
    for number in range(seed, seed + count):
        effect = EFFECTS[number % len(EFFECTS)]
        kind = KINDS[number // len(EFFECTS) % len(KINDS)]
        yield Case(number, kind, effect, 1 + number % 2, number // (len(EFFECTS) * len(KINDS)) % 2 == 1)


@dataclass(frozen=True)
class Original:
    """The objects of an intact store, and what its readers return."""

    objects: dict[str, bytes]
    answers: dict[str, Any]


def _runtime() -> Runtime:
    return FixedRuntime(clock=lambda: 1_700_000_000_000, sleep=lambda _: None, rng=random.Random(0))


def original(chains: int, parts: bool = False) -> Original:
    """A store with three topics, transactions, a group and checkpoints."""
    with reading_parts(parts):
        return _original(chains, parts)


@cache
def _original(chains: int, _parts: bool) -> Original:
    bucket = MemoryStore(clock=lambda: 1_700_000_000_000)
    with create_on(bucket, chains, runtime=_runtime()) as store:
        store.create_topic("t", partitions=2)
        store.create_topic("typed", schema=pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]))
        store.create_topic("arrow", config={"segment.format": "arrow"})
        with store.producer("id") as producer, store.producer(linger=None) as plain:
            for number in range(12):
                with producer.transaction() as txn:
                    txn.send("t", b"%d" % number, partition=number % 2)
                    txn.send("typed", {"id": number, "name": f"name {number}"})
                if number % 5 == 0:
                    plain.send("arrow", b"%d" % number)
                    plain.flush()
            producer.begin_transaction()
            producer.send("t", b"aborted", partition=0)
            producer.flush()
            producer.abort_transaction()
        with store.consumer(["t"], group="g") as consumer:
            consumer.poll(max_records=10)
            consumer.commit()
        store.checkpoint()
        with store.producer("id") as producer, producer.transaction() as txn:
            txn.send("t", b"last", partition=0)
    objects = {item.key: bucket.get(item.key) for item in bucket.list("")}
    return Original(objects, {name: step(_opened(objects)) for name, step in READS.items()})


def _opened(objects: dict[str, bytes]) -> Store:
    bucket = MemoryStore(clock=lambda: 1_700_000_000_000)
    for key, data in objects.items():
        bucket.put(key, data)
    return open_on(bucket, runtime=_runtime())


def _scan(store: Store) -> Any:
    return [_rows(store.scan(name).to_table()) for name in ("t", "typed", "arrow")]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["_partition"], row["_offset"]))


def _sql(store: Store) -> Any:
    query = "SELECT _partition, _offset, decode(value) FROM {} ORDER BY 1, 2"
    found = [store.sql(query.format(name)).fetchall() for name in ("t", "arrow")]
    return [*found, store.sql("SELECT id, name FROM typed ORDER BY id").fetchall()]


def _consume(store: Store) -> Any:
    with store.consumer(["t", "typed", "arrow"]) as consumer:
        found = []
        for _ in range(8):
            found += [(it.topic, it.partition, it.offset, str(it.value)) for it in consumer.poll()]
        return sorted(found)


def _describe(store: Store) -> Any:
    topics = [(topic.name, topic.partitions, str(topic.schema)) for topic in store.topics()]
    return topics, [str(txn) for txn in store.transactions()], str(store.group("g"))


READS: dict[str, Callable[[Store], Any]] = {"describe": _describe, "scan": _scan, "sql": _sql, "consume": _consume}


def damage(case: Case, objects: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """The key that is damaged, and the objects after that."""
    rng = random.Random(f"{case.seed} {case.kind} {case.effect}")
    names = sorted(key for key in objects if kind_of(key) == case.kind)
    key, data, changed = rng.choice(names), b"", dict(objects)
    data = objects[key]
    others = [name for name in names if name != key]
    if case.effect == "flip":
        place = rng.randrange(len(data))
        changed[key] = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    elif case.effect == "truncate":
        changed[key] = data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data))])]
    elif case.effect == "delete":
        del changed[key]
    elif case.effect == "duplicate":
        changed[_another_key(rng, key)] = data
    elif case.effect == "swap" and others:
        changed[key] = objects[rng.choice(others)]
    else:
        changed[key] = _resealed(rng, data)
    return key, changed


def _another_key(rng: random.Random, key: str) -> str:
    """A key of the same kind that is free."""
    digits = re.findall(r"\d{20}", key)
    if digits:
        return key.replace(digits[0], f"{int(digits[0]) + rng.choice([1000, 100_000]):020d}")
    folder, _, name = key.rpartition("/")
    return f"{folder}/copy-{name}" if folder else f"copy-{name}"


def _resealed(rng: random.Random, data: bytes) -> bytes:
    """A JSON document in which one value is another one, with a checksum that fits; other bytes for other objects."""
    try:
        document = json.loads(data)
    except ValueError:
        return bytes(rng.randrange(256) for _ in range(len(data)))
    document.pop("checksum", None)
    places = [name for name in document if name != "version"]
    document[rng.choice(places)] = rng.choice([None, -1, 2**70, "x", [], {}, [[]], 1.5, "../x"])
    body = json.dumps(document, separators=(",", ":")).encode()
    return body[:-1] + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def run_case(case: Case) -> list[Finding]:
    """Damage a copy of the original store, use it, and return what is wrong."""
    key, objects = damage(case, original(case.chains, case.parts).objects)
    with reading_parts(case.parts):
        return _used(case, key, objects)


def _used(case: Case, key: str, objects: dict[str, bytes]) -> list[Finding]:
    findings: list[Finding] = []

    def note(step: str, what: str) -> None:
        findings.append(Finding(case, key, step, what))

    try:
        store = _opened(objects)
    except TxnStoreError as error:
        _named(error, "open", note)
        return findings
    except Exception as error:  # noqa: BLE001 - reported
        note("open", f"{error!r}"[:300])
        return findings
    with store:
        violations = _verified(store, note)
        readable = [_read(case, store, name, note) for name in READS]
        if not all(readable) and not violations:
            note("verify", "finds nothing, and a reader failed")
        _compact(store, note)
        for name in READS:
            _read(case, store, name, note, " after compaction")
    return findings


def _read(case: Case, store: Store, name: str, note: Callable[[str, str], None], when: str = "") -> bool:
    """Whether a reader returned the whole answer."""
    try:
        found = READS[name](store)
    except TxnStoreError as error:
        _named(error, name + when, note)
    except duckdb.Error as error:  # A relation is evaluated outside of the store's methods.
        if not _OBJECT.search(str(error)):
            note(name + when, f"no object is named: {str(error)[:200]}")
    except Exception as error:  # noqa: BLE001 - reported
        note(name + when, f"{error!r}"[:300])
    else:
        if found == _original(case.chains, case.parts).answers[name]:
            return True
        note(name + when, "a wrong answer in silence")
    return False


def _named(error: TxnStoreError, step: str, note: Callable[[str, str], None]) -> None:
    if not isinstance(error, StoreNotFoundError) and not _OBJECT.search(str(error)):
        note(step, f"no object is named: {error!r}")


def _verified(store: Store, note: Callable[[str, str], None]) -> int:
    try:
        return len(store.verify(deep=True).violations)
    except CorruptionError:
        return 1
    except Exception as error:  # noqa: BLE001 - reported
        note("verify", f"{error!r}"[:300])
        return 1


def _compact(store: Store, note: Callable[[str, str], None]) -> None:
    try:
        store.compact()
        store.vacuum()
    except TxnStoreError as error:
        _named(error, "compact", note)
    except Exception as error:  # noqa: BLE001 - reported
        note("compact", f"{error!r}"[:300])
