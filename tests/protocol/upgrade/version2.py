"""Makes small stores of format version 2 with all that its releases wrote, and records what these read from them.

Run with the code of the last commit that writes version 2, 20bb6a5, in a worktree of its own::

    git worktree add --detach ../version2 20bb6a5
    PYTHONPATH=../version2 .venv/bin/python tests/protocol/upgrade/version2.py tests/protocol/upgrade/version2.tar.xz

The archive has a folder for each store, whose files have the times that the storage gave them, and ``answers.json``:
what :func:`answers` returned at the end. The same run makes the same bytes. The tests call :func:`answers` with the
code of today; so this file uses the public API alone, but for what no call makes (claims, a crash between two steps).
"""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import random
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness.executors import DeferredExecutor, InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore import Snapshot, TopicPartition
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

ARCHIVE = Path(__file__).with_name("version2.tar.xz")
#: The stores: the number of their chains, and whether a vacuum has deleted the beginning of their history.
STORES = {"one": (1, False), "three": (3, False), "one-aged": (1, True), "three-aged": (3, True)}
_BEGIN = 1_700_000_000_000
_DAY = 86_400_000
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
ISOLATIONS = ("read_committed", "read_uncommitted")
#: Between two steps the clock advances by so many milliseconds.
_STEP = 1_000


# What a store answers -------------------------------------------------------------------------------------------------


def answers(store: Store) -> dict[str, Any]:
    """All that a store shows to readers, as JSON. The store must be open to read, by a clock at its end."""
    names = [topic.name for topic in store.topics()]
    partitions = {name: range(store.topic(name).partitions) for name in names}
    moments = _moments(store)
    return {
        "topics": [
            {"name": topic.name, "partitions": topic.partitions, "key": topic.key, "config": dict(topic.config)}
            for topic in store.topics()
        ],
        "records": {name: {kind: rows(store, name, kind) for kind in ISOLATIONS} for name in names},
        "offsets": {name: [plain(store.offsets(name, each)) for each in partitions[name]] for name in names},
        "times": {name: _times(store, name) for name in names},
        "groups": [_group(each) for each in plain(store.groups())],
        "transactions": [_transaction(store, txn.transactional_id) for txn in store.transactions()],
        "producers": {name: [plain(store.producers(name, each)) for each in partitions[name]] for name in names},
        "history": [
            {name: value for name, value in step.items() if name != "principal"}  # The old release did not know it.
            for step in plain(store.transaction_history("writer").steps)
        ],
        "past": [{"entry": moment, "records": _past(store, moment)} for moment in moments],
    }  # fmt: skip


#: What later releases say of groups and of their members.
_NEW_OF_GROUPS = ("kind", "protocol_type", "protocol", "stored_at")
_NEW_OF_MEMBERS = ("client_id", "client_host")


def _group(described: dict[str, Any]) -> dict[str, Any]:
    """A group without what the old release did not say."""
    members = [_without(member, _NEW_OF_MEMBERS) for member in described["members"]]
    return _without(described, _NEW_OF_GROUPS) | {"members": members}


def _without(description: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name not in names}


def rows(store: Store, name: str, isolation: str, snapshot: Snapshot | None = None) -> list[list[Any]]:
    """The records of a topic by partition and offset: all columns in the order of the schema."""
    table = store.scan(name, isolation, snapshot=snapshot).to_table()  # type: ignore[arg-type]
    columns = [plain(table[column].to_pylist()) for column in sorted(table.column_names)]
    places = zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), zip(*columns, strict=True), strict=True)
    return [list(row) for _, _, row in sorted(places, key=lambda item: item[:2])]


def _times(store: Store, name: str) -> list[Any]:
    """The offsets for some times, in each partition."""
    moments = [0, 1_000, 1_003, *range(_BEGIN, _BEGIN + 200_000, 20_000), _BEGIN + 40 * _DAY]
    consumer = store.consumer()
    pairs = [TopicPartition(name, number) for number in range(store.topic(name).partitions)]
    consumer.assign(pairs)
    found = [consumer.offsets_for_times(dict.fromkeys(pairs, moment)) for moment in moments]
    return [[plain(each[tp]) for tp in pairs] for each in found]


def _transaction(store: Store, name: str) -> Any:
    return _without(plain(store.transaction(name)), ("first_entry",))


def _moments(store: Store) -> list[int | list[int]]:
    """Entries of the past whose snapshots are compared: some of those that can still be read."""
    heads = store.snapshot().heads
    if len(heads) == 1:
        return [*range(heads[0] - 16, heads[0] + 1, 8)]
    return [list(heads)]


def _past(store: Store, moment: int | list[int]) -> dict[str, Any]:
    snapshot = store.snapshot(moment)
    return {
        name: {kind: rows(store, name, kind, snapshot) for kind in ISOLATIONS}
        for name in sorted(snapshot.view.topics)
        if snapshot.view.topics[name].partitions
    }


def plain(value: Any) -> Any:
    """The value as JSON has it: bytes as text, times in ms, objects by their members."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, enum.Enum):
        return value.name
    if hasattr(value, "timestamp") and callable(value.timestamp):
        return round(value.timestamp() * 1000)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return value


def _text(key: object) -> str:
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key)


# Reading the archive --------------------------------------------------------------------------------------------------


def stored(name: str) -> dict[str, tuple[bytes, int]]:
    """The files of a store in the archive, by key: their bytes and their times in ms."""
    files = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            folder, _, key = member.name.partition("/")
            content = archive.extractfile(member)
            if folder == name and content is not None:
                files[key] = (content.read(), round(float(member.pax_headers["mtime"]) * 1000))
    return files


def runtime(clock: ManualClock, name: str, background: Callable[[], Any] = InlineExecutor) -> FixedRuntime:
    """A runtime without threads; ``name`` is the seed of its ids."""
    return FixedRuntime(
        clock, clock.sleep, random.Random(name), InlineExecutor, background, spawn=never, process=lambda: "host-1"
    )


# Making the stores ----------------------------------------------------------------------------------------------------


class _Story:
    """Makes one store, step by step."""

    def __init__(self, name: str) -> None:
        chains, _ = STORES[name]
        self.name, self.clock = name, ManualClock(_BEGIN)
        self.objects = MemoryStore(clock=self.clock)
        self.processes = 0
        self.store = create_on(self.objects, chains, runtime=runtime(self.clock, name))
        #: What stays open to the end: a producer that is collected would abort.
        self.open: list[Any] = []

    def step(self, ms: int = _STEP) -> None:
        self.clock.advance(ms)

    def process(self, background: Callable[[], Any] = InlineExecutor) -> Store:
        """The store as another process opens it."""
        self.processes += 1
        return open_on(self.objects, runtime=runtime(self.clock, f"{self.name}/{self.processes}", background))

    def topics(self) -> None:
        store = self.store
        for topic, partitions, config in (
            ("inlined", 3, {}),
            ("packed", 4, {"inline.bytes": 0}),
            ("own", 2, {"inline.bytes": 0, "pack.bytes": 0}),
            ("arrow", 2, {"segment.format": "arrow"}),
            ("arrowpacked", 3, {"segment.format": "arrow", "inline.bytes": 0, "compression.type": "lz4"}),
            ("appendtime", 2, {"message.timestamp.type": "LogAppendTime"}),
            ("wastimed", 2, {"message.timestamp.type": "LogAppendTime"}),
            ("nowtimed", 2, {}),
            ("appendtimepacked", 3, {"message.timestamp.type": "LogAppendTime", "inline.bytes": 0}),
            ("table", 2, {**_COMPACTED, "delete.retention.ms": 3_600_000}),
            ("kept", 2, {**_COMPACTED, "delete.retention.ms": 300 * _DAY}),
            ("retained", 2, {"retention.ms": _DAY}),
            ("trimmed", 2, {}),
            ("merged", 2, {"message.timestamp.type": "LogAppendTime"}),
            ("gone", 3, {"inline.bytes": 0}),
            ("again", 2, {}),
        ):  # fmt: skip
            store.create_topic(topic, partitions, config=config)
            self.step()
        schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("note", pa.string())])
        store.create_topic("typed", 2, schema, key="id", timestamp="at")
        store.create_topic(
            "typedtimed", 2, schema, config={"message.timestamp.type": "LogAppendTime", "inline.bytes": 0}
        )

    def send(self, producer: Producer, topic: str, values: Sequence[str | None], first: int = 0) -> None:
        """Records in each partition; every third one has headers."""
        for partition in range(self.store.topic(topic).partitions):
            for number, value in enumerate(values, first):
                headers = [("h", b"%d" % number), ("h", b"\xff"), ("none", None)] if number % 3 == 0 else None
                text = None if value is None else f"{value} {partition}.{number}".encode()
                producer.send(topic, text, b"k%d" % (number % 4), partition, headers, 1_000 + number)

    def typed(self, producer: Producer, topic: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            row = {"id": number, "at": _BEGIN * 1000 + number if number % 3 else None, "note": f"note {number}"}
            producer.send_table(topic, pa.Table.from_pylist([row], self.store.topic(topic).schema), number % 2)

    PLAIN = (
        "inlined", "packed", "own", "arrow", "arrowpacked", "appendtime", "wastimed", "nowtimed", "appendtimepacked",
        "retained", "trimmed", "merged", "gone", "again",
    )  # fmt: skip

    def transaction(self, round_: int, topics: Iterable[str], writer: str = "writer") -> None:
        """A committed transaction over many topics, with offsets."""
        store = self.process()
        with store.producer(writer) as producer, producer.transaction():
            for topic in topics:
                self.send(producer, topic, ["a", "b"], 2 * round_)
            producer.send_offsets(
                {TopicPartition("inlined", 0): round_ + 1, TopicPartition("packed", 1): round_ + 1}, "copiers"
            )
        self.step()

    def single(self, round_: int, topics: Iterable[str], *, abort: bool = False) -> None:
        """A transaction for each topic, small enough to be inlined; or aborted ones."""
        for topic in topics:
            with self.process().producer(f"single-{topic}") as producer:
                producer.begin_transaction()
                self.send(producer, topic, [f"single{round_}"] * 2, 10 * round_)
                if abort:
                    producer.flush()
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
            self.step()

    def idempotent(self, round_: int) -> None:
        with self.process().producer() as producer:
            for topic in self.PLAIN:
                self.send(producer, topic, ["i"] * 2, 20 + round_)
                producer.flush()
        self.typed_rows(round_)

    def typed_rows(self, round_: int) -> None:
        with self.process().producer() as producer:
            for topic in ("typed", "typedtimed"):
                self.typed(producer, topic, range(8 * round_, 8 * round_ + 8))
        self.step()

    def keyed(self, round_: int) -> None:
        for topic in ("table", "kept"):
            with self.process().producer("keyed") as producer, producer.transaction():
                self.send(producer, topic, ["v"] * 6 if round_ % 2 == 0 else ["w", None, "w", None])
            self.step()

    def members(self) -> None:
        for instance in (None, "static"):
            consumer = self.process().consumer(["inlined", "packed"], "readers", group_instance_id=instance)
            self.open.append(consumer)
            for _ in range(2):
                for each in self.open:
                    each.poll()
                    self.step()
        for consumer in self.open:
            consumer.commit()
            self.step()
        plain_group = self.process().consumer(["own"], "plain")
        plain_group.poll()
        plain_group.commit()
        plain_group.close()
        self.process().reset_offsets("reset", {TopicPartition("trimmed", 0): 6})
        self.process().reset_offsets("dropped", {TopicPartition("trimmed", 0): 6})
        self.process().delete_group("dropped")
        self.step()

    def unfinished(self) -> None:
        """Transactions that are open, prepared, and decided but not completed."""
        for name, options in (("open", {}), ("prepared", {"two_phase_commit": True})):
            if options:
                producer = self.process().producer(name, two_phase_commit=True)
            else:
                producer = self.process().producer(name, transaction_timeout=900)
            producer.begin_transaction()
            for topic in ("inlined", "packed", "own", "appendtime", "arrow", "wastimed"):
                self.send(producer, topic, [name] * 2, 50)
            producer.send_offsets(
                {TopicPartition("inlined", 1): 5 if options else 6, TopicPartition("own", 0): 1}, f"pending-{name}"
            )
            producer.flush()
            if options:
                producer.prepare_transaction()
            self.open.append(producer)
            self.step()
        for end in ("commit", "abort"):
            # The process dies between the decision and the markers of the other chains.
            producer = self.process(DeferredExecutor).producer(f"decided-{end}")
            producer.begin_transaction()
            for topic in ("inlined", "packed", "appendtime", "arrowpacked", "nowtimed"):
                self.send(producer, topic, [f"decided-{end}"] * 2, 70)
            producer.send_offsets({TopicPartition("inlined", 2): 7}, f"decided-{end}")
            producer.flush()
            (producer.commit_transaction if end == "commit" else producer.abort_transaction)()
            self.open.append(producer)
            self.step()
        with self.process().producer() as producer:  # Behind what is open.
            for topic in ("inlined", "packed", "appendtime"):
                self.send(producer, topic, ["behind"], 90)
        self.step()

    def claim(self) -> None:
        from txnstore.core.claims import ClaimPartitions  # type: ignore[import-not-found]  # Of that release.

        for number in range(2):
            command = ClaimPartitions("a-compactor", (TopicPartition("merged", number),), 3_000_000)
            connection_of(self.process()).submit(command)
        self.step()

    def tell(self) -> None:
        _, aged = STORES[self.name]
        self.topics()
        for round_ in range(3):
            self.transaction(round_, self.PLAIN)
            self.keyed(round_)
        self.idempotent(0)
        self.single(0, ("inlined", "own", "arrow", "appendtime", "wastimed", "nowtimed", "merged", "trimmed"))
        self.single(1, ("inlined", "packed", "arrow", "appendtime", "merged"), abort=True)
        self.store.checkpoint()
        self.store.alter_topic("wastimed", config={"message.timestamp.type": "CreateTime"})
        self.store.alter_topic("nowtimed", config={"message.timestamp.type": "LogAppendTime"})
        self.store.alter_topic("merged", config={"message.timestamp.type": "CreateTime"})
        self.step()
        self.store.delete_topic("gone")
        self.store.delete_topic("again")
        self.step()
        self.store.create_topic("again", 3, config={"inline.bytes": 0})
        self.transaction(3, [topic for topic in self.PLAIN if topic != "gone"])
        self.typed_rows(1)
        self.store.delete_records({TopicPartition("trimmed", 0): 5, TopicPartition("trimmed", 1): -1})
        for topic in ("merged", "table", "kept", "appendtimepacked", "arrowpacked"):
            self.process().compact(topic, force=True)
            self.step()
        self.process().compact("packed", target_bytes=2_000)  # Some of its batches: the packs stay.
        self.step(_DAY)
        self.keyed(4)
        self.process().compact("table", force=True)
        self.process().compact("kept", force=True)
        self.process().retain()
        self.members()
        self.process().checkpoint()
        self.process().vacuum(older_than=0, history=_DAY // 2_000 if aged else 400 * 86_400)  # Packs and payloads.
        self.transaction(4, ("inlined", "packed", "own", "merged", "retained"))
        self.single(2, ("inlined", "packed", "merged"))
        self.process().compact("inlined")
        self.process().compact("own")
        if aged:
            for _ in range(3):
                self.step(_DAY + _STEP)
                self.process().checkpoint()
                self.process().vacuum(older_than=60, history=_DAY // 2_000)
                self.single(3, ("inlined", "own"))
            self.process().checkpoint()
        self.claim()
        self.single(4, ("merged", "appendtime", "nowtimed", "wastimed"))
        self.process().compact("nowtimed", force=True)
        self.process().checkpoint()
        self.unfinished()
        self.single(5, ("merged",))

    def end(self) -> dict[str, Any]:
        """The answers at the end; the SQL and the consumers of the old release agree with its scans."""
        return answers(open_on(self.objects, read_only=True, runtime=runtime(self.clock, "answers")))


def _write(archive: tarfile.TarFile, path: str, data: bytes, modified_ms: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), 0o644
    member.pax_headers = {"mtime": f"{modified_ms / 1000:.3f}"}
    archive.addfile(member, io.BytesIO(data))


def main(path: str) -> None:
    """Make all stores and write the archive."""
    with tarfile.open(path, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for name in STORES:
            story = _Story(name)
            story.tell()
            files = {item.key: (story.objects.get(item.key), item.modified_ms) for item in story.objects.list("")}
            text = json.dumps(story.end(), separators=(",", ":"), ensure_ascii=False).encode()
            report = open_on(story.objects, read_only=True, runtime=runtime(story.clock, "verify")).verify(deep=True)
            assert not report.violations, report.violations
            for key, (data, modified_ms) in sorted(files.items()):
                _write(archive, f"{name}/{key}", data, modified_ms)
            _write(archive, f"{name}/answers.json", text, story.clock())


if __name__ == "__main__":
    main(sys.argv[1])
